"""The boot counter never goes back while a file of it is whole, and no boot id comes twice."""

import os

from app.identity import hardware_id, open_identity
from umqtt_testkit.portable import Rng, equal

_FILES = ("boot-a", "boot-b")


def _folder(name):
    path = "/tmp/umqtt-identity-%s-%s" % (name, os.urandom(4).hex())
    os.mkdir(path)
    return path


def _clear(folder):
    for name in _FILES:
        try:
            os.remove(folder + "/" + name)
        except OSError:
            pass
    os.rmdir(folder)


def test_the_counter_is_raised_once_a_boot():
    folder = _folder("raise")
    try:
        equal([open_identity("d", folder).boot_count for _ in range(5)], [1, 2, 3, 4, 5])
    finally:
        _clear(folder)


def test_a_boot_id_never_repeats_on_an_erased_flash():
    seen = set()
    for _ in range(20):
        folder = _folder("erased")
        try:
            identity = open_identity("d", folder)
        finally:
            _clear(folder)
        equal(identity.boot_count, 1)
        seen.add(identity.boot)
    equal(len(seen), 20)


def test_the_boot_id_is_the_count_and_64_random_bits():
    folder = _folder("form")
    try:
        identity = open_identity("d", folder, lambda length: bytes(range(length)))
    finally:
        _clear(folder)
    equal(identity.boot, "1-0001020304050607")


def test_a_torn_write_of_the_counter_costs_one_count_and_no_more():
    """Whatever a power cut leaves of the file being written, the other one still holds the count before."""
    rng = Rng(20260101)
    for _ in range(40):
        folder = _folder("torn")
        try:
            boots = rng.between(2, 12)
            for _ in range(boots):
                open_identity("d", folder)
            # The file written last holds `boots`; a cut within the next write tears the other one.
            other = folder + "/" + _FILES[1 if boots % 2 else 0]
            with open(other, "wb") as file:
                file.write(rng.bytes(rng.below(12)))
            equal(open_identity("d", folder).boot_count, boots + 1)
            equal(open_identity("d", folder).boot_count, boots + 2)
        finally:
            _clear(folder)


def test_a_flash_that_refuses_writes_still_gives_an_identity_and_says_so():
    identity = open_identity("d", "/tmp/umqtt-identity-no-such-folder")
    equal(identity.boot_count, 1)
    assert "boot counter not written" in identity.counter_error


def test_topics_carry_the_device_id():
    identity = open_identity("pump-7", "/tmp/umqtt-identity-no-such-folder")
    equal(identity.topic("telemetry"), b"fleet/pump-7/telemetry")


def test_a_hardware_id_is_lower_case_hex():
    equal(hardware_id(b"\x02\xabZ"), "02ab5a")

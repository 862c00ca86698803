# Portable tests of the power-cut flash; test_power_cut.py runs them.
import os

from umqtt_testkit.flash import BLOCK_SIZE, ROOT, NorFlash, PowerCutFlash
from umqtt_testkit.portable import equal, raises

HEAP = "4M"

GEOMETRIES = ("esp32", "rp2")


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def value(number):
    return b"%06d" % number * 20


def check(root, ledger):
    found = read(root + "/value")
    allowed = [ledger.get("saved", b"old"), ledger.get("tried", b"old")]
    assert found in allowed, f"found {found!r}"


def restore(root, ledger):
    check(root, ledger)
    write(root + "/value", read(root + "/value"))


def scenario_of(save, count):
    def scenario(root, ledger):
        for number in range(count):
            ledger["tried"] = value(number)
            save(root + "/value", value(number))
            ledger["saved"] = value(number)

    return scenario


def sweep(save, geometry, count=12, **options):
    with PowerCutFlash(geometry) as flash:
        write(ROOT + "/value", b"old")
        return flash.sweep(scenario_of(save, count), check, **options)


def test_rewriting_a_file_survives_every_cut_and_a_second_one():
    for geometry in GEOMETRIES:
        with PowerCutFlash(geometry) as flash:
            write(ROOT + "/value", b"old")
            once = flash.sweep(scenario_of(write, 8), check)
            assert once >= 30
            equal(flash.sweep(scenario_of(write, 8), restore, second_cuts=2), 3 * once)


def test_temporary_file_and_rename_survives_every_cut():
    def save(path, data):
        write(path + ".new", data)
        os.rename(path + ".new", path)

    for geometry in GEOMETRIES:
        sweep(save, geometry)


def test_a_store_that_does_not_flush_is_caught():
    def scenario(root, ledger):
        file = None
        for number in range(6):
            ledger["tried"] = value(number)
            if file:
                file.close()
            file = open(root + "/value", "wb")  # noqa: SIM115 - left open is the planted bug
            file.write(value(number))
            ledger["saved"] = value(number)
        file.close()

    for geometry in GEOMETRIES:
        with PowerCutFlash(geometry) as flash:
            write(ROOT + "/value", b"old")
            message = str(raises(AssertionError, flash.sweep, scenario, check))
            assert message.startswith("cut at operation "), message


def test_a_store_that_removes_before_it_renames_is_caught():
    def save(path, data):
        write(path + ".new", data)
        os.remove(path)
        os.rename(path + ".new", path)

    for geometry in GEOMETRIES:
        message = str(raises(AssertionError, sweep, save, geometry))
        assert message.startswith("cut at operation ") and "found None" in message, message


def test_a_store_that_writes_in_two_steps_is_caught():
    def save(path, data):
        with open(path, "wb") as file:
            file.write(data[:60])
            file.flush()
            file.write(data[60:])

    for geometry in GEOMETRIES:
        raises(AssertionError, sweep, save, geometry)


def test_a_sample_is_as_large_as_asked_for_and_the_flash_is_as_before():
    with PowerCutFlash() as flash:
        write(ROOT + "/value", b"old")
        equal(flash.sweep(scenario_of(write, 10), check, most=17, seed=3), 17)
        equal(read(ROOT + "/value"), b"old")


def test_a_ledger_is_copied_with_what_is_in_it():
    """Planted: only the outer dict is copied."""

    def scenario(root, ledger):
        ledger["all"] = {"values": [b"old"], "places": (bytearray(1), {0})}
        for number in range(6):
            ledger["all"]["values"].append(value(number))
            ledger["all"]["places"][0][0] += 1
            ledger["all"]["places"][1].add(number + 1)
            write(root + "/value", value(number))

    def check(root, ledger):
        if ledger:
            values, (last, places) = ledger["all"]["values"], ledger["all"]["places"]
            assert read(root + "/value") in values[-2:], "a value from later on"
            equal((last[0] + 1, len(places)), (len(values), len(values)))
            values.append(b"of the check")

    with PowerCutFlash() as flash:
        write(ROOT + "/value", b"old")
        flash.sweep(scenario, check)
        raises(AssertionError, flash.sweep, scenario, check, copy=dict)


def test_a_check_that_leaves_no_room_for_a_file_is_caught():
    def check(root, ledger):
        try:
            for number in range(100):
                write(f"{root}/{number}", b"x" * 2000)
        except OSError:
            pass

    with PowerCutFlash() as flash:
        message = str(raises(AssertionError, flash.sweep, scenario_of(write, 2), check, most=1))
        assert "OSError: 28" in message, message  # ENOSPC


def test_on_fat_a_file_that_is_written_over_does_not_survive_and_two_in_turn_do():
    def in_turn(path, data):
        write(path if data[5:6] in b"02468" else path + "2", data)

    def either(root, ledger):
        found = [read(root + "/value"), read(root + "/value2")]
        assert ledger.get("saved", b"old") in found, f"found {found!r}"

    with PowerCutFlash("fat") as flash:
        write(ROOT + "/value", b"old")
        message = str(raises(AssertionError, flash.sweep, scenario_of(write, 6), check))
        assert message.startswith("cut at operation "), message
    with PowerCutFlash("fat") as flash:
        write(ROOT + "/value2", b"old")
        assert flash.sweep(scenario_of(in_turn, 6), either) > 100


def test_a_scenario_that_fails_by_itself_is_not_taken_for_a_cut():
    def scenario(root, ledger):
        write(root + "/value", b"x")
        raise ValueError("a bug")

    with PowerCutFlash() as flash:
        raises(ValueError, flash.sweep, scenario, check)


def test_wear_is_counted_per_block():
    for geometry, program_size in (("esp32", 32), ("rp2", 256)):
        with PowerCutFlash(geometry) as flash:
            for number in range(100):
                write(ROOT + "/value", value(number))
            cells = flash.flash
            assert sum(cells.erases) > 0 and max(cells.erases) > 0
            assert cells.programs >= 100
            assert cells.programmed_bytes >= 100 * len(value(0))
            equal(cells.programmed_bytes % program_size, 0)
            equal(cells.overwrites, 0)


def test_torn_operations_apply_their_quarters():
    for quarters in range(5):
        flash = NorFlash(bytearray(b"\xff" * BLOCK_SIZE))
        flash.apply(64, b"\0" * 32, quarters)
        equal(flash.memory[64:96], b"\0" * (8 * quarters) + b"\xff" * (32 - 8 * quarters))
        flash = NorFlash(bytearray(BLOCK_SIZE))
        flash.apply(0, None, quarters)
        equal(flash.memory.count(b"\xff"), 1024 * quarters)


def test_without_power_a_device_answers_with_an_error():
    flash = NorFlash(bytearray(BLOCK_SIZE))
    flash.off = True
    equal(flash.readblocks(0, bytearray(4)), -5)
    equal(flash.writeblocks(0, b"x"), -5)
    equal(flash.ioctl(6, 0), -5)


def test_programming_clears_bits_only_and_is_counted_where_not_erased():
    flash = NorFlash(bytearray(b"\xff" * BLOCK_SIZE))
    flash.writeblocks(0, b"\xf0", 0)
    flash.writeblocks(0, b"\x3c", 0)
    equal(flash.memory[0], 0x30)
    equal(flash.overwrites, 1)

"""No boot id is used twice, whatever happened to the flash that holds the counter."""

from app.hardware import hardware_id
from app.identity import Identity
from umqtt_testkit.portable import equal


def test_a_boot_id_never_repeats_on_an_erased_flash():
    equal(len({Identity("d", 1).boot for _ in range(20)}), 20)


def test_the_boot_id_is_the_count_and_64_random_bits():
    equal(Identity("d", 1, bytes(range(8))).boot, "1-0001020304050607")


def test_topics_carry_the_device_id():
    equal(Identity("pump-7", 1).topic("telemetry"), b"fleet/pump-7/telemetry")


def test_a_hardware_id_is_lower_case_hex():
    equal(hardware_id(b"\x02\xabZ"), "02ab5a")

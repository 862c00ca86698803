"""The radio and the time server of a virtual board respond like those of esp32 and rp2."""

from __future__ import annotations

import errno

import pytest
from stub_world import answers

pytestmark = pytest.mark.tier(1)

WLAN = """
import network, time
wlan = network.WLAN(network.STA_IF)
def join(ssid="home", key="secret"):
    wlan.active(True)
    wlan.connect(ssid, key)
    return (wlan.status(), wlan.isconnected())
"""
ESP, PICO = "ESP32_GENERIC", "RPI_PICO_W"
# From modnetwork_globals.h and network_cyw43.c: joined, no such network, wrong key, idle.
STATES = {ESP: (1010, 201, 202, 1000), PICO: (3, -2, -3, 0)}


@pytest.mark.parametrize("board", [ESP, PICO])
def test_joining_ends_in_the_states_of_the_port(board: str):
    joined, none, wrong, idle = STATES[board]
    constants = ("STAT_GOT_IP", "STAT_NO_AP_FOUND", "STAT_WRONG_PASSWORD", "STAT_IDLE")
    program = f"""
show([getattr(network, name) for name in {constants}])
show(wlan.status())
show(join())
show(join("other"))
show(join(key="guess"))
world(wifi=False)
show(join())
world()
join()
wlan.disconnect()
show((wlan.status(), wlan.isconnected()))
"""
    assert answers(WLAN + program, board, networks={"home": "secret"}) == [
        [joined, none, wrong, idle], idle, (joined, True), (none, False), (wrong, False), (none, False), (idle, False)
    ]  # fmt: skip


@pytest.mark.parametrize(("board", "connecting"), [(ESP, 1001), (PICO, 1)])
def test_joining_takes_its_time(board: str, connecting: int):
    program = (
        WLAN
        + """
network.time = clock = Clock()
show(join())
clock.advance(29)
show(wlan.status())
clock.advance(1)
show(wlan.status())
"""
    )
    assert answers(program, board, join_ms=30) == [(connecting, False), connecting, STATES[board][0]]


@pytest.mark.parametrize("board", [ESP, PICO])
def test_a_status_comes_from_one_look_at_the_world(board: str):
    """Two reads could mix the old and the new state, and show a station joined that is joined in neither."""
    program = (
        WLAN
        + """
class Host:
    looks = 0
    def open(self, path, mode):
        Host.looks += 1
        return host.open(path, mode)
host, _virtual._host = _virtual._host, Host()
join()
Host.looks = 0
show((wlan.status(), Host.looks))
"""
    )
    assert answers(program, board, networks={"home": "secret"}) == [(STATES[board][0], 1)]


def test_a_radio_that_is_off_fails_in_the_words_of_its_port():
    program = (
        WLAN
        + """
show((fails(wlan.connect, "a", "b"), fails(wlan.scan), fails(wlan.status, "rssi")))
# Without a name: esp32 takes the network that it knew, rp2 wants one.
wlan.active(True)
show(fails(wlan.connect))
"""
    )
    off, again = answers(program, ESP)
    assert off == (
        ("OSError", "Wifi Internal State Error"), ("OSError", "STA must be active"), ("OSError", "Wifi Not Connected")
    )  # fmt: skip
    assert again is None
    off, again = answers(program, PICO)
    assert off == (("OSError", errno.EPERM), ("OSError", errno.EPERM), 0)
    assert again[0] == "TypeError"


def test_esp32_has_no_radio_without_memory_and_rp2_can_take_its_radio_down():
    program = """
import network
show((fails(network.WLAN, 0), hasattr(network.WLAN, "deinit")))
world()
show(network.WLAN(0).active())
"""
    assert answers(program, ESP, radio_memory=False) == [
        (("RuntimeError", "Wifi Unknown Error 0x0101"), False), False
    ]  # fmt: skip
    program = "import network\nwlan = network.WLAN(0)\nwlan.active(True)\nwlan.deinit()\nshow(wlan.active())"
    assert answers(program, PICO) == [False]


@pytest.mark.parametrize(("board", "last"), [(ESP, False), (PICO, 1)])
def test_a_scan_lists_what_is_in_sight(board: str, last: object):
    program = WLAN + "wlan.active(True)\nshow(wlan.scan())\nworld(wifi=False)\nshow(wlan.scan())"
    assert answers(program, board, networks={"home": "k", "café": ""}, rssi=-61) == [
        [
            (b"home", b"\x02\0\0\0\0\1", 1, -61, 3, last),
            ("café".encode(), b"\x02\0\0\0\0\1", 1, -61, 0, last),
        ],
        [],
    ]


@pytest.mark.parametrize("board", [ESP, PICO])
def test_addresses_and_strength_are_those_of_a_joined_station(board: str):
    program = WLAN + "show(wlan.ifconfig()[0])\njoin()\nshow((wlan.ifconfig()[0], wlan.ipconfig('addr4')))\n"
    program += "show((wlan.status('rssi'), wlan.config('ssid'), len(wlan.config('mac'))))"
    assert answers(program, board, rssi=-70, address="10.1.2.3") == [
        "0.0.0.0",
        ("10.1.2.3", ("10.1.2.3", "255.0.0.0")),
        (-70, "home", 6),
    ]


@pytest.mark.parametrize("board", [ESP, PICO])
def test_configuration_is_kept_and_unknown_keys_are_refused(board: str):
    program = (
        WLAN
        + """
wlan.config(pm=wlan.PM_POWERSAVE)
network.hostname("pump-7")
network.country("DE")
show((wlan.config("pm") == wlan.PM_POWERSAVE, wlan.config("hostname"), network.country()))
show((fails(wlan.config, "flux"), fails(wlan.config, flux=1)))
show((fails(network.hostname, "x" * 33), fails(network.country, "DEU"), fails(wlan.status, "flux")))
show(fails(wlan.config, reconnects=3) or wlan.config("reconnects"))
"""
    )
    kept, unknown, refused, reconnects = answers(program, board)
    assert kept == (True, "pump-7", "DE")
    assert unknown == (("ValueError", "unknown config param"),) * 2
    assert [each[0] for each in refused] == ["ValueError"] * 3
    assert reconnects == (3 if board == ESP else ("ValueError", "unknown config param"))


@pytest.mark.parametrize("board", [ESP, PICO])
def test_an_access_point_has_its_own_name_and_address(board: str):
    program = """
import network
ap = network.WLAN(network.AP_IF)
ap.config(ssid="setup", key="12345678")
ap.active(True)
show((ap.config("ssid"), ap.ifconfig()[0], ap.status("stations"), ap.isconnected()))
"""
    assert answers(program, board) == [("setup", "192.168.4.1", [], False)]


# Time


@pytest.mark.parametrize(("board", "epoch", "wakes"), [(ESP, 2000, 2000), (PICO, 1970, 2021)])
def test_a_board_wakes_with_a_clock_that_nobody_set(board: str, epoch: int, wakes: int):
    program = "import time, machine\nshow((time.gmtime(0)[:6], time.gmtime()[:3], machine.RTC().datetime()[:3]))"
    assert answers(program, board) == [((epoch, 1, 1, 0, 0, 0), (wakes, 1, 1), (wakes, 1, 1))]


@pytest.mark.parametrize("board", [ESP, PICO])
def test_the_time_server_sets_the_boards_calendar(board: str):
    unix_s = 1795000000  # 2026-11-18 11:06:40
    program = (
        WLAN
        + """
import ntptime, machine
show(fails(ntptime.settime))
join()
ntptime.settime()
show((time.gmtime()[:5], machine.RTC().datetime()[:6]))
def between(reading):
    before = time.time()
    return before <= reading() <= time.time()
show(between(lambda: time.mktime(time.gmtime())))
show(between(lambda: time.time_ns() // 1000000000))
"""
    )
    away, now, inverse, same = answers(program, board, ntp=unix_s)
    assert away == ("OSError", -202 if board == ESP else -2)
    assert now == ((2026, 11, 18, 11, 6), (2026, 11, 18, 2, 11, 6))
    assert inverse
    assert same


@pytest.mark.parametrize("board", [ESP, PICO])
def test_mktime_knows_every_leap_day(board: str):
    program = """
import time
for year in (2000, 2023, 2024, 2028, 2096, 2100, 2101):
    for month, day in ((1, 1), (2, 28), (3, 1), (12, 31)):
        at = time.mktime((year, month, day, 12, 34, 56, 0, 0))
        assert time.gmtime(at)[:6] == (year, month, day, 12, 34, 56), (year, month, day)
"""
    assert answers(program, board) == []


def test_a_time_server_that_does_not_answer_is_an_error_of_the_network():
    program = WLAN + "import ntptime\njoin()\nshow(fails(ntptime.settime))\nshow(time.gmtime()[0])"
    assert answers(program, ESP, ntp=False) == [("OSError", errno.ETIMEDOUT), 2000]
    assert answers(program, PICO, ntp="name") == [("OSError", -2), 2021]


# What each port has and lacks


def test_rp2_lacks_what_its_documentation_does_not_have():
    program = """
import machine, sys
names = ("wake_reason", "HARD_RESET", "SOFT_RESET", "DEEPSLEEP_RESET", "TIMER_WAKE", "WDT_RESET", "PWRON_RESET")
show((sys.platform, [name for name in names if hasattr(machine, name)], hasattr(machine.RTC(), "memory")))
show((len(machine.unique_id()), hasattr(machine.ADC(machine.Pin(26)), "read_uv")))
watched = fails(machine.WDT, timeout=8389)
show(watched if isinstance(watched, tuple) else None)
"""
    assert answers(program, PICO) == [
        ("rp2", ["WDT_RESET", "PWRON_RESET"], False), (8, False), ("ValueError", "timeout exceeds 8388"),
    ]  # fmt: skip
    (platform, names, memory), adc, watched = answers(program, ESP)
    assert (platform, len(names), memory) == ("esp32", 7, True)
    assert (adc, watched) == ((6, True), None)


def test_pins_pull_and_remember_and_interrupt():
    program = """
import machine, time
free, up = machine.Pin(4, machine.Pin.IN), machine.Pin(5, machine.Pin.IN, machine.Pin.PULL_UP)
out = machine.Pin(6, machine.Pin.OUT, value=1)
show((free(), up.value(), out(), machine.Pin(7, machine.Pin.IN).value()))
out.off()
show((out.value(), machine.Pin(6) is out, fails(machine.Pin, 99)))
told = []
free.irq(lambda pin: told.append(pin is free), machine.Pin.IRQ_RISING)
for level in (1, 0, 1):
    free._drive(level)
    time.sleep_ms(1)
show(told)
"""
    assert answers(program, ESP, pins={"7": 1}) == [(0, 1, 1, 1), (0, True, ("ValueError", "invalid pin")), [True] * 2]


def test_a_timer_calls_back_until_it_is_told_to_stop():
    program = """
import machine, time
calls = []
once = machine.Timer(-1, mode=machine.Timer.ONE_SHOT, period=2, callback=lambda timer: calls.append("once"))
often = machine.Timer(-1, period=2, callback=lambda timer: calls.append("often"))
while calls.count("often") < 3 or "once" not in calls:
    time.sleep_ms(1)
often.deinit()
other = machine.Timer(-1, period=2, callback=lambda timer: calls.append("other"))
while "other" not in calls:
    time.sleep_ms(1)
# What was scheduled has been called by now; one more may be about to be.
count = calls.count("often")
while calls.count("other") < 10:
    time.sleep_ms(1)
show((calls.count("once"), calls.count("often") - count <= 1))
"""
    assert answers(program, ESP) == [(1, True)]


def test_a_timer_outlives_a_callback_that_takes_far_longer_than_its_period():
    program = """
import machine, time
calls = []
def slow(timer):
    calls.append(1)
    if len(calls) == 1:
        time.sleep_ms(200)
machine.Timer(-1, period=1, callback=slow)
while len(calls) < 50:
    time.sleep_ms(1)
show(len(calls) >= 50)
"""
    assert answers(program, ESP) == [True]


def test_volts_at_a_pin_are_read_in_the_range_that_was_chosen():
    program = """
import machine
adc = machine.ADC(machine.Pin(34), atten=machine.ADC.ATTN_11DB)
show((adc.read_uv(), adc.read(), adc.read_u16()))
adc.atten(machine.ADC.ATTN_0DB)
show((adc.read_uv(), adc.read()))
show((fails(machine.ADC, 5), fails(adc.atten, 9)))
"""
    half, clipped, refused = answers(program, ESP, adc={"34": 1.225})
    assert half == (1225000, 2048, 2048 << 4 | 2048 >> 8)
    assert clipped == (950000, 4095)
    assert refused == (("ValueError", "invalid pin"), ("ValueError", "invalid attenuation"))


def test_numbers_in_nvs_are_found_or_said_to_be_missing():
    program = """
import esp32
nvs = esp32.NVS("app")
nvs.set_i32("boots", -3)
nvs.set_blob("key", b"abc")
nvs.commit()
buffer = bytearray(2)
again = esp32.NVS("app")
show((again.get_i32("boots"), fails(again.get_i32, "other"), fails(again.get_blob, "key", buffer)[1]))
again.erase_key("boots")
show(fails(again.get_i32, "boots"))
"""
    missing = ("OSError", -4354, "ESP_ERR_NVS_NOT_FOUND")
    assert answers(program, ESP) == [(-3, missing, -4364), missing]

"""The networks are tried in order, with a longer pause after every failed round, without end."""

import sys

import _app_fakes as fakes
from app.build_radio import _network
from app.settings import check_settings
from app.wifi import Wifi
from umqtt_testkit.portable import Rng, equal, raises


class _Driver:
    """A driver that raises: `raising[name]` at a call of that name, as ports/esp32/network_common.c does."""

    def __init__(self):
        self.raising = {}

    def _may_raise(self, name):
        if name in self.raising:
            raise self.raising[name]


class _Wlan(_Driver):
    PM_PERFORMANCE = 1
    PM_POWERSAVE = 2

    def __init__(self, network):
        super().__init__()
        self._network = network
        self.up = False
        self.refuse = False
        self.state = network.STAT_IDLE
        self.calls = []
        self.configured = {}
        self.ssid = None
        if network.STAT_GOT_IP == 3:
            self.deinit = self._deinit  # esp32 has no deinit()

    def active(self, on):
        self.calls.append(("active", on))
        self._may_raise("active")

    def _deinit(self):
        self.calls.append(("deinit",))
        self._may_raise("deinit")

    def config(self, **values):
        self._may_raise("config")
        if "reconnects" in values and self._network.STAT_GOT_IP == 3:
            raise ValueError("unknown config param")
        self.configured.update(values)

    def isconnected(self):
        self._may_raise("isconnected")
        return self.up

    def status(self, what=None):
        self._may_raise("status")
        if what == "rssi":
            if not self.up:
                raise OSError("Wifi Not Connected")
            return -61
        return self.state

    def ifconfig(self, addresses):
        self.calls.append(("ifconfig", addresses))
        self._may_raise("ifconfig")

    def disconnect(self):
        self.up = False
        self._may_raise("disconnect")

    def connect(self, ssid, password):
        self.calls.append((ssid, password))
        self.ssid = ssid
        self._may_raise("connect")
        if self.refuse:
            raise OSError("Wifi Internal State Error")


class _Esp32:
    """The documented values of esp32; those of rp2 are below."""

    STA_IF = 0
    STAT_IDLE, STAT_CONNECTING, STAT_GOT_IP = 1000, 1001, 1010
    STAT_NO_AP_FOUND, STAT_WRONG_PASSWORD, STAT_CONNECT_FAIL = 201, 202, 203
    STAT_HANDSHAKE_TIMEOUT = 204

    def __init__(self):
        self.said = []
        self.wlan = _Wlan(self)

    def WLAN(self, interface):
        self.wlan._may_raise("WLAN")
        return self.wlan

    def country(self, code):
        self.wlan._may_raise("country")
        self.said.append(("country", code, len(self.wlan.calls)))

    def hostname(self, name):
        self.wlan._may_raise("hostname")
        self.said.append(("hostname", name, len(self.wlan.calls)))


class _Rp2(_Esp32):
    STAT_IDLE, STAT_CONNECTING, STAT_GOT_IP = 0, 1, 3
    STAT_NO_AP_FOUND, STAT_WRONG_PASSWORD, STAT_CONNECT_FAIL = -2, -3, -1
    STAT_HANDSHAKE_TIMEOUT = None


def _build(port, networks, passwords=None, **changes):
    values = {"brokers": ["mqtt://a"], "wifi": networks}
    values.update(changes)
    network = port()
    log = fakes.Log()
    return network, network.wlan, log, Wifi(network, check_settings(values), passwords or {}, log.report)


def _attempts(wlan, wifi, seconds, start=0):
    """Return [(second, ssid)] of the attempts made in this time."""
    made = []
    for now_ms in range(start * 1000, (start + seconds) * 1000, 250):
        before = len(wlan.calls)
        wifi.step(now_ms)
        made.extend([(now_ms // 1000, call[0]) for call in wlan.calls[before:] if call[0] not in ("active", "deinit")])
    return made


def _warnings(log):
    return [text for level, text, _ in log.records if level == "warning"]


def test_networks_come_in_order_pauses_double_and_an_attempt_that_never_ends_is_given_up():
    for port in (_Esp32, _Rp2):
        _, wlan, _, wifi = _build(port, ["a", "b"])
        wlan.state = port.STAT_CONNECTING
        equal(
            _attempts(wlan, wifi, 200),
            [
                (0, "a"),
                (15, "b"),
                (31, "a"),
                (46, "b"),
                (63, "a"),
                (78, "b"),
                (97, "a"),
                (112, "b"),
                (135, "a"),
                (150, "b"),
                (181, "a"),
                (196, "b"),
            ],
        )


def test_the_reason_is_said_once_by_the_values_of_each_port():
    for port in (_Esp32, _Rp2):
        for state, text in (
            (port.STAT_WRONG_PASSWORD, "Wi-Fi: a: wrong password: correct it with umqtt provision"),
            (port.STAT_NO_AP_FOUND, "Wi-Fi: a: no such network in reach: is its name right, is it on, and at 2.4 GHz?"),
        ):
            _, wlan, log, wifi = _build(port, ["a"])
            wlan.state = state
            made = _attempts(wlan, wifi, 600)
            # The failure is recognised after 2 s, not only after 15.
            equal(made[:3], [(0, "a"), (3, "a"), (7, "a")])
            equal(_warnings(log), [text])
    _, wlan, log, wifi = _build(_Esp32, ["a"])
    wlan.state = 15
    _attempts(wlan, wifi, 5)
    equal(_warnings(log), ["Wi-Fi: a: wrong password: correct it with umqtt provision"])


def test_a_problem_is_said_again_after_it_was_over():
    _, wlan, log, wifi = _build(_Esp32, ["a"])
    wlan.state = 201
    _attempts(wlan, wifi, 60)
    wlan.up = True
    _attempts(wlan, wifi, 5, 60)
    wlan.up = False
    _attempts(wlan, wifi, 60, 65)
    equal(_warnings(log), ["Wi-Fi: a: no such network in reach: is its name right, is it on, and at 2.4 GHz?"] * 2)


def test_the_driver_of_esp32_is_told_to_stop_trying_since_it_shows_no_failure_before():
    _, wlan, _, wifi = _build(_Esp32, ["a"])
    wifi.step(0)
    equal(wlan.configured, {"pm": 1, "reconnects": 2})
    _, wlan, log, wifi = _build(_Rp2, ["a"], power_save=True)
    wifi.step(0)
    equal((wlan.configured, log.records), ({"pm": 2}, []))


def test_a_static_address_is_given_to_the_radio_whenever_it_is_switched_on_and_before_it_joins():
    """Planted: the address is set only once, but the radio forgets it when it is switched off."""
    for port in (_Esp32, _Rp2):
        static_ip = ["192.168.1.50", "255.255.255.0", "192.168.1.1", "192.168.1.1"]
        _, wlan, _, wifi = _build(port, ["a"], static_ip=static_ip)
        wlan.state = port.STAT_CONNECTING
        _attempts(wlan, wifi, 200)
        calls = [call for call in wlan.calls if call[0] in ("ifconfig", "a") or call == ("active", True)]
        equal(calls[:3], [("active", True), ("ifconfig", tuple(static_ip)), ("a", None)])
        equal(calls.count(("ifconfig", tuple(static_ip))), calls.count(("active", True)))
        assert calls.count(("active", True)) > 1


def test_country_and_hostname_are_set_before_the_radio_is_switched_on():
    network, wlan, _, wifi = _build(_Rp2, ["a"], country="DE", hostname="pump-7")
    # Nothing happens before the first step, since other parts may need the radio's pins first.
    equal((network.said, wlan.calls, wifi.connected, wifi.rssi()), ([], [], False, None))
    wifi.step(0)
    equal(network.said, [("country", "DE", 0), ("hostname", "pump-7", 0)])
    equal(wlan.calls, [("active", True), ("a", None)])


def test_a_driver_that_refuses_is_tried_again_for_ever_and_no_password_is_told():
    _, wlan, log, wifi = _build(_Esp32, ["a"], {"a": "hunter22"})
    wlan.refuse = True
    assert len(_attempts(wlan, wifi, 3600)) > 40
    assert log.records and "hunter22" not in repr(log.records)


def test_the_radio_is_switched_off_and_on_after_every_third_failed_round():
    _, wlan, _, wifi = _build(_Esp32, ["a"])
    _attempts(wlan, wifi, 400)
    switched = [call for call in wlan.calls if call[0] == "active"]
    equal(switched, [("active", True)] + [("active", False), ("active", True)] * (wifi.failed_rounds // 3))
    assert wifi.failed_rounds >= 6
    # Without deinit() the chip of rp2's radio stays powered.
    _, wlan, _, wifi = _build(_Rp2, ["a"])
    _attempts(wlan, wifi, 60)
    equal([call[0] for call in wlan.calls].count("deinit"), wifi.failed_rounds // 3)


def test_no_state_of_the_driver_raises_and_attempts_never_stop():
    for port in (_Esp32, _Rp2):
        for seed in range(5):
            rng = Rng(seed, quiet=True)
            _, wlan, _, wifi = _build(port, ["a", "b", "c"])
            for minute in range(20):
                wlan.state = rng.between(-4, 4) if rng.chance(50) else rng.between(199, 215)
                wlan.refuse = rng.chance(20)
                wlan.up = rng.chance(10)
                up = wlan.up
                made = _attempts(wlan, wifi, 180, minute * 180)
                assert made or up, (seed, minute, wlan.state)


def test_whatever_any_call_of_the_driver_raises_is_told_and_ends_with_it():
    """Planted: RuntimeError is not caught; the constructor is outside the try block."""
    calls = "WLAN active deinit config isconnected status disconnect connect country hostname ifconfig"
    for port in (_Esp32, _Rp2):
        for call in calls.split():
            for error in (OSError("Wifi Internal Error"), RuntimeError("Wifi Unknown Error 0x0101"), MemoryError()):
                static_ip = ["192.168.1.50", "255.255.255.0", "192.168.1.1", "192.168.1.1"]
                options = {"country": "DE", "hostname": "pump-7", "static_ip": static_ip}
                _, wlan, log, wifi = _build(port, ["a", "b"], **options)
                wlan.state = port.STAT_NO_AP_FOUND
                wlan.raising[call] = error
                _attempts(wlan, wifi, 40)
                wlan.up = True
                wifi.rssi()
                wlan.up = False
                _attempts(wlan, wifi, 10, 40)
                if call != "deinit" or port is _Rp2:
                    assert "Wi-Fi: %r" % error in _warnings(log), (call, error, _warnings(log))
                wlan.raising = {}
                wlan.calls = []
                assert _attempts(wlan, wifi, 20, 50), (call, error)
                wlan.up = True
                wifi.step(70_000)
                equal((wifi.connected, wifi.rssi()), (True, -61), call)
                wifi.off()
                equal(wlan.calls[-1], ("active", False) if port is _Esp32 else ("deinit",))


def test_a_link_that_is_up_is_left_alone_and_its_strength_known():
    _, wlan, _, wifi = _build(_Esp32, ["a"])
    equal(wifi.rssi(), None)
    wifi.step(0)
    wlan.up = True
    equal(_attempts(wlan, wifi, 100, 1), [])
    equal((wifi.connected, wifi.rssi()), (True, -61))


def test_an_image_without_wifi_is_named_by_the_setting_that_needs_it():
    from app.settings import SettingsError  # other tests import the application again

    before = sys.modules.get("network")
    sys.modules["network"] = fakes  # a module without WLAN
    try:
        error = raises(SettingsError, _network)
    finally:
        if before:
            sys.modules["network"] = before
        else:
            del sys.modules["network"]
    equal(str(error), "settings.json: wifi: must be empty: the image on this board has no Wi-Fi")


def test_where_the_system_has_the_network_there_is_nothing_to_do():
    wifi = Wifi(None, check_settings({"brokers": ["mqtt://a"]}), {}, fakes.Log().report)
    wifi.step(0)
    wifi.off()
    equal((wifi.connected, wifi.rssi()), (True, None))

"""The networks are tried in order, with a longer pause after every round that failed, and for ever."""

from app.wifi import Wifi
from umqtt_testkit.portable import equal


class _Wlan:
    def __init__(self, refuse=False):
        self.up = False
        self.refuse = refuse
        self.calls = []

    def active(self, on):
        self.calls.append(("active", on))

    def isconnected(self):
        return self.up

    def disconnect(self):
        pass

    def connect(self, ssid, password):
        self.calls.append((ssid, password))
        if self.refuse:
            raise OSError("Wifi Internal State Error")


def _attempts(wlan, wifi, seconds):
    """[(second, ssid)] of the attempts in that time."""
    made = []
    for now_ms in range(0, seconds * 1000, 250):
        before = len(wlan.calls)
        wifi.step(now_ms)
        made.extend([(now_ms // 1000, ssid) for ssid, _ in wlan.calls[before:]])
    return made


def test_networks_come_in_order_and_pauses_double():
    wlan = _Wlan()
    made = _attempts(wlan, Wifi(wlan, ["a", "b"], {}), 200)
    equal(made, [(0, "a"), (15, "b"), (31, "a"), (46, "b"), (63, "a"), (78, "b"), (97, "a"), (112, "b"),
                 (135, "a"), (150, "b"), (181, "a"), (196, "b")])


def test_a_driver_that_refuses_is_tried_again_for_ever():
    wlan = _Wlan(refuse=True)
    wifi = Wifi(wlan, ["a"], {"a": "secret"})
    assert len(_attempts(wlan, wifi, 3600)) > 40
    assert "secret" not in wifi.last_error


def test_a_link_that_is_up_is_left_alone():
    wlan = _Wlan()
    wlan.up = True
    wifi = Wifi(wlan, ["a"], {})
    equal(_attempts(wlan, wifi, 100), [])
    assert wifi.connected


def test_where_the_system_has_the_network_there_is_nothing_to_do():
    wifi = Wifi(None, [], {})
    wifi.step(0)
    assert wifi.connected

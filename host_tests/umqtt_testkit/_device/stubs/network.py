"""The `network` of a virtual board: a station interface in front of the host's own network.

Constants, return values and errors are those of the esp32 port. `hooks.json` (see VirtualBoard.hooks) changes
its behaviour while the board runs:
    "wifi": false           no access point in sight
    "networks": {SSID: KEY} only these exist; a wrong key is refused
    "rssi": DBM             signal strength to report; without it there is none, for there is no radio
"""

import json as _json
import os as _os

STA_IF = 0
AP_IF = 1

STAT_IDLE = 1000
STAT_CONNECTING = 1001
STAT_GOT_IP = 1010
STAT_BEACON_TIMEOUT = 200
STAT_NO_AP_FOUND = 201
STAT_WRONG_PASSWORD = 202
STAT_ASSOC_FAIL = 203
STAT_HANDSHAKE_TIMEOUT = 204

_HOSTNAME_MAX = 32

_host = _os.VfsPosix(_os.getenv("UMQTT_BOARD_FOLDER") or "/nonexistent")
_hostname = "mpy-virtual"
_country = "XX"


def _hook(name, default=None):
    try:
        with _host.open("/hooks.json", "r") as file:
            return _json.load(file).get(name, default)
    except OSError:
        return default  # no hooks were set


def hostname(name=None):
    global _hostname
    if name is None:
        return _hostname
    if len(name) > _HOSTNAME_MAX:
        raise ValueError
    _hostname = name


def country(code=None):
    global _country
    if code is None:
        return _country
    if len(code) != 2:
        raise ValueError
    _country = code


class WLAN:
    IF_STA = STA_IF
    IF_AP = AP_IF
    PM_NONE = 0
    PM_PERFORMANCE = 1
    PM_POWERSAVE = 2

    _interfaces = {}

    def __new__(cls, interface_id=STA_IF):
        # Like on a board, there is one object an interface.
        if interface_id not in cls._interfaces:
            if interface_id not in (STA_IF, AP_IF):
                raise ValueError("invalid WLAN interface identifier")
            cls._interfaces[interface_id] = super().__new__(cls)
        return cls._interfaces[interface_id]

    def __init__(self, interface_id=STA_IF):
        if hasattr(self, "_active"):
            return
        self._interface = interface_id
        self._active = False
        self._ssid = None
        self._key = None
        self._config = {"pm": self.PM_PERFORMANCE, "reconnects": -1, "txpower": 20, "channel": 1}

    def active(self, is_active=None):
        if is_active is None:
            return self._active
        self._active = bool(is_active)
        if not is_active:
            self._ssid = None
        return self._active

    def connect(self, ssid=None, key=None, *, bssid=None):
        if not self._active:
            raise OSError("Wifi Internal State Error")
        if self._interface != STA_IF:
            raise OSError("STA required")
        self._ssid, self._key = ssid, key

    def disconnect(self):
        self._ssid = None

    def isconnected(self):
        return self._state() == STAT_GOT_IP

    def status(self, param=None):
        if param is None:
            return self._state()
        if param != "rssi":
            raise ValueError("unknown status param")
        rssi = _hook("rssi")
        if rssi is None or not self.isconnected():
            raise OSError("Wifi Not Connected")
        return rssi

    def _state(self):
        if not self._active or self._ssid is None:
            return STAT_IDLE
        networks = _hook("networks")
        if _hook("wifi") is False or (networks is not None and self._ssid not in networks):
            return STAT_NO_AP_FOUND
        if networks is not None and networks[self._ssid] != (self._key or ""):
            return STAT_WRONG_PASSWORD
        return STAT_GOT_IP

    def scan(self):
        if not self._active:
            raise OSError("STA must be active")
        if _hook("wifi") is False:
            return []
        return [(ssid.encode(), b"\x02\0\0\0\0\1", 1, 0, 3, False) for ssid in _hook("networks", {})]

    def ifconfig(self, addresses=None):
        if addresses is not None:
            raise OSError(1)  # EPERM: the host's network is not a board's to configure
        if not self.isconnected():
            return ("0.0.0.0", "0.0.0.0", "0.0.0.0", "0.0.0.0")
        return ("127.0.0.1", "255.0.0.0", "127.0.0.1", "127.0.0.1")

    def ipconfig(self, param=None, **settings):
        if settings:
            raise OSError(1)
        if param == "addr4":
            return self.ifconfig()[:2]
        if param == "gw4":
            return self.ifconfig()[2]
        raise ValueError("unexpected key")

    def config(self, param=None, **settings):
        if param is None:
            for name in settings:
                if name not in self._config:
                    raise ValueError("unknown config param")
            self._config.update(settings)
            return None
        if param == "mac":
            import machine

            return machine.unique_id()
        if param in ("ssid", "essid"):
            return self._ssid or ""
        if param not in self._config:
            raise ValueError("unknown config param")
        return self._config[param]

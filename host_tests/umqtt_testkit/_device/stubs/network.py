"""The `network` module of a virtual board: the radio of an esp32 or a Pico W in front of the host's own network.

Constants, return values and errors are those of the port that is played (esp32's where none is). Hooks:
    "wifi": false           no access point in range
    "networks": {SSID: KEY} only these exist; a wrong key is refused
    "hidden": [SSID]        those of them that no scan shows
    "rssi": DBM             signal strength to report; none is reported without it, as there is no radio
    "join_ms": MS           how long joining takes; 0 without it
    "address": "10.0.0.7"   the station's own address
    "radio_memory": false   esp32: the system's heap is exhausted when the radio is requested
"""

import errno
import time

from _virtual import IS_RP2, PLATFORM, hook, hooks

STA_IF = 0
AP_IF = 1

if IS_RP2:
    STAT_IDLE = 0
    STAT_CONNECTING = 1
    STAT_GOT_IP = 3
    STAT_CONNECT_FAIL = -1
    STAT_NO_AP_FOUND = -2
    STAT_WRONG_PASSWORD = -3
else:
    STAT_IDLE = 1000
    STAT_CONNECTING = 1001
    STAT_GOT_IP = 1010
    STAT_BEACON_TIMEOUT = 200
    STAT_NO_AP_FOUND = 201
    STAT_WRONG_PASSWORD = 202
    STAT_ASSOC_FAIL = 203
    STAT_CONNECT_FAIL = 203
    STAT_HANDSHAKE_TIMEOUT = 204
    STAT_NO_AP_FOUND_W_COMPATIBLE_SECURITY = 210
    STAT_NO_AP_FOUND_IN_AUTHMODE_THRESHOLD = 211
    STAT_NO_AP_FOUND_IN_RSSI_THRESHOLD = 212

_HOSTNAME_MAX = 32
_AP_ADDRESS = "192.168.4.1"

_hostname = {"rp2": "PicoW", "esp32": "mpy-esp32"}.get(PLATFORM, "mpy-virtual")
_country = "XX"


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
    if IS_RP2:
        PM_NONE = 0x10
        PM_PERFORMANCE = 0xA11142
        PM_POWERSAVE = 0x11
        SEC_OPEN = 0
        SEC_WPA_WPA2 = 0x400006
        SEC_WPA3 = 0x1000004
        SEC_WPA2_WPA3 = 0x1400004
    else:
        PM_NONE = 0
        PM_PERFORMANCE = 1
        PM_POWERSAVE = 2
        SEC_OPEN = 0
        SEC_WPA2 = 3
        SEC_WPA_WPA2 = 4
        SEC_WPA3 = 6
        SEC_WPA2_WPA3 = 7

    _interfaces = {}

    def __new__(cls, interface_id=STA_IF):
        # As on a board, there is one object per interface.
        if interface_id not in cls._interfaces:
            if interface_id not in (STA_IF, AP_IF):
                raise ValueError("invalid WLAN interface identifier")
            if not IS_RP2 and hook("radio_memory") is False:
                # ESP_ERR_NO_MEM has no text of its own in esp_exceptions_helper() before MicroPython 1.28.
                raise RuntimeError("Wifi Unknown Error 0x0101")
            cls._interfaces[interface_id] = super().__new__(cls)
        return cls._interfaces[interface_id]

    def __init__(self, interface_id=STA_IF):
        if hasattr(self, "_active"):
            return
        self._interface = interface_id
        self._active = False
        self._ssid = None
        self._key = None
        self._joined_at = 0
        self._static = None
        if IS_RP2:
            self._config = {"pm": self.PM_PERFORMANCE, "txpower": 31, "channel": 1, "security": 0}
        else:
            self._config = {"pm": self.PM_PERFORMANCE, "reconnects": -1, "txpower": 20, "channel": 1}
        # The keys of an access point. Its SSID is its own; a station's SSID is that of the network it joined.
        ssid = "PICO-0000" if IS_RP2 else "ESP_000000"
        self._access_point = {"ssid": ssid, "key": "", "security": 0, "hidden": False}

    def active(self, is_active=None):
        if is_active is None:
            return self._active
        self._active = bool(is_active)
        if not is_active:
            self._ssid = self._static = None
        return None if IS_RP2 else self._active

    if IS_RP2:

        def deinit(self):
            self.active(False)

    def connect(self, ssid=None, key=None, *, bssid=None, auth=-1, security=-1, channel=-1):
        if IS_RP2:
            if ssid is None:
                raise TypeError("'ssid' argument required")
            if not self._active:
                raise OSError(errno.EPERM)
        elif not self._active:
            raise OSError("Wifi Internal State Error")
        if self._interface != STA_IF:
            raise OSError("STA required")
        if ssid is not None:
            self._ssid, self._key = ssid, key
        self._joined_at = time.ticks_add(time.ticks_ms(), hook("join_ms", 0))

    def disconnect(self):
        self._ssid = None

    def isconnected(self):
        return self._interface == STA_IF and self._state() == STAT_GOT_IP

    def status(self, param=None):
        if param is None:
            if self._interface == AP_IF:
                return None if not IS_RP2 else STAT_GOT_IP if self._active else STAT_IDLE
            return self._state()
        if param == "stations":
            return []
        if param != "rssi":
            raise ValueError("unknown status param")
        rssi = hook("rssi")
        if not self.isconnected() or (rssi is None and not IS_RP2):
            if IS_RP2:
                return 0  # the driver's result is ignored (network_cyw43.c)
            raise OSError("Wifi Not Connected")
        return rssi or 0

    def _state(self):
        if not self._active or self._ssid is None:
            return STAT_IDLE
        if time.ticks_diff(self._joined_at, time.ticks_ms()) > 0:
            return STAT_CONNECTING
        # Read once: a test that changes the hooks meanwhile must not produce a mixture of old and new.
        world = hooks()
        networks = world.get("networks")
        if world.get("wifi") is False or (networks is not None and self._ssid not in networks):
            return STAT_NO_AP_FOUND
        if networks is not None and networks[self._ssid] != (self._key or ""):
            return STAT_WRONG_PASSWORD
        return STAT_GOT_IP

    def scan(self, *, passive=False, ssid=None, essid=None, bssid=None):
        if not self._active:
            raise OSError(errno.EPERM) if IS_RP2 else OSError("STA must be active")
        if hook("wifi") is False:
            return []
        # Last field: on esp32 whether the network is hidden, on rp2 in how many beacons it was heard.
        last = 1 if IS_RP2 else False
        return [
            (name.encode(), b"\x02\0\0\0\0\1", 1, hook("rssi", 0), 3 if key else 0, last)
            for name, key in hook("networks", {}).items()
            if name not in hook("hidden", ())
        ]

    def ifconfig(self, addresses=None):
        if addresses is not None:
            # Returned as the ports do; the host's own network is not changed.
            if len(addresses) != 4:
                raise ValueError("requested length 4 but object has length %d" % len(addresses))
            self._static = tuple(addresses)
            return None
        if self._interface == AP_IF and self._active:
            return (_AP_ADDRESS, "255.255.255.0", _AP_ADDRESS, "0.0.0.0")
        if not self.isconnected():
            return ("0.0.0.0", "0.0.0.0", "0.0.0.0", "0.0.0.0")
        return self._static or (hook("address", "127.0.0.1"), "255.0.0.0", "127.0.0.1", "127.0.0.1")

    def ipconfig(self, param=None, **settings):
        if settings:
            raise OSError(1)
        if param == "addr4":
            return self.ifconfig()[:2]
        if param == "gw4":
            return self.ifconfig()[2]
        if param == "dhcp4":
            return self._interface == STA_IF
        raise ValueError("unexpected key")

    def config(self, param=None, **settings):
        if param is None:
            for name, value in settings.items():
                self._set(name, value)
            return None
        if param == "mac":
            import machine

            return machine.unique_id()[-6:]
        if param == "hostname" or (param == "dhcp_hostname" and not IS_RP2):
            return _hostname
        if param in ("ssid", "essid"):
            return self._access_point["ssid"] if self._interface == AP_IF else self._ssid or ""
        if self._interface == AP_IF and param in ("security", "hidden"):
            return self._access_point[param]
        if param not in self._config:
            raise ValueError("unknown config param")
        return self._config[param]

    def _set(self, name, value):
        if name in ("hostname", "dhcp_hostname"):
            hostname(value)
        elif name in ("ssid", "essid", "key", "password", "security", "authmode", "hidden"):
            if self._interface != AP_IF:
                raise OSError("AP required")
            self._access_point[{"essid": "ssid", "password": "key", "authmode": "security"}.get(name, name)] = value
        elif name in self._config:
            self._config[name] = value
        else:
            raise ValueError("unknown config param")

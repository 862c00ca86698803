"""Errors of the broker. `str()` of each is one line that says what is wrong and what to do.

BrokerError
├── ConfigError      a setting is impossible or unsafe
├── PortInUse        another program listens there
├── StoreError       the store cannot be opened or belongs to someone else
│   └── LeaseLost    another broker has taken the store over, or may have
└── MalformedPacket  a client sent what the specification forbids: its connection is closed and counted
"""


class BrokerError(Exception):
    """Base of everything the broker raises on purpose."""


class ConfigError(BrokerError):
    """A setting is impossible or unsafe."""


class PortInUse(BrokerError):
    """Another program listens on the address.

    Attributes: host (str), port (int). where: "FILE:LINE" of the setting that asks for the port, "" for none.
    """

    def __init__(self, host: str, port: int, where: str = "") -> None:
        begin, remedy = (f"{where}: ", "") if where else ("", " with -p")
        super().__init__(
            f"{begin}port {port} on {host or 'every address'} is in use — "
            f"choose another{remedy}, or stop the program that holds it"
        )
        self.host = host
        self.port = port


class StoreError(BrokerError):
    """The store cannot be opened, is newer than this program, or another broker has it open."""

    def __init__(self, text: str) -> None:
        # SQLite quotes what it could not read, line ends included.
        super().__init__(" ".join(text.split("\n")))


class LeaseLost(StoreError):
    """Another broker has taken the store over, or may have."""


class MalformedPacket(BrokerError):
    """A client broke the protocol; the network connection must be closed [MQTT-4.8.0-1].

    Attributes: reason (str), a short constant that statistics count by; reason_code (int), what a client of MQTT 5 is
    told, 0x81 for a malformed packet.
    """

    def __init__(self, reason: str, reason_code: int = 0x81) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reason_code = reason_code

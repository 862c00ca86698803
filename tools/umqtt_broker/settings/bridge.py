"""Settings of one bridge: a link to another broker, and the topics that the two share."""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError

Direction = Literal["out", "in", "both"]


@dataclass(frozen=True, slots=True)
class TopicRule:
    """One `topic` line. pattern: b"" if a single topic is shared; then the prefixes are its names at the two ends."""

    pattern: bytes
    direction: Direction = "out"
    qos: int = 0
    local_prefix: bytes = b""
    remote_prefix: bytes = b""

    @property
    def local_filter(self) -> bytes:
        """The filter of outgoing messages, in this broker's topics."""
        return self.local_prefix + self.pattern

    @property
    def remote_filter(self) -> bytes:
        """The filter of incoming messages, in the remote broker's topics."""
        return self.remote_prefix + self.pattern

    @property
    def goes_out(self) -> bool:
        """True if messages go to the remote broker."""
        return self.direction != "in"

    @property
    def comes_in(self) -> bool:
        """True if messages come from the remote broker."""
        return self.direction != "out"


@dataclass(slots=True)
class BridgeConfig:
    """The settings of one bridge. conf/bridge.py says what the fields mean, by the keys that set them.

    Times are in seconds. protocol_level: 3 for MQTT 3.1, 4 for 3.1.1, 5 for 5.

    Raises ConfigError when a combination is impossible.
    """

    name: str
    addresses: tuple[tuple[str, int], ...]
    topics: tuple[TopicRule, ...]
    remote_client_id: bytes = b""
    remote_username: bytes | None = None
    remote_password: bytes | None = field(default=None, repr=False)
    local_client_id: bytes = b""
    clean_session: bool = False
    keep_alive: int = 60
    restart_timeout: tuple[float, float] = (5, 30)
    try_private: bool = True
    notifications: bool = True
    notifications_local_only: bool = False
    notification_topic: bytes = b""
    round_robin: bool = False
    attempt_unsubscribe: bool = True
    outgoing_retain: bool = True
    protocol_level: Literal[3, 4, 5] = 4
    cafile: str = ""
    capath: str = ""
    certfile: str = ""
    keyfile: str = ""
    insecure: bool = False
    tls_version: Literal["tlsv1.2", "tlsv1.3"] = "tlsv1.2"

    def __post_init__(self) -> None:
        """Fill in the names that are derived from others, and check settings that depend on each other."""
        self.remote_client_id = self.remote_client_id or f"{self.name}.{socket.gethostname()}".encode()
        self.local_client_id = self.local_client_id or b"local." + self.remote_client_id
        self.notification_topic = (
            self.notification_topic or b"$SYS/broker/connection/" + self.remote_client_id + b"/state"
        )
        if not self.addresses:
            raise ConfigError(f"bridge {self.name} has no address — add: address HOST:PORT")
        if not self.topics:
            raise ConfigError(f"bridge {self.name} has no topic — add, for instance: topic # out 1")
        if self.remote_password is not None and self.remote_username is None:
            raise ConfigError(f"bridge {self.name} has a remote_password without a remote_username")
        if bool(self.certfile) != bool(self.keyfile):
            raise ConfigError(f"bridge {self.name}: bridge_certfile and bridge_keyfile go together")
        if not self.encrypted and (self.certfile or self.insecure):
            raise ConfigError(f"bridge {self.name} has settings of TLS, but no bridge_cafile or bridge_capath")

    @property
    def encrypted(self) -> bool:
        """True if the link uses TLS."""
        return bool(self.cafile or self.capath)


def check_bridges(bridges: Iterable[BridgeConfig]) -> None:
    """Raise ConfigError when two bridges cannot be told apart."""
    names: set[str] = set()
    client_ids: set[bytes] = set()
    for bridge in bridges:
        if bridge.name in names:
            raise ConfigError(f"there are two connections {bridge.name} — give each its own name")
        if bridge.local_client_id in client_ids:
            raise ConfigError(f"connection {bridge.name}: another one has the same local_clientid")
        names.add(bridge.name)
        client_ids.add(bridge.local_client_id)

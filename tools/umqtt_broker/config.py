"""Settings of one broker."""

import ipaddress
import socket
from dataclasses import dataclass, field

from .errors import ConfigError
from .permission import Permission

MEMORY = ":memory:"


@dataclass(slots=True)
class BrokerConfig:
    """What a broker is told before it starts. Checked by `validate()`, which raises ConfigError.

    host, port: where to listen; port 0 picks a free one. Anything but a loopback address needs a `permission`
        that authenticates, or `allow_anonymous`.
    store: path of the SQLite store, or ":memory:" for sessions that end with the process.
    max_inflight_messages: QoS 1 and 2 messages sent to one client and not yet acknowledged.
    max_queued_in_memory: messages of one session held in memory before the rest of its queue stays on disk
        alone. Only with a store on disk; no message is ever dropped for it.
    max_packet_size: bytes; a client that announces a larger packet is disconnected.
    max_connections: network connections at once; one more is closed at once and counted.
    max_output_buffer: bytes a connection may leave unread before QoS 0 messages for it are dropped and
        counted, and QoS 1 and 2 messages wait in its queue.
    connect_timeout: seconds a new connection has for its CONNECT.
    allow_zero_length_client_id: give a client without an identifier one [MQTT-3.1.3-6].
    """

    host: str = "127.0.0.1"
    port: int = 1883
    store: str = MEMORY
    allow_anonymous: bool = False
    max_inflight_messages: int = 1000
    max_queued_in_memory: int = 10_000
    max_packet_size: int = 16 * 1024 * 1024
    max_connections: int = 100_000
    max_output_buffer: int = 1024 * 1024
    connect_timeout: float = 10.0
    allow_zero_length_client_id: bool = True
    permission: Permission = field(default_factory=Permission)

    def validate(self) -> None:
        """Raise ConfigError for the first setting that is impossible or unsafe."""
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port} is not between 0 and 65535")
        # 65535 identifiers in use would leave none for the next message in the queue.
        if not 1 <= self.max_inflight_messages <= 65534:
            raise ConfigError(f"max_inflight_messages {self.max_inflight_messages} is not between 1 and 65534")
        for name in ("max_queued_in_memory", "max_packet_size", "max_connections", "max_output_buffer"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is below 1")
        if type(self.permission) is Permission and not self.allow_anonymous and not _is_loopback(self.host):
            raise ConfigError(
                f"refusing to listen on {self.host} without authentication — keep --host 127.0.0.1, "
                "or say --allow-anonymous to let anyone who reaches it in"
            )


def _is_loopback(host: str) -> bool:
    """Tell whether every address `host` stands for stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass  # a name: ask what it stands for
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ConfigError(f"cannot find an address for host {host!r} ({error}) — use an IP address") from error
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in addresses)

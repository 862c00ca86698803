"""Settings of one broker, whether from a program, the command line or a configuration file."""

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..access.permission import Permission
from ..errors import ConfigError
from ..protocol.topics import is_mount_point, is_utf8
from .redis_url import is_redis_url, parse_redis_url

MEMORY = ":memory:"


@dataclass(slots=True)
class Tls:
    """How a listener encrypts. All paths name PEM files.

    certfile, keyfile: the broker's certificate (with its chain) and private key.
    cafile, capath: the authorities that sign the certificates of clients, as a file or a folder.
    crlfile: certificates of clients that were revoked.
    require_certificate: a client without a valid certificate is refused.
    tls_version: the lowest version spoken, "tlsv1.2" or "tlsv1.3".
    ciphers: OpenSSL's list of what TLS 1.2 may use; empty for the default of the library.
    """

    certfile: str = ""
    keyfile: str = ""
    cafile: str = ""
    capath: str = ""
    crlfile: str = ""
    require_certificate: bool = False
    tls_version: Literal["tlsv1.2", "tlsv1.3"] = "tlsv1.2"
    ciphers: str = ""


@dataclass(slots=True)
class Listener:
    """One place where clients reach the broker.

    host, port: TCP address. host "": every address of this machine. port 0: a free one.
    socket_domain: "ipv4" or "ipv6": only such addresses of the host; "": both.
    path: the path of a Unix socket, used instead of host and port. mode: the permission bits of its file.
    protocol: "mqtt", or "websockets" for MQTT in binary WebSocket frames.
    origins: the sites whose web pages may connect by WebSocket, as browsers name them ("https://example.org"). Empty:
        on a loopback address only pages that this machine serves, elsewhere all pages.
    tls: how it encrypts; None: it does not.
    allow_anonymous: let clients in that show no credentials, whatever address this listens on.
    use_identity_as_username: the common name of the client's certificate is its user name; with
        use_subject_as_username too, its whole subject ("CN=pump-7,OU=fleet").
    allow_zero_length_client_id, auto_id_prefix: as in BrokerConfig; None: the value there.
    permission: who may do what on this listener; None: the broker's.
    max_connections: connections of this listener at once; None: no limit of its own.
    mount_point: a prefix of every topic of this listener's clients, which the clients do not see.
    where: "FILE:LINE" of the setting, for messages about the listener.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    path: str = ""
    protocol: Literal["mqtt", "websockets"] = "mqtt"
    tls: Tls | None = None
    socket_domain: Literal["", "ipv4", "ipv6"] = ""
    mode: int = 0o600
    origins: tuple[str, ...] = ()
    allow_anonymous: bool = False
    use_identity_as_username: bool = False
    use_subject_as_username: bool = False
    allow_zero_length_client_id: bool | None = None
    auto_id_prefix: bytes | None = None
    permission: Permission | None = None
    max_connections: int | None = None
    mount_point: bytes = b""
    where: str = field(default="", compare=False)


@dataclass(slots=True)
class BrokerConfig:
    """The settings of a broker. `validate()` checks them and raises ConfigError.

    host, port, allow_anonymous: the only listener if `listeners` is empty. Any address that is not loopback needs a
        `permission` that authenticates, or `allow_anonymous`.
    listeners: where clients reach the broker.
    store: the path of the SQLite store; "redis://…" for one that a standby can take over (see redis_url); or ":memory:"
        for sessions that end with the process.
    accept_loss: open a SQLite store even if part of it is lost or damaged; the loss is logged.
    permission: who may connect, publish and subscribe.

    max_inflight_messages: QoS 1 and 2 messages sent to one client and not yet acknowledged.
    max_queued_messages, max_queued_bytes: messages, and payload bytes, that may wait for one session; 0: no limit.
    max_queued_messages_total, max_queued_bytes_total: the same for all sessions together; 0: no limit.
    at_queue_limit: "slow": publishers to a full queue are not read from until there is room;
        "drop": the new message is dropped for that session, and counted.
    max_queued_in_memory: messages of one session in memory; the rest of its queue is only on disk. Only with a durable
        store; no message is dropped because of it.
    queue_qos0_messages: QoS 0 messages wait for a persistent session that is away.
    max_receive_rate: PUBLISH packets a second taken from one client, 0: no limit. One that sends more is read
        from more slowly; nothing is lost.
    message_expiry: seconds after which a message is not sent any more; 0: never. It is dropped and counted when its
        turn comes (for a client that is away, when the client returns), or when a full queue needs its room.
    session_expiry: seconds after which the session of a client that stays away is forgotten; 0: never.
    max_packet_size: bytes; a client that announces a larger packet is disconnected.
    max_properties_size: bytes of the properties in a packet of MQTT 5, each counted with properties.OVERHEAD more; a
        client that sends more is disconnected. max_connect_properties_size: the same for a CONNECT, which
        are decoded for clients that nobody knows yet, and for the will's properties.
    max_topic_levels: levels of a topic name or filter below its first; a client that names more is disconnected.
    max_shared_subscriptions: of one client; each gets its own copy of a message. One more is refused.
    max_payload_size: bytes; a larger message is acknowledged, counted and not routed; 0: no limit.
    max_connections: network connections at once. For one more, a client that is not logged in gives way, or it is
        closed at once; both are counted.
    max_keep_alive: seconds; a client that asks for more, or for none, is watched as if it had asked for this;
        0: no limit.
    max_output_buffer: bytes a connection may leave unread before QoS 0 messages for it are dropped and
        counted, and QoS 1 and 2 messages wait in its queue.
    connect_timeout: seconds a new connection has for its CONNECT.
    allow_zero_length_client_id: give a client without an identifier one [MQTT-3.1.3-6].
    auto_id_prefix: how such an identifier begins. client_id_prefixes: how every other one must begin, if any
        are given.
    retain_available: False: the retain flag of clients of MQTT 3.1.1 is ignored; a client of MQTT 5 that sets it is
        disconnected [MQTT-3.2.2-14].
    server_reference: another server, or several with blanks between, to which clients of MQTT 5 are sent; "": none.
        Clients of earlier versions cannot be sent away, and are served.
    sys_interval: seconds between two publications of $SYS; 0: none.
    http_host, http_port: where metrics, the admin API and the web page are served; port 0: nowhere.
    http_token_file: the file with the token that a request must send; "": beside the store.
    http_token: the token itself, which is valid for this run; "": that of the file.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    listeners: tuple[Listener, ...] = ()
    store: str = MEMORY
    accept_loss: bool = False
    allow_anonymous: bool = False
    permission: Permission = field(default_factory=Permission)
    max_inflight_messages: int = 1000
    max_queued_messages: int = 0
    max_queued_bytes: int = 256_000_000
    max_queued_messages_total: int = 0
    max_queued_bytes_total: int = 0
    at_queue_limit: Literal["slow", "drop"] = "slow"
    max_queued_in_memory: int = 10_000
    queue_qos0_messages: bool = False
    max_receive_rate: int = 0
    message_expiry: int = 0
    session_expiry: int = 0
    max_packet_size: int = 16 * 1024 * 1024
    max_properties_size: int = 128 * 1024
    max_connect_properties_size: int = 16 * 1024
    max_topic_levels: int = 200
    max_shared_subscriptions: int = 1000
    max_payload_size: int = 0
    max_connections: int = 100_000
    max_keep_alive: int = 0
    max_output_buffer: int = 1024 * 1024
    connect_timeout: float = 10.0
    allow_zero_length_client_id: bool = True
    auto_id_prefix: bytes = b"auto-"
    client_id_prefixes: tuple[bytes, ...] = ()
    retain_available: bool = True
    server_reference: str = ""
    sys_interval: int = 10
    http_host: str = "127.0.0.1"
    http_port: int = 0
    http_token_file: str = ""
    http_token: str = field(default="", repr=False)

    def all_listeners(self) -> tuple[Listener, ...]:
        """The listeners; if there are none, the one that `host` and `port` describe."""
        return self.listeners or (
            Listener(self.host, self.port, allow_anonymous=self.allow_anonymous, permission=self.permission),
        )

    def validate(self) -> None:
        """Raise ConfigError for the first setting that is impossible or unsafe."""
        # With all 65535 packet identifiers in flight, none would be left for the next message in the queue.
        if not 1 <= self.max_inflight_messages <= 65534:
            raise ConfigError(f"max_inflight_messages {self.max_inflight_messages} is not between 1 and 65534")
        if not is_utf8(self.server_reference.encode(errors="surrogateescape")):
            raise ConfigError("server_reference is not UTF-8 without U+0000 — write HOST:PORT")
        for name in _AT_LEAST_1:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)} is below 1")
        if self.connect_timeout <= 0:
            raise ConfigError(f"connect_timeout {self.connect_timeout} is not above 0")
        if not 0 <= self.http_port <= 65535:
            raise ConfigError(f"http_port {self.http_port} is not between 0 and 65535")
        for name in _NO_LIMIT_AT_0:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} {getattr(self, name)} is negative — 0 means no limit")
        if is_redis_url(self.store):
            parse_redis_url(self.store)
        for listener in self.all_listeners():
            self._validate_listener(listener)

    def _validate_listener(self, listener: Listener) -> None:
        if not 0 <= listener.port <= 65535:
            raise ConfigError(f"port {listener.port} is not between 0 and 65535")
        if listener.path and listener.tls is not None:
            raise ConfigError(f"TLS on the Unix socket {listener.path} protects nothing — remove certfile")
        if listener.mount_point and not is_mount_point(listener.mount_point):
            shown = listener.mount_point[:60].decode(errors="replace")
            raise ConfigError(f"mount_point {shown!r} is not the beginning of topic names, or is one of $share")
        permission = listener.permission or self.permission
        if type(permission) is Permission and not listener.allow_anonymous and not is_loopback(listener):
            raise ConfigError(
                f"refusing to listen on {listener.host or 'every address'} without authentication — "
                "keep --host 127.0.0.1, or say --allow-anonymous to let anyone who reaches it in"
            )


_AT_LEAST_1 = (
    "max_queued_in_memory",
    "max_packet_size",
    "max_properties_size",
    "max_connect_properties_size",
    "max_topic_levels",
    "max_shared_subscriptions",
    "max_connections",
    "max_output_buffer",
)
_NO_LIMIT_AT_0 = (
    "max_queued_messages",
    "max_queued_bytes",
    "max_queued_messages_total",
    "max_queued_bytes_total",
    "max_receive_rate",
    "message_expiry",
    "session_expiry",
    "max_payload_size",
    "max_keep_alive",
    "sys_interval",
)


def is_loopback(listener: Listener) -> bool:
    """Tell whether everyone who reaches the listener is on this machine."""
    return bool(listener.path) or all(address.is_loopback for address in _addresses(listener.host))


def is_loopback_name(host: str) -> bool:
    """Return True if a host is certainly this machine; names other than localhost may change their meaning."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _addresses(host: str) -> Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        yield ipaddress.ip_address(host or "0.0.0.0")
        return
    except ValueError:
        pass  # a host name: resolve it
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise ConfigError(f"cannot find an address for host {host!r} ({error}) — use an IP address") from error
    for address in found:
        yield ipaddress.ip_address(address.partition("%")[0])

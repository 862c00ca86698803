"""The collector's client: the library's client for very many messages, with the collector's access and in its words."""

import socket
from collections.abc import Callable
from typing import Any

from umqtt_cli.reason_codes import UNSUPPORTED_VERSION, describe
from umqtt_robust.base_errors import LinkLost, MQTTError, ProtocolError
from umqtt_robust.bulk import BulkClient
from umqtt_robust.errors import Downgraded, Refused
from umqtt_robust.tls import TLS
from umqtt_robust.transport import TCP

from .access import Access, parse_nodes
from .config import CollectorConfig

ANSWER_WITHIN_S = 15.0
_SOCKET_BUFFER_BYTES = 4 << 20
_READ_BYTES = 256 << 10
_LEAST_READ_BYTES = 4 << 10
# Receive maximum: the number of unacknowledged messages the broker may send. Without it, a broker sends as many as its
# default allows: 20, or 65,535, all of which it sends again after a lost link.
_ON_THE_WAY = 10_000
FOR_EVER = 0xFFFFFFFF
_IN_USE = "id in use elsewhere, or topic forbidden?"


def urls(broker: str) -> list[str]:
    """Return the URLs of a broker's nodes, as the client takes them."""
    scheme, nodes = parse_nodes(broker)
    return [f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}" for host, port in nodes]


def transports(access: Access) -> dict[str, Callable[[str, int, str], Any]]:
    """Return the ``transports`` argument for a client. TLS files are read again for each connection."""

    def secure(host: str, port: int, path: str) -> Any:
        context = access.tls()
        assert context is not None
        return TLS(context)(host, port, path)

    return {"mqtts": secure, "mqtt": lambda host, port, _path: TCP(host, port)}


class Connection(BulkClient):
    """The client of one collector; it makes all links, one after the other.

    :param before_connect: called before each CONNECT.

    :ivar node: ``HOST:PORT`` that the newest link was made to, or was to be made to.
    """

    node = ""
    tried_level = 5

    def __init__(
        self,
        config: CollectorConfig,
        *,
        before_connect: Callable[[], None],
        on_connect: Callable[[bool], None],
        on_lost: Callable[[MQTTError | OSError | MemoryError], None],
        level: int = 5,
    ) -> None:
        self._access = config.access
        self._before_connect = before_connect
        makers = transports(self._access)

        def transport(host: str, port: int, path: str) -> Any:
            self.node = f"{host}:{port}"
            return makers[scheme](host, port, path)

        scheme, _ = parse_nodes(config.broker)
        super().__init__(
            config.client_id,
            # The nodes of a cluster share the session, so they have one name.
            {config.broker: urls(config.broker)},
            keep_alive=config.keep_alive,
            clean_session=False,
            username=None if config.username is None else config.username.encode(),
            protocol="auto" if level == 5 else 4,
            connect_properties={"receive_maximum": _ON_THE_WAY} if level == 5 else None,
            connect_timeout=int(ANSWER_WITHIN_S * 1000),
            transports={scheme: transport},
            rx_size=max(_LEAST_READ_BYTES, min(_READ_BYTES, config.group_bytes)),
            group_bytes=config.group_bytes,
            longest_delay=int(config.longest_delay_s * 1000),
            on_connect=on_connect,
            on_disconnect=on_lost,
            on_error=on_lost,
        )

    def open(
        self, write: Callable[..., int | None], broker: str = "", accepted: Callable[[], object] | None = None
    ) -> None:
        """Send CONNECT, with the password as it is in its file now.

        :raises UsageError: the password cannot be read.
        """
        self.password = self._access.password()
        self._before_connect()
        super().open(write, broker, accepted)
        self.tried_level = self.level

    def widen(self) -> None:
        """Let the kernel buffer more of what the broker sends while a group is being synced."""
        if isinstance(self.socket, socket.socket):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)

    def is_older(self, error: Refused) -> bool:
        """Return whether the broker has refused MQTT 5, so that MQTT 3.1.1 is tried next."""
        return self.tried_level == 5 and error.args[:2] in (("connect", 1), ("connect", UNSUPPORTED_VERSION))


def is_takeover(error: BaseException) -> bool:
    """Return whether the client reports that links are ended again and again right after they began."""
    return isinstance(error, LinkLost) and error.args[:1] == (_IN_USE,)


_IN_WORDS = {
    "closed by the broker": "the broker closed the connection",
    "connect_timeout": f"the broker did not answer within {ANSWER_WITHIN_S:g} s",
    "ack_timeout": "the broker did not answer a request within 30 s",
    "ping_timeout": "the broker did not answer a ping",
}


def in_words(error: MQTTError | OSError | MemoryError) -> str:
    """Return what has happened to a link, for people."""
    if isinstance(error, Refused):
        # ("connect" or "disconnect", code, …) or ("subscribe", topic filter, code, …)
        what, *told = error.args
        if what == "disconnect":
            return f"the broker closed the connection: {describe(*told)}"
        return describe(*(told if what == "connect" else told[1:]))
    if isinstance(error, Downgraded):
        return str(error.args[0])
    if isinstance(error, ProtocolError):
        return f"the broker sent what is not MQTT: {error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error.args[0]) if error.args else type(error).__name__
    return _IN_WORDS.get(text, text)

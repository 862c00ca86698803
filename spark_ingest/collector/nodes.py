"""Checks that the nodes of one ``--broker`` are one cluster: a session made at one of them must be known to the others.

If they are not, each node keeps messages for the collector until the collector happens to connect there again. MQTT
3.1.1 does not tell which software a broker runs, so this module connects with a client id of its own and looks at
Session Present in CONNACK [3.2.2.2].
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

from ..errors import IngestError, MalformedStream
from .access import Access, parse_nodes
from .wire import CONNACK, CONNACK_REFUSALS, DISCONNECT_PACKET, SUBACK, connect_packet, split, subscribe_packet

_ANSWER_WITHIN_S = 10.0
_AGAIN_AFTER_S = 2.0
_KEEP_ALIVE_S = 30
_LARGEST_ANSWER = 1 << 20  # bytes
_REFUSED = 0x80

Node = tuple[str, int]


class _Probe:
    """Makes and removes the session `client_id` at single nodes."""

    def __init__(self, access: Access, client_id: str, topic_filters: Sequence[str]) -> None:
        self._access = access
        self._client_id = client_id
        # A topic that the collector is certainly allowed to read, and on which normally nothing is published.
        levels = topic_filters[0].split("/")
        levels = levels[2:] if levels[0] == "$share" else levels
        self._topic = "/".join("check" if level in ("+", "#") else level for level in levels)

    def connect(self, node: Node, *, clean: bool = False, subscribe: bool = False) -> bool:
        """Connect to `node` and disconnect again; return whether it had the session.

        :param clean: whether the session ends with this connection.
        :param subscribe: whether to subscribe; some brokers keep a session only if it has a subscription.
        :raises OSError, IngestError: the node cannot be reached, refuses, or does not speak MQTT.
        """
        access, tls = self._access, self._access.tls()
        with ExitStack() as stack:
            link: socket.socket = stack.enter_context(closing(socket.create_connection(node, _ANSWER_WITHIN_S)))
            if tls is not None:
                link = stack.enter_context(closing(tls.wrap_socket(link, server_hostname=node[0])))
            packet = connect_packet(
                self._client_id,
                keep_alive=_KEEP_ALIVE_S,
                username=access.username,
                password=access.password(),
                clean=clean,
            )
            connack = _ask(link, packet, CONNACK)
            if connack[3]:
                raise ConnectionRefusedError(CONNACK_REFUSALS.get(connack[3], "unknown reason"))
            if subscribe and _ask(link, subscribe_packet(1, [self._topic]), SUBACK)[-1] == _REFUSED:
                raise ConnectionRefusedError(f"a subscription to {self._topic}")
            link.sendall(DISCONNECT_PACKET)
            if tls is None:
                link.shutdown(socket.SHUT_WR)
            # Wait until this node has closed the connection: only then has it kept or removed the session, so only
            # then may the next node be asked.
            for _ in _received(link):
                pass
            return bool(connack[2] & 1)


def _received(link: socket.socket) -> Iterator[bytes]:
    """Yield what arrives until the other side closes the connection.

    :raises TimeoutError: 10 s have passed.
    """
    deadline = time.monotonic() + _ANSWER_WITHIN_S
    while data := link.recv(65536):
        yield data
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        link.settimeout(left)


def _ask(link: socket.socket, packet: bytes, answer: int) -> bytes:
    """Send `packet` and return the answer that begins with the byte `answer`.

    :raises OSError: the link ended, or the answer did not come within 10 s.
    """
    link.sendall(packet)
    buffer = bytearray()
    for data in _received(link):
        buffer += data
        if len(buffer) > _LARGEST_ANSWER:
            raise MalformedStream(f"the broker sent more than {_LARGEST_ANSWER} bytes instead of an answer")
        received = split(buffer)
        del buffer[: received.consumed]
        for other in received.others:
            if other[0] == answer:
                if len(other) < 4:
                    raise MalformedStream(f"the broker sent a short packet: {other.hex()}")
                return other
    raise ConnectionResetError("the node closed the connection")


def check_cluster(
    access: Access, client_id: str, topic_filters: Sequence[str], stopping: Callable[[], bool]
) -> list[tuple[str, str]]:
    """Check the nodes of a broker; return what to report, as a list of (kind of event, line of text for people).

    The kinds are ``one_cluster``, ``not_one_cluster`` (a node does not know a session that another one keeps), and
    ``node_unchecked`` (a node could not be asked).

    :param client_id: the collector's client id; the check adds ``-check`` to it for a session of its own, and removes
        that session.
    :param stopping: called between steps; True ends the check, which then returns nothing.
    """
    scheme, nodes = parse_nodes(access.url)
    probe = _Probe(access, f"{client_id}-check", topic_filters)
    urls = {(host, port): f"{scheme}://{host}:{port}" for host, port in nodes}

    def reach(node: Node, **how: bool) -> bool | None:
        """Connect to `node` and return whether it had the session; None if this failed or was not tried."""
        if stopping() or node in failed:
            return None
        try:
            return probe.connect(node, **how)
        except (OSError, IngestError) as error:
            failed[node] = str(error)
            return None

    # A node that is leaving or joining the cluster may not know the session yet, so only the second attempt counts.
    for attempt in range(2):
        failed: dict[Node, str] = {}
        for node in nodes:
            reach(node, clean=True)
        first = next((node for node in nodes if reach(node, subscribe=True) is not None), None)
        answers: dict[Node, bool | None] = {}
        for node in nodes:
            if node != first:
                answers[node] = reach(node)
            if answers.get(node) is False:
                reach(node, clean=True)  # Otherwise the next node may know the session just made here.
        strangers = [urls[node] for node, knows in answers.items() if knows is False]
        for node in nodes:
            reach(node, clean=True)
        if not strangers:
            break
        if attempt == 0:
            time.sleep(_AGAIN_AFTER_S)
    if stopping():
        return []
    events: list[tuple[str, str]] = []
    for node, why in failed.items():
        events.append(("node_unchecked", f"cannot check that {urls[node]} is a node of the same cluster: {why}"))
    if first is not None and strangers:
        line = (
            f"{', '.join(strangers)} did not know a session of {urls[first]}, so these are not nodes of one cluster, "
            "and messages wait at all but one of them: give each broker a --broker and a --name of its own"
        )
        events.append(("not_one_cluster", line))
    elif first is not None and (known := [urls[node] for node, knows in answers.items() if knows]):
        events.append(("one_cluster", f"{urls[first]}, {', '.join(known)} share their sessions"))
    return events

"""One network connection: the packet loop.

A read is parsed whole in one loop; what it causes is collected and written once: acknowledgements joined, and
one write for each session that got messages. PUBLISH and its acknowledgements are decoded in place, the rest
by `packets`.
"""

import asyncio
from typing import TYPE_CHECKING, cast

from .config import Listener
from .errors import MalformedPacket
from .handlers import count_unknown, process_other, process_publish_qos2
from .packets import (
    ACCEPTED,
    CONNECT,
    DISCONNECT,
    MAX_CONNECT_LENGTH,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBLISH,
    UNACCEPTABLE_PROTOCOL_VERSION,
    UnacceptableProtocol,
    Will,
    decode_connect,
    encode_connack,
)
from .session import Session

if TYPE_CHECKING:
    from .broker import Broker

# A client that sends but does not read its acknowledgements is not read from while more than this many output
# buffers wait for it.
_UNREAD_BUFFERS = 8

# Seconds the last packets have to leave before a closing connection is cut.
_CLOSE_TIMEOUT = 5.0


class Connection(asyncio.Protocol):
    """From accept to close. `session` is None before CONNECT and after the end.

    established: the CONNACK is written. congested: the peer reads too slowly for more output.
    """

    __slots__ = (
        "_gone",
        "_last_packet",
        "_loop",
        "_needed",
        "_pending",
        "_pending_size",
        "_recorded",
        "_router",
        "_stats",
        "_store",
        "_timer",
        "broker",
        "closing",
        "congested",
        "established",
        "held",
        "keep_alive",
        "listener",
        "peer",
        "session",
        "transport",
        "will",
    )

    def __init__(self, broker: "Broker", listener: Listener) -> None:
        self.broker = broker
        self.listener = listener
        self._router = broker.router
        self._stats = broker.stats
        self._store = broker.store
        self._loop = broker.loop
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._needed = 0
        # What the store holds back for this connection (it counts), and what it had recorded when this read began.
        self.held = 0
        self._recorded = 0
        self._last_packet = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.session: Session | None = None
        self.will: Will | None = None
        self.keep_alive = 0
        self.peer = ""
        self.established = False
        self.congested = False
        # closing: nothing more is read; _gone: nothing more can be written.
        self.closing = False
        self._gone = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and give it time for its CONNECT."""
        self.transport = cast(asyncio.Transport, transport)
        self.peer = str(transport.get_extra_info("peername"))
        self.transport.set_write_buffer_limits(high=self.broker.config.max_output_buffer)
        if not self.broker.admit(self):
            self.abort()
            return
        self._timer = self._loop.call_later(self.broker.config.connect_timeout, self._connect_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it: the session lives on or not, the will goes out or not."""
        del exc
        self.closing = self._gone = True
        if self._timer is not None:
            self._timer.cancel()
        self.broker.forget(self)

    def pause_writing(self) -> None:
        """The output buffer is full."""
        self.congested = True
        if self.session is not None:
            self.session.stop_output()

    def resume_writing(self) -> None:
        """The output buffer has drained."""
        self.congested = False
        if self.closing:
            return
        self.transport.resume_reading()
        if self.session is not None and self.established:
            self.session.open_window()
            self._router.flush()

    def data_received(self, data: bytes) -> None:
        """Process every whole packet of one read, and keep the rest."""
        if self.closing:
            return
        if self._pending:
            self._pending.append(data)
            self._pending_size += len(data)
            if self._pending_size < self._needed:
                return
            data = b"".join(self._pending)
            self._pending = []
        self._recorded = self._store.recorded
        acknowledgements: list[bytes] = []
        is_open = True
        try:
            is_open = self._process(data, acknowledgements)
        except MalformedPacket as error:
            self._stats.malformed[error.reason] += 1
            is_open = False
        session = self.session
        if session is not None and session.queue:
            session.pump()
        if acknowledgements:
            self._acknowledge(acknowledgements)
        self._router.flush()
        if not is_open:
            self.close()

    # The packet loop

    def _process(self, data: bytes, acknowledgements: list[bytes]) -> bool:
        """Process the packets in `data`. Returns False when the connection ends.

        Raises MalformedPacket at the first packet that breaks the protocol.
        """
        session = self.session
        publish = self._router.publish
        max_packet_size = self.broker.config.max_packet_size
        may_publish = self.broker.may_publish
        append = acknowledgements.append
        end = len(data)
        at = length = 0
        messages = 0
        try:
            while end - at >= 2:
                first_byte = data[at]
                length = data[at + 1]
                body = at + 2
                if length > 127:
                    length, body = _remaining_length(data, at, end)
                    if not body:
                        break
                if session is None:
                    if first_byte != CONNECT:
                        raise MalformedPacket("packet before CONNECT")  # [MQTT-3.1.0-1]
                    if length > MAX_CONNECT_LENGTH:
                        raise MalformedPacket("packet too large")
                elif length > max_packet_size:
                    raise MalformedPacket("packet too large")
                packet_end = body + length
                if packet_end > end:
                    break
                if session is None:
                    session = self._on_connect(data[body:packet_end])
                    if session is None:
                        return False
                elif first_byte & 0xF0 == PUBLISH:
                    messages += 1
                    payload = body + 2
                    if payload > packet_end:
                        raise MalformedPacket("PUBLISH cut short")
                    payload += data[body] << 8 | data[body + 1]
                    topic_name = data[body + 2 : payload]
                    qos = first_byte & 6
                    if qos == 0:
                        if payload > packet_end:
                            raise MalformedPacket("PUBLISH cut short")
                        if first_byte & 8:
                            raise MalformedPacket("DUP with QoS 0")  # [MQTT-3.3.1-2]
                        if may_publish is None or may_publish(session.client_id, topic_name):
                            publish(topic_name, data[payload:packet_end], 0, first_byte & 1)
                        else:
                            self._stats.denied += 1
                    else:
                        packet_id = data[payload : payload + 2]
                        payload += 2
                        if payload > packet_end:
                            raise MalformedPacket("PUBLISH cut short")
                        if packet_id == b"\0\0":
                            raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]
                        if qos == 2:
                            if may_publish is None or may_publish(session.client_id, topic_name):
                                publish(topic_name, data[payload:packet_end], 1, first_byte & 1)
                            else:
                                self._stats.denied += 1
                            append(b"\x40\x02" + packet_id)
                        elif qos == 4:
                            process_publish_qos2(
                                self, session, packet_id, topic_name, data[payload:packet_end], first_byte & 1
                            )
                            append(b"\x50\x02" + packet_id)
                        else:
                            raise MalformedPacket("PUBLISH QoS 3")  # [MQTT-3.3.1-4]
                elif first_byte == PUBACK:
                    if length != 2:
                        raise MalformedPacket("PUBACK length")
                    packet_id = data[body] << 8 | data[body + 1]
                    entry = session.in_flight.get(packet_id)
                    if entry is not None and entry[2] == 1:
                        del session.in_flight[packet_id]
                        if session.store is not None:
                            session.store.remove_delivery(session.number, entry[0])
                    else:
                        count_unknown(self, entry is not None, "PUBACK for a QoS 2 message")
                elif first_byte == PINGREQ:
                    if length:
                        raise MalformedPacket("PINGREQ length")
                    append(PINGRESP)
                elif first_byte == DISCONNECT:
                    if length:
                        raise MalformedPacket("DISCONNECT length")
                    self.will = None  # [MQTT-3.1.2-10]
                    return False
                else:
                    process_other(self, session, first_byte, data[body:packet_end], acknowledgements)
                at = packet_end
            else:
                body = 0
        finally:
            self._stats.messages_in += messages
            if at:
                self._last_packet = self._loop.time()
        if at < end:
            # What is missing may be most of a large packet: join the pieces once, when all are there.
            self._pending.append(data[at:] if at else data)
            self._pending_size = end - at
            self._needed = body + length - at if body else end - at + 1
        return True

    def _on_connect(self, packet: bytes) -> Session | None:
        """Let a client in, or answer why not. Returns its session."""
        try:
            connect = decode_connect(packet)
        except UnacceptableProtocol:
            self._refuse(UNACCEPTABLE_PROTOCOL_VERSION)
            return None
        return_code, session_present = self.broker.sessions.connect(self, connect)
        if return_code != ACCEPTED:
            self._refuse(return_code)
            return None
        self.will = connect.will
        self.keep_alive = connect.keep_alive
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._last_packet = self._loop.time()
        if self.keep_alive:
            self._timer = self._loop.call_later(1.5 * self.keep_alive, self._check_keep_alive)
        # A session made or discarded is safe before the client hears of it.
        self._store.hold(self, [encode_connack(ACCEPTED, session_present)])
        return self.session

    # Output

    def must_wait(self) -> bool:
        """Tell whether acknowledgements must wait: this read recorded something, or earlier ones wait."""
        return self._store.recorded != self._recorded or self.held > 0

    def _acknowledge(self, packets: list[bytes]) -> None:
        if self.must_wait():
            self._store.hold(self, packets)
        else:
            self.write(packets)

    def release(self, packets: list[bytes]) -> None:
        """Write what waited for a commit."""
        if self._gone:
            return
        self.write(packets)
        if self.closing:
            if not self.held:
                self.transport.close()
            return
        if not self.established:
            self.established = True
            if self.session is not None:
                self.session.go_online()

    def commit_failed(self) -> None:
        """What the client waits for is not safe: close without acknowledging it."""
        self.abort()

    def write(self, packets: list[bytes]) -> None:
        """Write packets in one piece."""
        if self._gone:
            return
        transport = self.transport
        transport.write(b"".join(packets))
        if (
            self.congested
            and transport.get_write_buffer_size() > _UNREAD_BUFFERS * self.broker.config.max_output_buffer
        ):
            transport.pause_reading()

    def _refuse(self, return_code: int) -> None:
        """Answer a CONNECT with a return code other than 0 and close [MQTT-3.2.2-5]."""
        self._stats.connections_refused += 1
        self.write([encode_connack(return_code)])
        self.close()

    # The end

    def close(self) -> None:
        """Close after everything has left: what is written, and what waits for a commit."""
        if self.closing:
            return
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_CLOSE_TIMEOUT, self.transport.abort)
        self.broker.sessions.detach(self)
        if not self.held:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closing = self._gone = True
        self.transport.abort()
        self.broker.sessions.detach(self)

    def _connect_timed_out(self) -> None:
        self._stats.connect_timeouts += 1
        self.abort()

    def _check_keep_alive(self) -> None:
        """Close after one and a half keep-alive times without a packet [MQTT-3.1.2-24]."""
        due = self._last_packet + 1.5 * self.keep_alive
        if self._loop.time() >= due:
            self._stats.keep_alive_timeouts += 1
            self.abort()
        else:
            self._timer = self._loop.call_at(due, self._check_keep_alive)


def _remaining_length(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode a remaining length of several bytes: the length and the index behind it, or (0, 0) if cut short.

    Raises MalformedPacket for a fifth byte (2.2.3).
    """
    length = 0
    for index in range(1, 5):
        if at + index >= end:
            return 0, 0
        digit = data[at + index]
        length |= (digit & 127) << 7 * (index - 1)
        if digit < 128:
            return length, at + index + 1
    raise MalformedPacket("remaining length")

"""The local end of a bridge: a client of this broker inside the process. It speaks MQTT 5.

It is a transport for a Connection, so a bridge's packets are processed like those of any client: with the same queue
and window, and with answers that are sent only when what they promise is safe in the store. Only the socket is missing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..access.permission import Permission
from ..protocol.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UINT16,
    UNSUBACK,
    UNSUBSCRIBE,
    encode_publish_head,
    encode_remaining_length,
)
from ..protocol.packets5 import BRIDGE, FOR_EVER
from ..protocol.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY, encode, property_range
from ..sessions.session import Session
from ..settings.broker import Listener
from .connection import Connection

# From the first byte of a packet sent to the broker to the first byte of its answer.
_ANSWERS = {PUBREC: PUBREL, PUBREL: PUBCOMP, SUBSCRIBE: SUBACK, UNSUBSCRIBE: UNSUBACK}

# Reason codes from here on are refusals.
_REFUSED = 0x80


class Owner(Protocol):
    """The receiver of what the broker sends to the local end."""

    def local_connected(self, session_present: bool) -> None:
        """Handle CONNACK: the broker has accepted the bridge."""

    def local_message(
        self, first_byte: int, packet_id: int, topic_name: bytes, properties: bytes, payload: bytes
    ) -> None:
        """Handle a message for the remote broker. Above QoS 0, this broker waits for its acknowledgement.

        first_byte: of the PUBLISH. properties: as on the wire, with their length before them.
        """

    def local_answered(self) -> None:
        """Handle an answer of the broker: LocalEnd.answered has grown."""

    def local_released(self, packet_id: int) -> None:
        """Handle a resent PUBREL: an earlier bridge left this QoS 2 message between PUBREC and PUBCOMP."""

    def wake(self) -> None:
        """Continue: the broker accepts more again, LocalEnd.paused is False."""

    def local_closed(self, reason: str) -> None:
        """Handle the end of the connection, whoever closed it."""


class LocalEnd(asyncio.Transport):
    """A connection to the broker of this process.

    sent: how many packets that need an answer were sent. answered: how many answers have come. Answers come in order,
    each when what it promises is safe; so the effects of packet number n may become visible once `answered` is n.
    paused: the broker accepts no more packets for now. is_open: the connection is not closed.
    released: packet identifiers of messages at QoS 2 that an earlier bridge left between PUBREC and PUBCOMP.
    """

    def __init__(self, new_connection: Callable[[Listener], Connection], name: str, owner: Owner) -> None:
        super().__init__({"peername": (f"bridge {name}", 0)})
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._pending: deque[int] = deque()
        self._rest = b""
        self._next_packet_id = 0
        self.sent = self.answered = 0
        self.is_open = True
        self.paused = False
        self.released: list[int] = []
        # As in mosquitto, a bridge may do everything at its own broker: only its `topic` lines limit it.
        listener = Listener(permission=Permission(), allow_anonymous=True, internal=True)
        self._connection = new_connection(listener)
        self._connection.connection_made(self)

    @property
    def session(self) -> Session:
        """The bridge's session. Raises ConnectionError when the connection is closed."""
        session = self._connection.session
        if session is None:
            raise ConnectionError("the bridge's local connection is closed")
        return session

    # To the broker

    def connect(self, client_id: bytes, clean_session: bool) -> None:
        """Send CONNECT as a bridge. If `clean_session` is False, the session never expires."""
        flags = bytes((2 if clean_session else 0,))
        expiry = {} if clean_session else {SESSION_EXPIRY_INTERVAL: FOR_EVER}
        properties = encode(expiry | {USER_PROPERTY: [(BRIDGE, b"")]})
        body = b"".join((b"\0\4MQTT\5", flags, b"\0\0", properties, _field(client_id)))
        self._send(b"".join((bytes((CONNECT,)), encode_remaining_length(len(body)), body)))

    def publish(
        self, first_byte: int, packet_id: int, topic_name: bytes, payload: bytes, properties: bytes = b"\0"
    ) -> None:
        """Send PUBLISH with the flags of `first_byte`. properties: as on the wire, with their length before them."""
        head = encode_publish_head(first_byte, topic_name, len(properties) + len(payload))
        qos = first_byte >> 1 & 3
        if not qos:
            self._send(b"".join((head, properties, payload)))
        else:
            packet = b"".join((head, UINT16[packet_id], properties, payload))
            self._ask(packet, PUBACK if qos == 1 else PUBREC)

    def acknowledge(self, first_byte: int, packet_id: int) -> None:
        """Send PUBACK, PUBREC, PUBREL or PUBCOMP."""
        packet = bytes((first_byte, 2)) + UINT16[packet_id]
        answer = _ANSWERS.get(first_byte)
        if answer is None:
            self._send(packet)
        else:
            self._ask(packet, answer)

    def subscribe(self, topic_filter: bytes, qos: int) -> None:
        """Send SUBSCRIBE."""
        self._request(SUBSCRIBE, _field(topic_filter) + bytes((qos,)))

    def unsubscribe(self, topic_filter: bytes) -> None:
        """Send UNSUBSCRIBE."""
        self._request(UNSUBSCRIBE, _field(topic_filter))

    def ping(self) -> None:
        """Send PINGREQ: the broker may enforce a keep-alive."""
        self._send(bytes((PINGREQ, 0)))

    def disconnect(self) -> None:
        """Send DISCONNECT; the broker then closes the connection."""
        self._send(bytes((DISCONNECT, 0)))

    def _request(self, first_byte: int, body: bytes) -> None:
        self._next_packet_id = self._next_packet_id % 65535 + 1
        packet = b"".join(
            (bytes((first_byte,)), encode_remaining_length(3 + len(body)), UINT16[self._next_packet_id], b"\0", body)
        )
        self._ask(packet, _ANSWERS[first_byte])

    def _ask(self, packet: bytes, answer: int) -> None:
        if self.is_open:
            self.sent += 1
            self._pending.append(answer)
            self._connection.data_received(packet)

    def _send(self, packet: bytes) -> None:
        if self.is_open:
            self._connection.data_received(packet)

    # From the broker: what a Connection asks of its transport

    def write(self, data: Any) -> None:
        """Process packets from the broker."""
        if not self.is_open:
            return
        data = self._rest + bytes(data) if self._rest else bytes(data)
        end = len(data)
        at = 0
        while end - at >= 2:
            length = data[at + 1]
            body = at + 2
            if length > 127:
                shift = 7
                length &= 127
                while body < end:
                    length |= (data[body] & 127) << shift
                    shift += 7
                    body += 1
                    if data[body - 1] < 128:
                        break
                else:
                    break
            if body + length > end:
                break
            self._process_packet(data[at], data, body, body + length)
            at = body + length
        self._rest = data[at:]

    def _process_packet(self, first_byte: int, data: bytes, body: int, end: int) -> None:
        if first_byte & 0xF0 == PUBLISH:
            payload = body + 2 + (data[body] << 8 | data[body + 1])
            topic_name = data[body + 2 : payload]
            packet_id = 0
            if first_byte & 6:
                packet_id = data[payload] << 8 | data[payload + 1]
                payload += 2
            properties = b"\0"
            if data[payload]:
                at, payload = payload, property_range(data, payload, end)[1]
                properties = data[at:payload]
            else:
                payload += 1
            self._owner.local_message(first_byte, packet_id, topic_name, properties, data[payload:end])
        elif self._pending and self._pending[0] == first_byte:
            self._pending.popleft()
            self.answered += 1
            if first_byte == SUBACK and data[end - 1] >= _REFUSED:
                self._close("its own broker denies it a subscription")
            self._owner.local_answered()
        elif first_byte == CONNACK:
            if data[body + 1]:
                self._close(f"its own broker refuses it with code {data[body + 1]}")
            else:
                self._owner.local_connected(bool(data[body]))
        elif first_byte == PUBREL:
            packet_id = data[body] << 8 | data[body + 1]
            self.released.append(packet_id)
            self._owner.local_released(packet_id)

    def get_write_buffer_size(self) -> int:
        """Return 0: messages that the remote broker has not acknowledged are limited by the session's window."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no buffer."""

    def pause_reading(self) -> None:
        """Pause: the broker accepts no more from this client for now."""
        self.paused = True

    def resume_reading(self) -> None:
        """Resume: the broker accepts more again."""
        self.paused = False
        if self.is_open:
            self._owner.wake()

    def is_closing(self) -> bool:
        """Return True if the connection is closed."""
        return not self.is_open

    def close(self) -> None:
        """Close the connection; called by the broker or abort()."""
        self._close("its own broker closed the connection")

    def abort(self) -> None:
        """Close at once."""
        self.close()

    def _close(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.call_soon(self._connection.connection_lost, None)
            self._loop.call_soon(self._owner.local_closed, reason)


def _field(text: bytes) -> bytes:
    return UINT16[len(text)] + text

"""Enhanced authentication of one connection (MQTT 5, 4.12): the AUTH packets around an Exchange."""

from collections.abc import Callable

from ..access.permission import Exchange
from ..errors import MalformedPacket
from ..protocol import properties
from ..protocol.connect import MAX_CONNECT_LENGTH
from ..protocol.packets import AUTH, DISCONNECT
from ..protocol.packets5 import decode_reason
from ..protocol.reason_codes import ReasonCode
from .framing import packet_length, remaining_length
from .ports import PacketClient


class Authentication:
    """Enhanced authentication of one client: at CONNECT, and again whenever the client re-authenticates.

    method: the authentication method that the CONNECT names. user_name: the authenticated user name; None until then.
    begin: returns a new Exchange, or the reason code that refuses the client.
    """

    __slots__ = ("_begin", "_exchange", "method", "user_name")

    def __init__(self, method: bytes, begin: Callable[[], Exchange | int]) -> None:
        self.method = method
        self.user_name: bytes | None = None
        self._begin = begin
        self._exchange: Exchange | None = None

    def start(self, data: bytes, now: float) -> tuple[int, bytes]:
        """Begin with the client's first authentication data. now: the event loop's time. Returns as Exchange.step()."""
        exchange = self._begin()
        if isinstance(exchange, int):
            return exchange, b""
        self._exchange = exchange
        return self._step(exchange, data, now)

    def receive(self, packet: bytes, most: int, now: float) -> tuple[int, bytes]:
        """Process the body of an AUTH. Returns as start(). Raises MalformedPacket.

        most: the limit of the size of its properties. now: the event loop's time.
        """
        code, found = decode_reason(packet, properties.AUTH, most)
        if found.get(properties.AUTHENTICATION_METHOD) != self.method:
            # [MQTT-4.12.0-5, MQTT-4.12.1-1]
            raise MalformedPacket("AUTH with another method", ReasonCode.PROTOCOL_ERROR)
        data = found.get(properties.AUTHENTICATION_DATA, b"")
        if code == ReasonCode.CONTINUE_AUTHENTICATION and self._exchange is not None:
            return self._step(self._exchange, data, now)
        if code == ReasonCode.REAUTHENTICATE and self._exchange is None:
            return self.start(data, now)
        raise MalformedPacket("AUTH out of turn", ReasonCode.PROTOCOL_ERROR)  # [MQTT-3.15.2-1]

    def _step(self, exchange: Exchange, data: bytes, now: float) -> tuple[int, bytes]:
        code, answer = exchange.step(data, now)
        if code == ReasonCode.CONTINUE_AUTHENTICATION:
            return code, answer
        self._exchange = None
        if code == ReasonCode.SUCCESS:
            if self.user_name not in (None, exchange.user_name):
                # The session and the rights belong to another user.
                return ReasonCode.NOT_AUTHORIZED, b""
            self.user_name = exchange.user_name
        return code, answer


def process(connection: PacketClient, data: bytes, acknowledgements: list[bytes]) -> bool:
    """Process the packets between CONNECT and CONNACK: AUTH and DISCONNECT. See packet_loop.process()."""
    at = 0
    while connection.session is None:
        length = packet_length(data, at, MAX_CONNECT_LENGTH)
        if not length or at + length > len(data):
            if at < len(data):
                connection.keep_rest(data[at:], length or len(data) - at + 1)
            return True
        first_byte = data[at]
        body = at + 2 if data[at + 1] < 128 else remaining_length(data, at, len(data))[1]
        at += length
        if first_byte == DISCONNECT:
            connection.ending = ""
            return False
        if first_byte != AUTH:
            # [MQTT-3.1.2-30]
            raise MalformedPacket("packet before CONNACK", ReasonCode.PROTOCOL_ERROR)
        if not connection.on_auth(data[body:at], acknowledgements):
            return False
    if connection.backpressure is not None:
        connection.keep_rest(data[at:], 0)
        return True
    return connection.process_rest(data[at:], acknowledgements)

"""Enhanced authentication of MQTT 5 (4.12): challenges and responses of a method such as SCRAM-SHA-256.

    def exchange():
        challenge = yield first_message()
        proof = yield answer(challenge)
        verify(proof)

    client = Client("pump-7", "mqtts://broker.example", protocol=5, transports=...)
    client.part("enhanced_auth").use("SCRAM-SHA-256", exchange)

exchange() is called for each CONNECT and each reauthenticate(). It yields the authentication data (bytes) to send, and
gets the broker's data, b"" if there is none. The data that comes with the broker's acceptance is the last: exchange()
returns if it is right, and raises an MQTTError if it is wrong.
"""

from ._platform import const
from .base_errors import LinkLost, MQTTError, ProtocolError
from .errors import InvalidArgument
from .mqtt5 import decode, encode, with_length
from .packets import AUTH, decode_length
from .states import LINK_AUTH, UP
from .topics import check_utf8

_PLACE = const(128)  # _AUTH of mqtt5.py
_SUCCESS = const(0)
_CONTINUE = const(0x18)
_REAUTHENTICATE = const(0x19)


class EnhancedAuthentication:
    """The authentication of one session. running: an exchange is under way."""

    def __init__(self, session):
        if session.protocol != 5:  # with "auto", a false broker could avoid it by refusing MQTT 5
            raise InvalidArgument("enhanced authentication needs protocol=5")
        self._session = session
        self._method = None
        self._exchange = self._run = self._packet = None
        # Wraps three methods.
        mqtt5 = session.part("mqtt5")
        self._connect_properties = mqtt5.connect_properties
        mqtt5.connect_properties = self.connect_properties
        self._receive = mqtt5.receive
        mqtt5.receive = self.receive
        self._handle_connack = session.handle_connack
        session.handle_connack = self.handle_connack

    @property
    def running(self):
        return self._run is not None

    def forget(self, session):
        """Ends the exchange of a link that is gone."""
        if not session:
            self._run = self._packet = None

    def pump(self):
        """Sends the AUTH packet that waits. Returns False if there is no room for it."""
        if self._packet and not self._session.out.put(AUTH, self._packet):
            return False
        self._packet = None
        return True

    def use(self, method, exchange):
        """Authenticates on later links. method: its name; exchange: see the module. Raises InvalidArgument."""
        self._method = check_utf8(method, "method")
        self._exchange = exchange

    def reauthenticate(self):
        """Begins a new exchange on this link. Raises MQTTError without a link or a method, or during an exchange."""
        session = self._session
        if not session.connected or not self._exchange or self._run:
            raise MQTTError("there is nothing to authenticate again now")
        self._put(_REAUTHENTICATE, self._begin())
        session.wait_ms = 0  # work() is due

    def _begin(self):
        self._run = self._exchange()
        return next(self._run)

    def _properties(self, data):
        return encode({"authentication_method": self._method, "authentication_data": data}, _PLACE)

    def _put(self, reason, data):
        self._packet = bytes((reason,)) + self._properties(data)
        self.pump()

    def connect_properties(self):
        """Wraps Mqtt5.connect_properties(): adds the method and the first message of an exchange."""
        block, will = self._connect_properties()
        if self._exchange:
            parts = [each[decode_length(each, 0, 4)[1] :] for each in (block, self._properties(self._begin()))]
            block = with_length(b"".join(parts))
        return block, will

    def receive(self, head, buf, j, length):
        """Wraps Mqtt5.receive(): handles AUTH as well. Raises ProtocolError."""
        session = self._session
        if session.state << 8 | head not in LINK_AUTH:
            return self._receive(head, buf, j, length)
        end = j + length
        reason = buf[j] if length else _SUCCESS
        properties, i = decode(buf, j + 1, end, _PLACE) if length > 1 else ({}, end)
        if i != end or not self._run or reason != _CONTINUE and (reason != _SUCCESS or session.state != UP):
            raise ProtocolError("AUTH")
        data = self._data(properties, length > 0)
        if reason == _SUCCESS:
            self._end(data)
        else:
            try:
                self._put(_CONTINUE, self._run.send(data))
            except StopIteration:
                raise ProtocolError("AUTH")
        return None

    def handle_connack(self, session_present, return_code):
        """Wraps Session.handle_connack(). Raises ProtocolError if the broker accepts without the method."""
        if self._run and not return_code:
            self._end(self._data(self._session.connack_properties, True))
        self._handle_connack(session_present, return_code)

    def _data(self, properties, has_method):
        if has_method and properties.get("authentication_method") != self._method:  # [MQTT-4.12.0-5]
            raise ProtocolError("another authentication method")
        return properties.get("authentication_data", b"")

    def _end(self, data):
        run = self._run
        self._run = None
        try:
            run.send(data)
        except StopIteration:
            return
        raise LinkLost("the broker ended the authentication early")


part = EnhancedAuthentication  # what Session.part() makes

"""What the client is subscribed to, and the handlers of topic filters."""

from ._platform import const
from .base_errors import ProtocolError
from .incoming import Incoming, is_plain
from .parts import load

_SUBSCRIBE = const(0x82)
_UNSUBSCRIBE = const(0xA2)

# _filters[topic_filter] is its QoS and
_ASKED = const(0x10)
_GRANTED = const(0x30)
_LEAVING = const(0x40)


def checked(text, check):
    """A topic as bytes; unless it is plain, it is looked at by the function of topics.py that `check` names."""
    plain = text
    if isinstance(text, str):
        try:
            plain = text.encode()
        except UnicodeError:
            pass  # the check says so
    if type(plain) is bytes and is_plain(plain) and len(plain) < 65536:
        return plain
    return getattr(load("topics"), check)(text)


class Subscriptions(Incoming):
    """The part of Session that asks the broker for messages."""

    def on(self, topic_filter, handler):
        """handler(topic: bytes, payload: bytes) takes the messages that the topic filter selects; None removes it."""
        topic_filter = checked(topic_filter, "check_topic_filter")
        if not is_plain(topic_filter):
            self._matches = load("topics").matches
        self._handlers = [pair for pair in self._handlers if pair[0] != topic_filter]
        if handler:
            self._handlers.append((topic_filter, handler))
        self.seen = None

    def subscribe(self, topic_filter, qos=0):
        """Subscribes now, and again whenever the broker has forgotten it. A refusal goes to on_error."""
        if qos not in (0, 1, 2):
            load("checks").publish(0, qos)
        if qos == 2:
            self.part("qos2")
        self._want(topic_filter, qos)

    def unsubscribe(self, topic_filter):
        """Ends a subscription."""
        self._want(topic_filter, _LEAVING)

    def _want(self, topic_filter, state):
        topic_filter = checked(topic_filter, "check_topic_filter")
        for packet_id in self._requests:
            if self._requests[packet_id] == topic_filter:
                self._requests[packet_id] = None  # its answer is to a question that no longer counts
        self._filters[topic_filter] = state
        self._ask = True
        self.subscribed = False
        self._wait = 0  # tick() is due

    def _forget_requests(self, unsure):
        # The link is gone. unsure: the broker may have forgotten what it granted.
        self._requests = {}
        self._ask = True
        self.subscribed = not self._filters
        for topic_filter in self._filters:
            if unsure or self._filters[topic_filter] & _GRANTED != _GRANTED:
                self._filters[topic_filter] &= ~_GRANTED

    def _send_requests(self):
        self._ask = False
        for topic_filter in self._filters:
            state = self._filters[topic_filter]
            if state & _ASKED:
                continue
            packet_id = self._new_id()
            n = len(topic_filter)
            body = bytes((packet_id >> 8, packet_id & 255, n >> 8, n & 255)) + topic_filter
            head = _UNSUBSCRIBE
            if not state & _LEAVING:
                head = _SUBSCRIBE
                body += bytes((state & 3,))
            if not self.out.put(head, body):
                self._ask = True
                return
            if not self._requests:
                self._asked_at = self.now
            self._requests[packet_id] = topic_filter
            self._filters[topic_filter] |= _ASKED
        self.subscribed = not self._requests

    def _answered(self, packet_id, return_code):
        topic_filter = self._requests.pop(packet_id, b"")
        self._asked_at = self.now
        state = self._filters.get(topic_filter, 0)
        if not topic_filter:
            self.unexpected += topic_filter == b""  # nobody asked; None: a later request for the filter counts
        elif state & _LEAVING or return_code == 0x80:
            del self._filters[topic_filter]
            if return_code:
                load("refused").subscription(self, topic_filter)
        elif return_code > 2:  # [MQTT-3.9.3-2]
            raise ProtocolError("malformed SUBACK")
        else:
            self._filters[topic_filter] |= _GRANTED
        self.subscribed = not self._ask and not self._requests

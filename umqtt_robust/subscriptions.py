"""Which topic filters the broker has to know, and what it knows."""

from . import packets
from ._platform import const
from .errors import ProtocolError, SubscribeRefused

# _state[topic_filter] = QoS | one of these.
_UNSENT = const(0x10)
_SENT = const(0x20)
_ACKNOWLEDGED = const(0x30)
_LEAVING = const(0x40)
_LEAVING_SENT = const(0x50)
_STATE = const(0x70)


class Subscriptions:
    def __init__(self):
        self._state = {}
        self.requests = {}  # packet id of an unanswered SUBSCRIBE or UNSUBSCRIBE: topic filter
        self.waiting = False  # something is to be sent
        self.asked_at = 0  # ms: when an answer became due

    def add(self, topic_filter, qos):
        self._state[topic_filter] = qos | _UNSENT
        self.waiting = True

    def remove(self, topic_filter):
        self._state[topic_filter] = _LEAVING
        self.waiting = True

    @property
    def settled(self):
        """True when the broker has answered for every topic filter."""
        for topic_filter in self._state:
            if self._state[topic_filter] & _STATE != _ACKNOWLEDGED:
                return False
        return True

    def link_lost(self):
        """What was not answered goes again."""
        self.requests = {}
        for topic_filter in self._state:
            state = self._state[topic_filter]
            if state & _STATE == _SENT:
                self._state[topic_filter] = state & 3 | _UNSENT
            elif state == _LEAVING_SENT:
                self._state[topic_filter] = _LEAVING
        self.waiting = True

    def session_lost(self):
        """The broker knows none of them."""
        for topic_filter in list(self._state):
            state = self._state[topic_filter]
            if state & _STATE == _ACKNOWLEDGED:
                self._state[topic_filter] = state & 3 | _UNSENT
            elif state == _LEAVING:
                del self._state[topic_filter]
        self.waiting = True

    def send(self, out, new_id, now):
        """Puts what is to be sent into the send buffer, as far as there is room. new_id: gives packet ids."""
        self.waiting = False
        for topic_filter in self._state:
            state = self._state[topic_filter]
            if state & _STATE == _UNSENT:
                packet_id = new_id()
                packet = packets.subscribe(packet_id, topic_filter, state & 3)
                state = state & 3 | _SENT
            elif state == _LEAVING:
                packet_id = new_id()
                packet = packets.unsubscribe(packet_id, topic_filter)
                state = _LEAVING_SENT
            else:
                continue
            if not out.put(packet):
                self.waiting = True
                return
            if not self.requests:
                self.asked_at = now
            self.requests[packet_id] = topic_filter
            self._state[topic_filter] = state

    def answered(self, packet_id, return_code, now):
        """SUBACK with its return code, or UNSUBACK with None; False: nobody asked. Raises SubscribeRefused."""
        topic_filter = self.requests.pop(packet_id, None)
        if topic_filter is None:
            return False
        self.asked_at = now
        state = self._state.get(topic_filter, 0)
        if return_code is None:
            if state == _LEAVING_SENT:
                del self._state[topic_filter]
        elif return_code > 2 and return_code != 0x80:
            raise ProtocolError("SUBACK with a reserved return code")  # [MQTT-3.9.3-2]
        elif state & _STATE == _SENT:
            if return_code == 0x80:
                del self._state[topic_filter]
                raise SubscribeRefused(topic_filter)
            self._state[topic_filter] = state & 3 | _ACKNOWLEDGED
        return True

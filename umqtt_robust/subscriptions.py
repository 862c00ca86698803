"""The client's subscriptions, and its requests that the broker has not answered yet."""

from ._platform import NEVER, const, load
from .packets import SUBSCRIBE, UNSUBSCRIBE, string

# Flags in filters[topic_filter], beside the QoS.
_ASKED = const(0x10)
_GRANTED = const(0x30)
LEAVING = const(0x40)
ASIDE = const(0x80)  # left out: see quarantine.py


class Subscriptions:
    """The topic filters of one session. session: sends the requests and supplies their packet ids."""

    def __init__(self, session):
        self._session = session
        self.filters = {}
        # Packet id of an unanswered request: topic filter, or None when a later request replaced it.
        self.requests = {}
        self.must_send = False
        self.gate = None  # a function that quarantine.py sets: whether requests may be sent now
        self.asked_at = 0  # ms: when the acknowledgement timer of the requests began, or the last answer came
        self.refused = None  # the last refusal on this link

    def want(self, topic_filter, state):
        """Records what the program wants of a topic filter. state: a QoS, or LEAVING to unsubscribe."""
        for packet_id in self.requests:
            if self.requests[packet_id] == topic_filter:
                self.requests[packet_id] = None
        self.filters[topic_filter] = state
        self.must_send = True
        self._session.subscribed = False
        self._session.wait_ms = 0  # work() is due

    def forget(self, unsure):
        """Drops the state that died with the link. unsure: the broker may have forgotten what it granted."""
        self.requests = {}
        self.refused = None
        self.must_send = True
        self._session.subscribed = not self.filters
        for topic_filter in self.filters:
            if unsure or self.filters[topic_filter] & _GRANTED != _GRANTED:
                self.filters[topic_filter] &= ~_GRANTED

    def send(self, most=None):
        """Encodes up to `most` requests that were not sent on this link into the send buffer, as it has room.

        None: all of them, if the gate is open.
        """
        if most is None:
            if self.gate and not self.gate():
                return
            most = NEVER
        session = self._session
        self.must_send = False
        for topic_filter in self.filters:
            state = self.filters[topic_filter]
            if state & (_ASKED | ASIDE):
                continue
            if not most:
                self.must_send = True
                return
            most -= 1
            packet_id = session.new_packet_id()
            body = bytes((packet_id >> 8, packet_id & 255)) + string(topic_filter)
            head = UNSUBSCRIBE
            if not state & LEAVING:
                head = SUBSCRIBE
                body += bytes((state & 3,))
            if session.mqtt5:
                body = session.mqtt5.subscribe(body, topic_filter)
            if not session.out.put(head, body):
                self.must_send = True
                return
            if not self.requests:
                self.asked_at = session.now
            self.requests[packet_id] = topic_filter
            self.filters[topic_filter] |= _ASKED
        session.subscribed = not self.requests

    def handle_answer(self, packet_id, return_code, told):
        """Handles SUBACK or UNSUBACK. Reports a refusal.

        told: what else the broker says of a refusal, for the error.
        """
        session = self._session
        topic_filter = self.requests.pop(packet_id, b"")
        self.asked_at = session.now
        state = self.filters.get(topic_filter, 0)
        if not topic_filter:
            session.unexpected += topic_filter == b""  # no request has this id; None: a later request replaced it
        elif return_code > 2:
            load("malformed").refuse_filter(session, topic_filter, return_code, told)
        elif state & LEAVING:
            del self.filters[topic_filter]
        else:
            self.filters[topic_filter] |= _GRANTED
        session.subscribed = not self.must_send and not self.requests

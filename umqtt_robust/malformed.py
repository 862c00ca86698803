"""Received messages that break the standard, but leave the stream whole: they are handed over or dropped, and counted.

If they ended the link, the broker would send them again on each link, and nothing behind them would arrive. A topic
name with a wildcard is handed over. One that is empty, no UTF-8 or holds NUL is dropped, because no handler expects it.
All are acknowledged.
"""

from .base_errors import MQTTError
from .packets import PUBACK, PUBREC, QOS, QOS_2
from .topics import WILDCARD, check_inbound


class Malformed(MQTTError):
    """For on_error, once for each kind: a received message breaks the standard. args: the kind, its topic name."""


class MalformedMessages:
    """Counts the malformed messages of one session, in Session.malformed."""

    def __init__(self, session):
        self._session = session
        self._reported = []

    def forget(self, session):
        """Does nothing: each kind is reported once, whatever the links."""

    def pump(self):
        return True

    def report(self, kind, topic):
        """Counts a message, and reports the first one of its kind."""
        session = self._session
        session.malformed += 1
        if kind not in self._reported:
            self._reported.append(kind)
            session.report(Malformed(kind, topic))

    def count_dup(self, topic):
        """Counts a message at QoS 0 with DUP, which is handed over all the same."""
        self.report("DUP at QoS 0", topic)

    def drops(self, topic):
        """Counts a message with an invalid topic name. Returns True if it must be dropped."""
        kind = check_inbound(topic)
        self.report(kind, topic)
        return kind != WILDCARD

    def refuse(self, head, packet_id, topic):
        """Drops and acknowledges a message with an invalid topic name; returns False if that only has a wildcard."""
        session = self._session
        if check_inbound(topic) == WILDCARD:
            return False
        self.drops(topic)
        if head & QOS_2:
            session.out.put_ack(PUBREC, packet_id)
        elif head & QOS:
            if session.manual_ack:  # in its turn
                session.part("manual_ack").hold(packet_id)
                session.acknowledge(packet_id)
            else:
                session.out.put_ack(PUBACK, packet_id)
        return True

    def route(self, topic, handlers):
        """Returns the handlers for messages with an invalid topic name. handlers: those that would take them."""

        session = self._session

        def count(topic, payload):
            if self.drops(topic) and session.manual_ack and session.flags & QOS:
                session.acknowledge(session.packet_id)

        return [count] if check_inbound(topic) != WILDCARD else [count] + (handlers or [session.on_message])


part = MalformedMessages  # what Session.part() makes

"""What a broker seldom sends: refusals of the client or of a subscription, and messages that break the standard.

Such messages leave the stream whole, so they are handed over or dropped, and counted. If they ended the link, the
broker would send them again on each link, and nothing behind them would arrive. A topic name with a wildcard is handed
over. One that is empty, no UTF-8 or holds NUL is dropped, because no handler expects it. All are acknowledged.
"""

from ._platform import NEVER
from .base_errors import MQTTError, ProtocolError
from .errors import Refused
from .packets import PUBACK, PUBREC, QOS, QOS_2
from .subscriptions import LEAVING
from .topics import WILDCARD, check_inbound


def refuse_connection(session, return_code):
    """Handles a CONNACK that refuses the connection: chooses the next attempt and raises Refused.

    Code 1, unacceptable protocol version: the next attempt uses MQTT 3.1, if that is allowed. Codes 2, 4 and 5 are
    unlikely to change: the next attempt comes after the longest wait, if no other broker is left to try.
    """
    if return_code == 1 and session.allow_mqtt31 and session.level == 4:
        session.level = 3
        session.retry_delay = 0
    elif return_code in (2, 4, 5):
        session.retry_delay = NEVER  # the client takes its longest wait
    raise Refused("connect", return_code)


def no_broker(answer):
    """Returns a ProtocolError for the first bytes of an answer to CONNECT that can be no CONNACK: it names the peer."""
    if answer[:5] == b"HTTP/"[: len(answer)]:
        return ProtocolError("this is a web server: a login page of the network?")
    if answer[:2] == b"\x15\x03":
        return ProtocolError("this port speaks TLS: mqtts://?")
    return ProtocolError("this is no MQTT broker: it says %r" % answer[:32])


def refuse_filter(session, topic_filter, return_code, told):
    """Handles a SUBACK or UNSUBACK that refuses a topic filter: reports it.

    return_code: above 2; one that the standard does not know [MQTT-3.9.3-2] is no reason to end the link, which would
    end likewise on the next one. told: what else the broker says, for the error.
    """
    subscriptions = session.subscriptions
    leaving = subscriptions.filters[topic_filter] & LEAVING
    refused = Refused("unsubscribe" if leaving else "subscribe", topic_filter, return_code, *told)
    session.report(refused)
    if leaving:
        del subscriptions.filters[topic_filter]
    else:
        # Asked for again later: rights change, and a cluster that holds elections refuses what it grants then.
        subscriptions.refused = refused


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

"""What follows when the broker refuses the client or a subscription."""

from ._platform import NEVER
from .errors import ProtocolError, Refused
from .subscriptions import LEAVING


def connect(session, return_code):
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


def subscribe(session, topic_filter, return_code, told):
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

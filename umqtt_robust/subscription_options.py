"""Options and identifiers of subscriptions with MQTT 5 (3.8.2.1.2, 3.8.3.1).

    client.part("subscription_options").set("fleet/#", no_local=True, identifier=7)
    client.subscribe("fleet/#", 1)
"""

from ._platform import const
from .errors import Downgraded, InvalidArgument
from .mqtt5 import variable, with_length
from .topics import check_topic_filter

_HIGHEST_IDENTIFIER = const(268435455)
_IDENTIFIERS_AVAILABLE = const(0x29)


class SubscriptionOptions:
    """The options of the topic filters of one session."""

    def __init__(self, session):
        if session.protocol == 4:
            raise InvalidArgument("subscription options need protocol=5")
        self._session = session
        self._chosen = {}  # topic filter: options beside QoS, identifier or 0
        mqtt5 = session.part("mqtt5")
        self._subscribe = mqtt5.subscribe
        mqtt5.subscribe = self.subscribe  # wrapped

    def forget(self, session):
        """Options outlive the link: they are sent again with their subscription."""

    def pump(self):
        return True

    def set(self, topic_filter, no_local=False, retain_as_published=False, retain_handling=0, identifier=0):
        """Sets the options of the subscription to a topic filter, from the next SUBSCRIBE on.

        no_local: the broker does not send what this client publishes itself. retain_as_published: RETAIN stays as the
        publisher set it. retain_handling: the broker sends retained messages 0: at each SUBSCRIBE, 1: only if the
        subscription is new, 2: never. identifier: 1 to 268435455, 0 for none; in a handler,
        client.properties["subscription_identifier"] lists the identifiers of the subscriptions that match the message.
        Raises InvalidArgument.
        """
        topic_filter = check_topic_filter(topic_filter)
        if retain_handling not in (0, 1, 2) or not isinstance(identifier, int):
            raise InvalidArgument("retain_handling is 0, 1 or 2, and identifier a number")
        if not 0 <= identifier <= _HIGHEST_IDENTIFIER or no_local and topic_filter[:7] == b"$share/":
            # [MQTT-3.8.3-4]
            raise InvalidArgument("an identifier is at most 268435455, and a shared subscription not no_local")
        bits = (4 if no_local else 0) | (8 if retain_as_published else 0) | retain_handling << 4
        self._chosen[topic_filter] = bits, identifier

    def subscribe(self, body, topic_filter):
        """Wraps Mqtt5.subscribe(): adds the options of that topic filter."""
        bits, identifier = self._chosen.get(topic_filter, (0, 0))
        body = self._subscribe(body, topic_filter)
        if len(body) > 5 + len(topic_filter):  # SUBSCRIBE
            body = body[:-1] + bytes((body[-1] | bits,))
            if identifier and self._session.connack_properties.get(_IDENTIFIERS_AVAILABLE) == 0:
                self._session.report(Downgraded("the broker takes no subscription identifiers"))
            elif identifier:
                body = body[:2] + with_length(b"\x0b" + variable(identifier)) + body[3:]
        return body


part = SubscriptionOptions  # what Session.part() makes

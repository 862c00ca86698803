"""What the broker refuses: connections and subscriptions."""

from ._platform import const
from .errors import Refused
from .packets import connect

_LONGEST = const(128000)  # ms between two attempts


def connection(client, return_code):
    """CONNACK said no; raises Refused.

    1, another version of MQTT: tried with 3.1, if that is allowed. 2, 4 and 5, which will hardly change: when it was
    the last server of the round, the next one comes after the longest wait, less up to a quarter.
    """
    if return_code == 1 and client.allow_mqtt31 and client.connect_as_usual[1] == 4:  # the length of its name
        client.connect_as_usual = connect(*client.connect_as, level=3)
        client.assume_present = not client.clean_session
        client.again = True
    elif return_code in (2, 4, 5) and client.tried + 1 >= len(client.servers):
        client.limit = _LONGEST
        client.again = _LONGEST - client.random(_LONGEST // 4)
    raise Refused("connect", return_code)


def subscription(client, topic_filter):
    """SUBACK said no."""
    client.report(Refused("subscribe", topic_filter))

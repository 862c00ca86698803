"""The state that a bridge keeps from one of its connections to the next."""

import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from ..clients.connection import Connection
from ..routing.router import Router
from ..settings.bridge import BridgeConfig
from ..settings.broker import BrokerConfig, Listener
from .topic_map import TopicMap

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class BridgeStatus:
    """What a bridge does and has done, for those who watch it.

    connected: the link to `remote`, HOST:PORT, is up. subscribed: and every subscription is answered there.
    queued: messages that wait for the remote broker. The others are only counted up:
    messages_in, messages_out: accepted from, and given to, the remote broker; QoS 0 counts when it is written.
    connects: times the link came up. dropped_qos0: not sent, since the link was down or too slow.
    unmatched: messages of a topic name that no rule has, or that would be too long or have too many levels at the other
    end; left out.
    refused: messages that the remote broker did not take, of which only one of MQTT 5 tells. too_large: came and were
    larger than this broker takes; left out. purges: times the remote broker was made to forget this bridge.
    last_error: what went wrong last, in one line.
    """

    name: str
    connected: bool = False
    subscribed: bool = False
    remote: str = ""
    queued: int = 0
    messages_in: int = 0
    messages_out: int = 0
    connects: int = 0
    dropped_qos0: int = 0
    unmatched: int = 0
    refused: int = 0
    too_large: int = 0
    purges: int = 0
    last_error: str = ""


class BridgeState:
    """One bridge, whether it is connected or not. broker_config: the settings of the broker it belongs to.

    router: that broker's. new_connection: makes a connection to it.
    """

    def __init__(
        self,
        config: BridgeConfig,
        broker_config: BrokerConfig,
        router: Router,
        new_connection: Callable[[Listener], Connection],
    ) -> None:
        self.config = config
        self.broker_config = broker_config
        self.router = router
        self.new_connection = new_connection
        self.status = BridgeStatus(config.name)
        self.context: ssl.SSLContext | None = None
        self.outward = TopicMap(config.topics, outward=True)
        self.inward = TopicMap(config.topics, outward=False)
        # Whether the remote broker takes a protocol level that says "bridge"; with MQTT 5 a user property says it.
        self.remote_private = config.try_private and config.protocol_level != 5
        self._wait = 0.0

    def report(self, problem: str) -> None:
        """Report an error; a repeated one only once until the link has been up."""
        level = logging.DEBUG if problem == self.status.last_error and self._wait else logging.WARNING
        self.status.last_error = problem
        _log.log(level, "bridge %s: %s", self.config.name, problem)

    def next_wait(self) -> float:
        """Return the seconds before the next attempt: random, and longer each time, between base and cap."""
        base, cap = self.config.restart_timeout
        self._wait = min(cap, random.uniform(base, max(base, self._wait * 3)))
        return self._wait

    def reset_wait(self) -> None:
        """Begin with the shortest wait again, because the link came up."""
        self._wait = 0.0

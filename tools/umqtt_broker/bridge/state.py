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
    """The state and the counters of one bridge, for operators.

    connected: the link to `remote`, HOST:PORT, is up. subscribed: it is, and every subscription is answered there.
    queued: messages that wait for the remote broker. last_error: the last problem, in one line.

    The others are counters, which only rise. messages_in, messages_out: messages accepted from the remote broker, and
    given to it; a QoS 0 message counts when it is written. connects: times the link came up.
    dropped_qos0: QoS 0 messages not sent, since the link was down or too slow.
    unmatched: messages left out because no rule matches their topic name, or because the name would be too long or have
    too many levels at the other end.
    refused: messages that the remote broker did not accept, which only a broker of MQTT 5 reports.
    too_large: incoming messages left out because they are larger than this broker accepts.
    purges: times the remote broker was made to discard this bridge's session.
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
    """The state of one bridge, whether it is connected or not.

    config: the bridge's settings. broker_config, router: the settings and the router of its own broker. new_connection:
    makes a connection to its own broker.
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
        # True while CONNECT marks this client as a bridge by a bit of the protocol level. With MQTT 5 a user property
        # does that.
        self.remote_private = config.try_private and config.protocol_level != 5
        self._wait = 0.0

    def report(self, problem: str) -> None:
        """Log a problem as a warning; log the same problem again only at debug level until the link has been up."""
        level = logging.DEBUG if problem == self.status.last_error and self._wait else logging.WARNING
        self.status.last_error = problem
        _log.log(level, "bridge %s: %s", self.config.name, problem)

    def next_wait(self) -> float:
        """Return the seconds before the next attempt: random, growing, between base and cap of restart_timeout."""
        base, cap = self.config.restart_timeout
        self._wait = min(cap, random.uniform(base, max(base, self._wait * 3)))
        return self._wait

    def reset_wait(self) -> None:
        """Let the next wait be short again, because the link came up."""
        self._wait = 0.0

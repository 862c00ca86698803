"""Bridges: topics shared with other brokers, with the promise that clients have. docs/broker-bridge.md says what it is.

A bridge is two clients back to back, of this broker and of the remote one (bridge_life). A message is acknowledged at
one end when the other end has acknowledged it. All of it runs in the broker's event loop, in short turns.
"""

import asyncio
import logging
import random
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..settings.bridge import BridgeConfig
from .relay import Life
from .topic_map import TopicMap

if TYPE_CHECKING:
    from ..broker import Broker

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
    echoes: the bridge's own messages, coming back from this broker; left out. too_large: came and were larger than
    this broker takes; left out. purges: times the remote broker was made to forget this bridge.
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
    echoes: int = 0
    too_large: int = 0
    purges: int = 0
    last_error: str = ""


class Bridges:
    """All bridges of a broker's configuration; one of its services."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._bridges: list[Bridge] = []

    async def start(self) -> None:
        """Begin to connect. Raises ConfigError when a certificate or key cannot be read."""
        self._bridges = [Bridge(self._broker, config) for config in self._broker.config.bridges]
        for bridge in self._bridges:
            bridge.load_certificates()
        for bridge in self._bridges:
            bridge.start()

    async def stop(self) -> None:
        """Say goodbye at both ends; what was not acknowledged stays in the session."""
        await asyncio.gather(*(bridge.stop() for bridge in self._bridges))

    @property
    def status(self) -> list[BridgeStatus]:
        """What each bridge does, in the order of the configuration."""
        return [bridge.look() for bridge in self._bridges]


class Bridge:
    """One bridge, over any number of lives: each has one connection to this broker."""

    def __init__(self, broker: "Broker", config: BridgeConfig) -> None:
        self.broker = broker
        self.config = config
        self.status = BridgeStatus(config.name)
        self.context: ssl.SSLContext | None = None
        self.outward = TopicMap(config.topics, outward=True)
        self.inward = TopicMap(config.topics, outward=False)
        # Whether each end takes a protocol level that says "bridge".
        self.local_private = True
        self.remote_private = config.try_private
        self._wait = 0.0
        self._life: Life | None = None
        self._task: asyncio.Task[None] | None = None

    def load_certificates(self) -> None:
        """Read what TLS needs. Raises ConfigError."""
        self.context = self.config.tls_context()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End this life in good order, and begin no other."""
        task, self._task = self._task, None
        if self._life is not None:
            self._life.say_goodbye()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def look(self) -> BridgeStatus:
        """Return the status as of now."""
        life = self._life
        self.status.queued = life.queued if life is not None else 0
        self.status.subscribed = life is not None and life.subscribed
        return self.status

    async def _run(self) -> None:
        while True:
            life = self._life = Life(self)
            try:
                reason = await life.ended
            finally:
                self._life = None
                life.close()
            if reason:
                self.report(reason)
                await asyncio.sleep(self.next_wait())

    def report(self, problem: str) -> None:
        """Say what went wrong; the same again and again only once until the link was up."""
        level = logging.DEBUG if problem == self.status.last_error and self._wait else logging.WARNING
        self.status.last_error = problem
        _log.log(level, "bridge %s: %s", self.config.name, problem)

    def next_wait(self) -> float:
        """Return the seconds before the next attempt: random, and longer each time, between base and cap."""
        base, cap = self.config.restart_timeout
        self._wait = min(cap, random.uniform(base, max(base, self._wait * 3)))
        return self._wait

    def reset_wait(self) -> None:
        """The link came up."""
        self._wait = 0.0

"""Bridges: topics shared with other brokers, with the same delivery guarantee as clients. See docs/broker-bridge.md.

A bridge is two clients, one of this broker and one of the remote broker, between which a Relay passes messages on. A
message is acknowledged at one end when the other end has acknowledged it. Everything runs in the broker's event loop,
in short turns.
"""

import asyncio
from collections.abc import Callable

from ..clients.connection import Connection
from ..routing.router import Router
from ..settings.broker import BrokerConfig, Listener
from ..transport.tls import make_bridge_context
from .relay import Relay
from .state import BridgeState, BridgeStatus


class Bridges:
    """All bridges of a broker's configuration; one of its services."""

    def __init__(self, config: BrokerConfig, router: Router, new_connection: Callable[[Listener], Connection]) -> None:
        self._config = config
        self._router = router
        self._new_connection = new_connection
        self._bridges: list[Bridge] = []

    async def start(self) -> None:
        """Begin to connect. Raises ConfigError when a certificate or key cannot be read."""
        self._bridges = [
            Bridge(BridgeState(config, self._config, self._router, self._new_connection))
            for config in self._config.bridges
        ]
        for bridge in self._bridges:
            bridge.load_certificates()
        for bridge in self._bridges:
            bridge.start()

    async def stop(self) -> None:
        """Disconnect both ends; messages that were not acknowledged stay in the session."""
        await asyncio.gather(*(bridge.stop() for bridge in self._bridges))

    @property
    def status(self) -> list[BridgeStatus]:
        """The status of each bridge, in the order of the configuration."""
        return [bridge.look() for bridge in self._bridges]


class Bridge:
    """One bridge. It uses one Relay after the other; each has one connection to this broker."""

    def __init__(self, state: BridgeState) -> None:
        self._state = state
        self._relay: Relay | None = None
        self._task: asyncio.Task[None] | None = None

    def load_certificates(self) -> None:
        """Read the certificates and keys. Raises ConfigError."""
        self._state.context = make_bridge_context(self._state.config)

    def start(self) -> None:
        """Start the task that connects both ends."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Disconnect both ends, and start no other relay."""
        task, self._task = self._task, None
        if self._relay is not None:
            self._relay.say_goodbye()
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def look(self) -> BridgeStatus:
        """Return the status as of now."""
        relay = self._relay
        status = self._state.status
        status.queued = relay.queued if relay is not None else 0
        status.subscribed = relay is not None and relay.subscribed
        return status

    async def _run(self) -> None:
        while True:
            relay = self._relay = Relay(self._state)
            try:
                reason = await relay.ended
            finally:
                self._relay = None
                relay.close()
            if reason:
                self._state.report(reason)
                await asyncio.sleep(self._state.next_wait())

"""Observation: the $SYS topics and the HTTP listener, as one service that the broker starts and stops."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from .survey import Survey
from .sys_topics import SysTopics
from .view import BrokerView, ObservedBroker

if TYPE_CHECKING:
    from .server import Server

# Seconds between two checks of sys_interval while it is 0.
_IDLE_SECONDS = 10

_log = logging.getLogger("umqtt_broker.observation")


class Observation:
    """`$SYS` topics every sys_interval seconds, and the HTTP listener if http_port is set.

    server: the HTTP listener, or None.
    """

    def __init__(self, broker: ObservedBroker, view: BrokerView) -> None:
        self._broker = broker
        self._view = view
        self._task: asyncio.Task[None] | None = None
        self.server: Server | None = None

    async def start(self) -> None:
        """Start what the configuration asks for. Raises ConfigError or BrokerError."""
        if self.server is None:
            await self.serve()
        self._task = asyncio.create_task(self._publish(self._survey), name="umqtt-broker-sys")

    async def serve(self) -> None:
        """Start only the HTTP listener, if one is configured: a standby needs it. Raises ConfigError or BrokerError."""
        broker, config, view = self._broker, self._broker.config, self._view
        self._survey = Survey(
            lambda: view.sessions, lambda: view.groups, lambda: config.max_inflight_messages, broker.loop.time
        )
        if config.http_port:
            # Imported here: a broker that serves no HTTP spends neither the time nor the memory on aiohttp.
            from .server import Server

            server = Server(broker, view, self._survey, time.time())
            await server.start()
            self.server = server

    async def stop(self) -> None:
        """Stop; safe to call again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self.server is not None:
            await self.server.stop()
            self.server = None

    async def _publish(self, survey: Survey) -> None:
        """Publish the topics now and every sys_interval seconds, which a reload may change at any time."""
        now, config = self._broker.loop.time, self._broker.config
        started = last = now()
        topics = SysTopics(self._broker.router, self._broker.stats)
        has_failed = False
        while True:
            interval = config.sys_interval
            try:
                if interval:
                    totals = await survey.update()
                    moment = now()
                    topics.publish(totals, int(moment - started), moment - last)
                    last = moment
                else:
                    topics.withdraw()
                has_failed = False
            except Exception as error:  # noqa: BLE001 - a mistake may be anything, and is logged
                # Told once: monitors show the figures of the last time until it works again.
                _log.log(
                    logging.DEBUG if has_failed else logging.ERROR,
                    "the $SYS topics could not be published, and are tried again every %d s: %r",
                    interval or _IDLE_SECONDS, error, exc_info=error,
                )  # fmt: skip
                has_failed = True
            # Relative to the start, so that the work does not lengthen the intervals.
            beat = interval or _IDLE_SECONDS
            await asyncio.sleep(beat - (now() - started) % beat)

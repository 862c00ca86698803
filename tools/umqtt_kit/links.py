"""A connection to all brokers that share a fleet: `--broker` given several times.

Each broker has devices of its own, and which devices a broker has is not known here. So messages are published to all
brokers and read from all of them. A broker that cannot be reached at the start is left out, and a line on stderr says
so.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from umqtt_cli.console import say
from umqtt_cli.errors import KitError
from umqtt_cli.properties import Properties
from umqtt_kit.mqtt import Access, Link, QoS, wait_for


class Links:
    """An mqtt.Link to each broker of `access`. options: those of Link. Raises KitError if none can be reached.

    away: the addresses of those that could not be reached at the start.
    """

    def __init__(self, access: Access, **options: Any) -> None:
        self._links = [Link(one, **options) for one in access.each]
        self._access = access
        self.away: list[str] = []

    def __enter__(self) -> Self:
        problems: list[KitError] = []
        for link, access in zip(list(self._links), self._access.each, strict=True):
            try:
                link.__enter__()
            except KitError as error:
                problems.append(error)
                self._links.remove(link)
                self.away.append(access.where)
            except BaseException:
                self.close(0)
                raise
        if not self._links:
            raise problems[0]
        for problem in problems:
            say(f"{problem}; going on without it")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links:
            link.__exit__(kind, error, trace)

    @property
    def pending(self) -> int:
        """Number of messages that a broker has not acknowledged, or that are not written yet."""
        return sum(link.pending for link in self._links)

    @property
    def unacknowledged(self) -> int:
        """Number of messages above QoS 0 that a broker has not acknowledged."""
        return sum(link.client.pending for link in self._links)

    @property
    def downgraded(self) -> int:
        """Number of messages at QoS 2 that a broker acknowledged like messages at QoS 1."""
        return sum(link.client.downgraded for link in self._links)

    def subscribe(self, *filters: str, qos: QoS = 1) -> None:
        """Subscribe at each broker, as Link.subscribe() does."""
        for link in self._links:
            link.subscribe(*filters, qos=qos)

    @property
    def dropped(self) -> int:
        """Number of messages that one of the brokers will never get."""
        return sum(link.dropped for link in self._links)

    @property
    def why_dropped(self) -> str:
        """The reason why a message was dropped; empty if none was."""
        return next((link.why_dropped for link in self._links if link.dropped), "")

    def publish(
        self, topic: str, payload: bytes, qos: QoS = 0, retain: bool = False, properties: Properties | None = None
    ) -> None:
        """Publish to each broker, as Link.publish() does."""
        for link in self._links:
            link.publish(topic, payload, qos, retain, properties)

    def offer(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0 without waiting; a message that finds no room is left out."""
        for link in self._links:
            link.client.publish(topic, payload)

    def tick(self) -> None:
        """Read and write what is possible without waiting."""
        for link in self._links:
            link.client.tick()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Drive all links until the condition holds (True) or the time is over (False); None waits for ever."""
        return wait_for(self._links, condition, timeout_s)

    def close(self, quiesce_ms: int) -> None:
        """Close each link, as Link.close() does."""
        for link in self._links:
            link.close(quiesce_ms)

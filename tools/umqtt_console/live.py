"""What the broker says now: the newest payload of each topic that a viewer watches. Nobody watches: nothing is asked.

A link subscribes to the filters that open pages show, and leaves them a minute after the last such page was closed.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from umqtt_robust import aio
from umqtt_robust.errors import MQTTError
from umqtt_robust.topics import matches

from .device import shown
from .events import Hub

_MOST_TOPICS = 20_000
_MOST_BYTES = 32 * 1024 * 1024
_KEPT_BYTES = 4096
_TOLD_EVERY_S = 0.5
_MOST_TOLD = 200
_LEAVE_AFTER_S = 60.0
_MOST_FILTERS = 100
# Kept whoever watches: few topics, which the page's head and the data path show.
ALWAYS = ("$SYS/broker/#",)


@dataclass(frozen=True)
class Newest:
    """The newest message of a topic. at: when it came, Unix milliseconds. count: how many came since it is watched."""

    topic: str
    payload: bytes
    size: int
    at: int
    retained: bool
    count: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for a page."""
        return {
            "topic": self.topic,
            "payload": shown(self.payload),
            "size": self.size,
            "at": self.at,
            "retained": self.retained,
            "count": self.count,
        }


class Broker:
    """One broker. state: connected, or why not.

    :param where: its address, for people.
    :param connect: makes a client of aio, not connected yet; it gets the callbacks.
    :param explain: says why there is no link, in one line.
    """

    def __init__(
        self,
        where: str,
        connect: Callable[..., aio.Client],
        explain: Callable[[BaseException], str],
        take: Callable[[str, bytes, bool], None],
    ) -> None:
        self.where = where
        self.connected = False
        self.problem = "not connected yet"
        self._connect = connect
        self._explain = explain
        self._take = take
        self._wanted: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def want(self, filters: frozenset[str]) -> None:
        """Say which topics are to be subscribed to."""
        if filters != self._wanted:
            self._wanted = filters
            self._changed.set()

    async def run(self) -> None:
        """Be connected until cancelled; the client connects again by itself."""
        while True:
            client = self._connect(
                on_connect=self._on_connect, on_disconnect=self._on_problem, on_error=self._on_problem
            )
            try:
                async with client:
                    subscriber = asyncio.create_task(self._subscribe(client))
                    try:
                        async for topic, payload in client:
                            self._take(topic.decode(errors="backslashreplace"), payload, client.retained)
                    finally:
                        subscriber.cancel()
                        with suppress(asyncio.CancelledError):
                            await subscriber
            except (MQTTError, OSError) as error:
                self._on_problem(error)
            self.connected = False
            await asyncio.sleep(1)

    async def _subscribe(self, client: aio.Client) -> None:
        has: set[str] = set()
        while True:
            self._changed.clear()
            wanted = self._wanted
            for topic_filter in sorted(has - wanted):
                has.discard(topic_filter)
                await self._ask(client.unsubscribe(topic_filter))
            for topic_filter in sorted(wanted - has):
                has.add(topic_filter)
                await self._ask(client.subscribe(topic_filter))
            await self._changed.wait()

    async def _ask(self, call: Any) -> None:
        try:
            await call
        except MQTTError as error:
            self.problem = self._explain(error)

    def _on_connect(self, session_present: bool) -> None:
        del session_present
        self.connected, self.problem = True, ""

    def _on_problem(self, problem: BaseException) -> None:
        self.connected = False
        self.problem = self._explain(problem)


class Live:
    """The newest message of each topic that somebody watches, from all brokers."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.brokers: list[Broker] = []
        self._newest: OrderedDict[str, Newest] = OrderedDict()
        self._bytes = 0
        self._changed: dict[str, Newest] = {}
        self._left: dict[str, float] = {}
        self._told: list[dict[str, Any]] = []

    def add(self, where: str, connect: Callable[..., aio.Client], explain: Callable[[BaseException], str]) -> None:
        """Add a broker."""
        self.brokers.append(Broker(where, connect, explain, self.take))

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as group:
            for broker in self.brokers:
                group.create_task(broker.run())
            group.create_task(self._tell())

    def take(self, topic: str, payload: bytes, retained: bool) -> None:
        """Keep a message."""
        before = self._newest.pop(topic, None)
        self._bytes -= len(before.payload) if before else 0
        kept = payload[:_KEPT_BYTES]
        count = (before.count if before else 0) + 1
        self._newest[topic] = made = Newest(topic, kept, len(payload), time.time_ns() // 1_000_000, retained, count)
        self._bytes += len(kept)
        while len(self._newest) > _MOST_TOPICS or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._newest.popitem(last=False)[1].payload)
        self._changed[topic] = made

    def newest(self, topic_filter: str) -> Iterator[Newest]:
        """Yield the messages that are known of topics that match."""
        levels = topic_filter.encode()
        yield from [one for topic, one in self._newest.items() if _matches(topic, levels)]

    def level(self, prefix: str, search: str) -> list[dict[str, Any]]:
        """Return the names below a prefix ("" or ending with /), each with the topics and messages below it.

        `newest`: the message of the topic that ends with the name, null if there is none.
        """
        found: dict[str, dict[str, Any]] = {}
        for topic, one in self._newest.items():
            if not topic.startswith(prefix) or (search and search not in topic.lower()):
                continue
            name, slash, _ = topic[len(prefix) :].partition("/")
            entry = found.setdefault(name, {"name": name, "topics": 0, "messages": 0, "at": 0, "newest": None})
            entry["topics"] += bool(slash)
            entry["messages"] += one.count
            entry["at"] = max(entry["at"], one.at)
            if not slash:
                entry["newest"] = one.as_dict()
        return sorted(found.values(), key=lambda entry: entry["name"])[:2000]

    def states(self) -> list[dict[str, Any]]:
        """Return each broker with whether it is connected, and why not."""
        return [{"where": one.where, "connected": one.connected, "problem": one.problem} for one in self.brokers]

    async def _tell(self) -> None:
        """Tell viewers what is new in the topics that they watch, twice a second; subscribe to what they watch."""
        while True:
            now = time.monotonic()
            watched = {viewer.watch for viewer in self._hub.viewers if viewer.watch}
            self._left |= dict.fromkeys(watched, now)
            self._left = {one: at for one, at in self._left.items() if now - at < _LEAVE_AFTER_S}
            kept = sorted(self._left, key=lambda one: -self._left[one])[:_MOST_FILTERS]
            for broker in self.brokers:
                broker.want(frozenset((*ALWAYS, *kept)))
            changed, self._changed = self._changed, {}
            for one in watched if changed else ():
                self._send(one, [message for topic, message in changed.items() if _matches(topic, one.encode())])
            if (states := self.states()) != self._told:
                self._told = states
                self._hub.tell("brokers", states)
            await asyncio.sleep(_TOLD_EVERY_S)

    def _send(self, watched: str, messages: Sequence[Newest]) -> None:
        import json

        texts = [(one.topic, json.dumps(one.as_dict())) for one in messages[-_MOST_TOLD:]]
        for viewer in self._hub.viewers:
            if viewer.watch == watched:
                for topic, text in texts:
                    viewer.put("message", topic, text)


def _matches(topic: str, levels: bytes) -> bool:
    return matches(levels, topic.encode(errors="replace"))

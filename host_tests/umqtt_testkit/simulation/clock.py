"""Virtual time: events in the order of their time, then in that in which they were planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from math import ceil
from typing import Any

SECOND = 1_000_000  # µs, the unit of all times here


class Process:
    """The owner of events. Once it is no longer alive, its events do not happen any more."""

    alive = True


class Event(list[Any]):
    """[time, number, function or None, arguments, process]: a list, because the heap compares lists fastest."""

    __slots__ = ()

    def cancel(self) -> None:
        """Let the event not happen. Safe to call again."""
        self[2] = None


class SimulationError(Exception):
    """The simulated programs do not come to an end: str() says what goes on."""


class Clock:
    """The time, in µs, and what happens then. happened: the number of events so far."""

    def __init__(self) -> None:
        self.now = self.happened = 0
        self._events: list[Event] = []
        self._number = 0

    def at(self, time: float, owner: Process, function: Callable[..., object], *arguments: object) -> Event:
        """Plan a call at `time`, or now if that has passed."""
        self._number += 1
        event = Event((max(self.now, ceil(time)), self._number, function, arguments, owner))
        heappush(self._events, event)
        return event

    def run(self, until: int, most: int = 1_000_000) -> None:
        """Let everything happen up to the time `until`. Raises SimulationError after `most` events."""
        events = self._events
        last = self.happened + most
        while events and events[0][0] <= until:
            time, _, function, arguments, owner = heappop(events)
            if function is None or not owner.alive:
                continue
            self.now = time
            self.happened += 1
            if self.happened > last:
                raise SimulationError(f"{most} events up to {time / SECOND:.3f} s, the last one {function}")
            function(*arguments)
        self.now = max(self.now, until)


class Loop(asyncio.AbstractEventLoop):
    """The asyncio event loop of one simulated process. What would run in a thread runs at once."""

    def __init__(self, clock: Clock, owner: Process) -> None:
        self.clock = clock
        self.owner = owner
        self.mistakes: list[str] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        """Return virtual seconds."""
        return self.clock.now / SECOND

    def call_soon(self, callback: Callable[..., object], *args: Any, context: object = None) -> Any:
        """See asyncio; `context` is not used."""
        del context
        return self.clock.at(self.clock.now, self.owner, callback, *args)

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: object = None) -> Any:
        """See asyncio."""
        del context
        return self.clock.at(self.clock.now + ceil(delay * SECOND), self.owner, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: object = None) -> Any:
        """See asyncio."""
        del context
        return self.clock.at(when * SECOND, self.owner, callback, *args)

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # pyrefly: ignore
        """See asyncio."""
        task = asyncio.Task(coro, loop=self, **options)
        self._tasks.append(task)
        return task

    def end(self) -> None:
        """End the process, as SIGKILL does."""
        self.owner.alive = False
        for task in self._tasks:
            task.get_coro().close()  # pyrefly: ignore[missing-attribute]

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> Any:
        """Run `func` at once."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised where the result is awaited
            done.set_exception(error)
        return done

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note a mistake of the simulated program."""
        self.mistakes.append(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        """Return False."""
        return False

    def is_running(self) -> bool:
        """Return True: the loop belongs to a process that runs."""
        return True

    def is_closed(self) -> bool:
        """Return True once the process has ended."""
        return not self.owner.alive

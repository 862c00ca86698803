"""The thread that sends alerts: it puts several into one message, and retries until a destination accepts it."""

import threading
import time
from collections.abc import Callable, Sequence

from umqtt_cli.escape import remark

from .destinations import Destination
from .journal import Event, Journal
from .messages import packed, title_and_body

FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
_POLL_S = 1.0


class Delivery:
    """A sender of the journal's events.

    A message has the waiting events of one rule and site; it is sent when the oldest of them has waited `wait_s`
    seconds.

    :param clock: a function that returns monotonic seconds.
    :param report: called with one line of text for people.
    :ivar failing: names of the destinations whose last attempt failed.
    """

    def __init__(
        self,
        journal: Journal,
        destinations: Sequence[Destination],
        wait_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        report: Callable[[str], None] = remark,
    ) -> None:
        journal.keep_only(destination.name for destination in destinations)
        self.failing: set[str] = set()
        self._journal = journal
        self._destinations = destinations
        self._wait_s = wait_s
        self._clock = clock
        self._report = report
        self._met: dict[tuple[str, str], float] = {}
        self._retry: dict[str, tuple[float, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Send what waits, for at most `within_s` seconds, and stop; the rest is sent after the next start."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(within_s)
        self._journal.close()

    def step(self, *, all_now: bool = False) -> None:
        """Send the events that are due.

        :param all_now: send all waiting events, even to destinations that have just failed.
        """
        events, now = self._journal.events(), self._clock()
        self._met = {_key(event): self._met.get(_key(event), now) for event in events}
        due = {
            (event.alert.rule, event.site)
            for event in events
            if all_now or now - self._met[_key(event)] >= self._wait_s
        }
        for destination in self._destinations:
            again_at, pause_s = self._retry.get(destination.name, (now, FIRST_RETRY_S))
            if now < again_at and not all_now:
                continue
            wrong = self._send(destination, [event for event in events if (event.alert.rule, event.site) in due])
            if wrong is None:
                self._retry.pop(destination.name, None)
                self.failing.discard(destination.name)
                continue
            self._retry[destination.name] = now + pause_s, min(2 * pause_s, LONGEST_RETRY_S)
            if destination.name not in self.failing:
                self._report(f"alerts: not delivered to {destination.name}, tried again: {wrong}")
            self.failing.add(destination.name)

    def _send(self, destination: Destination, events: Sequence[Event]) -> str | None:
        """Send events to a destination; return the reason if not all were accepted, else None."""
        mine = [event for event in events if destination.name in event.to]
        quiet = [event for event in mine if event.state == "resolved" and not destination.recovery]
        messages: dict[tuple[str, str], list[Event]] = {}
        for event in mine:
            if event not in quiet:
                messages.setdefault((event.alert.rule, event.site), []).append(event)
        try:
            if quiet:
                self._journal.delivered(quiet, destination.name)
            for together in messages.values():
                for some in packed(together, destination.largest, as_json=destination.as_json):
                    wrong = destination.send(*title_and_body(some, as_json=destination.as_json))
                    if wrong is not None:
                        return wrong
                    self._journal.delivered(some, destination.name)
        except Exception as error:  # noqa: BLE001 - a service's own errors and a full disk are retried too
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return None

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            self.step()
        self.step(all_now=True)


def _key(event: Event) -> tuple[str, str]:
    return event.alert.id, event.state

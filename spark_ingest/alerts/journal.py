"""Which alerts are open, and what nobody has been told yet: one file that is replaced whole.

Gold hands :meth:`Journal.take` what the rules find now. What begins or ends becomes an event, in the same write as the
alert itself: killed before it, the next look finds the same again; killed after it, the event is there to be sent. An
event leaves only when each destination has taken it. So each alert is sent at least once, and twice only where a
destination took one that this file could not be told of: the id, made when the alert began, tells.

An alert is one rule's about one device. It ends when the rule judges the device and finds nothing; a device about which
it cannot say anything, for want of readings, keeps its alert.
"""

import json
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ..durable import read_checked_json, replace_checked
from ..errors import FileDamaged
from ..location import Location
from ..printable import remark
from .rules import RuleSet

FILE = ".alerts.json"
"""In the folder of the tables."""
MOST_WAITING = 100_000
"""Events; what begins while so many wait is told when there is room again."""
_KEPT_US = 7 * 86_400 * 1_000_000
_MOST_ENDED = 10_000


class Finding(NamedTuple):
    """What a rule finds in a device: since when, Unix microseconds, a figure, and words."""

    since: int | None
    value: float | None
    text: str


class Verdict(NamedTuple):
    """What a rule finds now, by device. `judged`: the devices it could look at; None: all."""

    rule: str
    firing: Mapping[str, Finding]
    judged: frozenset[str] | None = None


@dataclass(frozen=True)
class Opened:
    """An alert. `told`: for whom there was an event of its beginning. Times in Unix microseconds."""

    id: str
    rule: str
    kind: str
    device: str
    since: int | None
    value: float | None
    text: str
    told: tuple[str, ...] = ()
    until: int | None = None


@dataclass(frozen=True)
class Event:
    """Something to be told: `state` is firing or resolved. `at`: when it was noticed. `to`: who was not told yet."""

    alert: Opened
    state: str
    group: str
    site: str
    at: int
    to: tuple[str, ...]


@dataclass
class _Content:
    opened: dict[tuple[str, str], Opened] = field(default_factory=dict)
    ended: list[Opened] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Journal:
    """The file below `tables`; one process writes it, two threads may call.

    :param report: takes one line for a person.
    """

    def __init__(self, tables: Location, *, report: Callable[[str], None] = remark) -> None:
        self._path = tables / FILE
        self._report = report
        self._lock = threading.Lock()
        self._full = self._closed = False
        self._content = self._load()

    @property
    def waiting(self) -> int:
        """Events that somebody has not been told."""
        return len(self._content.events)

    def events(self) -> Sequence[Event]:
        """Those, oldest first."""
        return tuple(self._content.events)

    def alerts(self, rules: Iterable[str]) -> list[Opened]:
        """Alerts of these rules: open, and ended in the last week."""
        wanted, content = set(rules), self._content
        return [one for one in (*content.opened.values(), *content.ended) if one.rule in wanted]

    def take(
        self,
        verdicts: Iterable[Verdict],
        rules: RuleSet,
        now_us: int,
        recipients: Callable[[Opened], tuple[str, ...]] = lambda _alert: (),
    ) -> None:
        """Note what begins and ends.

        :param recipients: who is to be told of an alert; asked again while it is nobody, such as in a silence.
        :raises OSError: the file cannot be written; nothing is noted.
        """
        with self._lock:
            before = self._content
            after = _Content(dict(before.opened), list(before.ended), list(before.events))
            kinds = {rule.name: rule.kind for rule in rules.rules}
            # Of a rule that the file no longer has, everything is over.
            gone = {name for name, _device in before.opened} - kinds.keys()
            for verdict in [*verdicts, *(Verdict(name, {}) for name in sorted(gone))]:
                for device, finding in verdict.firing.items():
                    if (verdict.rule, device) not in after.opened:
                        opened = Opened(secrets.token_hex(8), verdict.rule, kinds[verdict.rule], device, *finding)
                        after.opened[verdict.rule, device] = opened
                self._end(after, verdict, rules, now_us)
            for key, alert in after.opened.items():
                to = recipients(alert) if not alert.told and self._has_room(after) else ()
                if to:
                    told = after.opened[key] = replace(alert, told=to)
                    _add(after, told, "firing", rules, now_us)
            after.ended = [one for one in after.ended if (one.until or 0) > now_us - _KEPT_US][-_MOST_ENDED:]
            if after != before:
                self._save(after)

    def _end(self, content: _Content, verdict: Verdict, rules: RuleSet, now_us: int) -> None:
        for (name, device), alert in list(content.opened.items()):
            judged = verdict.judged is None or device in verdict.judged
            if name != verdict.rule or device in verdict.firing or not judged or not self._has_room(content):
                continue
            del content.opened[name, device]
            over = replace(alert, until=now_us)
            content.ended.append(over)
            # Whoever was told that it began: also while it is silenced.
            _add(content, over, "resolved", rules, now_us)

    def delivered(self, events: Iterable[Event], destination: str) -> None:
        """Note that `destination` has taken them. :raises OSError: the file cannot be written; nothing is noted."""
        taken = {(event.alert.id, event.state) for event in events}
        self._drop(lambda event, name: name == destination and (event.alert.id, event.state) in taken)

    def keep_only(self, destinations: Iterable[str]) -> None:
        """Drop what waits for destinations that there are no more, and say so."""
        known, before = set(destinations), self.waiting
        self._drop(lambda _event, name: name not in known)
        if before != self.waiting:
            count = before - self.waiting
            self._report(f"{count} alerts were for destinations that alerts.toml no longer has: not sent")

    def forget(self, device_id: str) -> None:
        """Remove a device."""
        with self._lock:
            content = self._content
            after = _Content(
                {key: one for key, one in content.opened.items() if one.device != device_id},
                [one for one in content.ended if one.device != device_id],
                [event for event in content.events if event.alert.device != device_id],
            )
            if after != content:
                self._save(after)

    def close(self) -> None:
        """Let nothing be written any more, by a thread that could not be stopped."""
        with self._lock:
            self._closed = True

    def _drop(self, dropped: Callable[[Event, str], bool]) -> None:
        with self._lock:
            left = []
            for event in self._content.events:
                to = tuple(name for name in event.to if not dropped(event, name))
                if to:
                    left.append(event if to == event.to else replace(event, to=to))
            if left != self._content.events:
                self._save(_Content(self._content.opened, self._content.ended, left))

    def _has_room(self, content: _Content) -> bool:
        full = len(content.events) >= MOST_WAITING
        if full and not self._full:
            self._report(f"{MOST_WAITING} alerts wait to be sent: later ones are told when there is room")
        self._full = full
        return not full

    def _load(self) -> _Content:
        try:
            found = read_checked_json(self._path)
            return _Content(
                {(one["rule"], one["device"]): _opened(one) for one in found["opened"]},
                [_opened(one) for one in found["ended"]],
                [Event(**one | {"alert": _opened(one["alert"]), "to": tuple(one["to"])}) for one in found["events"]],
            )
        except FileNotFoundError:
            return _Content()
        except (FileDamaged, KeyError, TypeError) as error:
            damage = error if isinstance(error, FileDamaged) else f"{self._path} is of another release"
            self._report(f"{damage}: open alerts are told again, those that ended unsent are lost")
            return _Content()

    def _save(self, content: _Content) -> None:
        if self._closed:
            raise ValueError("the journal of alerts is closed")
        found: dict[str, Any] = {
            "opened": [asdict(one) for one in content.opened.values()],
            "ended": [asdict(one) for one in content.ended],
            "events": [asdict(event) for event in content.events],
        }
        replace_checked(self._path, json.dumps(found).encode())
        self._content = content


def _add(content: _Content, alert: Opened, state: str, rules: RuleSet, now_us: int) -> None:
    if alert.told:
        group, site = rules.of(alert.device)
        content.events.append(Event(alert, state, group, site, now_us, alert.told))


def _opened(found: dict[str, Any]) -> Opened:
    fields: dict[str, Any] = {**found, "told": tuple(found["told"])}
    return Opened(**fields)

"""The journal of alerts: a file with the open alerts and the unsent events, always replaced as a whole.

Gold passes the current findings of the rules to :meth:`Journal.take`. When an alert begins or ends, the alert and its
event are written together. If the process is killed before this write, the next update finds the same again; if it is
killed afterwards, the stored event is sent after the next start. An event is removed only when every destination has
accepted it. So each event is sent at least once, and twice only if a destination accepted it but this file could not
be updated; receivers recognize this by the id, which is chosen when the alert begins.

An alert belongs to one rule and one device. It ends when the rule judges the device and finds nothing. If the rule
cannot judge the device, because readings are missing, the alert stays open.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from umqtt_cli.escape import remark

from ..durable import read_checked, replace_checked
from ..errors import FileDamaged
from ..location import Location
from .rules import RuleSet

FILE = ".alerts.json"
"""The journal's file in the folder of the tables."""
MOST_WAITING = 100_000
"""The largest number of unsent events; an alert that begins while it is reached is sent when there is room again."""
_KEPT_US = 30 * 86_400 * 1_000_000
# Beyond this number of ended alerts, the device with most of them loses its oldest.
_MOST_ENDED = 10_000


class Finding(NamedTuple):
    """What a rule finds for a device: its start in Unix microseconds, a figure, and a text."""

    since: int | None
    value: float | None
    text: str


class Verdict(NamedTuple):
    """The current findings of a rule, by device. `judged` are the devices that it could judge; None for all."""

    rule: str
    firing: Mapping[str, Finding]
    judged: frozenset[str] | None = None


@dataclass(frozen=True)
class Opened:
    """An alert, open or ended. `told`: the destinations of its firing event. Times are in Unix microseconds."""

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
    """An event to be sent.

    :ivar state: firing or resolved.
    :ivar at: when the event was noticed, in Unix microseconds.
    :ivar to: the destinations that have not accepted it yet.
    """

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


class _Saved(msgspec.Struct):
    """The file, as JSON."""

    opened: list[Opened]
    ended: list[Opened]
    events: list[Event]


class Journal:
    """The journal of alerts in the folder `tables`. One process writes it; several of its threads may call.

    :param report: called with one line of text for people.
    """

    def __init__(self, tables: Location, *, report: Callable[[str], None] = remark) -> None:
        self._path = tables / FILE
        self._report = report
        self._lock = threading.Lock()
        self._full = self._closed = False
        self._content = self._load()

    @property
    def waiting(self) -> int:
        """The number of unsent events."""
        return len(self._content.events)

    def events(self) -> Sequence[Event]:
        """Return the unsent events, oldest first."""
        return tuple(self._content.events)

    def alerts(self, rules: Iterable[str]) -> list[Opened]:
        """Return the alerts of these rules that are open or ended in the last 30 days."""
        wanted, content = set(rules), self._content
        return [one for one in (*content.opened.values(), *content.ended) if one.rule in wanted]

    def take(
        self,
        verdicts: Iterable[Verdict],
        rules: RuleSet,
        now_us: int,
        recipients: Callable[[Opened], tuple[str, ...]] = lambda _alert: (),
    ) -> None:
        """Record the alerts that begin and end, with their events.

        :param now_us: the time, in Unix microseconds.
        :param recipients: returns the destinations of an alert. While it returns none, as during a silence, it is
            called again at each update.
        :raises OSError: the file cannot be written; nothing is recorded.
        """
        with self._lock:
            before = self._content
            after = _Content(dict(before.opened), list(before.ended), list(before.events))
            kinds = {rule.name: rule.kind for rule in rules.rules}
            # All alerts of rules that the file no longer has end.
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
            after.ended = _newest([one for one in after.ended if (one.until or 0) > now_us - _KEPT_US])
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
            # The destinations that got the beginning also get the end, even during a silence.
            _add(content, over, "resolved", rules, now_us)

    def delivered(self, events: Iterable[Event], destination: str) -> None:
        """Record that `destination` has accepted these events.

        :raises OSError: the file cannot be written; nothing is recorded.
        """
        taken = {(event.alert.id, event.state) for event in events}
        self._drop(lambda event, name: name == destination and (event.alert.id, event.state) in taken)

    def keep_only(self, destinations: Iterable[str]) -> None:
        """Drop the unsent events of all other destinations, and report their number."""
        known, before = set(destinations), self.waiting
        self._drop(lambda _event, name: name not in known)
        if before != self.waiting:
            count = before - self.waiting
            self._report(f"{count} alerts were for destinations that alerts.toml no longer has: not sent")

    def forget(self, device_id: str) -> None:
        """Remove a device's alerts and events."""
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
        """Make every later write raise ValueError, in case a thread could not be stopped."""
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
            self._report(f"{MOST_WAITING} alerts wait to be sent: later ones are sent when there is room")
        self._full = full
        return not full

    def _load(self) -> _Content:
        try:
            saved = msgspec.json.decode(read_checked(self._path), type=_Saved)
        except FileNotFoundError:
            return _Content()
        except (FileDamaged, msgspec.DecodeError) as error:
            damage = error if isinstance(error, FileDamaged) else f"{self._path} is of another release"
            self._report(f"{damage}: open alerts are sent again, unsent ends are lost")
            return _Content()
        return _Content({(one.rule, one.device): one for one in saved.opened}, saved.ended, saved.events)

    def _save(self, content: _Content) -> None:
        if self._closed:
            raise ValueError("the journal of alerts is closed")
        saved = _Saved(list(content.opened.values()), content.ended, content.events)
        replace_checked(self._path, msgspec.json.encode(saved))
        self._content = content


def _add(content: _Content, alert: Opened, state: str, rules: RuleSet, now_us: int) -> None:
    if alert.told:
        group, site = rules.of(alert.device)
        content.events.append(Event(alert, state, group, site, now_us, alert.told))


def _newest(ended: list[Opened]) -> list[Opened]:
    """Return at most _MOST_ENDED alerts: of each device its newest, as many of each as possible."""
    if len(ended) <= _MOST_ENDED:
        return ended
    newer: Counter[str] = Counter()
    ranked = []
    for at, one in reversed([*enumerate(ended)]):
        ranked.append((newer[one.device], -at))
        newer[one.device] += 1
    return [ended[at] for at in sorted(-at for _, at in sorted(ranked)[:_MOST_ENDED])]

"""The subscriptions of a collector's session: which topic filters to ask for, and the file that records them.

The broker keeps the session with its subscriptions, so a collector subscribes only if its filters have changed or the
session is new. A new session where the broker should have had one raises an alarm: its queued messages are lost.

Each CONNECT may create a session, which the next CONNECT finds present although it has no subscriptions. After a kill,
or a link lost before CONNACK, the collector cannot know whether this has happened. Therefore the record
(``subscription.json``) is renamed to ``subscription.aside`` before each CONNECT. It is renamed back only when the
broker had the session and its subscriptions are the wanted ones. If the record is still called ``subscription.aside``
at the next CONNECT, the collector subscribes again.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ..durable import read_checked_json, replace_checked, sync_directory
from ..errors import FileDamaged, SpoolWriteFailed

Report = Callable[[str, str], None]


def distinct_filters(topic_filters: Iterable[str]) -> list[str]:
    """Return the topic filters without those whose topics another one selects too, sorted.

    Some brokers (mosquitto up to 2.0) send a message once for each subscription that matches it.
    """
    found = sorted(set(topic_filters))
    return [one for one in found if not any(other != one and covers(other, one) for other in found)]


def overlapping_filters(topic_filters: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of topic filters that select some topics both."""
    return [(a, b) for a, b in itertools.combinations(topic_filters, 2) if overlaps(a, b)]


def covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` selects every topic that `narrow` selects, for the same shared subscription if any."""
    (wide_group, *wide_levels), (narrow_group, *narrow_levels) = _split(wide), _split(narrow)
    if wide_group != narrow_group or _hides(wide_levels[0], narrow_levels[0]):
        return False
    for at, level in enumerate(wide_levels):
        if level == "#":
            return True
        if at == len(narrow_levels) or narrow_levels[at] == "#":
            return False
        if level not in ("+", narrow_levels[at]):
            return False
    return len(wide_levels) == len(narrow_levels)


def overlaps(one: str, other: str) -> bool:
    """Return whether there are topics that both filters select."""
    first, second = _split(one)[1:], _split(other)[1:]
    if _hides(first[0], second[0]) or _hides(second[0], first[0]):
        return False
    for a, b in zip(first, second, strict=False):
        if "#" in (a, b):
            return True
        if a != b and "+" not in (a, b):
            return False
    longer = max(first, second, key=len)[min(len(first), len(second)) :]
    return longer in ([], ["#"])


def _split(topic_filter: str) -> list[str]:
    """Return the name of the shared subscription, "" if it is none, and the levels of the filter."""
    levels = topic_filter.split("/")
    return levels[1:] if levels[0] == "$share" else ["", *levels]


def _hides(wildcard: str, level: str) -> bool:
    """Return whether `level` begins a topic that a first level `wildcard` does not select [MQTT-4.7.2-1]."""
    return wildcard in ("+", "#") and level.startswith("$")


class SubscriptionRecord:
    """The record of what the broker granted.

    :param folder: the spool.
    :param broker: the broker's URL, or the URLs of its nodes, separated by commas.
    :param client_id: the session, for messages.
    :param report: called with the kind of event and one line of text for people.
    """

    def __init__(self, folder: Path, broker: str, client_id: str, report: Report) -> None:
        self._path = folder / "subscription.json"
        self._aside = folder / "subscription.aside"
        self._broker = broker
        self._client_id = client_id
        self._report = report
        self._recorded_broker = ""
        self._topics: frozenset[str] = frozenset()
        self._is_sure = False

    def put_aside(self) -> None:
        """Read the record, and rename it before a CONNECT.

        :raises SpoolWriteFailed: it cannot be renamed.
        """
        self._recall()
        # A rename works even on a full disk.
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path, self._aside)
            sync_directory(self._path.parent)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot rename {self._path}: {error.strerror or error}") from error

    def put_back(self) -> None:
        """Rename the record back, if it was certain: the CONNECT has changed nothing."""
        # If this fails, the next link subscribes again, which is harmless.
        if self._is_sure:
            with contextlib.suppress(OSError):
                os.rename(self._aside, self._path)

    def surplus(self, wanted: Sequence[str], *, session_present: bool) -> list[str] | None:
        """Compare the record with the `wanted` topic filters after CONNACK; report a session that is lost.

        Returns None if the session certainly has the wanted subscriptions, else the filters to unsubscribe from before
        all wanted ones are subscribed to.
        """
        if self._recorded_broker and not session_present:
            self._tell_loss()
        granted = self._topics if session_present else frozenset()
        if self._is_sure and granted == set(wanted):
            self.put_back()
            return None
        return sorted(granted - set(wanted))

    def remember(self, topic_filters: Sequence[str]) -> None:
        """Record that the broker has granted `topic_filters`.

        :raises SpoolWriteFailed: the record cannot be written.
        """
        content = {"broker": self._broker, "topics": list(topic_filters)}
        try:
            replace_checked(self._path, json.dumps(content).encode())
            self._aside.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot write {self._path}: {error.strerror or error}") from error

    def _tell_loss(self) -> None:
        broker, recorded, client_id = self._broker, self._recorded_broker, self._client_id
        # A cluster's nodes change over time: it counts as another broker only if no node is the same.
        if _nodes(recorded).isdisjoint(_nodes(broker)):
            self._report(
                "broker_changed",
                f"the session {client_id} was at {recorded} and is now at {broker}: what the old broker still "
                "holds for it stays there; collect it under its old address before you turn that broker off",
            )
        else:
            self._report(
                "session_lost",
                f"{broker} had forgotten the session {client_id}: messages that it held for this collector are "
                "lost there; check the broker's persistence and session expiry"
                + (", and that these are nodes of one cluster" if len(_nodes(broker)) > 1 else ""),
            )

    def _recall(self) -> None:
        self._recorded_broker, self._topics, self._is_sure = "", frozenset(), False
        for path in (self._path, self._aside):
            try:
                content = read_checked_json(path)
                self._recorded_broker, self._topics = content["broker"], frozenset(content["topics"])
            except FileNotFoundError:
                continue
            except (FileDamaged, TypeError, KeyError):
                # Subscribing again is harmless, but a lost session cannot be detected now, so this is reported.
                self._report("memory_damaged", f"{path} cannot be read: subscribing again")
                return
            self._is_sure = path == self._path and self._recorded_broker == self._broker
            return


def _nodes(broker: str) -> set[str]:
    return {url.strip() for url in broker.split(",")}

"""A collector's session at its broker: CONNECT, the subscriptions, and what is remembered of them.

The broker keeps the session, subscriptions and all, so a collector subscribes only where its filters changed or the
session is new. That a session is new when the broker should have had one is an alarm: what it held is gone.

A CONNECT makes a session that the next CONNECT finds present, with its subscriptions or without: a link that is lost
before CONNACK, or a kill, leaves that open. So what is remembered is put aside before each CONNECT, and back only when
the broker had the session and it has all that is wanted; what is found aside is no reason not to subscribe.
"""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..durable import replace_file, sync_directory
from ..errors import BrokerRefused, MalformedStream, SpoolWriteFailed
from .config import CollectorConfig
from .counters import Counters
from .wire import (
    CONNACK,
    CONNACK_REFUSALS,
    SUBACK,
    SUBACK_FAILURE,
    UNSUBACK,
    connect_packet,
    subscribe_packet,
    unsubscribe_packet,
)
from .wire5 import FOR_EVER, UNSUPPORTED_VERSION, describe, end_of_properties, parse_answer

_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2


class VersionRefused(Exception):
    """The broker does not speak MQTT 5; the session is as it was."""


class Channel(Protocol):
    """What a session needs of a connection. level: of the protocol."""

    level: int

    def set_keep_alive(self, seconds: int) -> None: ...

    def send(self, data: bytes) -> None: ...

    def await_packet(self, first: int) -> bytes | None:
        """The next packet whose first byte is `first`; None when asked to stop meanwhile."""
        ...


@dataclass(frozen=True)
class _Memory:
    """What the broker is known to have granted: `broker` is its URL."""

    broker: str
    topics: frozenset[str]


def _nodes(broker: str) -> set[str]:
    return {url.strip() for url in broker.split(",")}


class Session:
    """The session of one collector.

    :param report: takes a kind of event and one line for a person.
    """

    def __init__(self, config: CollectorConfig, counters: Counters, report: Callable[[str, str], None]) -> None:
        self._config = config
        self._counters = counters
        self._report = report
        self._path = config.folder / "subscription.json"
        self._aside = config.folder / "subscription.aside"

    def open(self, channel: Channel) -> bool:
        """Connect and make the session's subscriptions equal the wanted ones; False when asked to stop meanwhile.

        :raises VersionRefused: it has to be tried with MQTT 3.1.1.
        :raises BrokerRefused: CONNACK or SUBACK said no.
        :raises MalformedStream: an answer is not one.
        :raises UsageError: the password cannot be read.
        :raises SpoolWriteFailed: what was granted cannot be kept.
        :raises OSError: the link broke.
        """
        config = self._config
        memory, sure = self._recall()
        self._put_aside()
        channel.send(
            connect_packet(
                config.client_id,
                keep_alive=config.keep_alive,
                username=config.username,
                password=config.access.password(),
                level=channel.level,
            )
        )
        connack = channel.await_packet(CONNACK)
        if connack is None:
            return False
        session_present = self._take_connack(channel, connack, sure)
        self._counters.connected = True
        granted = self._granted(memory, session_present)
        wanted = set(config.topic_filters)
        if granted == wanted and sure:
            # Should this fail, the next connection subscribes without need.
            self._put_back()
            return True
        if surplus := sorted(granted - wanted):
            channel.send(unsubscribe_packet(_UNSUBSCRIBE_ID, surplus, channel.level))
            if channel.await_packet(UNSUBACK) is None:
                return False
        filters = sorted(wanted)
        channel.send(subscribe_packet(_SUBSCRIBE_ID, filters, channel.level))
        suback = channel.await_packet(SUBACK)
        if suback is None:
            return False
        self._check(suback, filters, channel.level)
        self._remember(filters)
        return True

    def _take_connack(self, channel: Channel, connack: bytes, sure: bool) -> bool:
        """Whether the broker had the session; raises what open() does."""
        config = self._config
        at = len(connack) - _body_length(connack)
        session_present, code = bool(connack[at] & 1), connack[at + 1]
        if channel.level == 5:
            # An answer without properties is one of MQTT 3.1.1.
            if len(connack) == at + 2 or code == UNSUPPORTED_VERSION:
                if sure and code:
                    # Such a CONNECT makes no session.
                    self._put_back()
                raise VersionRefused
            answer = parse_answer(connack, at + 2)
            if code:
                raise BrokerRefused(f"{config.broker} refused the connection: {describe(code, answer)}", code)
            if answer.keep_alive is not None:
                channel.set_keep_alive(answer.keep_alive)
            if answer.session_expiry not in (None, FOR_EVER):
                self._report(
                    "session_expires",
                    f"{config.broker} keeps the session {config.client_id} for {answer.session_expiry} s when the "
                    "collector is away: longer outages lose messages",
                )
        elif code:
            reason = CONNACK_REFUSALS.get(code, "unknown reason")
            raise BrokerRefused(f"{config.broker} refused the connection: {reason} ({code})", code)
        return session_present

    def _granted(self, memory: _Memory | None, session_present: bool) -> set[str]:
        """The topic filters that the session had last; raises the alarm when a session is missing."""
        if memory is None:
            return set()
        broker, client_id = self._config.broker, self._config.client_id
        # Nodes come and go: a cluster is another one when it has none of the nodes that it had.
        if not session_present and _nodes(memory.broker).isdisjoint(_nodes(broker)):
            self._report(
                "broker_changed",
                f"the session {client_id} was at {memory.broker} and is now at {broker}: what the old broker still "
                "holds for it stays there; collect it under its old address before you turn that broker off",
            )
        elif not session_present:
            self._counters.sessions_lost += 1
            self._report(
                "session_lost",
                f"{broker} had forgotten the session {client_id}: messages that it held for this collector are "
                "lost there; check the broker's persistence and session expiry",
            )
        return set(memory.topics) if session_present else set()

    def _check(self, suback: bytes, filters: list[str], level: int) -> None:
        config = self._config
        codes_at = len(suback) - _body_length(suback) + 2
        if level == 5:
            codes_at = end_of_properties(suback, codes_at, len(suback))
        return_codes = suback[codes_at:]
        if len(return_codes) != len(filters):
            raise MalformedStream(f"the broker answered {len(filters)} topic filters with {len(suback)} bytes")
        for topic_filter, return_code in zip(filters, return_codes, strict=True):
            if return_code >= SUBACK_FAILURE:
                raise BrokerRefused(
                    f"{config.broker} refused the subscription to {topic_filter}: allow it to {config.client_id}",
                    return_code,
                )
            if return_code == 0:
                raise BrokerRefused(
                    f"{config.broker} granted only QoS 0 for {topic_filter}, which may lose messages", return_code
                )

    def _recall(self) -> tuple[_Memory | None, bool]:
        """What is remembered, and whether a session that is present must have it."""
        for path in (self._path, self._aside):
            try:
                content = json.loads(path.read_bytes())
                memory = _Memory(content["broker"], frozenset(content["topics"]))
                return memory, path == self._path and memory.broker == self._config.broker
            except FileNotFoundError:
                continue
            except (ValueError, TypeError, KeyError):
                # Subscribing again is harmless; not knowing whether a session was lost is worth a line.
                self._report("memory_damaged", f"{path} cannot be read: subscribing again")
                break
        return None, False

    def _put_back(self) -> None:
        with contextlib.suppress(OSError):
            os.rename(self._aside, self._path)

    def _put_aside(self) -> None:
        # A rename needs no room on a full disk.
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path, self._aside)
            sync_directory(self._path.parent)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot rename {self._path}: {error.strerror or error}") from error

    def _remember(self, filters: list[str]) -> None:
        content = {"broker": self._config.broker, "topics": filters}
        try:
            replace_file(self._path, json.dumps(content).encode())
            self._aside.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot write {self._path}: {error.strerror or error}") from error


def _body_length(packet: bytes) -> int:
    """The remaining length of a whole packet."""
    at = 1
    while packet[at] & 128:
        at += 1
    return len(packet) - at - 1

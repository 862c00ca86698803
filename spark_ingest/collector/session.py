"""A collector's session at its broker: CONNECT, the subscriptions, and the file that records them.

The broker keeps the session with its subscriptions, so a collector subscribes only if its filters have changed or the
session is new. A new session where the broker should have had one raises an alarm: its queued messages are lost.

Each CONNECT may create a session, which the next CONNECT finds present although it has no subscriptions. After a kill,
or a link lost before CONNACK, the collector cannot know whether this has happened. Therefore the record
(``subscription.json``) is renamed to ``subscription.aside`` before each CONNECT. It is renamed back only when the
broker had the session and its subscriptions are the wanted ones. If the record is still called ``subscription.aside``
at the next CONNECT, the collector subscribes again.
"""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..durable import read_checked_json, replace_checked, sync_directory
from ..errors import BrokerRefused, FileDamaged, MalformedStream, SpoolWriteFailed
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
    """The broker does not support MQTT 5; the session is unchanged."""


class Channel(Protocol):
    """The methods that a session needs of a connection. `level` is the protocol level: 4 for MQTT 3.1.1, or 5."""

    level: int

    def set_keep_alive(self, seconds: int) -> None: ...

    def send(self, data: bytes) -> None: ...

    def await_packet(self, first: int) -> bytes | None:
        """Wait for the next packet whose first byte is `first`; None if asked to stop meanwhile."""
        ...


@dataclass(frozen=True)
class _Memory:
    """The recorded subscriptions: the URL of the broker and the topic filters it granted."""

    broker: str
    topics: frozenset[str]


def _nodes(broker: str) -> set[str]:
    return {url.strip() for url in broker.split(",")}


class Session:
    """The session of one collector.

    :param report: called with the kind of event and one line of text for people.
    """

    def __init__(self, config: CollectorConfig, counters: Counters, report: Callable[[str, str], None]) -> None:
        self._config = config
        self._counters = counters
        self._report = report
        self._path = config.folder / "subscription.json"
        self._aside = config.folder / "subscription.aside"

    def open(self, channel: Channel) -> bool:
        """Connect and make the session's subscriptions the wanted ones; return False if asked to stop meanwhile.

        :raises VersionRefused: the broker does not support MQTT 5; try MQTT 3.1.1.
        :raises BrokerRefused: CONNACK or SUBACK refused the connection or a subscription.
        :raises MalformedStream: an answer is malformed.
        :raises UsageError: the password cannot be read.
        :raises SpoolWriteFailed: the record of the subscriptions cannot be written.
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
            # If this fails, the next connection subscribes again, which is harmless.
            self._put_back()
            return True
        if surplus := sorted(granted - wanted):
            channel.send(unsubscribe_packet(_UNSUBSCRIBE_ID, surplus, channel.level))
            if channel.await_packet(UNSUBACK) is None:
                return False
        filters = sorted(wanted)
        channel.send(subscribe_packet(_SUBSCRIBE_ID, filters, channel.level))
        try:
            suback = channel.await_packet(SUBACK)
        except ConnectionResetError as error:
            # Closing the connection is all that a broker of MQTT 3.1.1 can do if it has no return code for a refused
            # subscription.
            raise ConnectionResetError(f"{error} at SUBSCRIBE: may this user read {', '.join(filters)}?") from error
        if suback is None:
            return False
        self._check(suback, filters, channel.level)
        self._remember(filters)
        return True

    def _take_connack(self, channel: Channel, connack: bytes, sure: bool) -> bool:
        """Check CONNACK and return whether the broker had the session.

        :raises VersionRefused, BrokerRefused, MalformedStream: as :meth:`open`.
        """
        config = self._config
        at = len(connack) - _body_length(connack)
        session_present, code = bool(connack[at] & 1), connack[at + 1]
        if channel.level == 5:
            # A CONNACK without properties comes from a broker of MQTT 3.1.1.
            if len(connack) == at + 2 or code == UNSUPPORTED_VERSION:
                if sure and code:
                    # A refused CONNECT creates no session.
                    self._put_back()
                raise VersionRefused
            answer = parse_answer(connack, at + 2)
            if code:
                raise self._refused(describe(code, answer), code)
            if answer.keep_alive is not None:
                channel.set_keep_alive(answer.keep_alive)
            if answer.session_expiry not in (None, FOR_EVER):
                self._report(
                    "session_expires",
                    f"{config.broker} keeps the session {config.client_id} for {answer.session_expiry} s when the "
                    "collector is away: longer outages lose messages",
                )
        elif code:
            raise self._refused(f"{CONNACK_REFUSALS.get(code, 'unknown reason')} ({code})", code)
        return session_present

    def _refused(self, reason: str, code: int) -> BrokerRefused:
        virtual_host, colon, _ = (self._config.username or "").rpartition(":")
        hint = f"; for RabbitMQ, {virtual_host!r} must be a virtual host in which the user has permissions"
        return BrokerRefused(f"{self._config.broker} refused the connection: {reason}{hint if colon else ''}", code)

    def _granted(self, memory: _Memory | None, session_present: bool) -> set[str]:
        """Return the session's topic filters as recorded; report an alarm if the broker has lost the session."""
        if memory is None:
            return set()
        broker, client_id = self._config.broker, self._config.client_id
        # A cluster's nodes change over time: it counts as another broker only if no node is the same.
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
                "lost there; check the broker's persistence and session expiry"
                + (", and that these are nodes of one cluster" if len(_nodes(broker)) > 1 else ""),
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
        """Return the recorded subscriptions, and whether a present session is certain to have them."""
        for path in (self._path, self._aside):
            try:
                content = read_checked_json(path)
                memory = _Memory(content["broker"], frozenset(content["topics"]))
                return memory, path == self._path and memory.broker == self._config.broker
            except FileNotFoundError:
                continue
            except (FileDamaged, TypeError, KeyError):
                # Subscribing again is harmless, but a lost session cannot be detected now, so this is reported.
                self._report("memory_damaged", f"{path} cannot be read: subscribing again")
                break
        return None, False

    def _put_back(self) -> None:
        with contextlib.suppress(OSError):
            os.rename(self._aside, self._path)

    def _put_aside(self) -> None:
        # A rename works even on a full disk.
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path, self._aside)
            sync_directory(self._path.parent)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot rename {self._path}: {error.strerror or error}") from error

    def _remember(self, filters: list[str]) -> None:
        content = {"broker": self._config.broker, "topics": filters}
        try:
            replace_checked(self._path, json.dumps(content).encode())
            self._aside.unlink(missing_ok=True)
        except OSError as error:
            raise SpoolWriteFailed(f"cannot write {self._path}: {error.strerror or error}") from error


def _body_length(packet: bytes) -> int:
    """Return the remaining length of a complete packet."""
    at = 1
    while packet[at] & 128:
        at += 1
    return len(packet) - at - 1

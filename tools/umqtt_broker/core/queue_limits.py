"""Checks queued messages against the limits: which queues are full, and which publishers wait for room.

Only a broker with a limit has a QueueLimits: without limits a message needs no check.
"""

import logging
import time
from typing import Final, Protocol

from ..settings.broker import BrokerConfig
from ..stats import Stats

_log = logging.getLogger(__name__)

# Seconds between two warnings about full queues.
_WARN_EVERY: Final = 60.0


class Queue(Protocol):
    """The queue of a session or of a shared subscription. client_id: its name. dropped: messages dropped for it."""

    client_id: bytes
    dropped: int

    @property
    def waiting(self) -> tuple[int, int]:
        """The number of messages that wait for their client, and their payload bytes."""
        ...

    def drop_expired(self) -> None:
        """Drop expired messages at the front."""


class Publisher(Protocol):
    """A connection that can be held back."""

    def room_again(self, full: object) -> None:
        """Continue: `full` has room or is gone. full: a queue, or None for the total of all queues."""


class QueueLimits:
    """How much may wait in one queue and in all queues, and what happens at the limit.

    messages, bytes: the messages that wait in all queues, and their payload bytes.
    hits: the queues that the messages of the current client were found to fill; None for the total of all queues. The
        message that fills a queue is still added to it; its publisher is held back from the next message on.
    """

    def __init__(self, config: BrokerConfig, stats: Stats) -> None:
        # A reference, not a copy: the settings may change while the broker runs.
        self._config = config
        self._stats = stats
        self._waiting: dict[Queue | None, dict[Publisher, None]] = {}
        # No warning before this time, by time.monotonic().
        self._quiet_until = 0.0
        self.messages = 0
        self.bytes = 0
        self.hits: dict[Queue | None, None] = {}

    @classmethod
    def of(cls, config: BrokerConfig, stats: Stats) -> "QueueLimits | None":
        """Return the limits of a broker; None if no limit is set."""
        if (
            config.max_queued_messages
            or config.max_queued_bytes
            or config.max_queued_messages_total
            or config.max_queued_bytes_total
        ):
            return cls(config, stats)
        return None

    def is_full(self, session: Queue | None) -> bool:
        """Return True if a queue, or with None the total of all queues, has reached its limit."""
        config = self._config
        if session is None:
            messages, size = self.messages, self.bytes
            most, most_bytes = config.max_queued_messages_total, config.max_queued_bytes_total
        else:
            messages, size = session.waiting
            most, most_bytes = config.max_queued_messages, config.max_queued_bytes
        return bool((most and messages >= most) or (most_bytes and size >= most_bytes))

    def admit(self, session: Queue) -> bool:
        """Return True if one more message may wait in `session`. If not, the message is counted as dropped.

        With at_queue_limit "slow" the result is always True.
        """
        if self._config.at_queue_limit == "slow":
            return True
        if self.is_full(session) or self.is_full(None):
            # Expired messages make room for new ones.
            session.drop_expired()
            if self.is_full(session) or self.is_full(None):
                self._stats.dropped_queue_full += 1
                session.dropped += 1
                return False
        return True

    def added(self, session: Queue, messages: int, size: int) -> None:
        """Count messages that wait in `session` from now on, with `size` payload bytes together.

        `session.waiting` must include them already.
        """
        self.messages += messages
        self.bytes += size

    def published(self, session: Queue, size: int) -> None:
        """Count one message of `size` payload bytes that is being published; add the queues that it fills to `hits`."""
        self.added(session, 1, size)
        if self._config.at_queue_limit == "slow":
            if self.is_full(session):
                self.hits[session] = None
            if self.is_full(None):
                self.hits[None] = None

    def removed(self, session: Queue, messages: int, size: int) -> None:
        """Count messages that no longer wait, the opposite of added()."""
        self.messages -= messages
        self.bytes -= size
        if self._waiting:
            for full in (session, None):
                if full in self._waiting and not self.is_full(full):
                    self._release(full)

    def forget(self, session: Queue) -> None:
        """Forget a queue that is gone, and let the publishers that wait for it continue."""
        self.removed(session, *session.waiting)
        self.hits.pop(session, None)
        if session in self._waiting:
            self._release(session)

    def wait_for_room(self, publisher: Publisher) -> set[Queue | None]:
        """Note that `publisher` waits for each queue in `hits` that is still full. Returns these; clears `hits`."""
        full = {session for session in self.hits if self.is_full(session)}
        self.hits.clear()
        for session in full:
            self._waiting.setdefault(session, {})[publisher] = None
            self._warn(session)
        return full

    def _warn(self, session: Queue | None) -> None:
        """Log a full queue, at most once a minute: its client may never come back, and publishers wait for it."""
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + _WARN_EVERY
        if session is None:
            _log.warning(
                "all queues together are full (%d messages, %d bytes): publishers wait until clients have taken some —"
                " or raise max_queued_messages_total or max_queued_bytes_total",
                self.messages,
                self.bytes,
            )
            return
        _log.warning(
            "the queue of %s is full (%d messages, %d bytes): those who publish to it wait until its client has taken"
            " some — connect it, discard its session if nobody needs it, or raise max_queued_messages or"
            " max_queued_bytes; %d queues are full",
            session.client_id.decode("utf-8", "replace"),
            *session.waiting,
            len(self._waiting),
        )

    def settings_changed(self) -> None:
        """Let publishers continue that were held back for a limit that is now higher or gone."""
        for full in list(self._waiting):
            if self._config.at_queue_limit == "drop" or not self.is_full(full):
                self._release(full)

    def waited_for(self) -> list[Queue]:
        """Return the queues that publishers wait for."""
        return [session for session in self._waiting if session is not None]

    def wait_no_more(self, publisher: Publisher) -> None:
        """Stop holding a publisher back, whatever it waited for."""
        for session, waiting in list(self._waiting.items()):
            waiting.pop(publisher, None)
            if not waiting:
                del self._waiting[session]

    def _release(self, full: Queue | None) -> None:
        for publisher in self._waiting.pop(full):
            publisher.room_again(full)


class ReceiveRate:
    """A token bucket: `rate` messages a second; at most the messages of one second can be saved up.

    now: a monotonic time in seconds.
    """

    __slots__ = ("_credit", "_rate", "_since")

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._credit = float(rate)
        self._since = now

    def available(self, now: float) -> int:
        """Return how many messages may be taken at `now` (seconds)."""
        self._credit = min(self._rate, self._credit + (now - self._since) * self._rate)
        self._since = now
        # Compensates rounding errors, which could take away a whole message.
        return int(self._credit + 1e-6)

    def covers(self, messages: int, now: float) -> bool:
        """Return True if so many messages may be taken at `now`, which may be earlier than that of the last call."""
        credit = self._credit
        if now > self._since:
            credit += (now - self._since) * self._rate
            self._since = now
            self._credit = credit = credit if credit < self._rate else self._rate
        return credit >= messages

    def spend(self, messages: int) -> None:
        """Take so many messages from the bucket."""
        self._credit -= messages

    def wait(self) -> float:
        """Return the seconds until the next message may be taken."""
        return max(0.0, (1 - self._credit) / self._rate)

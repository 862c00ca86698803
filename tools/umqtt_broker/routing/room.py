"""How much memory subscriptions, retained messages and sessions may take: of all clients, and of each.

What is there is never taken away for it: at a bound, one more is refused. So a client that fills all of it keeps no
other from the little that most clients need. Sizes are in bytes, and estimates.
"""

import logging
import time
from typing import Final

from ..protocol.messages import RetainedMessage
from ..sessions.session import Session
from ..stats import Stats
from .retained import RetainedMessages

_log = logging.getLogger(__name__)

MAX_SUBSCRIPTIONS_SIZE: Final = 1 << 30
MAX_SUBSCRIPTIONS_SIZE_OF_CLIENT: Final = 1 << 26
MAX_RETAINED_SIZE: Final = 1 << 30
# Of the retained messages that a session has added since the broker's start.
MAX_RETAINED_SIZE_OF_CLIENT: Final = 1 << 29
# What a client may have of each in any case.
SHARE: Final = 1 << 16
# Sessions that outlive their connections: of all clients, of one user, or address without one, and what it may have in
# any case.
MAX_SESSIONS: Final = 1 << 20
MAX_SESSIONS_OF_OWNER: Final = 1 << 19
SESSIONS_SHARE: Final = 1 << 10

_SUBSCRIPTION_SIZE: Final = 300
_LEVEL_SIZE: Final = 50
# Seconds between two warnings.
_WARN_EVERY: Final = 60.0


def size_of(topic_filter: bytes) -> int:
    """Return about how many bytes a subscription takes."""
    return _SUBSCRIPTION_SIZE + 2 * len(topic_filter) + _LEVEL_SIZE * topic_filter.count(b"/")


class Room:
    """Admits subscriptions, retained messages and sessions. subscriptions_size: of all subscriptions together.

    sessions: the number of sessions that outlive their connections, of all owners together.
    """

    def __init__(self, retained: RetainedMessages, stats: Stats) -> None:
        self.subscriptions_size = 0
        self.sessions = 0
        self._sessions_of: dict[bytes, int] = {}
        self._retained = retained
        self._stats = stats
        self._quiet_until = 0.0

    def may_keep_session(self, owner: bytes) -> bool:
        """Return True if an owner, a user name or an address, may have one more session."""
        is_room = self.sessions < MAX_SESSIONS
        return self._sessions_of.get(owner, 0) < (MAX_SESSIONS_OF_OWNER if is_room else SESSIONS_SHARE)

    def count_session(self, owner: bytes, change: int) -> None:
        """Count a session that is made (change 1) or discarded (-1)."""
        self.sessions += change
        count = self._sessions_of.pop(owner, 0) + change
        if count:
            self._sessions_of[owner] = count

    def may_subscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Return True if a session may have this subscription, perhaps in place of one to the same filter."""
        if topic_filter in session.subscriptions:
            return True
        more = size_of(topic_filter)
        size = session.subscriptions_size + more
        is_room = self.subscriptions_size + more <= MAX_SUBSCRIPTIONS_SIZE
        return size <= (MAX_SUBSCRIPTIONS_SIZE_OF_CLIENT if is_room else SHARE)

    def retain(self, publisher: Session | None, message: RetainedMessage) -> bool:
        """Keep a retained message if there is room for it. If not, the topic has none any more, also not an older one.

        publisher: the session of the client that has sent it, None if none has. Returns False if it is not kept.
        """
        before = self._retained.size
        self._retained.put(message)
        added = self._retained.size - before
        size = added if publisher is None else publisher.retained_size + added
        most = MAX_RETAINED_SIZE_OF_CLIENT
        if self._retained.size > MAX_RETAINED_SIZE:
            most = 0 if publisher is None else SHARE
        if added <= 0 or size <= most:
            if publisher is not None:
                publisher.retained_size = max(0, size)
            return True
        self.forget_retained(publisher, message.topic_name)
        self._stats.retained_refused += 1
        self._warn(publisher, message.topic_name)
        return False

    def forget_retained(self, publisher: Session | None, topic_name: bytes) -> None:
        """Forget the retained message of a topic, if it has one. publisher: as in retain()."""
        before = self._retained.size
        self._retained.remove(topic_name)
        if publisher is not None:
            publisher.retained_size = max(0, publisher.retained_size - before + self._retained.size)

    def _warn(self, publisher: Session | None, topic_name: bytes) -> None:
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + _WARN_EVERY
        name = "the broker" if publisher is None else publisher.client_id.decode("utf-8", "replace")
        _log.warning(
            "no room to retain the message of %s to %s: it is delivered only — remove retained messages that nobody"
            " needs; %d were refused so far",
            name,
            topic_name.decode("utf-8", "replace"),
            self._stats.retained_refused,
        )

"""Retained messages on their way to a session that subscribed: in slices, so that a million of them stall nobody."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .packets import PUBLISH, encode_publish_head
from .retained import RetainedMessage
from .session import Session
from .surroundings import Surroundings

if TYPE_CHECKING:
    from .router import Router

# Steps of the walk between two looks at the clock, and the seconds that one slice may take: other clients wait for it.
_STEPS = 100
_SLICE = 0.005

# Messages above QoS 0 that may wait in the session's queue before the walk waits for it.
_AHEAD = 1000


class Greeting:
    """The walks through the retained messages for the new subscriptions of one session, one after the other.

    A message is sent as it is when the walk comes to it. One that is replaced meanwhile reaches the session by its
    subscription; the walk then sends the newer one again or not at all, never the older. The walks wait while the
    client takes no output or its queue is long, and outlive the connection of a persistent session; not a crash.
    """

    __slots__ = ("_around", "_loop", "_router", "_scheduled", "_session", "_walks")

    def __init__(
        self, session: Session, router: "Router", around: Surroundings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._session = session
        self._router = router
        self._around = around
        self._loop = loop
        self._scheduled = False
        self._walks: deque[tuple[bytes, int, Iterator[RetainedMessage | None]]] = deque()

    def add(self, topic_filter: bytes, granted_qos: int) -> None:
        """Greet a new subscription."""
        self._walks.append((topic_filter, granted_qos, self._router.retained.walk(topic_filter)))

    def cancel(self, topic_filter: bytes) -> None:
        """The session has unsubscribed."""
        self._walks = deque(walk for walk in self._walks if walk[0] != topic_filter)

    def begin(self) -> list[bytes]:
        """Queue the first slice, in the same transaction as the subscription.

        Returns what there is of QoS 0 as packets, for the caller to send after its SUBACK.
        """
        packets: list[bytes] = []
        self._slice(packets)
        return packets

    def resume(self) -> None:
        """Go on in a moment, if the session can take more."""
        session = self._session
        if not self._scheduled and session.limit and session.queued < self._most_queued():
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        session = self._session
        if session.greeting is not self or session.out is None or not session.limit:
            return
        packets: list[bytes] = []
        self._slice(packets)
        if packets and session.out is not None:
            session.out += packets
            session.mark_dirty()
        self._router.flush()
        if session.greeting is self:
            self.resume()

    def _most_queued(self) -> int:
        limit = self._around.config.max_queued_messages
        return min(_AHEAD, limit) if limit else _AHEAD

    def _slice(self, packets: list[bytes]) -> None:
        """Take steps until the time is up, a buffer is full or the queue is long enough."""
        self._walk(packets)
        if not self._walks:
            self._session.greeting = None
        if self._around.limits is not None:
            # The subscriber has published nothing: it is not to be held back for its own queue.
            self._around.limits.hits.pop(self._session, None)

    def _walk(self, packets: list[bytes]) -> None:
        session, most_queued = self._session, self._most_queued()
        until = self._loop.time() + _SLICE
        room = self._around.config.max_output_buffer
        steps = 0
        while self._walks and session.queued < most_queued:
            _, granted_qos, walk = self._walks[0]
            for message in walk:
                steps += 1
                if message is not None:
                    room -= self._send(message, granted_qos, packets)
                    if room <= 0 or session.queued >= most_queued:
                        return
                if steps % _STEPS == 0 and self._loop.time() >= until:
                    return
            self._walks.popleft()

    def _send(self, message: RetainedMessage, granted_qos: int, packets: list[bytes]) -> int:
        """Queue one message, or add it to `packets` at QoS 0. Returns its size, 0 if the session may not read it."""
        session = self._session
        topic_name, payload, message_qos = message
        if not topic_name.startswith(session.mount):
            return 0
        if session.rights is not None and not session.rights.may_read(topic_name):
            return 0
        qos = min(granted_qos, message_qos)
        # [MQTT-3.3.1-6, -8] with the retain flag.
        head = encode_publish_head(PUBLISH | qos << 1 | 1, topic_name[len(session.mount) :], len(payload))
        if qos:
            session.deliver(qos, head, topic_name, payload, 1)
        else:
            packets.append(head + payload)
        return len(head) + len(payload)

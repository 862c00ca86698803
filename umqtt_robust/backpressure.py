"""Inbound flow control: received messages that wait for room in the outbox, and those that could not be kept.

A handler may publish. While the outbox has no room for that, received messages wait here, up to LIMIT bytes, and are
handed over and acknowledged in order. The client reads on meanwhile, because the acknowledgements that make room arrive
on the same link, behind further messages.

A message at QoS 1 or 2 that cannot be kept, here or in the store, is left unacknowledged, and so are all that follow it
at QoS 1 and 2. When the messages that were kept are done, the client ends the link with DISCONNECT and makes a new one,
on which the broker sends the rest again, in order.

Nobody sends a message at QoS 0 again, nor one of a session that the broker forgets with the link. Of these more than
LIMIT are kept, as long as the heap has plenty of room. Then they are dropped and counted; of those at QoS 1 and 2 the
program is told. A new link would be no better: the broker forgets the rest, and begins again with what is retained.
"""

from ._platform import NEVER, const, ticks_diff
from .base_errors import LinkLost, MQTTError, OutboxFull
from .packets import BLOCKED, DUP, PUBACK, PUBREC, PUBREL, QOS, QOS_2, SKIPPING, WAIT

LIMIT = const(4096)  # bytes, including _COST for each message
_COST = const(64)
_MOMENT = const(1000)  # ms
_IDS = const(64)  # bytes of packet ids in a piece: where messages were dropped, no large ones are free


class Discarded(MQTTError):
    """For on_error: there is no room for a received message that the broker will not send again; args[0]: its topic."""


def fetch(session, what):
    """Ends the link, so that the broker sends unacknowledged messages again. what: for the error. Raises LinkLost."""
    session.fetching = True
    session.retry_delay = 0
    session.send_disconnect()
    raise LinkLost("fetching what " + what)


def _size(message):
    return len(message[2]) + len(message[3]) + _COST


class Backpressure:
    """The messages of one session that wait to be handed over."""

    def __init__(self, session):
        self._session = session
        # [first byte, packet id, topic, payload]. A PUBREL: its message is in the store. A PUBACK: the payload is the
        # packet ids of messages that were dropped, two bytes each; they are acknowledged in their turn.
        self._waiting = []
        self._bytes = 0
        self._most = LIMIT  # bytes that may wait before the free heap is looked at
        self.plenty = 20480  # bytes of heap, in one piece, that stay free
        self._limit = NEVER  # a message is handed over while at most so many are pending
        self._again = False  # the first of them was handed over before, and put back
        self._until = NEVER  # the first of them waits until so few are pending
        self._ready_at = None  # ms: since when there is room for what was skipped
        # A message was left for the next link; with _all also a PUBREL, or for lack of memory for this object.
        self.skipped = self._all = session.handover_limit == SKIPPING
        self._connects = None  # on_connect found no room, and is called again with this
        self._full = False  # the program has to take messages before it is handed others: see inbox.py

    def set_full(self, full):
        """Sets whether messages wait here because the program has too many."""
        if full != self._full:
            self._full = full
            self._update()

    def connected(self, session_present, error):
        """Reports the error of on_connect, which found the outbox full, and calls it again once there is room."""
        session = self._session
        session.report(error)
        session.discarded -= 1  # not dropped: it is called again
        self._connects = bool(session_present)

    def learn(self, most):
        """Records that a handler put `most` messages into the outbox: none is called without room for as many."""
        session = self._session
        left = max(0, session.outbox.store.slots - most)
        if left < self._limit and not session.policy:  # with another policy there is always room
            self._limit = left
            self._update()

    def block(self, most):
        """Records that a handler found no room for `most` messages, so that its message is put back."""
        self.learn(most)
        self._session.handover_limit = BLOCKED

    def forget(self, session):
        """Drops the messages that were not acknowledged when the link ended: the broker sends them again."""
        self.skipped = self._all = False
        self._ready_at = self._connects = None
        waiting = self._waiting
        for i in range(len(waiting) - 1, -1, -1):  # in place: the heap may be full
            if waiting[i][0] & (QOS | PUBACK):
                self._bytes -= _size(waiting.pop(i))
        self._update()

    def _update(self):
        session = self._session
        session.idle = False
        waits = self._waiting or self._full
        session.handover_limit = SKIPPING if self.skipped else WAIT if waits else self._limit

    def take(self, head, packet_id, topic=b"", payload=b""):
        """Keeps or skips a message that cannot be handed over now. An answer to a request is handed over at once."""
        request = self._session.parts.get("request")
        if request and not head & QOS and request.takes(topic):
            self._session.describe(head, packet_id, False)
            self._session.hand_over(topic, payload)
            return
        if self._all and head & QOS:
            self.leaves(head, packet_id)
            return
        if head != PUBREL:
            if not head & QOS or self._session.clean_session:
                if self._bytes > self._most:
                    if not self.has_plenty():
                        self._drop(head, packet_id, topic)
                        return
                    self._most = self._bytes + LIMIT
            elif (self.skipped or self._bytes > LIMIT) and self.leaves(head, packet_id):
                return
        self._insert(len(self._waiting), (head, packet_id, topic, payload))

    def has_plenty(self):
        """Returns True if the heap has plenty of room."""
        try:
            bytearray(self.plenty)
            return True
        except MemoryError:
            return False

    def refuse(self, head, packet_id, topic):
        """Leaves a message to the broker for which there is no memory, or drops it. topic: a memoryview."""
        if not self.leaves(head, packet_id):
            self._drop(head, packet_id, topic)

    def _drop(self, head, packet_id, topic, i=-1):
        # i: where it would wait
        session = self._session
        session.discarded += 1
        if not head & QOS:
            return
        if session.manual_ack:
            session.part("manual_ack").let_go(packet_id)
        if head & QOS_2:
            session.out.put_ack(PUBREC, packet_id)
        else:
            ids = bytearray((packet_id >> 8, packet_id & 255))
            if i < 0:
                i = len(self._waiting)
                if i and self._waiting[-1][0] == PUBACK and len(self._waiting[-1][3]) < _IDS:
                    self._waiting[-1][3].extend(ids)
                    self._bytes += 2
                    ids = None
            if ids:
                self._insert(i, (PUBACK, 0, b"", ids))
        try:
            session.report(Discarded(bytes(topic).split(b"\0")[0]))
        except MemoryError:
            pass  # it is counted

    def keep(self, message):
        """Keeps a message, (flags, topic, payload), that the broker will not send again."""
        message = message[0] & ~QOS, 0, message[1], message[2]
        if self._session.handover_limit == BLOCKED:  # its handler found the outbox full
            self.put_back(*message)
        else:
            self._insert(len(self._waiting), message)

    def put_back(self, head, packet_id, topic=b"", payload=b""):
        """Puts back a message whose handler found the outbox full: it is the first of those that wait."""
        session = self._session
        if head & QOS and head != PUBREL and session.manual_ack:
            session.part("manual_ack").let_go(packet_id)
        self._insert(0, (head, packet_id, topic, payload))
        self._again = True
        self._until = max(0, session.pending - 1)

    def _insert(self, i, message):
        if not self._waiting:
            self._most = LIMIT
        self._waiting.insert(i, message)
        # Added, not summed up anew: garbage between messages that are kept leaves holes in the heap.
        self._bytes += _size(message)
        self._update()

    def leaves(self, head, packet_id):
        """Leaves a message for which there is no room: it is neither handed over nor acknowledged.

        Returns False if it must be kept all the same, because the broker would not send it again.
        """
        session = self._session
        if not head & QOS:
            session.discarded += 1
        elif session.clean_session:
            return False
        else:
            if session.manual_ack:
                session.part("manual_ack").let_go(packet_id)
            self.skipped = True
            self._all = self._all or head == PUBREL
            self._update()
        return True

    def pump(self):
        """Hands over the messages that there is room for. Returns False if acknowledgements must be sent first."""
        session = self._session
        if self._connects is not None and session.pending < session.outbox.store.slots:
            present = self._connects
            self._connects = None
            try:
                session.on_connect(present)
            except OutboxFull:
                session.discarded -= 1
                self._connects = present
        while self._waiting and not self._full and session.pending <= min(self._limit, self._until):
            if not session.out.has_room():
                return False
            message = self._waiting[0]
            head, packet_id, topic, payload = message
            if head == PUBACK and payload:
                packet_id = payload[0] << 8 | payload[1]
                if session.manual_ack:  # it keeps the order
                    session.part("manual_ack").hold(packet_id)
                    session.acknowledge(packet_id)
                else:
                    session.out.put_ack(PUBACK, packet_id)
                payload[:2] = b""
                self._bytes -= 2
                continue
            self._waiting.pop(0)
            self._bytes -= _size(message)
            if head == PUBACK:
                self._update()
                continue
            session.handover_limit = self._limit
            self._until = NEVER
            again = self._again
            self._again = False
            try:
                if head == PUBREL:
                    session.part("qos2").handle_pubrel(packet_id)
                else:
                    self._hand_over(head, packet_id, topic, payload, again)
            except MemoryError:
                if head != PUBREL and head & QOS and session.clean_session:
                    self._drop(head, packet_id, topic, 0)
                    continue
                self._again = again
                self._insert(0, message)
                raise
            if self._again:  # there was no room after all
                break
            self._update()
        if self.skipped and not self._waiting:
            session.idle = False
            self._fetch()
        return True

    def _hand_over(self, head, packet_id, topic, payload, again):
        session = self._session
        session.describe(head, packet_id, head & DUP > 0 or again)
        manual = head & QOS and session.manual_ack
        if manual:
            session.part("manual_ack").hold(packet_id)
        session.hand_over(topic, payload)
        if session.handover_limit == BLOCKED:
            self.put_back(head, packet_id, topic, payload)
        elif head & QOS and session.state and not manual:
            session.out.put_ack(PUBACK, packet_id)

    def _fetch(self):
        # Ends the link once there is room again and all acknowledgements are sent. Messages in flight would be sent
        # twice, and a program may take none before its own have gone, so the client waits up to _MOMENT for theirs.
        session = self._session
        store = session.outbox.store
        inbound = store.inbound
        manual = session.parts.get("manual_ack")
        if (
            session.pending > store.slots // 2
            or inbound and not self._all and inbound.room() <= len(inbound.ids())
            or manual and manual.holds()
        ):  # fmt: skip
            self._ready_at = None
            return
        if self._ready_at is None:
            self._ready_at = session.now
        if session.pending and ticks_diff(session.now, self._ready_at) < _MOMENT:
            return
        if session.out.flush():
            fetch(session, "there was no room for")


part = Backpressure  # what Session.part() makes

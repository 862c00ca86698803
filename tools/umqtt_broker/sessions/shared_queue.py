"""The queue of one shared subscription: one ordered queue, from which the members of a group get messages.

See MQTT 5, 4.8.2. The store treats it like the queue of a session. The difference is where its messages go:

    deliver()    gives a message at once to a member with room in its window, if no other message waits before it.
    queue        the messages that no member had room for, in order; messages that a departed member has not
                 acknowledged come first.
    QoS 1        a message belongs to this queue, in the store too, while a member has it in flight. So nothing is
                 moved, a crash returns it to the group, and a message that is acknowledged at once is never written.
    QoS 2        a message is moved to the member's own queue, in one transaction, before it is sent. From then on it
                 belongs to that session alone: another member could receive it a second time.
    QoS 0        a message goes to one connected member, or is dropped and counted.

Balance: the member with the fewest messages in flight gets the next one; equal members take turns. So a member that
acknowledges slowly gets fewer messages, and delays only those that it has in flight. If members only took turns, a slow
member's whole window would fill first.
"""

from collections import OrderedDict, deque

from ..access.permission import Rights
from ..core.context import BrokerContext
from ..protocol.packets import DUP, PUBLISH, encode_publish_head, topic_name_in
from ..protocol.packets5 import HAS_PROPERTIES, RETAIN_AS_PUBLISHED, add_properties, age, encode_identifier, payload_of
from ..protocol.topics import split_shared
from .durable import DurableQueue
from .entry import OPEN, Entry, converted
from .queue import MessageQueue
from .session import NO_WAITING_GROUPS, Session

# Most messages at the front of the queue that are skipped because no member with room may read them.
_LOOK_AHEAD = 1000


class SharedQueue(MessageQueue):
    """A shared subscription of one group behind one mount point. Made by routing.shared_groups.

    members: the sessions, with the QoS granted to each. holders: the messages in flight at QoS 1, by position: the
    session, its packet identifier, and the message in the group's own form. As soon as the group has had a member of
    MQTT 5, that form has properties, and the retain flag as published.
    """

    def __init__(self, key: bytes, name: bytes, mount: bytes, context: BrokerContext) -> None:
        super().__init__(key, name, mount, context)
        self.members: dict[Session, int] = {}
        self.holders: dict[int, tuple[Session, int, Entry]] = {}
        self.rights = _OfAnyMember(self.members)
        # Always open, so that the queue is loaded from disk as needed; the windows of the members limit what is sent.
        self.window = 1
        self._turns: list[Session] = []
        self._next_turn = 0
        # True while the members know that messages wait: see Session.waiting_groups.
        self._is_waiting = False

    # Members

    @property
    def shared_filter(self) -> bytes:
        """The topic filter, with the mount point."""
        shared = split_shared(self.client_id)
        assert shared is not None  # checked when the group began
        return shared[1]

    @property
    def granted_qos(self) -> int:
        """The highest QoS granted to a member."""
        return max(self.members.values(), default=0)

    def join(self, member: Session, qos: int) -> bool:
        """Add a member, or change its QoS. Returns True if the session was not a member."""
        is_new = member not in self.members
        self.members[member] = qos
        if member.protocol_level == 5:
            self.set_protocol_level(5)
        if is_new:
            self._turns.append(member)
            if not member.shared:
                member.shared = {}
            member.shared[self] = None
            if self.queued:
                self._is_waiting = False
                self._wait()
        return is_new

    def leave(self, member: Session) -> None:
        """Remove a member. It may finish the messages that it has in flight while it is connected [MQTT-3.10.4-3]."""
        del self.members[member]
        self._turns.remove(member)
        member.shared.pop(self, None)
        member.waiting_groups.pop(self, None)

    def _wait(self) -> None:
        """Let the members take messages as soon as they have room."""
        if self._is_waiting:
            return
        self._is_waiting = True
        for member in self._turns:
            if member.waiting_groups is NO_WAITING_GROUPS:
                member.waiting_groups = OrderedDict()
            member.waiting_groups[self] = None

    def stop_waiting(self) -> None:
        """See Group."""
        self._is_waiting = False

    def set_protocol_level(self, protocol_level: int) -> None:
        """Keep properties from now on if a member uses MQTT 5; that remains so when the member leaves."""
        if protocol_level == 5 and self.protocol_level != 5:
            super().set_protocol_level(5)
            self.holders = {
                position: (member, packet_id, converted(entry, True))
                for position, (member, packet_id, entry) in self.holders.items()
            }

    def end(self) -> None:
        """End the group without members: drop and count waiting messages; messages in flight stay in their session."""
        for member, packet_id, _ in self.holders.values():
            member.make_own(self, packet_id)
        self.holders.clear()
        # A page of the queue may still be loading: its messages are counted here, and never sent.
        self.window = 0
        self._stats.dropped_share_ended += self.queued
        if self._context.limits is not None:
            self._context.limits.forget(self)

    # Messages to the group

    def deliver(self, qos: int, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Give a QoS 1 or 2 message to a member with room, or put it at the end of the queue."""
        if not self.queued and (member := self._choose(qos, head)) is not None:
            granted, expires_at = min(qos, self.members[member]), self._expiry.deadline
            head_of_it, payload_of_it = self._form(member, granted, head, payload, 0)
            if member.is_too_large(granted, head_of_it, payload_of_it):
                # [MQTT-3.1.2-25] of MQTT 5 allows that no member gets it.
                self.dropped += 1
                self._stats.dropped_too_large += 1
            elif granted == 2:
                member.deliver(2, head_of_it, topic_name, payload_of_it, _flags(member, head_of_it))
            elif granted == 1:
                position = self._record_sent(qos, topic_name, payload, flags)
                entry = (position, 0, 1, _at_qos(head, 1, payload), payload, OPEN, expires_at)
                packet_id = member.borrow(self, position, head_of_it, payload_of_it, expires_at)
                self.holders[position] = (member, packet_id, entry)
            else:
                _send_qos0(member, head_of_it, payload_of_it)
            return
        self._enqueue(0, qos, head, topic_name, payload, flags)
        self._wait()
        if self._has_rights():
            # The messages that wait may be ones that no member with room may read; this one may be readable.
            self.pump()

    def deliver_qos0(self, head: bytes, topic_name: bytes, payload: bytes, flags: int) -> None:
        """Send a QoS 0 message to a member that is connected and accepts output, or drop and count it."""
        del topic_name, flags
        turns, count = self._turns, len(self._turns)
        name: bytes | None = None
        for step in range(count):
            index = (self._next_turn + step) % count
            member = turns[index]
            if member.output is None:
                continue
            if member.rights is not None:
                name = name or self._topic_name(head)
                if not member.rights.may_read(name):
                    continue
            self._next_turn = index + 1
            head_of_it, payload_of_it = self._form(member, 0, head, payload, 0)
            if not member.is_too_large(0, head_of_it, payload_of_it):
                _send_qos0(member, head_of_it, payload_of_it)
                return
        self.dropped += 1
        if any(member.connection is not None for member in turns):
            self._stats.dropped_qos0_slow += 1
        else:
            self._stats.dropped_qos0_offline += 1

    def is_too_large(self, qos: int, head: bytes, payload: bytes) -> bool:
        """Return False: the size is checked for each member when it is chosen."""
        del qos, head, payload
        return False

    def give_back(self, positions: list[int]) -> None:
        """Take back the messages that a departed member has not acknowledged: with DUP, to the front, in order."""
        entries = [_again(self.holders.pop(position)[2]) for position in positions]
        count, size = len(entries), sum(len(entry[4]) for entry in entries)
        queue = self.queue = self.queue or deque()
        # Other members may have departed before: merge with their messages in the order of positions.
        last = max(entry[0] for entry in entries)
        while queue and queue[0][0] < last:
            entries.append(queue.popleft())
        entries.sort(key=_position, reverse=True)
        queue.extendleft(entries)
        self.queued_bytes += size
        if self._context.limits is not None:
            self._context.limits.added(self, count, size)
        self._wait()
        self.pump()

    def acknowledge(self, position: int) -> None:
        """Handle a member's acknowledgement of a message."""
        del self.holders[position]
        self.forget(position)

    def forget(self, position: int) -> None:
        """Forget a message that is finished or now belongs to a session."""
        if self.store is not None:
            self.store.remove_delivery(self.number, position)

    def on_commit(self) -> None:
        """Continue: the changes that the queue waited for are safe."""
        self.pump()

    # To the members

    def _choose(self, qos: int, head: bytes) -> Session | None:
        """Return the member that gets the next message at `qos`, None if no member may read it and has room."""
        members, turns = self.members, self._turns
        best, fewest, best_index = None, 65536, 0
        name: bytes | None = None
        first = self._next_turn % len(turns) if turns else 0
        for index in (*range(first, len(turns)), *range(first)):
            member = turns[index]
            if not member.window:
                continue
            load = member.messages_ahead(min(qos, members[member]))
            if load < 0 or load >= fewest:
                continue
            if member.rights is not None:
                name = name or self._topic_name(head)
                if not member.rights.may_read(name):
                    continue
            best, fewest, best_index = member, load, index
            if not load:
                break
        self._next_turn = best_index + 1
        return best

    def _advance(self) -> bool:
        """Give messages from the front of the queue to members. Returns True if the output must be written first."""
        if not self.window:
            return False
        queue = self.queue
        enough = self._context.config.max_output_buffer
        moved = size = passed = 0
        while passed < len(queue) and passed <= _LOOK_AHEAD and size <= enough:
            entry = queue[passed]
            position, _, qos, head, payload, gate, _ = entry
            assert head is not None  # the queue holds no PUBRELs
            if self._is_expired(entry):
                self._drop_expired(position)
            else:
                member = self._choose(qos, head)
                if member is None:
                    if not self._has_rights() or not any(one.messages_ahead(qos) >= 0 for one in self._turns):
                        break
                    passed += 1
                    continue
                granted = min(qos, self.members[member])
                if granted == 1 and gate and not self._is_safe(position, gate):
                    break
                self._give(member, granted, entry)
            del queue[passed]
            moved += 1
            size += len(payload)
        if moved:
            self._count_out(moved, size)
        return size > enough

    def _give(self, member: Session, granted: int, entry: Entry) -> None:
        position, _, _, head, payload, _, expires_at = entry
        assert head is not None  # the queue holds no PUBRELs
        head_of_it, payload_of_it = self._form(member, granted, head, payload, expires_at)
        if member.is_too_large(granted, head_of_it, payload_of_it):
            self._drop_too_large(position)
        elif granted == 1:
            self._sent_to = max(self._sent_to, position)
            packet_id = member.borrow(self, position, head_of_it, payload_of_it, expires_at)
            own = (position, 0, 1, _at_qos(head, 1, payload), payload, OPEN, expires_at)
            self.holders[position] = (member, packet_id, own)
        elif granted == 2:
            # It was never sent, even if a recovered message has DUP: a QoS 2 message that was sent is in a session.
            head_of_it = bytes((head_of_it[0] & ~DUP,)) + head_of_it[1:]
            if self.protocol_level != 5:
                member.transfer(self, entry, head_of_it)
            else:
                # The member's form may differ from the stored one: record it anew, in the transaction that removes it.
                with self._expiry.set_to(expires_at):
                    member.deliver(2, head_of_it, self._topic_name(head), payload_of_it, _flags(member, head_of_it))
                self.forget(position)
        else:
            _send_qos0(member, head_of_it, payload_of_it)
            self.forget(position)

    def _form(self, member: Session, qos: int, head: bytes, payload: bytes, expires_at: int) -> tuple[bytes, bytes]:
        """Return head and payload in the form for a member at `qos`. expires_at: 0 if the message has not waited."""
        if self.protocol_level != 5:
            return _at_qos(head, qos, payload), payload
        subscription = member.options.get(self.client_id)
        if member.protocol_level != 5:
            payload = payload_of(payload)
        else:
            if expires_at and payload[0]:
                payload = age(payload, self._expiry.remaining(expires_at))
            if subscription is not None:
                payload = add_properties(payload, encode_identifier(subscription.identifier))
        first_byte = PUBLISH | head[0] & (DUP if qos else 0) | qos << 1
        if subscription is not None and subscription.options & RETAIN_AS_PUBLISHED:
            first_byte |= head[0] & 1
        return encode_publish_head(first_byte, topic_name_in(head), len(payload)), payload

    def _write(self) -> None:
        """Flush all members, because their output has become large."""
        for member in self._turns:
            member.flush()

    def _record_sent(self, qos: int, topic_name: bytes, payload: bytes, flags: int) -> int:
        """Record a message that goes straight to a member at QoS 1. Returns its position."""
        del qos, topic_name, payload, flags
        self._last_position += 1
        return self._last_position

    def _has_rights(self) -> bool:
        return any(member.rights is not None for member in self._turns)

    def _topic_name(self, head: bytes) -> bytes:
        """Return the topic name of a PUBLISH, with the mount point."""
        return self.mount + topic_name_in(head)


class DurableSharedQueue(DurableQueue, SharedQueue):
    """A shared queue that outlives the process, recorded under a number like the queue of a session."""

    def _record_sent(self, qos: int, topic_name: bytes, payload: bytes, flags: int) -> int:
        position = self._sent_to = self._last_position = self._last_position + 1
        self._store.add_delivery((self.number, position, 0, 1, flags, 1, 0, topic_name, payload, self._expiry.deadline))
        del qos
        return position


class _OfAnyMember(Rights):
    """The rights of a group: what at least one member may read. A message goes only to a member that may read it."""

    __slots__ = ("_members",)

    def __init__(self, members: dict[Session, int]) -> None:
        self._members = members

    def may_read(self, topic_name: bytes) -> bool:
        """See Rights."""
        return any(member.rights is None or member.rights.may_read(topic_name) for member in self._members)


def _position(entry: Entry) -> int:
    return entry[0]


def _again(entry: Entry) -> Entry:
    """Return a message with DUP, because its client may have received it."""
    position, packet_id, qos, head, payload, gate, expires_at = entry
    assert head is not None  # it is a PUBLISH
    return position, packet_id, qos, bytes((head[0] | DUP,)) + head[1:], payload, gate, expires_at


def _flags(member: Session, head: bytes) -> int:
    """Return the flags with which a message of a group with MQTT 5 is recorded for a member."""
    return head[0] & 1 | (HAS_PROPERTIES if member.protocol_level == 5 else 0)


def _send_qos0(member: Session, head: bytes, payload: bytes) -> None:
    output = member.output
    assert output is not None  # the member was chosen because it takes output
    output.append(head + payload)
    member.mark_dirty()


def _at_qos(head: bytes, qos: int, payload: bytes) -> bytes:
    """Return `head`, a PUBLISH up to its topic name, for another QoS."""
    if head[0] >> 1 & 3 == qos:
        return head
    keep = DUP if qos else 0
    return encode_publish_head(PUBLISH | head[0] & keep | qos << 1, topic_name_in(head), len(payload))

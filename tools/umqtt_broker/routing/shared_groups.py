"""The groups of shared subscriptions: joining, leaving, and recovery after a restart."""

from collections.abc import Iterator

from ..core.context import BrokerContext
from ..sessions.queue import MessageQueue
from ..sessions.session import Session, Subscription
from ..sessions.shared_queue import DurableSharedQueue, SharedQueue
from ..store import RecoveredSession
from .subscriptions import SubscriptionTrie


class Shares:
    """All shared subscriptions. Each begins with its first member and ends with its last.

    Different filters of a group are separate shared subscriptions, and so are groups of the same name behind different
    mount points. A durable store records every one, because a member with a persistent session may join at any time.
    """

    def __init__(self, context: BrokerContext, trie: SubscriptionTrie[MessageQueue | Subscription]) -> None:
        self._context = context
        self._stats = context.stats
        self._store = context.store
        self._trie = trie
        self._by_key: dict[bytes, SharedQueue] = {}

    def __iter__(self) -> Iterator[SharedQueue]:
        """Iterate over the groups there are now; they may come and go meanwhile."""
        return iter(list(self._by_key.values()))

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def queued(self) -> int:
        """The number of messages that wait in all groups; messages in flight are counted with their members."""
        return sum(group.queued for group in self._by_key.values())

    def join(self, member: Session, name: bytes, shared_filter: bytes, qos: int) -> bool:
        """Add a session to a group, or change its QoS. Returns True if the session was not in the group.

        name: `$share/GROUP/FILTER`; FILTER is `shared_filter`, which includes the mount point.
        """
        key = _key(member.mount, name)
        group = self._by_key.get(key)
        if group is None:
            group = self._new(key, name, member.mount)
            if isinstance(group, DurableSharedQueue):
                group.number = self._store.new_share(key)
        is_new = group.join(member, qos)
        self._stats.shared_subscriptions += is_new
        self._trie.subscribe(shared_filter, group, group.granted_qos)
        return is_new

    def leave(self, member: Session, name: bytes, shared_filter: bytes) -> bool:
        """Remove a session from a group, which ends with its last member. Returns True if the session was in it."""
        group = self._by_key.get(_key(member.mount, name))
        if group is None or member not in group.members:
            return False
        group.leave(member)
        self._stats.shared_subscriptions -= 1
        if group.members:
            self._trie.subscribe(shared_filter, group, group.granted_qos)
        else:
            self._end(group)
        return True

    def recover(self, recovered: list[RecoveredSession]) -> None:
        """Make the groups that the store had kept; their members join when the sessions are recovered."""
        for found in recovered:
            mount, _, name = found.client_id.rpartition(b"\0")
            group = self._new(found.client_id, name, mount)
            assert isinstance(group, DurableSharedQueue)
            group.restore(found)

    def end_empty(self) -> None:
        """End the recovered groups without a member: none of their members had a persistent session."""
        for group in self:
            if not group.members:
                self._end(group)

    def _new(self, key: bytes, name: bytes, mount: bytes) -> SharedQueue:
        kind = DurableSharedQueue if self._store.durable else SharedQueue
        group = self._by_key[key] = kind(key, name, mount, self._context)
        return group

    def _end(self, group: SharedQueue) -> None:
        self._trie.unsubscribe(group.shared_filter, group)
        del self._by_key[group.key]
        group.end()
        if group.store is not None:
            group.store.discard_share(group.number)


def _key(mount: bytes, name: bytes) -> bytes:
    return mount + b"\0" + name

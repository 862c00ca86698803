"""The groups of shared subscriptions: who is in which, and what comes back after a restart."""

from collections.abc import Iterator

from ..core.context import BrokerContext
from ..sessions.queue import MessageQueue
from ..sessions.session import Session, Subscription
from ..sessions.shared_queue import DurableSharedQueue, SharedQueue
from ..store import RecoveredSession
from .subscriptions import SubscriptionTrie


class Shares:
    """Every shared subscription there is. It begins with its first member and ends with its last.

    A group's filters are separate subscriptions, and so are groups of one name behind different mount points. In a
    store on disk every one is recorded: a member with a persistent session may join at any time.
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
        """Messages that wait in all groups together; those in flight are counted with their members."""
        return sum(group.queued for group in self._by_key.values())

    def join(self, member: Session, name: bytes, shared_filter: bytes, qos: int) -> bool:
        """Let a session into a group, or change its QoS. Returns True if it was not in it.

        name: `$share/GROUP/FILTER`, the filter whole, as `shared_filter` is.
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
        """Let a session out of a group; with its last member the group ends. Returns whether it was in it."""
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
        """End the recovered groups that had no member with a persistent session."""
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

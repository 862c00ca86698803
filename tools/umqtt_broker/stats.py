"""Counters of one broker. Plain integers, increased in place: the packet loop can afford nothing slower."""

from collections import Counter
from collections.abc import Callable


class Stats:
    """The counters of a broker since its start.

    Counters only rise. Gauges are `connections`, `sessions`, `subscriptions`, `shared_subscriptions` (the subscriptions
    that are shared), `retained` and `queued`.

    connections_accepted / connections_refused: network connections opened / CONNECTs answered with a return
        code other than 0 or turned away at a limit. connections_max: the most network connections at once.
    messages_in / messages_out: PUBLISH packets received / handed to a connection (DUP resends included).
    bytes_in / bytes_out: read from / handed to network connections.
    denied: messages a client may not publish; acknowledged as the specification asks, and not routed.
    resent: PUBLISH packets sent again with DUP. takeovers: connections closed by a newer one of the same client.
    wills: wills published. sessions_of_others: sessions discarded because a client of another user connected with their
        client identifier.
    sessions_expired: sessions discarded because their client stayed away for session_expiry.
    wrong_passwords: CONNECTs answered with return code 4.
    told_to_wait: CONNECTs answered with return code 3 (0x88): too many passwords wait to be checked, or were wrong
        before.
    keep_alive_timeouts, connect_timeouts: connections closed for silence.
    unknown_acknowledgements: PUBACK, PUBREC or PUBCOMP for a packet identifier that is not in use.
    publishers_held: times a publisher was not read from because a queue was full, or the disk too slow.
    publishers_let_through: times a publisher's messages were processed although a queue was full, because the broker
        waited for its acknowledgements.
    rate_limited: times a client was read from more slowly for max_receive_rate.
    retained_refused: messages that were delivered but not retained, for want of room.
    commits / commit_failures: transactions of the store.
    malformed: connections closed for a broken packet, by reason.

    Messages not delivered, by reason:
    dropped_qos0_slow: QoS 0, the subscriber does not read fast enough.
    dropped_qos0_offline: QoS 0, for a persistent session without a connection [MQTT-3.1.2-5].
    dropped_queue_full: for a session at its limit, with at_queue_limit "drop".
    dropped_share_ended: waited in a shared subscription that its last member left.
    dropped_damaged: lost or garbled in the store.
    dropped_denied: waited for a client that may not read the topic any more.
    dropped_disk: QoS 0, waited for the disk when the connection of the publisher ended.
    dropped_expired: waited longer than message_expiry. dropped_too_large: payload and properties are
        above max_payload_size, or the packet above what the client of MQTT 5 takes.
    """

    __slots__ = (
        "_queued",
        "bytes_in",
        "bytes_out",
        "commit_failures",
        "commits",
        "connect_timeouts",
        "connections",
        "connections_accepted",
        "connections_max",
        "connections_refused",
        "denied",
        "dropped_damaged",
        "dropped_denied",
        "dropped_disk",
        "dropped_expired",
        "dropped_qos0_offline",
        "dropped_qos0_slow",
        "dropped_queue_full",
        "dropped_share_ended",
        "dropped_too_large",
        "keep_alive_timeouts",
        "malformed",
        "messages_in",
        "messages_out",
        "publishers_held",
        "publishers_let_through",
        "rate_limited",
        "resent",
        "retained",
        "retained_refused",
        "sessions",
        "sessions_expired",
        "sessions_of_others",
        "shared_subscriptions",
        "subscriptions",
        "takeovers",
        "told_to_wait",
        "unknown_acknowledgements",
        "wills",
        "wrong_passwords",
    )

    def __init__(self) -> None:
        self.connections = 0
        self.connections_accepted = 0
        self.connections_max = 0
        self.connections_refused = 0
        self.sessions = 0
        self.sessions_expired = 0
        self.sessions_of_others = 0
        self.subscriptions = 0
        self.shared_subscriptions = 0
        self.retained = 0
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.resent = 0
        self.denied = 0
        self.takeovers = 0
        self.told_to_wait = 0
        self.wrong_passwords = 0
        self.wills = 0
        self.keep_alive_timeouts = 0
        self.connect_timeouts = 0
        self.unknown_acknowledgements = 0
        self.publishers_held = 0
        self.publishers_let_through = 0
        self.rate_limited = 0
        self.retained_refused = 0
        self.commits = 0
        self.commit_failures = 0
        self.dropped_qos0_slow = 0
        self.dropped_qos0_offline = 0
        self.dropped_queue_full = 0
        self.dropped_damaged = 0
        self.dropped_denied = 0
        self.dropped_disk = 0
        self.dropped_expired = 0
        self.dropped_share_ended = 0
        self.dropped_too_large = 0
        self.malformed: Counter[str] = Counter()
        self._queued: Callable[[], int] = lambda: 0

    @property
    def dropped(self) -> int:
        """Messages dropped for any reason. Above QoS 0 only for a limit that a user set, or a damaged disk."""
        return (
            self.dropped_qos0_slow
            + self.dropped_qos0_offline
            + self.dropped_queue_full
            + self.dropped_damaged
            + self.dropped_denied
            + self.dropped_disk
            + self.dropped_expired
            + self.dropped_share_ended
            + self.dropped_too_large
        )

    @property
    def queued(self) -> int:
        """QoS 1 and 2 messages that wait in session queues, on disk ones included; counted when asked."""
        return self._queued()

    def count_queued_with(self, count: Callable[[], int]) -> None:
        """Set the function that counts `queued`: only the broker knows its sessions."""
        self._queued = count

    def as_dict(self) -> dict[str, object]:
        """Every counter and gauge by name; `malformed` as a dict of reason to count."""
        values: dict[str, object] = {
            name: getattr(self, name) for name in self.__slots__ if not name.startswith("_") and name != "malformed"
        }
        values.update(malformed=dict(self.malformed), dropped=self.dropped, queued=self.queued)
        return values

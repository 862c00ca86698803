"""Handles a message that the client has set aside, because the broker ended each link at it. Loaded when there is one.

It is reported on the log topic. The outbox may hold readings that were taken under another device id, and a broker may
let a board publish on its own topics alone. So from then on all that waits on fleet/ANOTHER/… goes on this board's own
topics; the id of a reading is in its record. The client sends what it has set aside once more, as soon as another
message has passed.
"""


class OwnTopics:
    """Replaces the load() of a store: other topics of the fleet become this board's. own: bytes, fleet/{device_id}/."""

    def __init__(self, load, own):
        self._load = load
        self._own = own

    def load(self, slot):
        topic, payload = self._load(slot)
        if topic.startswith(b"fleet/") and not topic.startswith(self._own):
            topic = self._own + topic.split(b"/", 2)[-1]
        return topic, payload


def handle(board, topics):
    """Report messages that were set aside, by their topics, and use the board's own topics if others do not pass."""
    if board.telemetry and not board.client.is_pending(board.telemetry.first_id):
        board.telemetry.first_id = 0  # it may be the one: only an acknowledged reading confirms a boot
    own = board.identity.topic("")
    store = board.client.outbox.store
    text = "set aside %d messages, at which the broker ends the link, on %s: umqtt outbox shows them"
    board.log.report("error", text % (len(topics), topics[0].decode()))
    for topic in topics:
        if topic.startswith(b"fleet/") and not topic.startswith(own) and not hasattr(store, "own_topics"):
            store.own_topics = OwnTopics(store.load, own)
            store.load = store.own_topics.load
            other = topic.split(b"/", 2)[1].decode()
            board.log.report("warning", "what waits on the topics of %s goes on those of this board" % other)

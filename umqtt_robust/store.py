"""Where the outbox keeps what must outlive a connection, and MemoryStore, which forgets it with the power.

A store is a box of numbered slots, one outbound message each, beside the inbound QoS 2 messages and the name of the
broker that the protocol state belongs to. What a method wrote is durable when it returns; a method that cannot write
raises StoreError and leaves what was stored before as it was.
"""


class MemoryStore:
    """Keeps messages in RAM: `slots` of them at most."""

    def __init__(self, slots=32):
        self.slots = slots
        # The broker whose session the stored packet ids belong to; None: no such session is known.
        self.session = None
        self._topics = [None] * slots
        self._payloads = [None] * slots
        self._inbound = {}

    def restore(self, found):
        """Calls found(slot, order, packet_id, state, flags, size, lifetime, rank) for each stored outbound message.

        state and flags: as in outbox.py; size: bytes of topic and payload; lifetime: seconds until the message
        expires, 0 for never; rank: as in change().
        """

    def put(self, slot, order, packet_id, state, flags, topic, payload, lifetime):
        """Stores an outbound message in a free slot, or over the same message when its state changed."""
        self._topics[slot] = topic
        self._payloads[slot] = payload

    def load(self, slot):
        """(topic, payload) of an outbound message."""
        return self._topics[slot], self._payloads[slot]

    def change(self, slot, state, rank):
        """Stores a new state; rank: the place of its PUBREC among all, for the order of the PUBRELs."""

    def tombstone(self, slot):
        """Forgets an outbound message."""
        self._topics[slot] = self._payloads[slot] = None

    def set_session(self, broker):
        """Names the broker that the protocol state belongs to from now on; None: to nobody."""
        self.session = broker

    def put_inbound(self, packet_id, flags, topic, payload):
        """Stores an inbound QoS 2 message before its PUBREC."""
        self._inbound[packet_id] = (flags, topic, payload)

    def get_inbound(self, packet_id):
        """(flags, topic, payload) of an inbound message that waits for PUBREL, or None."""
        return self._inbound.get(packet_id)

    def inbound_ids(self):
        """The packet ids of all of them."""
        return list(self._inbound)

    def tombstone_inbound(self, packet_id):
        """Forgets an inbound message, after its handler and before PUBCOMP."""
        del self._inbound[packet_id]

    def clear_inbound(self):
        """Forgets every inbound message: the broker has lost the session."""
        self._inbound = {}

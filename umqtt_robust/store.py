"""Where the outbox keeps messages, and MemoryStore, which forgets them with the power.

A store is a box of numbered slots with
    slots, session            how many; the name of the broker that the stored packet ids belong to, None: to nobody
    put(slot, packet_id, flags, topic, payload, lifetime)
                              stores a message; lifetime: seconds, 0 for ever
    load(slot)                topic and payload, a pair, valid until its tombstone(); b"" and b"" when it is damaged
    change(slot, flags, rank) stores new flags; rank: the place of its PUBREC among all
    tombstone(slot)           forgets it
    restore()                 what is stored, in the order of its put(): (slot, packet_id, flags, rank, lifetime) each
    volatile                  True: a reset empties it and its session, and leaves nothing half done; may be missing
    inbound                   where messages at QoS 2 wait for PUBREL, see qos2.MemoryInbound, which replaces None
What a method wrote, and `session` when it is set, is durable when it returns; a method that cannot write raises
StoreError and leaves what was stored before as it was.
"""


class MemoryStore:
    """Keeps messages in RAM: `slots` of them at most."""

    session = inbound = None
    volatile = True

    def __init__(self, slots=32):
        self.slots = slots
        # [topic, payload] of each slot that was ever used. The lists are used again: garbage, were it a tuple a
        # message, would make every allocation of the interpreter search longer.
        self._bodies = [None] * slots

    def restore(self):
        return ()

    def put(self, slot, packet_id, flags, topic, payload, lifetime):
        body = self._bodies[slot]
        if body is None:
            body = self._bodies[slot] = [None, None]
        body[0] = topic
        body[1] = payload

    def load(self, slot):
        return self._bodies[slot]

    def change(self, slot, flags, rank):
        pass

    def tombstone(self, slot):
        body = self._bodies[slot]
        body[0] = body[1] = None

"""What the outbox finds in its store when the program starts: loaded only when there is something."""

from ._platform import const

_QOS = const(0x06)
_DUP = const(0x08)
_MAYBE_SENT = const(0x10)
_AWAIT_PUBCOMP = const(0x44)


def restore(outbox, found, window):
    """found: of store.restore(); window: how many messages may have been in flight."""
    outbox.lifetimes = {}
    ranks = {}
    for slot, packet_id, flags, rank, lifetime in found:
        # What was sent before the restart was among the first `window` that are left.
        if len(outbox.queue) < window:
            flags |= _MAYBE_SENT | (_DUP if flags & _QOS else 0)
        outbox.enter(slot, packet_id, flags)
        if flags & _AWAIT_PUBCOMP == _AWAIT_PUBCOMP:
            ranks[rank] = packet_id
        if lifetime:
            outbox.lifetimes[packet_id] = lifetime
    for outbox.rank in sorted(ranks):
        outbox.released.append(ranks[outbox.rank])

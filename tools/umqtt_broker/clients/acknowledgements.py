"""PUBACK, PUBREC, PUBREL and PUBCOMP: a client sends many in a row, so a run of one kind is processed at once.

These functions work on a session. The packets that they append to `acknowledgements` are sent, in order, when the whole
read is processed; if anything was recorded, after its commit.
"""

import struct
from typing import Any, Final

from ..errors import MalformedPacket
from ..protocol.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from ..protocol.packets5 import encode_acknowledgement
from ..protocol.reason_codes import ReasonCode
from ..sessions.entry import OPEN, SHARED
from ..sessions.session import Session
from ..stats import Stats

# Each of the four kinds takes four bytes: first byte, remaining length 2, packet identifier.
_SIZE: Final = 4
_packet_ids: Final = struct.Struct(">xxH").iter_unpack


def process_run(session: Session, stats: Stats, data: bytes, at: int, acknowledgements: list[bytes]) -> int:
    """Process the acknowledgement at `at` and those of the same kind that follow it directly.

    Returns the index behind the last of them. Raises MalformedPacket for an acknowledgement that does not fit its
    message: PUBACK for QoS 2, PUBREC for QoS 1, PUBCOMP before PUBREC.
    """
    first_byte, end = data[at], at + _SIZE
    if len(data) > end:
        most = at + (len(data) - at) // _SIZE * _SIZE
        other_kind = data[at:most:_SIZE].lstrip(_KINDS[first_byte])
        other_length = data[at + 1 : most : _SIZE].lstrip(b"\x02")
        end = most - _SIZE * max(len(other_kind), len(other_length))
    _PROCESS[first_byte](session, stats, data[at:end], acknowledgements)
    return end


def _on_pubacks(session: Session, stats: Stats, run: bytes, acknowledgements: list[bytes]) -> None:
    """Process PUBACKs: the client has the messages; those of a shared subscription are acknowledged to its group."""
    del acknowledgements
    in_flight, store = session.in_flight, session.store
    for (packet_id,) in _packet_ids(run):
        # Any: compiled code would take the whole tuple apart for each of its items that is used.
        entry: Any = in_flight.get(packet_id)
        kind: int = entry[2] if entry is not None else 2
        if kind == 1:
            del in_flight[packet_id]
            if store is not None:
                store.remove_delivery(session.number, entry[0])
        elif kind == SHARED:
            session.acknowledge_shared(packet_id)
        else:
            count_unknown(stats, entry is not None, "PUBACK for a QoS 2 message")


def _on_pubrecs(session: Session, stats: Stats, run: bytes, acknowledgements: list[bytes]) -> None:
    """Process PUBRECs: from now on PUBREL is sent again, never PUBLISH [MQTT-4.3.3-1]."""
    in_flight, store = session.in_flight, session.store
    answered = 0
    unknown: list[int] = []
    try:
        for (packet_id,) in _packet_ids(run):
            entry = in_flight.get(packet_id)
            if entry is None or entry[2] != 2:
                # Answer with PUBREL anyway: without it the client could not release the identifier.
                count_unknown(stats, entry is not None, "PUBREC for a QoS 1 message")
                unknown.append(answered)
            elif entry[3] is not None:
                # Move it to the end, so that PUBRELs are resent in the order of their PUBRECs [MQTT-4.6.0-4].
                del in_flight[packet_id]
                in_flight[packet_id] = (entry[0], packet_id, 2, None, b"", OPEN, 0)
                if store is not None:
                    store.set_released(session.number, entry[0])
            answered += _SIZE
    finally:
        acknowledgements.append(_answer(session, run[:answered], PUBREL, unknown))


def process_failed_pubrec(session: Session, stats: Stats, packet_id_bytes: bytes) -> None:
    """Process a PUBREC of MQTT 5 that refuses the message: it ends without PUBREL [MQTT-4.3.3-4]."""
    packet_id = packet_id_bytes[0] << 8 | packet_id_bytes[1]
    entry = session.in_flight.get(packet_id)
    if entry is None or entry[2] != 2:
        count_unknown(stats, entry is not None, "PUBREC for a QoS 1 message")
        return
    del session.in_flight[packet_id]
    if session.store is not None:
        session.store.remove_delivery(session.number, entry[0])


def _on_pubrels(session: Session, stats: Stats, run: bytes, acknowledgements: list[bytes]) -> None:
    """Process PUBRELs: the client may use the identifiers of its messages again."""
    del stats
    inbound, store = session.inbound, session.store
    unknown: list[int] = []
    for number, (packet_id,) in enumerate(_packet_ids(run)):
        if packet_id in inbound:
            inbound.remove(packet_id)
            if store is not None:
                store.set_inbound(session.number, packet_id, False)
        else:
            # The message was completed before; the client only missed the PUBCOMP.
            unknown.append(number * _SIZE)
    acknowledgements.append(_answer(session, run, PUBCOMP, unknown))


def _on_pubcomps(session: Session, stats: Stats, run: bytes, acknowledgements: list[bytes]) -> None:
    """Process PUBCOMPs: the client has released the identifiers of its messages."""
    del acknowledgements
    in_flight, store = session.in_flight, session.store
    for (packet_id,) in _packet_ids(run):
        entry = in_flight.get(packet_id)
        if entry is None or entry[3] is not None:
            count_unknown(stats, entry is not None, "PUBCOMP before PUBREC")
        else:
            del in_flight[packet_id]
            if store is not None:
                store.remove_delivery(session.number, entry[0])


_PROCESS: Final = {PUBACK: _on_pubacks, PUBREC: _on_pubrecs, PUBREL: _on_pubrels, PUBCOMP: _on_pubcomps}
_KINDS: Final = {first_byte: bytes((first_byte,)) for first_byte in _PROCESS}
ACKNOWLEDGEMENTS: Final = frozenset(_PROCESS)


def _answer(session: Session, run: bytes, first_byte: int, unknown: list[int]) -> bytes:
    """Return acknowledgements of the kind `first_byte` with the packet identifiers of `run`.

    unknown: indices in `run` of the packets whose identifier is not in use: a client of MQTT 5 is told so.
    """
    if unknown and session.protocol_level == 5:
        codes = dict.fromkeys(unknown, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
        starts = range(0, len(run), _SIZE)
        return b"".join(encode_acknowledgement(first_byte, run[at + 2 : at + 4], codes.get(at, 0)) for at in starts)
    answer = bytearray(run)
    answer[::_SIZE] = bytes((first_byte,)) * (len(run) // _SIZE)
    return bytes(answer)


def count_unknown(stats: Stats, is_known: bool, reason: str) -> None:
    """Count an acknowledgement of an unused packet identifier. Raises MalformedPacket(reason) if it is in use."""
    if is_known:
        raise MalformedPacket(reason)
    stats.unknown_acknowledgements += 1

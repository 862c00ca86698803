"""Turn messages that a decoder of ingest.toml reads into rows of tables.

A reading with a boot and a seq from its device is like any other. A reading without them is *unnumbered*: its place
in the spool identifies it. Its boot is then the spool, and its seq is negative, which no device can send. So no seq
is ever missing between two such readings, and a reading that is sent twice is stored twice.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..decoders.reading import BadRecord, Reading, guarded, run, text_of
from ..decoders.record import Record, a_name, checked
from ..decoders.rules import Match, Rules
from ..decoders.sparkplug import Births, read_alone
from ..escape import printable
from ..tables.table import places
from .record import Owner, quarantine, readings_table

FIRST_PLACE = -(1 << 63)
"""The seq of a message at the beginning of a spool; later positions have larger ones."""
_LONGEST_REASON = 500


class Foreign(NamedTuple):
    """The results of the decoders for a micro-batch; order is kept.

    :ivar mask: which messages a rule matches.
    :ivar readings: numbered readings, in READING_SCHEMA.
    :ivar unnumbered: unnumbered readings, in READING_SCHEMA.
    :ivar quarantined: refused messages and readings with refused metrics, in QUARANTINE_SCHEMA.
    """

    mask: np.ndarray
    readings: pa.Table
    unnumbered: pa.Table
    quarantined: pa.Table


def decode_foreign(messages: pa.Table, rules: Rules, births: Births) -> Foreign | None:
    """Decode the messages that a rule matches, or return None if there are none. No message makes it raise.

    :param births: content of Sparkplug's births before these messages; the births among them are added.
    """
    if not rules.decoders or not messages.num_rows:
        return None
    encoded = messages["topic"].combine_chunks().dictionary_encode()
    matches = [rules.match(topic) for topic in encoded.dictionary.to_pylist()]
    codes = encoded.indices.to_numpy()
    mask = np.array([match is not None for match in matches], dtype=bool)[codes]
    if not mask.any():
        return None
    messages, codes = messages.filter(pa.array(mask)), codes[mask]
    payloads = messages["payload"].to_pylist()
    results: list[Reading | BadRecord | None] = [None] * len(payloads)
    in_order: list[int] = []
    records: list[Record | None] = [None] * len(payloads)
    reasons: dict[int, str] = {}
    owners: dict[int, Owner] = {}
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        match = matches[codes[rows[0]]]
        assert match is not None
        if match.decode is read_alone:
            in_order += rows.tolist()
            continue
        decoded = run(match.decode, match.name, match.topic, [payloads[row] for row in rows])
        for row, result in zip(rows.tolist(), decoded, strict=True):
            results[row] = result
    for row in sorted(in_order):
        # Read the messages of a node in the order in which they came, across all of its topics.
        collector, topic, dup = (messages[name][row].as_py() for name in ("collector", "topic", "dup"))
        results[row] = births.result(collector, topic, payloads[row], dup)
    for row, result in enumerate(results):
        match = matches[codes[row]]
        assert match is not None and result is not None
        try:
            records[row] = record = _checked(result, match)
        except BadRecord as error:
            reasons[row], owners[row] = _reason(error), (_device_of(match), None, None)
        else:
            if record.refused:
                reasons[row], owners[row] = record.refused, (record.device_id, record.boot, record.seq)
    refused = sorted(reasons)
    read = [(row, record) for row, record in enumerate(records) if record is not None]
    return Foreign(
        mask,
        _readings(messages, [(row, record) for row, record in read if record.boot is not None]),
        _readings(messages, _placed(messages, [(row, record) for row, record in read if record.boot is None])),
        quarantine(
            messages.take(pa.array(refused, pa.int64())),
            [reasons[row] for row in refused],
            [owners[row] for row in refused],
            [records[row] is not None for row in refused],
        ),
    )


def owner_of_foreign(match: Match, payload: bytes) -> Owner:
    """Return the device that a message belongs to, and the boot and seq of its reading."""
    try:
        record = _checked(run(match.decode, match.name, match.topic, [payload])[0], match)
    except BadRecord:
        return _device_of(match), None, None
    return record.device_id, record.boot, record.seq


def _checked(result: Reading | BadRecord, match: Match) -> Record:
    def check() -> Record:
        # A decoder's own classes may run code here: a mapping, a property, a subclass of int.
        if isinstance(result, BadRecord):
            raise result
        return checked(result, result.device_id if match.topic.device is None else match.topic.device)

    return guarded(match.name, check)


def _reason(error: BadRecord) -> str:
    """Return a decoder's reason; made printable, as no table can hold a lone surrogate."""
    return printable(text_of(error)[:_LONGEST_REASON])


def _device_of(match: Match) -> str | None:
    """Return the device of a topic; None if the rule's pattern has no device, or the level is no valid name."""
    try:
        return a_name(match.topic.device, "id")
    except BadRecord:
        return None


def _placed(messages: pa.Table, records: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
    """Return records without an identity with the boot and seq that their place gives them."""
    some = messages.take(pa.array([row for row, _ in records], pa.int64())).combine_chunks()
    found = zip(records, some["spool"].to_pylist(), places(some).tolist(), strict=True)
    return [(row, record._replace(boot=spool, seq=FIRST_PLACE + place)) for (row, record), spool, place in found]


def _readings(messages: pa.Table, records: list[tuple[int, Record]]) -> pa.Table:
    some = messages.take(pa.array([row for row, _ in records], pa.int64()))
    return readings_table([record for _, record in records], some["payload"].to_pylist(), some)

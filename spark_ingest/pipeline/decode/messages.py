"""Divide a micro-batch's messages by topic: telemetry, status, log, or messages that a rule of ingest.toml reads.

=========================  ===================================================================================
topic                      destination
=========================  ===================================================================================
matched by a rule          the rule's decoder (:mod:`foreign`)
fleet/{device_id}/status   table status; an empty payload (a retained status was removed) is ``cleared``
fleet/{device_id}/log      table logs
any other                  read as telemetry (:mod:`record`); what is not telemetry ends in quarantine
=========================  ===================================================================================
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...decoders.fast_decode import SEQ_END
from ...decoders.json import json_object, json_text
from ...decoders.reading import BadRecord
from ...decoders.record import extra_fields
from ...decoders.rules import NO_RULES, Rules
from ...decoders.sparkplug import Births, node_of, read_alone
from ...tables.schemas import BRONZE_SCHEMA, LOGS_SCHEMA, READING_SCHEMA, STATUS_SCHEMA
from .foreign import decode_foreign, owner_of_foreign
from .record import (
    Decoded,
    Owner,
    decode,
    device_of_record,
    device_of_topic,
    owner_of_record,
    owners_of,
    quarantine,
)

MESSAGE_COLUMNS = tuple(name for name in BRONZE_SCHEMA.names if name != "received_date")
"""The columns of ``format("mqtt")`` that a micro-batch needs."""

_OTHER = r"^fleet/[^/]+/(status|log)$"
_TOPIC = re.compile(_OTHER)
_STATUS = frozenset(("boot", "online", "fw", "reason"))
_LOG = frozenset(("level", "text", "boot", "dropped_seq", "crash"))
_MOST_RANGES = 10_000
# The objects of a decoded payload take up to 40 times its bytes, so only a few payloads are objects at once.
_PIECE_BYTES = 4 << 20


class Parts(NamedTuple):
    """The messages of a micro-batch, divided into tables; each table has its schema.

    Each message is in exactly one of them, except that a reading with refused metrics is also in `quarantined`.

    :ivar unnumbered: readings that their device does not number; their place in the spool identifies them. Those in a
        message with a numbered reading are duplicates if that is one.
    :ivar ignored: number of messages that are in none of the tables: there is no value in them, or the rule says so.
    """

    readings: pa.Table
    unnumbered: pa.Table
    quarantined: pa.Table
    status: pa.Table
    logs: pa.Table
    ignored: int = 0


def part(messages: pa.Table, rules: Rules = NO_RULES, births: Births | None = None) -> Parts:
    """Divide messages by topic and decode them. Never raises because of what a device sent.

    :param messages: MESSAGE_COLUMNS; order is kept.
    :param births: content of Sparkplug's births before these messages; the births among them are added. None: there
        were none before.
    """
    births = Births() if births is None else births
    parts = [_part(piece, rules, births) for piece in _pieces(messages)]
    if len(parts) == 1:
        return parts[0]

    def joined(name: str) -> pa.Table:
        return pa.concat_tables([getattr(one, name) for one in parts]).combine_chunks()

    tables = [joined(name) for name in Parts._fields if name != "ignored"]
    return Parts(*tables, ignored=sum(one.ignored for one in parts))


def divide_ordered(messages: pa.Table, rules: Rules) -> tuple[pa.Table, pa.Table, list[str]]:
    """Return the messages that can be read alone, those of Sparkplug, and the node of each of the latter.

    Messages of a node can be read only in the order in which they came; one on a topic without a node is refused.
    """
    if not rules.has_sparkplug or not messages.num_rows:
        return messages, messages.slice(0, 0), []
    encoded = messages["topic"].combine_chunks().dictionary_encode()
    topics = encoded.dictionary.to_pylist()
    matches = [rules.match(topic) for topic in topics]
    is_ordered = np.array([match is not None and match.decode is read_alone for match in matches], dtype=bool)
    codes = encoded.indices.to_numpy()
    mask = is_ordered[codes]
    nodes = [node_of(topic) or "" for topic in topics]
    ordered = messages.filter(pa.array(mask))
    return messages.filter(pa.array(~mask)), ordered, [nodes[code] for code in codes[mask].tolist()]


def _pieces(messages: pa.Table) -> list[pa.Table]:
    """Divide messages into pieces of about _PIECE_BYTES, in their order."""
    sizes = pc.call_function("binary_length", [messages["payload"]]).to_numpy()
    numbers = (np.cumsum(sizes, dtype=np.int64) - sizes) // _PIECE_BYTES
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    return [messages.slice(start, end - start) for start, end in pairwise([*starts, messages.num_rows])]


def _part(messages: pa.Table, rules: Rules, births: Births) -> Parts:
    foreign = decode_foreign(messages, rules, births)
    if foreign is None:
        return _part_own(messages, rules.trust_ids)
    if foreign.mask.all():
        none = LOGS_SCHEMA.empty_table()
        return Parts(foreign.readings, foreign.unnumbered, foreign.quarantined, foreign.status, none, foreign.ignored)
    parts = _part_own(messages.filter(pa.array(~foreign.mask)), rules.trust_ids)
    return Parts(
        pa.concat_tables([parts.readings, foreign.readings]),
        foreign.unnumbered,
        pa.concat_tables([parts.quarantined, foreign.quarantined]),
        pa.concat_tables([parts.status, foreign.status]),
        parts.logs,
        foreign.ignored,
    )


def _part_own(messages: pa.Table, trust_ids: bool) -> Parts:
    """Divide and decode messages on topics that no rule matches."""
    topics = messages["topic"]
    plain = pc.call_function("ends_with", [topics], pc.MatchSubstringOptions("/telemetry"))
    if pc.call_function("all", [plain], pc.ScalarAggregateOptions(min_count=0)).as_py():
        decoded = decode(messages, trust_ids=trust_ids)
        return _parts(decoded, STATUS_SCHEMA.empty_table(), LOGS_SCHEMA.empty_table())
    other = pc.call_function("match_substring_regex", [topics], pc.MatchSubstringOptions(_OTHER))
    decoded = decode(messages.filter(pc.call_function("invert", [other])), trust_ids=trust_ids)
    others = messages.filter(other)
    is_status = pc.call_function("ends_with", [others["topic"]], pc.MatchSubstringOptions("/status"))
    status, bad_status = _rows(others.filter(is_status), parse_status, STATUS_SCHEMA)
    logs, bad_logs = _rows(others.filter(pc.call_function("invert", [is_status])), parse_log, LOGS_SCHEMA)
    quarantined = pa.concat_tables([decoded.quarantined, bad_status, bad_logs])
    return _parts(Decoded(decoded.readings, quarantined), status, logs)


def _parts(decoded: Decoded, status: pa.Table, logs: pa.Table) -> Parts:
    return Parts(decoded.readings, READING_SCHEMA.empty_table(), decoded.quarantined, status, logs)


def owner_of(topic: str, payload: bytes, rules: Rules) -> Owner:
    """Return the device that a message belongs to, and the boot and seq of its reading."""
    match = rules.match(topic)
    return owner_of_foreign(match, payload) if match else owner_of_record(topic, payload, trust_ids=rules.trust_ids)


def devices_of(topic: str, payload: bytes, rules: Rules) -> set[str | None]:
    """Return the devices that a message may be about: the one of its topic, and the one that its record names.

    With trusted ids, only the record's device counts, and the topic's only if no record can be read. On a topic that
    a rule matches, only the device that its decoder names counts. None in the set means that there is no device.
    """
    match = rules.match(topic)
    if match is not None:
        return {owner_of_foreign(match, payload)[0]}
    claimed = device_of_record(payload) if _TOPIC.match(topic) is None else None
    return {claimed} if rules.trust_ids and claimed else {claimed, device_of_topic(topic)}


def parse_status(payload: bytes) -> dict[str, object]:
    """Return the columns of a status message.

    :raises BadRecord: the payload is no status; the message is the reason, for people.
    """
    if not payload:
        return {"online": False, "reason": "cleared", "boot": None, "fw": None, "extra": []}
    fields = json_object(payload)
    online = fields.get("online")
    if type(online) is not bool:
        raise BadRecord("online is neither true nor false")
    texts = {name: _text(fields, name) for name in ("boot", "fw", "reason")}
    return {"online": online, **texts, "extra": list(extra_fields(fields, _STATUS).items())}


def parse_log(payload: bytes) -> dict[str, object]:
    """Return the columns of a log message.

    :raises BadRecord: the payload is no log message; the message is the reason, for people.
    """
    fields = json_object(payload)
    texts = {name: _text(fields, name) for name in ("level", "text", "boot")}
    crash = fields.get("crash")
    return {
        **texts,
        "dropped_seq": _ranges(fields.get("dropped_seq")),
        "crash": None if crash is None else json_text(crash, "crash"),
        "extra": list(extra_fields(fields, _LOG).items()),
    }


def _text(fields: dict[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not str or "\0" in value or any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise BadRecord(f"{name} is not a text")
    return value


def _ranges(value: object) -> list[dict[str, int]] | None:
    if value is None:
        return None
    if type(value) is not list or len(value) > _MOST_RANGES:
        raise BadRecord("dropped_seq is not a list of ranges")
    ranges = []
    for one in value:
        if type(one) is not list or len(one) != 2 or not all(type(seq) is int for seq in one):
            raise BadRecord("dropped_seq holds what is not a pair of whole numbers")
        if not 0 <= one[0] <= one[1] < SEQ_END:
            raise BadRecord("dropped_seq holds a range that ends before it begins, or is out of bounds")
        ranges.append({"first": one[0], "last": one[1]})
    return ranges


def _rows(
    messages: pa.Table, parse: Callable[[bytes], dict[str, object]], schema: pa.Schema
) -> tuple[pa.Table, pa.Table]:
    """Return the messages that `parse` can read as rows of `schema`, and the others as rows of quarantine."""
    rows: list[dict[str, object]] = []
    bad: list[int] = []
    reasons: list[str] = []
    for index, message in enumerate(messages.to_pylist()):
        match = _TOPIC.match(message["topic"])
        assert match is not None
        try:
            if "\0" in message["topic"]:
                raise BadRecord("the topic holds U+0000")
            columns = parse(message["payload"])
        except BadRecord as error:
            bad.append(index)
            reasons.append(f"{match[1]}: {error}")
        else:
            rows.append({**message, **columns, "device_id": message["topic"].split("/")[1]})
    refused = messages.take(pa.array(bad, pa.int64()))
    return pa.Table.from_pylist(rows, schema=schema), quarantine(refused, reasons, owners_of(refused, owner_of_record))

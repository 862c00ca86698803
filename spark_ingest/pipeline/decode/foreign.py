"""Turn messages that a decoder of ingest.toml reads into rows of tables.

A reading with a boot and a seq from its device is like any other. A reading without them is *unnumbered*: its place
in the spool identifies it. Its boot is then the spool, and its seq is negative, which no device can send. So no seq
is ever missing between two such readings, and a reading that is sent twice is stored twice.

A message may contain several readings. The first without a number has the spool as boot, the others ``SPOOL#1``,
``SPOOL#2`` and so on. If one reading of a message has a number, the unnumbered ones belong to it: they are duplicates
if it is one.
"""

from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from umqtt_cli.escape import printable

from ...decoders.fast_decode import LONGEST_NAME, TS_END
from ...decoders.fast_fields import FastReader
from ...decoders.json import shown
from ...decoders.reading import UNMATCHED, BadRecord, Reading, Result, Results, Status, guarded, raised, run, text_of
from ...decoders.record import Record, a_name, checked, extra_fields
from ...decoders.rules import Match, Rules
from ...decoders.sparkplug import Births, read_alone
from ...tables.schemas import READING_SCHEMA, STATUS_SCHEMA
from ...tables.table import places
from .fast_readings import FastReadings
from .record import Owner, quarantine, readings_of, readings_table, without_garbage_collection
from .shared_names import warn_of_shared_names

FIRST_PLACE = -(1 << 63)
"""The seq of a message at the beginning of a spool; later positions have larger ones."""
_LONGEST_REASON = 500


class Foreign(NamedTuple):
    """The results of the decoders for a micro-batch; order is kept.

    :ivar mask: which messages a rule matches.
    :ivar readings: numbered readings, in READING_SCHEMA.
    :ivar unnumbered: unnumbered readings, in READING_SCHEMA.
    :ivar quarantined: refused messages and readings with refused metrics, in QUARANTINE_SCHEMA.
    :ivar status: in STATUS_SCHEMA.
    :ivar ignored: number of messages in none of these: there is no value in them, or the rule leaves them out.
    """

    mask: np.ndarray
    readings: pa.Table
    unnumbered: pa.Table
    quarantined: pa.Table
    status: pa.Table
    ignored: int


class _Message:
    """What one message contains: its records, the device's status, and why something of it was refused."""

    __slots__ = ("owner", "reasons", "records", "status")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.status: tuple[str, Status] | None = None
        self.reasons: list[str] = []
        self.owner: Owner = (None, None, None)


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
    if not mask.all():
        messages, codes = messages.filter(pa.array(mask)), codes[mask]
    with without_garbage_collection():
        return _read_all(mask, messages, matches, codes, births)


def _read_all(
    mask: np.ndarray, messages: pa.Table, matches: list[Match | None], codes: np.ndarray, births: Births
) -> Foreign:
    """Read the messages that a rule matches. `codes`: which of `matches` each message has."""
    reader = _Reader(messages, _in_doubt(matches))
    in_order: list[tuple[int, Match]] = []
    fast: dict[FastReader, list[tuple[Match, list[int]]]] = {}
    order = np.argsort(codes, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        match = matches[codes[group[0]]]
        assert match is not None
        rows = group.tolist()
        if match.skip_retained:
            rows = [row for row in rows if not reader.is_retained[row]]
        if match.decode is read_alone:
            in_order += [(row, match) for row in rows]
        elif match.fast is not None and _device_of(match) is not None:
            fast.setdefault(match.fast, []).append((match, rows))
        else:
            reader.read(match, rows)
    for topics in fast.values():
        reader.read_fast(topics)
    reader.read_sparkplug(sorted(in_order), births)
    return Foreign(mask, *reader.tables())


def _in_doubt(matches: list[Match | None]) -> set[str]:
    """Return the rules that read several topics of one device, alone or together, or may do so.

    Which devices a rule's payloads name is not known before they are read: they may be those of any other rule.
    """
    readers: dict[str, set[str]] = {}
    every: set[str] = set()
    found: set[str] = set()
    any_device = False
    for match in matches:
        mine: dict[str, set[str]] = {}
        while match is not None:
            # Sparkplug's births name the metrics of all topics of a node: they are the same series. A status has none.
            if match.decode is not read_alone and match.name not in ("ignore", "status"):
                every.add(match.rule)
                if match.topic.device is None:
                    any_device = True
                else:
                    mine.setdefault(match.topic.device, set()).add(match.rule)
            match = match.later
        for device, rules in mine.items():
            before = readers.setdefault(device, set())
            if before:
                found |= before | rules
            before |= rules
    return every if any_device else found


class _Reader:
    """The contents of messages, as far as they are read.

    :param messages: those that a rule matches.
    :param in_doubt: rules whose topics may write the same metric of a device as other topics do.
    """

    def __init__(self, messages: pa.Table, in_doubt: set[str]) -> None:
        self._messages = messages
        self._payloads: list[bytes] = messages["payload"].to_pylist()
        self.is_retained: list[bool | None] = messages["retain"].to_pylist()
        # A record stands for a message that contains nothing else, as most do.
        self._contents: dict[int, _Message | Record] = {}
        self._fast: list[FastReadings] = []
        self._in_doubt = in_doubt
        self._rules: dict[int, str] = {}

    def read(self, match: Match, rows: list[int]) -> None:
        """Read the messages of a topic by the rule that matches it, and what the rule leaves by later ones."""
        if not rows:
            return
        results = run(match.decode, match.name, match.topic, [self._payloads[row] for row in rows])
        left: list[int] = []
        for row, result in zip(rows, results, strict=True):
            if result is UNMATCHED and match.later is not None:
                left.append(row)
            else:
                if match.rule in self._in_doubt:
                    self._rules[row] = match.rule
                self._take(row, result, match)
        if left and match.later is not None:
            self.read(match.later, left)

    def read_fast(self, topics: list[tuple[Match, list[int]]]) -> None:
        """Read messages with the fast reader of their rule, and what it leaves with the rule's decoder.

        :param topics: the match of each topic of the rule, and the rows of its messages.
        """
        rows = np.fromiter(chain.from_iterable(some for _, some in topics), np.int64)
        of_topic = np.repeat(np.arange(len(topics)), [len(some) for _, some in topics])
        fast = topics[0][0].fast
        assert fast is not None
        values, ts, left = fast.read([self._payloads[row] for row in rows.tolist()])
        for i, some in groupby(left, of_topic.__getitem__):
            self.read(topics[i][0], rows[list(some)].tolist())
        read = np.delete(rows, left), np.delete(of_topic, left)
        if len(ts):
            self._fast.append(FastReadings([match for match, _ in topics], *read, ts, values))

    def read_sparkplug(self, rows: list[tuple[int, Match]], births: Births) -> None:
        """Read the messages of nodes in the order in which they came, across all of their topics."""
        some = self._messages.take(pa.array([row for row, _ in rows], pa.int64()))
        columns = (some[name].to_pylist() for name in ("collector", "topic", "dup"))
        for (row, match), collector, topic, dup in zip(rows, *columns, strict=True):
            self._take(row, births.result(collector, topic, self._payloads[row], bool(dup)), match)

    def _take(self, row: int, results: Results, match: Match) -> None:
        if type(results) is Reading and results.ago is None:
            try:
                record = _checked(results, match)
            except BadRecord as error:
                results = error
            else:
                if not record.refused:
                    self._contents[row] = record
                    return
        several = results if isinstance(results, list) else [results]
        if several:
            self._contents[row] = self._message(row, several, match)

    def _message(self, row: int, results: list[Result], match: Match) -> _Message:
        message = _Message()
        identities: set[tuple[str, str | None, int | None]] = set()
        for result in results:
            try:
                if isinstance(result, Status):
                    message.status = _checked_status(result, match)
                    continue
                record = _checked(self._dated(row, result), match)
            except BadRecord as error:
                message.reasons.append(_reason(error))
                continue
            if record.refused:
                message.reasons.append(printable(record.refused))
            identity = record.device_id, record.boot, record.seq
            if record.boot is not None and identity in identities:
                # Two readings of one message have the same number: the first has it.
                record = record._replace(boot=None, seq=None)
            identities.add(identity)
            message.records.append(record)
        first = message.records[0] if message.records else None
        message.owner = (first.device_id, first.boot, first.seq) if first else (_device_of(match), None, None)
        return message

    def _dated(self, row: int, result: Result) -> Result:
        """Return a result with its time, if it says how long before its receipt it was taken."""
        if not isinstance(result, Reading) or result.ago is None or result.ts is not None:
            return result
        received = self._messages["received_ts"][row].cast(pa.timestamp("ms", tz="UTC")).value
        if type(result.ago) is not int or not 0 <= received - result.ago < TS_END:
            return replace(result, ago=None, refused=[*result.refused, f"time: no time: {shown(result.ago)} ms ago"])
        return replace(result, ts=received - result.ago)

    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table, int]:
        """Return the readings, unnumbered readings, quarantine, status, and the number of messages in none of them."""
        numbered: list[tuple[int, Record]] = []
        unnumbered: list[tuple[int, Record]] = []
        extra: dict[int, int] = {}
        refused: list[tuple[int, _Message]] = []
        status: list[tuple[int, tuple[str, Status]]] = []
        for row, content in sorted(self._contents.items(), key=itemgetter(0)):
            if isinstance(content, Record):
                (unnumbered if content.boot is None else numbered).append((row, content))
            else:
                numbered += [(row, record) for record in content.records if record.boot is not None]
                placed = [record for record in content.records if record.boot is None]
                extra |= {len(unnumbered) + index: index for index in range(1, len(placed))}
                unnumbered += [(row, record) for record in placed]
                refused += [(row, content)] if content.reasons else []
                status += [(row, content.status)] if content.status else []
        ignored = len(self._payloads) - len(self._contents) - sum(len(some.rows) for some in self._fast)
        self._warn([*numbered, *unnumbered])
        return (
            self._readings(numbered),
            self._placed(unnumbered, extra),
            quarantine(
                self._rows([row for row, _ in refused]),
                [_joined(message.reasons) for _, message in refused],
                [message.owner for _, message in refused],
                [bool(message.records or message.status) for _, message in refused],
            ),
            self._status(status),
            ignored,
        )

    def _warn(self, records: list[tuple[int, Record]]) -> None:
        """Report metrics that two topics of one device write, unless no rule is in doubt."""
        found: list[tuple[int, tuple]] = [(row, record) for row, record in records if row in self._rules]
        for some in self._fast:
            if some.matches[0].rule in self._in_doubt:
                self._rules |= dict.fromkeys(some.rows.tolist(), some.matches[0].rule)
                found += some.records()
        if found:
            warn_of_shared_names(self._messages, self._rules, found)

    def _rows(self, rows: np.ndarray | list[int]) -> pa.Table:
        # Often these are all messages, and none needs to be copied.
        is_all = len(rows) == len(self._payloads) and np.array_equal(rows, np.arange(len(rows)))
        return self._messages if is_all else self._messages.take(pa.array(rows, pa.int64()))

    def _readings(self, records: list[tuple[int, Record]]) -> pa.Table:
        payloads = [self._payloads[row] for row, _ in records]
        return readings_table([record for _, record in records], payloads, self._rows([row for row, _ in records]))

    def _placed(self, records: list[tuple[int, Record]], extra: dict[int, int]) -> pa.Table:
        """Return readings without an identity with the boot and seq that their place gives them.

        :param records: those that the fast readers have not read.
        :param extra: index in `records` of those that are not the first of their message, and their number in it.
        """
        rows = np.array([row for row, _ in records], np.int64)
        readings = self._readings(records)
        boots = readings["spool"]
        if extra:
            spools = boots.to_pylist()
            for index, number in extra.items():
                spools[index] = f"{spools[index]}#{number}"
            boots = pa.chunked_array([pa.array(spools, pa.string())])
        readings = readings.set_column(READING_SCHEMA.get_field_index("boot"), READING_SCHEMA.field("boot"), boots)
        if self._fast:
            parts = [readings, *(self._fast_table(some) for some in self._fast)]
            rows = np.concatenate([rows, *(some.rows for some in self._fast)])
            readings = pa.concat_tables(parts).combine_chunks()
            if (np.diff(rows) < 0).any():
                readings = readings.take(pa.array(np.argsort(rows, kind="stable")))
        seq = pa.array(places(readings) + FIRST_PLACE)
        return readings.set_column(READING_SCHEMA.get_field_index("seq"), READING_SCHEMA.field("seq"), seq)

    def _fast_table(self, some: FastReadings) -> pa.Table:
        payloads, messages = [self._payloads[row] for row in some.rows.tolist()], self._rows(some.rows)
        columns = {"device_id": some.device_ids(), "boot": messages["spool"].combine_chunks()}
        return readings_of(columns, some.ts, some.metrics(), payloads, messages)

    def _status(self, status: list[tuple[int, tuple[str, Status]]]) -> pa.Table:
        messages = self._rows([row for row, _ in status]).to_pylist()
        rows = [
            {
                **message,
                "device_id": device_id,
                "boot": one.boot,
                "online": one.online,
                "fw": None,
                "reason": one.reason,
                "extra": list(one.extra.items()),
            }
            for message, (_, (device_id, one)) in zip(messages, status, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=STATUS_SCHEMA)


def owner_of_foreign(match: Match, payload: bytes) -> Owner:
    """Return the device that a message belongs to, and the boot and seq of its reading."""
    results = run(match.decode, match.name, match.topic, [payload])[0]
    if results is UNMATCHED and match.later is not None:
        return owner_of_foreign(match.later, payload)
    for result in results if isinstance(results, list) else [results]:
        try:
            if isinstance(result, Status):
                return _checked_status(result, match)[0], None, None
            record = _checked(result, match)
        except BadRecord:
            continue
        return record.device_id, record.boot, record.seq
    return _device_of(match), None, None


def _checked(result: Result, match: Match) -> Record:
    """Return a reading as a checked record. Raises BadRecord if it is none."""
    try:
        # A decoder's own classes may run code here: a mapping, a property, a subclass of int.
        if isinstance(result, BadRecord):
            raise result
        assert isinstance(result, Reading)
        return checked(result, result.device_id if match.topic.device is None else match.topic.device)
    except (BadRecord, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise raised(match.name, error) from error


def _checked_status(status: Status, match: Match) -> tuple[str, Status]:
    """Return a device and its status. Raises BadRecord if a table cannot hold them."""

    def check() -> tuple[str, Status]:
        device_id = a_name(status.device_id if match.topic.device is None else match.topic.device, "id")
        if type(status.online) is not bool:
            raise BadRecord("online is neither true nor false")
        reason = None if status.reason is None else printable(str(status.reason)[:LONGEST_NAME])
        boot = None if status.boot is None else a_name(status.boot, "boot")
        return device_id, Status(status.online, reason, device_id, boot, extra_fields(status.extra))

    return guarded(match.name, check)


def _joined(reasons: list[str]) -> str:
    return reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else "")


def _reason(error: BadRecord) -> str:
    """Return a decoder's reason; made printable, as no table can hold a lone surrogate."""
    return printable(text_of(error)[:_LONGEST_REASON])


def _device_of(match: Match) -> str | None:
    """Return the device of a topic; None if the rule's pattern has no device, or the level is no valid name."""
    try:
        return a_name(match.topic.device, "id")
    except BadRecord:
        return None

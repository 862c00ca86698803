"""Laws of the telemetry record: valid records are read exactly, others are quarantined whole, nothing stops."""

import json
from datetime import UTC, datetime
from zlib import crc32

import cbor2
import pyarrow as pa
import pytest
from app.cbor import encode as firmware_cbor
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spark_helpers import RECEIVED_MS, TOPIC, record, topic_of

from spark_ingest.decoders.fast_decode import SEQ_END, TS_END
from spark_ingest.pipeline.decode.record import QUARANTINE_SCHEMA, READING_SCHEMA, BadRecord, decode, parse
from spark_ingest.source.rows import ARROW_SCHEMA

RECEIVED = datetime.fromtimestamp(RECEIVED_MS / 1000, UTC)


def messages(payloads: list[bytes], topic: str | None = None) -> pa.Table:
    """Return rows of ``format("mqtt")`` with these payloads, each on its device's topic or all on `topic`."""
    rows = [
        {
            "topic": topic or topic_of(payload),
            "payload": payload,
            "received_ts": RECEIVED,
            "qos": 1,
            "retain": False,
            "dup": False,
            "collector": "north",
            "spool": "00" * 16,
            "segment": 0,
            "position": 100 * i,
        }
        for i, payload in enumerate(payloads)
    ]
    return pa.Table.from_pylist(rows, schema=ARROW_SCHEMA)


def test_a_record_becomes_a_row():
    row = record("pump", "17-9f", 4211, ts=1795000000123, up=912345, m={"temp_c": 21.4, "rssi": -61, "x": None})
    (got,) = decode(messages([row])).readings.to_pylist()
    assert got == {
        "device_id": "pump",
        "boot": "17-9f",
        "seq": 4211,
        "ts": datetime.fromtimestamp(1795000000.123, UTC),
        "up_ms": 912345,
        "received_ts": RECEIVED,
        "metrics": [("temp_c", 21.4), ("rssi", -61.0), ("x", None)],
        "extra": [],
        "payload_crc": len(row) << 32 | crc32(row),
        "collector": "north",
        "spool": "00" * 16,
        "segment": 0,
        "position": 0,
        "topic": "fleet/pump/telemetry",
        "retain": False,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"ts": None},
        {"ts": 0},
        {"ts": TS_END - 1},
        {"up": None},
        {"seq": 0},
        {"seq": SEQ_END - 1},
        {"up": SEQ_END - 1},
        {"m": {}},
        {"m": {"": 1e308, "ü": -0.0}},
        {"id": "ü" * 256},
        {"unknown": {"nested": []}},
    ],
    ids=str,
)
def test_what_the_rules_allow_is_taken(fields):
    decoded = decode(messages([record("pump", "1-a", 5, **fields)]))
    assert (decoded.readings.num_rows, decoded.quarantined.num_rows) == (1, 0)


def test_a_number_beyond_doubles_is_refused_with_a_reason_and_costs_only_itself():
    """Planted: it becomes null without a trace."""
    payload = record("pump", "1-a", 5, m={"t": 21.5, "u": 1}).replace(b"21.5", b"1e999")
    one = parse(payload)
    assert one.metrics == {"u": 1} and one.refused == "metric 't' is beyond doubles: inf"
    assert decode(messages([payload])).quarantined["kept"].to_pylist() == [True]
    nan = cbor2.dumps(json.loads(record("pump", "1-a", 5)) | {"m": {"t": float("nan"), "u": 1}})
    assert parse(nan).metrics == {"t": None, "u": 1} and parse(nan).extra == {"t": '"NaN"'} and not parse(nan).refused


@pytest.mark.parametrize("number", [(1 << 53) + 1, -(1 << 53) - 1, (1 << 64) - 1, 10**20 + 1, 10**300 + 1])
def test_a_whole_number_that_a_double_rounds_is_kept_exactly(number):
    """The fast and the strict parser agree. Planted: a bound of the fast parser above 2**53."""
    for payload in (
        record("pump", "1-a", 5, m={"t": number}),
        cbor2.dumps(json.loads(record("pump", "1-a", 5)) | {"m": {"t": number}})
        if abs(number) < 1 << 64
        else record("pump", "1-a", 5, m={"t": number}),
    ):
        (row,) = decode(messages([payload])).readings.to_pylist()
        assert row["metrics"] == [("t", float(number))] and row["extra"] == [("t", str(number))]
    (row,) = decode(messages([record("pump", "1-a", 5, m={"t": 1 << 60, "u": 3})])).readings.to_pylist()
    assert row["metrics"] == [("t", 2.0**60), ("u", 3.0)] and row["extra"] == []


@pytest.mark.parametrize(
    ("text", "metrics", "reason"),
    [
        (b'"m":{"t":1,"t":2,"u":3}', {"u": 3}, "metric 't' is not a number: said 2 times: 1, 2"),
        (b'"m" :{"t":1,"t":2,"u":3}', {"u": 3}, "metric 't' is not a number: said 2 times: 1, 2"),
        (b'"m":{"t":1,"t":2},"m":{}', None, "m is not an object"),
        (b'"m":{"t":1},"seq":9', None, "seq is not a whole number"),
        (b'"m":{"a:b":1,"\\"":2}', {"a:b": 1, '"': 2}, ""),
    ],
)
def test_a_name_that_is_said_twice_is_no_value_and_is_named(text, metrics, reason):
    """Planted: the last value is taken for the only one."""
    payload = b'{"v":1,"id":"pump","boot":"b","seq":1,' + text + b"}"
    decoded = decode(messages([payload]))
    assert [dict(row["metrics"]) for row in decoded.readings.to_pylist()] == ([] if metrics is None else [metrics])
    assert "".join(decoded.quarantined["reason"].to_pylist()).startswith(reason)
    assert decoded.quarantined.num_rows == (reason != "")


BAD = {
    b"": "not JSON",
    b"\xa1": "not CBOR",
    b"\xa1\x01\x02": "not CBOR",
    b"\xa1\x61v\xd8\x23\x61a": "not CBOR",
    b"\xa1\x61v\x02": "unknown version v=2",
    b"\xa0\xa0": "1 bytes follow the CBOR map",
    b"\xa7"
    + b"".join(cbor2.dumps(x) for kv in json.loads(record("pump", "", 1)).items() for x in kv): "boot is not a name",
    b"\xff\xfe": "not UTF-8 at byte 0",
    b"{": "not JSON",
    b"[]": "not a JSON object",
    b"5": "not a JSON object",
    b"[" * 100_000: "not JSON",
    b"{}": "unknown version v=None",
    b"\xef\xbb\xbf{}": "not JSON",
    b'{"v":NaN}': "NaN is no JSON number",
    b'{"v":1,"id":"a","boot":"b","seq":' + b"9" * 5000 + b"}": "not JSON",
    record("pump", "1-a", 1, v=2): "unknown version v=2",
    record("pump", "1-a", 1, v=True): "unknown version v=True",
    record("pump", "1-a", 1) + b"{}": "not JSON",
    record("pump", "1-a", 1)[:-1]: "not JSON",
    record("", "1-a", 1): "id is not a name: ''",
    record("pump", "", 1): "boot is not a name: ''",
    record("pump", "1-a", 1, id=None): "id is missing",
    record("pump", "1-a", 1, id=7): "id is not a name: 7",
    record("p" * 257, "1-a", 1): "id is too long",
    record("a\0b", "1-a", 1): "id is too long or holds characters",
    record("\ud800", "1-a", 1): "id is too long or holds characters",
    record("pump", "1-a", -1): "seq is not a whole number",
    record("pump", "1-a", 2**53): "seq is not a whole number",
    record("pump", "1-a", 2**63 - 1): "seq is not a whole number",
    record("pump", "1-a", 1, up=1.5): "up is not a whole number",
    record("pump", "1-a", 1, up=True): "up is not a whole number",
    record("pump", "1-a", 1, ts="now"): "ts is not a whole number",
    record("pump", "1-a", 1, ts=True): "ts is not a whole number",
    record("pump", "1-a", 1, m=None): "m is missing",
    record("pump", "1-a", 1, m=[1]): "m is not an object",
}
REFUSED_METRICS = {
    record("pump", "1-a", 1, m={"t": "21", "u": 5}): "metric 't' is not a number: '21'",
    record("pump", "1-a", 1, m={"u": 5, "t": True}): "metric 't' is not a number: True",
    record("pump", "1-a", 1, m={"t": 10**400, "u": 5}): "metric 't' is not a number",
    record("pump", "1-a", 1, m={"\udfff": 1, "u": 5}): "a metric's name is not Unicode",
    record("pump", "1-a", 1, m={"t": "\x1b[2J" * 99, "w": [], "u": 5}): "... (and 1 more)",
}


CBOR_NUMBERS = st.one_of(
    st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(1 << 63), (1 << 64) - 1)
)


@given(st.text(max_size=30), st.integers(0, SEQ_END - 1), st.dictionaries(st.text(max_size=40), CBOR_NUMBERS))
@settings(max_examples=200, deadline=None)
def test_a_record_that_the_firmware_writes_as_cbor_is_the_one_that_it_writes_as_json(name, number, metrics):
    """Planted: a float loses bits by passing through 32 of them, or the pipeline takes CBOR for broken JSON."""
    fields = {
        "v": 1,
        "id": "d" + name.replace("\0", ""),
        "boot": "1-a",
        "seq": number,
        "ts": None,
        "up": 5,
        "m": metrics,
    }
    assert parse(firmware_cbor(fields)) == parse(json.dumps(fields).encode())


def test_what_breaks_a_rule_is_quarantined_whole_with_the_reason_and_its_place():
    good = record("pump", "1-a", 1)
    mixed = [payload for bad in BAD for payload in (bad, good)]
    decoded = decode(messages(mixed))
    assert decoded.readings.num_rows == len(BAD)
    assert decoded.quarantined.schema == QUARANTINE_SCHEMA
    for index, row in enumerate(decoded.quarantined.to_pylist()):
        payload = mixed[2 * index]
        assert (row["payload"], row["position"]) == (payload, 200 * index)
        assert BAD[payload] in row["reason"], (payload[:80], row["reason"])
        assert len(row["reason"]) < 200 and "\n" not in row["reason"]


def test_a_refused_metric_is_left_out_of_the_reading_and_quarantined_with_the_reason_and_its_place():
    """Planted: the whole reading is dropped with the metric, or the metric disappears silently."""
    decoded = decode(messages([*REFUSED_METRICS, record("pump", "1-a", 2)]))
    readings, quarantined = decoded.readings.to_pylist(), decoded.quarantined.to_pylist()
    assert [row["metrics"] for row in readings] == [[("u", 5.0)]] * len(REFUSED_METRICS) + [[("t", 21.5)]]
    for index, (payload, reason) in enumerate(REFUSED_METRICS.items()):
        row = quarantined[index]
        assert (row["payload"], row["position"]) == (payload, 100 * index) and reason in row["reason"]
        assert (row["device_id"], row["boot"], row["seq"], row["kept"]) == ("pump", "1-a", 1, True)
        assert row["reason"].isascii() and row["reason"].isprintable()
    assert len(quarantined) == len(REFUSED_METRICS)


@pytest.mark.parametrize("field, end", [("ts", TS_END), ("up", SEQ_END)])
@pytest.mark.parametrize("write", [json.dumps, cbor2.dumps], ids=["JSON", "CBOR"])
def test_a_time_out_of_range_is_left_out_of_the_reading_and_quarantined_with_the_reason(field, end, write):
    """Planted: the whole reading is dropped with it, or it disappears silently."""
    plain = json.loads(record("pump", "1-a", 7))
    numbers = [end - 1, end, -1, 253_402_300_799_999, (1 << 63) - 1]
    payloads = [write(plain | {field: number}) for number in numbers]
    payloads = [one if isinstance(one, bytes) else one.encode() for one in payloads]
    decoded = decode(messages(payloads, TOPIC))
    kept = [
        None if one is None else number
        for one, number in zip(decoded.readings["ts" if field == "ts" else "up_ms"].to_pylist(), numbers, strict=True)
    ]
    refused = [number for number in numbers if not 0 <= number < end]
    assert [number for number in numbers if number not in kept] == refused
    rows = decoded.quarantined.to_pylist()
    assert [row["reason"] for row in rows] == [f"{field} is not from 0 to {end - 1}: {number}" for number in refused]
    assert all((row["boot"], row["seq"], row["kept"]) == ("1-a", 7, True) for row in rows)


def test_quarantine_says_whose_a_message_is_and_which_reading_it_would_have_been():
    """Planted: quarantine uses the record's id, which the broker has not authorised."""
    bad = [record("pump", "1-a", 7, ts="now"), record("other", "1-a", 7, ts="now"), record("pump", "1-a", -1), b"?"]
    rows = decode(messages(bad, TOPIC)).quarantined.to_pylist()
    told = [(row["device_id"], row["boot"], row["seq"], row["kept"]) for row in rows]
    assert told == [("pump", "1-a", 7, False)] + [("pump", None, None, False)] * 3


def test_nothing_that_was_received_is_neither_read_nor_quarantined_when_everything_is_bad_or_nothing_is_there():
    empty = decode(messages([]))
    assert empty.readings.schema == READING_SCHEMA and empty.readings.num_rows == empty.quarantined.num_rows == 0
    assert decode(messages([b"", b""])).quarantined.num_rows == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "v": st.just(1) | JSON,
        "id": st.text(st.characters(), max_size=5) | JSON,
        "boot": st.just("1-a") | JSON,
        "seq": st.integers(-1, 2**64) | JSON,
        "ts": st.integers() | JSON,
        "up": st.integers() | JSON,
        "m": st.dictionaries(st.text(max_size=3), st.floats() | st.integers(), max_size=3) | JSON,
    },
)


@given(st.lists(st.binary(max_size=50) | FIELDS.map(lambda fields: json.dumps(fields).encode()), max_size=10))
def test_whatever_a_device_sends_ends_in_one_of_the_tables_and_in_both_when_metrics_were_refused(payloads):
    decoded = decode(messages(payloads), trust_ids=True)
    kept = sum(decoded.quarantined["kept"].to_pylist())
    assert decoded.readings.num_rows + decoded.quarantined.num_rows - kept == len(payloads)
    good = 0
    for payload in payloads:
        try:
            parse(payload)
            good += 1
        except BadRecord:
            pass
    assert decoded.readings.num_rows == good


def strictly(payloads: list[bytes]) -> list[tuple]:
    """Return what :func:`parse` alone makes of the payloads; a refused one is its reason."""
    out = []
    for payload in payloads:
        try:
            out.append(tuple(parse(payload)))
        except BadRecord as error:
            out.append((str(error),))
    return out


def quickly(payloads: list[bytes]) -> list[tuple]:
    """Return the same by way of :func:`decode`."""
    decoded = decode(messages(payloads), trust_ids=True)
    made: dict[int, tuple] = {}
    for row in decoded.readings.to_pylist():
        ts = None if row["ts"] is None else round(row["ts"].timestamp() * 1000)
        content = (row["seq"], ts, row["up_ms"], dict(row["metrics"]), dict(row["extra"]))
        made[row["position"] // 100] = (row["device_id"], row["boot"], *content, "")
    for row in decoded.quarantined.to_pylist():
        whole = made.get(row["position"] // 100, ("",))
        made[row["position"] // 100] = (*whole[:-1], row["reason"])
    return [made[i] for i in range(len(payloads))]


NUMBERS = ["0", "-0", "-0.0", "1.0", "1e0", "1E400", "-1e400", "9223372036854775807", "9223372036854775808", "01", "+1"]
NUMBERS += [
    "1.",
    ".5",
    "5e-324",
    "1e-400",
    "0.1",
    "true",
    "null",
    '"1"',
    "NaN",
    "Infinity",
    "[]",
    "123456789012345678.5",
]
NUMBERS += [str(number) for end in (SEQ_END, TS_END) for number in (end - 1, end)] + ["253402300799999"]
BIG_NUMBERS = [str(2**1023), str(2**1023 - 1), "1" + "0" * 308, "1" + "0" * 309, "9" * 5000]
NUMBER = st.sampled_from(NUMBERS + BIG_NUMBERS)
TEXT = st.text(st.characters(), max_size=4) | st.sampled_from(["\ud800", "a\0", "x" * 256, "x" * 257, "ü" * 256, ""])
BLANK = st.sampled_from(["", " ", "\n", "\t\r", "\f", "\ufeff"])


@st.composite
def nearly_records(draw) -> bytes:
    """Build JSON text by hand, since json.dumps would never write what a broken device does."""
    quoted = TEXT.map(json.dumps) | TEXT.map(lambda text: json.dumps(text, ensure_ascii=False))
    metrics = draw(st.lists(st.tuples(quoted, NUMBER), max_size=3))
    fields = [
        ('"v"', draw(st.sampled_from(["1"] * 5 + ["2", "1.0", "true"]))),
        ('"id"', draw(st.just('"pump"') | quoted)),
        ('"boot"', draw(st.just('"1-a"') | quoted)),
        ('"seq"', draw(st.just("7") | NUMBER)),
        ('"m"', "{" + ",".join(f"{name}:{number}" for name, number in metrics) + "}"),
        *draw(st.lists(st.tuples(st.sampled_from(['"ts"', '"up"', '"x"', '"id"', '"seq"']), NUMBER), max_size=2)),
    ]
    if draw(st.booleans()):
        fields = draw(st.permutations(fields))
    blank = draw(BLANK)
    text = blank + "{" + ("," + blank).join(f"{name}:{value}" for name, value in fields) + "}" + draw(BLANK)
    payload = text.encode("utf-8", "surrogatepass")
    cut = draw(st.just(len(payload)) | st.integers(0, len(payload)))
    return payload[:cut]


@settings(max_examples=200, deadline=None)
@given(st.lists(nearly_records() | st.binary(max_size=20), max_size=6))
def test_the_quick_path_says_exactly_what_the_strict_parser_says(payloads):
    assert repr(quickly(payloads)) == repr(strictly(payloads))


SENT = st.tuples(
    st.sampled_from(["fleet/a/telemetry", "fleet/a/b/telemetry", "fleet/b/telemetry", "fleet/a/x", "fleet/a", "a"]),
    st.sampled_from(
        [
            *(record(device, "1-x", 0) for device in ("a", "b", "a/b", "/")),
            *(record("a", "1-x", 1, unknown=1), record("b", "1-x", 1, m={"t": "warm", "x": 1})),
            *(b"", b"{", record("", "1-x", 2)),
        ]
    ),
)


# As many objects as payloads.
SHIFTED = [("fleet/a/telemetry", one) for one in (2 * record("a", "1-x", 0), b"", record("a", "1-x", 1))]


@given(st.lists(SENT, max_size=12), st.booleans())
@example(SHIFTED, False)
def test_messages_that_are_decoded_together_become_what_each_becomes_alone(sent, trust_ids):
    """Planted: an id with a slash is accepted on the topic that it completes, or one row is dropped for another; a
    payload has an object of the one before it."""
    table = pa.concat_tables([messages([payload], topic) for topic, payload in sent] or [messages([])])
    together = decode(table, trust_ids=trust_ids)
    alone = [decode(table.slice(row, 1), trust_ids=trust_ids) for row in range(len(sent))]
    for name in ("readings", "quarantined"):
        assert getattr(together, name).to_pylist() == [row for one in alone for row in getattr(one, name).to_pylist()]
    if not trust_ids:
        for row in together.readings.to_pylist():
            assert row["topic"].split("/")[:2] == ["fleet", row["device_id"]]


def test_every_known_refusal_is_the_same_on_the_quick_path():
    refused = [*BAD, *REFUSED_METRICS]
    assert quickly(refused) == strictly(refused)


def test_fields_that_no_column_holds_are_kept_as_json_text():
    (got,) = decode(messages([record("pump", "1-a", 5, note={"a": [1, None]}, w="ü")])).readings.to_pylist()
    assert got["extra"] == [("note", '{"a":[1,null]}'), ("w", '"\\u00fc"')]
    assert "holds a number beyond doubles" in strictly([record("p", "1-a", 5).replace(b'"v"', b'"x":1e999,"v"')])[0][0]

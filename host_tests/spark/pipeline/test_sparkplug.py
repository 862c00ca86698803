"""Sparkplug B: births make data readable; a message keeps its identity however often and in any batches it comes."""

import json
import os
import random
from itertools import pairwise

import pytest
from gold_fleet import QUERY, table_of
from spark_helpers import RECEIVED_MS
from sparkplug_payloads import (
    BOOLEAN,
    DATASET,
    DOUBLE,
    FLOAT,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT64,
    double,
    metric,
    payload,
    tagged,
)
from test_decoders import Stopped, content, rows, rules

from spark_ingest.decoders import sparkplug
from spark_ingest.decoders.reading import BadRecord
from spark_ingest.decoders.sparkplug import Births
from spark_ingest.errors import UsageError
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.pipeline.decode.messages import devices_of, part
from spark_ingest.pipeline.write.batch import BatchWriter

RULE = '[[decoder]]\ntopic = "spBv1.0/#"\nformat = "sparkplug"\n'


def birth(bd_seq: int, at: int, *metrics: bytes) -> tuple[str, bytes]:
    first = metric("bdSeq", datatype=UINT64, value=tagged(11, bd_seq))
    return "spBv1.0/plant/NBIRTH/edge", payload(0, at, first, *metrics)


def node(kind: str, seq: int | None, at: int | None, *metrics: bytes) -> tuple[str, bytes]:
    return f"spBv1.0/plant/{kind}/edge", payload(seq, at, *metrics)


def device(kind: str, seq: int, at: int, *metrics: bytes) -> tuple[str, bytes]:
    return f"spBv1.0/plant/{kind}/edge/press", payload(seq, at, *metrics)


def sent(*messages: tuple[str, bytes], at: int = 0, redelivered: tuple[int, ...] = ()):
    table = table_of([(topic, one, RECEIVED_MS) for topic, one in messages], at)
    dup = [i in redelivered for i in range(len(messages))]
    return table.set_column(table.schema.get_field_index("dup"), "dup", [dup])


BIRTH = birth(3, 1000, metric("temp", 1, DOUBLE, double(20.5)), metric("count", 2, INT8))


def test_births_aliases_deaths_a_rebirth_and_a_restart(tmp_path):
    """Planted: aliases of devices without their prefix; a rebirth that continues the old numbers."""
    parts = part(
        sent(
            BIRTH,
            device("DBIRTH", 1, 1001, metric("force", 7, FLOAT, tagged(12, 1.5, "f"))),
            node("NDATA", 2, 1002, metric(alias=1, value=double(21.0))),
            device(
                "DDATA", 3, 1003, metric(alias=7, value=tagged(12, 2.5, "f")), metric("force", value=tagged(12, 3, "f"))
            ),
            device("DDEATH", 4, 1004),
            birth(3, 2000, metric("temp", 9, DOUBLE, double(1.0))),
            node("NDATA", 1, 2001, metric(alias=9, value=double(2.0))),
            node("NDEATH", None, None, metric("bdSeq", datatype=UINT64, value=tagged(11, 3))),
            birth(4, 3000),
            node("NDATA", 1, 3001, metric("new", datatype=BOOLEAN, value=tagged(14, 1))),
        ),
        rules(tmp_path, RULE),
    )
    assert [(row["boot"], row["seq"], dict(row["metrics"])) for row in parts.readings.to_pylist()] == [
        ("3-1000", 0, {"bdSeq": 3.0, "temp": 20.5, "count": None}),
        ("3-1000", 1, {"press/force": 1.5}),
        ("3-1000", 2, {"temp": 21.0}),
        ("3-1000", 3, {"press/force": 2.5}),
        ("3-1000", 4, {}),
        ("3-2000", 0, {"bdSeq": 3.0, "temp": 1.0}),
        ("3-2000", 1, {"temp": 2.0}),
        ("4-3000", 0, {"bdSeq": 4.0}),
        ("4-3000", 1, {"new": 1.0}),
    ]
    assert {row["device_id"] for row in parts.readings.to_pylist()} == {"plant/edge"}
    assert [(row["online"], row["reason"], row["boot"]) for row in parts.status.to_pylist()] == [
        (True, "NBIRTH", "3-1000"),
        (True, "NBIRTH", "3-2000"),
        (False, "NDEATH", "3-2000"),
        (True, "NBIRTH", "4-3000"),
    ]
    assert dict(parts.readings.to_pylist()[4]["extra"])["sparkplug"] == '"DDEATH press"'
    assert "several values" in "".join(parts.quarantined["reason"].to_pylist()) and parts.quarantined.num_rows == 1


@pytest.mark.parametrize(
    ("datatype", "value", "read"),
    [
        (INT8, tagged(10, 0xFF), -1.0),
        (INT8, tagged(10, 0xFFFFFF80), -128.0),
        (INT16, tagged(10, 0x7FFF), 32767.0),
        (INT32, tagged(10, 0xFFFFFFFE), -2.0),
        (INT64, tagged(11, (1 << 64) - 5), -5.0),
        (UINT64, tagged(11, 1 << 63), float(1 << 63)),
        (None, tagged(10, 0xFFFFFFFF), 4294967295.0),
        (FLOAT, tagged(12, 1.5, "f"), 1.5),
        (DOUBLE, double(float("nan")), None),
        (BOOLEAN, tagged(14, 0), 0.0),
        (INT32, tagged(7, 1), None),
        (STRING, tagged(15, "ü".encode()), "text"),
        (DATASET, tagged(17, b"\x08\x01\x12\x01c"), {"columns": ["c"], "rows": []}),
        (17, tagged(16, b"x\xff"), "78ff"),
    ],
)
def test_each_type_of_value(tmp_path, datatype, value, read):
    """Values are sent by name with their type, and by alias with the birth's type.

    Planted: whole numbers without their sign.
    """
    how = rules(tmp_path, RULE)
    named = part(sent(birth(1, 5), node("NDATA", 1, 6, metric("x", None, datatype, value))), how)
    known = birth(1, 5, metric("x", 1, datatype))
    by_alias = part(sent(known, node("NDATA", 1, 6, metric(alias=1, value=value))), how)
    for parts in (named, by_alias):
        row = parts.readings.to_pylist()[1]
        if read == "text":
            assert dict(row["extra"]) == {"x": '"\\u00fc"'} and not row["metrics"]
        elif isinstance(read, str | dict):
            assert json.loads(dict(row["extra"])["x"]) == read and not parts.quarantined.num_rows
        else:
            assert dict(row["metrics"]) == {"x": read}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (("spBv1.0/plant/NDATA/edge", b"\xff\xff"), "not a Sparkplug payload"),
        (("spBv1.0/plant/NCMD/edge", b""), "its topic is not one of Sparkplug's births, data and deaths"),
        (("spBv1.0/plant/DDATA/edge", payload(1, 1)), "its topic is not one"),
        (("spBv1.0/STATE/host", b"{}"), "its topic is not one"),
        (("spBv1.0/plant/NDATA/other", payload(1, 1)), "the birth certificate of its node was not received"),
        ((f"spBv1.0/plant/NBIRTH/{'x' * 300}", birth(1, 1)[1]), "group/node is too long"),
        (("spBv1.0/plant/NBIRTH/other", payload(0, 1)), "NBIRTH without bdSeq"),
        (node("NBIRTH", 0, 1, metric("bdSeq", value=tagged(11, 1)), metric(alias=3)), "a metric's name is missing"),
        (node("NDATA", None, 7), "NDATA without seq"),
        (node("NDATA", 7, None), "NDATA without timestamp"),
        (node("NDATA", 256, 7), "out of range: 256"),
        (node("NDATA", 1, 1 << 63), "out of range"),
        (node("NDATA", 1, 1001, tagged(1, b"\xff\xfe")), "a text is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_quarantined_with_the_reason_and_changes_nothing_after_it(tmp_path, message, reason):
    """Planted: a birth that is half refused and half remembered."""
    good = node("NDATA", 1, 1002, metric(alias=1, value=double(21.0)))
    parts = part(sent(BIRTH, message, good), rules(tmp_path, RULE))
    quarantined = parts.quarantined.to_pylist()
    assert [row["topic"] for row in quarantined] == [message[0]]
    assert reason in quarantined[0]["reason"]
    assert [(row["seq"], dict(row["metrics"]).get("temp")) for row in parts.readings.to_pylist()] == [
        (0, 20.5),
        (1, 21.0),
    ]


def test_a_metric_whose_alias_no_birth_has_costs_only_itself(tmp_path):
    """Planted: the whole message's number is lost with the metric, and counts as missing."""
    data = node("NDATA", 1, 1001, metric(alias=5, value=double(1)), metric(alias=1, value=double(2)))
    parts = part(sent(BIRTH, data), rules(tmp_path, RULE))
    assert dict(parts.readings.to_pylist()[1]["metrics"]) == {"temp": 2.0}
    (row,) = parts.quarantined.to_pylist()
    assert row["reason"] == "metric 'alias 5' is unknown: no birth certificate of the node has it"
    assert (row["device_id"], row["boot"], row["seq"]) == ("plant/edge", "3-1000", 1)


def history(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Return what one node sends: a birth now and then, and messages whose seq wraps around."""
    messages: list[tuple[str, bytes]] = []
    seq = at = 0
    for i in range(count):
        at += rng.choice((0, 1, 1, 7))
        if i == 0 or rng.random() < 0.003:
            # Two births of a node are told apart by its clock.
            at += 1
            seq = 0
            messages.append(birth(rng.randrange(256), at, metric("temp", 1, DOUBLE, double(i))))
        else:
            seq = (seq + 1) % 256
            messages.append(node("NDATA", seq, at, metric(alias=1, value=double(i))))
    return messages


def identities(messages: list[tuple[str, bytes]], redelivered: frozenset[int] = frozenset()) -> list[tuple]:
    births = Births()
    found = []
    for i, (topic, one) in enumerate(messages):
        reading = births.read("north", topic, one, redelivered=i in redelivered)[0]
        found.append((reading.boot, reading.seq))
        if i % 50 == 0:
            births = Births(births.to_bytes())
    return found


@pytest.mark.parametrize("seed", range(40 if "UMQTT_FULL_SWEEPS" in os.environ else 3))
def test_a_message_that_is_redelivered_has_the_number_that_it_had(seed):
    """This holds over several rounds of seq, and over births.

    Planted: the number that is nearest to the newest one.
    """
    rng = random.Random(seed)
    messages = history(rng, 1500)
    once = identities(messages)
    assert len(set(once)) == len(once)
    for boot in {boot for boot, _ in once}:
        numbers = [number for one, number in once if one == boot]
        assert numbers == list(range(len(numbers)))
    end = rng.randrange(2, 1500)
    back = rng.randrange(1, min(end, 1200))
    births = [i for i, (topic, _) in enumerate(messages) if "NBIRTH" in topic and i < end]
    # Only the last two sessions are remembered.
    start = max(end - back, births[-2] if len(births) > 1 else 0)
    again = [*range(end), *range(start, end), *range(end, 1500)]
    read = identities([messages[i] for i in again], frozenset(range(end, end + end - start)))
    assert read == [once[i] for i in again], f"seed {seed}: {start}, {end}"


def test_what_comes_again_after_too_many_messages_is_quarantined():
    """Planted: it is counted from the birth."""
    births = Births()
    births.read("north", *BIRTH)
    for i in range(1, 4500):
        births.read("north", *node("NDATA", i % 256, 1000 + i))
    assert births.read("north", *node("NDATA", 600 % 256, 1600), redelivered=True)[0].seq == 600
    with pytest.raises(BadRecord, match="older than what is remembered"):
        births.read("north", *node("NDATA", 20, 1020), redelivered=True)


@pytest.mark.parametrize("seed", range(10 if "UMQTT_FULL_SWEEPS" in os.environ else 1))
def test_whatever_is_broken_off_and_repeated_the_tables_are_those_of_one_reading(tmp_path, monkeypatch, seed):
    """Planted: births as they are after the repeated micro-batch; a rebuild that forgets them after a piece."""
    monkeypatch.setattr("spark_ingest.pipeline.change.rebuild._CHUNK_ROWS", 90)
    rng = random.Random(seed)
    messages, how = history(rng, 400), rules(tmp_path, RULE)
    cuts = [0, *sorted(rng.sample(range(1, 400), 4)), 400]
    batches = [sent(*messages[a:b], at=a) for a, b in pairwise(cuts)]
    whole, tables = tmp_path / "whole", tmp_path / "tables"
    BatchWriter(whole, whole / "state", rules=how).write(sent(*messages), 0, QUERY)

    def stop(_stage: str) -> None:
        if rng.random() < 0.12:
            raise Stopped

    writer = BatchWriter(tables, tables / "state", rules=how, on_stage=stop)
    for batch_id, batch in enumerate(batches):
        while True:
            try:
                writer.write(batch, batch_id, QUERY)
                break
            except Stopped:
                writer = BatchWriter(tables, tables / "state", rules=how, on_stage=stop)
    assert content(tables, "silver") == content(whole, "silver")
    assert len(rows(tables, "silver")) == 400 and not rows(tables, "quarantine")
    assert sum(path.name.startswith("births-") for path in (tables / "state").iterdir()) <= 2
    rebuild(tables, config=tmp_path / "ingest.toml")
    assert content(tables, "silver") == content(whole, "silver")


def test_damaged_births_are_said_in_a_line_and_the_next_birth_makes_data_readable_again(tmp_path):
    how, said = rules(tmp_path, RULE), []
    BatchWriter(tmp_path, tmp_path / "state", rules=how).write(sent(BIRTH), 0, QUERY)
    (file,) = (tmp_path / "state").glob("bucket-*/births-0.json")
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    data = node("NDATA", 1, 2001, metric(alias=1, value=double(2.0)))
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=how, report=said.append)
    writer.write(sent(data, at=1), 1, QUERY)
    assert "births-0.json is damaged: Sparkplug nodes are unknown until their next birth" in said[0] and len(said) == 1
    again = birth(3, 2000, metric("temp", 1, DOUBLE, double(1.0)))
    writer.write(sent(again, data, at=2), 2, QUERY)
    assert len(rows(tmp_path, "quarantine")) == 1 and len(rows(tmp_path, "silver")) == 3


def test_nodes_that_somebody_makes_up_push_out_the_longest_silent_and_no_more(monkeypatch):
    """Planted: births that are never forgotten; a node that is forgotten while it is sending."""
    monkeypatch.setattr(sparkplug, "_LARGEST", 1000)
    births = Births()
    births.read("north", *BIRTH)
    for i in range(200):
        births.read("north", *node("NDATA", i + 1, 1001 + i))
        births.read("north", f"spBv1.0/made/NBIRTH/up{i}", birth(1, 1)[1])
        assert len(births.to_bytes()) < 40_000
    births.read("north", *node("NDATA", 201, 1300))
    with pytest.raises(BadRecord, match="birth certificate of its node was not received"):
        births.read("north", "spBv1.0/made/NDATA/up0", payload(1, 2))


@pytest.mark.parametrize("kind", ["NBIRTH", "DBIRTH of ever more", "DBIRTH without metrics"])
def test_a_node_that_fills_the_memory_of_births_pushes_out_none_of_fifty(monkeypatch, kind):
    """Planted: who was silent for longest gives way; devices without metrics are not counted."""
    monkeypatch.setattr(sparkplug, "_LARGEST", 1500)
    births = Births()

    def quiet(number: int):
        births.read("north", f"spBv1.0/plant/NBIRTH/quiet{number}", birth(1, 1, metric("temp", 1, DOUBLE))[1])

    for i in range(50):
        quiet(i)
    refused = 0
    births.read("north", *birth(1, 1))
    for i in range(20):
        metrics = [metric(f"{i}.{one}", 1 + 100 * i + one, DOUBLE) for one in range(0 if kind[-1] == "s" else 60 * i)]
        try:
            if kind == "NBIRTH":
                births.read("north", *birth(2 + i, 2 + i, *metrics))
            for one in range(0 if kind == "NBIRTH" else 60):
                births.read("north", f"spBv1.0/plant/DBIRTH/edge/{i}.{one}", payload(0, 5 + i, *metrics))
        except BadRecord:
            refused += 1
        assert births._size <= 1500 + sparkplug._OF_A_SESSION
    assert births._size == Births(births.to_bytes())._size == sum(births._sizes.values())
    assert refused
    for i in range(50, 110):
        quiet(i)
    for i in range(110):
        births.read("north", f"spBv1.0/plant/NDATA/quiet{i}", payload(1, 200, metric(alias=1, value=double(2.0))))


@pytest.mark.parametrize("length", [3, 250])
def test_a_single_node_is_bounded_too_and_what_exceeds_is_quarantined_with_a_reason(monkeypatch, tmp_path, length):
    """Planted: nodes are forgotten only while there is another one; a long name counts as one."""
    bound = 5000
    births = Births()
    births.read("north", *BIRTH)

    def devices(number: int):
        names = [f"{number}.{i}".ljust(length, "\U0001f600") for i in range(200)]
        metrics = [metric(name, 10 + 200 * number + i, DOUBLE) for i, name in enumerate(names)]
        return f"spBv1.0/plant/DBIRTH/edge/d{number}", payload(1 + number, 1001 + number, *metrics)

    messages = [devices(number) for number in range(40)]
    monkeypatch.setattr(sparkplug, "_LARGEST", bound)
    parts = part(sent(BIRTH, *messages), rules(tmp_path, RULE), births)
    kept = parts.readings.num_rows
    assert 1 + bound // (400 if length == 3 else 1000) >= kept > 3
    (reason,) = set(parts.quarantined["reason"].to_pylist())
    assert reason.startswith("only 5,000 metrics and aliases of births are remembered, and its node would have most")
    assert parts.quarantined.num_rows == 41 - kept
    assert len(births.to_bytes()) < 500 * bound
    assert births._size == Births(births.to_bytes())._size <= bound
    # What was remembered before is still known, and a rebirth begins with an empty memory.
    births.read("north", *node("NDATA", 100, 1200, metric(alias=1, value=double(2.0))))
    births.read("north", *birth(4, 2000))
    births.read("north", *devices(0))
    assert births._size <= bound


def test_no_bytes_break_it(tmp_path):
    """The bytes are those of a birth and of data, cut and changed.

    Planted: an error of Protobuf's that nobody catches.
    """
    rng, births = random.Random(7), Births()
    seeds = [BIRTH, node("NDATA", 1, 1001, metric(alias=1, value=double(2)), metric("s", value=tagged(15, b"text")))]
    for _ in range(1000):
        topic, one = rng.choice(seeds)
        data = bytearray(one[: rng.randrange(len(one) + 1)])
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        births.result("north", topic, bytes(data), False)
    Births(births.to_bytes())


def test_a_topic_must_fit_and_forgetting_knows_whose_it_is(tmp_path):
    how = rules(tmp_path, RULE)
    for topic in ("spBv1.0/{device}/#", "plant/#"):
        with pytest.raises(UsageError, match=r"topic of sparkplug begins with spBv1\.0/"):
            rules(tmp_path, RULE.replace("spBv1.0/#", topic))
    assert devices_of("spBv1.0/plant/DDATA/edge/press", b"", how) == {"plant/edge"}

"""Payloads of every kind become readings in the tables; unreadable ones are quarantined with a reason."""

import json
import os
import random
import re
import struct
import tomllib
from pathlib import Path

import cbor2
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from gold_fleet import QUERY, SECOND, assert_law, table_of
from google.protobuf import descriptor_pb2
from spark_helpers import RECEIVED_MS, record

from spark_ingest.cli.tables import tables as tables_command
from spark_ingest.decoders.rules import Rules, _remembered, load
from spark_ingest.errors import UsageError
from spark_ingest.gold import Gold
from spark_ingest.pipeline.change.delete_device import delete_device
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.pipeline.decode.messages import devices_of, part
from spark_ingest.pipeline.run.command import main as ingest
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.tables.schemas import SCHEMAS

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "ingest"


def rules(folder: Path, text: str) -> Rules:
    (folder / "ingest.toml").write_text(text)
    return Rules(False, load(folder / "ingest.toml"))


def sent(*messages: tuple[str, bytes | str | dict], at: int = 0):
    """Return a micro-batch; a dict is sent as JSON."""
    plain = [json.dumps(one) if isinstance(one, dict) else one for _, one in messages]
    payloads = [one.encode() if isinstance(one, str) else one for one in plain]
    return table_of([(topic, one, RECEIVED_MS) for (topic, _), one in zip(messages, payloads, strict=True)], at)


def read(messages, how: Rules) -> list[tuple]:
    parts = part(messages, how)
    rows = [*parts.readings.to_pylist(), *parts.unnumbered.to_pylist()]
    return [(row["device_id"], dict(row["metrics"])) for row in rows]


def reasons(messages, how: Rules) -> list[str]:
    return part(messages, how).quarantined["reason"].to_pylist()


def test_an_outsiders_decoder_is_one_file_and_this_test():
    """Planted: the file's decoder is not called, or what it refuses is lost."""
    how = Rules(False, load(EXAMPLE / "ingest.toml"))
    batch = sent(("soil/bed-3/up", struct.pack(">hH", -250, 617)), ("soil/bed-3/up", b"\1"))
    assert read(batch, how) == [("bed-3", {"temp_c": -2.5, "moisture": 61.7})]
    assert reasons(batch, how) == ["1 bytes, not 4"]


def descriptor(folder: Path) -> None:
    """Write what ``protoc --include_imports -o acme.desc`` writes for a small .proto file."""
    file = descriptor_pb2.FileDescriptorProto(name="acme.proto", package="acme", syntax="proto3")
    inner = file.message_type.add(name="Air")
    inner.field.add(name="temp_c", number=1, type="TYPE_FLOAT", label="LABEL_OPTIONAL")
    inner.field.add(name="co2", number=2, type="TYPE_UINT64", label="LABEL_OPTIONAL")
    outer = file.message_type.add(name="Reading")
    outer.field.add(name="air", number=1, type="TYPE_MESSAGE", type_name=".acme.Air", label="LABEL_OPTIONAL")
    outer.field.add(name="counter", number=2, type="TYPE_INT64", label="LABEL_OPTIONAL")
    outer.field.add(name="start", number=3, type="TYPE_STRING", label="LABEL_OPTIONAL")
    outer.field.add(name="door", number=4, type="TYPE_BOOL", label="LABEL_REPEATED")
    (folder / "acme.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


JSON = 'topic = "j/{device}"\nformat = "json"\n'
CBOR = 'topic = "c/{device}"\nformat = "cbor"\n'
PROTOBUF = 'topic = "p/{device}"\nformat = "protobuf"\ndescriptor = "acme.desc"\nmessage = "acme.Reading"\n'
# Field 1: Air with temp_c 1.5 only; 2: counter 7; 3: start "a"; 4: doors open and shut.
PACKED = b"\x0a\x05\x0d\x00\x00\xc0\x3f" + b"\x10\x07" + b"\x1a\x01a" + b"\x22\x02\x01\x00"


@pytest.mark.parametrize(
    ("rule", "topic", "payload", "metrics"),
    [
        (JSON + 'metrics = {t = "a.b.1"}', "j/d", {"a": {"b": [1, 2]}}, {"t": 2}),
        (JSON + 'metrics = {t = "a", u = "b"}', "j/d", {"a": None}, {"t": None}),
        (
            'topic = "c/{device}"\nformat = "cbor"',
            "c/d",
            cbor2.dumps({"t": 1.5, "in": {"u": True}}),
            {"t": 1.5, "in.u": 1},
        ),
        (PROTOBUF, "p/d", PACKED, {"air.temp_c": 1.5, "air.co2": 0, "counter": 7, "door.0": 1, "door.1": 0}),
        ('topic = "n/{device}/{metric}"\nformat = "number"', "n/d/t", " -1.5e1\n", {"t": -15.0}),
        ('topic = "n/{device}"\nformat = "number"\nmetric = "t"', "n/d", "OFF", {"t": 0.0}),
        ('topic = "u/{device}/#"\nformat = "umqtt"', "u/d/a/b", record("d", "b", 1), {"t": 21.5}),
        ('topic = "u/{device}/#"\nformat = "umqtt"', "u/d", cbor2.dumps(json.loads(record("d", "b", 1))), {"t": 21.5}),
        ('topic = "+/x"\nformat = "json"\ndevice = "who.id"', "a/x", {"who": {"id": "d"}, "t": 1}, {"a/t": 1}),
    ],
    ids=str,
)
def test_every_format_gives_its_metrics(tmp_path, rule, topic, payload, metrics):
    """Planted: a field of a Protobuf message that has its default value is taken for missing."""
    descriptor(tmp_path)
    assert read(sent((topic, payload)), rules(tmp_path, f"[[decoder]]\n{rule}")) == [("d", metrics)]


@pytest.mark.parametrize(
    ("rule", "topic", "payload", "reason"),
    [
        (JSON, "j/d", "[1]", 'an array: each = "." reads its elements'),
        (JSON, "j/d", "1", "not an object"),
        (JSON + 'metrics = {t = "a.b"}', "j/d", {"a": 1}, "none of the fields a.b"),
        (
            'topic = "j/{device}"\nformat = "json"\nmetrics = {t = "a"}',
            "j/d",
            {"a": "x"},
            "metric 't' is not a number: 'x'",
        ),
        (
            'topic = "j/{device}"\nformat = "json"\ntime = "at"',
            "j/d",
            {"at": "noon", "t": 1},
            "the field at is no time",
        ),
        (JSON + 'time = "at"', "j/d", {"at": -1, "t": 1}, "time: the field at is no time: -1"),
        (JSON + 'boot = "b"\nseq = "n"', "j/d", {"b": "x", "t": 1}, "n is missing"),
        (JSON, "j/" + "d" * 257, {"t": 1}, "id is too long"),
        ('topic = "j"\nformat = "json"\ndevice = "id"', "j", {"t": 1}, "device: the field id is missing"),
        ('topic = "j"\nformat = "json"\ndevice = "id"', "j", {"t": 1, "id": ""}, "id is not a name: ''"),
        (CBOR, "c/d", cbor2.dumps({"t": 1}) + b"\0", "1 bytes follow"),
        (CBOR, "c/d", b"\xd8\x1c\x81\xd8\x1d\x00", "not CBOR"),
        (CBOR, "c/d", b"\x9b\x7f" + b"\xff" * 7, "not CBOR"),
        (CBOR, "c/d", b"\xa1\xf4\x02", "keys that are neither text nor whole numbers"),
        (CBOR, "c/d", b"\x81" * 9999, "not CBOR"),
        (PROTOBUF, "p/d", b"\x0a\xff", "not a acme.Reading"),
        ('topic = "n/{device}"\nformat = "number"\nmetric = "t"', "n/d", "1_0", "not a number: b'1_0'"),
        ('topic = "n/{device}"\nformat = "number"\nmetric = "t"', "n/d", "warm", "not a number"),
        (
            'topic = "u/{device}"\nformat = "umqtt"',
            "u/eve",
            record("d", "b", 1),
            "id 'd' is not the topic's device 'eve'",
        ),
        ('topic = "x/{device}"\nformat = "odd.py"', "x/d", "raise", "the decoder odd.py raised KeyError: 'boom'"),
        (
            'topic = "x/{device}"\nformat = "odd.py"',
            "x/d",
            "none",
            "the decoder odd.py returned 0 results for 1 payloads",
        ),
        ('topic = "x/{device}"\nformat = "odd.py"', "x/d", "junk", "neither a Reading nor a BadRecord"),
        ('topic = "x/{device}"\nformat = "odd.py"', "x/d", "types", "m is not an object: 5"),
    ],
    ids=str,
)
def test_what_no_decoder_can_read_is_quarantined_and_stops_nothing(tmp_path, rule, topic, payload, reason):
    """Planted: an exception of a decoder ends the micro-batch, or affects other payloads of the topic."""
    descriptor(tmp_path)
    (tmp_path / "odd.py").write_text(
        "from spark_ingest.decoders import Reading\n"
        "def decode(topic, payloads):\n"
        "    if b'raise' in payloads: raise KeyError('boom')\n"
        "    if b'none' in payloads: return []\n"
        "    return [{b'junk': 5, b'types': Reading(5)}.get(p, Reading({'t': 1})) for p in payloads]\n"
    )
    how = rules(tmp_path, f"[[decoder]]\n{rule}")
    (why,) = reasons(sent((topic, payload)), how)
    assert reason in why and why.isprintable()
    if "odd" in rule and payload == "raise":
        assert read(sent((topic, "good"), (topic, payload), (topic, "good")), how) == [("d", {"t": 1})] * 2


MANY = """from spark_ingest.decoders import BadRecord, Reading, each_payload

@each_payload
def decode(topic, payload):
    for i in range(int(payload)):
        yield Reading({"t": i}, ts=1795000000000 + i)
    raise BadRecord("no more")
"""


def test_a_decoder_may_yield_many_readings_and_those_before_its_error_are_kept(tmp_path):
    """Planted: the first one alone; none, if a later one cannot be read."""
    (tmp_path / "many.py").write_text(MANY)
    how, batch = rules(tmp_path, '[[decoder]]\ntopic = "x/{device}"\nformat = "many.py"'), sent(("x/d", "3"))
    assert read(batch, how) == [("d", {"t": i}) for i in range(3)] and reasons(batch, how) == ["no more"]
    assert len({row["boot"] for row in part(batch, how).unnumbered.to_pylist()}) == 3


TIMED = """from spark_ingest.decoders import Reading

def decode(topic, payloads):
    return [Reading({"t": 1}, boot="1-a", seq=7, ts=int(one)) for one in payloads]
"""


@pytest.mark.parametrize(
    ("rule", "payloads"),
    [
        (
            JSON + 'time = "at"',
            [{"at": at, "t": 1} for at in (-1, 1e23, "9999-12-31T00:00:00", "1969-12-31T23:59:59Z")],
        ),
        ('topic = "c/{device}"\nformat = "cbor"\ntime = "at"', [cbor2.dumps({"at": 1e23, "t": 1})]),
        ('topic = "x/{device}"\nformat = "timed.py"', ["-1", "9214646400000"]),
    ],
    ids=["json", "cbor", "python"],
)
def test_a_time_that_no_reader_can_show_is_left_out_whoever_decodes_it(tmp_path, rule, payloads):
    """Planted: a decoder whose reading is dropped with its time."""
    (tmp_path / "timed.py").write_text(TIMED)
    how = rules(tmp_path, f"[[decoder]]\n{rule}")
    batch = sent(*((rule[9] + "/d", payload) for payload in payloads))
    assert read(batch, how) == [("d", {"t": 1.0})] * len(payloads)
    parts = part(batch, how)
    assert {*parts.readings["ts"].to_pylist(), *parts.unnumbered["ts"].to_pylist()} == {None}
    assert parts.quarantined["kept"].to_pylist() == [True] * len(payloads)
    told = ("ts is not from 0 to 9214646399999: ", "time: the field at is no time: ")
    assert all(reason.startswith(told) for reason in reasons(batch, how))


ODD = """
import sys
from spark_ingest.decoders import BadRecord, Reading

class Odd(dict):
    def items(self): raise Ended("items")
    keys = items
class Number(float):
    def __add__(self, other): return "no number"
class Mute(BadRecord):
    def __str__(self): raise Ended("mute")
class Wrong(Reading):
    ts = property(lambda self: 1 / 0)
class Ended(BaseException):
    pass
class Shy:
    def __repr__(self): raise Ended("shy")

def throw(error):
    raise error

MAKE = [
    lambda: Reading(None), lambda: Reading({1: 2}), lambda: Reading([1]), lambda: Reading({"a": Shy()}),
    lambda: Reading(Odd(a=1)), lambda: Reading({"a": object()}), lambda: Reading({"a": 1}, extra=None),
    lambda: Reading({"a": 1}, extra=5), lambda: Reading({"a": 1}, extra={1: 2}),
    lambda: Reading({"a": 1}, extra=Odd(a=1)),
    lambda: Reading({"a": 1}, extra={"x": float("nan")}), lambda: Reading({"a": 1}, extra={"x": Shy()}),
    lambda: Reading({"a": 1}, extra={"x": Odd(a=1)}), lambda: Reading({"a": 1}, boot=5, seq=1),
    lambda: Reading({"a": 1}, boot="b", seq="x"), lambda: Reading({"a": 1}, boot="b", seq=True),
    lambda: Reading({"a": 1}, ts=1.5), lambda: Reading({"a": 1}, ts=Shy()), lambda: Wrong({"a": 1}),
    lambda: BadRecord("\\ud800\\n\\x1b[2J"), lambda: Mute(), lambda: BadRecord(Shy()),
    lambda: BadRecord, lambda: None, lambda: 5,
    lambda: sys.exit(3), lambda: throw(GeneratorExit), lambda: throw(Ended("it")), lambda: throw(MemoryError),
    lambda: throw(StopIteration), lambda: throw(RecursionError), lambda: throw(Mute()),
    lambda: throw(ValueError("\\ud800")),
]
GOOD = [lambda: Reading({"a": Number(1.5)}), lambda: Reading({"a": 1.5}, extra={})]

def decode(topic, payloads):
    return [(MAKE + GOOD)[int(payload)]() for payload in payloads]
"""


def test_whatever_a_decoder_raises_or_returns_is_quarantined_with_its_name_or_reason(tmp_path):
    """Planted: what the reading's own classes raise, and exceptions that end a program, stop the pipeline."""
    (tmp_path / "odd.py").write_text(ODD)
    content: dict = {}
    exec(compile(ODD, "odd.py", "exec"), content)
    how = rules(tmp_path, '[[decoder]]\ntopic = "x/{device}"\nformat = "odd.py"')
    wrong, good = range(len(content["MAKE"])), len(content["MAKE"])
    for number in wrong:
        messages = sent(("x/d", str(good)), ("x/d", str(number)), ("x/d", str(good + 1)))
        parts = part(messages, how)
        (why,) = parts.quarantined["reason"].to_pylist()
        assert why.isprintable(), number
        # A refused metric leaves the rest of the reading, without any metric here.
        kept = parts.quarantined["kept"].to_pylist()[0]
        assert [dict(one).get("a") for one in parts.unnumbered["metrics"].to_pylist() if one] == [1.5, 1.5], number
        assert parts.unnumbered.num_rows == 2 + kept
        assert devices_of("x/d", str(number).encode(), how) == {"d"}
    batch = sent(*(("x/d", str(number)) for number in (*wrong, good)))
    assert len(reasons(batch, how)) == len(wrong)
    shown = " ".join(reasons(batch, how))
    for part_of_it in (
        "odd.py raised SystemExit: 3",
        "odd.py raised Ended: it",
        "odd.py raised AttributeError",
        "items",
    ):
        assert part_of_it in shown


def test_a_decoder_is_interrupted_by_ctrl_c_alone(tmp_path):
    (tmp_path / "odd.py").write_text("def decode(topic, payloads): raise KeyboardInterrupt")
    how = rules(tmp_path, '[[decoder]]\ntopic = "x/{device}"\nformat = "odd.py"')
    with pytest.raises(KeyboardInterrupt):
        reasons(sent(("x/d", "1")), how)


@pytest.mark.parametrize("line", ["import sys; sys.exit(4)", "raise SystemExit", "raise BaseException('no')", "1 / 0"])
def test_a_decoders_file_that_ends_the_program_is_an_error_of_its_own(tmp_path, capsys, line):
    """Planted: umqtt ingest ends with the exit code that the file gives, without a word."""
    (tmp_path / "odd.py").write_text(line)
    (tmp_path / "ingest.toml").write_text('[[decoder]]\ntopic = "x/{device}"\nformat = "odd.py"')
    fixed = ["--spool", "s", "--tables", "t", "--checkpoint", "c"]
    assert ingest([*fixed, "--config", str(tmp_path / "ingest.toml")]) == 2
    assert re.fullmatch("pipeline: .*decoder 1: cannot import .*odd.py: .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no [[decoder]]"),
        ("x = ", "is not TOML"),
        ('x = 1\n[[decoder]]\ntopic = "a/{device}"\nformat = "json"', "there is no key x"),
        ('[[decoder]]\nformat = "json"', "decoder 1: there is no topic"),
        ('[[decoder]]\ntopic = "a"', "there is no format"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "xml"', "there is no format 'xml'"),
        ('[[decoder]]\ntopic = "a/x{device}"\nformat = "json"', "is no pattern"),
        ('[[decoder]]\ntopic = "#/{device}"\nformat = "json"', "is no pattern"),
        ('[[decoder]]\ntopic = "{device...}/{metric...}"\nformat = "json"', "is no pattern"),
        ('[[decoder]]\ntopic = "a"\nformat = "json"', "give the device either as"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "json"\ndevice = "id"', "give the device either as"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "json"\nseq = "n"', "give both or neither"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "json"\nmetrics = {t = 1}', "must be a table of names"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "number"', "the metric's name is {metric}"),
        (
            '[[decoder]]\ntopic = "a/{device}"\nformat = "number"\ntime = "t"',
            "number has no key time; it has map, metric",
        ),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "protobuf"', "needs a descriptor and a message"),
        (f"[[decoder]]\n{PROTOBUF}", "acme.desc: No such file"),
        ('[[decoder]]\ntopic = "a/{device}"\nformat = "none.py"', "cannot import"),
    ],
)
def test_a_file_that_cannot_work_is_refused_in_one_line_that_says_where(tmp_path, text, complaint):
    with pytest.raises(UsageError) as refused:
        rules(tmp_path, text)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)


def test_the_first_rule_that_matches_reads_and_the_rest_is_read_as_without_a_file(tmp_path):
    """Planted: rules are tried from the end, or a rule hides this project's own status and telemetry."""
    how = rules(
        tmp_path,
        '[[decoder]]\ntopic = "a/{device}/t"\nformat = "number"\nmetric = "first"\n'
        '[[decoder]]\ntopic = "+/{device}/#"\nformat = "number"\nmetric = "second"\n'
        '[[decoder]]\ntopic = "{device}"\nformat = "number"\nmetric = "third"\n',
    )
    topics = ["a/x/t", "a/x", "a/x/t/u", "x", "$SYS", "b//c"]
    assert read(sent(*((topic, "1") for topic in topics)), how) == [
        ("x", {"first": 1}),
        ("x", {"a/second": 1}),
        ("x", {"a/t/u/second": 1}),
        ("x", {"third": 1}),
    ]
    own = rules(tmp_path, '[[decoder]]\ntopic = "n/{device}"\nformat = "number"\nmetric = "t"')
    parts = part(
        sent(("n/x", "1"), ("fleet/d/telemetry", record("d", "b", 1)), ("fleet/d/status", '{"online":true}')), own
    )
    assert [len(one) for one in parts[:5]] == [1, 1, 0, 1, 0] and parts.ignored == 0


def test_topics_that_a_client_makes_up_do_not_stay_in_memory(tmp_path):
    """Planted: every topic is remembered, up to 64 KB each."""
    how = rules(tmp_path, '[[decoder]]\ntopic = "n/{device}/#"\nformat = "number"\nmetric = "t"')
    _remembered.cache_clear()
    assert read(sent(("n/d/" + "x" * 60_000, "1"), ("n/d/x", "2")), how) == [
        ("d", {"x" * 60_000 + "/t": 1}),
        ("d", {"x/t": 2}),
    ]
    assert _remembered.cache_info().currsize == 1


RULES = """
[[decoder]]
topic = "n/{device}/{metric}"
format = "number"

[[decoder]]
topic = "j/{device}"
format = "json"
boot = "run"
seq = "n"
time = "at"
"""


def fleet(seed: int) -> list:
    """Make micro-batches of numbers without an identity, JSON with one, own records, duplicates and rubbish."""
    rng = random.Random(seed)
    messages: list[tuple[str, bytes, int]] = []
    for i in range(90):
        at = RECEIVED_MS + i * SECOND
        device, seq = rng.choice("abc"), rng.randrange(40)
        numbered = {"run": "1", "n": seq, "at": RECEIVED_MS + seq * SECOND, "t": seq}
        some = [
            (f"n/{device}/t", b"%d" % rng.randrange(9), at),
            (f"j/{device}", json.dumps(numbered).encode(), at),
            (f"fleet/{device}/telemetry", record(device, "9-b", seq), at),
            (f"n/{device}/t", b"?", at),
            (f"j/{device}", json.dumps(numbered | {"t": "x", "u": 1}).encode(), at),
        ]
        messages.append(rng.choice(some))
    cuts = sorted(rng.sample(range(90), 3))
    return [table_of(messages[a:b], a) for a, b in zip([0, *cuts], [*cuts, 90], strict=True)]


class Stopped(Exception):
    pass


def rows(folder: Path, name: str) -> list[dict]:
    return DeltaTable(str(folder / name)).to_pyarrow_table(columns=SCHEMAS[name].names).to_pylist()


def content(folder: Path, name: str) -> list[str]:
    return sorted(map(repr, rows(folder, name)))


@pytest.mark.parametrize("seed", range(20 if "UMQTT_FULL_SWEEPS" in os.environ else 1))
def test_whatever_was_broken_off_every_message_is_a_reading_once_also_without_an_identity(tmp_path, seed):
    """Planted: a replay or a new checkpoint stores readings known by their place again, or their places count as
    gaps.
    """
    how, rng, batches = rules(tmp_path, RULES), random.Random(seed), fleet(seed)
    tables = tmp_path / "tables"
    whole = tmp_path / "whole"
    writer = BatchWriter(whole, whole / "state", rules=how, report=lambda _line: None)
    for batch_id, batch in enumerate(batches):
        writer.write(batch, batch_id, QUERY)

    def stop(_stage: str) -> None:
        if rng.random() < 0.08:
            raise Stopped

    gold = Gold(tables)
    for query in (QUERY, "another checkpoint"):
        for batch_id, batch in enumerate(batches):
            while True:
                try:
                    writer = BatchWriter(
                        tables, tables / f"state {query}", rules=how, on_stage=stop, report=lambda _line: None
                    )
                    writer.write(batch, batch_id, query)
                    break
                except Stopped:
                    continue
            gold.update()
    for name in ("bronze", "silver", "quarantine", "status"):
        assert content(tables, name) == content(whole, name), name
    silver = rows(tables, "silver")
    assert len({(row["device_id"], row["boot"], row["seq"]) for row in silver}) == len(silver)
    by_place = [row for row in silver if row["seq"] < 0]
    messages = [row for batch in batches for row in batch.to_pylist()]
    numbers = [row for row in messages if row["topic"][0] == "n" and row["payload"] != b"?"]
    assert sorted(row["position"] for row in by_place) == sorted(row["position"] for row in numbers)
    assert {row["boot"] for row in rows(tables, "gold/gaps")} <= {"1", "9-b"}
    assert {row["boot"] for row in rows(tables, "gold/boots")} == {"1", "9-b"}
    assert sum(row["readings"] for row in rows(tables, "gold/devices")) == len(silver)
    assert writer.totals.boots == len({(row["device_id"], row["boot"]) for row in silver if row["seq"] >= 0})

    with pytest.raises(UsageError, match="give it with --config"):
        rebuild(tables)
    before = {name: content(tables, name) for name in ("silver", "quarantine")}
    rebuild(tables, config=tmp_path / "ingest.toml")
    assert {name: content(tables, name) for name in before} == before
    gone = delete_device(tables, "a", tmp_path / "ingest.toml")
    assert gone["bronze"] == sum("/a" in row["topic"] for row in messages)
    assert not [row for row in content(tables, "bronze") if "/a" in row]


def test_gold_of_foreign_readings_bit_by_bit_equals_gold_counted_anew(tmp_path, monkeypatch):
    """Planted: a reading known by its place becomes a boot, is missing, or is forgotten when the state is read
    again.
    """
    how = rules(tmp_path, RULES)
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=how, report=lambda _line: None)
    for batch_id, batch in enumerate(fleet(7)):
        writer.write(batch, batch_id, QUERY)
        Gold(tmp_path).update()
    monkeypatch.setattr("gold_fleet.rebuild", lambda folder: rebuild(folder, config=tmp_path / "ingest.toml"))
    assert_law(tmp_path, 7)


def test_the_decoder_and_its_test_in_the_docs_are_the_example_and_pass(monkeypatch):
    """Planted: the page's decoder is not the file that the rule names."""
    page = (EXAMPLE.parents[1] / "docs" / "decoders.md").read_text()
    decoder, test = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (EXAMPLE / "soil.py").read_text().endswith(decoder)
    monkeypatch.syspath_prepend(EXAMPLE)
    exec(test, {})
    assert tomllib.loads(re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0])["include"]


def test_the_commands_hand_the_file_on(tmp_path, monkeypatch, capsys):
    """Planted: an option is parsed and forgotten, or an unreadable file starts Spark."""
    given: dict = {}
    monkeypatch.setattr("spark_ingest.pipeline.run.command._run", lambda options, *_: given.update(options) or {})
    fixed = ["--spool", "s", "--tables", "t", "--checkpoint", "c", "--config"]
    assert ingest([*fixed, str(EXAMPLE / "ingest.toml"), "--trust-ids"]) == 0
    assert given["rules"] == Rules(True, load(EXAMPLE / "ingest.toml"))
    given.clear()
    assert ingest([*fixed, str(tmp_path / "none.toml")]) == 2 and not given
    assert re.fullmatch("pipeline: cannot read .*none.toml: .*\n", capsys.readouterr().err)
    how = rules(tmp_path, RULES)
    BatchWriter(tmp_path, tmp_path / "state", rules=how).write(sent(("n/a/t", "1"), ("n/b/t", "2")), 0, QUERY)
    for command, left in ((["rebuild"], 2), (["forget", "a"], 1)):
        more = ["--tables", str(tmp_path)]
        refused = CliRunner().invoke(tables_command, [*command, *more])
        assert "give it with --config" in str(refused.exception)
        done = CliRunner().invoke(tables_command, [*command, *more, "--config", str(tmp_path / "ingest.toml")])
        assert done.exit_code == 0, done.exception
        assert len(rows(tmp_path, "silver")) == left

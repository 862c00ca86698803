"""Sparkplug: whatever is born, dies or is lost, a value has the name of its birth, its time and its quality."""

import gzip
import json
import os
import random
import struct
import zlib
from itertools import pairwise
from pathlib import Path

import pytest
from gold_fleet import QUERY
from spark_helpers import RECEIVED_MS
from sparkplug_payloads import BOOLEAN, DOUBLE, INT32, STRING, UINT64, double, metric, payload, tagged
from test_decoders import rows, rules
from test_sparkplug import RULE, birth, device, node, sent

from spark_ingest.decoders.reading import Reading
from spark_ingest.decoders.sparkplug import Births
from spark_ingest.gold import Gold
from spark_ingest.pipeline.decode.messages import part
from spark_ingest.pipeline.write.batch import BatchWriter

LIBRARIES = Path(__file__).resolve().parents[1] / "sparkplug"


def death(bd_seq: int) -> tuple[str, bytes]:
    return node("NDEATH", None, None, metric("bdSeq", datatype=UINT64, value=tagged(11, bd_seq)))


def at(name: str, ms: int, value: bytes, *more: bytes, alias: int | None = None) -> bytes:
    return metric(name or None, alias, DOUBLE, tagged(3, ms) + b"".join(more) + value)


def quality(code: int) -> bytes:
    """Return a property set with the quality of a metric."""
    return tagged(9, tagged(1, b"Quality") + tagged(2, tagged(1, INT32) + tagged(3, code)))


def read(folder, *messages: tuple[str, bytes]):
    return part(sent(*messages), rules(folder, RULE))


BIRTH = birth(3, 1000, metric("temp", 1, DOUBLE, double(20.5)), metric("humidity", 2, DOUBLE))
BY_ALIAS = metric(alias=1, value=double(56))


def test_after_a_death_an_alias_has_no_name_until_the_next_birth(tmp_path):
    """The node restarts while the collector is away: its NBIRTH is not queued, its NDEATH is.

    Planted: the humidity of the next session is stored as the temperature 56, as it was.
    """
    parts = read(
        tmp_path, BIRTH, death(3), node("NDATA", 1, 2001, BY_ALIAS), birth(4, 3000, metric("humidity", 1, DOUBLE))
    )
    assert [dict(row["metrics"]) for row in parts.readings.to_pylist()] == [
        {"bdSeq": 3, "temp": 20.5, "humidity": None},
        {"bdSeq": 4, "humidity": None},
    ]
    (why,) = parts.quarantined["reason"].to_pylist()
    assert why.startswith("its node died, and the next birth certificate was not received: ask the node for a rebirth")


@pytest.mark.parametrize(("old", "new"), [(3, 4), (255, 0), (250, 4)])
def test_a_late_death_of_an_earlier_session_changes_nothing(tmp_path, old, new):
    """Planted: any NDEATH ends the session; bdSeq 255 is later than 0."""
    temp = metric("temp", 1, DOUBLE, double(1))
    parts = read(tmp_path, birth(old, 1000, temp), birth(new, 2000, temp), death(old), node("NDATA", 1, 2001, BY_ALIAS))
    assert dict(parts.readings.to_pylist()[-1]["metrics"]) == {"temp": 56.0} and not parts.quarantined.num_rows
    assert parts.status["online"].to_pylist() == [True, True] and parts.ignored == 1


def test_a_death_of_a_session_that_was_not_seen_ends_the_one_that_was(tmp_path):
    parts = read(tmp_path, BIRTH, death(5), node("NDATA", 1, 2001, BY_ALIAS))
    assert parts.readings.num_rows == 1 and parts.quarantined.num_rows == 1


def test_aliases_are_those_of_the_device_that_sends_them(tmp_path):
    """Planted: aliases of all devices in one table; a DDEATH changes nothing; a DDEATH without seq is refused."""
    force = metric("force", 7, DOUBLE, double(1))
    other = ("spBv1.0/plant/DDATA/edge/oven", payload(3, 1003, metric(alias=7, value=double(9))))
    dead = ("spBv1.0/plant/DDEATH/edge/press", payload(None, 1004))
    parts = read(
        tmp_path,
        BIRTH,
        device("DBIRTH", 1, 1001, force),
        device("DDATA", 2, 1002, metric(alias=7, value=double(2))),
        other,
        node("NDATA", 4, 1003, metric(alias=7, value=double(3))),
        dead,
        device("DDATA", 5, 1005, metric(alias=7, value=double(4)), at("named", 1005, double(5))),
        device("DBIRTH", 6, 1006, force),
        device("DDATA", 7, 1007, metric(alias=7, value=double(6))),
    )
    found = [dict(row["metrics"]) for row in parts.readings.to_pylist()]
    assert found[1:] == [
        {"press/force": 1},
        {"press/force": 2},
        {},
        {},
        {"press/named": 5},
        {"press/force": 1},
        {"press/force": 6},
    ]
    assert parts.quarantined["reason"].to_pylist() == [
        "metric 'alias 7' is unknown: no birth certificate of 'oven' has it",
        "metric 'alias 7' is unknown: no birth certificate of the node has it",
        "metric 'alias 7' is unknown: no birth certificate of 'press' has it",
    ]
    assert parts.quarantined["kept"].to_pylist() == [True] * 3
    (gone,) = parts.unnumbered.to_pylist()
    assert dict(gone["extra"]) == {"sparkplug": '"DDEATH press"'}


def test_each_metric_has_its_own_time(tmp_path):
    """Planted: one reading at the time of sending, and the rest in quarantine, as it was."""
    hour = 3_600_000
    now = RECEIVED_MS
    history = [at("temp", now - i * hour, tagged(5, 1) + double(i)) for i in (3, 2, 1)]
    parts = read(tmp_path, BIRTH, node("NDATA", 1, now, *history, at("humidity", now - hour, double(50))))
    rows = [*parts.readings.to_pylist()[1:], *parts.unnumbered.to_pylist()]
    assert [(round(row["ts"].timestamp() * 1000), dict(row["metrics"])) for row in rows] == [
        (now - hour, {"temp": 1, "humidity": 50}),
        (now - 2 * hour, {"temp": 2}),
        (now - 3 * hour, {"temp": 3}),
    ]
    assert not parts.quarantined.num_rows and rows[0]["seq"] == 1
    assert len({(row["boot"], row["seq"]) for row in rows}) == 3


def test_two_values_of_one_time_and_a_time_that_is_none_are_named(tmp_path):
    message = node(
        "NDATA", 1, 1001, at("temp", 1001, double(1)), at("temp", 1001, double(2)), at("x", 1 << 62, double(3))
    )
    parts = read(tmp_path, BIRTH, message)
    assert dict(parts.readings.to_pylist()[1]["metrics"]) == {"temp": 1, "x": 3}
    (why,) = parts.quarantined["reason"].to_pylist()
    assert why.startswith("time: the timestamp of metric 'x' is no time") and why.endswith("(and 1 more)")


def test_history_that_comes_again_or_to_two_collectors_is_stored_once(tmp_path):
    """Planted: what has no number of its own is stored for each copy."""
    now = RECEIVED_MS
    data = node("NDATA", 1, now, at("temp", now - 2000, double(1)), at("temp", now - 1000, double(2)))
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=rules(tmp_path, RULE), report=lambda _line: None)
    writer.write(sent(BIRTH, data, data, redelivered=(2,)), 0, QUERY)
    writer.write(sent(data, at=3, redelivered=(0,)), 1, QUERY)
    values = sorted(dict(row["metrics"]).get("temp") for row in rows(tmp_path, "silver"))
    assert values == [1, 2, 20.5] and len(rows(tmp_path, "duplicates")) == 2


@pytest.mark.parametrize(("code", "kept"), [(192, 7), (0, None), (500, None), (193, 7)])
def test_a_value_of_bad_quality_is_no_ordinary_value(tmp_path, code, kept):
    """Planted: a stale value counts as any other."""
    parts = read(tmp_path, BIRTH, node("NDATA", 1, 1001, at("temp", 1001, double(7), quality(code))))
    row = parts.readings.to_pylist()[1]
    if kept:
        assert dict(row["metrics"]) == {"temp": kept} and not row["extra"]
    else:
        assert not row["metrics"]
        name = {0: "BAD", 500: "STALE"}[code]
        assert json.loads(dict(row["extra"])["temp"]) == {"quality": name, "value": 7}
    assert not parts.quarantined.num_rows


@pytest.mark.parametrize("pack", ["deflate", "raw", "gzip"])
def test_a_compressed_payload_is_read_and_bounded(tmp_path, pack, monkeypatch):
    def packed(content: bytes) -> bytes:
        if pack == "gzip":
            return gzip.compress(content)
        packer = zlib.compressobj(wbits=-15 if pack == "raw" else 15)
        return packer.compress(content) + packer.flush()

    def message(content: bytes, body: bytes) -> tuple[str, bytes]:
        algorithm = metric("algorithm", None, STRING, tagged(15, pack.upper().encode()))
        return "spBv1.0/plant/NDATA/edge", payload(1, 1001, algorithm) + tagged(4, b"SPBV1.0_COMPRESSED") + tagged(
            5, body
        )

    inner = payload(None, None, BY_ALIAS)
    parts = read(tmp_path, BIRTH, message(inner, packed(inner)))
    assert dict(parts.readings.to_pylist()[1]["metrics"]) == {"temp": 56} and not parts.quarantined.num_rows
    for body, reason in (
        (packed(b"\0" * (9 << 20)), "unpacks to more than 8,388,608 bytes"),
        (packed(inner)[:-3], "is cut off"),
        (b"\x07\x00", "is neither DEFLATE nor GZIP"),
    ):
        (why,) = read(tmp_path, BIRTH, message(inner, body)).quarantined["reason"].to_pylist()
        assert reason in why, why


@pytest.mark.parametrize(
    ("datatype", "content", "read_as"),
    [
        (22, b"\xff\x7f", [-1, 127]),
        (24, struct.pack("<ii", -5, 9), [-5, 9]),
        (29, struct.pack("<Q", (1 << 64) - 1), [2.0**64]),
        (31, struct.pack("<dd", 0.5, -1), [0.5, -1]),
        (32, b"\x0c\0\0\0\x34\xd0", [0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1]),
        (34, struct.pack("<q", 1000), [1000]),
    ],
)
def test_arrays_of_numbers(tmp_path, datatype, content, read_as):
    parts = read(tmp_path, BIRTH, node("NDATA", 1, 1001, metric("a", None, datatype, tagged(16, content))))
    assert dict(parts.readings.to_pylist()[1]["metrics"]) == {f"a[{i}]": value for i, value in enumerate(read_as)}
    cut = read(tmp_path, BIRTH, node("NDATA", 1, 1001, metric("a", None, datatype, tagged(16, content[:-1]))))
    assert cut.quarantined.num_rows == (datatype != 22)


def test_arrays_of_text_and_templates(tmp_path):
    inner = metric("speed", None, DOUBLE, double(3)) + b""
    nested = metric("part", None, 19, tagged(18, tagged(2, metric("on", None, BOOLEAN, tagged(14, 1)))))
    template = metric("motor", None, 19, tagged(18, tagged(2, inner) + tagged(2, nested)))
    definition = metric("type", None, 19, tagged(18, tagged(2, inner) + tagged(5, 1)))
    texts = metric("t", None, 33, tagged(16, b"a\0\xc3\xbc\0"))
    parts = read(tmp_path, BIRTH, node("NDATA", 1, 1001, template, definition, texts))
    row = parts.readings.to_pylist()[1]
    assert dict(row["metrics"]) == {"motor/speed": 3, "motor/part/on": 1} and not parts.quarantined.num_rows
    assert dict(row["extra"]) == {"t[0]": '"a"', "t[1]": '"\\u00fc"'}


def test_a_metric_of_the_node_and_one_of_its_device_are_never_one_series(tmp_path):
    """Planted: the node's own press/force and the press's force are both press/force, as they were."""
    force = metric("force", 7, DOUBLE, double(2))
    parts = read(
        tmp_path,
        birth(3, 1000, metric("press/force", 1, DOUBLE, double(1)), metric("oven/heat", 2, DOUBLE, double(3))),
        device("DBIRTH", 1, 1001, force, metric("speed", 8, DOUBLE, double(4))),
        device("DDATA", 2, 1002, metric(alias=7, value=double(5)), metric(alias=8, value=double(6))),
        device("DDATA", 3, 1003, at("force", 1003, double(7))),
        node("NDATA", 4, 1004, BY_ALIAS, at("press/speed", 1004, double(8)), at("oven/heat", 1004, double(9))),
    )
    assert [dict(row["metrics"]) for row in parts.readings.to_pylist()] == [
        {"bdSeq": 3, "press/force": 1, "oven/heat": 3},
        {"press/speed": 4},
        {"press/speed": 6},
        {},
        {"press/force": 56, "oven/heat": 9},
    ]
    assert parts.quarantined["kept"].to_pylist() == [True] * 4
    assert {why.split(": ")[0] for why in parts.quarantined["reason"].to_pylist()} == {
        "metric 'press/force' is the node's and a device's",
        "metric 'press/speed' is the node's and a device's",
    }


def test_a_text_called_sparkplug_of_a_birth_is_not_lost_without_a_word(tmp_path):
    """Planted: the kind of the message takes its place."""
    parts = read(tmp_path, birth(3, 1000, metric("sparkplug", None, STRING, tagged(15, b"x"))))
    assert dict(parts.readings.to_pylist()[0]["extra"]) == {"sparkplug": '"NBIRTH"'}
    (why,) = parts.quarantined["reason"].to_pylist()
    assert why == "metric 'sparkplug' has the name under which extra has the kind of the message: 'x'"


def test_a_part_never_takes_the_name_of_a_metric(tmp_path):
    """Planted: an element of the array `a` becomes the metric that is called a[0]."""
    born = birth(3, 1000, metric("a[0]", 1, DOUBLE, double(1)), metric("a", 2, 31))
    parts = read(tmp_path, born, node("NDATA", 1, 1001, metric("a", None, 31, tagged(16, struct.pack("<dd", 5, 6)))))
    assert dict(parts.readings.to_pylist()[1]["metrics"]) == {"a[1]": 6}
    assert "metric 'a[0]' is a part of another metric" in parts.quarantined["reason"].to_pylist()[0]


def test_births_and_deaths_are_the_nodes_status_in_gold(tmp_path):
    """Planted: a node that died is online in gold."""
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=rules(tmp_path, RULE), report=lambda _line: None)
    writer.write(sent(BIRTH, node("NDATA", 1, RECEIVED_MS, BY_ALIAS)), 0, QUERY)
    Gold(tmp_path).update()
    assert [row["online"] for row in rows(tmp_path, "gold/devices")] == [True]
    writer.write(sent(death(3), at=2), 1, QUERY)
    Gold(tmp_path).update()
    ((online, reason),) = [(row["online"], row["status_reason"]) for row in rows(tmp_path, "gold/devices")]
    assert (online, reason) == (False, "NDEATH")


class Node:
    """A simulated node with two devices; it knows what each message means."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.bd_seq, self.now, self.seq = rng, 0, 1000, 0
        self.aliases: dict[str, dict[int, str]] = {}
        self.value = 0.0
        self.truth: dict[float, str] = {}

    def _message(self, kind: str, where: str, *metrics: bytes) -> tuple[str, bytes]:
        self.now += self.rng.choice((1, 1, 5))
        self.seq = 0 if kind == "NBIRTH" else (self.seq + 1) % 256
        topic = f"spBv1.0/plant/{kind}/edge{f'/{where}' if where else ''}"
        return topic, payload(self.seq, self.now, *metrics)

    def _number(self, name: str) -> bytes:
        self.value += 1
        self.truth[self.value] = name
        return double(self.value)

    def born(self, where: str, first: tuple[bytes, ...] = ()) -> tuple[str, bytes]:
        names = self.rng.sample("abcdef", 3)
        # A device keeps its aliases within a session of the node, as libraries do: its death may be lost.
        known = self.aliases.get(where) or dict(zip(self.rng.sample(range(6), 3), names, strict=True))
        self.aliases[where] = known
        prefix = f"{where}/" if where else ""
        metrics = [metric(name, alias, DOUBLE, self._number(prefix + name)) for alias, name in known.items()]
        return self._message("DBIRTH" if where else "NBIRTH", where, *first, *metrics)

    def session(self) -> list[tuple[str, bytes]]:
        """Begin a session, and return the messages of it: births, data, deaths and births of devices."""
        self.bd_seq = (self.bd_seq + 1) % 256
        self.aliases = {}
        self.now += 1
        messages = [self.born("", (metric("bdSeq", datatype=UINT64, value=tagged(11, self.bd_seq)),))]
        alive: set[str] = set()
        for _ in range(self.rng.randrange(2, 30)):
            where = self.rng.choice(("", "", "x", "y"))
            prefix = f"{where}/" if where else ""
            if where and where not in alive:
                messages.append(self.born(where))
                alive.add(where)
            elif where and self.rng.random() < 0.2:
                messages.append(self._message("DDEATH", where))
                alive.discard(where)
            else:
                some = self.rng.sample(sorted(self.aliases[where]), 2)
                metrics = [
                    metric(None, alias, None, self._number(prefix + self.aliases[where][alias])) for alias in some
                ]
                messages.append(self._message("DDATA" if where else "NDATA", where, *metrics))
        return messages


@pytest.mark.parametrize("seed", range(300 if "UMQTT_FULL_SWEEPS" in os.environ else 40))
def test_a_value_is_stored_under_the_name_that_its_birth_gave_it_or_not_at_all(seed):
    """Sessions have other aliases each time; QoS 0 is lost at random and while the collector is away; deaths are late.

    Planted: aliases of the session before after its death; those of another device; of a birth that came again.
    """
    rng = random.Random(seed)
    simulated, births = Node(rng), Births()
    stored: dict[float, str] = {}
    lossy = rng.choice((0, 0.1, 0.4))
    late: list[tuple[str, bytes]] = []
    away = False
    received: list[tuple[str, bytes]] = []
    for _ in range(8):
        for i, message in enumerate(simulated.session()):
            if rng.random() < 0.1:
                away = not away
            is_lost = away or rng.random() < lossy
            if not is_lost:
                received.append(message)
            # The NDEATH of the session before comes before its data, or after an NBIRTH that was received.
            if (late and (i > 0 or is_lost)) or (late and rng.random() < 0.5):
                received += late
                late = []
        late = [death(simulated.bd_seq)]
    for i, (topic, content) in enumerate(received):
        copies = [(topic, content, False)]
        if rng.random() < 0.1:
            again = received[rng.randrange(max(0, i - 40), i + 1)]
            copies.append((*again, True))
        for name, one, is_copy in copies:
            for result in births.result("north", name, one, is_copy):
                if isinstance(result, Reading):
                    stored |= {value: path for path, value in result.metrics.items() if path != "bdSeq"}
        if rng.random() < 0.05:
            births = Births(births.to_bytes())
    wrong = {value: (path, simulated.truth[value]) for value, path in stored.items() if simulated.truth[value] != path}
    assert not wrong, f"seed {seed}: {wrong}"
    if not lossy and seed % 3 == 0:
        assert stored


@pytest.mark.parametrize("seed", range(20 if "UMQTT_FULL_SWEEPS" in os.environ else 3))
def test_the_rows_are_the_same_however_messages_are_divided(tmp_path, seed):
    """Planted: births are forgotten between micro-batches; a death counts from the next micro-batch on."""
    rng = random.Random(seed)
    simulated = Node(rng)
    messages = [one for _ in range(4) for one in (*simulated.session(), death(simulated.bd_seq))]
    how = rules(tmp_path, RULE)

    def stored(cuts: list[int]) -> list[str]:
        births, found = Births(), []
        for a, b in pairwise([0, *cuts, len(messages)]):
            parts = part(sent(*messages[a:b], at=a), how, births)
            births = Births(births.to_bytes())
            found += [
                row
                for table in (parts.readings, parts.unnumbered, parts.quarantined, parts.status)
                for row in table.to_pylist()
            ]
        return sorted(map(repr, found))

    whole = stored([])
    for _ in range(5):
        cuts = sorted(rng.sample(range(1, len(messages)), 3))
        assert stored(cuts) == whole, (seed, cuts)


def test_what_real_libraries_emit(tmp_path):
    """The payloads are those of pysparkplug 0.6.1 and sparkplug-payload 1.0.3; the values follow from the standard."""
    lines = [json.loads(line) for file in sorted(LIBRARIES.iterdir()) for line in file.read_text().splitlines()]
    parts = read(tmp_path, *((topic, bytes.fromhex(content)) for topic, content in lines))
    assert not parts.quarantined.num_rows and not parts.ignored
    numbered = {(row["device_id"], row["seq"]): row for row in parts.readings.to_pylist()}
    data = numbered["G/N", 1]
    assert dict(data["metrics"]) == {
        "i8": -5,
        "i16": -300,
        "i32": -70000,
        "i64": -(2.0**53),
        "u8": 255,
        "u16": 65535,
        "u32": 2**32 - 1,
        "u64": 2.0**64,
        "u64b": 2.0**53,
        "f": struct.unpack("f", struct.pack("f", 0.1))[0],
        "d": 0.1,
        "b": 1,
        "dt": 1764288000000,
        "fn": None,
        "nul": None,
    }
    assert {name: json.loads(text) for name, text in data["extra"]} == {
        "i64": -(2**53) - 1,
        "u64": 2**64 - 1,
        "u64b": 2**53 + 1,
        "fn": "NaN",
        "s": "run",
        "txt": "t",
        "uuid": "x-y",
        "by": "0102",
    }
    assert dict(numbered["G/N", 0]["metrics"]) == {"bdSeq": 3, **dict(data["metrics"])}
    assert dict(numbered["G/N", 0]["extra"]) == {"sparkplug": '"NBIRTH"', **dict(data["extra"])}
    assert dict(numbered["G/N", 2]["metrics"]) == {"Dev/temp": -7}
    assert dict(numbered["G/N", 3]["metrics"]) == {"Dev/temp": -9}
    assert not numbered["G/N", 4]["metrics"] and dict(numbered["G/N", 4]["extra"])["sparkplug"] == '"DDEATH Dev"'
    assert [dict(row["metrics"]) for row in parts.unnumbered.to_pylist()] == [{"Dev/temp": -8}]
    # 700 messages of one node, over two rounds of seq.
    wrapped = [dict(numbered["G/W", seq]["metrics"])["x"] for seq in range(700)]
    assert wrapped == [-value for value in range(700)] and len(numbered) == 700 + 5 + 3 * 9
    born = [(row["device_id"], row["online"]) for row in parts.status.to_pylist()]
    assert born == [("G/W", True), ("G/N", True), ("G/N", False), ("G/NJ", True), ("G/NJGZIP", True), ("G/NJX", True)]
    for name in ("NJ", "NJGZIP", "NJX"):
        ours = [dict(numbered[f"G/{name}", seq]["metrics"]) for seq in range(1, 6)]
        assert ours == [{"Dev/temp": 30}, {"temp": 20}, {"Dev/temp": 30}, {"temp": 21}, {"Dev/temp": 31}]
        assert dict(numbered[f"G/{name}", 0]["metrics"]) == {"temp": 20, "neg": -3, "bdSeq": 0}
        assert [dict(numbered[f"G/{name}", seq]["metrics"]) for seq in (6, 7)] == [{"temp": 22}, {"Dev/temp": 32}]

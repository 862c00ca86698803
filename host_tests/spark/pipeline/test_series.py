"""Each series of values has a name of its own: levels of the topic and fields that tell series apart are part of it."""

import json
import os
import random

import pytest
from spark_helpers import RECEIVED_MS
from test_decoders import read, reasons, rules, sent

from spark_ingest.decoders.fast_fields import FastReader
from spark_ingest.decoders.names import escaped, split_path
from spark_ingest.pipeline.decode import shared_names
from spark_ingest.pipeline.decode.messages import part


def decoder(**keys: object) -> str:
    """Return a [[decoder]] table."""

    def written(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(name)} = {written(one)}" for name, one in value.items()) + "}"
        return json.dumps(value)

    return "[[decoder]]\n" + "\n".join(f"{key} = {written(value)}" for key, value in keys.items()) + "\n"


@pytest.mark.parametrize(
    ("rule", "messages", "metrics"),
    [
        (
            decoder(topic="N/{device}/+/+/{metric}", format="json"),
            [("N/d/battery/258/Soc", {"value": 87.5}), ("N/d/battery/258/Voltage", {"value": 25.3})],
            [{"battery/258/Soc/value": 87.5}, {"battery/258/Voltage/value": 25.3}],
        ),
        (
            decoder(topic="{device}/status/+", format="json", metrics={"apower": "apower"}),
            [("d/status/switch:0", {"apower": 1000.5}), ("d/status/switch:1", {"apower": 0})],
            [{"switch:0/apower": 1000.5}, {"switch:1/apower": 0}],
        ),
        (
            decoder(topic="homeassistant/+/{device}/state", format="number", metric="state"),
            [("homeassistant/sensor/d/state", "19"), ("homeassistant/switch/d/state", "on")],
            [{"sensor/state": 19}, {"switch/state": 1}],
        ),
        (
            decoder(topic="x/{device}/{metric...}", format="json", value="v"),
            [("x/d/a/b", {"v": 1}), ("x/d/a", {"v": "2.5"}), ("x/d/c", {"v": "open"}), ("x/d/e", "3")],
            [{"a/b": 1}, {"a": 2.5}, {}, {"e": 3}],
        ),
        (
            decoder(topic="x/{any}/{device}", format="json"),
            [("x/a/d", {"t": 1}), ("x/b/d", {"t": 2})],
            [{"t": 1}, {"t": 2}],
        ),
        (
            decoder(topic="m", format="json", device="tags.host", series=["name", "tags"], at="fields"),
            [("m", {"name": "cpu", "tags": {"host": "d", "cpu": "0", "x": "a,b"}, "fields": {"idle": 1}})],
            [{"cpu/cpu=0,x=a\\,b/idle": 1}],
        ),
        (
            decoder(topic="x/{device}", format="json", each="values", series=["id"], value="v", where={"q": True}),
            [("x/d", {"values": [{"id": "a", "v": 1, "q": True}, {"id": "b", "v": 2, "q": False}]})],
            [{"a": 1}],
        ),
        (
            decoder(topic="x/{device}", format="json", each="."),
            [("x/d", '[{"t": 1, "n": "a"}, {"u": 2}]')],
            [{"t": 1}, {"u": 2}],
        ),
        (
            decoder(topic="x/{device}", format="json", each="ports"),
            [("x/d", {"ports": {"a/b": {"t": 1}, "c": {"t": 2}, "u": 3}})],
            [{"a\\/b/t": 1}, {"c/t": 2}, {"u": 3}],
        ),
        (
            decoder(topic="x/{device}/#", format="json", each="e", value="v"),
            [("x/d", {"e": {"a": {"v": 1}, "b": {"v": {"f": 2}}}}), ("x/d/b\\:f", {"v": 3})],
            [{"a\\:": 1}, {"b\\:\\:f": 2}, {"b\\\\:f": 3}],
        ),
        (decoder(topic="x/{device}", format="json"), [("x/d", '{"a.b":1,"a":{"b":2}}')], [{"a\\.b": 1, "a.b": 2}]),
        (decoder(topic="x/{device}", format="json", metrics={"t": "a\\.b"}), [("x/d", {"a.b": 1})], [{"t": 1}]),
        (
            decoder(topic="x/{device}", format="json", metrics={"t": 'a"b', "u": "a\\\\b"}),
            [("x/d", {'a"b': 1, "a\\b": 2})],
            [{"t": 1, "u": 2}],
        ),
    ],
    ids=str,
)
def test_what_tells_series_apart_is_in_the_metrics_name(tmp_path, rule, messages, metrics):
    """Planted: {metric} is accepted and ignored for JSON, as it was."""
    assert [one for _, one in read(sent(*messages), rules(tmp_path, rule))] == metrics
    assert not reasons(sent(*messages), rules(tmp_path, rule))


@pytest.mark.parametrize(
    ("rule", "topic", "payload", "device"),
    [
        (decoder(topic="o/{device}/{device}", format="json"), "o/ann/phone", {"t": 1}, "ann/phone"),
        (decoder(topic="z/{device...}/x", format="json"), "z/a/b/x", {"t": 1}, "a/b"),
        (
            decoder(topic="r", format="json", device=["model", "ch", "id"]),
            "r",
            {"model": "A", "id": 7, "t": 1},
            "A/-/7",
        ),
        (decoder(topic="r", format="json", device=["a", "b"]), "r", {"a": "x/y", "b": "z", "t": 1}, "x\\/y/z"),
    ],
    ids=str,
)
def test_a_device_may_be_made_of_several_levels_or_fields(tmp_path, rule, topic, payload, device):
    assert read(sent((topic, payload)), rules(tmp_path, rule)) == [(device, {"t": 1})]


def test_two_values_of_one_name_and_time_are_refused_with_a_reason(tmp_path):
    """Planted: the last element's value is kept, and nothing is said of the others."""
    how = rules(tmp_path, decoder(topic="x/{device}", format="json", each="v", time="t"))
    batch = sent(("x/d", {"v": [{"a": 1, "t": 1795000000}, {"a": 2, "t": 1795000000}, {"a": 3, "t": 1795000001}]}))
    assert [one for _, one in read(batch, how)] == [{"a": 1}, {}, {"a": 3}]
    (why,) = reasons(batch, how)
    assert why.startswith("metric 'a' has another value at the same time: 2; `series` names the fields")
    at = rules(tmp_path, decoder(topic="x/{device}", format="json", at="p", metrics={"a": "q"}))
    batch = sent(("x/d", {"p": {"a": 1, "b": 2}, "q": 3}))
    assert read(batch, at) == [("d", {"a": 3, "b": 2})]
    assert reasons(batch, at) == ["metric 'a' is another field in the rule: 1"]


def test_readings_of_one_message_have_identities_of_their_own(tmp_path):
    """Planted: readings of one place or one number; the later ones are taken for duplicates."""
    how = rules(tmp_path, decoder(topic="x/{device}", format="json", each="v"))
    rows = part(sent(("x/d", {"v": [{"a": 1}, {"b": 2}, {"c": 3}]})), how).unnumbered.to_pylist()
    spool = rows[0]["boot"]
    assert [row["boot"] for row in rows] == [spool, f"{spool}#1", f"{spool}#2"]
    numbered = rules(tmp_path, decoder(topic="x/{device}", format="json", each="v", boot="boot", seq="n"))
    batch = sent(("x/d", {"boot": "b", "n": 4, "v": [{"a": 1}, {"b": 2}, {"n": 5, "c": 3}]}))
    parts = part(batch, numbered)
    assert [(row["boot"], row["seq"]) for row in parts.readings.to_pylist()] == [("b", 4), ("b", 5)]
    assert [dict(row["metrics"]) for row in parts.unnumbered.to_pylist()] == [{"b": 2}]


def test_conditions_choose_the_rule_and_what_none_reads_says_so(tmp_path):
    """Planted: a rule whose condition does not hold hides the rules after it."""
    how = rules(
        tmp_path,
        decoder(topic="o/{device}", format="json", when={"_type": "location"}, metrics={"lat": "lat"})
        + decoder(topic="o/{device}", format="json", when={"_type": ["lwt", 5], "ok": True}, metrics={"x": "x"})
        + decoder(topic="o/{device}", format="json", begins="[", each=".")
        + decoder(topic="o/{device}", format="json", has=["none", "a.b"], metrics={"b": "a.b"})
        + decoder(topic="o/{device}/#", format="ignore", when={"_type": "card"}),
    )
    batch = sent(
        ("o/d", {"_type": "location", "lat": 1}),
        ("o/d", {"_type": 5, "ok": True, "x": 2}),
        ("o/d", {"_type": 5, "ok": 1, "x": 3}),
        ("o/d", ' [{"y": 4}]'),
        ("o/d", {"_type": "card"}),
        ("o/d", {"_type": "card", "a": {"b": 5}}),
    )
    parts = part(batch, how)
    assert [dict(row["metrics"]) for row in parts.unnumbered.to_pylist()] == [{"lat": 1}, {"x": 2}, {"y": 4}, {"b": 5}]
    assert parts.quarantined["reason"].to_pylist() == [
        "no rule that matches its topic reads such a payload: see `when`, `has` and `begins`"
    ]
    assert parts.ignored == 1


@pytest.mark.parametrize("keys", [{}, {"metrics": {name: name for name in "tuv"}}], ids=["slow", "fast"])
def test_topics_that_write_one_metric_are_told_in_one_warning_that_names_both(tmp_path, capsys, monkeypatch, keys):
    """Planted: a warning for each message, or none; one for two topics with metrics of their own."""
    monkeypatch.setattr(shared_names, "_warned", set())
    one, other = (decoder(topic=topic, format="json", **keys) for topic in ("x/{any}/{device}", "y/{device}"))
    how = rules(tmp_path, one + other)
    part(sent(("x/a/d", {"t": 1}), ("x/b/d", {"u": 1}), ("x/b/e", {"t": 1}), ("y/d", {"v": 1})), how)
    assert capsys.readouterr().err == ""
    for _ in range(3):
        part(sent(("x/a/d", {"t": 1}), ("x/b/d", {"t": 2}), ("x/a/d", {"t": 3}), ("x/b/d", {"t": 4})), how)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "the topics x/a/d and x/b/d both write the metric t of device d" in said


def test_a_device_that_is_warned_of_often_keeps_the_warnings_of_no_other_back(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shared_names, "_warned", set())
    how = rules(tmp_path, decoder(topic="x/{any}/{device}", format="json"))
    greedy = [(f"x/{i}/greedy", {"t": i}) for i in range(150)]
    quiet = [(f"x/{way}/quiet{i}", {"t": 1}) for i in range(50) for way in "ab"]
    part(sent(*greedy, *quiet), how)
    said = capsys.readouterr().err
    assert said.count(" of device quiet") == 50 and said.count(" of device greedy") == 10


@pytest.mark.parametrize("second", [{"topic": "y/{device}"}, {"topic": "y", "device": "id"}])
def test_two_rules_that_write_one_metric_are_told_in_one_warning_that_names_both_topics(
    tmp_path, capsys, monkeypatch, second
):
    """Planted: rules are looked at one by one; one warning for each message; a rule without {device} is left out."""
    monkeypatch.setattr(shared_names, "_warned", set())
    how = rules(tmp_path, decoder(topic="x/{device}", format="json") + decoder(**second, format="json"))
    other = second["topic"].replace("{device}", "d")
    part(sent(("x/d", {"t": 1}), (other, {"id": "d", "u": 1}), ("x/e", {"t": 1})), how)
    assert capsys.readouterr().err == "", "other metrics, and other devices"
    for _ in range(3):
        part(sent(("x/d", {"t": 1}), (other, {"id": "d", "t": 2}), ("x/d", {"t": 3})), how)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"the topics x/d and {other} both write the metric t of device d" in said
    assert "another name in the metrics of one of the two rules" in said


NAMES = ["a", "b", "a.b", "a/b", "a\\", "\\.", ".", "", "0", "1", "a\\.b", "/"]
LEVELS = ["a", "b", "a.b", "0", "a\\", "$x", ""]


def value(rng: random.Random, depth: int, fields: dict[tuple, float], path: tuple) -> object:
    """Make a JSON value; `fields` gets each number by its path."""
    if depth == 0 or rng.random() < 0.5:
        number = float(len(fields) + 1)
        fields[path] = number
        return number
    if rng.random() < 0.2:
        return [value(rng, depth - 1, fields, (*path, str(i))) for i in range(rng.randrange(1, 3))]
    names = rng.sample(NAMES, rng.randrange(1, 4))
    return {name: value(rng, depth - 1, fields, (*path, name)) for name in names}


def test_a_path_is_read_as_it_was_written():
    rng = random.Random(3)
    for _ in range(500):
        path = [rng.choice(NAMES) for _ in range(rng.randrange(1, 5))]
        assert split_path(".".join(map(escaped, path))) == path


@pytest.mark.parametrize("seed", range(400 if "UMQTT_FULL_SWEEPS" in os.environ else 60))
def test_two_fields_of_one_device_never_share_a_metric_unless_the_file_says_so(tmp_path, seed):
    """Random patterns without {any}, random topics and objects. No field is lost either.

    Planted: a dot in a field's name is not escaped; a slash in it, where # stands for several levels.
    """
    rng = random.Random(seed)
    pattern = ["t", "{device}", *(rng.choice(["{metric}", "+", "x"]) for _ in range(rng.randrange(3)))]
    if rng.random() < 0.6:
        pattern.append(rng.choice(["#", "{metric...}"]))
    how = rules(tmp_path, decoder(topic="/".join(pattern), format="json"))
    owners: dict[str, tuple] = {}
    for _ in range(25):
        levels = [rng.choice([one for one in LEVELS if one]) if one in ("{metric}", "+") else one for one in pattern]
        levels[1] = "d"
        if pattern[-1] in ("#", "{metric...}"):
            least = pattern[-1] != "#"
            levels[-1:] = [rng.choice([one for one in LEVELS if one]) for _ in range(rng.randrange(least, 3))]
        fields: dict[tuple, float] = {}
        payload = {name: value(rng, 2, fields, (name,)) for name in rng.sample(NAMES, rng.randrange(1, 4))}
        ((device, metrics),) = read(sent(("/".join(levels), payload)), how)
        by_value = {number: path for path, number in fields.items()}
        assert device == "d" and sorted(metrics.values()) == sorted(by_value), (seed, levels, payload)
        for name, number in metrics.items():
            # A number in an array and in an object has the same path in a rule too.
            owner = (tuple(levels), by_value[number])
            assert owners.setdefault(name, owner) == owner, f"seed {seed}: {name} is {owner} and {owners[name]}"


def fields_of(form: str, rng: random.Random, number) -> object:
    """Make a payload; `number` returns a number of its own for each (field of the payload)."""
    if form == "senml":
        base = rng.choice(["", "", "b/"])
        names = rng.sample([name for name in NAMES if name], 2)
        return [{"bn": base, "n": name, "v": number(base + name)} for name in names]
    if form == "influx":
        name, tags = rng.choice(["a", "b", "a/b"]), rng.choice(["", "", ",k=a/b"])
        one = rng.choice(["f", "b//f", "a//f"])
        return f"{name}{tags} {one}={number(name, tags, one)}"
    if form == "each":
        objects = {name: {one: number(name, one) for one in rng.sample(NAMES, 2)} for name in rng.sample(NAMES, 2)}
        return {"e": objects | {"x": number("x")}}
    if form == "series":
        first, second = rng.choice(NAMES), rng.choice(["p", "a/b", {"k": "v"}, {"k": "a,l=w"}, {"k": "a", "l": "w"}])
        return {"s": first, "u": second, "n": {one: number(first, str(second), one) for one in rng.sample(NAMES, 2)}}
    return {"v": number() if rng.random() < 0.5 else {one: number(one) for one in rng.sample(NAMES, 2)}}


FORMS = {
    "senml": {"format": "senml"},
    "influx": {"format": "influx"},
    "each": {"format": "json", "each": "e"},
    "series": {"format": "json", "series": ["s", "u"]},
    "value": {"format": "json", "value": "v"},
}


@pytest.mark.parametrize("seed", range(200 if "UMQTT_FULL_SWEEPS" in os.environ else 5))
@pytest.mark.parametrize("form", FORMS)
def test_no_format_and_no_key_makes_two_series_one(tmp_path, form, seed):
    """Planted: the same name below another level: a/b in SenML, the name of an object in `each`, a part of `value`."""
    rng = random.Random(seed)
    pattern = ["t", "{device}", *rng.choice([["#"], ["#"], ["+", "#"], ["{metric}"]])]
    if form == "value":
        pattern = [level.replace("#", "{metric...}") for level in pattern]
    how = rules(tmp_path, decoder(topic="/".join(pattern), **FORMS[form]))
    owners: dict[str, tuple] = {}
    truth: dict[float, tuple] = {}
    for _ in range(60):
        topic = "/".join(["t", "d", *rng.choices(["a", "b", "a\\", ""], k=rng.randrange(4))])
        if how.match(topic) is None:
            continue

        def number(*path: str, topic: str = topic) -> int:
            truth[float(len(truth) + 1)] = (topic, *path)
            return len(truth)

        payload = fields_of(form, rng, number)
        batch = sent((topic, payload if isinstance(payload, str) else json.dumps(payload)))
        for _, metrics in read(batch, how):
            for name, value in metrics.items():
                owner = truth[value]
                assert owners.setdefault(name, owner) == owner, f"seed {seed}: {name} is {owner} and {owners[name]}"
    assert owners


def test_a_reading_has_the_time_of_its_message_where_it_has_none(tmp_path):
    how = rules(tmp_path, decoder(topic="x/{device}", format="json", each="v", time="t"))
    parts = part(sent(("x/d", {"t": 1795000000, "v": [{"a": 1}, {"t": 1795000005, "b": 2}]})), how)
    assert [round(row["ts"].timestamp()) for row in parts.unnumbered.to_pylist()] == [1795000000, 1795000005]
    assert RECEIVED_MS


FAST = decoder(topic="f/{device}", format="json", metrics={"a": "a", "b": "in.b", "c": "a\\.b"}, time="at")
FAST += decoder(topic="g/{device}/#", format="json", metrics={"a": "a", "b": "b.b"}, time="at", zone="Europe/Berlin")
TOKENS = ['"a"', '"b"', '"in"', '"a.b"', '"at"', '"x"', '"\\u0061"', '"ü"', '"in.b"', '"a":1,"a"']
VALUES = [
    "1",
    "-0",
    "2.5",
    "null",
    "true",
    '"7"',
    '"a"',
    '{"b":3}',
    '{"b":null,"x":[1]}',
    '{"b":1,"b":2}',
    "[1]",
    "1e400",
]
VALUES += [
    "1795000000123",
    "1795000000",
    "9007199254740993",
    "-1",
    "NaN",
    "5e-324",
    "9223372036854775808",
    "01",
    '"\\ud800"',
    '"2026-11-18 11:06:40"',
    "1795000000.25",
]


@pytest.mark.parametrize("seed", range(40 if "UMQTT_FULL_SWEEPS" in os.environ else 4))
def test_the_fast_reader_of_objects_says_exactly_what_the_slow_one_says(tmp_path, seed, monkeypatch):
    """Many payloads are read at once, and parts of one object in two payloads are not one.

    Planted: the fast reader takes the last of two values, a number that a double rounds, or an object that goes on in
    the next payload; an object's name that is there twice; a text that is not UTF-8.
    """
    rng, how = random.Random(seed), rules(tmp_path, FAST)
    messages = []
    for _ in range(800):
        fields = [
            f"{rng.choice(TOKENS)}{rng.choice(['', '', ' '])}:{rng.choice(VALUES)}" for _ in range(rng.randrange(5))
        ]
        text = ("{" + rng.choice([",", ",", ",\n"]).join(fields) + "}").encode()
        text = rng.choice([text] * 9 + [text.replace(b'"x"', b'"\xff"'), text + text, text + b"\n" + text, b" " + text])
        cut = rng.choice([len(text)] * 9 + [rng.randrange(len(text) + 1)])
        topic = rng.choice(["f/d", "f/d", "f/e", "g/d", "g/d/x/y"])
        messages += [(topic, one) for one in (text[:cut], text[cut:]) if one]
        if rng.random() < 0.05:
            messages += [(topic, text + text[:-1]), (topic, b"}")]
    monkeypatch.setattr("spark_ingest.decoders.fast_fields.TOGETHER", rng.randrange(2, 4))
    fast = part(sent(*messages), how)
    match = how.match("f/d")
    assert match is not None and match.fast is not None
    assert len(match.fast.read([one for _, one in messages])[1]) > 5
    monkeypatch.setattr(FastReader, "read", lambda _self, payloads: ([], [], [*range(len(payloads))]))
    slow = part(sent(*messages), how)
    for name in ("readings", "unnumbered", "quarantined"):
        ours, theirs = (getattr(one, name).to_pylist() for one in (fast, slow))
        for one, other in zip(ours, theirs, strict=True):
            assert repr(one) == repr(other), seed
    assert fast.ignored == slow.ignored

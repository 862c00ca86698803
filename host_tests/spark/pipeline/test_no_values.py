"""Ordinary traffic is no alarm: what has no value is counted, statuses are statuses, and only damage is quarantined."""

import json

import pytest
from gold_fleet import QUERY, table_of
from spark_helpers import RECEIVED_MS
from test_decoders import EXAMPLE, read, reasons, rows, rules, sent
from test_series import decoder
from test_systems import messages_of, payload_of

from spark_ingest.decoders.rules import Rules, load
from spark_ingest.gold import Gold
from spark_ingest.pipeline.decode.messages import part
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.report.build import write_report

JSON = {"topic": "x/{device}", "format": "json"}
NUMBER = {"topic": "x/{device}/{metric}", "format": "number"}
VALUE = NUMBER | {"format": "value"}
TEXT = NUMBER | {"format": "text"}


@pytest.mark.parametrize(
    ("rule", "topic", "payload"),
    [
        *((NUMBER, "x/d/t", text) for text in ("", "nan", "NaN", "unavailable", "unknown", "None", "null", " \n")),
        *((VALUE, "x/d/t", text) for text in ("", "unavailable")),
        (TEXT, "x/d/t", ""),
        (JSON, "x/d", ""),
        (JSON, "x/d", "{}"),
        (JSON, "x/d", '{"t":null,"u":{"v":null},"w":[],"text":""}'),
        (JSON, "x/d", '{"t":NaN}'),
        (JSON | {"map": {"ON": 1}}, "x/d", '{"t":null}'),
        ({"topic": "x/{device}", "format": "cbor"}, "x/d", b"\xa1\x61t\xf9\x7e\x00"),
        ({"topic": "x/{device}", "format": "senml"}, "x/d", "[]"),
        ({"topic": "x/{device}", "format": "influx"}, "x/d", "# nothing\n\n"),
        ({"topic": "x/{device}", "format": "cayenne"}, "x/d", b""),
        ({"topic": "x/#", "format": "ignore"}, "x/d", b"\xff"),
    ],
    ids=str,
)
def test_what_has_no_value_is_neither_a_reading_nor_damage_and_is_counted(tmp_path, rule, topic, payload):
    """Planted: it is quarantined, as it was; or nobody counts it."""
    parts = part(sent((topic, payload)), rules(tmp_path, decoder(**rule)))
    assert [len(one) for one in parts[:5]] == [0, 0, 0, 0, 0] and parts.ignored == 1


@pytest.mark.parametrize(
    ("rule", "topic", "payload", "metrics", "texts"),
    [
        (JSON, "x/d", '{"t":NaN,"u":1}', {"t": None, "u": 1}, {"t": "NaN"}),
        (
            JSON | {"metrics": {"t": "a", "u": "b"}},
            "x/d",
            '{"a":" 21.5","b":"unavailable"}',
            {"t": 21.5, "u": None},
            {},
        ),
        (
            JSON | {"map": {"ON": 1, "open": 2.5}},
            "x/d",
            '{"a":"ON","b":"open","c":"on"}',
            {"a": 1, "b": 2.5},
            {"c": "on"},
        ),
        (JSON | {"numbers_in_text": True}, "x/d", '{"a":"1e3","b":"off","c":"x"}', {"a": 1000, "b": 0}, {"c": "x"}),
        (
            JSON,
            "x/d",
            '{"fw":"1.10","id":"0042","in":{"t":"a"},"f":false}',
            {"f": 0},
            {"fw": "1.10", "id": "0042", "in.t": "a"},
        ),
        (JSON | {"texts": {"door": "d"}}, "x/d", '{"d":"open","t":1}', {}, {"door": "open"}),
        (NUMBER | {"map": {"open": 1}}, "x/d/door", "open", {"door": 1}, {}),
        (NUMBER, "x/d/n", "9007199254740993", {"n": 2.0**53}, {"n": 9007199254740993}),
        (VALUE, "x/d/door", "open", {}, {"door": "open"}),
        (VALUE | {"metric": "state"}, "x/d/door", "TRUE", {"door/state": 1}, {}),
        (TEXT, "x/d/door", "1", {}, {"door": "1"}),
        ({"topic": "x/{device}", "format": "cbor"}, "x/d", b"\xa2\x01\x02\x62id\x42\xff\x00", {"1": 2}, {"id": "ff00"}),
    ],
    ids=str,
)
def test_numbers_in_text_and_texts(tmp_path, rule, topic, payload, metrics, texts):
    """Planted: a version in text becomes a number; a text within an object is lost."""
    parts = part(sent((topic, payload)), rules(tmp_path, decoder(**rule)))
    (row,) = parts.unnumbered.to_pylist()
    assert dict(row["metrics"]) == metrics and {name: json.loads(text) for name, text in row["extra"]} == texts
    assert not parts.quarantined.num_rows


@pytest.mark.parametrize(
    ("payload", "kept", "reason"),
    [
        ('{"t":1e400,"u":1}', {"u": 1}, "metric 't' is beyond doubles: inf"),
        ('{"t":-Infinity,"u":1}', {"u": 1}, "metric 't' is beyond doubles: -inf"),
        ('{"x":1,"x":2,"u":1}', {"u": 1}, "metric 'x' is not a number: said 2 times: 1, 2"),
        ('{"x":"a","x":{"y":1},"u":1}', {"u": 1}, "metric 'x' is not a number: said 2 times: 'a', {'y': 1}"),
        ('{"a":{"x":1, "x" :2},"u":1}', {"u": 1}, "metric 'a.x' is not a number: said 2 times: 1, 2"),
        (b"\xa3\x01\x02\x611\x03\x61u\x01", {"u": 1}, "metric '1' is not a number: said 2 times: 2, 3"),
        (b"\xa2\x61t\xf9\x7c\x00\x61u\x01", {"u": 1}, "metric 't' is beyond doubles: inf"),
    ],
    ids=str,
)
def test_a_value_that_is_dropped_is_named_and_the_others_are_kept(tmp_path, payload, kept, reason):
    """Planted: null without a trace; the last of two values."""
    form = "cbor" if isinstance(payload, bytes) else "json"
    parts = part(sent(("x/d", payload)), rules(tmp_path, decoder(topic="x/{device}", format=form)))
    assert [dict(row["metrics"]) for row in parts.unnumbered.to_pylist()] == [kept]
    assert parts.quarantined.select(["reason", "kept"]).to_pylist() == [{"reason": reason, "kept": True}]


@pytest.mark.parametrize(
    ("keys", "payload", "online"),
    [
        *(({}, text, True) for text in ("Online", "online", "true", "1", "ready", '"online"'[1:-1])),
        *(({}, text, False) for text in ("Offline", "false", "0", "lost", "sleeping", "")),
        ({"field": "state"}, '{"state":"online"}', True),
        ({"field": "state"}, "offline", False),
        ({"field": "a.b"}, '{"a":{"b":false}}', False),
        ({"online": ["init"], "offline": ["alert"]}, "alert", False),
        ({}, "warm", None),
        ({"online": ["Up"], "offline": ["Down"]}, "Online", None),
        ({"field": "state"}, '{"x":1}', None),
        ({}, b"\xff", None),
    ],
    ids=str,
)
def test_a_status_is_a_row_of_status_and_another_text_is_damage(tmp_path, keys, payload, online):
    how = rules(tmp_path, decoder(topic="x/{device}", format="status", **keys))
    parts = part(sent(("x/d", payload)), how)
    if online is None:
        assert parts.quarantined.num_rows == 1 and not parts.status.num_rows
    else:
        (row,) = parts.status.to_pylist()
        assert (row["device_id"], row["online"], row["boot"], row["fw"]) == ("d", online, None, None)


def test_a_topic_without_a_rule_says_so_with_and_without_a_file(tmp_path):
    """Planted: `unknown version v=None`, as it was."""
    for how in (Rules(), rules(tmp_path, decoder(**JSON))):
        for payload in ("on", "{}", '{"t":1}', b"\xff", ""):
            (why,) = reasons(sent(("what/ever", payload)), how)
            assert why == "no rule matches what/ever: see umqtt ingest --config"
    (why,) = reasons(sent(("fleet/d/telemetry", "{}")), Rules())
    assert why == "unknown version v=None"


def test_messages_that_no_rule_reads_are_an_alert_of_no_device(tmp_path, monkeypatch):
    """Planted: the report says `all quiet` over 200 of 200 messages in quarantine; they are counted piece by piece."""
    monkeypatch.setattr("spark_ingest.gold.update._PIECE_ROWS", 1)
    writer = BatchWriter(tmp_path, tmp_path / "state", report=lambda _line: None)
    for batch_id in range(2):
        some = [(f"strange/{i}", b"1", RECEIVED_MS + batch_id * 1000 + i) for i in range(100)]
        writer.write(table_of(some, 100 * batch_id), batch_id, QUERY)
        Gold(tmp_path).update()
    (alert,) = rows(tmp_path, "gold/alerts")
    assert (alert["device_id"], alert["rule"], alert["until"], alert["value"]) == ("", "quarantined", None, 200)
    assert alert["text"] == (
        "200 messages that belong to no device, the newest on strange/99: no rule matches strange/99: "
        "see umqtt ingest --config"
    )
    assert rows(tmp_path, "gold/devices") == []
    report = write_report(tmp_path, tmp_path / "report.html")
    assert (
        report.totals["alerts"] == 1
        and "200 messages that belong to no device" in (tmp_path / "report.html").read_text()
    )
    gold = Gold(tmp_path)
    gold.update(now_us=(RECEIVED_MS + 25 * 3_600_000) * 1000)
    assert [row["until"] is None for row in rows(tmp_path, "gold/alerts")] == [False]


def test_with_the_shipped_example_ordinary_traffic_makes_no_row_of_quarantine_and_no_alert(tmp_path):
    """Planted: half of it, as it was: LWT, RESULT, nulls, nan, unavailable, empty payloads."""
    how = Rules(False, load(EXAMPLE / "ingest.toml"))
    systems = ("tasmota", "zigbee2mqtt", "homeassistant-statestream", "shelly")
    sent_now = [(one["topic"], payload_of(one), RECEIVED_MS) for name in systems for one in messages_of(name)]
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=how, report=lambda _line: None)
    writer.write(table_of(sent_now), 0, QUERY)
    assert writer.totals.rows_quarantined == 0 and writer.totals.ignored > 10
    found = writer.totals
    assert found.ignored + found.rows_silver + found.rows_status >= found.messages == len(sent_now)
    Gold(tmp_path).update()
    assert [row for row in rows(tmp_path, "gold/alerts") if row["kind"] == "quarantined"] == []


def retained(table, *which: int):
    flags = [row in which for row in range(table.num_rows)]
    return table.set_column(table.schema.get_field_index("retain"), "retain", [flags])


def test_a_retained_reading_is_marked_no_sign_of_life_and_may_be_left_out(tmp_path):
    """Planted: a value that is retained for a dead device moves its last_seen with each new session."""
    how = rules(tmp_path, decoder(**NUMBER) + decoder(topic="y/{device}/{metric}", format="number", skip_retained=True))
    hour = 3_600_000
    batch = [
        table_of([("x/d/t", b"1", RECEIVED_MS), ("x/d/t", b"1", RECEIVED_MS + hour), ("y/e/t", b"2", RECEIVED_MS)], 0),
        table_of([("x/f/t", b"1", RECEIVED_MS + hour)], 3),
    ]
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=how, report=lambda _line: None)
    writer.write(retained(batch[0], 1, 2), 0, QUERY)
    writer.write(retained(batch[1], 0), 1, QUERY)
    assert sorted((row["device_id"], row["retain"]) for row in rows(tmp_path, "silver")) == [
        ("d", False),
        ("d", True),
        ("f", True),
    ]
    assert writer.totals.ignored == 1
    Gold(tmp_path).update()
    seen = {row["device_id"]: row["last_seen"] for row in rows(tmp_path, "gold/devices")}
    assert round(seen["d"].timestamp() * 1000) == RECEIVED_MS and seen["f"] is None
    assert read(batch[0], how) == [("d", {"t": 1}), ("d", {"t": 1}), ("e", {"t": 2})]

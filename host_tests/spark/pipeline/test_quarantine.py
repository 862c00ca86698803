"""A quarantined message in gold: its device counts as heard, it is counted, and an alert says why."""

import json

import cbor2
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from gold_fleet import QUERY, SECOND, assert_law, table_of, telemetry
from spark_helpers import RECEIVED_MS

from spark_ingest.decoders.rules import Rules
from spark_ingest.gold import Gold
from spark_ingest.pipeline.change.delete_device import delete_device
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.tables.schemas import SCHEMAS

DAY = 86_400 * SECOND


def reading(seq: int, at: int, **metrics: object) -> tuple[str, bytes, int]:
    """Return a reading of device a, taken and received `at` milliseconds after the first."""
    topic, payload = telemetry("a", "1-x", seq, RECEIVED_MS + at, at)
    return topic, json.dumps(json.loads(payload) | {"m": metrics}).encode(), RECEIVED_MS + at


def write(folder, *batches: list[tuple[str, bytes, int]], trust_ids: bool = False) -> None:
    """Write each batch, with a gold update after it."""
    writer = BatchWriter(folder, folder / "state", rules=Rules(trust_ids), report=lambda _line: None)
    gold, start = Gold(folder), 0
    for batch_id, messages in enumerate(batches):
        writer.write(table_of(messages, start), batch_id, QUERY)
        gold.update()
        start += len(messages)


def rows(folder, name: str) -> list[dict]:
    return DeltaTable(str(folder / name)).to_pyarrow_table().to_pylist()


def test_a_metric_that_became_text_costs_only_itself_and_an_alert_says_which(tmp_path):
    """Planted: a quarantined message is no sign of life, its kept bytes count twice, or no alert is raised."""
    good = [reading(n, n * 60 * SECOND, t=20.0, u=1) for n in range(3)]
    text = [reading(n, n * 3600 * SECOND, t="20.0", u=2) for n in range(3, 6)]
    write(tmp_path, good, text)
    metrics = [dict(row["metrics"]) for row in sorted(rows(tmp_path, "silver"), key=lambda row: row["seq"])]
    assert metrics == [{"t": 20.0, "u": 1}] * 3 + [{"u": 2}] * 3
    (device,) = rows(tmp_path, "gold/devices")
    figures = {name: device[name] for name in ("health", "readings", "missing", "quarantined")}
    assert figures == {"health": "quarantined", "readings": 6, "missing": 0, "quarantined": 3}
    (alert,) = [row for row in rows(tmp_path, "gold/alerts") if row["kind"] == "quarantined"]
    assert (alert["device_id"], alert["until"], alert["value"]) == ("a", None, 3.0)
    assert alert["text"] == "fleet/a/telemetry: metric 't' is not a number: '20.0'"
    assert alert["since"].timestamp() * 1000 == text[0][2]
    assert sum(row["bytes"] for row in rows(tmp_path, "gold/traffic")) == sum(len(one[1]) for one in good + text)
    assert_law(tmp_path, 0)


def test_a_device_of_which_nothing_can_be_read_is_heard_and_its_alert_ends_after_a_day_without(tmp_path):
    """Planted: the alert never ends, or one that comes again is the old one."""
    at = [0, 3600 * SECOND, 3 * DAY, 3 * DAY + SECOND]
    bad = [("fleet/a/telemetry", b"%d" % n, RECEIVED_MS + ms) for n, ms in enumerate(at)]
    write(tmp_path, bad[1:2], bad[:1])
    (device,) = rows(tmp_path, "gold/devices")
    assert (device["health"], device["readings"], device["quarantined"]) == ("quarantined", 0, 2)
    write(tmp_path / "later", bad[2:], bad[:2])
    first, second = [row for row in rows(tmp_path / "later", "gold/alerts") if row["kind"] == "quarantined"]
    assert (first["value"], second["value"], second["until"]) == (2.0, 2.0, None)
    assert first["until"].timestamp() * 1000 == RECEIVED_MS + at[1]
    assert_law(tmp_path / "later", 0)


def test_a_message_on_a_topic_that_names_no_device_is_nobodys_sign_of_life(tmp_path):
    """Planted: the record's id decides whose message it is, whoever published it."""
    bad = json.dumps({"v": 9, "id": "a"}).encode()
    topics = ("elsewhere", "fleet/a", "site/a/telemetry", "fleet//telemetry")
    write(tmp_path, [(topic, bad, RECEIVED_MS) for topic in topics])
    assert len(rows(tmp_path, "quarantine")) == len(topics) and not rows(tmp_path, "gold/devices")


def test_tables_of_an_older_release_go_on_and_their_quarantine_counts_for_no_device(tmp_path):
    """Planted: a row that names no device counts for one."""
    old = pa.schema([SCHEMAS["quarantine"].field(n) for n in range(8)])
    row = table_of([("fleet/a/telemetry", b"old", RECEIVED_MS)], 10**6).append_column("reason", pa.array(["not JSON"]))
    write_deltalake(str(tmp_path / "quarantine"), row.select(old.names).cast(old))
    write(tmp_path, [reading(0, 0, t="x")])
    assert [row["kept"] for row in sorted(rows(tmp_path, "quarantine"), key=lambda row: row["reason"])] == [True, None]
    (device,) = rows(tmp_path, "gold/devices")
    assert device["quarantined"] == 1


def test_a_message_that_is_in_quarantine_for_two_reasons_is_forgotten_like_any_other(tmp_path):
    """Planted: a position has one row, whatever the number of reasons."""
    write(tmp_path, [reading(0, 0, t=1.0, u=1)], [reading(0, 5, t="x", u=2)])
    assert [row["kept"] for row in sorted(rows(tmp_path, "quarantine"), key=lambda row: row["reason"])] == [False, True]
    assert_law(tmp_path, 0)
    assert delete_device(tmp_path, "a")["quarantine"] == 2
    assert not rows(tmp_path, "quarantine") and not rows(tmp_path, "bronze") and not rows(tmp_path, "gold/devices")


def claimed(topic: str, device: str, seq: int = 0) -> tuple[str, bytes, int]:
    """Return a good reading of `device` on `topic`."""
    return topic, telemetry(device, "1-x", seq, RECEIVED_MS, 5, t=1.0)[1], RECEIVED_MS


# Topic of a record whose id is bob -> why it is refused.
CLAIMS = {
    "fleet/alice/telemetry": "id 'bob' is not the topic's device 'alice'",
    "fleet/alice/bob/telemetry": "id 'bob' is not the topic's device 'alice'",
    "fleet/bo/telemetry": "id 'bob' is not the topic's device 'bo'",
    "fleet/BOB/telemetry": "id 'bob' is not the topic's device 'BOB'",
    "site/fleet/bob/telemetry": "the topic is not fleet/DEVICE/..., so nothing vouches for id 'bob'",
    "fleet/bob": "the topic is not fleet/DEVICE/..., so nothing vouches for id 'bob'",
    "bob": "the topic is not fleet/DEVICE/..., so nothing vouches for id 'bob'",
}


def test_a_record_on_a_topic_that_is_not_its_devices_is_quarantined_unless_ids_are_trusted(tmp_path):
    """Planted: the record's id is accepted by default, or `trust_ids` is lost on the way to a rebuild."""
    messages = [claimed(topic, "bob", seq) for seq, topic in enumerate(CLAIMS)]
    write(tmp_path, messages)
    assert not rows(tmp_path, "silver")
    quarantined = rows(tmp_path, "quarantine")
    assert {row["topic"]: row["reason"].removesuffix(": see --trust-ids") for row in quarantined} == CLAIMS
    assert all(row["reason"].endswith(": see --trust-ids") for row in quarantined)
    assert {(row["boot"], row["kept"]) for row in quarantined} == {(None, False)}
    assert "bob" not in [device["device_id"] for device in rows(tmp_path, "gold/devices")]
    assert_law(tmp_path, 0)
    write(tmp_path / "trusted", messages, trust_ids=True)
    assert_law(tmp_path / "trusted", 0)
    trusted = rows(tmp_path / "trusted", "silver")
    assert sorted((row["device_id"], row["topic"]) for row in trusted) == sorted(("bob", topic) for topic in CLAIMS)
    assert not rows(tmp_path / "trusted", "quarantine")


def test_of_a_device_whose_id_others_claim_everything_that_names_it_is_forgotten(tmp_path):
    """Planted: what claims to be of the device stays in bronze."""
    write(tmp_path, [claimed("fleet/bob/telemetry", "bob"), claimed("fleet/alice/telemetry", "bob", 1)])
    assert delete_device(tmp_path, "bob")["bronze"] == 2
    assert not rows(tmp_path, "quarantine") and not rows(tmp_path, "gold/devices")


def test_a_claim_in_cbor_is_forgotten_too_also_where_the_name_comes_in_pieces(tmp_path):
    """CBOR may split a text into pieces: RFC 8949, 3.2.3.

    Planted: only payloads that contain the name's bytes in one piece are checked.
    """
    fields = json.loads(claimed("", "eve")[1])
    whole = cbor2.dumps(fields)
    pieces = whole.replace(b"\x63eve", b"\x7f\x61e\x62ve\xff")
    assert pieces != whole
    write(tmp_path, [("fleet/eve/telemetry", whole, RECEIVED_MS), ("fleet/alice/telemetry", pieces, RECEIVED_MS)])
    assert [row["device_id"] for row in rows(tmp_path, "silver")] == ["eve"]
    assert [row["device_id"] for row in rows(tmp_path, "quarantine")] == ["alice"]
    assert delete_device(tmp_path, "eve")["bronze"] == 2


def test_a_device_whose_name_is_sql_or_a_path_is_kept_counted_and_forgotten_like_any_other(tmp_path):
    """Planted: the name becomes part of a predicate unescaped."""
    names = ["o'brien", "x' OR '1'='1", "a\\", "%", "_", '"', "--", "; DROP", "{0}", "..", "a\nb", "\x1b[2J", "\u202e"]
    write(tmp_path, [claimed(f"fleet/{name}/telemetry", name) for name in [*names, "kept"]])
    assert sorted(row["device_id"] for row in rows(tmp_path, "gold/devices")) == sorted([*names, "kept"])
    for left, name in enumerate(names[:3]):
        assert delete_device(tmp_path, name)["silver"] == 1
        assert len(rows(tmp_path, "silver")) == len(rows(tmp_path, "gold/devices")) == len(names) - left
    assert "kept" in [row["device_id"] for row in rows(tmp_path, "silver")]

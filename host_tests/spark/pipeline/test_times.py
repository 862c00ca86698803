"""The time of a reading in a payload, in all the forms in which devices write it."""

from datetime import UTC, datetime

import pytest
from test_decoders import rules, sent
from test_series import decoder

from spark_ingest.decoders.fast_decode import TS_END
from spark_ingest.pipeline.decode.messages import part
from spark_ingest.pipeline.deduplicate.silver import unnumbered_rows

AT = 1_795_000_000_123


def rows(folder, payload, **keys) -> list[dict]:
    how = rules(folder, decoder(topic="x/{device}", format="json", time="at", **keys))
    parts = part(sent(("x/d", payload)), how)
    kept = parts.quarantined.to_pylist()
    return [*unnumbered_rows(parts.unnumbered).to_pylist(), *kept]


def iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


@pytest.mark.parametrize(
    ("text", "keys", "ms"),
    [
        (AT // 1000, {}, AT // 1000 * 1000),
        (AT / 1000, {}, AT),
        (AT, {}, AT),
        (AT * 1000, {}, AT),
        (AT * 1_000_000, {}, AT),
        (str(AT), {}, AT),
        (str(AT // 1000), {}, AT // 1000 * 1000),
        (f"{AT / 1000}", {}, AT),
        (str(AT * 1_000_000), {}, AT),
        ("1701123112345", {}, 1701123112345),
        (5000, {"unit": "ms"}, 5000),
        (5, {"unit": "s"}, 5000),
        (5_000_000, {"unit": "us"}, 5000),
        (str(5_000_000_000), {"unit": "ns"}, 5000),
        ("2026-11-18T11:06:40.123Z", {}, "2026-11-18T11:06:40.123"),
        ("2026-11-18 11:06:40.123456789z", {}, "2026-11-18T11:06:40.123"),
        ("2026-11-18t12:06:40+01:00", {}, "2026-11-18T11:06:40"),
        ("20261118T110640Z", {}, "2026-11-18T11:06:40"),
        ("2026-11-18T11:06:40-0830", {}, "2026-11-18T19:36:40"),
        ("2026-11-18 03:06:40", {"zone": "America/Los_Angeles"}, "2026-11-18T11:06:40"),
        ("2026-07-18 03:06:40", {"zone": "America/Los_Angeles"}, "2026-07-18T10:06:40"),
        ("2026-11-18T11:06:40Z", {"zone": "America/Los_Angeles"}, "2026-11-18T11:06:40"),
        ("2016-12-31T23:59:60Z", {}, "2017-01-01T00:00:00"),
        ("2026-11-18T24:00:00Z", {}, "2026-11-19T00:00:00"),
        ("2026-11-18T11:06", {}, "2026-11-18T11:06:00"),
    ],
)
def test_a_time_in_any_form(tmp_path, text, keys, ms):
    """Planted: "1701123112345" is the year 1701; a text of digits is refused; the zone of local times is UTC."""
    expected = iso(ms) if isinstance(ms, int) else ms
    (row,) = rows(tmp_path, {"at": text, "t": 1}, **keys)
    assert iso(round(row["ts"].timestamp() * 1000))[: len(expected)] == expected


@pytest.mark.parametrize("keys", [{}, {"metrics": {"t": "t"}}], ids=["slow", "fast"])
@pytest.mark.parametrize(
    "text",
    [
        *("noon", -1, 1e300, -1e306, "2026-13-01T00:00:00Z", "2026-11-18T25:00:00Z", True, [5], "9" * 25, 10**30),
        *("2026-11-18", TS_END),
    ],
)
def test_a_time_that_cannot_be_read_costs_only_itself(tmp_path, text, keys):
    """Planted: the reading goes to quarantine with its time; the fast reader takes what no table can hold."""
    row, refused = rows(tmp_path, {"at": text, "t": 1}, **keys)
    assert row["metrics"] == [("t", 1.0)] and row["ts"] is None and row["event_ts_from"] == "received"
    assert refused["kept"] and refused["reason"].startswith("time: the field at is no time: ")


@pytest.mark.parametrize("nothing", [None, "missing"])
def test_a_message_without_the_time_is_as_one_without_a_time(tmp_path, nothing):
    (row,) = rows(tmp_path, {"t": 1} if nothing else {"t": 1, "at": None})
    assert row["ts"] is None and row["event_ts_from"] == "received"


def test_a_number_that_the_first_message_leaves_out(tmp_path):
    """Planted: the first uplink of each session is in quarantine: seq is missing."""
    rule = decoder(topic="x/{device}", format="json", boot="s", seq="n", seq_absent=0)
    parts = part(sent(("x/d", {"s": "a", "t": 1}), ("x/d", {"s": "a", "n": "1", "t": 2})), rules(tmp_path, rule))
    assert parts.readings["seq"].to_pylist() == [0, 1] and not parts.quarantined.num_rows

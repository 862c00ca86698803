"""Laws of what gold remembers: it does not grow with time, and what it forgets is in no table of one pass either."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from gold_fleet import QUERY, Killed, assert_law, rows_of, table_of, telemetry
from spark_helpers import RECEIVED_MS
from umqtt_testkit.portable import FULL

from spark_ingest.alerts import journal as journal_module
from spark_ingest.alerts.journal import FILE
from spark_ingest.alerts.rules import rule_set
from spark_ingest.gold import STAGES, Gold, database
from spark_ingest.gold import update as gold_module
from spark_ingest.gold.database import Database
from spark_ingest.pipeline.write.batch import BatchWriter

DAY_MS = 86_400_000
HOUR_US = 3_600_000_000
DEVICES = ("a", "b")
STEP_DAYS, STEPS = 12, 8
GAPS = 3  # of a boot
# Every device is silent for longer between its daily messages.
RULES = rule_set(Path("alerts.toml"), [{"name": "offline", "kind": "offline", "after": "12h"}], {})


def messages(day: int) -> list[tuple[str, bytes, int]]:
    """Return a day's messages: of each device readings of two boots, one of which ends and has gaps, one message that
    cannot be read, and an orderly restart.
    """
    at = RECEIVED_MS - (STEP_DAYS * STEPS - day) * DAY_MS
    found = []
    for device in DEVICES:
        found.append((*telemetry(device, "1-a", day, at, 1000, t=1.0), at))
        found += [(*telemetry(device, f"{day}-b", seq, at, 1000, t=1.0), at) for seq in range(0, 2 * GAPS + 1, 2)]
        found.append((f"fleet/{device}/telemetry", b"bad %d" % day, at + 1))
        words = {"online": False, "boot": f"{day}-x", "reason": "restarting", "fw": f"0.{day}"}
        found.append((f"fleet/{device}/status", json.dumps(words).encode(), at + 2))
        words = {"online": True, "boot": "1-a", "reason": f"reason {day}", "fw": f"1.{day}"}
        found.append((f"fleet/{device}/status", json.dumps(words).encode(), at + 3))
    return found


def size_of(db: Database) -> dict[str, int]:
    """Return the rows of each table of the state."""
    return {name: db.rows(f"SELECT count(*) FROM {name}")[0][0] for name in db.state}


def lived(folder: Path, kill: Callable[[], str]) -> tuple[list[dict[str, int]], Counter[tuple[str, str]]]:
    """Let months pass; return the sizes of state, journal and gold/alerts after each step, and the events delivered.

    :param kill: returns the stage at which the next update is killed; "" for none.
    """
    dying = {"stage": ""}

    def on_stage(stage: str) -> None:
        if stage == dying["stage"]:
            raise Killed(stage)

    def opened() -> Gold:
        return Gold(folder, rules=RULES, recipients=lambda _alert: ("hook",), on_stage=on_stage)

    writer, gold = BatchWriter(folder, folder / "state"), opened()
    sizes, told = [], Counter()
    for step in range(STEPS):
        sent = [one for day in range(step * STEP_DAYS, (step + 1) * STEP_DAYS) for one in messages(day)]
        writer.write(table_of(sent, step * len(sent)), step, QUERY)
        heard_us = sent[-1][2] * 1000
        # At the time of the newest message nobody is silent; 18 hours later both devices are.
        for now_us, stage in ((heard_us, kill()), (heard_us, ""), (heard_us + 18 * HOUR_US, "")):
            dying["stage"] = stage
            try:
                gold.update(now_us)
                gold.save()
            except Killed:
                gold = opened()
        events = gold.journal.events()
        told.update((event.alert.id, event.state) for event in events)
        gold.journal.delivered(events, "hook")
        state = gold._db
        assert state is not None
        journal = (folder / FILE).stat().st_size
        sizes.append({**size_of(state), "journal": journal, "alerts": len(rows_of(folder)["alerts"])})
    return sizes, told


# Of each boot and each gap a row stays: what the tables gold/boots and gold/gaps have.
OF_BOOTS = {"boots", "runs", "gaps"}


def grown(sizes: list[dict[str, int]]) -> set[str]:
    """Return what is larger at the end than it ever was in the first half of the time."""
    # The minutes of one update are there, or of two after a kill.
    factors = {name: 2.5 if name.startswith("minute") else 1.1 for name in sizes[-1]}
    bounds = {name: factor * max(one[name] for one in sizes[: STEPS // 2 + 1]) for name, factor in factors.items()}
    return {name for name, size in sizes[-1].items() if size > bounds[name]} - OF_BOOTS


def test_state_journal_and_alerts_are_as_large_after_months_as_after_weeks_and_every_alert_is_told(tmp_path):
    """Planted: silences, days of quarantine, restarts, texts or boots are kept for ever; ended alerts stay noted."""
    seed = random.randrange(1 << 32) if FULL else 7
    print("seed", seed)
    rng = random.Random(seed)
    sizes, told = lived(tmp_path, lambda: rng.choice(["", *STAGES]))
    assert not grown(sizes)
    states = Counter(state for _id, state in told)
    # Besides silences, each device has one alert about quarantined messages, which lasts.
    assert states == {"firing": len(DEVICES) * (STEPS + 1), "resolved": len(DEVICES) * (STEPS - 1)}
    devices = DeltaTable(str(tmp_path / "gold" / "devices")).to_pyarrow_table()
    days = STEP_DAYS * STEPS
    assert devices["quarantined"].to_pylist() == [days] * len(DEVICES), "counted for ever"
    assert devices["open_gaps"].to_pylist() == [days * GAPS] * len(DEVICES), "counted for ever"
    # A rebuild judges at the time of the newest message.
    Gold(tmp_path, rules=RULES).update()
    assert_law(tmp_path, seed)


def never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = database.text_of
    monkeypatch.setattr(database, "text_of", lambda name: "" if name == "forget.sql" else whole(name))


GROWS = {
    "for ever": never_forgets,
    "in the journal": lambda monkeypatch: monkeypatch.setattr(journal_module, "_KEPT_US", 1 << 62),
}


@pytest.mark.parametrize("grows", GROWS)
@pytest.mark.tier(3)  # a control
def test_what_is_remembered_for_ever_is_caught(tmp_path, monkeypatch, grows):
    GROWS[grows](monkeypatch)
    sizes, _told = lived(tmp_path, lambda: "")
    assert grown(sizes)


def test_a_device_that_names_more_ranges_than_are_kept_apart_costs_one_a_boot_and_changes_no_other(
    tmp_path, monkeypatch
):
    """Planted: all ranges are kept, of which a device can name ten thousand in a message of 60 KB."""
    monkeypatch.setattr(gold_module, "MOST_RANGES", 20)
    sent: list[tuple[str, bytes]] = []
    for device, ranges in (("many", 15), ("few", 5)):
        sent += [telemetry(device, boot, seq, None, None, t=1.0) for boot in "xy" for seq in range(0, 100, 2)]
        for boot in "xy":
            dropped = [[2 * i + 1, 2 * i + 1] for i in range(ranges)]
            words = {"boot": boot, "dropped_seq": dropped}
            sent.append((f"fleet/{device}/log", json.dumps(words).encode()))
        for seq in range(61, 61 + 2 * ranges, 2):
            unread = {"v": 1, "id": device, "boot": "x", "seq": seq, "ts": None, "up": None, "m": "none"}
            sent.append((f"fleet/{device}/telemetry", json.dumps(unread).encode()))
    seed = random.randrange(1 << 32)
    print("seed", seed)
    random.Random(seed).shuffle(sent)
    writer, gold = BatchWriter(tmp_path, tmp_path / "state"), Gold(tmp_path)
    for batch_id in range(4):
        size = len(sent) // 4 + 1
        some = [(*one, RECEIVED_MS) for one in sent[batch_id * size :][:size]]
        writer.write(table_of(some, batch_id * size), batch_id, QUERY)
        gold.update()
    assert gold._db is not None
    kept: dict[tuple, list[tuple[int, int]]] = {}
    for kind, device, boot, first, last in gold._db.rows("FROM explained ORDER BY ALL"):
        kept.setdefault((kind, (device, boot)), []).append((first, last))
    assert kept["announced", ("many", "x")] == kept["announced", ("many", "y")] == [(1, 29)]
    assert [len(kept[name, ("few", "x")]) for name in ("announced", "unread")] == [5, 5]
    assert len(kept["unread", ("many", "x")]) == 15, "no more than are kept apart"
    states = Counter((row[0], row[8]) for row in rows_of(tmp_path)["gaps"])
    assert states == {
        ("many", "dropped"): 30,
        ("many", "quarantined"): 15,
        ("many", "missing"): 98 - 45,
        ("few", "dropped"): 10,
        ("few", "quarantined"): 5,
        ("few", "missing"): 98 - 15,
    }
    assert_law(tmp_path, seed)

"""gold/texts: the newest text of each metric, such as the state of a door, in whatever pieces it is counted."""

import json
import random

from gold_fleet import QUERY, SECOND, rows_of, table_of
from spark_helpers import RECEIVED_MS
from test_decoders import rows, rules
from test_no_values import retained
from test_series import decoder

from spark_ingest.gold import Gold
from spark_ingest.gold import update as gold_module
from spark_ingest.pipeline.change.rebuild import rebuild
from spark_ingest.pipeline.write.batch import BatchWriter

RULES = decoder(topic="v/{device}/{metric}", format="value") + decoder(topic="j/{device}", format="json", time="at")
STATES = ["open", "shut", "an \u00fc", 'a "b" \\', "\U0001f600", "x" * 1500, "21.5", "unavailable"]
# Objects, numbers beside rounded ones and "NaN" beside a null are in extra too, and are no texts.
OBJECTS = ['{"n":9007199254740993}', '{"n":NaN,"k":1}', '{"n":"\\ud800"}', '{"n":"a\\u0001"}', '{"n":"NaN."}']


def newest_texts(silver: list[dict], most: int) -> list[tuple]:
    """Return the rows of gold/texts, from those of silver."""
    newest: dict[tuple[str, str], tuple] = {}
    for row in silver:
        numbers = dict(row["metrics"])
        at = (row["ts"] if row["clock_ok"] else row["received_ts"], row["segment"], row["position"])
        for name, written in row["extra"]:
            value = json.loads(written)
            if isinstance(value, str) and name not in numbers:
                is_unicode = all(not "\ud800" <= character <= "\udfff" for character in value)
                text = (value if is_unicode else written)[:1000]
                newest[row["device_id"], name] = max(
                    newest.get((row["device_id"], name), ()), (*at, text, row["retain"])
                )
    kept = []
    for device in {device for device, _ in newest}:
        mine = [(name, one) for (owner, name), one in newest.items() if owner == device]
        mine.sort(key=lambda pair: pair[0])
        mine.sort(key=lambda pair: pair[1], reverse=True)
        kept += [(device, name, one[3], one[0], one[4]) for name, one in mine[:most]]
    return sorted(kept)


def test_the_newest_text_of_each_metric_is_the_one_that_silver_has(tmp_path, monkeypatch):
    """Planted: the last text that came, though it is older; texts beside numbers; all metrics that a device makes up;
    the state is forgotten between updates.
    """
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    monkeypatch.setattr(gold_module, "MOST_TEXTS", 4)
    how = rules(tmp_path, RULES)
    writer = BatchWriter(tmp_path, tmp_path / "state", rules=how, report=lambda _line: None)
    gold, start = Gold(tmp_path), 0
    for batch_id in range(5):
        messages = []
        for _ in range(rng.randrange(1, 25)):
            device, at = rng.choice("ab"), RECEIVED_MS + rng.randrange(3600) * SECOND
            if rng.random() < 0.6:
                payload = rng.choice(STATES).encode()
                messages.append((f"v/{device}/m{rng.randrange(6)}", payload, at))
            else:
                own = rng.choice(OBJECTS)[:-1] + (f',"at":{at - rng.randrange(5000)}}}' if rng.random() < 0.5 else "}")
                messages.append((f"j/{device}", own.encode(), at))
        batch = retained(table_of(messages, start), *rng.sample(range(len(messages)), len(messages) // 3))
        writer.write(batch, batch_id, QUERY)
        start += len(messages)
        if rng.random() < 0.7:
            gold.update()
            gold.save()
        if rng.random() < 0.3:
            gold = Gold(tmp_path)
    Gold(tmp_path).update()
    names = ("device_id", "metric", "text", "last_ts", "retain")
    expected = newest_texts(rows(tmp_path, "silver"), 4)
    assert expected
    found = sorted(tuple(row[name] for name in names) for row in rows(tmp_path, "gold/texts"))
    assert found == expected
    gathered = rows_of(tmp_path)["texts"]
    rebuild(tmp_path, config=tmp_path / "ingest.toml")
    assert rows_of(tmp_path)["texts"] == gathered

"""The ready-made rules of other makers' systems, with the messages that these send: each is what it should be."""

import json
import tomllib
from pathlib import Path

import pytest
from gold_fleet import table_of
from spark_helpers import RECEIVED_MS

from spark_ingest.decoders.rules import SYSTEMS, Rules, load
from spark_ingest.decoders.sparkplug import Births
from spark_ingest.pipeline.decode.messages import Parts, part

MESSAGES = Path(__file__).resolve().parents[1] / "systems"


def messages_of(system: str) -> list[dict]:
    return tomllib.loads((MESSAGES / f"{system}.toml").read_text())["message"]


def payload_of(message: dict) -> bytes:
    return bytes.fromhex(message["hex"]) if "hex" in message else message["payload"].encode()


def included(folder: Path, *systems: str) -> Rules:
    (folder / "ingest.toml").write_text(f"include = {json.dumps(systems)}")
    return Rules(False, load(folder / "ingest.toml"))


def found(parts: Parts) -> list[dict]:
    """Return the readings in the form of the files; the key `boot` only where the device numbers its readings."""
    rows = []
    for row in (*parts.readings.to_pylist(), *parts.unnumbered.to_pylist()):
        one = {"device": row["device_id"], "metrics": dict(row["metrics"])}
        one["texts"] = {name: json.loads(text) for name, text in row["extra"]}
        if row["ts"] is not None:
            one["ts"] = round(row["ts"].timestamp() * 1000)
        if row["seq"] >= 0:
            one |= {"boot": row["boot"], "seq": row["seq"]}
        rows.append(one)
    return rows


def status_of(parts: Parts) -> dict | None:
    rows = parts.status.to_pylist()
    assert len(rows) <= 1
    return {"device": rows[0]["device_id"], "online": rows[0]["online"], "reason": rows[0]["reason"]} if rows else None


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_message_is_what_it_should_be_and_none_is_lost_without_a_count(system, tmp_path, capsys):
    """Planted: a component's number is not in the name; a null is damage; a message that is left out is not counted."""
    how, births = included(tmp_path, system), Births()
    for position, message in enumerate(messages_of(system)):
        said = f"{message['topic']} {payload_of(message)!r:.200}"
        parts = part(table_of([(message["topic"], payload_of(message), RECEIVED_MS)], position), how, births)
        assert not parts.quarantined.num_rows, (said, parts.quarantined["reason"].to_pylist())
        expected = [{"metrics": {}, "texts": {}, **row} for row in message.get("rows", [])]
        assert found(parts) == expected, said
        status = status_of(parts)
        assert status is None or status | message["status"] == status, said
        assert (status is None) == ("status" not in message), said
        assert parts.ignored == (not expected and status is None), said
    assert capsys.readouterr().err == ""


def test_all_systems_at_once_read_each_message_as_alone(tmp_path):
    """Planted: the rules of a system whose topics begin with the device come first, and take those of others."""
    how, births, alone = included(tmp_path, *reversed(SYSTEMS)), Births(), Births()
    for system in SYSTEMS:
        own = included(tmp_path, system)
        for position, message in enumerate(messages_of(system)):
            batch = table_of([(message["topic"], payload_of(message), RECEIVED_MS)], position)
            one, other = part(batch, how, births), part(batch, own, alone)
            assert found(one) == found(other) and status_of(one) == status_of(other), message["topic"]
            assert not one.quarantined.num_rows

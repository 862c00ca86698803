"""``umqtt decode`` shows what becomes of messages; ``umqtt decoders suggest`` writes rules for what a spool holds."""

import json
import time
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, publish_packet, record
from test_systems import messages_of, payload_of
from umqtt_kit.__main__ import run

from spark_ingest.decoders.rules import SYSTEMS, load
from spark_ingest.spool.writer import Spool

STRANGE = [
    ("lab/a1/temp", b"21.5"),
    ("lab/a2/temp", b"22"),
    ("press/7/data", b'{"at":1795000000,"force":5}'),
    ("press/8/data", b'{"at":1795000001,"force":6}'),
    ("raw/x", b"\xff\x00"),
    ("walls/one", b'[{"a":1},{"b":2}]'),
    ("meters/m/lp", b"m f=1 1"),
]


@pytest.fixture(scope="module")
def spool(tmp_path_factory) -> Path:
    """Return a spool with the messages of all systems, of our own firmware, and of strangers."""
    root = tmp_path_factory.mktemp("systems") / "spool"
    every = [one for name in SYSTEMS for one in messages_of(name)]
    sent = [(one["topic"], payload_of(one), one["topic"].endswith("LWT")) for one in every]
    sent += [("fleet/pump/telemetry", record("pump", "1-a", 1), False), *((*one, False) for one in STRANGE)]
    with Spool(root / "north") as writer:
        for i, (topic, payload, retain) in enumerate(sent):
            packet = bytearray(publish_packet(topic, payload))
            packet[0] |= retain
            writer.append(bytes(packet), 1, RECEIVED_MS + i)
    return root


def printed(capsys, *arguments: object) -> str:
    assert run([str(one) for one in arguments]) == 0
    return capsys.readouterr().out


def test_what_is_suggested_names_every_system_and_reads_all_of_its_messages(spool, tmp_path, capsys):
    """Planted: a system is taken for another one with the same topics; a stranger's topics are left out."""
    text = printed(capsys, "decoders", "suggest", "--spool", spool)
    file = tmp_path / "ingest.toml"
    file.write_text(text)
    include = json.loads(text.split("include = ")[1].split("\n")[0])
    assert include == list(SYSTEMS)
    assert "# 1 messages of this project's own firmware" in text
    for hint in (
        '# topic = "lab/{device}/{metric}"\n# format = "number"',
        '# topic = "press/{device}/data"\n# format = "json"\n# time = "at"',
        '# topic = "walls/{device}"\n# format = "json"\n# each = "."',
        '# topic = "meters/{device}/lp"\n# format = "influx"',
        '# topic = "raw/{device}"\n# format = "decoder.py"',
    ):
        assert hint in text, text
    refused = printed(capsys, "decode", "--config", file, "--spool", spool, "--refused", "--json").splitlines()
    assert {json.loads(line)["topic"] for line in refused} == {topic for topic, _ in STRANGE}
    # The hints are rules that work.
    hints = [block for block in text.split("\n\n") if block.startswith("# ") and "[[decoder]]" in block]
    rules = ["\n".join(line[2:] for line in block.split("\n")[1:]) for block in hints if "decoder.py" not in block]
    file.write_text(text + "\n\n".join(["", *rules]))
    load(file)
    refused = printed(capsys, "decode", "--config", file, "--spool", spool, "--refused", "--json").splitlines()
    assert {json.loads(line)["topic"] for line in refused} == {"raw/x"}


def test_one_message_is_explained_for_people_and_for_programs(tmp_path, capsys):
    file, binary = tmp_path / "ingest.toml", tmp_path / "payload.bin"
    file.write_text('include = ["zigbee2mqtt"]\n[[decoder]]\ntopic = "n/{device}/{metric}"\nformat = "number"\n')
    binary.write_bytes(b"5")
    text = printed(capsys, "decode", "--config", file, "zigbee2mqtt/attic", '{"t":1.5,"n":9007199254740993,"a":"x"}')
    assert text.startswith("zigbee2mqtt/attic\n  rule      zigbee2mqtt: decoder 4 (json)\n  reading   attic, ")
    assert '    t = 1.5\n    n = 9007199254740992.0\n    a = "x"\n    n = 9007199254740993\n' in text
    one = json.loads(printed(capsys, "decode", "--config", file, "n/d/t", binary, "--json"))
    assert one["readings"][0]["metrics"] == {"t": 5.0} and one["rule"] == "decoder 1 (number)" and not one["ignored"]
    assert "refused   not a number: b'x'" in printed(capsys, "decode", "--config", file, "n/d/t", "78", "--hex")
    assert "no value in it" in printed(capsys, "decode", "--config", file, "n/d/t", "nan")
    assert "zigbee2mqtt: decoder 1" in printed(
        capsys, "decode", "--config", file, "zigbee2mqtt/a/availability", "online"
    )
    assert "refused   no rule matches what/ever" in printed(capsys, "decode", "what/ever", "1")
    assert "pump, 1-a 1," in printed(capsys, "decode", "fleet/pump/telemetry", record("pump", "1-a", 1).decode())
    for wrong in (
        ["decode"],
        ["decode", "a"],
        ["decode", "a", "b", "--spool", "c"],
        ["decode", "a", "b", "--config", "no"],
    ):
        assert run(wrong) == 2
        assert len(capsys.readouterr().err.strip().split("\n")) <= 4


def test_from_a_spool_to_a_file_that_reads_fifty_devices_takes_no_time(spool, tmp_path, capsys):
    """The way from an unknown broker to rules: what takes the ten minutes is the person, not the commands."""
    root = tmp_path / "spool"
    with Spool(root / "north") as writer:
        for i in range(2000):
            payload = b'{"temperature":%d,"battery":97,"last_seen":1795000000123}' % i
            writer.append(publish_packet(f"zigbee2mqtt/room {i % 50}", payload), 1, RECEIVED_MS + i)
    begun = time.process_time()
    (tmp_path / "ingest.toml").write_text(printed(capsys, "decoders", "suggest", "--spool", root))
    shown = printed(capsys, "decode", "--config", tmp_path / "ingest.toml", "--spool", root, "-n", 100, "--json")
    rows = [json.loads(line) for line in shown.splitlines()]
    assert len({row["readings"][0]["device_id"] for row in rows}) == 50 and not any(row["reasons"] for row in rows)
    # Not a bound on speed: an hour would be a defect.
    assert time.process_time() - begun < 600


def test_a_node_is_asked_for_a_rebirth(capsys):
    """Planted: a node with a wildcard is taken."""
    for node in ("edge", "a/b/c", "plant/+", "/x"):
        assert run(["sparkplug", "rebirth", node]) == 2
        assert "give GROUP/NODE" in capsys.readouterr().err

"""``umqtt decode`` shows what becomes of messages; ``umqtt decoders suggest`` writes rules for what a spool holds."""

import json
import time
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from gold_fleet import QUERY
from spark_helpers import RECEIVED_MS, publish_packet, record
from sparkplug_payloads import BOOLEAN, tagged
from test_decoders import rows
from test_hostile import read_whole
from test_systems import messages_of, payload_of
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import eventually

from spark_ingest.decoders.rules import SYSTEMS, Rules, load
from spark_ingest.decoders.sparkplug_payload import parse
from spark_ingest.gold import Gold
from spark_ingest.pipeline.write.batch import BatchWriter
from spark_ingest.spool.writer import Spool
from umqtt_cli.__main__ import run

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
    switch = printed(capsys, "decode", "--config", file, "zigbee2mqtt/lamp/state", "ON")
    assert "rule      zigbee2mqtt: decoder 5 (value)\n" in switch
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


def test_from_an_unknown_broker_to_fifty_devices_in_tables_takes_no_time(tmp_path, capsys):
    """What takes the ten minutes is the person, not the commands.

    Planted: a system is not suggested, so its devices are in no table.
    """
    folder, file, tables = tmp_path / "spool" / "north", tmp_path / "ingest.toml", tmp_path / "tables"
    rooms = [
        (f"zigbee2mqtt/room {i % 50}", b'{"temperature":%d,"door":"open","last_seen":1795000000123}' % i)
        for i in range(2000)
    ]
    others = [(one["topic"], payload_of(one)) for name in SYSTEMS for one in messages_of(name)]
    with Spool(folder) as writer:
        for i, (topic, payload) in enumerate(rooms + others):
            writer.append(publish_packet(topic, payload), 1, RECEIVED_MS + i)
    begun = time.process_time()
    file.write_text(printed(capsys, "decoders", "suggest", "--spool", tmp_path / "spool"))
    shown = printed(capsys, "decode", "--config", file, "--spool", tmp_path / "spool", "--refused", "--json")
    assert not shown
    # What umqtt ingest does, without Spark.
    ingest = BatchWriter(tables, tables / "state", rules=Rules(False, load(file)), report=lambda _line: None)
    ingest.write(read_whole(folder), 0, QUERY)
    Gold(tables).update()
    # Not a bound on speed: an hour would be a defect.
    assert time.process_time() - begun < 600
    devices = {row["device_id"] for row in rows(tables, "gold/devices")}
    assert {f"room {i}" for i in range(50)} < devices
    expected = {one["device"] for name in SYSTEMS for message in messages_of(name) for one in message.get("rows", [])}
    assert expected <= devices and not rows(tables, "quarantine")
    texts = {row["device_id"]: row["text"] for row in rows(tables, "gold/texts") if row["metric"] == "door"}
    assert texts.items() >= {f"room {i}": "open" for i in range(50)}.items()


def test_nodes_are_asked_for_a_rebirth_as_the_specification_says(capsys):
    """Planted: QoS 1; a retained request; a number instead of a boolean; a node that is not asked."""
    received: list[paho.MQTTMessage] = []
    listener = paho.Client(paho.CallbackAPIVersion.VERSION2, "nodes")
    listener.on_connect = lambda client, *_: client.subscribe("spBv1.0/#", 2)
    granted: list[object] = []
    listener.on_subscribe = lambda _client, _data, packet_id, *_: granted.append(packet_id)
    listener.on_message = lambda _client, _data, message: received.append(message)
    with paired_broker() as port:
        listener.connect("127.0.0.1", port)
        listener.loop_start()
        try:
            eventually(lambda: granted)
            begun = round(time.time() * 1000)
            broker = ("--broker", f"mqtt://127.0.0.1:{port}")
            said = printed(capsys, "sparkplug", "rebirth", "plant/edge-7", "plant 2/edge-8", *broker, "--json")
            eventually(lambda: len(received) == 2)
            for node in ("edge", "a/b/c", "plant/+", "plant/#", "/x", "plant/"):
                assert run(["sparkplug", "rebirth", "plant/fine", node, *broker]) == 2
                assert "give GROUP/NODE" in capsys.readouterr().err
            # A retained request would ask again at each session of the node; a new subscription would bring it.
            listener.subscribe("spBv1.0/#", 2)
            eventually(lambda: len(granted) == 2)
            listener.publish("spBv1.0/end", b"")
            eventually(lambda: received[-1].topic == "spBv1.0/end")
        finally:
            listener.disconnect()
            listener.loop_stop()
    assert json.loads(said) == {"asked": ["plant/edge-7", "plant 2/edge-8"]}
    assert [one.topic for one in received[:-1]] == ["spBv1.0/plant/NCMD/edge-7", "spBv1.0/plant 2/NCMD/edge-8"]
    for message in received[:-1]:
        assert message.qos == 0 and not message.retain
        content = parse(message.payload)
        (asked,) = content.metrics
        assert (asked.name, asked.datatype, asked.boolean_value) == ("Node Control/Rebirth", BOOLEAN, True)
        assert begun <= content.timestamp <= time.time() * 1000 and not content.HasField("seq")
        # By hand, since the decoder could share a mistake with what writes the request.
        at, name = content.timestamp, b"Node Control/Rebirth"
        written = tagged(1, name) + tagged(3, at) + tagged(4, BOOLEAN) + tagged(14, 1)
        assert message.payload == tagged(1, at) + tagged(2, written)

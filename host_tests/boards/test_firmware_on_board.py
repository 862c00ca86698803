"""The firmware on a virtual board, against a scripted peer: what a broker sees of a board's first minutes."""

import json
from collections.abc import Callable
from pathlib import Path

from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.wire import Packet, Type

import umqtt_robust

FIRMWARE = Path(__file__).resolve().parents[2] / "firmware"
LIBRARY = Path(umqtt_robust.__file__).parent
INTERVAL_MS = 50


def prepare(board: VirtualBoard, peer: ScriptedPeer) -> None:
    settings = {"device_id": "b1", "brokers": [peer.url], "interval_ms": INTERVAL_MS, "keep_alive": 60, "wifi": []}
    board.install(
        {
            "": FIRMWARE,
            "lib/umqtt_robust": LIBRARY,
            "settings.json": json.dumps(settings).encode(),
        }
    )


def records(link: Link, count: int) -> list[dict]:
    """The next telemetry records, everything acknowledged as a broker does."""
    found = []
    while len(found) < count:
        packet = link.receive()
        assert packet is not None, "the board closed the connection"
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/telemetry":
            found.append(json.loads(packet.payload))
    return found


def connect(peer: ScriptedPeer) -> tuple[Link, Packet]:
    link = peer.accept()
    return link, link.accept_session()


def test_the_will_says_offline_and_the_readings_count_from_zero(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer
):
    board = virtual_board()
    prepare(board, peer)
    board.start()
    link, connected = connect(peer)
    assert (connected.will_topic, connected.will_qos, connected.will_retain) == (b"fleet/b1/status", 1, True)
    assert json.loads(connected.will_payload)["online"] is False
    readings = records(link, 5)
    assert [reading["seq"] for reading in readings] == [0, 1, 2, 3, 4]
    assert {reading["id"] for reading in readings} == {"b1"}


def test_after_a_power_cut_a_new_boot_identity_counts_from_zero_again(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer
):
    board = virtual_board()
    prepare(board, peer)
    boots = []
    for _ in range(3):
        board.start()
        link, _ = connect(peer)
        readings = records(link, 2)
        assert [reading["seq"] for reading in readings] == [0, 1]
        boots.append(readings[0]["boot"])
        board.kill()
        link.close()
    assert [int(boot.partition("-")[0]) for boot in boots] == [1, 2, 3]


def test_every_witnessed_reading_arrives_also_over_a_reset_connection(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer, tmp_path: Path
):
    witness = tmp_path / "witness"
    board = virtual_board(env={"UMQTT_WITNESS": str(witness)})
    prepare(board, peer)
    board.start()
    link, _ = connect(peer)
    arrived = records(link, 3)
    link.reset()
    link, _ = connect(peer)
    arrived += records(link, 10)
    promised = [line.split() for line in witness.read_text().splitlines()][:8]
    assert [[reading["boot"], str(reading["seq"])] for reading in arrived[:3]] == promised[:3]
    seen = {(reading["boot"], str(reading["seq"])) for reading in arrived}
    assert {(boot, seq) for boot, seq in promised} <= seen

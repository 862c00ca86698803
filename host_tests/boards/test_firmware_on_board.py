"""The firmware on a virtual board, against a scripted peer: the broker's view of a board's first minutes."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.encoder import publish
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.wire import Packet, Type

import umqtt_robust

FIRMWARE = Path(__file__).resolve().parents[2] / "firmware"
# Their places on a board: readable, and without the portal.
PROGRAM = {
    "boot.py": FIRMWARE / "boot.py",
    "main.py": FIRMWARE / "main.py",
    "boot_choice.py": FIRMWARE / "boot_choice.py",
    "startup.py": FIRMWARE / "startup.py",
    "postmortem.py": FIRMWARE / "postmortem.py",
    "app": FIRMWARE / "app",
    "lib/umqtt_robust": Path(umqtt_robust.__file__).parent,
}
INTERVAL_MS = 50
STORE = "state/mqtt"


def prepare(board: VirtualBoard, peer: ScriptedPeer, interval_ms: int = INTERVAL_MS) -> None:
    settings = {
        "device_id": "b1",
        "brokers": [peer.url],
        "interval_ms": interval_ms,
        "outbox": 600,  # a test delayed by a busy machine must not cost a reading
        "keep_alive": 60,
        "wifi": [],
    }
    board.install(PROGRAM | {"settings.json": json.dumps(settings).encode()})


def records(link: Link, count: int) -> list[dict]:
    """Return the next telemetry records; everything is acknowledged, as a broker does."""
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


def boot_count(reading: dict) -> int:
    return int(reading["boot"].partition("-")[0])


def test_every_reading_made_arrives_also_over_power_cuts_before_any_acknowledgement(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer, tmp_path: Path
):
    ground_truth = tmp_path / "ground_truth"
    board = virtual_board(env={"UMQTT_GROUND_TRUTH": str(ground_truth)})
    prepare(board, peer)

    def noted() -> list[list[str]]:
        return [line.split() for line in ground_truth.read_text().splitlines()] if ground_truth.exists() else []

    for life in (1, 2):
        board.start()
        link, _ = connect(peer)
        while len(noted()) < 3 * life:
            assert link.receive() is not None  # and no PUBACK
        board.kill()
        link.close()
    promised = noted()
    assert len(promised) > 4
    board.start()
    link, _ = connect(peer)
    arrived = []
    while not arrived or boot_count(arrived[-1]) < 3:
        arrived += records(link, 1)
    old = [[reading["boot"], str(reading["seq"])] for reading in arrived[:-1]]
    # A reading may have been stored just before the power cut without being noted.
    assert [one for one in old if one in promised] == promised


def test_every_reading_made_arrives_also_over_a_reset_connection(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer, tmp_path: Path
):
    ground_truth = tmp_path / "ground_truth"
    board = virtual_board(env={"UMQTT_GROUND_TRUTH": str(ground_truth)})
    prepare(board, peer)
    board.start()
    link, _ = connect(peer)
    arrived = records(link, 3)
    link.reset()
    link, _ = connect(peer)
    arrived += records(link, 10)
    promised = [line.split() for line in ground_truth.read_text().splitlines()][:8]
    assert [[reading["boot"], str(reading["seq"])] for reading in arrived[:3]] == promised[:3]
    seen = {(reading["boot"], str(reading["seq"])) for reading in arrived}
    assert {(boot, seq) for boot, seq in promised} <= seen


def test_a_board_whose_store_cannot_be_read_says_so_and_works_on(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer
):
    board = virtual_board()
    prepare(board, peer)
    board.start()
    link, _ = connect(peer)
    board.kill()
    link.close()
    # A slot in a future format, with the correct CRC.
    later = b"\x63" + bytes(20)
    board.install({STORE + "/0/0": zlib.crc32(later).to_bytes(4, "little") + later})
    board.start()
    link, _ = connect(peer)
    logged = ""
    while "format 99" not in logged:
        packet = link.receive()
        assert packet is not None
        link.answer(packet)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/log":
            logged += packet.payload.decode()
    assert records(link, 2)


def answers(link: Link, count: int, said: tuple[bytes, ...] = ()) -> list[dict]:
    """Acknowledge what the board sends until `count` replies have come, and a message on each topic of `said`."""
    found, waited_for = [], set(said)
    while len(found) < count or waited_for:
        packet = link.receive()
        assert packet is not None, "the board closed the connection"
        link.answer(packet)
        waited_for.discard(packet.topic_name)
        if packet.type is Type.PUBLISH and packet.topic_name == b"fleet/b1/reply":
            found.append(json.loads(packet.payload))
    return found


def pieces(board: VirtualBoard) -> list[bytes]:
    image = board.image.read_bytes()
    return [image[start : start + 64] for start in range(0, len(image), 64)]


def test_a_broker_cannot_wear_out_the_flash_with_what_is_not_carried_out(
    virtual_board: Callable[..., VirtualBoard], peer: ScriptedPeer
):
    """Planted: refusals, or repeated replies, go through the outbox in flash; so does a message at QoS 2."""
    board = virtual_board()
    prepare(board, peer, interval_ms=3_600_000)
    board.start()
    link, _ = connect(peer)
    answers(link, 0, (b"fleet/b1/status", b"fleet/b1/telemetry"))
    # The second reply comes when all is written that the acknowledgement of the first one leads to.
    for packet_id in (8, 9):
        link.send(publish(b"fleet/b1/cmd", b'{"id": "known", "cmd": "ping"}', 1, packet_id))
        assert [reply["ok"] for reply in answers(link, 1)] == [True]
    before = pieces(board)
    for number in range(10):
        attack = [b'{"id": "%d", "cmd": "reboot"}' % number, b"garbage", b'{"id": "known", "cmd": "ping"}'] * 2
        link.send(*[publish(b"fleet/b1/cmd", what, 1 + at // 3, 10 + at) for at, what in enumerate(attack)])
        assert [reply["ok"] for reply in answers(link, 6)] == [False, False, True] * 2
    changed = sum(one != other for one, other in zip(before, pieces(board), strict=True))
    # The note that this boot is healthy comes after a minute; a file that is written changes 3 of them or more.
    assert changed <= 12, changed

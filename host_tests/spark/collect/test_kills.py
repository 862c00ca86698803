"""The law of violent stops: what was acknowledged to a publisher is in the spool, however often a collector dies."""

import random
import signal
import struct
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from spark_helpers import Process
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.spool.blocks import Position
from spark_ingest.spool.messages import messages, verify
from spark_ingest.spool.view import Spools, SpoolView

TOPIC = "fleet/pump/telemetry"
PLANTED = Path(__file__).with_name("planted.py")
COLLECTOR = ("-m", "spark_ingest.collector")
KILLS = 4
CUTS = 8


class Load:
    """Publishes numbered messages at QoS 1 until it is stopped, and records which of them were acknowledged."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._sent: list[paho.MQTTMessageInfo] = []
        self._rng = rng
        self._ended = threading.Event()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, "load")
        self._client.max_inflight_messages_set(500)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def acknowledged(self) -> set[int]:
        return {number for number, sent in enumerate(self._sent) if sent.is_published()}

    def end_in(self, view: SpoolView) -> None:
        """Stop, and return once the broker has delivered everything, so that the last messages are in the spool."""
        self._ended.set()
        self._thread.join()
        last, place = len(self._sent), None

        def came() -> bool:
            nonlocal place
            # Several messages, for a collector that loses some; a broker delivers them in order.
            self._publish(0)
            durable = view.durable()
            found = durable != place and any(number >= last for number in numbers(view, place, durable))
            place = durable
            return found

        eventually(came, "the last messages are in the spool")

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    def _run(self) -> None:
        while not self._ended.is_set():
            # Bursts and pauses, with short and long messages.
            for _ in range(self._rng.randrange(1, 120)):
                self._publish(self._rng.randrange(0, 600))
            self._ended.wait(self._rng.choice((0, 0.005, 0.02)))
            if len(self._sent) > 1000:
                self._sent[-1000].wait_for_publish(WAIT_LIMIT_S)

    def _publish(self, size: int) -> None:
        payload = struct.pack(">I", len(self._sent)) + bytes(size)
        self._sent.append(self._client.publish(TOPIC, payload, qos=1))


def numbers(view: SpoolView, start: Position | None = None, end: Position | None = None) -> set[int]:
    """Return the message numbers in a spool, or between two positions of it."""
    return {struct.unpack_from(">I", message.payload)[0] for message in messages(view, start, end)}


def kill_again_and_again(port: int, root: Path, seed: int, program: tuple[object, ...]) -> tuple[set[int], set[int]]:
    """Return (acknowledged to the publisher, in the spool) after KILLS kills and one clean end."""
    rng = random.Random(seed)
    arguments = [*program, "--broker", f"mqtt://127.0.0.1:{port}", "--spool", root, "--name", "north"]
    arguments += ["--longest-delay", "0.05", "--segment-bytes", "200K"]
    load = None
    try:
        for life in range(KILLS + 1):
            with Process([sys.executable, *arguments]) as one:
                one.wait_for_line("subscribed north")
                # Messages published before the first subscription reach nobody.
                load = load or Load(port, rng)
                if life < KILLS:
                    time.sleep(rng.uniform(0.0, 0.5))
                    one.signal(signal.SIGKILL)
                    assert one.finish()[0] == -signal.SIGKILL
                    continue
                load.end_in(Spools(root).view("north"))
                load.stop()
                assert one.terminate()[0] == 0
    finally:
        if load is not None:
            load.stop()
    view = Spools(root).view("north")
    assert verify(view).damages == []
    return load.acknowledged, numbers(view)


def test_what_publishers_had_acknowledged_is_in_the_spool_after_kills_at_random_moments(broker, tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    acknowledged, kept = kill_again_and_again(broker, tmp_path / "spool", seed, COLLECTOR)
    assert len(acknowledged) > 200
    assert acknowledged - kept == set(), f"{len(acknowledged - kept)} of {len(acknowledged)} lost"


@pytest.mark.parametrize("mistake", [None, "forget"])
def test_what_publishers_had_acknowledged_is_in_the_spool_though_links_are_cut_at_random_bytes(
    broker, tmp_path, mistake
):
    """The collector's links end by RST or FIN, in the middle of packets, of handshakes, or of acknowledgements."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    program: tuple[object, ...] = (PLANTED, mistake) if mistake else COLLECTOR
    options = ["--spool", tmp_path / "spool", "--name", "north", "--longest-delay", "0.05"]
    view = Spools(tmp_path / "spool").view("north")
    with FaultProxy(("127.0.0.1", broker), seed=seed) as proxy, ExitStack() as ending:
        one = ending.enter_context(Process([sys.executable, *program, "--broker", proxy.url, *options]))
        one.wait_for_line("subscribed north")
        load = Load(broker, rng)
        ending.callback(load.stop)
        for _ in range(CUTS):
            for _ in range(rng.randrange(3)):
                proxy.cut_next(rng.randrange(0, 60), rng.choice(("up", "down")))
            link = eventually(lambda: proxy.connections, "a link")[-1]
            link.cut_after(rng.randrange(0, 20_000), "down", reset=rng.random() < 0.5)
            eventually(lambda link=link: link.closed, "its end")
        load.end_in(view)
        load.stop()
        assert one.terminate()[0] == 0
    assert verify(view).damages == []
    lost = load.acknowledged - numbers(view)
    assert len(load.acknowledged) > 200
    assert bool(lost) == bool(mistake), f"{len(lost)} of {len(load.acknowledged)} lost"


@pytest.mark.parametrize("mistake", ["forget"])
@pytest.mark.tier(3)  # a control
def test_a_collector_that_loses_messages_is_caught(mosquitto, tmp_path, mistake):
    acknowledged, kept = kill_again_and_again(mosquitto, tmp_path / "spool", 1, (PLANTED, mistake))
    assert acknowledged - kept

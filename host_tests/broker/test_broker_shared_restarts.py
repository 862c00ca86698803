"""Two collectors share a subscription over stops, kills and restarts of the broker: nothing acknowledged is lost.

`python host_tests/broker/test_broker_shared_restarts.py [RESTARTS [SEED]]` runs the story with 20 restarts, or as
many as given, and counts.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from broker_peer import BrokerProcess
from kill_clients import GONE, LAST, Publisher, Subscriber, drain
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
RESTARTS = 3
RESTARTS_BY_COMMAND = 20


class Story:
    """One publisher at QoS 1, two collectors with persistent sessions, and a broker that is restarted."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.publisher = Publisher("one", 1)
        self.collectors = [Subscriber(b"collector-%d" % number, (b"$share/ingest/load/#",)) for number in range(2)]
        self._store = folder / "broker.db"

    def run(self, restarts: int) -> int:
        """Run the story. Returns the number of acknowledged messages that no collector got."""
        with BrokerProcess(self._store) as broker:
            for collector in self.collectors:
                collector.subscribe(broker.port)
        for _ in range(restarts):
            with BrokerProcess(self._store) as broker:
                self._load(broker)
        with BrokerProcess(self._store) as broker:
            self.publisher.run(broker.port, lambda: True)
            drain(self.collectors, broker.port, b"load/last")
        return len(set(range(1, self.publisher.acknowledged + 1)) - self._seen())

    def _seen(self) -> set[int]:
        received = [payload for one in self.collectors for payload, _ in one.received if payload != LAST]
        return {int(payload.removeprefix(b"one:")) for payload in received}

    def _load(self, broker: BrokerProcess) -> None:
        wanted = self.publisher.acknowledged + self.rng.randint(100, 800)
        jobs = [
            threading.Thread(target=_until_gone, args=(one, broker.port)) for one in (self.publisher, *self.collectors)
        ]
        for job in jobs:
            job.start()
        eventually(lambda: self.publisher.acknowledged >= wanted or not jobs[0].is_alive())
        broker.process.send_signal(self.rng.choice([signal.SIGTERM, signal.SIGKILL]))
        for job in jobs:
            job.join(WAIT_LIMIT_S)
        broker.process.wait(WAIT_LIMIT_S)


def _until_gone(client: Publisher | Subscriber, port: int) -> None:
    with contextlib.suppress(*GONE):
        if isinstance(client, Publisher):
            client.run(port, lambda: False)
        else:
            client.run(port)


@pytest.mark.parametrize("seed", [1, 2] if FULL else [1])
def test_two_collectors_lose_nothing_across_restarts_and_kills(tmp_path: Path, seed: int) -> None:
    story = Story(tmp_path, seed)
    assert story.run(RESTARTS) == 0, f"seed {seed}"
    assert story.publisher.acknowledged > 300
    assert [one.broken for one in (*story.collectors, story.publisher)] == [[], [], []]


def main(arguments: list[str]) -> int:
    """Run the story and count. Returns the exit code: 1 if anything was lost."""
    restarts = int(arguments[0]) if arguments else RESTARTS_BY_COMMAND
    seed = int(arguments[1]) if len(arguments) > 1 else random.randrange(1_000_000)
    with tempfile.TemporaryDirectory(prefix="umqtt-shared-") as folder:
        story = Story(Path(folder), seed)
        lost = story.run(restarts)
    print(f"restarts {restarts}, acknowledged {story.publisher.acknowledged}, lost {lost}, seed {seed}")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

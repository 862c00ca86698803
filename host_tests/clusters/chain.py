"""A fleet, a cluster, a collector and Spark, with faults of the cluster; counts what arrives at the end."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from deltalake import DeltaTable
from engines import PASSWORDS, Cluster, Node, Shards, patiently
from fleet import Fleet, Identity
from umqtt_testkit.waiting import NotInTime, eventually
from virtual_boards import Boards

from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import Spools

# Faults that an engine itself does not survive, (engine, fault), and their issues. docs/engines.md tells users.
CANNOT = {("rabbitmq", "kill all with new sessions"): "rabbitmq-server 15725"}

_Item = TypeVar("_Item", bound=Hashable)


def kill_one(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    node = rng.choice(cluster.nodes)
    node.stop()
    fleet.go_on(10, all if cluster.shares_sessions else any)
    node.start()
    node.await_listening()


def stop_one(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    node = rng.choice(cluster.nodes)
    node.signal(signal.SIGSTOP)
    try:
        fleet.go_on(10, all if cluster.shares_sessions else any)
    finally:
        node.signal(signal.SIGCONT)


def wipe_one(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    node = rng.choice(cluster.nodes)
    node.stop()
    cluster.forget(node)
    shutil.rmtree(node.folder / "store")
    node.start()
    node.await_listening()
    cluster.copy_to(node)


def kill_all(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    cluster.await_sessions([*fleet.client_ids, "umqtt-collector-collector"])
    kill_all_now(cluster, fleet, rng)


def kill_all_now(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    del fleet
    for node in cluster.nodes:
        node.signal(signal.SIGKILL)
    for node in cluster.nodes:
        node.stop()
    for node in rng.sample(cluster.nodes, len(cluster.nodes)):
        node.start()
    for node in cluster.nodes:
        node.await_listening()
    cluster.elect_leaders()


def lose_one(cluster: Cluster, fleet: Fleet, rng: random.Random) -> None:
    assert isinstance(cluster, Shards)
    lost = rng.choice(cluster.nodes)
    lost.stop()
    fleet.go_on(10, any)
    cluster.replace(lost)


FAULTS: dict[str, Callable[[Cluster, Fleet, random.Random], None]] = {
    "kill one": kill_one,
    "stop one": stop_one,
    "wipe one": wipe_one,
    "kill all": kill_all,
    "kill all with new sessions": kill_all_now,
    "lose one": lose_one,
}


@dataclass
class Outcome:
    """The counts of a run. lost, duplicated and commands_lost must be 0.

    acknowledged: readings of the devices that the engine acknowledged; from_boards: readings that the boards hold in
    their flash or have delivered; doubled: repeated copies in the spool.
    """

    acknowledged: int = 0
    from_boards: int = 0
    commands: int = 0
    lost: int = 0
    duplicated: int = 0
    commands_lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)


def run(
    cluster: Cluster,
    folder: Path,
    faults: list[str],
    seed: int,
    *,
    devices: int = 4,
    boards: int = 2,
    spark: bool = True,
) -> Outcome:
    """Run a fleet on a running cluster, through `faults` in the given order, and count."""
    rng = random.Random(seed)
    spool = folder / "spool"
    outcome = Outcome()
    collectors = _collectors(cluster, folder, spool)
    try:
        virtual = Boards(cluster, boards, folder / "boards")
        with virtual, Fleet(cluster, devices, seed, virtual) as fleet:
            fleet.go_on(5)
            for name in faults:
                brokers = cluster.brokers
                FAULTS[name](cluster, fleet, rng)
                if cluster.brokers != brokers:
                    while collectors:
                        collectors.pop().stop()
                    collectors += _collectors(cluster, folder, spool)
                fleet.go_on(5)
                outcome.faults.append(name)
            fleet.finish()
            from_boards = virtual.made
            made = fleet.acknowledged | from_boards
            outcome.from_boards = len(from_boards)
            collected = _settled(lambda: _collected(spool, cluster.brokers), made)
            commands = fleet.acknowledged_commands
            outcome.commands_lost = len(commands - set(_settled(lambda: set(fleet.commands), commands)))
            outcome.acknowledged, outcome.commands = len(fleet.acknowledged), len(commands)
    finally:
        for collector in collectors:
            collector.stop()
    assert not any("not_one_cluster" in collector.log for collector in collectors), "the nodes are one cluster"
    outcome.doubled = sum(collected.values()) - len(collected)
    stored = _stored(folder) if spark else Counter(set(collected))
    outcome.lost = len(made - set(stored))
    outcome.duplicated = sum(stored.values()) - len(stored)
    return outcome


def _collectors(cluster: Cluster, folder: Path, spool: Path) -> list[Node]:
    """Start a collector for each broker and wait for its subscription; one with another's sessions gets two."""
    collectors: list[Node] = []
    try:
        for name, urls in cluster.brokers.items():
            command = [sys.executable, "-m", "spark_ingest.collector", "--spool", str(spool), "--name", name]
            command += ["--broker", urls, "--ca", str(cluster.ca), "--username", "collector"]
            command += ["--longest-delay", "0.5", "--keep-alive", "10"]
            place = Path(tempfile.mkdtemp(prefix="collector-", dir=folder)) / name
            collectors.append(Node(name, place, command, {"UMQTT_PASSWORD": PASSWORDS["collector"]}, 0))
            collectors[-1].start()
        patiently(
            lambda: all(f"subscribed {collector.name}\n" in collector.log for collector in collectors),
            lambda: [collector.log[-1000:] for collector in collectors],
        )
    except BaseException:
        for collector in collectors:
            collector.stop()
        raise
    return collectors


def _settled(look: Callable[[], Iterable[_Item]], wanted: set[_Item]) -> Counter[_Item]:
    """Return what `look` finds once it has found all of `wanted`, or when time is up."""
    with contextlib.suppress(NotInTime):
        eventually(lambda: wanted <= set(look()))
    return Counter(look())


def _collected(spool: Path, names: Iterable[str]) -> Counter[Identity]:
    found: Counter[Identity] = Counter()
    for name in names:
        for message in messages(Spools(spool).view(name)):
            if not message.topic.endswith("/telemetry"):
                continue
            record = json.loads(message.payload)
            found[record["id"], record["boot"], record["seq"]] += 1
    return found


def _stored(folder: Path) -> Counter[Identity]:
    """Return the rows of silver, by identity, after Spark has read the spool."""
    tables = folder / "tables"
    command = [sys.executable, "-m", "spark_ingest.pipeline", "--once", "--spool", str(folder / "spool")]
    command += ["--tables", str(tables), "--checkpoint", str(folder / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = DeltaTable(tables / "silver").to_pyarrow_table(columns=["device_id", "boot", "seq"]).to_pylist()
    return Counter((row["device_id"], row["boot"], row["seq"]) for row in rows)

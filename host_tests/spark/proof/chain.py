"""Broker, collector and pipeline as processes that can be killed at any moment and are started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from object_store import ObjectStore, use
from spark_helpers import SPARK_LIMIT_S, alive, children, eventually_in_spark, status
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import eventually

from spark_ingest.location import StorePath, located

from . import mistakes
from .flips import Flips
from .kinds import TOPICS

# No pause between micro-batches, so that a kill at a random moment falls into one.
_INTERVAL_MS = 50
_GOLD_INTERVAL_S = 0.5
_MOST_IN_VAIN = 5
_AGAIN = "Starting Spark again"
SPARK_KINDS = ("driver java", "driver python", "worker", "executor")


class Life:
    """One process from its start to its end. Its output goes to `log`, shared by all lives of one part."""

    def __init__(
        self, command: Sequence[object], log: Path, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._from = output.tell()
            self._child = subprocess.Popen(
                [str(each) for each in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._child.pid

    def told(self) -> str:
        """Return what this life has written so far."""
        with self.log.open("rb") as text:
            text.seek(self._from)
            return text.read().decode(errors="replace")

    def has_said(self, wanted: str) -> bool:
        """Return whether a line begins with `wanted`. Raises AssertionError if the process ended without it."""
        if any(line.startswith(wanted) for line in self.told().splitlines()):
            return True
        if self._child.poll() is not None:
            raise AssertionError(f"{self.log.name}: ended before it said {wanted!r}: {self.told()[-500:]}")
        return False

    def code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._child.poll()

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._child.kill()
        self._child.wait(SPARK_LIMIT_S)

    def end(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._child.terminate()
        return self._child.wait(SPARK_LIMIT_S)


class Chain:
    """The processes over one folder: a broker with its store, a collector with its spool, a pipeline.

    mistake: program text planted in collector and pipeline.
    rules: the text of the pipeline's `ingest.toml`, "" for none. The collector then subscribes to its topics too.
    master: Spark's master, "" for a local one.
    store: the object store with the tables, None for a folder.
    kills: their number, by kind.
    failures: descriptions of what went wrong with a process.
    flips: bits flipped in the pipeline's files between a kill and the next start, or None.
    clock_shifts: in seconds, by how much the collector's clock is wrong, chosen at each of its starts.
    collector_options: further options of the collector.
    prefix: words put before the commands of collector and pipeline, such as setpriv.
    """

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        *,
        mistake: str = "",
        rules: str = "",
        master: str = "",
        store: ObjectStore | None = None,
    ) -> None:
        self.folder = folder
        self.spool, self.tables, self.checkpoint = folder / "spool", folder / "tables", folder / "checkpoint"
        self.kills: Counter[str] = Counter()
        self.flips: Flips | None = None
        self.clock_shifts: Sequence[int] = (0,)
        self.collector_options: list[object] = []
        self.prefix: list[str] = []
        self.failures: list[str] = []
        self.config = folder / "ingest.toml" if rules else None
        if self.config is not None:
            self.config.write_text(rules)
            self.collector_options += [word for topic in TOPICS for word in ("--topic", topic)]
        self._rng = rng
        self._mistake = mistake
        self._master = master
        self._store = store
        # With a store, the folder is filled only for the count.
        self._location = str(self.tables) if store is None else f"s3://readings/{folder.name}/tables"
        self._environment = None if store is None else os.environ | store.environment()
        self._in_vain = 0
        self.port = reserved_port()
        self.broker: Life | None = None
        self.collector: Life | None = None
        self.pipeline: Life | None = None

    def __enter__(self) -> Chain:
        return self

    def __exit__(self, *_exc: object) -> None:
        for life in (self.pipeline, self.collector, self.broker):
            if life is not None and life.code() is None:
                offspring = children(life.pid)
                life.kill()
                eventually(lambda offspring=offspring: not any(map(alive, offspring)), "descendants gone")

    def start_broker(self) -> None:
        """Start the broker on its store, and wait until it listens."""
        command = [sys.executable, "-m", "umqtt_broker", "-p", self.port, "--store", self.folder / "broker.db"]
        self.broker = life = Life(command, self.folder / "broker.log", self.folder)
        eventually(lambda: life.has_said("listening on "), "the broker listens")

    def start_collector(self) -> None:
        """Start the collector, which waits for the broker by itself."""
        self.collector = Life(self.collector_command(), self.folder / "collector.log", self.folder)

    def collector_command(self) -> list[object]:
        """Return the collector's command."""
        command: list[object] = [*self.prefix, *mistakes.command("collector", self._mistake + self._clock())]
        command += ["--broker", f"mqtt://127.0.0.1:{self.port}", "--spool", str(self.spool), "--name", "north"]
        return [*command, "--longest-delay", "0.2", *self.collector_options]

    def _clock(self) -> str:
        shift = self._rng.choice(self.clock_shifts)
        return mistakes.SHIFTED_CLOCK.format(seconds=shift) if shift else ""

    def await_subscribed(self) -> None:
        """Wait until the collector's session is subscribed."""
        assert self.collector is not None
        life = self.collector
        eventually(lambda: life.has_said("subscribed north"), "the collector is subscribed")

    def start_pipeline(self, *more: object, die_at: tuple[str, int] | None = None) -> None:
        """Start the pipeline without waiting. die_at: the stage at whose N-th occurrence it kills itself."""
        command = [*self.prefix, *mistakes.command("pipeline", self._mistake, die_at), *self.pipeline_options()]
        if self._master:
            command += ["--master", self._master]
        self.status_path.unlink(missing_ok=True)
        self.spool.mkdir(exist_ok=True)  # the collector may not have created it yet
        self.pipeline = Life([*command, *more], self.folder / "pipeline.log", self.folder, self._environment)

    def pipeline_options(self) -> list[object]:
        """Return the pipeline's options, except Spark's."""
        options: list[object] = ["--spool", str(self.spool), "--tables", self._location]
        options += ["--checkpoint", str(self.checkpoint), "--status", str(self.status_path)]
        options += [] if self.config is None else ["--config", str(self.config)]
        return [*options, "--interval-ms", str(_INTERVAL_MS), "--gold-interval", str(_GOLD_INTERVAL_S)]

    def fetch_tables(self) -> None:
        """Copy the tables from the object store, if they are there, into their folder."""
        tables = located(self._location)
        if isinstance(tables, StorePath):
            assert self._store is not None
            with pytest.MonkeyPatch.context() as patch:
                use(self._store, patch)
                for name, _ in tables.files():
                    (self.tables / name).parent.mkdir(parents=True, exist_ok=True)
                    (self.tables / name).write_bytes((tables / name).read_bytes())

    @property
    def is_cluster(self) -> bool:
        """Whether Spark's executors are processes of their own."""
        return bool(self._master)

    @property
    def status_path(self) -> Path:
        """The pipeline's status file."""
        return self.folder / "pipeline.json"

    def pipeline_works(self) -> bool:
        """Return whether the pipeline has finished a micro-batch since its start. Starts it again if it ended."""
        assert self.pipeline is not None
        works = bool(status(self.status_path).get("batches"))
        if self.pipeline.code() is not None:
            # As a service manager does. Even if part of it was killed, it must not end silently.
            if self.pipeline.code() == 0 or not self.pipeline.told().strip():
                self.failures.append(f"the pipeline ended with {self.pipeline.code()} and said nothing")
            self._in_vain = 0 if works else self._in_vain + 1
            if self._in_vain == _MOST_IN_VAIN:
                raise AssertionError(
                    f"the pipeline ended {_MOST_IN_VAIN} times at once: {self.pipeline.told()[-1000:]}"
                )
            self.start_pipeline()
            return False
        return works

    def pipeline_is_ready(self) -> bool:
        """Return whether its query has begun; before that it may have no handler of SIGTERM."""
        assert self.pipeline is not None
        return "ready" in self.pipeline.told().splitlines()

    def kill(self, kind: str) -> None:
        """SIGKILL the broker or the collector, and start it again."""
        if kind == "broker":
            assert self.broker is not None
            self.broker.kill()
            time.sleep(self._rng.random() * 0.3)
            self.start_broker()
        else:
            assert self.collector is not None
            self.collector.kill()
            self.start_collector()
        self.kills[kind] += 1

    def end(self, name: str, life: Life) -> None:
        """Send SIGTERM, after which a process must end cleanly."""
        if code := life.end():
            self.failures.append(f"the {name} ended with {code} after SIGTERM: {life.told()[-300:]}")

    def await_death(self) -> None:
        """Wait until a pipeline that was started with `die_at` has killed itself."""
        life = self.pipeline
        assert life is not None
        eventually_in_spark(lambda: life.code() is not None, "the pipeline reaches its stage and kills itself")
        if life.code() != -signal.SIGKILL:
            raise AssertionError(f"the pipeline ended with {life.code()}: {life.told()[-1000:]}")

    def next_pipeline(self, kind: str, die_at: tuple[str, int] | None) -> None:
        """Kill a part of Spark with SIGKILL and start the next pipeline.

        kind: the part; "stage": the pipeline has just killed itself.
        """
        life = self.pipeline
        assert life is not None
        offspring = children(life.pid)
        if kind == "driver python":
            life.kill()
        elif kind == "driver java":
            self._kill_java(life, offspring)
            if die_at is None and life.code() is None:
                return  # it continues with a new Spark
            life.kill()
        elif kind in ("worker", "executor"):
            name = "CoarseGrainedExecutorBackend" if kind == "executor" else "pyspark"
            if _kill(self._one(_running(offspring, name))):
                self.kills[kind] += 1
            return  # Spark may well continue; pipeline_works starts the next if it does not
        # No process may be left over: the Java process ends with its Python, the Python process with its Java.
        eventually_in_spark(lambda: life.code() is not None, f"the pipeline ends after a kill of {kind}")
        eventually(lambda: not any(map(alive, offspring)), f"nothing is left after a kill of {kind}")
        if kind != "driver java":
            self.kills["driver python" if kind == "stage" else kind] += 1
        if self.flips is not None:
            self.flips.flip()
        self.start_pipeline(die_at=die_at)

    def _kill_java(self, life: Life, offspring: list[int]) -> None:
        said = life.told().count(_AGAIN)
        _kill(_named(offspring, "java")[:1])
        eventually_in_spark(
            lambda: life.told().count(_AGAIN) > said or life.code() is not None,
            "the pipeline starts Spark again, or ends, after a kill of its Java",
        )
        eventually(lambda: not any(map(alive, offspring)), "nothing is left after a kill of Java")
        self.kills["driver java"] += 1

    def _one(self, processes: list[int]) -> list[int]:
        return [self._rng.choice(processes)] if processes else []


def _kill(processes: list[int]) -> bool:
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
    return bool(processes)


def _named(processes: list[int], name: str) -> list[int]:
    return [process for process in processes if _read(process, "comm").strip() == name]


def _running(processes: list[int], text: str) -> list[int]:
    """Return the processes, except Java's driver, whose command line contains `text`."""
    found = [process for process in processes if text in _read(process, "cmdline")]
    return [process for process in found if "org.apache.spark.deploy.SparkSubmit" not in _read(process, "cmdline")]


def _read(process: int, file: str) -> str:
    try:
        return Path(f"/proc/{process}/{file}").read_text(errors="replace")
    except OSError:
        return ""  # it ended meanwhile

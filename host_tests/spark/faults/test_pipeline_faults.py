"""The pipeline stops with a clear line when something is broken, and continues without loss once it is repaired.

Runs in the tests' own Spark session, except where the command itself has to be started. UMQTT_FULL_SWEEPS=1 also
starts it on tables without permission.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from own_session import run_pipeline
from proof.chain import Chain
from proof.fleet import Fleet
from proof.needs import needs_java
from proof.oracle import Oracle, Tally
from spark_helpers import eventually_in_spark, publish_packet

from spark_ingest.durable import read_checked_json, replace_checked
from spark_ingest.spool.writer import Spool

_GROUP = 100
# What Java prints before anything of the pipeline runs, and progress lines.
_OTHERS = ("WARNING: Using incubator modules", "ready", "ingest ")


class Story:
    """A spool that grows between one fault and the next, and a pipeline that is started to meet each fault."""

    def __init__(self, chain: Chain, spark, capfd: pytest.CaptureFixture[str]) -> None:
        self.chain = chain
        self.fleet = Fleet("made", 1)
        self._spark = spark
        self._capfd = capfd
        self.grow()

    def grow(self) -> None:
        """Add to the spool what a collector would add."""
        with Spool(self.chain.spool / "north") as spool:
            messages = [self.fleet.next() for _ in range(_GROUP)] + self.fleet.rest()
            packets = [publish_packet(*message, number) for number, message in enumerate(messages, 1)]
            spool.append(b"".join(packets), len(packets), time.time_ns() // 1_000_000)

    def stops(self, *texts: str, command: bool = False) -> None:
        """Start the pipeline; check that it ends with an error, explained in one line, the last, that contains `texts`.

        command: start it as a separate process, with the chain's `prefix`.
        """
        code, lines = self._run_command() if command else self._run()
        assert code in (1, 2), lines
        # On a full disk, a thread of delta-rs may print more before that line.
        assert [line for line in lines if line.startswith("pipeline: ")] == lines[-1:], lines
        assert not any("Traceback" in line for line in lines), "\n".join(lines)
        assert all(text in lines[-1] for text in texts), lines[-1]

    def goes_on(self, *, last: bool = False) -> None:
        """Start the pipeline; check that it reads everything, then let the spool grow again."""
        assert self._run() == (0, [])
        if not last:
            self.grow()

    def _run(self) -> tuple[int, list[str]]:
        self._capfd.readouterr()
        code = run_pipeline(self._spark, *self.chain.pipeline_options(), "--once")
        return code, _own_lines("".join(self._capfd.readouterr()))

    def _run_command(self) -> tuple[int | None, list[str]]:
        self.chain.start_pipeline("--once")
        life = self.chain.pipeline
        assert life is not None
        eventually_in_spark(lambda: life.code() is not None, "the pipeline ends")
        return life.code(), _own_lines(life.told())

    def assert_nothing_lost(self) -> None:
        tally = Tally()
        Oracle(self.chain.spool, self.chain.tables, [self.fleet.published], tally).count()
        assert tally.failures == []


def _own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(_OTHERS)]


@pytest.fixture
def story(spark, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with Chain(tmp_path, random.Random(1)) as chain:
        yield Story(chain, spark, capfd)


pytestmark = [needs_java, pytest.mark.timeout(900)]


def test_a_full_disk_below_the_checkpoint_and_then_the_tables(story: Story, disk) -> None:
    """Planted: a disk error that is swallowed, so that Spark commits the micro-batch."""
    checkpoint, tables = disk("checkpoint"), disk("tables")
    story.goes_on()
    checkpoint.fill()
    story.stops("No space left on device")
    checkpoint.free()
    tables.fill()
    story.stops("No space left on device")
    tables.free()
    story.goes_on(last=True)
    story.assert_nothing_lost()


def test_without_permission_then_on_damage_then_with_a_checkpoint_of_another_version(
    story: Story, obedient: list[str]
) -> None:
    chain = story.chain
    chain.prefix = obedient
    story.goes_on()
    if os.environ.get("UMQTT_FULL_SWEEPS"):
        log = chain.tables / "silver" / "_delta_log"
        log.chmod(0o500)
        story.stops("ermission denied", command=True)
        log.chmod(0o700)
    chain.checkpoint.chmod(0o500)
    story.stops("cannot write to", "Permission denied", command=True)
    chain.checkpoint.chmod(0o700)
    segment = max(path for path in (chain.spool / "north").glob("*.seg") if path.stat().st_size)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    story.stops(str(segment))
    segment.write_bytes(whole)
    version = chain.checkpoint / "umqtt" / "version.json"
    mine = version.read_text()
    replace_checked(version, json.dumps(read_checked_json(version) | {"format": 99}).encode())
    story.stops("of another version", "new --checkpoint")
    version.write_text(mine)
    story.goes_on(last=True)
    story.assert_nothing_lost()

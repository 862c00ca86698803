"""The collector at a spool that it may not write, or may not read: it says so in a line, and loses nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from proof.chain import Chain
from proof.fleet import Fleet
from proof.oracle import Oracle, Tally
from proof.publisher import Publisher
from proof.runs import await_spool
from umqtt_testkit.waiting import eventually

from spark_ingest.durable import read_checked_json, replace_checked

_RATE = 1000.0


class Story:
    """A collector, and a publisher none of whose messages may be lost."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        chain.collector_options = ["--min-free-bytes", "0", "--segment-bytes", "8192"]
        chain.start_broker()
        self.publisher = Publisher(Fleet("made", 1), chain.port, "made", _RATE)
        self.publisher.start()

    def publish(self, count: int = 200) -> None:
        """Publish at least `count` more messages; return once the broker has acknowledged them."""
        wanted = len(self.publisher.fleet.published.order) + count
        self.publisher.go.set()
        eventually(lambda: len(self.publisher.fleet.published.order) >= wanted, "published")
        self.publisher.settle()

    def await_error(self, *texts: str) -> None:
        """Wait until the collector reports the error, in one line that contains `texts`."""
        collector = self.chain.collector
        assert collector is not None
        eventually(lambda: any(all(text in line for text in texts) for line in collector.told().splitlines()), texts[0])
        assert "Traceback" not in collector.told()

    def assert_nothing_lost(self) -> None:
        """Wait for messages still in transit, and compare."""
        published = self.publisher.fleet.published
        await_spool(self.chain.spool, set(published.order))
        self.publisher.close()
        assert self.chain.collector is not None
        assert self.chain.collector.end() == 0
        tally = Tally()
        Oracle(self.chain.spool, self.chain.tables, [published], tally).count_spool()
        assert tally.failures == []

    def fails_to_start(self, *texts: str) -> None:
        """Start the collector; check that it ends at once, and says why in one line."""
        self.chain.start_collector()
        collector = self.chain.collector
        assert collector is not None
        eventually(lambda: collector.code() is not None, "the collector ends")
        assert collector.code() in (1, 2)
        (line,) = collector.told().splitlines()
        assert all(text in line for text in texts), line


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with Chain(tmp_path, random.Random(1)) as chain:
        yield chain


def test_when_the_spool_may_not_be_written_any_more_the_messages_wait_in_the_broker(
    chain: Chain, obedient: list[str]
) -> None:
    chain.prefix = obedient
    story = Story(chain)
    chain.start_collector()
    chain.await_subscribed()
    story.publish()
    folder = chain.spool / "north"
    await_spool(chain.spool, set(story.publisher.fleet.published.order))
    folder.chmod(0o500)
    story.publish()
    story.await_error("Permission denied")
    folder.chmod(0o700)
    story.assert_nothing_lost()


def test_a_spool_of_another_version_is_left_alone(chain: Chain) -> None:
    story = Story(chain)
    chain.start_collector()
    chain.await_subscribed()
    story.publish()
    await_spool(chain.spool, set(story.publisher.fleet.published.order))
    assert chain.collector is not None
    assert chain.collector.end() == 0
    path = chain.spool / "north" / "spool.json"
    whole = path.read_bytes()
    replace_checked(path, json.dumps(read_checked_json(path) | {"format": 99}).encode())
    story.publish()
    story.fails_to_start("format 99", "choose another --spool")
    path.write_bytes(whole)
    chain.start_collector()
    story.assert_nothing_lost()

"""Laws of one connection: it is dead if the broker is silent, but never because this process was held up."""

import os
import select
import socket
from collections.abc import Iterator

import pytest
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.collector import connection as connection_module
from spark_ingest.collector.config import CollectorConfig
from spark_ingest.collector.connection import Connection
from spark_ingest.collector.counters import Counters
from spark_ingest.collector.disk_quota import DiskQuota
from spark_ingest.collector.link import Link
from spark_ingest.collector.wire import CONNACK
from spark_ingest.spool.writer import Spool

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class Linked:
    """A link with a keep-alive of 60 s, the broker's end of it, and the clock that the link uses."""

    def __init__(self) -> None:
        self.now = 0.0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            self.link = Link(*address, keep_alive=60, clock=lambda: self.now)
            self.broker, _ = listener.accept()
        self.broker.settimeout(WAIT_LIMIT_S)
        self.never, self._wake = os.pipe()

    def wait(self) -> bool:
        """Wait on the link for no time; return whether data has arrived."""
        return self.link.wait(0.0, self.never)

    def answer(self, data: bytes) -> None:
        """Send `data` from the broker's end; return once it has arrived at the link, unread."""
        self.broker.sendall(data)
        assert select.select([self.link._socket], [], [], WAIT_LIMIT_S)[0]

    def close(self) -> None:
        self.link.close()
        self.broker.close()
        os.close(self.never)
        os.close(self._wake)


@pytest.fixture
def linked() -> Iterator[Linked]:
    one = Linked()
    yield one
    one.close()


def test_a_ping_that_nothing_answers_is_a_dead_link(linked):
    linked.now = 29.9
    assert not linked.wait()
    linked.now = 30.0
    assert not linked.wait()
    assert linked.broker.recv(100) == PINGREQ
    linked.now = 39.9
    assert not linked.wait()
    linked.now = 40.0
    with pytest.raises(TimeoutError, match="did not answer a ping within 10 s"):
        linked.wait()


def test_an_answer_that_lay_there_while_the_process_had_no_time_to_look_is_an_answer(linked):
    """An answer counts even if it is read late: a slow disk's sync, or a stop of the process, may outlast a ping."""
    linked.now = 30.0
    assert not linked.wait()
    assert linked.broker.recv(100) == PINGREQ
    linked.answer(PINGRESP)
    linked.now = 300.0
    buffer = bytearray()
    assert linked.wait() and linked.link.receive(buffer)
    assert buffer == PINGRESP
    linked.now = 329.9
    assert not linked.wait()


def test_an_answer_to_connect_that_lay_there_after_its_time_is_taken(linked, tmp_path, monkeypatch):
    monkeypatch.setattr(connection_module, "ANSWER_TIMEOUT_S", -1.0)
    config = CollectorConfig("mqtt://127.0.0.1", tmp_path, "north")
    with Spool(tmp_path / "north") as spool:
        quota, never = DiskQuota(tmp_path / "north", max_bytes=0, min_free_bytes=0), linked.never
        connection = Connection(linked.link, spool, quota, config, Counters(), stopping=lambda: False, wake_fd=never)
        linked.answer(b"\x20\x02\x00\x00")
        assert connection.await_packet(CONNACK) == b"\x20\x02\x00\x00"
        with pytest.raises(TimeoutError, match="did not answer"):
            connection.await_packet(CONNACK)


def test_the_keep_alive_that_the_broker_chooses_counts(linked):
    # Planted: pings at the keep-alive interval that the client asked for.
    linked.link.set_keep_alive(10)
    linked.now = 4.9
    assert not linked.wait()
    assert not select.select([linked.broker], [], [], 0)[0]
    linked.now = 5.1
    assert not linked.wait()
    assert linked.broker.recv(16) == PINGREQ

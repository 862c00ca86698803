"""Laws of the check of a list of nodes: a node that does not answer as a broker is told, and holds nothing up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.collector import cluster
from spark_ingest.collector.access import Access
from spark_ingest.collector.cluster import check_cluster
from spark_ingest.collector.collector import Collector
from spark_ingest.collector.config import CollectorConfig
from spark_ingest.spool.writer import Spool

FILTERS = ("fleet/+/telemetry",)
CONNACK, SUBACK, PINGRESP = b"\x20\x02\x00\x00", b"\x90\x03\x00\x01", b"\xd0\x00"


def says_nothing(link: socket.socket) -> None:
    while link.recv(65536):
        pass


def hangs_at_the_end(link: socket.socket) -> None:
    link.sendall(CONNACK)
    threading.Event().wait(WAIT_LIMIT_S)


def closes(link: socket.socket) -> None:
    link.recv(65536)


def is_a_web_server(link: socket.socket) -> None:
    link.recv(65536)
    link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def refuses(link: socket.socket) -> None:
    link.recv(65536)
    link.sendall(b"\x20\x02\x00\x05")


def refuses_the_subscription(link: socket.socket) -> None:
    link.recv(65536)
    link.sendall(CONNACK)
    if link.recv(65536)[0] == 0x82:
        link.sendall(SUBACK + b"\x80")
        link.recv(65536)


def trickles(link: socket.socket) -> None:
    while True:
        link.sendall(PINGRESP)
        time.sleep(0.01)


def sends_packets_without_end(link: socket.socket) -> None:
    while True:
        link.sendall(PINGRESP * 5000)


def sends_one_packet_without_end(link: socket.socket) -> None:
    link.sendall(b"\x30\xff\xff\xff\x7f\x00\x01a")
    while True:
        link.sendall(bytes(65536))


HOSTILE = [
    says_nothing, hangs_at_the_end, closes, is_a_web_server, refuses, trickles, sends_packets_without_end,
    sends_one_packet_without_end,
]  # fmt: skip


@contextmanager
def node(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """Provide the URL of a node that does this on each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(link,), daemon=True).start()

    def talk(link: socket.socket) -> None:
        with suppress(OSError, IndexError), link:
            behave(link)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(WAIT_LIMIT_S)


@pytest.fixture
def honest(mosquitto: int) -> Iterator[list[str]]:
    """Provide the URLs of two nodes that share their sessions."""
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(("127.0.0.1", mosquitto), seed=seed)).url for seed in (1, 2)]


def test_nodes_that_are_no_brokers_are_told_and_the_others_are_compared(honest, monkeypatch):
    # Planted: an answer is waited for as long as something arrives; what arrives is kept without a limit.
    monkeypatch.setattr(cluster, "_ANSWER_WITHIN_S", 5.0)
    with ExitStack() as stack:
        hostile = [stack.enter_context(node(behave)) for behave in HOSTILE]
        urls = [*hostile[:3], honest[0], *hostile[3:], honest[1]]
        told = check_cluster(Access(",".join(urls)), "one", FILTERS, lambda: False)
    *unchecked, compared = told
    assert compared == ("one_cluster", f"{honest[0]}, {honest[1]} share their sessions")
    assert [kind for kind, _ in unchecked] == ["node_unchecked"] * len(hostile)
    for url in hostile:
        assert len([line for _, line in unchecked if url in line]) == 1


def test_a_node_that_refuses_the_subscription_is_not_the_one_that_the_others_are_compared_with(honest):
    # Planted: its session counts, so that the others are the ones that do not know it.
    with node(refuses_the_subscription) as first:
        (unchecked, compared) = check_cluster(Access(",".join([first, *honest])), "one", FILTERS, lambda: False)
    assert unchecked[0] == "node_unchecked" and first in unchecked[1]
    assert compared == ("one_cluster", f"{honest[0]}, {honest[1]} share their sessions")


def test_a_node_that_hangs_does_not_hold_up_the_end(mosquitto, tmp_path, monkeypatch):
    # Planted: the end of the collector waits for the end of the check.
    monkeypatch.setattr(cluster, "_ANSWER_WITHIN_S", 10 * WAIT_LIMIT_S)
    subscribed = threading.Event()
    asked = threading.Event()

    def hang(link: socket.socket) -> None:
        link.recv(65536)
        asked.set()
        says_nothing(link)

    with node(hang) as hanging:
        config = CollectorConfig(f"mqtt://127.0.0.1:{mosquitto},{hanging}", tmp_path, "one")
        with Spool(config.folder) as spool:
            one = Collector(config, spool, on_subscribed=subscribed.set, report=lambda *_: None)
            running = threading.Thread(target=one.run, daemon=True)
            running.start()
            eventually(lambda: subscribed.is_set() and asked.is_set(), "it collects, and the check hangs")
            one.stop()
            running.join(WAIT_LIMIT_S)
            assert not running.is_alive()

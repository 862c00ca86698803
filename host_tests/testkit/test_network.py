"""The router does to packets what it was told, and lets everything pass when it was told nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from umqtt_testkit.network import Network
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

_Pair = tuple[socket.socket, socket.socket]


def _pair(network: Network) -> _Pair:
    """Return a TCP connection over the router: the device's end and the server's."""
    with network.inside("server"):
        listener = socket.create_server((network.server, 0))
    with network.inside("device"):
        device = socket.create_connection(listener.getsockname(), WAIT_LIMIT_S)
    server, _ = listener.accept()
    listener.close()
    for end in (device, server):
        end.settimeout(WAIT_LIMIT_S)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return device, server


@pytest.fixture
def ends(network) -> Iterator[tuple[Network, socket.socket, socket.socket]]:
    one = network()
    device, server = _pair(one)
    yield one, device, server
    device.close()
    server.close()


def _transfer(device: socket.socket, server: socket.socket, data: bytes) -> float:
    """Send data to the server; return the seconds until it was all there."""
    began = time.monotonic()
    sender = threading.Thread(target=device.sendall, args=(data,))
    sender.start()
    got = b""
    while len(got) < len(data):
        got += server.recv(65536)
    sender.join()
    assert got == data
    return time.monotonic() - began


def test_without_faults_everything_passes_and_nothing_is_seen_outside(ends):
    """Planted: the namespace of the thread is not given back."""
    network, device, server = ends
    _transfer(device, server, bytes(range(256)) * 4000)
    assert network.counts.passed > 100 and network.counts.lost == 0
    assert "tun0" not in [name for _, name in socket.if_nameindex()]


def test_lost_packets_come_again_and_a_round_trip_takes_its_time(ends):
    """Planted: nothing is lost; no delay."""
    network, device, server = ends
    network.change(loss=0.2, delay_ms=100)
    assert _transfer(device, server, bytes(100_000)) >= 0.05
    assert network.counts.lost > 0


def test_the_rate_holds_and_a_full_queue_drops(ends):
    """Planted: the rate is ignored; the queue has no end."""
    network, device, server = ends
    network.change(rate=100_000, queue=20_000)
    assert _transfer(device, server, bytes(200_000)) >= 1.5
    assert network.counts.queue_full > 0


def test_large_packets_vanish_in_a_hole_and_small_ones_pass(ends):
    """Planted: packets of every size pass."""
    network, device, server = ends
    network.change(mtu_hole=180)
    _transfer(device, server, b"x" * 100)
    device.sendall(b"x" * 1000)
    eventually(lambda: network.counts.too_large > 0)
    network.change(mtu_hole=0)
    assert server.recv(1)


def test_a_nat_forgets_who_is_silent_and_lets_a_new_connection_begin(ends):
    """Planted: it forgets nothing."""
    network, device, server = ends
    network.change(forget_after=0.5)
    _transfer(device, server, b"x")
    time.sleep(1)
    device.sendall(b"y")
    eventually(lambda: network.counts.forgotten > 0)
    again = _pair(network)
    _transfer(*again, b"z")
    for end in again:
        end.close()


def test_packets_overtake_each_other(ends):
    """Planted: all have the same delay."""
    network, device, server = ends
    network.change(delay_ms=100, reorder=0.3)
    _transfer(device, server, bytes(100_000))


def test_a_wrong_name_of_a_fault_is_told(network):
    with pytest.raises(TypeError, match="lost: there are loss, delay_ms"):
        network(lost=1)

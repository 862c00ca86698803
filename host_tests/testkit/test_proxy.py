"""Every fault of the proxy looks to a device and a broker like that of a broken network."""

import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from umqtt_testkit.ports import bound
from umqtt_testkit.proxy import FaultProxy, ProxyError, execute
from umqtt_testkit.waiting import WAIT_LIMIT_S

SEED = 20


class Upstream:
    """A listening socket whose connections the test controls."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(WAIT_LIMIT_S)
        self.address: tuple[str, int] = self.listener.getsockname()

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(WAIT_LIMIT_S)
        return connection


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    with server.listener:
        yield server


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    print("seed", SEED)
    with FaultProxy(upstream.address, seed=SEED) as relaying:
        yield relaying


@pytest.fixture
def connect(proxy: FaultProxy) -> Iterator:
    opened: list[socket.socket] = []

    def open_one() -> socket.socket:
        opened.append(socket.create_connection((proxy.host, proxy.port), timeout=WAIT_LIMIT_S))
        return opened[-1]

    yield open_one
    for sock in opened:
        sock.close()


@pytest.fixture
def pair(upstream: Upstream, connect) -> Iterator[tuple[socket.socket, socket.socket]]:
    device = connect()
    with upstream.accept() as broker:
        yield device, broker


def receive(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            break
        data += chunk
    return data


def is_quiet(sock: socket.socket, seconds: float = 0.05) -> bool:
    return not select.select([sock], [], [], seconds)[0]


def end_of(sock: socket.socket) -> tuple[bytes, str]:
    """Return what came before the end, and which end it was."""
    data = b""
    try:
        while chunk := sock.recv(65536):
            data += chunk
    except ConnectionResetError:
        return data, "reset"
    return data, "closed"


def test_bytes_pass_in_both_directions_under_back_pressure(pair):
    data = bytes(range(256)) * 40_000
    for sender, receiver in (pair, pair[::-1]):
        writer = threading.Thread(target=sender.sendall, args=(data,))
        writer.start()
        assert receive(receiver, len(data)) == data
        writer.join()


def test_half_closed_connections_carry_the_other_direction(pair):
    device, broker = pair
    device.sendall(b"last words")
    device.shutdown(socket.SHUT_WR)
    assert end_of(broker) == (b"last words", "closed")
    broker.sendall(b"answer")
    broker.close()
    assert end_of(device) == (b"answer", "closed")


@pytest.mark.parametrize(("reset", "end"), [(True, "reset"), (False, "closed")])
def test_a_cut_is_seen_at_both_ends(proxy: FaultProxy, pair, reset: bool, end: str):
    device, broker = pair
    assert proxy.cut(reset=reset) == 1
    assert end_of(device)[1] == end
    assert end_of(broker)[1] == end
    assert proxy.connections == []
    assert proxy.counters.cut == 1


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_falls_after_exactly_n_bytes(proxy: FaultProxy, upstream: Upstream, connect, direction, reset):
    data = bytes(range(100))
    for count in (0, 1, 2, 50, 99, 100):
        proxy.cut_next(count, direction, reset=reset)
        device = connect()
        with upstream.accept() as broker:
            sender, receiver = (device, broker) if direction == "up" else (broker, device)
            sender.sendall(data)
            assert end_of(receiver) == (data[:count], "reset" if reset else "closed")
            assert end_of(sender)[1] in ("reset", "closed")
    with connect() as device, upstream.accept() as broker:
        device.sendall(data)
        assert receive(broker, 100) == data


def test_a_peers_reset_is_passed_on(proxy: FaultProxy, pair):
    device, broker = pair
    broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    broker.close()
    assert end_of(device)[1] == "reset"


def test_a_blackhole_swallows_and_gives_back_when_lifted(proxy: FaultProxy, upstream: Upstream, connect, pair):
    device, broker = pair
    proxy.blackhole(True)
    device.sendall(b"in the dark")
    broker.sendall(b"here too")
    late = connect()
    late.sendall(b"new")
    upstream.listener.setblocking(False)
    assert is_quiet(device)
    assert is_quiet(broker, 0)
    with pytest.raises(BlockingIOError):
        upstream.accept()
    upstream.listener.settimeout(WAIT_LIMIT_S)
    proxy.blackhole(False)
    assert receive(broker, 11) == b"in the dark"
    assert receive(device, 8) == b"here too"
    with upstream.accept() as second:
        assert receive(second, 3) == b"new"


def test_a_connection_closed_in_the_blackhole_ends_upstream_when_it_is_lifted(proxy: FaultProxy, pair):
    device, broker = pair
    proxy.blackhole(True)
    device.sendall(b"x")
    device.close()
    assert is_quiet(broker)
    proxy.blackhole(False)
    assert end_of(broker)[0] == b"x"


def test_a_stall_holds_one_direction_only(proxy: FaultProxy, pair):
    device, broker = pair
    for stall in (proxy.stall, proxy.connections[0].stall):
        stall(True, "down")
        broker.sendall(b"held")
        device.sendall(b"flows")
        assert receive(broker, 5) == b"flows"
        assert is_quiet(device)
        stall(False, "down")
        assert receive(device, 4) == b"held"


def test_refuse_is_a_reset_to_the_syn_and_leaves_open_connections_alone(proxy: FaultProxy, connect, pair):
    device, broker = pair
    port = proxy.port
    proxy.refuse(True)
    with pytest.raises(ConnectionRefusedError):
        connect()
    device.sendall(b"still here")
    assert receive(broker, 10) == b"still here"
    proxy.refuse(False)
    assert proxy.port == port
    connect()
    proxy.wait_accepted(2)


def test_a_proxy_that_refuses_keeps_its_port_until_it_is_closed(upstream: Upstream):
    with socket.socket() as stranger:
        with FaultProxy(upstream.address) as proxy:
            proxy.refuse(True)
            proxy.refuse(True)
            with pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", proxy.port))
        stranger.bind(("127.0.0.1", proxy.port))


def test_a_delay_is_a_round_trip_and_keeps_the_order(proxy: FaultProxy, pair):
    device, broker = pair
    proxy.delay(60)
    started = time.monotonic()
    device.sendall(b"1")
    assert receive(broker, 1) == b"1"
    broker.sendall(b"2")
    # A call through the proxy's loop: when it returns, the loop has read what came before.
    proxy.call(lambda: None)
    proxy.delay(0)
    broker.sendall(b"3")
    assert receive(device, 2) == b"23"
    assert time.monotonic() - started >= 0.06


def test_a_dribble_passes_single_bytes(proxy: FaultProxy, pair):
    device, broker = pair
    # The second byte comes only after the test, or when the interval is changed.
    proxy.dribble(True, interval_ms=3_600_000)
    device.sendall(b"abcdef")
    assert broker.recv(100) == b"a"
    assert is_quiet(broker)
    proxy.dribble(True, interval_ms=3_600_000)
    assert broker.recv(100) == b"b"
    assert is_quiet(broker)
    proxy.dribble(True, interval_ms=1)
    assert receive(broker, 4) == b"cdef"


def test_splits_lose_and_reorder_nothing(proxy: FaultProxy, pair):
    device, broker = pair
    proxy.split(True)
    data = bytes(range(256)) * 400
    writer = threading.Thread(target=device.sendall, args=(data,))
    writer.start()
    assert receive(broker, len(data)) == data
    writer.join()
    assert proxy.connections[0].passed("up") == len(data) == proxy.counters.bytes_up


def test_an_upstream_that_is_not_there_resets_the_device_and_is_counted():
    with bound("127.0.0.1") as nobody, FaultProxy(nobody.getsockname()) as proxy:
        # This sometimes happens before connect() has returned.
        with (
            pytest.raises(ConnectionResetError),
            socket.create_connection((proxy.host, proxy.port), timeout=WAIT_LIMIT_S) as device,
        ):
            device.recv(1)
        assert proxy.counters.upstream_failed == 1
        assert proxy.connections == []


def test_an_occupied_port_is_said(upstream: Upstream):
    with pytest.raises(ProxyError, match=r"cannot listen on 127\.0\.0\.1"):
        FaultProxy(upstream.address, port=upstream.address[1])


def test_an_upstream_that_is_text_is_refused():
    """Planted: it is taken, and the first connection hangs."""
    with pytest.raises(ProxyError, match=r"give \(host, port\)"):
        FaultProxy("127.0.0.1:1883")  # type: ignore[arg-type]


def test_a_bad_command_line_is_answered_by_what_is_wrong(proxy: FaultProxy):
    assert execute(proxy, "melt").startswith("error: no command 'melt' - there are: cut,")
    assert execute(proxy, "blackhole maybe") == "error: blackhole maybe: 'maybe' is neither on nor off"
    assert execute(proxy, "cut-next x up").startswith("error: cut-next x up: invalid literal")
    assert execute(proxy, "cut-next 5 sideways").endswith("neither up nor down")
    assert execute(proxy, "delay").startswith("error: delay: ")
    for good in (
        "cut fin",
        "cut-next 5 down",
        "blackhole off",
        "refuse off",
        "stall up off",
        "delay 20",
        "dribble off",
    ):
        assert execute(proxy, good).startswith("ok")


def test_the_process_form_obeys_and_ends_with_its_stdin(upstream: Upstream):
    command = [sys.executable, "-m", "umqtt_testkit.proxy", "--upstream", f"127.0.0.1:{upstream.address[1]}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        ready = process.stdout.readline()
        assert ready.startswith("listening on 127.0.0.1:")
        port = int(ready.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_LIMIT_S) as device, upstream.accept() as broker:
            device.sendall(b"x")
            assert receive(broker, 1) == b"x"
            process.stdin.write("counters\ncut\n")
            process.stdin.flush()
            assert '"bytes_up": 1' in process.stdout.readline()
            assert process.stdout.readline() == "ok 1\n"
            assert end_of(device)[1] == "reset"
        process.stdin.close()
        assert process.wait(WAIT_LIMIT_S) == 0

"""What one client can do to the others: a table of attacks, each on our broker and on mosquitto in the same run.

Meanwhile a well-behaved pair exchanges 100 messages a second. judge() requires: the pair's 99th percentile stays
below 20 ms and its longest wait below 100 ms, or within one and a half times mosquitto's if the machine is busy; the
broker's memory grows by no more than mosquitto's, and is released after the attacker has gone. An attack hurts if it
does so three times in a row. Run by prove.py, or alone: `python host_tests/broker/attacks.py [NAME…]`.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from broker_peer import Closed, Peer
from peer5 import Peer5
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PINGRESP, PUBACK, PUBLISH
from umqtt_testkit.mosquitto import find_mosquitto
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import eventually

P99_MS, LONGEST_MS = 20.0, 100.0
# Change of both brokers' memory without an attack.
_TOLERANCE_MB = 12.0
# Seconds that an attack lasts, and within which memory must be released.
_SECONDS = 4.0
_RECOVERY = 3.0
_RATE = 100
# An attack that hurts does so each time; a busy machine does not.
_ATTEMPTS = 3


class Outcome(NamedTuple):
    """The result of one attack on one broker.

    Times of the pair are in ms; memory in MB: before, at most during, and after the attack. broken_off: why the
    attack did not finish, "" if it did.
    """

    p99: float
    longest: float
    before: float
    most: float
    after: float
    broken_off: str = ""


# Attackers

# Attackers that are still connected when memory is measured.
_staying: list[Peer] = []


def _attacker(port: int, name: bytes = b"attacker") -> Peer:
    peer = Peer(port)
    peer.connect(name)
    return peer


def _until(seconds: float = _SECONDS) -> Iterator[int]:
    """Count until the time is over."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield number
        number += 1


def _wait_done(peer: Peer) -> None:
    peer.send(encoder.pingreq())
    while peer.receive().kind != PINGRESP:
        pass


def _subscribe_once(filters: list[bytes]) -> Callable[[int], None]:
    def attack(port: int) -> None:
        with _attacker(port) as peer:
            peer.send(encoder.subscribe(1, *((each, 0) for each in filters)))
            _wait_done(peer)

    return attack


def subscribe_much(port: int) -> None:
    """Send 390,000 filters in one packet, from a client that stays."""
    filters = [b"fleet/site-%02d/device-%06d/telemetry" % (number % 100, number) for number in range(390_000)]
    peer = _attacker(port)
    peer.socket.settimeout(60)
    peer.send(encoder.subscribe(1, *((each, 0) for each in filters)))
    _wait_done(peer)
    _staying.append(peer)


def _deep(name: bytes) -> bytes:
    return b"/".join([name, *[b"a"] * 199])


def subscribe_deep_and_publish(port: int) -> None:
    """Subscribe to 500 filters of 200 levels, and publish to a name that matches all."""
    filters = [
        b"/".join([b"+" if number >> bit & 1 else b"a" for bit in range(9)] + [b"+"] * 191) for number in range(500)
    ]
    with _attacker(port) as peer:
        peer.send(encoder.subscribe(1, *((each, 0) for each in filters)))
        _wait_done(peer)
        for number in _until():
            peer.send(encoder.publish(b"/".join([*[b"a"] * 199, b"%d" % number]), b"", 1, number % 65535 + 1))
            while peer.receive().kind != PUBACK:
                pass


def deeper_than_allowed(port: int) -> None:
    """Send names and filters of 32,000 levels, on a new connection each."""
    for number in _until():
        with _attacker(port) as peer:
            name = b"%d" % number + b"/a" * 32_000
            packets = encoder.subscribe(1, (name, 0)), encoder.publish(name, b"x", 0, retain=True)
            peer.send(packets[number % 2])
            peer.wait_closed()


def retained_deep(port: int) -> None:
    """Retain messages whose names have 200 levels and no level in common."""
    with _attacker(port) as peer:
        for number in range(3000):
            peer.send(encoder.publish(_deep(b"r%d" % number), b"x", 0, retain=True))
        _wait_done(peer)
        for number in range(3000):
            peer.send(encoder.publish(_deep(b"r%d" % number), b"", 0, retain=True))
        _wait_done(peer)


def unfinished_packets(port: int) -> None:
    """Send ten packets of 15 MB whose last byte never comes."""
    peers = [_attacker(port, b"unfinished%d" % number) for number in range(10)]
    whole = encoder.publish(b"large", bytes(15_000_000))
    for peer in peers:
        peer.send(whole[:-1])
    time.sleep(1)
    for peer in peers:
        peer.close()


def one_byte_writes(port: int) -> None:
    """Send the end of a large packet in writes of one byte."""
    with _attacker(port) as peer:
        whole = encoder.publish(b"large", bytes(15_000_000))
        peer.send(whole[:-100_000])
        for number in _until():
            peer.send(whole[number : number + 1])
            time.sleep(0.0002)


def pings(port: int) -> None:
    """Send PINGREQ as fast as possible, and read the answers."""
    with _attacker(port) as peer:
        _flood(peer, encoder.pingreq() * 100_000)


def small_publishes(port: int) -> None:
    """Send PUBLISH as fast as possible, each to a new topic name."""
    with _attacker(port) as peer:
        _flood(peer, b"".join(encoder.publish(b"n/%d" % number, b"") for number in range(300_000)))


def _flood(peer: Peer, data: bytes) -> None:
    peer.socket.setblocking(False)
    view = memoryview(data)
    at = 0
    for _ in _until():
        readable, writable, _ = select.select([peer.socket], [peer.socket], [], 1)
        if readable and not peer.socket.recv(1 << 20):
            return
        if writable:
            at = (at + peer.socket.send(view[at : at + 1_000_000])) % len(data)


def subscribe_again_and_again(port: int) -> None:
    """Subscribe to everything again and again, with 20,000 messages retained, and read nothing."""
    with _attacker(port, b"writer") as peer:
        for number in range(20_000):
            peer.send(encoder.publish(b"retained/%d" % number, bytes(100), 0, retain=True))
        _wait_done(peer)
    with Peer(port, receive_buffer=4096) as peer:
        peer.connect(b"greedy")
        packets = b"".join(encoder.subscribe(number, (b"retained/#", 0)) for number in range(1, 20_001))
        peer.socket.settimeout(_SECONDS)
        with suppress(TimeoutError):
            peer.send(packets)
    with _attacker(port, b"writer") as peer:
        for number in range(20_000):
            peer.send(encoder.publish(b"retained/%d" % number, b"", 0, retain=True))
        _wait_done(peer)


def connection_churn(port: int) -> None:
    """Open and close connections on eight threads."""

    def churn(thread: int) -> None:
        connect = encoder.connect(b"churn%d" % thread)
        for _ in _until():
            try:
                with socket.create_connection(("127.0.0.1", port)) as one:
                    one.sendall(connect)
                    one.recv(4)
            except OSError:
                time.sleep(0.01)

    threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def guess_passwords(port: int) -> None:
    """Send wrong passwords, on a new connection each."""
    for number in _until():
        try:
            with Peer(port) as peer:
                peer.send(encoder.connect(b"guess", user_name=b"ada", password=b"%d" % number))
                peer.receive()
        except (Closed, OSError):
            pass


def _user_properties(count: int) -> bytes:
    """Encode so many empty user properties of MQTT 5, with their length before them."""
    return encoder.variable(5 * count) + b"\x26\0\0\0\0" * count


# 15.5 MB, in a packet that max_packet_size allows; and the most that max_properties_size allows.
_VERY_MANY, _ALLOWED = 3_100_000, 1899


def _with_properties(packet: Callable[[bytes], bytes], count: int = _VERY_MANY) -> Callable[[int], None]:
    """Send a packet of MQTT 5 with so many user properties, again and again, on a new connection if the last is closed.

    packet: makes it from its encoded properties.
    """

    def attack(port: int) -> None:
        data = packet(_user_properties(count))
        data *= max(1, 200_000 // len(data))
        peer: Peer5 | None = None
        for _ in _until():
            try:
                if peer is None:
                    peer = Peer5(port)
                    peer.connect5(b"attacker")
                peer.send(data + encoder.pingreq())
                while peer.receive().kind != PINGRESP:
                    pass
            except (Closed, OSError):
                peer = None

    return attack


def connect_with_properties(port: int) -> None:
    """Send CONNECTs with 450 KB of properties, of which the last is malformed, on eight connections at once."""
    encoded = b"\x26\0\0\0\0" * 90_000 + b"\x7f\0"
    packet = encoder.connect(b"attacker", level=5, properties=encoder.variable(len(encoded)) + encoded)
    for _ in _until():
        peers = [Peer(port) for _ in range(8)]
        for peer in peers:
            with suppress(OSError):
                peer.send(packet)
        for peer in peers:
            with suppress(OSError):
                peer.wait_closed()
            peer.close()


def shared_groups(port: int) -> None:
    """Join 5,000 shared subscriptions, publish to the filter of all, and leave during a SUBSCRIBE to 5,000 more."""
    with Peer5(port) as peer:
        peer.connect5(b"attacker")
        for packet_id in (1, 2):
            groups = [(b"$share/%d-%d/x" % (packet_id, number), 1) for number in range(5000)]
            peer.send(encoder.subscribe(packet_id, *groups, properties=b"\0"))
            if packet_id == 1:
                peer.receive()
                peer.send(encoder.publish(b"x", b"", 1, 1, properties=b"\0"))
                peer.receive()


def unread_messages(port: int) -> None:
    """Subscribe at QoS 0 and 1 to what another client publishes as fast as possible, and read nothing."""
    with Peer(port, receive_buffer=4096) as reader, _attacker(port, b"writer") as writer:
        reader.connect(b"reader")
        reader.subscribe(b"unread/0", 0)
        reader.subscribe(b"unread/1", 1)
        messages = (encoder.publish(b"unread/%d" % (qos), bytes(1000), qos, qos and 1) for qos in (0, 1))
        _flood(writer, b"".join(messages) * 200)


# Messages that wait for a client that is away.
_QUEUED = 100_000


def _queue(port: int) -> None:
    """Let messages wait for a client that is away."""
    with Peer(port) as reader:
        reader.connect(b"away", clean_session=False)
        reader.subscribe(b"away", 1)
        reader.disconnect()
    with _attacker(port, b"writer") as writer:
        batch = b"".join(encoder.publish(b"away", bytes(100), 1, packet_id) for packet_id in range(1, 1001))
        for _ in range(_QUEUED // 1000):
            writer.send(batch)
            for _ in range(1000):
                writer.expect(PUBACK)


def queue_and_return(port: int) -> None:
    """Let messages wait for a client that is away, which then returns and takes them."""
    _queue(port)
    taken = 0
    with Peer(port) as reader:
        reader.connect(b"away", clean_session=False)
        while taken < _QUEUED:
            packets = [packet for packet in reader.receive_all() if packet.kind == PUBLISH]
            taken += len(packets)
            reader.send(b"".join(encoder.acknowledgement(PUBACK, packet.packet_id) for packet in packets))
        reader.disconnect()
    discard(port)


def queue_and_discard(port: int) -> None:
    """Let messages wait for a client that is away, and discard them with its session."""
    _queue(port)
    discard(port)


def discard(port: int) -> None:
    """Discard the session of the client that is away."""
    with Peer(port) as reader:
        reader.connect(b"away", clean_session=True)
        reader.disconnect()


ATTACKS: dict[str, Callable[[int], None]] = {
    "10,000 filters in one SUBSCRIBE": _subscribe_once([b"fleet/%d/+/x" % number for number in range(10_000)]),
    "SUBSCRIBE of 2 MB, filters of 200 levels": _subscribe_once([_deep(b"%d" % number) for number in range(5000)]),
    "500 filters of 200 levels that match": subscribe_deep_and_publish,
    "names of 32,000 levels": deeper_than_allowed,
    "retained messages of 200 levels": retained_deep,
    "unfinished large packets": unfinished_packets,
    "a large packet in writes of one byte": one_byte_writes,
    "PINGREQ without end": pings,
    "PUBLISH to ever new names": small_publishes,
    "SUBSCRIBE to a large retained set, again and again": subscribe_again_and_again,
    "connections that come and go": connection_churn,
    "guessed passwords": guess_passwords,
    "PUBLISH with 15.5 MB of user properties": _with_properties(
        lambda encoded: encoder.publish(b"t", b"", 1, 1, properties=encoded)
    ),
    "SUBSCRIBE with 15.5 MB of user properties": _with_properties(
        lambda encoded: encoder.subscribe(1, (b"t", 0), properties=encoded)
    ),
    "UNSUBSCRIBE with 15.5 MB of user properties": _with_properties(
        lambda encoded: encoder.unsubscribe(1, b"t", properties=encoded)
    ),
    "PUBACK with 15.5 MB of user properties": _with_properties(
        lambda encoded: encoder.acknowledgement(PUBACK, 1, b"\0" + encoded)
    ),
    "PUBLISH with as many user properties as are allowed": _with_properties(
        lambda encoded: encoder.publish(b"t", b"", 0, properties=encoded), _ALLOWED
    ),
    "CONNECT with 450 KB of user properties": connect_with_properties,
    "5,000 shared subscriptions of one client": shared_groups,
    "messages that are not read": unread_messages,
    "100,000 messages on disk for a client that returns": queue_and_return,
    "100,000 messages on disk that are discarded": queue_and_discard,
    "100,000 messages in memory that are discarded": queue_and_discard,
}
# Only for our broker, because mosquitto stands still for minutes: its bookkeeping of subscriptions is quadratic.
OURS_ALONE: dict[str, Callable[[int], None]] = {"SUBSCRIBE of 15.6 MB": subscribe_much}
# Left out by --quick.
_SLOW = (
    "SUBSCRIBE of 15.6 MB",
    "unfinished large packets",
    "SUBSCRIBE to a large retained set, again and again",
    "SUBSCRIBE with 15.5 MB of user properties",
    "UNSUBSCRIBE with 15.5 MB of user properties",
    "PUBACK with 15.5 MB of user properties",
    "100,000 messages on disk for a client that returns",
    "100,000 messages on disk that are discarded",
)


# The pair


def pair(port: int) -> None:
    """Exchange messages until standard input ends, then print p99 and the longest wait in ms."""
    with Peer(port) as subscriber, Peer(port) as publisher:
        subscriber.connect(b"good-subscriber")
        publisher.connect(b"good-publisher")
        subscriber.subscribe(b"good", 0)
        print("ready", flush=True)
        waits: list[float] = []
        begun = time.monotonic()
        sent = 0
        while not select.select([sys.stdin], [], [], 0)[0] or len(waits) < sent:
            due = begun + sent / _RATE
            now = time.monotonic()
            if now >= due and not select.select([sys.stdin], [], [], 0)[0]:
                # Counted from the moment it was due: a broker that stands still must not slow down the measurement.
                publisher.send(encoder.publish(b"good", b"%r" % due))
                sent += 1
                continue
            if select.select([subscriber.socket], [], [], max(0.0, due - now))[0]:
                for packet in subscriber.receive_all():
                    waits.append(time.monotonic() - float(packet.payload))
    waits.sort()
    print(json.dumps([waits[int(len(waits) * 0.99)] * 1000, waits[-1] * 1000]))


# Brokers


@contextmanager
def _running(command: list[str], port: int) -> Iterator[int]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _listens(port), "the broker to listen")
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def run(attack: Callable[[int], None], folder: Path, *, ours: bool, on_disk: bool = False) -> Outcome:
    """Attack a new broker. on_disk: it has a store."""
    port = reserved_port()
    passwords = PasswordFile(folder / "passwords")
    passwords.set(b"ada", PasswordHash.make(b"right", 1000))
    passwords.write()
    config = folder / f"{port}.conf"
    lines = ["allow_anonymous true", f"password_file {passwords.path}", "log_type none"]
    lines += ["max_queued_messages 0", "max_queued_bytes 32000000"]
    if on_disk:
        store = folder / f"{port}"
        store.mkdir()
        lines += ["persistence true", f"persistence_location {store}/"]
    config.write_text("\n".join([*(["user root"] if not ours else []), f"listener {port} 127.0.0.1", *lines, ""]))
    program = [sys.executable, "-m", "umqtt_broker"] if ours else [find_mosquitto() or "mosquitto"]
    with _running([*program, "-c", str(config)], port) as pid:
        command = [sys.executable, __file__, "--pair", str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as good:
            assert good.stdin is not None and good.stdout is not None
            assert good.stdout.readline() == "ready\n"
            before = most = _resident(pid)
            with ThreadPoolExecutor(1) as pool:
                attacker = pool.submit(attack, port)
                while not attacker.done():
                    most = max(most, _resident(pid))
                    wait([attacker], 0.05)
            error = attacker.exception()
            time.sleep(_RECOVERY)
            good.stdin.close()
            p99, longest = json.loads(good.stdout.readline())
            return Outcome(p99, longest, before, most, _resident(pid), "" if error is None else repr(error))


def judge(ours: Outcome, mosquitto: Outcome | None) -> list[str]:
    """Return what is wrong, as texts."""
    wrong: list[str] = []
    if ours.broken_off:
        wrong.append(f"the attack broke off: {ours.broken_off}")
    if ours.p99 > max(P99_MS, 1.5 * mosquitto.p99 if mosquitto is not None else 0.0):
        wrong.append(f"p99 {ours.p99:.0f} ms")
    if ours.longest > max(LONGEST_MS, 1.5 * mosquitto.longest if mosquitto is not None else 0.0):
        wrong.append(f"longest wait {ours.longest:.0f} ms")
    if mosquitto is not None:
        if ours.most - ours.before > mosquitto.most - mosquitto.before + _TOLERANCE_MB:
            wrong.append("grows more than mosquitto")
        if ours.after - ours.before > max(0.0, mosquitto.after - mosquitto.before) + _TOLERANCE_MB:
            wrong.append("memory does not come back")
    return wrong


def run_all(say: Callable[[str], None], names: list[str] | None = None, *, quick: bool = False) -> tuple[int, int]:
    """Run the table, or the named attacks. Returns the number of attacks, and of those that hurt."""
    count = hurt = 0
    with tempfile.TemporaryDirectory(prefix="umqtt-attacks-") as folder:
        for name, attack in (ATTACKS | OURS_ALONE).items():
            if (names and not any(one in name for one in names)) or (quick and name in _SLOW):
                continue
            on_disk = "on disk" in name
            is_compared = name not in OURS_ALONE and find_mosquitto() is not None
            count += 1
            wrong: list[str] = []
            for attempt in range(1, _ATTEMPTS + 1):
                ours = run(attack, Path(folder), ours=True, on_disk=on_disk)
                mosquitto = run(attack, Path(folder), ours=False, on_disk=on_disk) if is_compared else None
                wrong = judge(ours, mosquitto)
                found = f" — attempt {attempt}: {', '.join(wrong)}" if wrong else ""
                say(f"  {name}: {_text(ours)}; mosquitto {_text(mosquitto)}{found}")
                while _staying:
                    _staying.pop().close()
                if not wrong:
                    break
            hurt += bool(wrong)
    return count, hurt


def _text(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not asked"
    return (
        f"p99 {outcome.p99:.1f} ms, longest {outcome.longest:.0f} ms, "
        f"{outcome.before:.0f} to {outcome.most:.0f} MB, then {outcome.after:.0f}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pair"]:
        pair(int(sys.argv[2]))
    else:
        sys.exit(run_all(lambda text: print(text, flush=True), sys.argv[1:])[1] > 0)

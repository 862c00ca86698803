"""Whatever one address does before it is logged in, a good client of another address gets in.

The broker's clock stands still in these tests: the good client must not need any timeout of the bad ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker_certificates import CONNACK, Pki
from broker_peer import BrokerThread, StartBroker
from umqtt_broker import Listener
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.password_check import PasswordChecker
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_broker.access.shares import Shares, network
from umqtt_broker.protocol.packets import ACCEPTED
from umqtt_broker.transport import listeners
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S
from websocket_peer import frame, request

BAD, GOOD = "127.0.0.2", "127.0.0.1"
# What each broker of these tests has room for, and how many bad clients there are.
ROOM = 8
MANY = 40

KINDS = ("plain", "websockets", "tls", "websockets with tls")


def connect(port: int, address: str) -> socket.socket:
    """Return a socket that is connected from an address of this machine."""
    return socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S, (address, 0))


def hello(context: ssl.SSLContext) -> bytes:
    """Return the first message of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class Strangers:
    """Clients of one kind of listener that are not logged in, all from one address. They stay until the end."""

    def __init__(self, broker: BrokerThread, kind: str, pki: Pki) -> None:
        self._port = broker.port
        self._kind = kind
        self._context = pki.context() if kind.endswith("tls") else None
        self._connect_packet = encoder.connect(b"bad", user_name=b"ada", password=b"wrong")
        self._stack = ExitStack()

    def __enter__(self) -> Strangers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def come(self, do: Callable[[Strangers, socket.socket], None]) -> None:
        """Let one more come, and do something."""
        link = self._stack.enter_context(connect(self._port, BAD))
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            do(self, link)

    def first_message(self) -> bytes:
        """Return the first message that a good client sends."""
        if self._context is not None:
            return hello(self._context)
        return request() if self._kind == "websockets" else self._connect_packet

    def enter(self, link: socket.socket) -> socket.socket:
        """Do what comes before CONNECT, and return the link."""
        if self._context is not None:
            link = self._stack.enter_context(self._context.wrap_socket(link, server_hostname="localhost"))
        if self._kind.startswith("websockets"):
            link.sendall(request())
            if not link.recv(1000):
                raise ConnectionError("closed, because it has to make room")
        return link

    def nothing(self, link: socket.socket) -> None:
        """Send nothing."""

    def one_byte(self, link: socket.socket) -> None:
        """Send the first byte."""
        link.sendall(self.first_message()[:1])

    def half(self, link: socket.socket) -> None:
        """Send half of the first message."""
        message = self.first_message()
        link.sendall(message[: len(message) // 2])

    def before_connect(self, link: socket.socket) -> None:
        """Do what comes before CONNECT, and stop."""
        self.enter(link)

    def half_connect(self, link: socket.socket) -> None:
        """Send half of a CONNECT."""
        packet = self._connect_packet[:20]
        self.enter(link).sendall(frame(2, packet) if self._kind.startswith("websockets") else packet)

    def wrong_password(self, link: socket.socket) -> None:
        """Be refused, and stay."""
        packet = self._connect_packet
        self.enter(link).sendall(frame(2, packet) if self._kind.startswith("websockets") else packet)

    def good_answer(self) -> bytes:
        """Return what a good client of another address gets."""
        with contextlib.ExitStack() as stack:
            link = stack.enter_context(connect(self._port, GOOD))
            if self._context is not None:
                link = stack.enter_context(self._context.wrap_socket(link, server_hostname="localhost"))
            packet = encoder.connect(b"good", user_name=b"ada", password=b"right")
            if self._kind.startswith("websockets"):
                link.sendall(request() + frame(2, packet))
                data = b""
                while CONNACK not in data:
                    data += link.recv(1000) or pytest.fail(f"refused: {data!r}")
                return CONNACK
            link.sendall(packet)
            return link.recv(4)


ATTACKS = (
    Strangers.nothing,
    Strangers.one_byte,
    Strangers.half,
    Strangers.before_connect,
    Strangers.half_connect,
    Strangers.wrong_password,
)


@pytest.mark.parametrize("limit", ["of the broker", "of the listener"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_good_client_gets_in_whatever_another_address_does_before_it_is_logged_in(
    start_broker: StartBroker,
    pki: Pki,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    attack: Callable[[Strangers, socket.socket], None],
    limit: str,
) -> None:
    """Planted: a full broker refuses the newest connection; handshakes wait for each other; the address does not count
    for handshakes; the oldest gives way whoever it is, also one that is logged in."""
    monkeypatch.setattr(listeners, "_MAX_WAITING", ROOM)
    monkeypatch.setattr(listeners, "_MAX_HANDSHAKES", ROOM)
    passwords = PasswordFile(tmp_path / "passwords")
    passwords.set(b"ada", PasswordHash.make(b"right", 1))
    passwords.write()
    own = ROOM if limit == "of the listener" else None
    listener = Listener(
        port=0,
        protocol="websockets" if kind.startswith("websockets") else "mqtt",
        tls=pki.tls() if kind.endswith("tls") else None,
        permission=FilePermission(str(passwords.path)),
        max_connections=own,
    )
    broker = start_broker(listeners=(listener,), max_connections=1000 if own else ROOM)
    broker.stop_clock()
    with Strangers(broker, kind, pki) as strangers:
        assert strangers.good_answer() == CONNACK
        for number in range(MANY):
            strangers.come(attack)
            if number % 8 == 0:
                assert strangers.good_answer() == CONNACK, f"after {number + 1}"
        assert strangers.good_answer() == CONNACK


def test_those_that_are_logged_in_never_give_way(start_broker: StartBroker) -> None:
    """Planted: a connection counts as one that is not logged in until it ends."""
    broker = start_broker(max_connections=ROOM)
    with ExitStack() as stack:
        members = [stack.enter_context(connect(broker.port, BAD)) for _ in range(ROOM)]
        for number, member in enumerate(members):
            member.sendall(encoder.connect(b"%d" % number))
            assert member.recv(4) == CONNACK
        broker.stop_clock()
        broker.advance(5.0)
        with connect(broker.port, GOOD) as one_more:
            assert one_more.recv(4) == b""
        for member in members:
            member.sendall(b"\xc0\0")
            assert member.recv(2) == b"\xd0\0"


def test_on_a_unix_socket_the_users_share_and_silent_clients_of_the_same_user_give_way(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Planted: clients without an address never give way."""
    path = tmp_path / "socket"
    broker = start_broker(listeners=(Listener(path=str(path), max_connections=ROOM),))
    broker.stop_clock()
    with ExitStack() as stack:
        for number in range(MANY):
            is_good = number % 8 == 7
            if is_good:
                broker.advance(1.1)  # by now, a good client would have been logged in
            link = stack.enter_context(socket.socket(socket.AF_UNIX))
            link.settimeout(WAIT_LIMIT_S)
            link.connect(str(path))
            if is_good:
                link.sendall(encoder.connect(b"good"))
                assert link.recv(4) == CONNACK, f"after {number}"
                link.close()


@pytest.mark.parametrize("with_tls", [False, True])
def test_one_address_cannot_use_up_the_files_of_the_process(tmp_path: Path, pki: Pki, with_tls: bool) -> None:
    """Planted: a failed accept is only tried again later."""
    own = [f"certfile {pki.path('broker.pem')}", f"keyfile {pki.path('broker.key')}"] if with_tls else []
    settings = tmp_path / "broker.conf"
    lines = ["listener 0 127.0.0.1", *own, "allow_anonymous true", "connect_timeout 600"]
    settings.write_text("\n".join(lines) + "\n")
    program = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80));"
        f"sys.argv = ['umqtt_broker', '-c', {str(settings)!r}]; runpy.run_module('umqtt_broker', run_name='__main__')"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].split()[0])
        with ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(connect(port, BAD))
            context = pki.context() if with_tls else None
            for _ in range(3):
                with connect(port, GOOD) as plain:
                    link = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
                    with link:
                        link.sendall(encoder.connect(b"good"))
                        assert link.recv(4) == CONNACK
    finally:
        process.terminate()
        process.wait(WAIT_LIMIT_S)


@pytest.mark.tier(0)
def test_passwords_of_one_address_do_not_keep_those_of_another_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: passwords are checked in the order in which they came; a full queue refuses every address."""
    order: list[bytes] = []
    go = threading.Event()
    monkeypatch.setattr("umqtt_broker.access.password_check._THREADS", 1)

    def verify(stored: PasswordHash, password: bytes) -> bool:
        assert go.wait(WAIT_LIMIT_S)
        order.append(password)
        return password == b"right"

    monkeypatch.setattr(PasswordHash, "verify", verify)
    users: dict[bytes, PasswordHash] = {b"ada": PasswordHash.make(b"right", 1)}

    async def scenario() -> None:
        checker = PasswordChecker(users, 50)
        try:
            flood = [checker.check(b"user %d" % number, b"wrong", BAD) for number in range(60)]
            good = checker.check(b"ada", b"right", GOOD)
            go.set()
            assert not isinstance(good, int) and await good == ACCEPTED
            assert order.index(b"right") <= 2
            for one in flood:
                assert (one if isinstance(one, int) else await one) in (3, 4)
        finally:
            checker.close()

    asyncio.run(scenario())


@pytest.mark.tier(0)
@pytest.mark.parametrize("seed", range(20))
def test_shares_know_at_any_time_who_gives_way_and_whose_turn_it_is(seed: int) -> None:
    """Planted: the largest share is not made smaller when an item leaves; turns go by age alone."""
    chance = random.Random(seed)
    shares: Shares[int] = Shares()
    model: dict[int, tuple[str, float]] = {}
    for step in range(400):
        address = f"192.0.2.{chance.randrange(5)}"
        if model and chance.random() < 0.45:
            item = chance.choice(list(model))
            shares.discard(item)
            shares.discard(item)
            del model[item]
        else:
            shares.add(step, address, float(step))
            model[step] = (address, float(step))
        sizes = {one: sum(of == one for of, _ in model.values()) for one, _ in model.values()}
        assert len(shares) == len(model) and set(shares) == set(model)
        assert shares.largest == max(sizes.values(), default=0)
        found = shares.to_yield(address, float(step), grace=1e9)
        if found is None:
            assert shares.largest <= sizes.get(address, 0) + 1
        else:
            of = model[found][0]
            assert sizes[of] == shares.largest > sizes.get(address, 0) + 1
            assert found == min(item for item in model if model[item][0] == of)
    turns = []
    addresses = {of for of, _ in model.values()}
    while len(shares):
        item = shares.next()
        shares.discard(item)
        turns.append(model[item][0])
    assert set(turns[: len(addresses)]) == addresses, "each address has its turn before one has its second"
    assert network("2001:db8::1") == network("2001:db8::2")

"""Laws of serving spools over HTTPS: the same bytes as from the disk, or a clear error; never a visible token."""

import contextlib
import os
import pickle
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, fill, publish_packet
from umqtt_kit.certs import Authority
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.errors import DataLoss, SpoolDamaged, SpoolUnreachable, UsageError
from spark_ingest.spool import server as server_module
from spark_ingest.spool.access import LocalSpools, View
from spark_ingest.spool.blocks import Position, segment_path
from spark_ingest.spool.remote import RemoteSpools
from spark_ingest.spool.server import SpoolServer, server_tls
from spark_ingest.spool.tokens import READ_VARIABLE, read_token
from spark_ingest.spool.writer import Spool

TOKEN = "correct-horse-battery-staple"
DELETE_TOKEN = "another-horse-battery-staple"
PLACES = None if os.environ.get("UMQTT_FULL_SWEEPS") else 5
"""How many places a relay does harm at, for each kind of harm and direction; None: every one."""


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> Path:
    """Provide a folder with ca.pem, and with a server's certificate and key in broker/."""
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.create("collectors")
    authority.issue_broker(["127.0.0.1"])
    return authority.folder


class Served:
    """A spool tree and its server."""

    def __init__(self, root: Path, pki: Path, port: int = 0) -> None:
        self.root = root
        self.said: list[str] = []
        self.local = LocalSpools(root)
        self.ca = (pki / "ca.pem").read_text()
        tls = server_tls(pki / "broker" / "cert.pem", pki / "broker" / "key.pem")
        self.server = SpoolServer(
            "127.0.0.1", port, self.local, TOKEN, delete_token=DELETE_TOKEN, tls=tls, report=self.said.append
        )
        self.port = int(self.server.url.rpartition(":")[2])

    def client(
        self, token: str = TOKEN, *, delete: str | None = None, port: int | None = None, timeout_s: float = WAIT_LIMIT_S
    ) -> RemoteSpools:
        url = f"https://127.0.0.1:{port or self.port}"
        return RemoteSpools(url, token, delete_token=delete, ca=self.ca, timeout_s=timeout_s)

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def served(tmp_path: Path, pki: Path) -> Iterator[Served]:
    root = tmp_path / "spool"
    fill(root / "north", [[b"a", b"bc"], [b"d" * 3000], [b""], [bytes(range(256)) * 40]], segment_bytes=50)
    fill(root / "south", [[b"x"]])
    one = Served(root, pki)
    yield one
    one.server.close()


def everything(view: View) -> list[object]:
    """Read everything that a reader can ask of a spool."""
    durable = view.durable()
    found: list[object] = [durable, view.runs(), view.retired(), view.segments()]
    assert durable is not None
    for segment in view.segments():
        end = view.segment_end(segment, durable)
        found += [end, list(view.headers(segment, 0, end)), view.read(segment, 0, end)]
    return found


class Relay:
    """Stands between client and server, and passes on what `change(towards_client, passed, data)` returns.

    `passed` is the number of bytes that went in that direction before. If change returns None, the connection ends.
    """

    def __init__(self, port: int, change: Callable[[bool, int, bytes], bytes | None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.carried = {False: 0, True: 0}
        self._upstream, self._change = port, change
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, towards_client: bool) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                changed = self._change(towards_client, passed, data)
                passed += len(data)
                self.carried[towards_client] += len(data)
                if changed is None:
                    break
                sink.sendall(changed)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def harm(how: str, towards_client: bool, at: int) -> Callable[[bool, int, bytes], bytes | None]:
    """Return a change at byte `at` of one direction: flip a bit, drop the byte, repeat it, or end the connection."""

    def change(direction: bool, passed: int, data: bytes) -> bytes | None:
        index = at - passed
        if direction is not towards_client or not 0 <= index < len(data):
            return data
        before, byte, after = data[:index], data[index], data[index + 1 :]
        if how == "changes":
            return before + bytes((byte ^ 0x10,)) + after
        if how == "repeats":
            return before + bytes((byte, byte)) + after
        return before + after if how == "drops" else None

    return change


@pytest.mark.parametrize("how", ["changes", "drops", "repeats", "truncates"])
def test_behind_a_relay_that_does_harm_anywhere_a_reader_gets_the_true_bytes_or_an_error(served, how):
    """Nothing is removed either. Planted: the same without TLS."""
    here, before = served.local.view("north"), served.files()
    true = everything(here)

    def ask(port: int, timeout_s: float = WAIT_LIMIT_S) -> list[object]:
        spools = served.client(delete=DELETE_TOKEN, port=port, timeout_s=timeout_s)
        view = spools.view("north")
        try:
            found = everything(view)
            # What was read only just now is kept.
            assert view.remove_before(here.durable(), read_for_s=2e9) == 0
            return found
        finally:
            spools.close()

    harmless = Relay(served.port, lambda _direction, _passed, data: data)
    assert ask(harmless.port) == true
    harmless.close()
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    errors = 0
    for towards_client, carried in harmless.carried.items():
        # With TLS 1.3 the first bytes belong to the handshake; the rest carries requests or answers.
        places = range(carried) if PLACES is None else rng.sample(range(carried), PLACES)
        for at in places:
            relay = Relay(served.port, harm(how, towards_client, at))
            try:
                # A short limit: waiting for a dropped byte ends in an error, however long it takes.
                assert ask(relay.port, 0.2) == true, f"{how} at {at}, towards the client: {towards_client}"
            except SpoolUnreachable:
                errors += 1
            finally:
                relay.close()
    assert errors, "the relay did harm"
    marks = {path for path in served.files() if path.endswith(".read")}
    assert {path: data for path, data in served.files().items() if path not in marks} == before


def test_a_relay_that_ends_tls_with_a_certificate_of_its_own_is_found_out_before_it_sees_a_token(served, tmp_path):
    """Planted: a context without verification, which shows the relay the token."""
    stranger = Authority(tmp_path / "stranger")
    stranger.create("stranger")
    stranger.issue_broker(["127.0.0.1"])
    seen: list[bytes] = []
    context = server_tls(stranger.folder / "broker" / "cert.pem", stranger.folder / "broker" / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            link, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(link, server_side=True) as tls:
                seen.append(tls.recv(65536))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(SpoolUnreachable, match="certificate that is not trusted") as refused:
            served.client(port=listener.getsockname()[1]).names()
        thread.join()
    assert refused.value.refused and not any(seen)


def test_what_a_reader_sees_is_what_lies_on_the_disk(served):
    spools = served.client()
    assert spools.names() == served.local.names() == ["north", "south"]
    for name in spools.names():
        assert everything(spools.view(name)) == everything(served.local.view(name))
    west = spools.view("west")
    assert (west.durable(), west.runs(), west.retired(), west.segments()) == (None, [], [], [])


def test_served_bytes_equal_the_files_for_every_range(served):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    view = served.client().view("north")
    for segment in view.segments():
        whole = segment_path(served.root / "north", segment).read_bytes()
        ranges = [tuple(sorted(rng.choices(range(len(whole) + 1), k=2))) for _ in range(40)]
        for start, end in [*ranges, (0, 0), (0, len(whole)), (len(whole), len(whole))]:
            assert view.read(segment, start, end) == whole[start:end]


def test_headers_come_in_several_answers_when_they_are_many(tmp_path, pki, monkeypatch):
    root = tmp_path / "spool"
    fill(root / "north", [[bytes((i,))] for i in range(50)])
    one = Served(root, pki)
    monkeypatch.setattr(server_module, "MOST_HEADERS", 7)
    try:
        end = one.local.view("north").segment_end(0, one.local.view("north").durable())
        headers = list(one.client().view("north").headers(0, 0, end))
        assert headers == list(one.local.view("north").headers(0, 0, end)) and len(headers) == 50
        assert one.server.counts()["requests"] == 8
    finally:
        one.server.close()


def test_reading_and_deleting_are_separate_rights(served):
    """Planted: one token for both rights."""
    before = served.files()
    durable = served.local.view("north").durable()
    reader = served.client().view("north")
    with pytest.raises(UsageError, match="give option deleteTokenFile"):
        reader.remove_before(durable, read_for_s=0)
    with pytest.raises(SpoolUnreachable, match="does not accept the token to delete"):
        served.client(delete=TOKEN).view("north").remove_before(durable, read_for_s=0)
    with pytest.raises(SpoolUnreachable, match="does not accept the token to read"):
        served.client(DELETE_TOKEN).names()
    assert served.files() == before
    executor = pickle.loads(pickle.dumps(served.client(delete=DELETE_TOKEN)))
    with pytest.raises(UsageError):
        executor.view("north").remove_before(durable, read_for_s=0)
    assert served.client(delete=DELETE_TOKEN).view("north").remove_before(durable, read_for_s=0) > 0


def test_without_a_token_to_delete_nobody_deletes(tmp_path):
    fill(tmp_path / "north", [[b"a"], [b"b"]], segment_bytes=1)
    server = SpoolServer("127.0.0.1", 0, LocalSpools(tmp_path), TOKEN)
    try:
        for guess in ("", DELETE_TOKEN):
            view = RemoteSpools(server.url, TOKEN, delete_token=guess).view("north")
            with pytest.raises(SpoolUnreachable, match="does not accept the token to delete"):
                view.remove_before(view.durable(), read_for_s=0)
    finally:
        server.close()


def test_a_wrong_token_is_refused_by_name_on_both_sides_and_shown_on_neither(served):
    wrong = "a-token-that-nobody-knows"
    spools = served.client(wrong)
    with pytest.raises(SpoolUnreachable, match="does not accept the token to read") as caught:
        spools.names()
    assert caught.value.refused
    assert served.said == ["serve: refused 127.0.0.1: no token to read"]
    assert served.server.counts()["refused"] == 1
    for text in (str(caught.value), repr(spools), repr(spools.view("north")), *served.said):
        assert wrong not in text and TOKEN not in text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "collector.example"])
def test_off_loopback_there_is_no_server_and_no_client_without_tls(tmp_path, host):
    with pytest.raises(UsageError, match="over TLS only"):
        SpoolServer(host, 0, LocalSpools(tmp_path), TOKEN)
    with pytest.raises(UsageError, match="without TLS"):
        RemoteSpools(f"http://{f'[{host}]' if ':' in host else host}:7071", TOKEN)


def raw(served: Served) -> HTTPSConnection:
    context = ssl.create_default_context(cadata=served.ca)
    return HTTPSConnection("127.0.0.1", served.port, timeout=WAIT_LIMIT_S, context=context)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/spools/.."),
        ("GET", "/spools/%2e%2e"),
        ("GET", "/spools/%2e%2e%2fspool%2fnorth"),
        ("GET", "/spools/%2fetc/segments/0"),
        ("GET", "/spools/north%2f..%2fsouth"),
        ("GET", "/spools/north/segments/..%2fpos"),
        ("GET", "/spools/north/segments/-1"),
        ("GET", "/spools/north/segments/99999999999"),
        ("GET", "/spools/north/segments/0/headers"),
        ("GET", "/spools/north/segments/0/headers?start=-5&end=x"),
        ("GET", f"/spools/north/segments/0/headers?start={10**30}&end={10**30 + 1}"),
        ("GET", "/spools/north/segments/0/headers?start=-30&end=30"),
        ("DELETE", "/spools/north/segments"),
        ("DELETE", "/spools/north/segments?before=1e3&spool=x&read_for_s=0"),
        ("DELETE", "/spools/north/segments?before=1&spool=x&read_for_s=long"),
        ("DELETE", "/spools/north"),
        ("POST", "/spools"),
        ("GET", "/"),
        ("GET", "/spools/north/" + "x" * 7000),
    ],
)
def test_a_request_that_cannot_be_is_answered_with_an_error_and_harms_nobody(served, capfd, method, path):
    before = served.files()
    link = raw(served)
    token = DELETE_TOKEN if method == "DELETE" else TOKEN
    link.request(method, path, headers={"Authorization": f"Bearer {token}"})
    answer = link.getresponse()
    body = answer.read()
    assert 400 <= answer.status <= 500 and b"Traceback" not in body
    link.close()
    assert served.files() == before and served.client().names() == ["north", "south"]
    assert capfd.readouterr().err == ""


def test_nonsense_from_a_client_ends_its_connection_and_no_other(served, capfd):
    good = served.client()
    assert good.names()
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    context = ssl.create_default_context(cadata=served.ca)
    for number in range(20):
        link = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_LIMIT_S)
        # The server may have closed before everything is sent.
        with contextlib.suppress(OSError):
            if number % 2:
                link = context.wrap_socket(link, server_hostname="127.0.0.1")
            link.sendall(rng.randbytes(rng.randrange(1, 200)))
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
        link.close()
    assert good.names() == ["north", "south"]
    assert capfd.readouterr().err == ""


def test_those_who_never_show_a_token_keep_nobody_out(served, monkeypatch):
    """Planted: no limit for clients that have not shown the token."""
    monkeypatch.setattr(server_module, "_MOST_STRANGERS", 4)
    monkeypatch.setattr(server_module, "_AUTHENTICATE_WITHIN_S", 3600)
    good = served.client()
    assert good.names()
    strangers = [socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_LIMIT_S) for _ in range(12)]
    # The oldest strangers make room for newer ones; clients that have shown the token are not affected.
    assert [one.recv(1) for one in strangers[:8]] == [b""] * 8
    later = [served.client() for _ in range(8)]
    for one in later:
        assert one.names()
    assert good.names() and all(one.names() for one in later)
    for one in strangers:
        one.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_time_to_show_a_token_is_for_all_of_it(served, monkeypatch, encrypted):
    """The limit is for the whole token: sending a byte now and then does not extend it, before TLS or within it."""
    monkeypatch.setattr(server_module, "_AUTHENTICATE_WITHIN_S", 0.5)
    link = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_LIMIT_S)
    hello = b"\x16\x03\x01\x02\x00\x01" + bytes(500)
    if encrypted:
        link = ssl.create_default_context(cadata=served.ca).wrap_socket(link, server_hostname="127.0.0.1")
        hello = b"GET /spools HTTP/1.1\r\nX: " + b"x" * 500
    link.settimeout(0.1)
    sent, closed = 0, False
    # All of it would take 50 s.
    while not closed and sent < len(hello):
        try:
            link.sendall(hello[sent : sent + 1])
            sent += 1
            closed = link.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            closed = True
    assert closed
    link.close()


def test_what_is_gone_or_damaged_is_the_same_error_as_on_the_disk(served):
    view = served.client().view("north")
    durable = view.durable()
    with pytest.raises(DataLoss, match="was removed before it was read"):
        view.read(99, 0, 10)
    with pytest.raises(DataLoss, match="was removed before it was read"):
        view.segment_end(99, durable)
    with pytest.raises(DataLoss, match="was removed before it was read"):
        list(view.headers(99, 0, 10))
    for start, end in ((0, durable.position + 1), (durable.position + 5, durable.position + 9)):
        with pytest.raises(SpoolDamaged, match="is damaged at byte"):
            view.read(durable.segment, start, end)
    with pytest.raises(SpoolDamaged, match="is damaged at byte"):
        list(view.headers(0, 1, 60))
    pos = served.root / "north" / "pos"
    pos.write_bytes(bytes(44))
    with pytest.raises(SpoolDamaged, match="pos is damaged"):
        view.durable()


def test_removal_by_retention_leaves_one_run_of_segments_and_spares_another_spool(served):
    view = served.client(delete=DELETE_TOKEN).view("north")
    durable, segments = view.durable(), view.segments()
    assert len(segments) > 2
    stranger = Position("0" * 32, durable.segment, 0)
    assert view.remove_before(stranger, read_for_s=0) == 0
    assert view.remove_before(durable, read_for_s=2e9) == 0
    assert view.remove_before(Position(durable.spool, segments[1], 0), read_for_s=0) == 1
    assert view.segments() == served.local.view("north").segments() == segments[1:]
    assert view.remove_before(Position(durable.spool, 10**6, 0), read_for_s=0) == len(segments) - 2
    assert view.segments() == [durable.segment], "the one that is written stays"


def test_a_restarted_server_and_a_fork_are_met_with_a_connection_of_their_own(served, pki):
    before = Served(served.root, pki, reserved_port())
    spools = before.client()
    assert spools.names()
    before.server.close()
    with pytest.raises(SpoolUnreachable, match="is the collector running"):
        spools.names()
    first = served.client()
    view = first.view("north")
    whole = view.read(1, 0, 80)
    again = Served(served.root, pki, before.port)
    try:
        assert spools.names() == ["north", "south"]
        again.server.close()
        again = Served(served.root, pki, before.port)
        assert spools.names() == ["north", "south"], "a kept connection that has gone"
        pid = os.fork()
        # Both processes at once: on one connection each would get the other's answers.
        mine = range(20) if pid else range(40, 60)
        right = False
        try:
            right = all(view.read(1, at, at + 1) == whole[at : at + 1] for at in [*mine] * 3)
        finally:
            if not pid:
                os._exit(not right)
        assert right and os.waitpid(pid, 0)[1] == 0
        assert spools.names() == ["north", "south"]
    finally:
        again.server.close()


def test_a_closed_server_leaves_no_thread_and_no_connection(served):
    client = served.client()
    stranger = socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_LIMIT_S)
    assert client.names()  # so the server has accepted the stranger, who was there before
    served.server.close()
    served.server.close()
    assert stranger.recv(1) == b""
    stranger.close()
    eventually(lambda: "serve" not in {thread.name for thread in threading.enumerate()}, "its thread has ended")
    with pytest.raises(SpoolUnreachable):
        client.names()


def test_readers_pickle_without_their_connection(served):
    spools = served.client()
    view = spools.view("north")
    data = view.read(0, 0, 50)
    again = pickle.loads(pickle.dumps(view))
    assert again.read(0, 0, 50) == data
    assert pickle.loads(pickle.dumps(spools)).names() == spools.names()
    assert pickle.loads(pickle.dumps(served.local)).names() == spools.names()


def test_several_servers_are_one_tree_and_a_name_twice_is_an_error(served, pki, tmp_path):
    fill(tmp_path / "other" / "west", [[b"w"]])
    other = Served(tmp_path / "other", pki)
    both = RemoteSpools(f"{served.server.url}, {other.server.url}", TOKEN, ca=served.ca)
    assert both.names() == ["north", "south", "west"]
    assert both.view("west").segments() == [0]
    assert pickle.loads(pickle.dumps(both.view("west"))).segments() == [0]
    fill(tmp_path / "other" / "north", [[b"w"]])
    with pytest.raises(UsageError, match="serve a spool called north"):
        both.names()
    other.server.close()


@pytest.mark.parametrize(
    "servers",
    [
        "", "localhost", "host:7071", "https://host", "https://host:0", "https://:1", "https://host:70000",
        "ftp://host:7071", "https://host:7071/spools", "https://user:secret@host:7071", "https://host:7071?token=secret",
        "https://a..b:7071",
    ],
)  # fmt: skip
def test_a_wrong_address_is_a_usage_error(servers):
    with pytest.raises(UsageError) as caught:
        RemoteSpools(servers, TOKEN)
    assert "secret" not in str(caught.value).replace(servers, "")


def test_a_short_or_missing_token_is_a_usage_error_that_does_not_show_it(tmp_path, monkeypatch):
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot read the token file"):
        read_token(file, READ_VARIABLE)
    for wrong in ("sixteen\n" + "x" * 40, "sixteen characters and spaces", "sixteen\x07" + "x" * 20, "sixteen-é" * 3):
        file.write_text(wrong)
        with pytest.raises(UsageError, match="16 or more ASCII characters") as caught:
            read_token(file, READ_VARIABLE)
        assert "sixteen" not in str(caught.value)
    file.write_text("0123456789abcdef\n")
    assert read_token(file, READ_VARIABLE) == "0123456789abcdef"
    monkeypatch.delenv(READ_VARIABLE, raising=False)
    assert read_token(None, READ_VARIABLE) is None
    monkeypatch.setenv(READ_VARIABLE, "fedcba9876543210")
    assert read_token(None, READ_VARIABLE) == "fedcba9876543210"
    assert read_token(file, READ_VARIABLE) == "0123456789abcdef", "the file that was given"
    with pytest.raises(UsageError, match="the same"):
        SpoolServer("127.0.0.1", 0, LocalSpools(tmp_path), TOKEN, delete_token=TOKEN)


def test_a_reader_follows_a_spool_while_it_is_written(tmp_path, pki):
    root = tmp_path / "spool"
    with Spool(root / "north", segment_bytes=500) as spool:
        one = Served(root, pki)
        view = one.client().view("north")
        seen = b""
        place = view.durable()
        for i in range(40):
            spool.append(publish_packet(TOPIC, struct.pack(">H", i) * 20), 1, RECEIVED_MS)
            durable = view.durable()
            for segment in range(place.segment, durable.segment + 1):
                start = place.position if segment == place.segment else 0
                seen += view.read(segment, start, view.segment_end(segment, durable))
            place = durable
        one.server.close()
    assert seen == b"".join(segment_path(root / "north", s).read_bytes() for s in range(place.segment + 1))


def test_closing_takes_no_connection_from_a_thread_that_waits_for_its_answer(served: Served) -> None:
    # Planted: close() without the lock, which every answer that must not be used ends with.
    spools = served.client()
    view = spools.view("north")
    expected = served.local.view("north").read(0, 0, 30)
    over = threading.Event()

    def close() -> None:
        while not over.wait(0.0005):
            spools.close()

    thread = threading.Thread(target=close)
    thread.start()
    try:
        assert [view.read(0, 0, 30) for _ in range(100)] == [expected] * 100
    finally:
        over.set()
        thread.join()

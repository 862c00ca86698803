"""Laws of serving spools over TCP: the same bytes as from the disk, or a clear error; never a token in sight."""

import contextlib
import os
import pickle
import random
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spark_helpers import RECEIVED_MS, TOPIC, fill, publish_packet
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.collector import serve
from spark_ingest.collector.serve import SpoolServer
from spark_ingest.errors import DataLoss, SpoolDamaged, SpoolUnreachable, UsageError
from spark_ingest.spool import frames, remote
from spark_ingest.spool.access import LocalSpools
from spark_ingest.spool.blocks import Position, segment_path
from spark_ingest.spool.frames import read_token
from spark_ingest.spool.remote import RemoteSpools
from spark_ingest.spool.writer import Spool

TOKEN = b"correct-horse-battery-staple"


class Served:
    """A spool tree, served."""

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = root
        self.said: list[str] = []
        self.local = LocalSpools(root)
        self.server = SpoolServer("127.0.0.1", port, self.local, TOKEN, report=self.said.append)
        self.address = "{}:{}".format(*self.server.address)

    def client(self, token: bytes = TOKEN) -> RemoteSpools:
        return RemoteSpools(self.address, token, timeout_s=WAIT_LIMIT_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    root = tmp_path / "spool"
    fill(root / "north", [[b"a", b"bc"], [b"d" * 3000], [b""], [bytes(range(256)) * 40]], segment_bytes=50)
    fill(root / "south", [[b"x"]])
    one = Served(root)
    yield one
    one.server.close()


class Tampering:
    """Stands between client and server and changes what the server sends: ``change(bytes so far, data) -> data``."""

    def __init__(self, upstream: tuple[str, int], change: Callable[[int, bytes], bytes | None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._upstream, self._change = upstream, change
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._change), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, change) -> None:
        passed = 0
        try:
            while data := source.recv(65536):
                changed = change(passed, data) if change else data
                passed += len(data)
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


def test_names_positions_and_segments_are_those_of_the_disk(served):
    spools = served.client()
    assert spools.names() == served.local.names() == ["north", "south"]
    for name in spools.names():
        there, here = spools.view(name), served.local.view(name)
        durable = here.durable()
        assert there.durable() == durable
        assert there.runs() == here.runs() != []
        assert there.segments() == here.segments()
        ends = [here.segment_end(segment, durable) for segment in here.segments()]
        assert [there.segment_end(segment, durable) for segment in there.segments()] == ends
        for segment, end in zip(here.segments(), ends, strict=True):
            assert list(there.headers(segment, 0, end)) == list(here.headers(segment, 0, end))
    assert spools.view("west").durable() is None


def test_served_bytes_equal_the_files_for_every_range_and_every_cut_of_the_answers(served, monkeypatch):
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    view = served.client().view("north")
    for segment in view.segments():
        whole = segment_path(served.root / "north", segment).read_bytes()
        small = len(whole) < 60
        ranges = [(a, b) for a in range(len(whole) + 1) for b in range(a, len(whole) + 1)] if small else []
        ranges += [tuple(sorted(rng.choices(range(len(whole) + 1), k=2))) for _ in range(150)]
        for start, end in [*ranges, (0, len(whole))]:
            assert view.read(segment, start, end) == whole[start:end]
    # An answer holds 16 MiB; with an answer of 1, 7 and 100 bytes the same range comes in many.
    first = segment_path(served.root / "north", 1).read_bytes()
    for longest in (1, 7, 100):
        monkeypatch.setattr(frames, "LONGEST_ANSWER", longest)
        # Both sides run in this process: frames of answers in JSON are short enough for no limit here.
        monkeypatch.setattr(remote.frames, "receive_frame", lambda link, _most: RECEIVE(link, 1 << 20))
        assert view.read(1, 0, 300) == first[:300]


RECEIVE = frames.receive_frame


def test_headers_come_in_several_answers_when_they_are_many(tmp_path, monkeypatch):
    root = tmp_path / "spool"
    fill(root / "north", [[bytes((i,))] for i in range(50)])
    one = Served(root)
    monkeypatch.setattr(frames, "LONGEST_ANSWER", 8 * frames.HEADER.size * 7)
    try:
        end = one.local.view("north").segment_end(0, one.local.view("north").durable())
        headers = list(one.client().view("north").headers(0, 0, end))
        assert headers == list(one.local.view("north").headers(0, 0, end)) and len(headers) == 50
        assert one.server.requests > 7
    finally:
        one.server.close()


@pytest.mark.parametrize("at", [0, 3, 4, 8, 9, 40, 400])
def test_a_flipped_bit_anywhere_in_an_answer_is_an_error_and_never_data(served, at):
    handshake = frames.GREETING.size + frames.WELCOME.size

    def flip(passed: int, data: bytes) -> bytes:
        index = handshake + at - passed
        if 0 <= index < len(data):
            return data[:index] + bytes((data[index] ^ 0x10,)) + data[index + 1 :]
        return data

    between = Tampering(served.server.address, flip)
    spools = RemoteSpools(between.address, TOKEN, timeout_s=1)
    with pytest.raises(SpoolUnreachable, match=r"wrong answer|timed out") as caught:
        spools.view("north").read(1, 0, 600)
    assert between.address in str(caught.value)
    between.close()


@pytest.mark.parametrize("after", [0, 5, 37, 60, 70, 75, 79, 300])
def test_an_answer_cut_short_at_any_byte_is_an_error_and_never_data(served, after):
    def cut(passed: int, data: bytes) -> bytes | None:
        return data if passed + len(data) <= after else None

    between = Tampering(served.server.address, cut)
    with pytest.raises(SpoolUnreachable, match=r"ended after|cannot reach|closed"):
        RemoteSpools(between.address, TOKEN, timeout_s=WAIT_LIMIT_S).view("north").read(0, 0, 600)
    between.close()


def test_a_wrong_token_is_refused_by_name_on_both_sides_and_shown_on_neither(served):
    wrong = b"another-token-altogether"
    spools = served.client(wrong)
    with pytest.raises(SpoolUnreachable, match="does not accept the token") as caught:
        spools.names()
    assert caught.value.refused
    assert any("a wrong token" in line for line in served.said)
    assert served.server.refused == 1
    for text in (str(caught.value), repr(spools), repr(spools.view("north")), *served.said):
        assert wrong.decode() not in text and TOKEN.decode() not in text


def test_a_server_that_does_not_know_the_token_is_found_out():
    """Somebody else on the collector's port: it says welcome to any client."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        link, _ = listener.accept()
        link.sendall(frames.GREETING.pack(frames.MAGIC, frames.VERSION, bytes(32)))
        frames.receive_exactly(link, frames.HELLO.size)
        link.sendall(frames.WELCOME.pack(frames.ACCEPTED, bytes(32)))
        link.close()

    threading.Thread(target=pretend, daemon=True).start()
    with pytest.raises(SpoolUnreachable, match="does not accept the token"):
        RemoteSpools(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN, timeout_s=WAIT_LIMIT_S).names()
    listener.close()


def test_another_version_is_refused_by_name(served, monkeypatch):
    def older(passed: int, data: bytes) -> bytes:
        return data if passed else data[:4] + b"\x09" + data[5:]

    between = Tampering(served.server.address, older)
    with pytest.raises(SpoolUnreachable, match="another version"):
        RemoteSpools(between.address, TOKEN, timeout_s=WAIT_LIMIT_S).names()
    between.close()
    link = socket.create_connection(served.server.address)
    frames.receive_exactly(link, frames.GREETING.size)
    link.sendall(frames.HELLO.pack(frames.MAGIC, 9, bytes(32), bytes(32)))
    assert frames.receive_exactly(link, frames.WELCOME.size)[0] == frames.WRONG_VERSION


@pytest.mark.parametrize("name", ["..", "../spool/north", "/etc", "", "north/../south", 5, None])
def test_a_name_from_the_network_is_never_a_path(served, name):
    view = served.client().view(name)
    assert view.durable() is None
    with pytest.raises((DataLoss, SpoolUnreachable), match=r"no spool called|cannot reach"):
        view.segments()


def test_nonsense_from_a_client_ends_its_connection_and_no_other(served):
    good = served.client()
    assert good.names()
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(20):
        link = socket.create_connection(served.server.address, timeout=WAIT_LIMIT_S)
        # The server may have closed before everything is sent.
        with contextlib.suppress(OSError):
            link.sendall(rng.randbytes(rng.randrange(1, 200)))
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
        link.close()
    for body in (b"[]", b"{}", b"null", b'{"do": "read", "name": "north"}', b"\xff", b'{"do":"length","name":"north"}'):
        with pytest.raises((SpoolUnreachable, EOFError, OSError)):
            server = good._servers[0]
            server._link = server._link or server._connect()
            frames.send_frame(server._link, frames.REQUEST, body)
            frames.receive_frame(server._link, 1 << 20)
        server.close()
    assert good.names() == ["north", "south"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 4000,
        b'{"do":' + b"[" * 3000,
        b'{"do":"read","name":"north","segment":0,"start":%d,"end":%d}' % (10**30, 10**30 + 1),
        b'{"do":"headers","name":"north","segment":0,"start":%d,"end":%d}' % (2**64, 2**64 + 1),
        b'{"do":"read","name":"north","segment":true,"start":-1,"end":1}',
        b'{"do":"remove","name":"north","place":["",Infinity,0],"read_for_s":0}',
        b'{"do":"remove","name":"north","place":["",0,0],"read_for_s":%d}' % 10**400,
    ],
)
def test_a_request_that_cannot_be_is_closed_counted_and_told_in_one_line(served, body):
    failures: list[object] = []
    served.server._server.handle_error = lambda *_: failures.append(sys.exception())
    server = served.client()._servers[0]
    server._link = server._connect()
    frames.send_frame(server._link, frames.REQUEST, body)
    with pytest.raises(EOFError):
        frames.receive_frame(server._link, 1 << 20)
    assert served.server.counts()["malformed"] == 1 and failures == []
    assert [line for line in served.said if "wrong request" in line and "\n" not in line] == served.said != []


def test_those_who_never_show_a_token_keep_nobody_out(served, monkeypatch):
    monkeypatch.setattr(serve, "_MOST_STRANGERS", 4)
    monkeypatch.setattr(serve, "_MOST_CLIENTS", 4)
    good = served.client()
    assert good.names()
    strangers = []
    for _ in range(12):
        strangers.append(socket.create_connection(served.server.address, timeout=WAIT_LIMIT_S))
        frames.receive_exactly(strangers[-1], frames.GREETING.size)
    # The oldest have made room for the newer; those who have shown the token are no strangers.
    assert [one.recv(1) for one in strangers[:8]] == [b""] * 8
    later = [served.client() for _ in range(3)]
    for one in later:
        assert one.names()
    assert good.names()
    with pytest.raises(SpoolUnreachable, match="too many clients"):
        served.client().names()
    later[0].close()
    eventually(lambda: served.server.clients == 3, "the place of one that has gone")
    assert served.client().names()
    for one in strangers:
        one.close()


def test_the_time_to_show_a_token_is_for_all_of_it(served, monkeypatch):
    """A byte now and then does not buy more."""
    monkeypatch.setattr(serve, "_HELLO_WITHIN_S", 0.5)
    link = socket.create_connection(served.server.address, timeout=WAIT_LIMIT_S)
    frames.receive_exactly(link, frames.GREETING.size)
    link.settimeout(0.1)
    sent, closed = 0, False
    # A hello has 69 bytes, which would take 7 s; the machine may pause, and then fewer are sent.
    while not closed and sent < frames.HELLO.size - 1:
        try:
            link.sendall(b"x")
            sent += 1
            closed = link.recv(1) == b""
        except TimeoutError:
            continue
        except OSError:
            closed = True
    assert closed


def test_what_is_gone_or_damaged_is_the_same_error_as_on_the_disk(served):
    view = served.client().view("north")
    durable = view.durable()
    with pytest.raises(DataLoss, match="was removed before it was read"):
        view.read(99, 0, 10)
    with pytest.raises(DataLoss):
        view.segment_end(99, durable)
    with pytest.raises(DataLoss):
        list(view.headers(99, 0, 10))
    with pytest.raises(SpoolDamaged, match="is damaged at byte"):
        view.read(durable.segment, 0, durable.position + 1)
    with pytest.raises(SpoolDamaged):
        list(view.headers(0, 1, 60))


def test_removal_by_retention_leaves_one_run_of_segments_and_spares_another_spool(served):
    view = served.client().view("north")
    durable, segments = view.durable(), view.segments()
    assert len(segments) > 2
    stranger = Position("0" * 32, durable.segment, 0)
    assert view.remove_before(stranger, read_for_s=0) == 0
    assert view.remove_before(durable, read_for_s=2e9) == 0
    assert view.remove_before(Position(durable.spool, segments[1], 0), read_for_s=0) == 1
    assert view.segments() == served.local.view("north").segments() == segments[1:]
    assert view.remove_before(Position(durable.spool, 10**6, 0), read_for_s=0) == len(segments) - 2
    assert view.segments() == [durable.segment], "the one that is written stays"


def test_a_restarted_server_and_a_fork_are_met_with_a_connection_of_their_own(served):
    before = Served(served.root, reserved_port())
    spools = before.client()
    assert spools.names()
    host, port = before.server.address
    before.server.close()
    again = SpoolServer(host, port, served.local, TOKEN)
    try:
        assert spools.names() == ["north", "south"]
        view = spools.view("north")
        whole = view.read(1, 0, 80)
        pid = os.fork()
        # Both at once: on one connection each would get the other's answers.
        mine = range(40) if pid else range(40, 80)
        right = False
        try:
            right = all(view.read(1, at, at + 1) == whole[at : at + 1] for at in [*mine] * 5)
        finally:
            if not pid:
                os._exit(not right)
        assert right and os.waitpid(pid, 0)[1] == 0
        assert spools.names() == ["north", "south"]
    finally:
        again.close()
    with pytest.raises(SpoolUnreachable, match="is the collector running"):
        spools.names()


def test_a_connection_whose_thread_comes_after_the_close_is_not_served(served):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        served.server.close()
        with accepted:
            served.server.handle(accepted, "late")
        assert client.recv(1) == b"", "not even greeted"


def test_readers_pickle_without_their_connection(served):
    spools = served.client()
    view = spools.view("north")
    data = view.read(0, 0, 50)
    again = pickle.loads(pickle.dumps(view))
    assert again.read(0, 0, 50) == data
    assert pickle.loads(pickle.dumps(spools)).names() == spools.names()
    assert pickle.loads(pickle.dumps(served.local)).names() == spools.names()


def test_several_servers_are_one_tree_and_a_name_twice_is_an_error(served, tmp_path):
    fill(tmp_path / "other" / "west", [[b"w"]])
    other = Served(tmp_path / "other")
    both = RemoteSpools(f"{served.address}, {other.address}", TOKEN)
    assert both.names() == ["north", "south", "west"]
    assert both.view("west").segments() == [0]
    assert pickle.loads(pickle.dumps(both.view("west"))).segments() == [0]
    fill(tmp_path / "other" / "north", [[b"w"]])
    with pytest.raises(UsageError, match="serve a spool called north"):
        both.names()
    other.server.close()


@pytest.mark.parametrize("servers", ["", "localhost", "host:port", "host:0", ":1", "host:70000"])
def test_a_wrong_address_is_a_usage_error(servers):
    with pytest.raises(UsageError):
        RemoteSpools(servers, TOKEN)


def test_a_short_or_missing_token_is_a_usage_error_that_does_not_show_it(tmp_path):
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot read the token file"):
        read_token(file)
    file.write_text("sixteen\n" + "x" * 40)
    with pytest.raises(UsageError, match="shorter than 16") as caught:
        read_token(file)
    assert "sixteen" not in str(caught.value)
    file.write_text("0123456789abcdef\n")
    assert read_token(file) == b"0123456789abcdef"


def test_a_reader_follows_a_spool_while_it_is_written(tmp_path):
    root = tmp_path / "spool"
    with Spool(root / "north", segment_bytes=500) as spool:
        one = Served(root)
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

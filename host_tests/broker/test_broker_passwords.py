"""Password files, compatible with mosquitto's both ways; checked without blocking the broker or revealing users."""

import asyncio
import gc
import hashlib
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from client5 import Client5
from hypothesis import given
from hypothesis import strategies as st
from umqtt_broker import ConfigError
from umqtt_broker.access.password_check import PasswordChecker
from umqtt_broker.access.passwords import PasswordFile, PasswordHash, generate_password
from umqtt_testkit.mosquitto import Mosquitto, require_mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually_async

pytestmark = pytest.mark.tier(0)

ACCEPTED, BUSY, REFUSED = 0, 3, 4
# Few iterations, quick to compute; the format is the same.
FEW = 7


def _file(path: Path, **passwords: str) -> PasswordFile:
    file = PasswordFile(path)
    for username, password in passwords.items():
        file.set(username.encode(), PasswordHash.make(password.encode(), FEW))
    return file


def _checker(*, max_waiting: int = 100, **passwords: str) -> PasswordChecker:
    return PasswordChecker(_file(Path("none"), **passwords).users, max_waiting)


# The format


@pytest.mark.tier(1)
def test_the_real_mosquitto_accepts_our_file(tmp_path: Path) -> None:
    file = _file(tmp_path / "passwords", ada="secret", élan="pässwörd $:")
    file.set(b"chosen", PasswordHash.make(b"slow", 210_000))
    file.write()
    with Mosquitto(tmp_path, "allow_anonymous false", f"password_file {file.path}") as mosquitto:
        for username, password, reason in (
            ("ada", "secret", 0),
            ("élan", "pässwörd $:", 0),
            ("chosen", "slow", 0),
            ("ada", "wrong", 0x87),
            ("nobody", "secret", 0x87),
        ):
            with Client5(mosquitto.port, b"c", username.encode(), password.encode()) as client:
                assert client.reason == reason, username


@pytest.mark.tier(1)
@pytest.mark.parametrize("options", [[], ["-H", "sha512"], ["-I", "5000"]])
def test_we_read_what_mosquitto_passwd_writes(tmp_path: Path, options: list[str]) -> None:
    path = tmp_path / "passwords"
    program = require_mosquitto("mosquitto_passwd")
    subprocess.run([program, *options, "-c", "-b", path, "ada", "secret"], check=True, timeout=WAIT_LIMIT_S)
    subprocess.run([program, *options, "-b", path, "bob", "pässwörd"], check=True, timeout=WAIT_LIMIT_S)
    file = PasswordFile.read(path)
    assert file.users[b"ada"].verify(b"secret") and not file.users[b"ada"].verify(b"Secret")
    assert file.users[b"bob"].verify("pässwörd".encode())
    assert file.users[b"ada"].iterations == {"sha512": 0, "5000": 5000}.get(options[-1] if options else "", 101)


@pytest.mark.tier(1)
def test_mosquitto_passwd_changes_and_deletes_users_of_our_file(tmp_path: Path) -> None:
    file = _file(tmp_path / "passwords", ada="secret", bob="other")
    file.write()
    program = require_mosquitto("mosquitto_passwd")
    subprocess.run([program, "-b", file.path, "ada", "changed"], check=True, timeout=WAIT_LIMIT_S)
    subprocess.run([program, "-D", file.path, "bob"], check=True, timeout=WAIT_LIMIT_S)
    users = PasswordFile.read(file.path).users
    assert list(users) == [b"ada"] and users[b"ada"].verify(b"changed")


@given(st.binary(max_size=40), st.integers(1, 50))
def test_a_hash_survives_being_written_and_read(password: bytes, iterations: int) -> None:
    made = PasswordHash.make(password, iterations)
    again = PasswordHash.parse(made.encode())
    assert again == made and again.verify(password) and not again.verify(password + b"x")
    assert PasswordHash.make(password, iterations).salt != made.salt
    older = PasswordHash(0, b"salt", hashlib.sha512(password + b"salt").digest())
    assert PasswordHash.parse(older.encode()).verify(password)
    assert not PasswordHash.parse(older.encode()).verify(password + b"x")


GOOD = PasswordHash.make(b"secret", FEW).encode().decode()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("ada", "no colon"),
        (f":{GOOD}", "1 to 65,535"),
        ("ada:secret", "not hashed"),
        ("ada:", "not hashed"),
        ("ada:$5$x$y", "'5'"),
        ("ada:$argon2id$v=19$m=47104,t=1,p=1$c2FsdA$aGFzaA", "'argon2id'"),
        ("ada:$7$101$c2FsdA==", "cut short"),
        ("ada:$6$101$c2FsdA==$aGFzaA==", "too long"),
        (GOOD.replace("$7$7$", "ada:$7$0$"), "iterations"),
        (GOOD.replace("$7$7$", "ada:$7$-7$"), "iterations"),
        (GOOD.replace("$7$7$", "ada:$7$999999999999$"), "iterations"),
        (f"ada:{GOOD}x", "base64"),
        (f"ada:{GOOD[:-8]}", "size"),
        (f"ada:{GOOD[:-3]}!==", "base64"),
        (f"bob:{GOOD}", "line 2 too"),
        ("ada:SCRAM-SHA-256$4096:c2FsdA==$a2V5:a2V5", "SCRAM is not supported any more"),
        (f"{'a' * 65536}:{GOOD}", "65,535"),
    ],
)
def test_a_malformed_line_is_refused_by_file_and_line_without_showing_it(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"# users\nbob:{GOOD}\n\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        PasswordFile.read(path)
    assert str(caught.value).startswith(f"{path}:4: ") and named in str(caught.value)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: cannot read .*No such file"):
        PasswordFile.read(tmp_path / "nowhere")


def test_comments_blank_lines_and_the_order_survive_every_change(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text(f"# first\n\nada:{GOOD}\n# second\nbob:{GOOD}\neve:{GOOD}")
    file = PasswordFile.read(path)
    file.delete(b"ada")
    file.set(b"eve", PasswordHash.make(b"changed", FEW))
    file.set(b"new", PasswordHash.make(b"new", FEW))
    file.delete(b"bob")
    file.write()
    lines = path.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["# first", "", "# second", "eve", "new"]
    users = PasswordFile.read(path).users
    assert users[b"eve"].verify(b"changed") and users[b"new"].verify(b"new")
    with pytest.raises(KeyError):
        file.delete(b"bob")


def test_a_file_is_replaced_in_one_step_and_only_its_owner_may_read_it(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "passwords"
    file = _file(path, ada="secret")
    file.write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    before = path.read_bytes()
    file.set(b"bob", PasswordHash.make(b"other", FEW))

    def fails(descriptor: int) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="full"):
            file.write()
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["passwords"]
    with path.open("rb") as reader:
        file.write()
        assert reader.read() == before, "written in place"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(path)
    _file(link, eve="third").write()
    assert link.is_symlink() and list(PasswordFile.read(path).users) == [b"eve"]


@pytest.mark.parametrize("username", ["", "a:b", "a\nb", " a", "a ", "#a", "a\0", "x" * 65536])
def test_a_name_that_cannot_stand_in_the_file_is_refused(username: str) -> None:
    with pytest.raises(ValueError, match="user name"):
        PasswordFile("none").set(username.encode(), PasswordHash.parse(GOOD.encode()))


def test_generated_passwords_are_long_and_never_the_same() -> None:
    made = {generate_password() for _ in range(100)}
    assert len(made) == 100 and all(len(password) >= 20 for password in made)


# Checking


async def _answer(answer: "int | asyncio.Future[int]") -> int:
    return answer if isinstance(answer, int) else await asyncio.wait_for(answer, WAIT_LIMIT_S)


def test_the_right_password_is_accepted_and_every_other_refused() -> None:
    async def run() -> None:
        checker = _checker(ada="secret", bob="other")
        try:
            for _ in range(2):  # the second time from memory
                for username, password, expected in (
                    (b"ada", b"secret", ACCEPTED),
                    (b"ada", b"other", REFUSED),
                    (b"bob", b"secret", REFUSED),
                    (b"bob", b"other", ACCEPTED),
                    (b"adas", b"ecret", REFUSED),
                    (b"nobody", b"secret", REFUSED),
                    (b"ada", b"", REFUSED),
                ):
                    assert await _answer(checker.check(username, password)) == expected, (username, password)
        finally:
            checker.close()

    asyncio.run(run())


class Slow:
    """Lets a test decide when a hash computation ends, and records the computations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.calls: list[PasswordHash] = []
        verify: Callable[[PasswordHash, bytes], bool] = PasswordHash.verify

        def slow(stored: PasswordHash, password: bytes) -> bool:
            self.calls.append(stored)
            self.begun.release()
            assert self.go.wait(WAIT_LIMIT_S)
            return verify(stored, password)

        monkeypatch.setattr(PasswordHash, "verify", slow)


def test_a_fleet_under_one_name_is_hashed_once_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(fleet="secret")
        answers = [checker.check(b"fleet", b"secret") for _ in range(2000)]
        slow.go.set()
        assert set(await asyncio.gather(*map(_answer, answers))) == {ACCEPTED}
        assert checker.check(b"fleet", b"secret") == ACCEPTED
        checker.close()

    asyncio.run(run())
    assert len(slow.calls) == 1


def test_checks_at_the_same_time_are_told_apart_by_name_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(ada="secret")
        answers = [checker.check(*who) for who in ((b"ada", b"secret"), (b"adas", b"ecret"), (b"ad", b"asecret"))]
        slow.go.set()
        assert [await _answer(answer) for answer in answers] == [ACCEPTED, REFUSED, REFUSED]
        checker.close()

    asyncio.run(run())


def test_the_event_loop_runs_while_a_hash_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(ada="secret")
        answer = checker.check(b"ada", b"secret")
        assert isinstance(answer, asyncio.Future)
        await eventually_async(lambda: slow.begun.acquire(blocking=False))
        assert not answer.done()
        slow.go.set()
        assert await _answer(answer) == ACCEPTED
        checker.close()

    asyncio.run(run())


def test_the_queue_is_bounded_and_known_clients_get_in_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(max_waiting=10, ada="secret", bob="other")
        slow.go.set()
        assert await _answer(checker.check(b"ada", b"secret")) == ACCEPTED
        slow.go.clear()
        flood = [checker.check(b"bob", b"%d" % number) for number in range(10)]
        assert checker.check(b"bob", b"other") == BUSY and checker.refused_busy == 1
        assert checker.check(b"ada", b"secret") == ACCEPTED
        # A flooding client that leaves makes room at once, except for what a thread has begun.
        for answer in flood:
            assert isinstance(answer, asyncio.Future)
            answer.cancel()
        for _ in range(3):  # from future to future to the pool
            await asyncio.sleep(0)
        answer = checker.check(b"bob", b"other")
        slow.go.set()
        assert await _answer(answer) == ACCEPTED
        assert len(slow.calls) <= 1 + 4 + 1
        checker.close()

    asyncio.run(run())


def test_a_client_that_leaves_takes_nothing_from_another_with_the_same_password(monkeypatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(ada="secret")
        leaves, stays = checker.check(b"ada", b"secret"), checker.check(b"ada", b"secret")
        assert isinstance(leaves, asyncio.Future)
        leaves.cancel()
        await asyncio.sleep(0)
        slow.go.set()
        assert await _answer(stays) == ACCEPTED
        checker.close()

    asyncio.run(run())


def test_a_password_that_was_taken_away_while_it_was_checked_lets_nobody_in(monkeypatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(ada="secret")
        answer = checker.check(b"ada", b"secret")
        checker.replace(_file(Path("none"), ada="new").users)
        slow.go.set()
        assert await _answer(answer) == REFUSED
        assert await _answer(checker.check(b"ada", b"secret")) == REFUSED
        assert await _answer(checker.check(b"ada", b"new")) == ACCEPTED
        checker.replace({})
        assert await _answer(checker.check(b"ada", b"new")) == REFUSED
        checker.close()

    asyncio.run(run())


def test_an_unknown_user_costs_what_a_known_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten users have fast and ten slow hashes: an unknown name is checked by each kind half the time."""
    slow = Slow(monkeypatch)
    slow.go.set()
    users = {b"%d" % number: PasswordHash.make(b"x", 1 if number < 10 else 3) for number in range(20)}

    async def run() -> None:
        checker = PasswordChecker(users)
        for number in range(400):
            assert await _answer(checker.check(b"stranger %d" % number, b"x")) == REFUSED
        calls = len(slow.calls)
        assert calls == 400, "a stranger is refused without hashing"
        for _ in range(3):
            await _answer(checker.check(b"stranger", b"x"))
        assert len(set(slow.calls[calls:])) == 1, "a stranger's cost changes, a known user's does not"
        checker.close()

    asyncio.run(run())
    fast = sum(stored.iterations == 1 for stored in slow.calls)
    assert 120 < fast < 280


def _bytes_in(checker: PasswordChecker) -> list[bytes]:
    """Return every byte string that a checker holds, however deep."""
    found, pending = [], [vars(checker)]
    while pending:
        each = pending.pop()
        if isinstance(each, bytes):
            found.append(each)
        elif isinstance(each, dict | list | tuple | PasswordHash):
            pending += gc.get_referents(each)
    return found


def test_the_memory_of_right_passwords_holds_no_password_and_no_more_than_the_users() -> None:
    async def run() -> None:
        checker = _checker(ada="secret", bob="other")
        for number in range(50):
            await _answer(checker.check(b"ada", b"wrong %d" % number))
            await _answer(checker.check(b"stranger %d" % number, b"secret"))
        await _answer(checker.check(b"ada", b"secret"))
        # The right password is recognised at once; every other one is hashed again.
        assert checker.check(b"ada", b"secret") == ACCEPTED
        again = [checker.check(b"ada", b"wrong 1"), checker.check(b"stranger 1", b"secret")]
        assert all(isinstance(answer, asyncio.Future) for answer in again)
        assert set(await asyncio.gather(*map(_answer, again))) == {REFUSED}
        kept = set(_bytes_in(checker))
        assert not [each for each in kept if b"secret" in each or b"wrong" in each]
        # A digest is useless under the key of another process: the two have only the names in common.
        other = _checker(ada="secret")
        await _answer(other.check(b"ada", b"secret"))
        assert [each for each in kept & set(_bytes_in(other)) if len(each) > 8] == []
        checker.close()
        other.close()

    asyncio.run(run())


def test_closing_while_passwords_wait_cancels_them_and_ends_the_threads(monkeypatch) -> None:
    slow = Slow(monkeypatch)

    async def run() -> None:
        checker = _checker(ada="secret")
        answers = [checker.check(b"ada", b"%d" % number) for number in range(20)]
        checker.close()
        slow.go.set()
        await asyncio.sleep(0)
        assert all(isinstance(answer, asyncio.Future) and answer.cancelled() for answer in answers)

    asyncio.run(run())
    for thread in threading.enumerate():
        if thread.name.startswith("umqtt-passwords"):
            thread.join(WAIT_LIMIT_S)
            assert not thread.is_alive()

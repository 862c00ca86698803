"""umqtt passwd: nobody sees the password, the real mosquitto accepts the file, no change is half done or lost."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kit_command import Ended, umqtt_command, umqtt_here
from umqtt_broker.access.passwords import PasswordFile
from umqtt_testkit.mosquitto import Mosquitto, require_mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(1)


def _passwd(folder: Path, *arguments: str, given: str = "") -> Ended:
    return umqtt_here(folder, "passwd", *arguments, given=given)


def _terminal(folder: Path, arguments: list[str], *answers: str) -> tuple[int, str]:
    """Run the command on its own terminal and answer each question; return the exit code and all that was shown."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execv(sys.executable, umqtt_command("passwd", *arguments))
    shown = b""
    asked = 0
    try:
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # the command has closed its end
                break
            if not data:
                break
            shown += data
            if asked < len(answers) and shown.count(b": ") > asked and shown.endswith(b": "):
                os.write(terminal, answers[asked].encode() + b"\n")
                asked += 1
    finally:
        os.close(terminal)
        _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def _verify(file: Path, name: str, password: str) -> bool:
    return PasswordFile.read(file).users[name.encode()].verify(password.encode())


def test_a_password_is_asked_for_twice_and_never_shown(tmp_path: Path) -> None:
    command = ["users", "ada", "--iterations", "10"]
    code, shown = _terminal(tmp_path, command, "a secret", "a secret")
    assert code == 0, shown
    assert "Password for ada: " in shown and "Again: " in shown and "ada added" in shown
    assert "secret" not in shown
    assert _verify(tmp_path / "users", "ada", "a secret")
    code, shown = _terminal(tmp_path, command, "new", "new")
    assert code == 0 and "ada changed" in shown
    assert _verify(tmp_path / "users", "ada", "new") and not _verify(tmp_path / "users", "ada", "a secret")


def test_two_passwords_that_differ_change_nothing(tmp_path: Path) -> None:
    code, shown = _terminal(tmp_path, ["users", "ada"], "one", "other")
    assert code == 2 and "differ — nothing was changed" in shown
    assert not (tmp_path / "users").exists()


def test_a_password_from_stdin_is_its_first_line(tmp_path: Path) -> None:
    ended = _passwd(tmp_path, "users", "ada", "--stdin", given="sécret word\r\nmore\n")
    assert (ended.code, ended.stdout) == (0, "")
    assert _verify(tmp_path / "users", "ada", "sécret word")
    stored = PasswordFile.read(tmp_path / "users").users[b"ada"]
    assert stored.iterations == 210_000
    assert stat.S_IMODE((tmp_path / "users").stat().st_mode) == 0o600


def test_a_generated_password_is_printed_once_and_costs_the_broker_little(tmp_path: Path) -> None:
    ended = _passwd(tmp_path, "users", "pump-7", "--generate")
    password = ended.stdout.strip()
    assert ended.code == 0 and len(password) >= 20 and password not in ended.stderr
    assert _verify(tmp_path / "users", "pump-7", password)
    assert PasswordFile.read(tmp_path / "users").users[b"pump-7"].iterations == 1000
    answer = json.loads(_passwd(tmp_path, "users", "pump-7", "--generate", "--json").stdout)
    assert set(answer) == {"file", "user", "done", "password"} and answer["done"] == "changed"
    assert _verify(tmp_path / "users", "pump-7", answer["password"]) and answer["password"] != password


def test_a_user_is_deleted_and_the_others_stay(tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        _passwd(tmp_path, "users", name, "--stdin", "--iterations", "10", given=f"{name}\n")
    answer = json.loads(_passwd(tmp_path, "users", "ada", "--delete", "--json").stdout)
    assert answer == {"file": "users", "user": "ada", "done": "deleted"}
    assert list(PasswordFile.read(tmp_path / "users").users) == [b"bob"]
    ended = _passwd(tmp_path, "users", "ada", "--delete")
    assert ended.code == 2 and "no user 'ada'" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "given", "named"),
    [
        (["users", "ada"], "secret\n", "--stdin or --generate"),
        (["users", "ada", "--stdin"], "", "1 to 65,535"),
        (["users", "ada", "--stdin"], "\n", "1 to 65,535"),
        (["users", "ada", "--stdin"], "a\0b\n", "NUL"),
        (["users", "a:b", "--generate"], "", "'a:b'"),
        (["users", "", "--generate"], "", "user name"),
        (["users", "ada", "--generate", "--delete"], "", "exclude each other"),
        (["users", "ada", "secret"], "", "secret"),
        (["nowhere/users", "ada", "--generate"], "", "nowhere/users"),
        (["bad", "ada", "--generate"], "", "bad:1: "),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    given: str,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    Path("bad").write_text("nonsense\n")
    assert run(["passwd", *arguments]) == 2
    shown, error = capsys.readouterr()
    assert shown == "" and len(error.splitlines()) == 1 and named in error and "—" in error, error
    assert os.listdir(tmp_path) == ["bad"] and Path("bad").read_text() == "nonsense\n"


def test_commands_at_the_same_time_lose_no_user(tmp_path: Path) -> None:
    names = [f"pump-{number}" for number in range(4)]
    running = [
        subprocess.Popen(
            umqtt_command("passwd", "users", name, "--generate"),
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    ]
    assert [process.wait(WAIT_LIMIT_S) for process in running] == [0] * len(names)
    assert sorted(PasswordFile.read(tmp_path / "users").users) == [name.encode() for name in names]


def test_the_real_mosquitto_accepts_the_file(tmp_path: Path) -> None:
    publish = require_mosquitto("mosquitto_pub")
    _passwd(tmp_path, "users", "ada", "--stdin", "--iterations", "10", given="sécret\n")
    password = _passwd(tmp_path, "users", "pump-7", "--generate").stdout.strip()
    with Mosquitto(tmp_path, f"password_file {tmp_path / 'users'}") as broker:
        for name, given, code in (("ada", "sécret", 0), ("pump-7", password, 0), ("ada", password, 5)):
            at = ["-h", "127.0.0.1", "-p", str(broker.port), "-u", name, "-P", given]
            ended = subprocess.run([publish, *at, "-t", "a", "-m", "x"], capture_output=True, timeout=WAIT_LIMIT_S)
            assert ended.returncode == code, ended.stderr

"""The broker as a program with a configuration file: ready lines, exit codes, process id, user."""

import contextlib
import io
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_peer import BrokerProcess, Peer, run_broker
from configured_broker import ConfiguredBroker
from damaged_stores import LOCK, WAL, History
from umqtt_broker.__main__ import main
from umqtt_broker.cli.broker import broker as broker_command
from umqtt_broker.routing import router
from umqtt_testkit import encoder
from umqtt_testkit.ports import reserved_port

OPEN = "listener 0 127.0.0.1\nallow_anonymous true\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in this process, for cases in which it ends before it begins to serve."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(list(arguments))
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), error.getvalue())


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Provide the path of the test's configuration file."""
    return tmp_path / "broker.conf"


@pytest.mark.parametrize("command", [("-m", "umqtt_broker"), ("-m", "umqtt_cli", "broker")])
def test_each_address_has_a_ready_line_and_serves(conf: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    text = f"{OPEN}listener 0 127.0.0.1\nprotocol websockets\nlistener 0 {tmp_path}/socket\n"
    with ConfiguredBroker(conf, text, 3, command) as broker:
        port = broker.port()
        assert broker.addresses == [
            f"127.0.0.1:{port}",
            f"127.0.0.1:{broker.port(1)} (websockets)",
            f"{tmp_path}/socket (unix)",
        ]
        with Peer(port) as peer:
            peer.connect(b"peer")
        assert broker.stop() == 0


def test_the_ready_line_is_first_even_if_the_log_goes_to_standard_output(conf: Path) -> None:
    with ConfiguredBroker(conf, f"{OPEN}log_dest stdout\nautosave_interval 5\n") as broker:
        assert broker.process.stdout is not None
        assert "autosave_interval has no effect" in broker.process.stdout.readline()
        # Planted: the line says which one was built last, not which one runs.
        kind = "plain Python" if router.__file__.endswith(".py") else "compiled"
        assert f"running, {kind}, 127.0.0.1:" in broker.process.stdout.readline()


def test_what_is_unsafe_at_the_start_is_in_the_log_too(conf: Path, tmp_path: Path) -> None:
    """Planted: what is found before the log is open is on standard error alone."""
    (tmp_path / "passwords").write_text("")
    (tmp_path / "passwords").chmod(0o644)
    text = f"listener 0 127.0.0.1\npassword_file {tmp_path}/passwords\nlog_dest file {tmp_path}/broker.log\n"
    with ConfiguredBroker(conf, text) as broker:
        assert broker.stop() == 0
    assert f"{tmp_path}/passwords can be read by other users" in (tmp_path / "broker.log").read_text()


def test_persistence_keeps_sessions_and_makes_the_file_it_says(conf: Path, tmp_path: Path) -> None:
    text = f"{OPEN}persistence true\npersistence_location {tmp_path}\npersistence_file kept.db\n"
    for present in (False, True):
        with ConfiguredBroker(conf, text) as broker, Peer(broker.port()) as peer:
            assert peer.connect(b"peer", clean_session=False) == present
            peer.close()
            assert broker.stop() == 0
    assert (tmp_path / "kept.db").exists()


def test_a_wrong_file_is_a_line_for_each_mistake_and_exit_code_2(conf: Path) -> None:
    conf.write_text("bogus 1\nsys_interval x\n")
    for more in ((), ("--test-config",)):
        result = run("-c", str(conf), *more)
        assert result.returncode == 2 and result.stdout == ""
        assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [f"{conf}:1", f"{conf}:2"]


def test_a_check_says_what_it_found_and_opens_nothing(conf: Path, tmp_path: Path) -> None:
    conf.write_text(
        f"{OPEN}log_facility 5\nlistener 0 {tmp_path}/socket\npersistence true\npersistence_location {tmp_path}\n"
    )
    result = run("-c", str(conf), "--test-config", "--lenient")
    assert (result.returncode, result.stdout) == (0, "configuration is valid\n")
    assert result.stderr == f"{conf}:3: log_facility is not supported — remove the line\n"
    assert [path.name for path in tmp_path.iterdir()] == ["broker.conf"]
    conf.write_text("user nobody-has-this-name\n")
    result = run("-c", str(conf), "--test-config")
    assert result.returncode == 2 and "there is no such user" in result.stderr


# Causes of a failing start beyond the file itself, by a line of it; {} is the test's folder.
TRIPS = {
    "log": "log_dest file {}/nowhere/log",
    "pid": "pid_file {}/nowhere/pid",
    "pid is a folder": "pid_file {}",
    "store": "persistence true\npersistence_location {}/nowhere",
    "store is none": "persistence true\npersistence_location {}\npersistence_file text",
    "store lost its log": "persistence true\npersistence_location {}\npersistence_file cut.db",
    "address": "listener 0 192.0.2.1",
    "port twice": "listener PORT 127.0.0.1\nlistener PORT 127.0.0.1",
    "port on every address": "listener PORT\nlistener PORT 127.0.0.1",
    "socket": "listener 0 {}/nowhere/socket",
    "token's folder": "http_listener 1\nhttp_token_file {}/nowhere/token",
    "token is text": "http_listener 1\nhttp_token_file {}/text",
    "http for all": "http_listener 1 192.0.2.1\nhttp_token_file {}/token",
    "no token": "http_listener 1",
}


@pytest.mark.parametrize("kind", TRIPS)
def test_a_check_finds_what_a_start_would_find(conf: Path, tmp_path: Path, kind: str) -> None:
    """Planted: a check that only reads the file."""
    (tmp_path / "text").write_text("no database, and no token that is long enough")
    if kind == "store lost its log":
        history = History(tmp_path / "history", 1)
        path = history.copy(tmp_path / "copy")
        path.with_name(WAL).unlink()
        path.rename(tmp_path / "cut.db")
        path.with_name(LOCK).rename(tmp_path / "cut.db.lock")
    conf.write_text(f"{OPEN}{TRIPS[kind].format(tmp_path).replace('PORT', str(reserved_port()))}\n")
    before = sorted(tmp_path.iterdir())
    checked = run("-c", str(conf), "--test-config")
    assert (checked.returncode, checked.stdout) == (2, "")
    assert checked.stderr.count("\n") == 1 and "Traceback" not in checked.stderr, checked.stderr
    assert sorted(tmp_path.iterdir()) == before
    started = run_broker("-c", str(conf))
    assert started.returncode == 2 and "Traceback" not in started.stderr, started


def test_what_a_running_broker_uses_is_no_mistake(conf: Path, tmp_path: Path) -> None:
    with ConfiguredBroker(conf, f"{OPEN}persistence true\npersistence_location {tmp_path}\n") as broker:
        port = broker.port()
        conf.write_text(conf.read_text().replace("listener 0 ", f"listener {port} "))
        assert run("-c", str(conf), "--test-config").stdout == "configuration is valid\n"
        assert broker.stop() == 0


def test_http_alone_prints_its_address_and_where_the_token_is(tmp_path: Path) -> None:
    """Planted: --http without a store asks for http_token_file, a key of a file that nobody wrote."""
    port = reserved_port()
    with BrokerProcess(tmp_path / "broker.db", "--http", str(port)) as broker:
        assert (tmp_path / "broker.db.token").stat().st_mode & 0o777 == 0o600
        assert broker.stop() == (0, f"live page: http://127.0.0.1:{port}/, token in {tmp_path}/broker.db.token\n")
    port = reserved_port()
    with BrokerProcess(":memory:", "--http", str(port)) as broker:
        code, printed = broker.stop()
    assert code == 0
    assert re.fullmatch(rf"live page: http://127\.0\.0\.1:{port}/#token=[\w-]{{43}}\n", printed)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-c", "x.conf", "--http", "1"), "--http cannot be combined with -c"),
        (("-c", "x.conf", "-p", "1883"), "--port cannot be combined with -c — set it in x.conf"),
        (("-c", "x.conf", "--store", "a", "--host", "b"), "--host and --store cannot be combined"),
        (("--lenient",), "name it with -c FILE"),
        (("--test-config", "-p", "0"), "name it with -c FILE"),
        (("-c", f"{__file__}.d/x.conf"), f"{__file__}.d/x.conf cannot be read (No such file or directory)"),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2 and reason in result.stderr and "Traceback" not in result.stderr


def test_the_pid_file_is_there_while_the_broker_is(conf: Path, tmp_path: Path) -> None:
    path = tmp_path / "broker.pid"
    with ConfiguredBroker(conf, f"{OPEN}pid_file {path}\n") as broker:
        assert path.read_text() == f"{broker.process.pid}\n"
        assert broker.stop() == 0
    assert not path.exists()


def test_a_pid_file_that_cannot_be_written_is_one_line_and_no_broker(conf: Path) -> None:
    path = conf.parent / "nowhere" / "broker.pid"
    conf.write_text(f"{OPEN}pid_file {path}\n")
    result = run_broker("-c", str(conf))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"pid_file {path} cannot be written (No such file or directory) — choose another\n"


@pytest.fixture
def folder_for_everybody(tmp_path: Path) -> Iterator[Path]:
    """Provide a folder that other users may enter; pytest closes its own to them at the beginning of every run."""
    beside = next(parent for parent in tmp_path.parents if parent.name.startswith("pytest-of-")).parent
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_given_up_when_the_ports_are_bound(folder_for_everybody: Path) -> None:
    account, folder = pwd.getpwnam("nobody"), folder_for_everybody
    store = folder / "store"
    store.mkdir()
    shutil.chown(store, "nobody")
    text = f"{OPEN}user nobody\npid_file {folder}/broker.pid\npersistence true\npersistence_location {store}\n"
    roots_groups = (0, 4242)
    started = ConfiguredBroker(folder / "broker.conf", text, groups=roots_groups)
    with started as broker, Peer(broker.port()) as peer:
        peer.connect(b"peer", clean_session=False)
        status = Path(f"/proc/{broker.process.pid}/status").read_text()
        ids = {
            line.split(":")[0]: line.split()[1:] for line in status.splitlines() if line[:4] in ("Uid:", "Gid:", "Grou")
        }
        assert set(ids["Uid"]) == {str(account.pw_uid)} and set(ids["Gid"]) == {str(account.pw_gid)}
        assert not {str(group) for group in roots_groups} & set(ids["Groups"])
        assert (store / "umqtt-broker.db").stat().st_uid == account.pw_uid
        assert (folder / "broker.pid").stat().st_uid == 0
        broker.stop()


def test_the_command_of_the_kit_knows_every_option_of_the_program() -> None:
    known = {option for parameter in broker_command.params for option in parameter.opts}
    result = run_broker("--help")
    for option in (
        "-c",
        "--lenient",
        "--test-config",
        "-p",
        "--host",
        "--store",
        "--allow-anonymous",
        "--http",
        "--accept-loss",
    ):
        assert option in known and option in result.stdout


def test_the_log_says_who_comes_and_goes_and_why(conf: Path) -> None:
    text = (
        f"{OPEN}log_type notice\nlog_type subscribe\nlog_type unsubscribe\nlog_timestamp false\nclientid_prefixes a\n"
    )
    with ConfiguredBroker(conf, text) as broker:
        address = "127.0.0.1"

        def comes(client_id: bytes, keep_alive: int = 0) -> Peer:
            peer = Peer(broker.port())
            peer.connect(client_id, keep_alive=keep_alive)
            expected = f"{client_id.decode()} connected from {address} (clean_session 1, keep_alive {keep_alive})"
            assert broker.wait_for("connected from") == f"notice: client {expected}"
            return peer

        def goes(client_id: str, reason: str) -> None:
            assert broker.wait_for("disconnected") == f"notice: client {client_id} disconnected{reason}"

        with comes(b"a1") as peer:
            peer.subscribe(b"x/#", 1)
            assert broker.wait_for("a1") == "subscribe: a1 x/# (QoS 1)"
            peer.send(encoder.unsubscribe(5, b"x/#"))
            assert broker.wait_for("a1") == "unsubscribe: a1 x/#"
            peer.disconnect()
        goes("a1", "")
        comes(b"a2").close()
        goes("a2", ": closed by the client")
        first = comes(b"a3")
        second = Peer(broker.port())
        second.connect(b"a3")
        goes("a3", f": taken over from {address}")
        second.send(b"\xf0\x00")
        goes("a3", ": malformed: unexpected packet type or flags")
        silent = comes(b"a4", keep_alive=1)
        goes("a4", ": keep-alive")
        with Peer(broker.port()) as stranger:
            stranger.send(encoder.connect(b"stranger"))
            line = f"notice: client stranger from {address} refused: return code 2, its identifier is not allowed"
            assert broker.wait_for("refused") == line
        last = comes(b"a5")
        broker.process.terminate()
        goes("a5", ": the broker stops")
        for peer in (first, second, silent, last):
            peer.close()

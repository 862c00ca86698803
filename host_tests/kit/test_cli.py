"""Wrong input or a missing installation is answered in one line that says what to do, with the right exit code."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from kit_command import umqtt_command
from umqtt_broker.cli.authority import Authority
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import registered, run
from umqtt_cli.__main__ import umqtt as cli

pytestmark = pytest.mark.tier(1)

_ROOT = Path(__file__).resolve().parents[2]
_COMMANDS = tuple(sorted(registered()))


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_shows_an_example_of_itself(name, capsys):
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example:" in shown
    assert f"umqtt {name} " in shown.split("Example:")[1]


@pytest.mark.parametrize("name", _COMMANDS)
def test_an_option_that_no_command_has_is_one_line_and_exit_code_2(name, capsys):
    assert run([name, "--no-such-option"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith(f"umqtt {name}") and "—" in error


_INGESTION = {
    "ingest": ["--spool", ".", "--tables", "t", "--checkpoint", "c"],
    "collect": ["--broker", "mqtt://127.0.0.1:1", "--spool", "s"],
    "report": ["--tables", "t"],
    "tables vacuum": ["--tables", "."],
    "tables retain": ["--tables", ".", "--days", "1"],
}


def _numeric_options(name: str) -> list[str]:
    command: click.Command = cli
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    numeric = (click.types.FloatParamType, click.types.IntParamType)
    return [one.opts[0] for one in command.params if isinstance(one.type, numeric) or "bytes" in one.opts[0]]


@pytest.mark.parametrize("name", _INGESTION)
def test_a_number_that_is_none_or_beyond_all_use_is_one_line_and_exit_code_2(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = _numeric_options(name)
    assert options
    for option in options:
        for value in ("nan", "inf", "-inf", "1e308", "9" * 30, "9" * 5000):
            assert run([*name.split(), *_INGESTION[name], option, value]) == 2, f"{option} {value[:30]}"
            out, error = capsys.readouterr()
            assert out == "" and error.count("\n") == 1 and (option in error or "bytes" in option), error[:500]


def _members(command: click.Command) -> Iterator[click.Command]:
    yield command
    for member in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _members(member)


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_command_takes_nan_or_infinity_for_a_time(name):
    command = registered()[name].load()
    for member in _members(command):
        for option in member.params:
            if isinstance(option.type, click.types.FloatParamType) and name not in _INGESTION:
                for value in ("nan", "inf"):
                    with pytest.raises(click.BadParameter):
                        option.type.convert(value, option, None)


# A service says when it is ready; a person talks to a board's prompt.
_WITHOUT_JSON = {"broker", "collect", "console", "serial", "shell"}


@pytest.mark.parametrize("name", sorted(set(_COMMANDS) - _WITHOUT_JSON))
def test_every_command_with_a_result_can_give_it_as_json(name, capsys):
    command = registered()[name].load()
    # Of a group of commands, at least those that list or make something.
    members = command.commands.values() if isinstance(command, click.Group) else [command]
    assert any("--json" in option.opts for member in members for option in member.params)


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_password_can_be_given_on_the_command_line(name):
    command = registered()[name].load()
    members = command.commands.values() if isinstance(command, click.Group) else [command]
    options = {option for member in members for param in member.params for option in param.opts}
    assert not options & {"--password", "--passwd", "--token", "--secret", "--passphrase"}


@pytest.mark.parametrize(
    ("command", "path", "what"),
    [
        ("sub a --count", "umqtt sub", "Option '--count' requires an argument"),
        ("new sensor door --i2c", "umqtt new", "Option '--i2c' requires an argument"),
        ("broker -p abc", "umqtt broker", "Invalid value for '-p' / '--port': 'abc' is not a whole number"),
        ("demo --seconds abc", "umqtt demo", "Invalid value for '--seconds': 'abc' is not a number"),
        ("keys rotate", "umqtt keys rotate", "Missing argument 'DEVICE'"),
        ("ota a --stages", "umqtt ota", "Option '--stages' requires an argument"),
        ("new", "umqtt new", None),
        (
            "ingest --tables t --checkpoint c",
            "umqtt ingest",
            "Missing option '--spool'",
        ),
    ],
)
def test_a_usage_error_names_the_command_and_what_is_wrong(command, path, what, capsys):
    """Planted: an option without its value named no command; numbers were "not a valid integer range"."""
    assert run(command.split()) == 2
    error = capsys.readouterr().err
    if what is None:  # a group alone shows its help
        assert error.startswith(f"Usage: {path} ")
    else:
        assert error == f"{path}: {what} — try: {path} --help\n"


def test_help_names_every_environment_variable_that_the_commands_read(capsys):
    """Planted: UMQTT_BOARDS, and UMQTT_STORE_PASSWORD of the broker's package, are read but not listed."""
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    # umqtt_testkit reads more variables, which tests and its own boards set.
    wheel = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packages = [_ROOT / name for name in wheel["packages"] if not name.endswith("/umqtt_testkit")]
    files = [file for package in packages for file in package.rglob("*.py")]
    read = {name for file in files for name in re.findall(r"\bUMQTT_[A-Z0-9_]+", file.read_text())}
    assert len(packages) > 4 and len(read) > 5
    read -= {"UMQTT_GROUND_TRUTH", "UMQTT_COMMANDS"}  # `umqtt demo` sets them for its boards
    assert read == set(re.findall(r"^  (UMQTT_[A-Z0-9_]+)  ", shown, re.MULTILINE))


def test_version_is_the_distributions(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("umqtt 0.")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["fleat"], "fleat"),
        (["demo", "--second", "5"], "--second"),
        (["demo", "--seconds", "soon"], "soon"),
        (["demo", "--seconds", "0"], "--seconds"),
        (["demo", "--devices", "-1"], "--devices"),
        (["demo", "--boards", "0", "--devices", "0"], "--boards 0 --devices 0"),
        (["broker", "-p", "65536"], "65536"),
        (["broker", "-p", "http"], "http"),
        (["collect", "--spool", "x"], "--broker"),
        (["ingest", "--spool", "x"], "--tables"),
    ],
)
def test_bad_usage_is_one_line_that_names_it_and_exit_code_2(umqtt, arguments, named):
    ended = umqtt(*arguments)
    assert ended.code == 2
    error = ended.only_error()
    assert named in error
    assert "—" in error, "no next step"


def test_an_occupied_port_asked_for_is_refused_with_the_way_out(umqtt):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = umqtt("broker", "-p", str(port))
    assert ended.code == 2
    error = ended.only_error()
    assert f"127.0.0.1:{port}" in error and "in use" in error and "-p 0" in error


@pytest.mark.parametrize("command", ["demo", "collect", "ingest"])
def test_a_folder_that_cannot_be_written_is_refused_by_name(umqtt, command):
    # Nobody can make a folder below a file, not even root, as whom the tests may run.
    folder = "/dev/null/demo"
    arguments = {
        "demo": ["--out", folder],
        "collect": ["--broker", "mqtt://127.0.0.1", "--spool", folder],
        "ingest": ["--spool", folder, "--tables", "t", "--checkpoint", "c"],
    }
    ended = umqtt(command, *arguments[command])
    assert ended.code == 2
    assert folder in ended.only_error()


def test_a_folder_of_somebody_else_is_not_cleared(umqtt, tmp_path):
    photo = tmp_path / "holiday" / "photo.jpg"
    photo.parent.mkdir()
    photo.write_text("the sea")
    ended = umqtt("demo", "--out", str(photo.parent))
    assert ended.code == 2
    assert "no demo made" in ended.only_error()
    assert photo.read_text() == "the sea"


def test_a_folder_in_use_by_another_demo_is_refused(umqtt, tmp_path):
    with (tmp_path / ".umqtt-demo").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = umqtt("demo", "--out", str(tmp_path))
    assert ended.code == 2
    assert "another demo is running" in ended.only_error()


def _java(folder: Path, script: str) -> Path:
    """Return a JAVA_HOME whose java is a shell script."""
    java = folder / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n" + script)
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder / "jdk"


@pytest.mark.parametrize("command", [["demo"], ["ingest", "--spool", "s", "--tables", "t", "--checkpoint", "c"]])
def test_no_java_is_exit_code_6_and_says_how_to_get_it(umqtt, tmp_path, command):
    for env in ({"JAVA_HOME": str(tmp_path / "nowhere")}, {"JAVA_HOME": "", "PATH": str(tmp_path)}):
        ended = umqtt(*command, env=env)
        assert ended.code == 6
        error = ended.only_error()
        assert "Java 17" in error and "openjdk-17-jre-headless" in error


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "Java 11"),
        ("""echo 'java version "1.8.0_292"' >&2""", "Java 8"),
        ("echo 'Unable to locate a Java Runtime.' >&2; exit 1", "no version"),
    ],
)
def test_a_java_too_old_or_a_stub_is_exit_code_6(umqtt, tmp_path, script, named):
    ended = umqtt("demo", env={"JAVA_HOME": str(_java(tmp_path, script))})
    assert ended.code == 6
    assert named in ended.only_error()


def test_boards_alone_without_micropython_are_exit_code_6(umqtt):
    ended = umqtt("demo", "--devices", "0", env={"UMQTT_MICROPYTHON": "no-such-micropython"})
    assert ended.code == 6
    assert "no-such-micropython" in ended.only_error()


# Output by click and by rich, as text and as JSON; output before a command runs.
_PRINTS = [
    ["--help"],
    ["--version"],
    ["certs", "ls", "--help"],
    ["certs", "ls"],
    ["certs", "ls", "--json"],
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with certificates to list."""
    folder = tmp_path_factory.mktemp("authority")
    made = Authority(folder / "certs")
    made.create("fleet")
    made.issue_device("pump-7")
    return folder


@pytest.mark.parametrize("arguments", _PRINTS, ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_nobody_reads_any_more_ends_the_command_without_a_word(arguments, unbuffered, authority):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = _into(writer, arguments, authority, unbuffered)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", _PRINTS, ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_result_that_cannot_be_written_is_one_line_and_exit_code_2(arguments, unbuffered, authority):
    with open("/dev/full", "w") as full:
        ended = _into(full.fileno(), arguments, authority, unbuffered)
    assert ended.returncode == 2
    assert ended.stderr == "umqtt: the output cannot be written: No space left on device — write it elsewhere\n"


def _into(stdout: int, arguments: list[str], folder: Path, unbuffered: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with its results written to this descriptor."""
    command, pipe = umqtt_command(*arguments), subprocess.PIPE
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    options = {"cwd": folder, "env": env, "text": True, "timeout": WAIT_LIMIT_S}
    return subprocess.run(command, stdout=stdout, stderr=pipe, check=False, **options)


def test_what_umqtt_does_not_know_is_its_own_defect_in_one_line(monkeypatch, capsys, tmp_path):
    def fail():
        raise RuntimeError("first\nsecond\x1b")

    # Planted: the file is readable for others; a full disk hides the error itself.
    monkeypatch.setattr("umqtt_kit.device.find_ports", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line = "umqtt: this is a defect of umqtt (RuntimeError: first second\\x1b) — please report it with {}\n"
    assert run(["devices"]) == 70
    (saved,) = tmp_path.iterdir()
    assert capsys.readouterr() == ("", line.format(saved))
    assert 'raise RuntimeError("first' in saved.read_text() and saved.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert run(["devices"]) == 70
    assert capsys.readouterr() == ("", line.format("what UMQTT_TRACEBACK=1 shows"))
    monkeypatch.setenv("UMQTT_TRACEBACK", "1")
    assert run(["devices"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):") and 'raise RuntimeError("first' in error


def test_the_commands_ready_line_is_the_brokers_own(family):
    process = family.start([*_installed("broker"), "-p", "0", "--store", ":memory:"])
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening on 127.0.0.1:")
    # The command has become the broker: one process, which ends cleanly when told to.
    assert len(family.alive()) == 1
    process.terminate()
    process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 0


def _installed(command: str) -> list[str]:
    script = Path(sys.executable).with_name("umqtt")
    return [str(script) if os.access(script, os.X_OK) else "umqtt", command]


def test_a_library_that_aborts_at_the_end_does_not_change_the_exit_code():
    """Planted: a proof that held ended with SIGABRT."""
    program = (
        "import atexit, os, sys; sys.modules['deltalake'] = sys; atexit.register(os.abort); "
        "from umqtt_cli.__main__ import main; sys.argv[1:] = ['--version']; main()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:8]) == (0, "umqtt 0.")

"""Values that cannot work, in the TOML files and the options of the data commands, are one line and exit code 2."""

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from spark_ingest.alerts.config import load as load_alerts
from spark_ingest.collector.config import load as load_collectors
from spark_ingest.decoders.rules import load as load_decoders
from spark_ingest.errors import UsageError
from spark_ingest.location import PathOption, TablesOption
from umqtt_cli.__main__ import run, umqtt

COLLECTOR = '[[collector]]\nname = "n"\nbroker = "mqtt://x"\nspool = "s"\n'
DECODER = '[[decoder]]\ntopic = "a/{device}"\nformat = "json"\n'
PROTOBUF = '[[decoder]]\ntopic = "a/{device}"\nformat = "protobuf"\nmessage = "a.B"\n'
RULE = '[[rule]]\nname = "x"\n'
NUL = r'"a\u0000b"'

LOADERS: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "collectors": (load_collectors, {"spool": COLLECTOR.replace('spool = "s"\n', ""), "keep_alive": COLLECTOR}),
    "decoders": (load_decoders, {"descriptor": PROTOBUF, "time": DECODER}),
    "alerts": (load_alerts, {"groups": "", "above": RULE + 'kind = "threshold"\nmetric = "t"\n', "readings": RULE}),
}
HUGE = {"400 digits": "1" + "0" * 400, "5000 digits": "9" * 5000, "hex": "0x1" + "0" * 4000, "2**63": str(1 << 63)}
VALUES = HUGE | {"text": NUL, "list": f"[{NUL}]", "table": f"{{ k = {NUL} }}", "key": r'{ "a\u0000b" = 1 }'}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", LOADERS)
def test_no_text_with_nul_and_no_number_beyond_64_bits_is_taken_from_a_toml_file(tmp_path, kind, value):
    """Planted: the file system's ValueError for a path with U+0000; an OverflowError, or one for too many digits."""
    load, keys = LOADERS[kind]
    for key, before in keys.items():
        (tmp_path / "a.toml").write_text(f"{before}{key} = {value}\n")
        with pytest.raises(UsageError) as refused:
            load(tmp_path / "a.toml")
        line = str(refused.value)
        assert "a.toml" in line and len(line) < 400 and line.isprintable(), line


def test_a_rule_that_no_double_can_hold_ends_ingest_and_alerts_with_one_line(tmp_path, capsys):
    (tmp_path / "a.toml").write_text(f'{RULE}kind = "threshold"\nmetric = "t"\nabove = {HUGE["400 digits"]}\n')
    places = ["--spool", str(tmp_path), "--tables", str(tmp_path / "t"), "--checkpoint", str(tmp_path / "c")]
    for command in (["alerts", str(tmp_path / "a.toml")], ["ingest", *places, "--alerts", str(tmp_path / "a.toml")]):
        assert run(command) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "'above' is a whole number of more than 64 bits" in err


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Yield every parameter of a command and of its subcommands, with the command line that it belongs to."""
    for parameter in command.params:
        yield path, parameter
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from parameters(one, f"{path} {name}")


def test_no_path_of_a_data_command_may_be_empty():
    """Planted: --tables "$UNSET" means the current folder."""
    context, found = click.Context(umqtt), 0
    for name in ("collect", "spool", "ingest", "alerts", "tables", "report"):
        command = umqtt.get_command(context, name)
        assert command is not None
        for path, parameter in parameters(command, name):
            if isinstance(parameter.type, click.Path | TablesOption):
                found += 1
                assert isinstance(parameter.type, PathOption | TablesOption), (path, parameter.name)
                for wrong in ("", "a\0b"):
                    with pytest.raises(click.BadParameter, match=r"the path is empty|a character that no path has"):
                        parameter.type.convert(wrong, parameter, context)
    assert found > 25


def test_an_empty_path_is_one_line_that_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        ["tables", "ls", "--tables", ""],
        ["ingest", "--spool", "s", "--tables", "", "--checkpoint", "c"],
        ["ingest", "--spool", "s", "--tables", "t", "--checkpoint", ""],
        ["ingest", "--spool", "", "--tables", "t", "--checkpoint", "c"],
        ["collect", "--broker", "mqtt://x", "--spool", ""],
        ["spool", "ls", ""],
        ["report", "--tables", "t", "--out", ""],
    ):
        assert run(command) == 2
        err = capsys.readouterr().err
        assert "the path is empty, as a variable of the shell that is not set" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_umqtt_toml_holds_no_nul_either(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for key in ("ca", "password_file", "fleet", "broker"):
        (tmp_path / "umqtt.toml").write_text(f"{key} = {NUL}\n")
        assert run(["pub", "t", "x"]) == 2
        assert f"{key!a} holds a character that no name has" in capsys.readouterr().err

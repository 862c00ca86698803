"""Every command in a board's README exists with these options, and its settings are accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from umqtt_kit.firmware_settings import settings_module

from umqtt_cli.__main__ import umqtt

pytestmark = pytest.mark.tier(1)

BOARDS = Path(__file__).resolve().parents[2] / "boards"
NAMES = sorted(folder.parent.name for folder in BOARDS.glob("*/board.json"))
REAL = [name for name in NAMES if name != "UNIX"]


def readme(name: str) -> str:
    return (BOARDS / name / "README.md").read_text()


def commands(text: str) -> list[list[str]]:
    """Return the words of each umqtt command in blocks and in the text."""
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`((?:\.venv/bin/)?umqtt [^`]+)`", text.replace("\n", " "))
    words = [shlex.split(line) for line in lines if "umqtt " in line.split("'")[0]]
    return [one[1:] for one in words if one[0] in ("umqtt", ".venv/bin/umqtt")]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_one_with_these_options(name: str):
    found = commands(readme(name))
    assert len(found) >= 6
    parent = click.Context(umqtt)
    for words in found:
        command = umqtt.get_command(parent, words[0])
        assert command is not None, words
        if len(words) > 1:
            # Raises UsageError for an unknown option or an extra argument.
            command.make_parser(click.Context(command, info_name=words[0])).parse_args(words[1:])


@pytest.mark.parametrize("name", REAL)
def test_the_sensors_of_the_wiring_are_accepted_and_have_the_boards_pins(name: str):
    text = readme(name)
    (told,) = (words for words in commands(text) if words[0] == "provision" and "--set" in words)
    key, _, value = told[-1].partition("=")
    sensors = json.loads(value)
    settings_module().check_settings({"brokers": ["mqtt://a"], key: sensors})
    pins = json.loads((BOARDS / name / "board.json").read_text())["pins"]
    wired = {sensor["module"]: sensor for sensor in sensors}
    assert (wired["bme280"]["scl"], wired["bme280"]["sda"]) == (pins["i2c_scl"], pins["i2c_sda"])
    assert (wired["ds18b20"]["pin"], wired["dht22"]["pin"]) == (pins["onewire"], pins["dht"])
    if "vsys" in pins:
        assert f'{{"module": "supply", "pin": {pins["vsys"]}, "factor": 3, "select": 25}}' in text

"""JSON from others: what could not be written again, or is nested too deeply, is an error in it like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cable import Cable
from umqtt_kit.logs.published import entry_of

from umqtt_cli.strict_json import loads

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 200 + "1" + "}" * 200, "nested too deeply"),
        (r'["\ud800"]', "surrogate"),
        (r'{"\udfff": 1}', "surrogate"),
        ("NaN", "a number that JSON does not have"),
        ('{"a": [-Infinity]}', "a number that JSON does not have"),
        ("1e999", "a number that JSON does not have"),
        (b'"\xff"', "no UTF-8"),
        ("{", "line 1"),
    ],
)
def test_what_is_no_json_that_could_be_written_again_is_a_value_error(text: str | bytes, why: str):
    with pytest.raises(ValueError, match=why):
        loads(text)


def test_json_is_read_as_it_is():
    for value in ({"a": [1, 2.5, None, True, "ü", "\U0001f331"]}, [[[]]], "text", 0):
        assert loads(json.dumps(value)) == loads("\ufeff".encode() + json.dumps(value).encode()) == value


def test_a_message_nested_too_deeply_is_shown_as_it_is():
    assert entry_of("fleet/pump-7/log", DEEP.encode()).text == DEEP


@pytest.mark.parametrize("name", ["settings.json", "secrets.json"])
def test_a_file_of_a_board_that_is_no_object_is_named_with_the_way_to_be_rid_of_it(cable: Cable, name: str):
    for content in (b"[]", b"[" * 3000 + b"]" * 3000, b'{"brokers": ["\\ud800"]}', b'{"wifi": {"\xff": ""}}'):
        with cable.board(files={name: content}):
            answer = cable.umqtt("provision", "--show")
            assert (answer.code, answer.stdout, answer.stderr.count("\n")) == (5, "", 1)
            assert f"{name} on the board is not a JSON object — remove it: mpremote connect" in answer.stderr
            checks = {check["name"]: check for check in cable.umqtt("doctor", "--json").json["checks"]}
            assert name in checks["board"]["text"]


def test_a_file_given_for_a_board_may_begin_with_a_byte_order_mark_and_hold_json_only(cable: Cable, tmp_path: Path):
    file = tmp_path / "pump.json"
    with cable.board():
        for content, why in (
            (DEEP.encode(), "it is nested too deeply"),
            (b'{"settings": {"device_id": "\\ud800"}}', "surrogate"),
            (b'{"settings": {"sensors": [NaN]}}', "a number that JSON does not have"),
            (b'{"wifi": [{"ssid": "caf\xe9"}]}', "no UTF-8"),
        ):
            file.write_bytes(content)
            file.chmod(0o600)
            answer = cable.umqtt("provision", "--from", str(file))
            assert (answer.code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
            assert f"{file} is not JSON" in answer.stderr and why in answer.stderr
        file.write_bytes('\ufeff{"settings": {"brokers": ["mqtt://host"]}}'.encode())
        assert cable.umqtt("provision", "--from", str(file)).code == 0
        answer = cable.umqtt("provision", "--set", f"sensors={DEEP[:50_000]}")
        assert (answer.code, answer.stderr.count("\n")) == (2, 1)

"""umqtt logs: every line of every board once, with its name, over resets, pulled cables and busy ports."""

from __future__ import annotations

import contextlib
import json
import random
import re
from datetime import datetime, timedelta
from pathlib import Path

import paho.mqtt.publish as paho
import pytest
from cable import Cable, broker
from live_logs import following
from umqtt_kit.logs.lines import Lines
from umqtt_kit.logs.published import entry_of

from umqtt_cli.__main__ import run

SEED = 31
# It counts even if nobody listens, so that lines missed while the port was closed can be noticed.
COUNTER = b"""
import time
print("boot", __import__("machine").reset_cause())
n = 0
while True:
    n += 1
    print("line", n)
    time.sleep_ms(10)
"""
_NUMBERED = re.compile(r"line (\d+)")


def test_lines_are_the_same_however_the_bytes_were_split():
    print("seed", SEED)
    chance = random.Random(SEED)
    data = "0 info Wi-Fi: joined ü\r\n\n12 warning x\ny\x1b[2J\x00\nTraceback (most recent call last):\n".encode()
    data += b'  File "main.py", line 3\nKeyError: pressure\n\xff\xfe\n>>> '
    shown = [
        ("0 info Wi-Fi: joined ü", "info"), ("", None), ("12 warning x", "warning"), ("y\\x1b[2J\\x00", None),
        ("Traceback (most recent call last):", "error"), ('  File "main.py", line 3', "error"),
        ("KeyError: pressure", "error"), ("\\xff\\xfe", None),
    ]  # fmt: skip
    start = datetime(2026, 1, 1).astimezone()
    for _ in range(200):
        cuts = sorted(chance.sample(range(len(data) + 1), chance.randint(0, 12)))
        lines = Lines("bench")
        found = []
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            found += lines.take(data[begin:end], start)
        assert [(entry.text, entry.level) for entry in found] == shown, cuts
        assert lines.unfinished(start) == []
        # A prompt does not end its line.
        assert [entry.text for entry in lines.unfinished(start + timedelta(seconds=1))] == [">>> "]
        assert lines.unfinished(start + timedelta(seconds=9)) == []


def test_a_line_without_an_end_comes_in_pieces_and_whole():
    lines = Lines("bench")
    now = datetime.now().astimezone()
    found = [entry.text for _ in range(100) for entry in lines.take(b"x" * 999, now)]
    found += [entry.text for entry in lines.unfinished(now, closed=True)]
    assert "".join(found) == "x" * 99_900
    assert max(map(len, found)) <= 4096


def test_two_boards_at_once_each_line_with_its_name_and_none_missing(cable: Cable):
    files = {"main.py": COUNTER}
    with cable.board("cellar", files=files), cable.board("roof", files=files):
        with following("--device", "cellar", "--device", "roof", "--json") as logs:
            logs.until('"cellar", "level": null, "text": "line', times=20)
            logs.until('"roof", "level": null, "text": "line', times=20)
            assert logs.interrupt() == 0
        found = [json.loads(line) for line in logs.out.splitlines()]
    for name in ("cellar", "roof"):
        # A line that is half a second old is shown without its end; the rest comes as a separate line.
        shown = "".join(one.get("text", "") for one in found if one["device"] == name)
        numbers = [int(number) for number in _NUMBERED.findall(shown)]
        # Opening the port may have cut the first one.
        assert numbers[1:] == list(range(numbers[1], numbers[1] + len(numbers) - 1))
        times = [one["time"] for one in found if one["device"] == name]
        assert times == sorted(times)
    assert {one["event"] for one in found if "event" in one} == {"connected"}
    assert logs.err == ""


def test_a_reset_and_a_pulled_cable_are_waited_out(cable: Cable):
    gone = "bench: the board is gone; waiting for it"
    with contextlib.ExitStack() as running:
        with cable.board(files={"main.py": COUNTER}) as board:
            logs = running.enter_context(following("--device", "bench"))
            logs.until("line", times=3)
            board.kill()  # the power fails, not the cable: the port stays
            board.start()
            logs.until("boot 1")
            assert gone not in logs.err
        logs.until(gone)
        before = logs.out.count("bench line")
        with cable.board():
            logs.until("bench: connected", times=2)
            # Its first lines may be over before the port is open again.
            logs.until("bench line", times=before + 3)
            # Reported once, however long it took.
            assert logs.err.count(gone) == 1
            assert logs.interrupt() == 0


def test_a_port_that_another_command_uses_is_refused_first_and_waited_for_later(cable: Cable, capsys):
    with cable.board(files={"main.py": COUNTER}), following("--device", "bench") as logs:
        logs.until("line")
        assert run(["logs", "--device", "bench", "--timeout", "1"]) == 3
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and f"umqtt logs (pid {logs.process.pid})" in error


@pytest.mark.parametrize(("arguments", "code", "named"), [
    ([], 3, "no board is connected — plug one in, or start a virtual one: umqtt board"),
    (["--device", "/dev/ttyNONE"], 3, "/dev/ttyNONE"),
    (["--count", "0"], 2, "--count"),
    (["--from-broker", "--broker", "mqtt://127.0.0.1:1"], 4, "nothing listens there"),
    (["--from-broker", "--broker", "http://x"], 2, "http://x"),
])  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_exit_code(cable: Cable, arguments, code, named):
    answer = cable.umqtt("logs", *arguments)
    assert (answer.code, answer.stdout) == (code, "")
    assert answer.stderr.count("\n") == 1 and named in answer.stderr and "—" in answer.stderr


def test_count_and_timeout_end_it_and_a_pipe_gets_no_colours(cable: Cable):
    with cable.board(files={"main.py": COUNTER}):
        answer = cable.umqtt("logs", "--count", "3", "--timeout", "60")
        assert answer.code == 0, answer.stderr
        assert answer.stdout.count("\n") == 3
        assert all(re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} bench .*", line) for line in answer.stdout.splitlines())
        assert "\x1b" not in answer.stdout
    with cable.board("silent"):
        answer = cable.umqtt("logs", "--count", "3", "--timeout", "0.4", "--device", "silent")
        assert answer.code == 5 and "of 3 lines within 0.4 s" in answer.stderr


def test_the_user_of_no_broker_is_not_asked_for_its_password(cable: Cable, monkeypatch):
    monkeypatch.setenv("UMQTT_USERNAME", "me")
    with cable.board():
        assert cable.umqtt("logs", "--timeout", "0.2").code == 0


def test_what_devices_publish_is_shown_from_the_broker(tmp_path: Path, capsys):
    crash = {"level": "error", "text": "KeyError: pressure", "boot": "7-aa",
             "crash": {"n": 1, "traceback": "Traceback\n  File \"x\"\nKeyError: pressure\n"}}  # fmt: skip
    status = {"online": True, "reason": "boot", "fw": "0.1.0", "boot": "7-aa"}
    with broker(tmp_path) as port:
        paho.single("fleet/pump-7/status", json.dumps(status), 1, True, port=port)
        with following("--from-broker", "--broker", f"mqtt://127.0.0.1:{port}") as logs:
            logs.until("pump-7 online: boot, 0.1.0, boot 7-aa")
            paho.multiple([("fleet/pump-7/log", json.dumps(crash), 1, False), ("fleet/a/log", b"\xff\n", 1, False)],
                          port=port)  # fmt: skip
            logs.until("\n")
            logs.until(r"a      \\xff\\n")
            assert logs.interrupt() == 0
    assert "pump-7 error: KeyError: pressure" in logs.out and '  File "x"' in logs.out
    entry = entry_of("fleet/pump-7/log", json.dumps(crash).encode()).as_dict()
    assert (entry["device"], entry["level"], entry["text"]) == ("pump-7", "error", "KeyError: pressure")
    assert entry["crash"]["n"] == 1

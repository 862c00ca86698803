"""`umqtt alerts` checks and shows a file, and tries its destinations, before a pipeline depends on it."""

import json

import pytest
from alert_webhook import webhook

from spark_ingest.alerts.rules import duration_text, duration_us
from umqtt_cli.__main__ import run

RULES = """
groups = "groups.csv"
[[rule]]
name = "gap"
off = true
[[rule]]
name = "too warm"
kind = "threshold"
metric = "temp_c"
above = 60
after = "90s"
groups = ["pumps"]
[[silence]]
from = 2026-05-01T08:00:00Z
until = 2226-05-01T08:00:00Z
sites = ["north"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "groups.csv").write_text("device,group,site\npump-7,pumps,north\n")
    return tmp_path


def send_to(name: str, port: int) -> str:
    return f'[[send]]\nname = "{name}"\nurl = "json://user:secret-horse@127.0.0.1:{port}/"\nformat = "json"\n'


def test_it_shows_the_rules_with_the_defaults_that_are_left(folder, capsys):
    (folder / "alerts.toml").write_text(RULES)
    assert run(["alerts", "alerts.toml"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): " ".join(line.split()) for line in shown.splitlines()}
    assert lines["too warm"] == "too warm threshold metric temp_c; above 60.0; after 90s groups pumps"
    assert lines["offline"] == "offline offline after 15m all devices"
    assert "gap" not in lines
    assert lines["2026-05-01T08:00:00+00:00"].endswith("2226-05-01T08:00:00+00:00 all rules sites north yes")


def test_as_json_it_says_the_same(folder, capsys):
    (folder / "alerts.toml").write_text(RULES)
    assert run(["alerts", "alerts.toml", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (warm,) = [rule for rule in said["rules"] if rule["name"] == "too warm"]
    assert warm["values"] == {"metric": "temp_c", "above": 60.0, "after": "90s"}
    assert warm["about"] == {"groups": ["pumps"]} and said["silences"][0]["now"] is True


@pytest.mark.parametrize("text", ["[[rule]]\nname = 'x'\nkind = 'nothing'", "[[rules]]\n", "=", None])
def test_a_file_that_cannot_work_is_one_line_and_exit_code_2(folder, capsys, text):
    if text is not None:
        (folder / "alerts.toml").write_text(text)
    assert run(["alerts", "alerts.toml"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1 and "alerts.toml" in error


def test_each_destination_is_sent_a_test_and_who_does_not_take_it_is_named(folder, capsys):
    """Planted: the first failure ends the command; the line contains the URL."""
    got: list[dict] = []
    with webhook(lambda body: got.extend(json.loads(json.loads(body)["message"])["alerts"])) as port:
        (folder / "alerts.toml").write_text(send_to("wrong", 1) + send_to("right", port))
        assert run(["alerts", "alerts.toml", "--send"]) == 4
    out, error = capsys.readouterr()
    assert "secret-horse" not in out + error
    assert "right: took the test message" in error and "no test message reached wrong " in error
    (one,) = got
    assert one["state"] == "test" and one["since"] is None


def test_without_destinations_sending_says_so(folder, capsys):
    (folder / "alerts.toml").write_text(RULES)
    assert run(["alerts", "alerts.toml", "--send"]) == 0
    assert "no [[send]]" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0s", "0.5s", "1.000001s", "90s", "2m", "1h", "23h", "7d", "3650d"])
def test_a_time_is_shown_as_it_is_read(text):
    """Planted: the smallest unit; a remainder cut off."""
    assert duration_text(duration_us(text)) == text

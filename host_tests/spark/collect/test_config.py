"""Laws of a collector's settings: what cannot work gives a one-line error at start, and secrets stay secret."""

import os
import stat
from pathlib import Path

import pytest

from spark_ingest.collector.access import Access, parse_broker, parse_nodes
from spark_ingest.collector.command import main
from spark_ingest.collector.config import DEFAULT_TOPIC_FILTERS, CollectorConfig, load
from spark_ingest.errors import UsageError
from umqtt_cli.numbers import parse_bytes

FILE = """
spool = "spool"
max_spool_bytes = "20M"
keep_alive = 30

[[collector]]
name = "north"
broker = "mqtt://north.example:1884"
topics = ["plant/+/telemetry"]
username = "collector"
password_file = "$SECRETS/north"
keep_alive = 10

[[collector]]
name = "south"
broker = "mqtt://south.example"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "collect.toml"
    path.write_text(text)
    return path


def test_the_head_of_the_file_is_for_all_and_a_collector_overrides_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRETS", "secrets")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "north").write_text("hunter2\nnot this\n")
    north, south = load(written(tmp_path, FILE), shared={"group_ms": 2.0, "max_spool_bytes": 1 << 30})
    assert (north.name, north.broker, north.topic_filters) == (
        "north",
        "mqtt://north.example:1884",
        ("plant/+/telemetry",),
    )
    assert south.topic_filters == DEFAULT_TOPIC_FILTERS == ("fleet/+/telemetry", "fleet/+/status", "fleet/+/log")
    assert (north.keep_alive, south.keep_alive) == (10, 30)
    assert north.spool == south.spool == tmp_path / "spool", "relative to the file"
    assert south.max_spool_bytes == 1 << 30 and south.group_ms == 2.0, "the command line overrides the head"
    assert north.access.password() == b"hunter2"
    assert "hunter2" not in repr(north)
    assert north.client_id == "umqtt-collector-north"
    assert load(written(tmp_path, FILE), spool=Path("/elsewhere"))[0].folder == Path("/elsewhere/north")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("[[collector]]", "[[colector]]"), "has no [[collector]]"),
        (('name = "south"', 'name = "north"'), "two collectors are called north"),
        (('name = "south"', ""), "there is no name"),
        (('broker = "mqtt://south.example"', ""), "collector south: there is no broker"),
        (("keep_alive = 30", "keep_alife = 30"), "there is no key keep_alife"),
        (("keep_alive = 30", "keep_alive = true"), "keep_alive = True must be a whole number"),
        (("keep_alive = 30", "keep_alive = 99999"), "0..65535"),
        (('"20M"', '"much"'), "no number of bytes"),
        (('"20M"', '"1K"'), "--max-spool-bytes"),
        (('["plant/+/telemetry"]', '["#"]'), "selects every topic"),
        (('["plant/+/telemetry"]', "[]"), "no topic filter"),
        (('["plant/+/telemetry"]', '"plant"'), "must be a list"),
        (("spool =", "spool ="), "cannot read the password file"),
        (("spool =", "spool"), "is not TOML"),
        (('"spool"', "5"), "collector north: spool = 5 must be text, in quotes"),
        (('"spool"', '["spool"]'), "must be text, in quotes"),
        (('"spool"', r'"a\u0000b"'), "a character that no name has"),
        (('"20M"', "1.5"), "max_spool_bytes = 1.5 must be a number of bytes"),
        (('"20M"', "true"), "must be a number of bytes"),
        (('"20M"', "-5"), "collector north: max_spool_bytes: -5 is no number of bytes"),
        (('name = "south"', "name = 5"), "name = 5 must be text"),
        (("south.example", "south..example"), "is not a broker's address"),
    ],
)
def test_what_cannot_work_in_the_file_is_one_line_that_names_it(tmp_path, monkeypatch, capsys, change, line):
    """Planted: a value "of the wrong type", without the right one."""
    monkeypatch.setenv("SECRETS", "nowhere")
    path = written(tmp_path, FILE.replace(*change))
    if "password" not in line:
        path.write_text(
            path.read_text().replace('password_file = "$SECRETS/north"', "").replace('username = "collector"', "")
        )
    assert main(["--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err


@pytest.mark.parametrize(
    "topic_filter", ["", "#/a", "a/#/b", "a+/b", "a/b#", "a\0b", "#", "+/#", "+/+/#", "$share/g/#", "x" * 65536]
)
def test_a_filter_that_is_none_or_selects_everything_is_refused(tmp_path, topic_filter):
    config = CollectorConfig("mqtt://x", tmp_path, "north", (topic_filter,))
    with pytest.raises(UsageError, match="--topic"):
        config.check()


def test_everything_is_collected_only_when_it_is_said(tmp_path):
    CollectorConfig("mqtt://x", tmp_path, "north", ("#",), everything=True).check()
    for topic_filter in ("fleet/#", "+/telemetry", "fleet/+/log", "$share/g/fleet/#", "/", "a//b"):
        CollectorConfig("mqtt://x", tmp_path, "north", (topic_filter,)).check()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--broker is missing"),
        (["--broker", "mqtt://x"], "--spool is missing"),
        (["--broker", "mqtt://x", "--spool", ".", "--topic", "#"], "add --everything"),
        (["--broker", "mqtt://x", "--spool", ".", "--ca", "ca.pem"], "use mqtts://"),
        (["--broker", "mqtts://x", "--spool", ".", "--ca", "none.pem"], "cannot use the CA file none.pem"),
        (["--broker", "mqtts://x", "--spool", ".", "--cert", "c.pem"], "give cert and key"),
        (["--broker", "mqtts://x", "--spool", ".", "--cert", "c.pem", "--key", "k"], "cannot use the certificate"),
        (["--broker", "mqtt://x", "--spool", ".", "--username", "u"], "set UMQTT_PASSWORD"),
        (["--broker", "mqtt://x", "--spool", ".", "--username", "u", "--password-file", "none"], "password file none"),
        (["--broker", "mqtt://x", "--spool", ".", "--password-file", "none"], "needs a user name"),
        (["--broker", "mqtt://u:secret@x", "--spool", "."], "must not hold credentials"),
        (["--broker", "mqtt://x", "--spool", ".", "--max-spool-bytes", "lots"], "no number of bytes"),
        (["--broker", "mqtt://x", "--spool", ".", "--metrics", "host"], "is not HOST:PORT"),
        (["--config", "c.toml", "--broker", "mqtt://x"], "--broker: say that in the file"),
        (["--config", "c.toml"], "cannot read c.toml"),
        (["--broker", "mqtt://x", "--broker", "mqtt://y", "--spool", "."], "give --name for each --broker"),
        (["--broker", "mqtt://x", "--name", "a", "--name", "b", "--spool", "."], "give --name for each --broker"),
        (["--broker=mqtt://x", "--broker=mqtt://y", "--name=a", "--name=a", "--spool=."], "a --name is given twice"),
        (["--broker=mqtt://x", "--broker=mqtt://x", "--name=a", "--name=b", "--spool=."], "a --broker is given twice"),
        (["--broker", "mqtt://x,mqtts://y", "--spool", "."], "mixes mqtt and mqtts"),
        (["--broker", "mqtt://x,mqtt://x:1883", "--spool", "."], "names a node twice"),
        (["--broker", "mqtt://x,", "--spool", "."], "is not a broker's address"),
        (["--broker", "mqtt://x,mqtt://u:secret@y", "--spool", "."], "must not hold credentials"),
        (["--broker", "mqtt://a..b", "--spool", "."], "is not a broker's address"),
        (["--broker", f"mqtt://{'a' * 70}", "--spool", "."], "is not a broker's address"),
        (["--broker", "mqtt://x", "--spool", ".", "--metrics", "a..b:1"], "is not HOST:PORT"),
        (["--broker", "mqtt://x", "--spool", ".", "--topic", "\udcff"], "is not a topic filter"),
        (["--broker", "mqtt://x", "--spool", ".", "--username", "\udcff"], "user name"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UMQTT_PASSWORD", raising=False)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err and "secret" not in err


def test_the_password_comes_from_a_file_or_the_environment_and_is_read_anew_each_time(tmp_path, monkeypatch):
    file = tmp_path / "password"
    file.write_bytes(b"first\r\n")
    file.chmod(stat.S_IRUSR)
    access = Access("mqtt://x", "u", file)
    assert access.password() == b"first"
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    file.write_bytes("zweites Wort ü".encode())
    assert access.password() == "zweites Wort ü".encode()
    monkeypatch.setitem(os.environ, "UMQTT_PASSWORD", "third")
    assert Access("mqtt://x", "u").password() == b"third"
    assert Access("mqtt://x").password() is None
    file.write_bytes(b"x" * 65536)
    with pytest.raises(UsageError, match="longer than the 65535 bytes"):
        access.password()


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("mqtt://host", ("mqtt", "host", 1883)),
        ("mqtts://host", ("mqtts", "host", 8883)),
        ("mqtt://[::1]:1", ("mqtt", "::1", 1)),
        ("mqtts://10.0.0.1:443/", ("mqtts", "10.0.0.1", 443)),
    ],
)
def test_addresses_of_brokers(url, parsed):
    assert parse_broker(url) == parsed
    scheme, *node = parsed
    assert parse_nodes(f"{url}, {scheme}://other:7") == (scheme, [tuple(node), ("other", 7)])


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1024", 1024), ("1K", 1024), ("20g", 20 << 30), ("5 MiB", 5 << 20)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


def test_a_small_spool_consists_of_several_segments(tmp_path):
    assert CollectorConfig("mqtt://x", tmp_path, "n").segment_limit == 32 << 20
    assert CollectorConfig("mqtt://x", tmp_path, "n", max_spool_bytes=1 << 20).segment_limit == 1 << 17
    assert CollectorConfig("mqtt://x", tmp_path, "n", max_spool_bytes=1 << 40).segment_limit == 32 << 20

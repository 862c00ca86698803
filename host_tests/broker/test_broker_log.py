"""The log: kinds of messages, text and JSON, and lines that nobody can forge."""

import json
import logging
import re
import time
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_broker import ConfigError, log
from umqtt_broker.log import LogConfig

pytestmark = pytest.mark.tier(0)

KINDS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "notice": log.NOTICE,
    "subscribe": log.SUBSCRIBE,
    "unsubscribe": log.UNSUBSCRIBE,
    "information": logging.INFO,
    "debug": logging.DEBUG,
}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore what a test changes for the whole process."""
    loggers = [logging.getLogger(name) for name in (log.ROOT, f"{log.ROOT}.clients", f"{log.ROOT}.subscriptions")]
    before = [(one.level, one.handlers, one.propagate) for one in loggers]
    yield
    for one, (level, handlers, propagate) in zip(loggers, before, strict=True):
        one.setLevel(level)
        one.handlers, one.propagate = handlers, propagate


def logged(tmp_path: Path, *types: str, **settings: object) -> list[str]:
    """Log a message of each kind, and each message about a client; return the lines."""
    path = tmp_path / "log"
    log.start(LogConfig((("file", str(path)),), types, **settings))
    for kind, level in KINDS.items():
        logging.getLogger(f"{log.ROOT}.test").log(level, "a message: %s", kind)
    log.log_connect(b"pump-7", "10.0.0.7", b"ada", clean_session=True, keep_alive=60)
    log.RefusalLog().refused(0.0, "10.0.0.8", "return code 5, it is not allowed", b"thief")
    log.log_disconnect(b"pump-7", "keep-alive")
    log.log_subscribe(b"pump-7", b"a/#", 1)
    log.log_subscribe(b"pump-7", b"secret", 0x80)
    log.log_unsubscribe(b"pump-7", b"a/#")
    lines = path.read_text().splitlines()
    path.unlink()
    return lines


CLIENTS = [
    "notice: client pump-7 connected from 10.0.0.7 as ada (clean_session 1, keep_alive 60)",
    "notice: client thief from 10.0.0.8 refused: return code 5, it is not allowed",
    "notice: client pump-7 disconnected: keep-alive",
]
SUBSCRIPTIONS = ["subscribe: pump-7 a/# (QoS 1)", "subscribe: pump-7 secret (denied)"]
UNSUBSCRIPTIONS = ["unsubscribe: pump-7 a/#"]


def message(kind: str) -> str:
    return f"{'info' if kind == 'information' else kind}: a message: {kind}"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_logged_alone(tmp_path: Path, kind: str) -> None:
    of_clients = {"notice": CLIENTS, "subscribe": SUBSCRIPTIONS, "unsubscribe": UNSUBSCRIPTIONS}
    assert logged(tmp_path, kind, timestamp=False) == [message(kind), *of_clients.get(kind, [])]


def test_without_a_type_it_is_mosquittos_default_and_all_is_all(tmp_path: Path) -> None:
    default = [message(kind) for kind in ("error", "warning", "notice", "information")]
    assert logged(tmp_path, timestamp=False) == [*default, *CLIENTS]
    everything = [*(message(kind) for kind in KINDS), *CLIENTS, *SUBSCRIPTIONS, *UNSUBSCRIPTIONS]
    assert logged(tmp_path, "all", timestamp=False) == everything
    assert logged(tmp_path, "error", "none", timestamp=False) == []
    assert logged(tmp_path, "none", "error", timestamp=False) == [message("error")]


def test_connection_messages_can_be_left_out(tmp_path: Path) -> None:
    lines = logged(tmp_path, "all", timestamp=False, connection_messages=False)
    assert message("notice") in lines and not set(lines) & set(CLIENTS)


@pytest.mark.parametrize(
    ("given", "pattern"), [("", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} "), ("%H:%M", r"\d\d:\d\d ")]
)
def test_a_line_begins_with_the_time(tmp_path: Path, given: str, pattern: str) -> None:
    for line in logged(tmp_path, timestamp_format=given):
        assert re.match(pattern, line), line


def test_json_is_an_object_a_line_with_the_facts_in_fields(tmp_path: Path) -> None:
    objects = [json.loads(line) for line in logged(tmp_path, "all", format="json")]
    assert {"error", "notice", "subscribe"} <= {one["level"] for one in objects}
    connected = next(one for one in objects if "connected from" in one["message"])
    assert (connected["client_id"], connected["address"], connected["username"]) == ("pump-7", "10.0.0.7", "ada")
    assert any(one.get("topic_filter") == "a/#" for one in objects)


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_client_can_forge_a_line_or_steer_a_terminal(tmp_path: Path, format: str) -> None:
    path = tmp_path / "log"
    log.start(LogConfig((("file", str(path)),), format=format, timestamp=False))
    for name in (b"a\nnotice: forged", b"a\r\nb", b"\x1b[2J", b"\xff\xfe", "\u2028".encode(), b"\x00"):
        log.log_connect(name, "10.0.0.7", None, clean_session=True, keep_alive=0)
    content = path.read_bytes()
    # Python and JavaScript also end a line at U+2028.
    assert content.count(b"\n") == 6 and len(content.decode().splitlines()) == 6
    assert b"\x1b" not in content and b"\x00" not in content and b"\r" not in content


@pytest.mark.tier(3)
def test_a_message_that_nobody_wants_costs_less_than_a_microsecond() -> None:
    log.start(LogConfig((("none", ""),), ("error",)))

    def log_many() -> None:
        for _ in range(1000):
            log.log_subscribe(b"pump-7", b"a/#", 1)

    # The best of many, in the thread's own CPU time: other programs may run on this machine.
    assert min(timeit.repeat(log_many, time.thread_time, number=1, repeat=50)) / 1000 < 3e-6


def test_a_log_that_cannot_be_opened_is_an_error_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.start(LogConfig((("file", str(path)),), timestamp=False))
    with pytest.raises(ConfigError, match=r"^log_dest file /nowhere/log cannot be opened"):
        log.start(LogConfig((("stderr", ""), ("file", "/nowhere/log"))))
    logging.getLogger(log.ROOT).error("still here")
    assert path.read_text() == "error: still here\n"


def test_an_exception_is_logged_with_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.start(LogConfig((("file", str(path)),), timestamp=False))
    try:
        (tmp_path / "missing").read_text()
    except OSError:
        logging.getLogger(log.ROOT).exception("failed")
    assert "Traceback" in path.read_text() and "FileNotFoundError" in path.read_text()

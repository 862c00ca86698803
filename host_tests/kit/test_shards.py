"""Commands over several brokers that share a fleet: each has its own devices, and the user need not say which."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import paho.mqtt.publish as paho
import pytest
from cable import broker
from umqtt_kit.commands import brokers
from umqtt_kit.device_commands import known_devices
from umqtt_kit.links import Links
from umqtt_kit.mqtt import Link, make_access
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(1)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with ExitStack() as running:
        ports = [running.enter_context(broker(tmp_path_factory.mktemp(f"s{number}"))) for number in range(4)]
        yield [f"mqtt://127.0.0.1:{port}" for port in ports]


@pytest.fixture
def shards(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide the brokers' addresses, which the commands know."""
    monkeypatch.setenv("UMQTT_BROKER", " ".join(urls))
    return urls


@contextmanager
def device(url: str, device_id: str) -> Iterator[None]:
    """Run a device that answers each command with its text."""
    over = threading.Event()
    ready = threading.Event()

    def answer(topic: str, payload: bytes, *_: object) -> None:
        del topic
        reply = {"id": json.loads(payload)["id"], "ok": True, "result": url}
        link.publish(f"fleet/{device_id}/reply", json.dumps(reply).encode(), 1)

    def serve() -> None:
        with link:
            link.subscribe(f"fleet/{device_id}/cmd")
            link.publish(f"fleet/{device_id}/status", b'{"online": true}', 1, True)
            link.wait_for(lambda: not link.pending, WAIT_LIMIT_S)
            ready.set()
            link.wait_for(over.is_set, None)

    link = Link(make_access([url]), on_message=answer)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert ready.wait(WAIT_LIMIT_S)
        yield
    finally:
        over.set()
        thread.join(WAIT_LIMIT_S)


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_command_finds_its_device_at_whichever_broker(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    # Planted: the command goes only to the first broker.
    with ExitStack() as devices:
        for number, url in enumerate(shards):
            devices.enter_context(device(url, f"pump-{number}"))
        for number, url in enumerate(shards):
            assert run(["cmd", f"pump-{number}", "ping"]) == 0
            assert capsys.readouterr().out == f"{url}\n"
        assert known_devices(make_access(shards)) == ["pump-0", "pump-1", "pump-2", "pump-3"]


def test_what_comes_from_any_of_them_is_read(shards: list[str]) -> None:
    # Planted: only the first link is driven.
    came: list[bytes] = []
    with Links(make_access(shards), on_message=lambda topic, payload, *_: came.append(payload)) as links:
        links.subscribe("test/live")
        for url in shards:
            paho.single("test/live", url, 1, port=port_of(url))
        assert links.wait_for(lambda: len(came) == len(shards), WAIT_LIMIT_S)
    assert sorted(came) == sorted(url.encode() for url in shards)


def test_what_any_of_them_has_is_printed(shards: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for url in shards:
        paho.single("test/kept", url, 1, retain=True, port=port_of(url))
    assert run(["sub", "test/kept", "--count", "4", "--timeout", str(WAIT_LIMIT_S)]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"test/kept {url}" for url in shards)


def test_the_state_of_each_is_a_row_of_one_table(
    shards: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted: only the first broker is asked; one that is away ends the command; what is not a number is shown.
    monkeypatch.setattr(brokers, "_FIGURES_WITHIN_S", WAIT_LIMIT_S)
    assert run(["brokers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [[url, "up"] for url in shards]
    assert all(len(line.split()) == 2 + len(brokers._FIGURES) for line in lines[1:]), lines
    away = f"mqtt://127.0.0.1:{reserved_port()}"
    monkeypatch.setenv("UMQTT_BROKER", " ".join([away, *shards]))
    assert run(["brokers", "--json"]) == 4
    first, *others = json.loads(capsys.readouterr().out)["brokers"]
    assert (first["broker"], first["up"]) == (away, False) and "nothing listens there" in first["problem"]
    assert [row["broker"] for row in others] == shards
    for row in others:
        assert row.pop("up") and row.pop("problem") is None
        assert all(isinstance(row[title], int | float) for title in row.keys() - {"broker"}), row


def test_one_that_is_away_is_named_and_holds_up_no_other(
    shards: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"mqtt://127.0.0.1:{reserved_port()}"
    monkeypatch.setenv("UMQTT_BROKER", " ".join([away, *shards]))
    assert run(["pub", "test/away", "x", "-q", "1", "--retain"]) == 0
    errors = capsys.readouterr().err
    assert errors.startswith(f"{away}: nothing listens there") and errors.endswith("going on without it\n")
    assert errors.count("\n") == 1
    monkeypatch.setenv("UMQTT_BROKER", f"{away} mqtt://127.0.0.1:{reserved_port()}")
    assert run(["pub", "test/away", "x"]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_a_device_whose_broker_may_be_away_is_not_called_unknown(
    shards: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Planted: all brokers are said to know no such device, also one that could not be asked.
    away = f"mqtt://127.0.0.1:{reserved_port()}"
    monkeypatch.setenv("UMQTT_BROKER", " ".join([away, *shards]))
    assert run(["cmd", "pump-away", "ping", "--timeout", "0.2"]) == 4
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"its broker may be {away}, which could not be reached" in last
    assert not any(url in last for url in shards)


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        (["mqtt://one.example", "mqtt://one.example"], "names one broker twice"),
        (["mqtt://one.example", "mqtt://name:word@two.example"], "no user name and no password"),
        (["mqtt://one.example", "http://two.example"], "http://two.example is no broker's address"),
    ],
)
def test_a_list_with_a_mistake_is_one_line(brokers: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [part for one in brokers for part in ("--broker", one)]
    assert run(["sub", "#", *arguments]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1 and "word@" not in errors

"""umqtt outbox and doctor show, export, send on and drop what a board has set aside, while its firmware runs."""

from __future__ import annotations

import base64
import contextlib
import json
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from cable import Cable, broker, deployed
from umqtt_kit.commands.cmd import outbox_args
from umqtt_kit.device import Board, Manner
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import eventually

_SIZE = 1000
_PUBLISH = f"for number in range(2): board.client.publish('bad/topic', bytes((65 + number,)) * {_SIZE}, 1)"


@contextlib.contextmanager
def picky(port: int) -> Iterator[tuple[int, threading.Event]]:
    """Relay to a broker, but end each link at a message on bad/…; yield the port, and an event that lets them pass."""
    takes_all = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                ends = {self.request: upstream, upstream: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data or (end is self.request and b"bad/" in data and not takes_all.is_set()):
                            return
                        ends[end].sendall(data)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A board that is switched off resets its link."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1], takes_all
        finally:
            server.shutdown()
            thread.join()


def _aside(cable: Cable) -> list[list]:
    answer = cable.umqtt("outbox", "--json")
    assert answer.code == 0, answer.stderr
    return answer.json["aside"]


@contextlib.contextmanager
def with_two_aside(cable: Cable, folder: Path) -> Iterator[tuple[VirtualBoard, threading.Event]]:
    """Run a board whose broker did not take two messages."""
    with broker(folder) as port, picky(port) as (front, takes_all):
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{front}"], "interval_ms": 200}
        files = {"settings.json": json.dumps(settings).encode(), "secrets.json": b"{}"}
        with cable.board(files={**deployed(), **files}) as board:
            board.wait_for("boot 1")
            with Board(board.port, manner=Manner.BESIDE) as beside:
                beside.exec(_PUBLISH)
            eventually(lambda: len(_aside(cable)) == 2)
            yield board, takes_all


def test_what_was_set_aside_is_shown_exported_sent_on_and_dropped(cable: Cable, tmp_path: Path):
    """Planted: the export ends after 768 bytes of a payload; doctor looks at the link alone."""
    with with_two_aside(cable, tmp_path) as (board, takes_all):
        first, second = _aside(cable)
        assert first[1:] == second[1:] == ["bad/topic", _SIZE]
        assert "2 are set aside" in cable.umqtt("outbox").stdout
        board.wait_for("error set aside 1 messages, at which the broker ends the link, on bad/topic")
        checks = {check["name"]: check for check in cable.umqtt("doctor", "--json").json["checks"]}
        assert (checks["outbox"]["state"], "2 messages are set aside" in checks["outbox"]["text"]) == ("warn", True)
        assert "bad/topic" in checks["outbox"]["text"]
        file = tmp_path / "aside.jsonl"
        assert cable.umqtt("outbox", "--export", str(file)).code == 0
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [base64.b64decode(line["payload"]) for line in lines] == [b"A" * _SIZE, b"B" * _SIZE]
        assert "exists" in cable.umqtt("outbox", "--export", str(file)).stderr
        refused = cable.umqtt("outbox", "--drop", "65535")
        assert (refused.code, "no message 65535 was set aside" in refused.stderr) == (5, True)
        assert cable.umqtt("outbox", "--drop", str(first[0]), "--json").json["done"]["drop"] == [first[0]]
        # Before the broker takes it: the client tries a message once more by itself, which would then pass.
        # While it does, none is set aside.
        send_on = ("outbox", "--send-on", "all", "--json")
        assert eventually(lambda: cable.umqtt(*send_on).json["done"]["send_on"]) == [second[0]]
        takes_all.set()
        eventually(lambda: not _aside(cable))


@pytest.mark.parametrize(
    "wrong", [("--send-on", "0"), ("--drop", "x"), ("--drop", "70000"), ("--drop", "1", "--send-on", "1")]
)
def test_wrong_ids_are_refused_before_a_board_is_asked(cable: Cable, wrong: tuple[str, ...]):
    assert cable.umqtt("outbox", *wrong).code == 2


@pytest.mark.parametrize("given", [("drop", None), ("look", "1"), ("export", "all"), ("send_on", "x")])
def test_the_command_over_the_air_refuses_what_it_does_not_know(given: tuple[str, str | None]):
    with pytest.raises(click.UsageError, match="outbox"):
        outbox_args(*given)
    assert outbox_args("send_on", "all") == {"send_on": "all"}
    assert outbox_args("export", "17") == {"export": 17}

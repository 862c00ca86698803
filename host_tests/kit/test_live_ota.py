"""umqtt ota over TLS, with an authority of `umqtt certs`: to the broker, and from a web server."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cable import Cable
from guarded_broker import PASSWORD, guarded_broker
from impatient import builds_impatient
from kit_command import umqtt_here
from owner import own
from release_web import https, serving
from umqtt_kit.deploy.build import build
from umqtt_kit.device_commands import NoReply, new_id
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import build_release
from umqtt_kit.ota.updater import Updater
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.waiting import WAIT_LIMIT_S

_ID = "pump-7"


@pytest.fixture(scope="module", autouse=True)
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from builds_impatient(tmp_path_factory.mktemp("firmware"), "0.1.0")


def _guarded(url: str, ca: Path, owned: dict[str, dict[str, str]]) -> dict[str, bytes]:
    """Return the files of a board that trusts this authority and has that broker's user."""
    settings = {"device_id": _ID, "brokers": [url], "interval_ms": 100, "board": "UNIX"}
    secrets = {"mqtt": {"username": "me", "password": PASSWORD}, "tls": {"ca": "/ca.pem"}, **owned}
    return {
        **build("UNIX", {"tls"}).files,
        "/settings.json": json.dumps(settings).encode(),
        "/secrets.json": json.dumps(secrets).encode(),
        "/ca.pem": ca.read_bytes(),
    }


def _is_on(access: Access) -> None:
    # A command that comes before the board's very first subscription reaches nobody: it is sent again.
    with Updater(access, _ID) as updater:
        for _ in range(60):
            with contextlib.suppress(NoReply):
                assert updater.result("ping", {}, 2)["slot"] == "base"
                return
    raise AssertionError("the board did not come to its broker")


def test_an_update_comes_over_https_from_a_server_that_the_boards_authority_has_signed(
    cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UMQTT_PASSWORD", PASSWORD)
    with guarded_broker(tmp_path) as (url, ca), cable.board(heap="1M") as virtual:
        _restart_with(virtual, _guarded(url, ca, own(_ID, tmp_path, monkeypatch)))
        access = Access((url,), "me", PASSWORD, ca.read_bytes())
        _is_on(access)
        certs = tmp_path / "certs" / "broker"
        with serving(build_release({"tls"}), https(certs / "cert.pem", certs / "key.pem")) as folder:
            answer = cable.umqtt(
                "ota", _ID, "--url", folder, "--broker", url, "--username", "me", "--ca", str(ca), "--json"
            )
        assert answer.code == 0, answer.stderr
        assert answer.json["slot"] == "a"
        assert PASSWORD not in answer.stdout + answer.stderr
        _a_stranger_is_sent_nothing(access, tmp_path)


def _restart_with(virtual: VirtualBoard, files: dict[str, bytes]) -> None:
    virtual.stop()
    virtual.install(dict(files))
    virtual.start()


def _a_stranger_is_sent_nothing(access: Access, folder: Path) -> None:
    # Signed by somebody else: the board does not even ask for it, and continues.
    other = folder / "other"
    other.mkdir()
    for words in (("ca",), ("broker", "127.0.0.1")):
        done = umqtt_here(other, "certs", *words)
        assert done.code == 0, done.stderr
    refused = threading.Semaphore(0)
    release = build_release({"tls"}, "6.6.6")
    tls: Any = _Context(other / "certs/broker/cert.pem", other / "certs/broker/key.pem", refused)
    with Updater(access, _ID) as updater, serving(release, tls) as url:
        before = updater.result("ping", {}, WAIT_LIMIT_S)
        updater.send("update", {"url": url, "sha256": release.manifest, "version": "6.6.6"}, new_id())
        # The board shakes hands, and nothing more.
        assert refused.acquire(timeout=WAIT_LIMIT_S)
        after = updater.result("ping", {}, WAIT_LIMIT_S)
        assert (after["slot"], after["boot"]) == ("a", before["boot"])


class _Context:
    """Replaces ssl.SSLContext in the server and records every failed handshake."""

    def __init__(self, cert: Path | None, key: Path | None, refused: threading.Semaphore) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        assert cert is not None
        self._context.load_cert_chain(cert, key)
        self._refused = refused

    def wrap_socket(self, request: socket.socket, **options: bool) -> ssl.SSLSocket:
        link = self._context.wrap_socket(request, **options)
        shake_hands = link.do_handshake

        def recorded() -> None:
            try:
                shake_hands()
            except OSError:
                self._refused.release()
                raise

        link.do_handshake = recorded
        return link


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ca", "nowhere.pem"], "nowhere.pem"),
        (["--broker", "http://x"], "http://x"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cable: Cable, tmp_path: Path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    answer = cable.umqtt("ota", _ID, *arguments)
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1 and named in answer.stderr and "—" in answer.stderr

"""A browser sets up a board without a network, on its own access point; then the board publishes."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.parse
from collections.abc import Callable
from pathlib import Path

import pytest
from umqtt_kit.deploy.build import build
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

playwright = pytest.importorskip("playwright.sync_api")
MakeBoard = Callable[..., VirtualBoard]
CODE = "K7QF-M2XA-9TRW"
NETWORK = {"cellar": "open sesame"}


@pytest.fixture(scope="module")
def files() -> dict[str, bytes | Path]:
    return {**build("UNIX", []).files}


@pytest.fixture
def page(browser: playwright.Browser):
    """Provide a page; the test fails if it asks another address for anything, or logs an error or warning."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(WAIT_LIMIT_S * 1000)
    opened = context.new_page()
    opened.on("console", lambda said: said.type in ("error", "warning") and wrong.append(f"console: {said.text}"))
    opened.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield opened
    context.close()
    assert not wrong


class Portal:
    """A board whose portal is open, on ports of this computer. heap: as for VirtualBoard."""

    def __init__(self, make: MakeBoard, files: dict[str, bytes | Path], heap: str = "256K") -> None:
        self.http, self.dns = reserved_port(), reserved_port()
        ports = json.dumps({"80": self.http, "53": self.dns})
        self.board = make(env={"UMQTT_BOARD_PORTS": ports}, heap=heap)
        self.board.hooks(networks=NETWORK, rssi=-60)
        settings = {"code": CODE, "button": 9}
        self.board.install({**files, "/portal.json": json.dumps(settings).encode()})
        self.board.start()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.http}{path}"


def fill(page: playwright.Page, **fields: str) -> None:
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)
    page.get_by_role("button").click()


def refused(page: playwright.Page, **fields: str) -> bool:
    """Submit the form; return whether its code was checked."""
    fill(page, **fields)
    return "Wait" not in (page.get_by_role("alert").text_content() or "")


@pytest.mark.smoke
def test_a_board_without_settings_is_set_up_by_a_browser_and_publishes(
    virtual_board: MakeBoard, files: dict[str, bytes | Path], page: playwright.Page, peer: ScriptedPeer
) -> None:
    """Planted: the page does not say why a form was refused; it has the same colours in the dark."""
    portal = Portal(virtual_board, files)
    board = portal.board
    board.wait_for("portal: Wi-Fi umqtt-")
    assert CODE not in board.output
    page.emulate_media(color_scheme="dark")
    page.goto(portal.url())
    playwright.expect(page.locator("body")).to_have_css("color", "rgb(255, 255, 255)")
    page.emulate_media(color_scheme="light")
    playwright.expect(page.locator("body")).to_have_css("color", "rgb(0, 0, 0)")
    fill(page, code="AAAA-BBBB-CCCC", ssid="cellar", wifi_password="open sesame", broker=peer.url)
    playwright.expect(page.get_by_role("alert")).to_contain_text("The code is wrong (1 of 10)")
    # The fields keep what was typed, except for secrets.
    playwright.expect(page.locator("#ssid")).to_have_value("cellar")
    playwright.expect(page.locator("#code")).to_have_value("")
    # The page asks to wait first, and does not check a code that comes earlier.
    eventually(lambda: refused(page, code=CODE.lower(), wifi_password="open sesame", broker="mqtt://"))
    playwright.expect(page.get_by_role("alert")).to_contain_text("settings.json: brokers: address 1")
    # Planted: the radio is not asked what it hears.
    playwright.expect(page.locator("#heard")).to_contain_text("cellar (strong, -60 dBm)")
    page.locator("#heard").select_option("cellar")
    fill(page, code=CODE, ssid="", wifi_password="open sesame", broker=peer.url)
    playwright.expect(page.locator("body")).to_contain_text("Saved.")
    code = page.locator("b").text_content()
    board.wait_for("portal: settings taken over")
    link = peer.accept()
    link.accept_session()
    while not (packet := link.receive()) or not (packet.topic_name or b"").endswith(b"/telemetry"):
        assert packet is not None, board.output
        link.answer(packet)
    board.stop()
    assert json.loads(board.read("/portal.json"))["code"] == code != CODE
    assert "Traceback" not in board.output


def test_the_portal_works_in_100_kb_of_heap(virtual_board: MakeBoard, files: dict[str, bytes | Path]) -> None:
    """Planted: the package app is loaded first, and the client with it."""
    portal = Portal(virtual_board, files, heap="100K")
    portal.board.wait_for("portal: Wi-Fi umqtt-")
    form = {"code": CODE, "ssid": "cellar", "wifi_password": "open sesame", "broker": "mqtt://127.0.0.1:1"}
    # Browsers open any number of connections that they do not use.
    with contextlib.ExitStack() as idle:
        for _ in range(5):
            idle.enter_context(socket.create_connection(("127.0.0.1", portal.http)))
        assert b'name="ssid"' in ask(portal.http, b"GET / HTTP/1.1\r\n\r\n")
    assert ask(portal.http, b"GET /generate_204 HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 302 ")
    assert ask(portal.http, b"x" * 3000).startswith(b"HTTP/1.1 431 ")
    body = urllib.parse.urlencode({**form, "broker": "mqtts://a", "ca": "-----BEGIN CERTIFICATE-----" + "a" * 2900})
    # Refused for the wrong code: until then the largest field is kept completely.
    said = ask(portal.http, post(body.replace(CODE, "AAAA-BBBB-CCCC")))
    assert b"The code is wrong" in said, portal.board.output
    eventually(lambda: b"Saved." in ask(portal.http, post(urllib.parse.urlencode(form))))
    portal.board.wait_for("portal: settings taken over")
    assert "Traceback" not in portal.board.output


def test_every_name_leads_to_the_portal(virtual_board: MakeBoard, files: dict[str, bytes | Path]) -> None:
    portal = Portal(virtual_board, files)
    portal.board.wait_for("portal: Wi-Fi umqtt-")
    query = b"\x12\x34\1\0\0\1\0\0\0\0\0\0\7captive\5apple\3com\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(WAIT_LIMIT_S)
        asking.connect(("127.0.0.1", portal.dns))
        asking.send(b"noise")
        asking.send(query)
        assert asking.recv(512).endswith(b"\0\4\xc0\xa8\4\1")


def test_a_radio_without_memory_is_told_and_tried_again(
    virtual_board: MakeBoard, files: dict[str, bytes | Path]
) -> None:
    """Planted: the driver's RuntimeError ends the program."""
    board = virtual_board()
    board.hooks(radio_memory=False)
    board.install({**files, "/portal.json": json.dumps({"code": CODE, "button": 9}).encode()})
    board.start()
    board.wait_for("portal: tries again in 60 s")
    assert "the access point cannot be used: RuntimeError" in board.output and "Traceback" not in board.output


@pytest.mark.parametrize("pressed", [True, False])
def test_a_board_that_knows_a_network_opens_the_portal_while_its_button_is_pressed(
    virtual_board: MakeBoard, files: dict[str, bytes | Path], peer: ScriptedPeer, pressed: bool
) -> None:
    board = virtual_board()
    board.hooks(networks=NETWORK, rssi=-60, pins={"9": 0} if pressed else {})
    known = {"brokers": [peer.url], "wifi": ["cellar"]}
    texts = {"portal": {"code": CODE, "button": 9}, "settings": known, "secrets": {"wifi": NETWORK}}
    board.install({**files, **{f"/{name}.json": json.dumps(text).encode() for name, text in texts.items()}})
    board.start()
    if pressed:
        board.wait_for("portal: ")
        # Ports below 1024 may be forbidden here.
        assert "telemetry" not in board.output
    else:
        peer.accept().accept_session()
        assert "portal: press the button within 3 s" in board.output


def ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S) as sock:
        sock.sendall(request)
        said = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(4096):
                said += piece
        return said


def post(body: str) -> bytes:
    return f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

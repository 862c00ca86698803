"""The client's core is independent, and a packet passes as few modules as docs/architecture.md says."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from class_names import uses_and_makes
from umqtt_testkit import encoder
from umqtt_testkit.portable import Clock

import umqtt_robust
from umqtt_robust import Client
from umqtt_robust.flash import FlashStore
from umqtt_robust.session import Session

_LIBRARY = Path(umqtt_robust.__file__).resolve().parent
_PAGE = _LIBRARY.parent / "docs" / "architecture.md"
# The host's version of what MicroPython has built in.
_PORT = {"_host", "_platform"}
# PUBREL: `backlog` keeps inbound messages, so that a board without QoS 2 does not carry that.
_MOST = {"`publish()` at QoS 1": 5, "PUBACK": 5, "PUBREL": 7}


class Wire:
    """A transport that delivers what it is given; a walk shows it as `transport`."""

    socket = None

    def __init__(self, *address: object) -> None:
        del address
        self.inbound = encoder.encode(encoder.CONNACK << 4, b"\0\0")

    def ready(self) -> bool:
        return True

    def read(self, buf: bytearray, offset: int) -> int | None:
        n = len(self.inbound)
        buf[offset : offset + n] = self.inbound
        self.inbound = b""
        return n or None

    def write(self, buf: bytes, offset: int, size: int) -> int:
        del buf, offset
        return size

    def close(self) -> None:
        pass


def _replaced_methods(sources: dict[str, str]) -> list[str]:
    """Return where a module sets an attribute of another object that is a method of some class of the library."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    classes = [
        node
        for name, tree in trees.items()
        if name not in {"simple", "robust"}  # the API of others, where ping() is a method
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    methods = {node.name for one in classes for node in one.body if isinstance(node, ast.FunctionDef)}
    targets = [
        (name, target)
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    # An attribute that objects or their classes set themselves is a slot, whatever fills it.
    slots = {target.attr for _, target in targets if ast.unparse(target.value) == "self"}
    slots |= {
        target.id
        for one in classes
        for node in one.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [
        f"{name}: {ast.unparse(target)}"
        for name, target in targets
        if target.attr in methods - slots and ast.unparse(target.value) != "self"
    ]


def test_no_module_replaces_a_method_of_another_object():
    """Planted: quarantine.py sets session.subscriptions.send."""
    sources = {file.stem: file.read_text() for file in _LIBRARY.glob("*.py") if file.stem not in _PORT}
    assert _replaced_methods(sources) == []
    sources["planted"] = "def enter(session):\n    session.subscriptions.send = print\n"
    assert _replaced_methods(sources) == ["planted: session.subscriptions.send"]


def _walk(step: Callable[[], object]) -> list[str]:
    """Return the names of the library's modules in the order in which the step enters them."""
    entered: dict[str, None] = {}

    def trace(frame: FrameType, event: str, argument: object) -> None:
        del argument
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.parent == _LIBRARY and file.stem not in _PORT:
            entered[file.stem] = None
        elif event == "call" and frame.f_code.co_qualname.startswith("Wire."):
            entered["transport"] = None

    sys.setprofile(trace)
    try:
        step()
    finally:
        sys.setprofile(None)
    return list(entered)


@pytest.fixture
def walks(tmp_path: Path) -> dict[str, list[str]]:
    """Return the walks of the steps, each run once before, so that modules are loaded and folders made."""
    found = {}
    client, wire = _connected(tmp_path / "outbound")
    for _ in range(2):
        packet_ids: list[int | None] = []
        found["`publish()` at QoS 1"] = _walk(lambda ids=packet_ids: ids.append(client.publish(b"t", b"x", 1)))
        wire.inbound = encoder.encode(encoder.PUBACK << 4, encoder.uint16(packet_ids[0] or 0))
        found["PUBACK"] = _walk(client.tick)
        assert not client.pending
    client, wire = _connected(tmp_path / "inbound")
    for received in (1, 2):
        wire.inbound = encoder.publish(b"t", b"x", 2, 7)
        client.tick()
        wire.inbound = encoder.encode(encoder.PUBREL << 4 | 2, encoder.uint16(7))
        found["PUBREL"] = _walk(client.tick)
        assert client.received == received
    return found


def _connected(store: Path) -> tuple[Client, Wire]:
    clock = Clock()
    client = Client("c", "mqtt://h", clean_session=False, store=FlashStore(str(store)),
                    transports={"mqtt": Wire}, ticks=clock.ticks_ms, random=lambda n: 0)  # fmt: skip
    client.tick()
    assert client.connected and isinstance(client.transport, Wire)
    return client, client.transport


def test_a_packet_passes_the_modules_that_the_page_says(walks: dict[str, list[str]]) -> None:
    # Planted: work() flushes an empty send buffer, so that PUBACK enters one more module.
    rows = re.findall(r"^\| (`publish\(\)` at QoS 1|PUBACK|PUBREL) \| ([a-z0-9_, ]+) \|$", _PAGE.read_text(), re.M)
    assert {name: row.split(", ") for name, row in rows} == walks
    assert {name for name, walk in walks.items() if len(walk) > _MOST[name]} == set()


@pytest.mark.parametrize("planted", [False, True])
def test_the_core_uses_no_name_that_is_made_above_it(planted: bool) -> None:
    # Planted: work() asks for the client's transport.
    source = (_LIBRARY / "session.py").read_text()
    if planted:
        source = source.replace("        if self.broken:", "        if self.broken and self.transport:")
    used, made = uses_and_makes(source, "Session", ("__init__", "start", "close", "forget"))
    assert used - made == ({"transport"} if planted else set())
    assert planted or [name for name in used if not hasattr(Session("c"), name)] == []


def test_the_client_is_the_core_and_links() -> None:
    bases = [base.__name__ for base in Client.__mro__]
    assert bases == ["Client", "Session", "object"]

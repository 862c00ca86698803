"""Measures what the client costs on a chip's own image: time, heap and flash operations, counted by the emulator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flash_wear
from chip import BOOTS_WITHIN_S, LINE, broker_at_line, install
from rp2040 import ImageBoard
from umqtt_kit import sizes
from umqtt_kit.device import Board
from umqtt_kit.mpy_cross import compile_file

_READINGS = 50
_TICKS = 200
_MESSAGES = 200
_CYCLES_A_MS = 125_000
# A stub of a module that the peer imports and this image lacks: for the heap, the names are enough.
_SOCKET = b"socket = SOL_SOCKET = None\n"

_HEAP = """
import gc
gc.collect()
before = gc.mem_alloc()
import {module}
gc.collect()
print(gc.mem_alloc() - before)
"""
_CLIENT = """
import gc, time
from umqtt_robust import Client
from umqtt_robust.flash import FlashStore
from umqtt_robust.store import MemoryStore
{imports}

def connected(store):
    client = Client("costs", {link}, random=lambda n: 0, store=store)
    while not client.connected:
        client.poll(100)
    return client

def us(function, *arguments):
    gc.collect()
    begin = time.ticks_us()
    function(*arguments)
    return time.ticks_diff(time.ticks_us(), begin)

def acknowledged(client):
    while client.pending:
        client.poll(100)

payload = bytes(64)
"""
_PUBLISH = """
client = connected({store})
client.publish("costs", payload, qos=1)
acknowledged(client)
made = done = 0
"""
_EACH = """
for number in range({readings}):
    made += us(client.publish, "costs", payload, 1)
    done += us(acknowledged, client)
print((made // {readings}, done // {readings}))
"""
_IDLE = """
def idle():
    for number in range({ticks}):
        client.tick()
client.tick()
print(us(idle) // {ticks})
"""
# A broker that answers at once, in the chip's own memory. What it takes itself is not the client's.
_IN_RAM = """
import gc, time
from umqtt_robust import Client

class Ram:
    socket = None
    def __init__(self):
        self.answer = bytearray(4)
        self.size = 0
    def ready(self):
        return True
    def read(self, buf, offset):
        n = self.size
        if not n:
            return None
        self.size = 0
        buf[offset : offset + n] = self.answer[:n]
        return n
    def write(self, buf, offset, size):
        answer = self.answer
        answer[1] = 2
        if buf[offset] == 0x10:
            answer[0] = 0x20
        elif buf[offset] & 6:
            i = offset + 4 + buf[offset + 3]
            answer[0] = 0x40
            answer[2] = buf[i]
            answer[3] = buf[i + 1]
        else:
            return size
        self.size = 4
        return size
    def close(self):
        pass

ram = Ram()
buf = bytearray(1024)
payload = bytes(64)
client = Client("costs", "mqtt://ram", transports={{"mqtt": lambda host, port, path: ram}}, random=lambda n: 0)
while not client.connected:
    client.tick()

def publish_once():
    client.publish("costs", payload)

def took():
    ram.write(buf, 0, 73)

def publish():
    client.publish("costs", payload, 1)
    while client.pending:
        client.tick()

def answer():
    ram.write(buf, 0, 75)
    ram.read(buf, 0)

def us(function):
    function()
    gc.collect()
    begin = time.ticks_us()
    for number in range({messages}):
        function()
    return time.ticks_diff(time.ticks_us(), begin) // {messages}

buf[0] = 0x30
sent = us(publish_once) - us(took)
buf[0] = 0x32
buf[3] = 5
print((sent, us(publish) - us(answer), us(client.tick)))
"""


@dataclass(frozen=True)
class Cost:
    """A row: what is measured, the figure on the chip, its unit, the figure on the unix port with simulated flash."""

    what: str
    figure: float
    unit: str
    stub: float | None = None


def measure(folder: Path, image: Path, peer: Path | None) -> list[Cost]:
    """Return the rows of the table. folder: an empty one; peer: the file umqtt/simple.py of MicroPython, or None.

    Raises KitError, BoardError.
    """
    costs: list[Cost] = []
    wear = next(case for case in flash_wear.measure(quick=True) if _is_like_here(case))
    heap = {"umqtt_robust": sizes.measure().totals["smallest_heap_bytes"]}
    with ImageBoard(image, folder / "chip.flash") as chip:
        files = {"/lib/socket.py": _SOCKET}
        if peer is not None:
            compile_file(peer, folder / "simple.mpy")
            files["/lib/umqtt/simple.mpy"] = (folder / "simple.mpy").read_bytes()
        install(chip, files)
        modules = ["umqtt_robust", *(["umqtt.simple"] if peer is not None else [])]
        for module in modules:
            with Board(chip.port, restart=False) as board:
                figure = _number(board, _HEAP.format(module=module))
                costs.append(Cost(f"heap after import of {module}", figure, "bytes", heap.get(module)))
        with broker_at_line(chip.uart_port), Board(chip.port, restart=False) as board:
            board.exec(_CLIENT.format(**LINE._asdict()))
            for name in ("MemoryStore", "FlashStore"):
                store = f"{name}('/costs')" if name == "FlashStore" else f"{name}()"
                board.exec(_PUBLISH.format(store=store), BOOTS_WITHIN_S)
                before = chip.flash_operations()
                made, done = board.value(_EACH.format(readings=_READINGS), BOOTS_WITHIN_S)  # type: ignore[misc]
                erases, programs = (
                    later - earlier for later, earlier in zip(chip.flash_operations(), before, strict=True)
                )
                costs += [
                    Cost(f"publish() at QoS 1, {name}", made / 1000, "ms"),
                    Cost(f"from its return to the acknowledgement, {name}", done / 1000, "ms"),
                ]
                if name == "FlashStore":
                    costs += [
                        Cost("erases per 1,000 readings", 1000 * erases / _READINGS, "", wear["erases"]),
                        Cost(
                            "programs of a page per 1,000 readings", 1000 * programs / _READINGS, "", wear["programs"]
                        ),
                    ]
            idle = _number(board, _IDLE.format(ticks=_TICKS))
            costs.append(Cost("idle tick() of a client on a serial line", idle / 1000, "ms"))
        with Board(chip.port) as board:
            costs += _in_ram(board)
    return costs


def _in_ram(board: Board) -> list[Cost]:
    found = board.value(_IN_RAM.format(messages=_MESSAGES), BOOTS_WITHIN_S)
    sent, acknowledged, idle = found  # type: ignore[misc]
    return [
        Cost("publish() at QoS 0, transport in RAM", sent / 1000, "ms"),
        Cost("publish() at QoS 1 to its PUBACK, transport in RAM", acknowledged / 1000, "ms"),
        Cost("idle tick(), transport in RAM", idle / 1000, "ms"),
    ]


def _number(board: Board, program: str) -> float:
    value = board.value(program, BOOTS_WITHIN_S)
    assert isinstance(value, (int, float)), value
    return value


def _is_like_here(case: dict[str, Any]) -> bool:
    return (case["case"], case.get("geometry"), case.get("payload"), case.get("occupied")) == ("wear", "rp2", 64, 1)


def table(costs: list[Cost]) -> list[str]:
    """Return the table for people, as lines of Markdown."""
    lines = ["| | on the chip | on the unix port |", "|---|---|---|"]
    for cost in costs:
        figure = (
            f"{cost.figure:,.2f} ms, {cost.figure * _CYCLES_A_MS:,.0f} cycles"
            if cost.unit == "ms"
            else (f"{cost.figure:,.0f} {cost.unit}".rstrip())
        )
        stub = "" if cost.stub is None else f"{cost.stub:,.0f} {cost.unit}".rstrip()
        lines.append(f"| {cost.what} | {figure} | {stub} |")
    return lines

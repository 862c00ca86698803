"""Draws docs/states.md and its pictures from the transition tables of umqtt_robust/packets.py.

.venv/bin/python host_tests/docs/draw_states.py
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from umqtt_robust import packets as states

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Sizes in pixels: of a state's row, of an arrow's column, of a line of text, and where the first arrow is.
_ROW, _COLUMN, _LINE, _FIRST = 84, 160, 15, 160
_LABEL_WIDTH = 22

_PACKETS = {
    0x20: "CONNACK",
    0x30: "PUBLISH",
    0x40: "PUBACK",
    0x50: "PUBREC",
    0x62: "PUBREL",
    0x70: "PUBCOMP",
    0x90: "SUBACK",
    0xB0: "UNSUBACK",
    0xD0: "PINGRESP",
    0xE0: "DISCONNECT of MQTT 5",
}


@dataclass(frozen=True)
class Diagram:
    """A state diagram. title, text: for the reader. table: (state, packet) to next state. names: of the states.

    file: of its picture. answers: what the client sends when a packet arrived. own: steps that no packet causes, as
    (from, to, label); None is the beginning or the end of a flow.
    """

    title: str
    file: str
    text: str
    table: dict[tuple[int, int], int]
    names: dict[int, str]
    answers: dict[int, str]
    own: tuple[tuple[int | None, int | None, str], ...]

    def arrows(self) -> dict[tuple[int | None, int | None], list[str]]:
        """Return the labels of each arrow; pairs that are not in the table are errors, so they are not drawn."""
        arrows: dict[tuple[int | None, int | None], list[str]] = {}
        for source, target, label in self.own:
            arrows.setdefault((source, target), []).append(label)
        for (state, packet), target in self.table.items():
            if state in self.names:
                answer = self.answers.get(packet)
                label = _PACKETS[packet] + (f" / {answer}" if answer else "")
                arrows.setdefault((state, target), []).append(label)
        return arrows

    def svg(self) -> str:
        """Return the picture: a row for each state, a column for each arrow."""
        arrows = self.arrows()
        rows: list[int | None] = [None]
        rows += [state for arrow in arrows for state in arrow if state is not None]
        rows = list(dict.fromkeys(rows))
        height = {state: 30 + _ROW * number for number, state in enumerate(rows)}
        width = _FIRST + _COLUMN * len(arrows)
        drawn = []
        for state, y in height.items():
            name = "start, end" if state is None else self.names[state]
            drawn.append(f'<text x="12" y="{y + 5}" font-weight="bold">{name}</text>')
            drawn.append(f'<path d="M{_FIRST - 24} {y}H{width - 24}" stroke="#b8c0cc"/>')
        for number, ((source, target), labels) in enumerate(arrows.items()):
            x, start, end = _FIRST + _COLUMN * number, height[source], height[target]
            if source == target:
                way, top = f"M{x} {start}v34h12v-30", start + 18
            else:
                way, top = f"M{x} {start}V{end + (-4 if end > start else 4)}", min(start, end) + 18
            drawn.append(f'<circle cx="{x}" cy="{start}" r="3"/>')
            drawn.append(f'<path d="{way}" fill="none" stroke="#1a4f9c" stroke-width="1.5" marker-end="url(#head)"/>')
            for line, label in enumerate(textwrap.wrap(", ".join(labels), _LABEL_WIDTH)):
                beside = x + (20 if source == target else 8)
                drawn.append(f'<text x="{beside}" y="{top + 4 + _LINE * line}">{label}</text>')
        last = height[rows[-1]] + (_ROW if (rows[-1], rows[-1]) in arrows else 24)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{last}" {_STYLE}>'
        return "\n".join([head, _BACKGROUND, *drawn, "</svg>", ""])


_STYLE = 'font-family="sans-serif" font-size="12" fill="#1b1f24"'
_BACKGROUND = """\
<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0l8 4-8 4z" fill="#1a4f9c"/>
</marker>
<rect width="100%" height="100%" rx="6" fill="#fff"/>"""


def _named(*names: str) -> dict[int, str]:
    return {getattr(states, name): name for name in names}


def _split(table: dict[int, int]) -> dict[tuple[int, int], int]:
    # The keys are state << 8 | packet.
    return {(key >> 8, key & 0xFF): target for key, target in table.items()}


def diagrams() -> Iterable[Diagram]:
    yield Diagram(
        "The link",
        "states-link.svg",
        """The client sends CONNECT as soon as there is a connection. The first packet that arrives must be
        CONNACK. A CONNACK that refuses the client closes the link. In the state `UP`, `Client.connected` is True.""",
        _split(states.LINK | states.LINK_5),
        _named("CLOSED", "AWAIT_CONNACK", "UP"),
        {},
        (
            (None, states.CLOSED, "Client()"),
            (states.CLOSED, states.AWAIT_CONNACK, "connected / CONNECT"),
            (states.AWAIT_CONNACK, states.CLOSED, "lost, refused, or connect_timeout"),
            (states.UP, states.CLOSED, "lost, dead, or disconnect()"),
        ),
    )
    yield Diagram(
        "A message to the broker at QoS 1",
        "states-qos1.svg",
        "On a new link the client sends the message again, with DUP if the broker has kept the session.",
        _split(states.OUTBOUND),
        _named("DONE", "AWAIT_PUBACK"),
        {},
        ((None, states.AWAIT_PUBACK, "publish() / PUBLISH"), (states.DONE, None, "on_acknowledged")),
    )
    yield Diagram(
        "A message to the broker at QoS 2",
        "states-qos2.svg",
        """The step to `AWAIT_PUBCOMP` is stored before PUBREL is sent. On a new link in the same session the client
        sends the packet of the state again: PUBLISH, or PUBREL. If the broker has lost the session, the message begins
        again with PUBLISH.""",
        _split(states.OUTBOUND),
        _named("DONE", "AWAIT_PUBREC", "AWAIT_PUBCOMP"),
        {0x50: "PUBREL"},
        (
            (None, states.AWAIT_PUBREC, "publish() / PUBLISH"),
            (states.AWAIT_PUBCOMP, states.AWAIT_PUBREC, "session lost / PUBLISH"),
            (states.DONE, None, "on_acknowledged"),
        ),
    )
    yield Diagram(
        "A message from the broker at QoS 2",
        "states-received.svg",
        """The message is stored before PUBREC is sent. When PUBREL arrives, the message goes to its handler and is
        removed from the store; then PUBCOMP is sent. If the broker has lost the session, the message goes to its
        handler at once, because its PUBREL will not come.""",
        _split(states.INBOUND),
        _named("UNKNOWN", "AWAIT_PUBREL"),
        {0x30: "PUBREC", 0x62: "PUBCOMP"},
        ((None, states.UNKNOWN, "a packet id"), (states.AWAIT_PUBREL, states.UNKNOWN, "session lost")),
    )


_HEAD = """`host_tests/docs/draw_states.py` draws this page from the tables in
[packets.py](../umqtt_robust/packets.py). Each line is a state, and each arrow a step from one state to another. Beside
the arrow is the packet that arrived, and after a slash what the client sends. Any other packet in a state is a protocol
error and closes the link."""


def files() -> dict[Path, str]:
    """Return the text of each file."""
    pictures = {DOCS / "pictures" / each.file: each.svg() for each in diagrams()}
    parts = ["# States", _paragraph(_HEAD)]
    for each in diagrams():
        parts += [f"## {each.title}", _paragraph(each.text), f"![{each.title}](pictures/{each.file})"]
    return pictures | {DOCS / "states.md": "\n\n".join(parts) + "\n"}


def _paragraph(told: str) -> str:
    return textwrap.fill(" ".join(told.split()), 118)


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
    sys.exit(0)

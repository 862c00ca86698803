"""Draws docs/states.md from the transition tables of umqtt_robust/states.py.

.venv/bin/python host_tests/docs/draw_states.py
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from umqtt_robust import states

TARGET = Path(__file__).resolve().parents[2] / "docs" / "states.md"

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
    0xF0: "AUTH of MQTT 5",
}


@dataclass(frozen=True)
class Diagram:
    """A state diagram. title, text: for the reader. table: (state, packet) to next state. names: of the states.

    answers: what the client sends when a packet arrived. own: steps that no packet causes, as (from, to, label); None
    is the beginning or the end of a flow.
    """

    title: str
    text: str
    table: dict[tuple[int, int], int]
    names: dict[int, str]
    answers: dict[int, str]
    own: tuple[tuple[int | None, int | None, str], ...]

    def mermaid(self) -> str:
        """Return the diagram; pairs that are not in the table are errors, so they are not drawn."""
        arrows: dict[tuple[int | None, int | None], list[str]] = {}
        for source, target, label in self.own:
            arrows.setdefault((source, target), []).append(label)
        for (state, packet), target in self.table.items():
            if state in self.names:
                answer = self.answers.get(packet)
                label = _PACKETS[packet] + (f" / {answer}" if answer else "")
                arrows.setdefault((state, target), []).append(label)
        lines = [
            f"    {self._name(source)} --> {self._name(target)}: {', '.join(labels)}"
            for (source, target), labels in arrows.items()
        ]
        return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])

    def _name(self, state: int | None) -> str:
        return "[*]" if state is None else self.names[state]


def _named(*names: str) -> dict[int, str]:
    return {getattr(states, name): name for name in names}


def _split(table: dict[int, int]) -> dict[tuple[int, int], int]:
    # The keys are state << 8 | packet.
    return {(key >> 8, key & 0xFF): target for key, target in table.items()}


def diagrams() -> Iterable[Diagram]:
    yield Diagram(
        "The link",
        """CONNECT leaves as soon as there is a connection, and the first packet that comes must be CONNACK. A CONNACK
        that refuses closes the link. `UP` is `Client.connected`.""",
        _split(states.LINK | states.LINK_5 | states.LINK_AUTH),
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
        "In a new link it is sent again, with DUP when the broker has kept the session.",
        _split(states.OUTBOUND),
        _named("DONE", "AWAIT_PUBACK"),
        {},
        ((None, states.AWAIT_PUBACK, "publish() / PUBLISH"), (states.DONE, None, "on_acknowledged")),
    )
    yield Diagram(
        "A message to the broker at QoS 2",
        """The step to `AWAIT_PUBCOMP` is in the store before PUBREL leaves. In a new link of the same session the
        packet of the state goes again: PUBLISH, or PUBREL. When the broker has lost the session the message begins
        anew.""",
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
        """The message is in the store before PUBREC leaves. At PUBREL it goes to its handler, is removed from the
        store, and then PUBCOMP leaves. When the broker has lost the session it goes to its handler at once, for its
        PUBREL will not come.""",
        _split(states.INBOUND),
        _named("UNKNOWN", "AWAIT_PUBREL"),
        {0x30: "PUBREC", 0x62: "PUBCOMP"},
        ((None, states.UNKNOWN, "a packet id"), (states.AWAIT_PUBREL, states.UNKNOWN, "session lost")),
    )


_HEAD = """Drawn from the tables in [states.py](../umqtt_robust/states.py) by `host_tests/docs/draw_states.py`: change
those, not this. An arrow is marked with what came, and after the stroke with what the client sends. Any other packet
in a state is a protocol error and closes the link."""


def text() -> str:
    """Return the whole file."""
    parts = ["# States", _paragraph(_HEAD)]
    for each in diagrams():
        parts += [f"## {each.title}", _paragraph(each.text), each.mermaid()]
    return "\n\n".join(parts) + "\n"


def _paragraph(told: str) -> str:
    return textwrap.fill(" ".join(told.split()), 118)


if __name__ == "__main__":
    TARGET.write_text(text())
    sys.exit(0)

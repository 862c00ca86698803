"""What `umqtt logs` shows: lines of boards, and events of their connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A line of a board.

    time: when it arrived here; device: name of the port, or device id; level: of the firmware's log, None for any
    other line; fields: what else was published with it; more: further lines of text to show below it.
    """

    time: datetime
    device: str
    text: str
    level: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    more: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        return {"time": _shown(self.time), "device": self.device, "level": self.level, "text": self.text, **self.fields}


@dataclass(frozen=True)
class Event:
    """An event of a board's connection. kind: "connected", "gone" or "busy"; text: the same for people."""

    time: datetime
    device: str
    kind: str
    text: str

    def as_dict(self) -> dict[str, object]:
        return {"time": _shown(self.time), "device": self.device, "event": self.kind, "text": self.text}


def now() -> datetime:
    """Return the present time, with its time zone."""
    return datetime.now().astimezone()


def _shown(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds")

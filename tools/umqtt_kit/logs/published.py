"""The lines that devices publish: their logs, with tracebacks, and their statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from umqtt_cli.escape import printable
from umqtt_cli.strict_json import loads
from umqtt_kit.links import Links
from umqtt_kit.logs.entries import Entry, now
from umqtt_kit.mqtt import Access

_LEVELS = ("debug", "info", "warning", "error")
_EVERY = "+"


def topics(devices: tuple[str, ...]) -> list[str]:
    """Return the topic filters of these devices, or of all."""
    return [f"fleet/{device}/{leaf}" for device in devices or (_EVERY,) for leaf in ("status", "log")]


def follow(
    access: Access,
    devices: tuple[str, ...],
    take: Callable[[Entry], object],
    say: Callable[[str], object],
    ended: Callable[[], bool],
) -> None:
    """Pass every line to take(), until ended(). Raises KitError.

    say: called when a link breaks, and when it comes back.
    """

    def on_message(topic: str, payload: bytes, *_: object) -> None:
        take(entry_of(topic, payload))

    link = Links(
        access,
        on_message=on_message,
        on_lost=lambda text: say(f"{text}; connecting again"),
        on_back=lambda where: say(f"{where}: connected again"),
    )
    with link:
        link.subscribe(*topics(devices))
        link.wait_for(ended, None)


def entry_of(topic: str, payload: bytes) -> Entry:
    """Return the Entry for one message. A payload that is no record of the firmware is shown as it is."""
    _, _, rest = topic.partition("/")
    device, _, leaf = rest.rpartition("/")
    try:
        record = loads(payload)
    except ValueError:
        record = None
    time = now()
    device = printable(device)
    if not isinstance(record, dict):
        return Entry(time, device, printable(payload))
    if leaf == "status":
        return Entry(time, device, _status(record), fields={"status": record})
    level = record.pop("level", None)
    text = printable(str(record.pop("text", "")))
    return Entry(time, device, text, level if level in _LEVELS else None, record, _traceback(record.get("crash")))


def _traceback(crash: object) -> tuple[str, ...]:
    text = crash.get("traceback") if isinstance(crash, dict) else crash
    return tuple(printable(line) for line in text.splitlines() if line.strip()) if isinstance(text, str) else ()


def _status(record: dict[str, Any]) -> str:
    state = "online" if record.get("online") else "offline"
    version = f", {record['fw']}" if record.get("fw") else ""
    return printable(f"{state}: {record.get('reason')}{version}, boot {record.get('boot')}")

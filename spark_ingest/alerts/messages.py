"""Messages about alerts: text for people, JSON for programs.

Devices choose their names and reasons. In text, characters that do not print, and those that a mail program or a chat
may interpret as a link, a mention or markup, are replaced by their character codes. JSON has them unchanged, with
JSON's own escapes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from umqtt_cli.escape import printable

from .journal import Event, Opened

_MARKUP = dict.fromkeys("<>&@[]`", "") | {"://": ":\\x2f/"}
_LONGEST_WORD = 120
_TIME = "%Y-%m-%d %H:%M:%S UTC"
_TEST = Opened("test", "test", "test", "test", None, None, "a message to see that it arrives: nothing is wrong")


def test_message(*, as_json: bool) -> tuple[str, str]:
    """Return title and body of a test message, whose state is test."""
    return title_and_body([Event(_TEST, "test", "", "", 0, ())], as_json=as_json)


def packed(events: Sequence[Event], most: int, *, as_json: bool) -> Iterator[Sequence[Event]]:
    """Yield the events in groups whose body has at most `most` characters; a longer event is a group of its own."""
    some: list[Event] = []
    size = 0
    for event in events:
        length = len(_json([event]) if as_json else _line(event)) + 1
        if some and size + length > most:
            yield some
            some, size = [], 0
        some.append(event)
        size += length
    if some:
        yield some


def title_and_body(events: Sequence[Event], *, as_json: bool) -> tuple[str, str]:
    """Return title and body of a message. For JSON the title is empty, since some services put it before the body."""
    if as_json:
        return "", _json(events)
    counts = Counter(event.state for event in events)
    rules = ", ".join(sorted({event.alert.rule for event in events}))
    sites = ", ".join(sorted({event.site for event in events if event.site}))
    title = f"{', '.join(f'{count} {state}' for state, count in sorted(counts.items()))}: {rules}"
    return shown(f"{title} at {sites}" if sites else title), "\n".join(_line(event) for event in events)


def shown(text: str) -> str:
    """Return a text chosen by a device, cut to 120 characters and made safe for any kind of message."""
    text = printable(text[:_LONGEST_WORD] + "…" if len(text) > _LONGEST_WORD else text)
    for sign, instead in _MARKUP.items():
        text = text.replace(sign, instead or f"\\x{ord(sign):02x}")
    return text.replace("\t", " ")


def _line(event: Event) -> str:
    alert = event.alert
    where = ", ".join(shown(name) for name in (event.group, event.site) if name)
    since = "" if alert.since is None else f", since {_time(alert.since)}"
    until = "" if alert.until is None else f", until {_time(alert.until)}"
    device = shown(alert.device) or "no device"
    of = f"{device} ({where})" if where else device
    return f"{event.state} {shown(alert.rule)}: {of}: {shown(alert.text)}{since}{until}, id {alert.id}"


def _json(events: Sequence[Event]) -> str:
    """Return the events as one JSON object in pure ASCII."""
    return json.dumps({"alerts": [_fields(event) for event in events]}, allow_nan=False)


def _fields(event: Event) -> dict[str, object]:
    alert = event.alert
    return {
        "id": alert.id,
        "state": event.state,
        "rule": alert.rule,
        "kind": alert.kind,
        "device": alert.device or None,
        "group": event.group or None,
        "site": event.site or None,
        "since": _time(alert.since),
        "until": _time(alert.until),
        # A difference of two doubles may be infinite, which JSON has no number for.
        "value": None if alert.value is None or not math.isfinite(alert.value) else alert.value,
        "text": alert.text,
    }


def _time(us: int | None) -> str | None:
    return None if us is None else (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)).strftime(_TIME)

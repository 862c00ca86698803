"""Say what the pipeline makes of a message: its readings and their times, its status, and why something is refused."""

import json
from typing import Any, NamedTuple

import pyarrow as pa

from ...decoders.reading import UNMATCHED, run
from ...decoders.rules import Match, Rules
from ...decoders.sparkplug import Births
from ...tables.schemas import BRONZE_SCHEMA
from ..decode.messages import MESSAGE_COLUMNS, part
from ..deduplicate.silver import unnumbered_rows

_SCHEMA = pa.schema([BRONZE_SCHEMA.field(name) for name in MESSAGE_COLUMNS])


class Explained(NamedTuple):
    """What becomes of a message.

    :ivar rule: the rule that reads it: ``decoder 2 (json)``; "" if none matches its topic.
    :ivar readings: device, boot and seq (None if its place identifies it), time and where that is from, metrics, texts.
    :ivar status: device, online, reason; None if the message is no status.
    :ivar log: whether it is a log message of our firmware.
    :ivar reasons: why the message, or a part of it, goes to quarantine.
    """

    topic: str
    rule: str
    readings: list[dict[str, Any]]
    status: dict[str, Any] | None
    log: bool
    reasons: list[str]

    @property
    def is_ignored(self) -> bool:
        """Whether the message is in bronze alone."""
        return not (self.readings or self.status or self.log or self.reasons)


class Explainer:
    """Explains messages, which must be given in the order in which they were received: Sparkplug depends on it."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._births = Births()
        self._position = 0

    def explain(self, topic: str, payload: bytes, received_ms: int, *, retain: bool = False) -> Explained:
        """Return what becomes of a message. `received_ms`: Unix milliseconds."""
        row = {
            "topic": topic,
            "payload": payload,
            "received_ts": received_ms * 1000,
            "qos": 0,
            "retain": retain,
            "dup": False,
            "collector": "",
            "spool": "",
            "segment": 0,
            "position": self._position,
        }
        self._position += 1
        parts = part(pa.Table.from_pylist([row], schema=_SCHEMA), self._rules, self._births)
        rows = unnumbered_rows(pa.concat_tables([parts.readings, parts.unnumbered])).to_pylist()
        status = parts.status.to_pylist()
        return Explained(
            topic,
            _rule_of(self._rules.match(topic), payload),
            [_reading(row) for row in rows],
            {key: status[0][key] for key in ("device_id", "online", "reason")} if status else None,
            bool(parts.logs.num_rows),
            parts.quarantined["reason"].to_pylist(),
        )


def _rule_of(match: Match | None, payload: bytes) -> str:
    while match and match.later and run(match.decode, match.name, match.topic, [payload])[0] is UNMATCHED:
        match = match.later
    return f"{match.rule} ({match.name})" if match else ""


def _reading(row: dict[str, Any]) -> dict[str, Any]:
    numbered = row["seq"] >= 0
    return {
        "device_id": row["device_id"],
        "boot": row["boot"] if numbered else None,
        "seq": row["seq"] if numbered else None,
        "event_ts": row["event_ts"].isoformat(),
        "event_ts_from": row["event_ts_from"],
        "metrics": dict(row["metrics"]),
        "texts": {name: json.loads(text) for name, text in row["extra"]},
    }

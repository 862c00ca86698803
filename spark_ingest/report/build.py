"""Writes the report: data, style and scripts in one page that loads nothing from elsewhere."""

import base64
import hashlib
import json
import re
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..durable import replace_file
from ..errors import UsageError
from ..location import Location
from . import fleet
from .gold import Gold
from .metrics import metrics
from .silver import Silver
from .timeline import US, Timeline

DAY_US = 86_400 * US
_MINUTE_S, _WINDOW_S = 60, 300
_TRAFFIC_STEPS, _METRIC_STEPS, _REBOOT_STEPS, _GAP_STEPS = 240, 96, 96, 96
# The files become one script; each may use the definitions of those before it.
_SCRIPTS = ("text.js", "chart.js", "charts.js", "devices.js", "lists.js", "page.js")
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Report:
    """The result of a report: the file's size in bytes, the totals in the tiles, the names of missing tables."""

    bytes: int
    totals: dict[str, int]
    absent: list[str]


def write_report(tables: Location, out: Path, *, days: float = 7.0, made_at: float | None = None) -> Report:
    """Write the page to `out`, completely or not at all.

    :param tables: the --tables of the pipeline.
    :param days: the days before the newest reading that the charts show.
    :param made_at: the time that the page names as that of its making, in Unix seconds; None: now.
    :raises UsageError: there are no gold tables, or `out` cannot be written.
    :raises IngestError: a table cannot be read.
    """
    gold = Gold(tables)
    data = collect(gold, days)
    data["made"] = int(time.time() if made_at is None else made_at)
    page = render(data).encode()
    try:
        replace_file(out, page, durable=False)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another --out") from error
    return Report(len(page), data["totals"], gold.absent)


def collect(gold: Gold, days: float) -> dict[str, Any]:
    """Return everything that the page shows, ready for JSON."""
    devices = fleet.sorted_devices(gold.read("devices"))
    boots, gaps, traffic, alerts = (gold.read(name) for name in ("boots", "gaps", "traffic", "alerts"))
    names = devices["device_id"].to_pylist()
    index = {name: i for i, name in enumerate(names)}
    start_us, end_us = _span(devices, boots, traffic, days)
    silver = Silver.of(gold, traffic, start_us, end_us)
    coarse_s = _WINDOW_S
    if silver is not None:
        # Narrow the time to the messages: gold's minutes begin before the first one and end after the last one.
        start_us, end_us = silver.start_us, _newest(devices, silver.end_us)
        coarse_s = 1

    def steps(finest_s: int, most: int) -> Timeline:
        return Timeline.between(start_us, end_us, finest_s=finest_s, most=most)

    if silver is None:
        minutely = steps(_MINUTE_S, _TRAFFIC_STEPS)
        rates = fleet.traffic(traffic, minutely, minutely.seconds(start_us, end_us) / 60)
        measured = metrics(gold, names, steps(_WINDOW_S, _METRIC_STEPS))
    else:
        fine = steps(min(_MINUTE_S, silver.finest_s()), _TRAFFIC_STEPS)
        rates = silver.traffic(fine, fine.seconds(start_us, end_us))
        measured = metrics(silver, names, steps(min(_WINDOW_S, silver.finest_s(len(names))), _METRIC_STEPS))
    return {
        "from": start_us // US,
        "as_of": end_us // US,
        # A fleet that is silent as a whole is silent until now, and not until its newest message.
        "now": max(end_us, fleet.judged_us(alerts)) // US,
        "totals": fleet.totals(devices, gaps, alerts),
        "devices": fleet.device_columns(devices),
        "traffic": rates,
        "metrics": measured,
        "reboots": fleet.reboots(boots, index, steps(coarse_s, _REBOOT_STEPS)),
        "gaps": fleet.gaps(gaps, index, steps(coarse_s, _GAP_STEPS)),
        "alerts": fleet.alerts(alerts, index),
    }


def render(data: dict[str, Any]) -> str:
    """Return the page with `data` in it, as HTML."""
    style = _part("page.css")
    script = "".join(_part(name) for name in _SCRIPTS)
    parts = {
        "policy": _POLICY.format(script=_hash(script), style=_hash(style)),
        "style": style,
        "script": script,
        "data": _json(data),
        **{name: f"{data['totals'][name]:,}" for name in ("devices", "readings")},
    }
    # Replace all marks in one pass, because text from a device may look like a mark.
    return re.sub(r"<!--@(\w+)-->", lambda mark: parts[mark[1]], _part("index.html"))


def _span(devices: pa.Table, boots: pa.Table, traffic: pa.Table, days: float) -> tuple[int, int]:
    """Return (from, to) in Unix microseconds, by received times, which do not depend on the devices' clocks."""
    last_seen, minutes, first_seen = (
        column.cast(pa.int64()).drop_null().to_pylist()
        for column in (devices["last_seen"], traffic["minute"], boots["first_seen"])
    )
    received = [*last_seen, *(minute + _MINUTE_S * US for minute in minutes)]
    if not received:
        return 0, 0
    end_us = max(received)
    return max(min(last_seen + minutes + first_seen), end_us - round(days * DAY_US)), end_us


def _newest(devices: pa.Table, end_us: int) -> int:
    return max([end_us, *devices["last_seen"].cast(pa.int64()).drop_null().to_pylist()])


def _json(data: dict[str, Any]) -> str:
    """Return JSON for a script element, with <, > and & escaped: `<` could end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return resources.files("spark_ingest.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

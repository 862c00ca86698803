"""What the page shows, in SQL over gold, and over silver for a span of up to an hour.

Everything is sorted and rounded here, so the same tables give the same page byte for byte. Times are Unix microseconds
in the SQL (*_us) and seconds in the page. A chart has a value for each of its equal steps of time.
"""

import base64
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from ..tables.schemas import GOODBYES, HEALTH
from .tables import Tables

US = 1_000_000
DAY_US = 86_400 * US
LONGEST_US = 3600 * US
MOST_READINGS = 500_000
"""A longer span, or one with more readings, is drawn from gold's minutes and five-minute windows."""
TEXT_BUDGET = 1_500_000
"""Most characters of the lines of all devices together."""
_MOST_METRICS, _LISTED_GAPS, _LISTED_ALERTS = 8, 100, 200
_TRAFFIC_STEPS, _OTHER_STEPS = 240, 96
_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
_NO_VALUE = 0xFFFF
# Metric to title and unit; these come first, and the others by their number of windows.
_KNOWN = {
    "supply_v": ("Battery", "V"),
    "temp_c": ("Temperature", "°C"),
    "mem_free": ("Free memory", "bytes"),
    "rssi": ("Signal (rssi)", "dBm"),
}
# Names on the page of the columns of gold/devices.
_DEVICES = {
    "id": "device_id",
    "health": "coalesce(health, 'ok')",
    "group": "device_group",
    "seen": "epoch_us(last_seen) // 1000000",
    "readings": "readings",
    "missing": "missing",
    "dropped": "dropped_announced",
    "duplicates": "duplicates",
    "quarantined": "quarantined",
    "boots": "boots",
    "reboots": "reboots_24h",
    "behind": "clock_behind_h",
    "p50": "delay_p50_ms",
    "p95": "delay_p95_ms",
    "clock": "clock_ok_share",
    **{name: name for name in _KNOWN},
    "fw": "fw",
    "link": f"""CASE WHEN online THEN 'online' WHEN NOT online THEN
        CASE WHEN coalesce(status_reason IN {GOODBYES}, FALSE) THEN 'goodbye' ELSE 'lost' END END""",
}


class Timeline(NamedTuple):
    """`count` steps of `step` seconds from `start` (Unix seconds) on, which is a multiple of `step`."""

    start: int
    step: int
    count: int

    @classmethod
    def between(cls, start_us: int, end_us: int, finest_s: int, most: int) -> "Timeline":
        """Return at most `most` steps that reach from start to end, as fine as `finest_s` seconds allow."""
        first, last = start_us // US, max(start_us, end_us - 1) // US
        for step in _STEPS_S:
            begin, count = first // step, last // step - first // step + 1
            if step >= finest_s and count <= most:
                return cls(begin * step, step, count)
        # Longer than anybody keeps telemetry: the newest steps.
        step = _STEPS_S[-1]
        return cls((last // step - most + 1) * step, step, most)

    def of(self, us: str) -> str:
        """Return SQL for the step of a time."""
        return f"(({us}) // 1000000 - {self.start}) // {self.step}"

    @property
    def inside(self) -> str:
        """SQL for the condition that the column `step` is one of the steps."""
        return f"step BETWEEN 0 AND {self.count - 1}"

    def column(self, values: Mapping[int, float | None], default: float | None = 0) -> list[float | None]:
        """Return a value for each step, with `default` for those that have none."""
        return [rounded(values.get(step, default)) for step in range(self.count)]

    def chart(self, title: str, unit: str, form: str, *series: tuple[str, str, list], **more: Any) -> dict[str, Any]:
        """Return a chart for the page: series are (name, colour, values); page.js has the other keys."""
        named = [dict(zip(("name", "tone", "values"), one, strict=True)) for one in series]
        return {**self._asdict(), "title": title, "unit": unit, "format": form, "series": named, **more}


def rounded(value: float | None) -> float | int | None:
    """Round to five significant digits, which is more than a chart shows; None for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    if not math.isfinite(short):  # The largest floats round up to infinity.
        return value
    return int(short) if short.is_integer() and abs(short) < 1 << 53 else short


def collect(tables: Tables, days: float) -> dict[str, Any]:
    """Return everything that the page shows, ready for JSON. `days`: how far back the charts reach."""
    devices = _devices(tables)
    start_us, end_us = _span(tables, days)
    short = _arrivals(tables, start_us, end_us)
    traffic_s, metric_s, coarse_s = 60, 300, 300
    if short:
        readings, start_us, newest_us = short
        end_us = max([newest_us, *(seen * US for seen in devices["seen"] if seen is not None)])
        # Four readings of the fleet in a step on average, or two of each device, so that lines have no holes.
        apart_s = (newest_us - start_us) / US / readings
        traffic_s = min(60, math.ceil(apart_s * 4))
        metric_s, coarse_s = min(300, math.ceil(apart_s * 2 * len(devices["id"]))), 1
    coarse = Timeline.between(start_us, end_us, coarse_s, _OTHER_STEPS)
    traffic = Timeline.between(start_us, end_us, traffic_s, _TRAFFIC_STEPS)
    gaps, alerts = _gaps(tables), _alerts(tables)
    link = Counter(devices["link"])
    totals = {name: sum(filter(None, devices[name])) for name in ("readings", "missing", "dropped", "duplicates")}
    silent_s = [
        (row["since"] or 0) + round(row["value"]) for row in alerts if row["kind"] == "offline" and row["until"] is None
    ]
    return {
        "from": start_us // US,
        "as_of": end_us // US,
        # A fleet that is silent as a whole is silent until gold judged it, and not until its newest message.
        "now": max([end_us // US, *silent_s]),
        "totals": {
            "devices": len(devices["id"]),
            **{name: link[name] for name in ("online", "goodbye", "lost")},
            **totals,
            "gaps": sum(row["open"] for row in gaps),
            "alerts": sum(row["until"] is None for row in alerts),
        },
        # A column that no device has is left out.
        "devices": {name: some for name, some in devices.items() if name == "link" or {*some} - {None} or not some},
        "charts": [
            *_traffic(tables, traffic, start_us, end_us, "second" if short else "minute"),
            _losses(tables, coarse),
            _reboots(tables, coarse),
        ],
        "metrics": _metrics(
            tables,
            Timeline.between(start_us, end_us, metric_s, _OTHER_STEPS),
            devices["id"],
            "silver" if short else "windows",
        ),
        "gaps": gaps[:_LISTED_GAPS],
        "gaps_total": len(gaps),
        "alerts": alerts[:_LISTED_ALERTS],
        "alerts_total": len(alerts),
    }


def _devices(tables: Tables) -> dict[str, list]:
    """Return the devices by column, worst health first; a health that is not known here comes first."""
    rank = f"coalesce(list_position({[*HEALTH]}, coalesce(health, 'ok')), 0)"
    rows = tables.rows("devices", f"SELECT {', '.join(_DEVICES.values())} FROM devices ORDER BY {rank}, device_id")
    columns = zip(*rows, strict=True) if rows else ((),) * len(_DEVICES)
    return {
        name: [rounded(value) if isinstance(value, float) else value for value in column]
        for name, column in zip(_DEVICES, columns, strict=True)
    }


def _span(tables: Tables, days: float) -> tuple[int, int]:
    """Return from when to when the charts reach, by received times, which do not depend on the devices' clocks."""
    firsts, lasts = [], [0]
    for table, first, last in (
        ("devices", "last_seen", "last_seen"),
        ("traffic", "minute", "minute + INTERVAL 1 MINUTE"),
        ("boots", "first_seen", "NULL"),
    ):
        query = f"SELECT min(epoch_us({first})), max(epoch_us(({last})::TIMESTAMPTZ)) FROM {table}"
        ((earliest, latest),) = tables.rows(table, query)
        firsts += [earliest] if earliest is not None else []
        lasts += [latest] if latest is not None else []
    end_us = max(lasts)
    return max(min(firsts), end_us - round(days * DAY_US)) if end_us else 0, end_us


def _arrivals(tables: Tables, start_us: int, end_us: int) -> tuple[int, int, int] | None:
    """Make a table of the readings that came in a short span, and one of what else came.

    :returns: the number of readings, and when the first and just after the last message came; None if the span is too
        long, has too many readings, or silver has none.
    """
    minutes = f"epoch_us(minute) > {start_us - 60 * US} AND epoch_us(minute) <= {end_us}"
    ((expected,),) = tables.rows("traffic", f"SELECT coalesce(sum(readings), 0) FROM traffic WHERE {minutes}")
    if end_us - start_us > LONGEST_US or expected > MOST_READINGS:
        return None
    inside = f"received_ts BETWEEN make_timestamptz({start_us}) AND make_timestamptz({end_us})"
    # A reading cannot be received before it is taken, so a clock that is ahead is corrected.
    tables.rows(
        "silver",
        f"""CREATE TEMP TABLE arrivals AS
        SELECT device_id, epoch_us(received_ts) AS came_us, epoch_us(event_ts) AS event_us,
               least(came_us, event_us) AS taken_us, coalesce(clock_ok, FALSE) AS clock_ok, metrics
        FROM silver WHERE {inside} AND received_date >= make_timestamp({start_us})::DATE""",
    )
    tables.rows("silver", "CREATE TEMP TABLE others (kind VARCHAR, came_us BIGINT)")
    for kind in ("duplicates", "quarantine"):
        tables.rows(kind, f"INSERT INTO others SELECT '{kind}', epoch_us(received_ts) FROM {kind} WHERE {inside}")
    ((readings, first, last),) = tables.rows(
        "silver",
        """SELECT count(*) FILTER (kind = ''), min(came_us), max(came_us) + 1
        FROM (SELECT '' AS kind, came_us FROM arrivals UNION ALL FROM others)""",
    )
    return (readings, first, last) if readings else None


def _traffic(tables: Tables, line: Timeline, start_us: int, end_us: int, per: str) -> list[dict[str, Any]]:
    """Return the charts of what came. `per`: second, from the single readings; or minute, from gold."""
    step_of = line.of
    if per == "minute":
        rows = tables.rows(
            "traffic",
            f"""SELECT {step_of("epoch_us(minute)")} AS step, sum(readings), sum(duplicates), sum(quarantined),
                sum(delay_p50_ms * readings) / sum(readings) FILTER (delay_p50_ms IS NOT NULL),
                sum(delay_p95_ms * readings) / sum(readings) FILTER (delay_p95_ms IS NOT NULL)
            FROM traffic GROUP BY step""",
        )
    else:
        rows = tables.rows(
            "silver",
            f"""SELECT step, count(*) FILTER (kind = 'came'), count(*) FILTER (kind = 'duplicates'),
                count(*) FILTER (kind = 'quarantine'), quantile_cont(ms, 0.5), quantile_cont(ms, 0.95),
                count(*) FILTER (kind = 'taken')
            FROM (SELECT 'came' AS kind, {step_of("came_us")} AS step,
                      CASE WHEN clock_ok THEN (came_us - taken_us) / 1000 END AS ms FROM arrivals
                  UNION ALL SELECT 'taken', greatest({step_of("taken_us")}, -1), NULL FROM arrivals
                  UNION ALL SELECT kind, {step_of("came_us")}, NULL FROM others)
            GROUP BY step""",
        )

    def rate(at: int) -> list[float | None]:
        per_s = 60 if per == "minute" else 1
        found = ((row[0], row[at] or 0) for row in rows)
        return line.column({step: n * per_s / _observed_s(line, step, start_us, end_us) for step, n in found})

    p50, p95 = (line.column({row[0]: row[at] for row in rows}, None) for at in (4, 5))
    charts = []
    received = [("received", "a", rate(1))]
    if per == "second":
        received.insert(0, ("taken on the devices", "b", rate(6)))
        # Readings that were taken and had not come at the end of each step; step -1: taken before the first one.
        changes = {row[0]: row[6] - row[1] for row in rows}
        waiting = [*accumulate(changes.get(at, 0) for at in range(-1, line.count))][1:]
        note = "It rises while a network is away, and falls when it is back."
        series = ("taken and not yet received", "warn", waiting)
        charts.append(line.chart("Waiting on the devices", "readings", "count", series, zero=True, note=note))
    return [
        *charts,
        line.chart("Message rate", f"readings a {per}", "plain", *received, zero=True),
        line.chart(
            *("Delay", "from the reading to the collector", "duration", ("p95", "b", p95), ("p50", "a", p50)),
            log=True,
            note="The scale is logarithmic.",
        ),
        line.chart(
            *("Duplicates and quarantine", f"a {per}", "plain"),
            *(("duplicates dropped", "b", rate(2)), ("quarantined", "bad", rate(3))),
            zero=True,
            note="None of these is in the tables twice: they came twice, or could not be read.",
        ),
    ]


def _observed_s(line: Timeline, step: int, start_us: int, end_us: int) -> float:
    """Return the seconds of a step that are within the span, so that the first and last step have a true rate."""
    begin = line.start + step * line.step
    inside = min(begin + line.step, end_us / US) - max(begin, start_us / US)
    return inside if inside > 0 else line.step


def _losses(tables: Tables, line: Timeline) -> dict[str, Any]:
    rows = tables.rows(
        "gaps",
        f"""SELECT {line.of("epoch_us(since)")} AS step, sum(missing) FILTER (open), sum(missing) FILTER (announced)
        FROM gaps WHERE since IS NOT NULL GROUP BY step""",
    )
    missing, dropped = (line.column({row[0]: row[at] or 0 for row in rows}) for at in (1, 2))
    series = ("missing", "warn", missing), ("dropped on the device", "quiet", dropped)
    note = "Only gaps that are still there."
    return line.chart("Readings in gaps", "by when the gap was noticed", "count", *series, zero=True, note=note)


def _reboots(tables: Tables, line: Timeline) -> dict[str, Any]:
    """Return the reboots of the fleet: all known boots of a device but the first."""
    # The device's own time of boot does not count if it is later than the first message, or over 400 days before it.
    rows = tables.rows(
        "boots",
        f"""SELECT {line.of("us")} AS step, count(*) FROM (
            SELECT *, row_number() OVER (PARTITION BY device_id ORDER BY us) AS nth FROM (
                SELECT device_id, epoch_us(first_seen) AS seen_us,
                    CASE WHEN seen_us - anchor_ts_us BETWEEN 0 AND {400 * DAY_US} THEN anchor_ts_us
                         ELSE seen_us END AS us
                FROM boots))
        WHERE nth > 1 GROUP BY step""",
    )
    return line.chart("Reboots", "of all devices", "count", ("reboots", "b", line.column(dict(rows))), zero=True)


def _gaps(tables: Tables) -> list[dict[str, Any]]:
    """Return the gaps, largest first."""
    names = ("device", "missing", "first", "last", "boot", "state", "open", "since")
    rows = tables.rows(
        "gaps",
        """SELECT device_id, missing, "first", "last", boot, state, coalesce(open, FALSE), epoch_us(since) // 1000000
        FROM gaps ORDER BY missing DESC, device_id, boot, "first" """,
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _alerts(tables: Tables) -> list[dict[str, Any]]:
    """Return the alerts: open ones first, and newest first among each."""
    names = ("device", "rule", "kind", "text", "since", "until", "value")
    rows = tables.rows(
        "alerts",
        """SELECT device_id, rule, kind, text, epoch_us(since) // 1000000, epoch_us(until) // 1000000,
            CASE WHEN isfinite("value") THEN "value" ELSE 0 END
        FROM alerts ORDER BY until IS NOT NULL, since DESC NULLS LAST, device_id, kind""",
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def _metrics(tables: Tables, line: Timeline, devices: list[str], source: str) -> list[dict[str, Any]]:
    """Return a chart for each metric: percentiles of the devices' means, and a line for each device.

    If there is not enough room for all lines, the first devices get theirs.
    """
    values = f"""SELECT device_id, metric, {line.of("epoch_us(window_start)")} AS step, n, "sum" AS total
        FROM windows WHERE window_start >= make_timestamptz({line.start * US})"""
    if source == "silver":
        values = f"""SELECT device_id, metric.key AS metric, {line.of("event_us")} AS step, 1 AS n,
                metric.value AS total
            FROM (SELECT device_id, event_us, unnest(map_entries(metrics)) AS metric FROM arrivals)"""
    found = tables.rows(
        source,
        f"""SELECT metric FROM ({values}) WHERE {line.inside} AND n > 0 AND isfinite(total)
        GROUP BY metric ORDER BY count(*) DESC, metric""",
    )
    known = [name for (name,) in found]
    names = ([name for name in _KNOWN if name in known] + [name for name in known if name not in _KNOWN])[
        :_MOST_METRICS
    ]
    chosen = ", ".join(map(_quoted, names)) or "NULL"
    tables.rows(
        source,
        f"""CREATE TEMP TABLE means AS SELECT metric, device_id, step, sum(total) / sum(n) AS mean
        FROM ({values}) WHERE {line.inside} AND n > 0 AND isfinite(total) AND metric IN ({chosen}) GROUP BY ALL""",
    )
    room = TEXT_BUDGET // (3 * line.count * max(1, len(names)))
    charts = []
    for name in names:
        mine = f"WHERE isfinite(mean) AND metric = {_quoted(name)}"
        bands = tables.rows(
            source, f"SELECT step, quantile_cont(mean, [0.1, 0.5, 0.9]), count(*) FROM means {mine} GROUP BY step"
        )
        lines = dict(tables.rows(source, f"SELECT device_id, list((step, mean)) FROM means {mine} GROUP BY ALL"))
        if not bands:
            continue
        low, mid, high = (line.column({step: band[at] for step, band, _ in bands}, None) for at in range(3))
        title, unit = _KNOWN.get(name, (name, "plain"))
        drawn = {str(at): encoded(lines[one], line.count) for at, one in enumerate(devices[:room]) if one in lines}
        charts.append(
            line.chart(title, "" if name in _KNOWN else "metric", unit, ("median", "a", mid))
            | {"metric": name, "band": {"low": low, "high": high}, "devices": len(lines), "lines": drawn}
        )
    return charts


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def encoded(values: Sequence[tuple[int, float]], count: int) -> list[Any]:
    """Encode a device's (step, value) as [lowest, highest, text]: a third of the size of JSON numbers.

    The text is base64 of 16 bits for each step, from 0 at the lowest value to 65,534 at the highest one.
    """
    low, high = min(value for _, value in values), max(value for _, value in values)
    # Halved first, as their difference may be too large for a float.
    span = high / 2 - low / 2
    levels = array("H", [_NO_VALUE] * count)
    for step, value in values:
        levels[step] = round((value / 2 - low / 2) / span * (_NO_VALUE - 1)) if span > 0 else 0
    return [rounded(low), rounded(high), base64.b64encode(levels.tobytes()).decode()]

"""The fleet's devices: searched, sorted, filtered and paged here, so that a page never has 100,000 rows."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from spark_ingest.tables.schemas import GOODBYES, HEALTH

from .tables import Tables

US = 1_000_000
_SPARK_STEPS = 48
_SPARK_S = 24 * 3600
_MOST_METRICS = 200
# The columns of a device: SQL over gold/devices (d) and the number of its open alerts (a).
COLUMNS: Mapping[str, str] = {
    "device": "d.device_id",
    "health": "coalesce(d.health, 'ok')",
    "link": f"""CASE WHEN d.online THEN 'online' WHEN NOT d.online THEN
        CASE WHEN coalesce(d.status_reason IN {GOODBYES}, FALSE) THEN 'goodbye' ELSE 'lost' END ELSE 'unknown' END""",
    "seen": "epoch_ms(d.last_seen)",
    "alerts": "coalesce(a.n, 0)",
    "group": "d.device_group",
    "site": "d.site",
    "fw": "d.fw",
    "readings": "d.readings",
    "missing": "d.missing",
    "dropped": "d.dropped_announced",
    "duplicates": "d.duplicates",
    "quarantined": "d.quarantined",
    "gaps": "d.open_gaps",
    "boots": "d.boots",
    "reboots": "d.reboots_24h",
    "delay_p50": "d.delay_p50_ms",
    "delay_p95": "d.delay_p95_ms",
    "clock": "d.clock_ok_share",
    "behind": "d.clock_behind_h",
    "mem_free": "d.mem_free",
    "rssi": "d.rssi",
    "temp_c": "d.temp_c",
    "supply_v": "d.supply_v",
    "boot": "d.boot",
    "reason": "d.status_reason",
}
FACETS = ("health", "link", "group", "site", "fw")
"""Columns by which the table can be filtered."""
_MOST_VALUES = 50


class Fleet:
    """The devices, in memory, made anew when gold/devices or gold/alerts have a new version. Thread-safe."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._database = duckdb.connect(config={"autoinstall_known_extensions": False, "threads": 2})
        self._versions: dict[str, int] = {}
        self._facets: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._metrics: tuple[int, list[str]] = (-2, [])
        # By metric: the version of gold/windows, and the table here that has the newest value of each device.
        self._newest: dict[str, tuple[int, str]] = {}

    def page(
        self, search: str, chosen: Mapping[str, Sequence[str]], sort: str, *, down: bool, offset: int, limit: int,
        metrics: Sequence[str],
    ) -> dict[str, Any]:  # fmt: skip
        """Return some rows of the table, and how many match.

        chosen: values of columns of FACETS; None of a device is the text "". sort: a column, "" for worst health first,
        or `m:METRIC`.

        :raises TablesAway: the tables cannot be read.
        """
        self.refresh()
        where, values = _condition(search, chosen)
        cursor = self._database.cursor()
        try:
            joins = ""
            names = [f'"{name}"' for name in COLUMNS]
            for at, metric in enumerate(metrics):
                table = self._newest_of(metric)
                joins += f" LEFT JOIN {table} m{at} ON m{at}.device_id = device"
                names.append(f'm{at}."value" AS "m:{at}"')
            order = _order(sort, down, metrics)
            found = cursor.execute(
                f"SELECT {', '.join(names)} FROM fleet{joins} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
                [*values, limit, offset],
            ).fetchall()
            ((matched,),) = cursor.execute(f"SELECT count(*) FROM fleet WHERE {where}", values).fetchall()
        finally:
            cursor.close()
        keys = [*COLUMNS, *(f"m:{metric}" for metric in metrics)]
        return {
            "columns": keys,
            "rows": [list(row) for row in found],
            "matched": matched,
            "version": self._versions.get("devices", -1),
        }

    def summary(self) -> dict[str, Any]:
        """Return what the top of the page shows: totals, the values of each facet, and the metrics that there are."""
        self.refresh()
        return {"totals": self._totals, "facets": self._facets, "metrics": self._metric_names()}

    def find(self, device: str) -> dict[str, Any] | None:
        """Return the row of one device."""
        self.refresh()
        cursor = self._database.cursor()
        try:
            row = cursor.execute("SELECT * EXCLUDE (haystack, rank) FROM fleet WHERE device = ?", [device]).fetchone()
            return None if row is None else dict(zip(COLUMNS, row, strict=True))
        finally:
            cursor.close()

    def sparks(self, devices: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
        """Return, for each metric, a line of means for each device over the newest day of its windows."""
        if not devices or not metrics:
            return {"step_s": _SPARK_S // _SPARK_STEPS, "lines": {}}
        step = _SPARK_S * US // _SPARK_STEPS
        rows = self._tables.rows(
            ["windows", "devices"],
            f"""WITH newest AS
                (SELECT max(epoch_us(last_event_ts)) AS us FROM devices WHERE list_contains(?, device_id))
            SELECT metric, device_id,
                least({_SPARK_STEPS - 1}, (epoch_us(window_start) - us + {_SPARK_S * US}) // {step}) AS step,
                sum("sum") / sum(n) AS mean
            FROM windows, newest
            WHERE list_contains(?, device_id) AND list_contains(?, metric) AND n > 0
              AND epoch_us(window_start) BETWEEN us - {_SPARK_S * US} AND us GROUP BY ALL""",
            list(devices),
            list(devices),
            list(metrics),
        )
        lines: dict[str, dict[str, list[float | None]]] = {metric: {} for metric in metrics}
        for row in rows:
            none: list[float | None] = [None] * _SPARK_STEPS
            line = lines[row["metric"]].setdefault(row["device_id"], none)
            line[row["step"]] = row["mean"]
        return {"step_s": _SPARK_S // _SPARK_STEPS, "lines": lines}

    def refresh(self) -> None:
        """Read the devices again if there is a newer version."""
        versions = self._tables.versions(("devices", "alerts"))
        if versions == self._versions:
            return
        with self._lock:
            if versions == self._versions:
                return
            cursor = self._tables.cursor("devices", "alerts")
            columns = ", ".join(f'{sql} AS "{name}"' for name, sql in COLUMNS.items())
            made = cursor.sql(
                f"""SELECT {columns},
                    lower(concat_ws(' ', d.device_id, d.health, d.device_group, d.site, d.fw)) AS haystack,
                    coalesce(list_position({[*HEALTH]}, coalesce(d.health, 'ok')), 0) AS rank
                FROM devices d LEFT JOIN (SELECT device_id, count(*) AS n FROM alerts
                    WHERE until IS NULL GROUP BY ALL) a USING (device_id)"""
            ).to_arrow_table()
            cursor.close()
            self._database.register("made", made)
            self._database.execute("CREATE OR REPLACE TABLE fleet AS FROM made ORDER BY rank, device")
            self._database.unregister("made")
            self._totals, self._facets = self._sum_up()
            self._versions = versions

    def _sum_up(self) -> tuple[dict[str, Any], dict[str, Any]]:
        run = self._database.execute
        totals = run(
            """SELECT count(*) AS devices, sum(readings)::BIGINT AS readings, sum(missing)::BIGINT AS missing,
                sum(dropped)::BIGINT AS dropped, sum(duplicates)::BIGINT AS duplicates,
                sum(quarantined)::BIGINT AS quarantined, sum(gaps)::BIGINT AS gaps, sum(alerts)::BIGINT AS alerts,
                count(*) FILTER (link = 'online') AS online, count(*) FILTER (reboots > 0) AS rebooted,
                max(seen) AS seen FROM fleet"""
        )
        names = [column[0] for column in totals.description or ()]
        values = totals.fetchone()
        assert values is not None
        found: dict[str, Any] = dict(zip(names, (value or 0 for value in values), strict=True))
        facets = {}
        for name in FACETS:
            counted = run(f"SELECT coalesce(\"{name}\", ''), count(*) FROM fleet GROUP BY ALL ORDER BY 2 DESC, 1")
            facets[name] = [list(row) for row in counted.fetchmany(_MOST_VALUES)]
        order = {name: at for at, name in enumerate(HEALTH)}
        facets["health"].sort(key=lambda row: order.get(row[0], -1))
        return found, facets

    def _metric_names(self) -> list[str]:
        """Return the names of the metrics of gold/windows, the most frequent ones first."""
        version = self._tables.version("windows")
        if self._metrics[0] != version:
            rows = self._tables.rows(
                ["windows"],
                """SELECT metric, count(*) AS n FROM windows WHERE window_date >=
                    (SELECT max(window_date) FROM windows) - INTERVAL 1 DAY GROUP BY ALL ORDER BY n DESC, metric""",
            )
            self._metrics = version, [row["metric"] for row in rows[:_MOST_METRICS]]
        return self._metrics[1]

    def _newest_of(self, metric: str) -> str:
        """Make a table of the newest value of a metric of each device, and return its name."""
        version = self._tables.version("windows")
        with self._lock:
            read, table = self._newest.get(metric, (-2, f"newest_{len(self._newest)}"))
            if read != version:
                cursor = self._tables.cursor("windows")
                made = cursor.sql(
                    """SELECT device_id, arg_max("last", window_start) AS "value" FROM windows
                    WHERE metric = ? AND window_date >= (SELECT max(window_date) FROM windows) - INTERVAL 1 DAY
                    GROUP BY ALL""",
                    params=[metric],
                ).to_arrow_table()
                cursor.close()
                self._database.register("made", made)
                self._database.execute(f"CREATE OR REPLACE TABLE {table} AS FROM made")
                self._database.unregister("made")
                self._newest[metric] = version, table
            return table


def _condition(search: str, chosen: Mapping[str, Sequence[str]]) -> tuple[str, list[Any]]:
    parts, values = ["TRUE"], []
    for word in search.lower().split():
        parts.append("contains(haystack, ?)")
        values.append(word)
    for name in FACETS:
        if chosen.get(name):
            parts.append(f"list_contains(?, coalesce(\"{name}\", ''))")
            values.append(list(chosen[name]))
    return " AND ".join(parts), values


def _order(sort: str, down: bool, metrics: Sequence[str]) -> str:
    way = "DESC" if down else "ASC"
    if sort.startswith("m:") and sort[2:] in metrics:
        return f'm{metrics.index(sort[2:])}."value" {way} NULLS LAST, device'
    if sort in ("", "health") or sort not in COLUMNS:
        return f"rank {way if sort else 'ASC'}, device"
    return f'"{sort}" {way} NULLS LAST, device'

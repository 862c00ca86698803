"""The data path: brokers, collectors, spool, bronze, silver, gold; how fast it is, how far behind, what it refuses."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_ingest.errors import IngestError
from spark_ingest.spool.view import Spools

from .device import samples
from .tables import Tables, TablesAway

_MINUTES = 180
_LATE_MS = 60_000
_BEHIND_BYTES = 4 * 1024 * 1024
_LAYERS = {"bronze": ("bronze",), "silver": ("silver",), "gold": ("devices", "windows", "boots")}
# $SYS topics of brokers: what mosquitto has too.
_SYS = {
    "clients": "clients/connected",
    "in_per_min": "load/messages/received/1min",
    "out_per_min": "load/messages/sent/1min",
    "queued": "store/messages/count",
    "dropped": "publish/messages/dropped",
}


def stages(
    tables: Tables, spools: Spools | None, brokers: Sequence[Mapping[str, Any]], said: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the parts of the path in order, each with its state (ok, late, unknown, offline) and figures.

    said: what `$SYS/broker/` topics say, by the rest of their names.
    """
    found: list[dict[str, Any]] = [*_broker_stages(brokers, said), *_spool_stages(tables, spools)]
    before_ms: int | None = None
    for name, of in _LAYERS.items():
        stage = _layer(tables, name, of)
        at = stage["figures"].get("committed_at")
        # A layer is late if the one before it was written later, and long ago.
        if before_ms and at and before_ms - at > _LATE_MS and time.time() * 1000 - before_ms > _LATE_MS:
            stage["state"], stage["text"] = "late", "has not stored what the layer before it has"
        before_ms = at or before_ms
        found.append(stage)
    return found


def traffic(tables: Tables) -> dict[str, list[Any]]:
    """Return the last three hours of traffic, a column of values for each minute that had any."""
    rows = tables.rows(
        ["traffic"],
        f"""SELECT epoch_ms(minute) AS "at", readings, duplicates, quarantined, bytes, devices, delay_p50_ms AS p50,
            delay_p95_ms AS p95 FROM traffic
        WHERE minute > (SELECT max(minute) FROM traffic) - INTERVAL {_MINUTES} MINUTE ORDER BY minute""",
    )
    names = ("at", "readings", "duplicates", "quarantined", "bytes", "devices", "p50", "p95")
    return {name: [row[name] for row in rows] for name in names}


def refused(tables: Tables) -> dict[str, list[dict[str, Any]]]:
    """Return how many messages were quarantined for each reason, and the newest of them."""
    reasons = tables.rows(
        ["quarantine"],
        """SELECT regexp_replace(reason, '[0-9]+', 'N', 'g') AS reason, count(*) AS n,
            count(DISTINCT device_id) AS devices, epoch_ms(max(received_ts)) AS last,
            arg_max(topic, received_ts) AS topic
        FROM quarantine GROUP BY 1 ORDER BY n DESC LIMIT 50""",
    )
    return {"reasons": reasons, "samples": samples(tables)}


def alerts(tables: Tables) -> list[dict[str, Any]]:
    """Return the alerts of the fleet: open ones first, and newest first among each."""
    return tables.rows(
        ["alerts"],
        """SELECT device_id AS device, rule, kind, text, epoch_ms(since) AS since, epoch_ms(until) AS until, "value"
        FROM alerts ORDER BY until IS NOT NULL, since DESC NULLS LAST, device_id LIMIT 500""",
    )


def _broker_stages(brokers: Sequence[Mapping[str, Any]], said: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for one in brokers:
        figures = {name: _number(said.get(topic)) for name, topic in _SYS.items()} if one["connected"] else {}
        text = one["problem"] or ("" if said else "it publishes no $SYS topics")
        yield _stage("broker", one["where"], "ok" if one["connected"] else "offline", text, figures)


def _spool_stages(tables: Tables, spools: Spools | None) -> Iterator[dict[str, Any]]:
    if spools is None:
        yield _stage("spool", "", "unknown", "not on this computer, or not given: --spool", {})
        return
    try:
        names = spools.names()
        if not names:
            yield _stage("spool", str(spools.root), "unknown", "no collector has written here yet", {})
        stored = _stored(tables) if names else {}
        for name in names:
            yield _spool(spools, name, stored)
    except (IngestError, TablesAway, OSError) as error:
        yield _stage("spool", str(spools.root), "offline", str(error), {})


def _spool(spools: Spools, name: str, stored: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    view = spools.view(name)
    durable = view.durable()
    if durable is None:
        return _stage("spool", name, "unknown", "no collector has opened it", {})
    segments = view.segments()
    sizes = {one: view.segment_end(one, durable) for one in segments}
    segment, position = stored.get(durable.spool, (segments[0] if segments else 0, 0))
    # `position` is where the newest stored message begins, so the end of its block counts as behind.
    behind = sum(size - (position if one == segment else 0) for one, size in sizes.items() if one >= segment)
    written_ms = int((view.folder / "pos").stat().st_mtime * 1000)
    figures = {
        "bytes": sum(sizes.values()),
        "segments": len(segments),
        "behind_bytes": behind,
        "written_at": written_ms,
    }
    late = behind > _BEHIND_BYTES
    return _stage(
        "spool", name, "late" if late else "ok", "the tables are behind: it backs up here" if late else "", figures
    )


def _stored(tables: Tables) -> dict[str, tuple[int, int]]:
    """Return the place of the newest message of each spool that bronze has."""
    rows = tables.rows(
        ["bronze"],
        """SELECT spool, max(segment * 1099511627776 + position) AS place FROM bronze
        WHERE received_date >= (SELECT max(received_date) FROM bronze) - INTERVAL 1 DAY GROUP BY ALL""",
    )
    return {row["spool"]: divmod(row["place"], 1 << 40) for row in rows}


def _layer(tables: Tables, name: str, of: Sequence[str]) -> dict[str, Any]:
    try:
        commits = [commit for one in of if (commit := tables.newest_commit(one))]
    except TablesAway as error:
        return _stage("table", name, "offline", str(error), {})
    if not commits:
        return _stage("table", name, "unknown", "nothing is stored yet", {})
    rows = tables.count(of[0])
    figures = {"rows": rows, "committed_at": max(commits), "version": tables.version(of[0])}
    return _stage("table", name, "ok", "", figures)


def _stage(kind: str, name: str, state: str, text: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "state": state, "text": text, "figures": dict(figures)}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None

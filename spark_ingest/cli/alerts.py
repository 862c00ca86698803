"""umqtt alerts: shows what a file of alert rules says, and tests whether its messages arrive."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_ingest.location import PathOption
from umqtt_cli.console import notes, print_table, say
from umqtt_cli.errors import EXIT_NETWORK, KitError
from umqtt_cli.escape import printable

if TYPE_CHECKING:
    from spark_ingest.alerts.config import AlertConfig
    from spark_ingest.alerts.groups import Scope


@click.command()
@click.argument("file", type=PathOption(dir_okay=False))
@click.option("--send", is_flag=True, help="Send each destination a message that says it is a test.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def alerts(file: Path, send: bool, as_json: bool) -> None:
    """Check a file of alert rules, and show what it says.

    FILE is the alerts.toml of umqtt ingest --alerts. Default rules that it leaves are shown, too. No address of a
    destination is shown: it may hold a password. With --send, a destination that does not take the message ends the
    command with 4, once all were tried.

    \b
    Example:
      umqtt alerts alerts.toml
      umqtt alerts alerts.toml --send
    """
    from spark_ingest.alerts.config import load

    config = load(file)
    said = _said(config)
    failed = _send(config) if send else {}
    if send:
        for one in said["destinations"]:
            one["failed"] = failed.get(one["name"])
    if as_json:
        click.echo(json.dumps(said))
    else:
        _show(said)
    if failed:
        names = ", ".join(sorted(failed))
        what = f"no test message reached {printable(names)}"
        raise KitError(f"{what} — correct the url of each, or try again later", EXIT_NETWORK)


def _said(config: AlertConfig) -> dict[str, Any]:
    """Return what the file says, in JSON's types."""
    now_us = time.time_ns() // 1000
    return {
        "rules": [
            {"name": rule.name, "kind": rule.kind, "about": _about(rule.scope)} | {"values": rule.as_shown()}
            for rule in config.rules.rules
        ],
        "devices_in_groups": len(config.rules.groups),
        "wait_s": config.wait_s,
        "destinations": [
            {
                "name": one.name,
                "rules": list(one.rules),
                "about": _about(one.scope),
                "recovery": one.recovery,
                "format": "json" if one.as_json else "text",
            }
            for one in config.destinations
        ],
        "silences": [
            {
                "from": _time(one.begin_us),
                "until": _time(one.end_us),
                "rules": list(one.rules),
                "about": _about(one.scope) | ({"devices": list(one.devices)} if one.devices else {}),
                "now": one.begin_us <= now_us < one.end_us,
            }
            for one in config.silences
        ],
    }


def _about(scope: Scope) -> dict[str, list[str]]:
    return {name: list(names) for name, names in zip(("groups", "sites"), scope, strict=True) if names}


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).isoformat(timespec="seconds")


def _send(config: AlertConfig) -> dict[str, str]:
    """Send every destination a test message; return the names of those that did not take it, and why."""
    from spark_ingest.alerts.messages import test_message

    failed: dict[str, str] = {}
    for one in config.destinations:
        with notes().status(f"telling {printable(one.name)}"):
            wrong = one.send(*test_message(as_json=one.as_json))
        if wrong is not None:
            failed[one.name] = wrong
        say(f"{one.name}: {wrong or 'took the test message'}")
    if not config.destinations:
        say("there is nobody to tell: the file has no [[send]]")
    return failed


def _show(said: dict[str, Any]) -> None:
    tables = (
        ("rule", said["rules"], ("kind", "values", "about")),
        ("destination", said["destinations"], ("rules", "about", "recovery", "format")),
        ("silence", said["silences"], ("until", "rules", "about", "now")),
    )
    for title, rows, keys in tables:
        if not rows:
            continue
        cells = ((row.get("name") or row["from"], *(_cell(row[key]) for key in keys)) for row in rows)
        print_table((title, *keys), cells)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        said = (f"{name} {', '.join(of) if isinstance(of, list | tuple) else of}" for name, of in value.items())
        return "; ".join(said) or "all devices"
    return value if isinstance(value, str) else ", ".join(value) or "all rules"

"""umqtt brokers: shows the state of each broker of a fleet in one table."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_table, say
from umqtt_cli.errors import EXIT_NETWORK, KitError
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access

# Titles of the columns, and the topics below $SYS/broker that they show; mosquitto has these names too.
_FIGURES = {
    "uptime_s": "uptime",
    "connected": "clients/connected",
    "sessions": "clients/total",
    "received_per_min": "load/publish/received/1min",
    "sent_per_min": "load/publish/sent/1min",
    "stored": "store/messages/count",
    "dropped": "publish/messages/dropped",
}
_ROOT = "$SYS/broker/"
_NUMBER = re.compile(rb"([0-9]{1,15})(\.[0-9]{1,3})?( seconds)?")
# Retained messages follow the SUBACK at once. A broker that lacks some of them is not waited for any longer.
_FIGURES_WITHIN_S = 2.0
_AT_ONCE = 16


@click.command()
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def brokers(access: Access, as_json: bool) -> int:
    """Show the state of each broker of the fleet, by its $SYS topics.

    One row for each --broker, or for each broker in umqtt.toml. The exit code is 4 when one of them is away. A paired
    broker tells its figures every 10 seconds (sys_interval). What a broker does not tell this user is left empty.

    \b
    Example:
      umqtt brokers --broker mqtts://s1.example --broker mqtts://s2.example
    """
    # The brokers are asked in parallel, because one that is away takes seconds.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        rows = list(pool.map(_look_at, access.each))
    if as_json:
        click.echo(json.dumps({"brokers": rows}))
    else:
        _show(rows)
    return 0 if all(row["up"] for row in rows) else EXIT_NETWORK


def _look_at(access: Access) -> dict[str, object]:
    """Return the row of a broker. up: whether it let this user in; problem: why there are no figures."""
    from umqtt_kit.mqtt import Link

    row: dict[str, object] = {"broker": access.where, "up": False, "problem": None, **dict.fromkeys(_FIGURES)}
    titles = {_ROOT + topic: title for title, topic in _FIGURES.items()}

    def take(topic: str, payload: bytes, *_: object) -> None:
        if found := _NUMBER.fullmatch(payload):
            row[titles[topic]] = float(found[1] + found[2]) if found[2] else int(found[1])

    try:
        with Link(access, on_message=take) as link:
            row["up"] = True
            link.subscribe(*titles, qos=0)
            link.wait_for(lambda: all(row[title] is not None for title in _FIGURES), _FIGURES_WITHIN_S)
    except KitError as error:
        row["problem"] = str(error)
    return row


def _show(rows: list[dict[str, object]]) -> None:
    titles = [title.replace("_per_", "/").replace("_", " ") for title in _FIGURES]
    cells = []
    for row in rows:
        figures = ["" if row[title] is None else str(row[title]) for title in _FIGURES]
        cells.append((str(row["broker"]), "up" if row["up"] else "away", *figures))
    print_table(("broker", "state", *titles), cells, numbers=titles)
    for row in rows:
        if row["problem"]:
            say(str(row["problem"]))

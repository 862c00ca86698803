"""umqtt sparkplug: asks Sparkplug nodes for a rebirth."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_result
from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.groups import CommandGroup
from umqtt_kit.mqtt import broker_options

if TYPE_CHECKING:
    from umqtt_kit.mqtt import Access


@click.group(cls=CommandGroup)
def sparkplug() -> None:
    """Talk to Sparkplug nodes.

    \b
    Example:
      umqtt sparkplug rebirth plant/edge-7 --broker mqtt://192.168.1.2
    """


@sparkplug.command()
@click.argument("nodes", nargs=-1, required=True, metavar="GROUP/NODE…")
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def rebirth(nodes: tuple[str, ...], access: Access, as_json: bool) -> None:
    """Ask nodes to publish their birth certificates again, so that their data can be read.

    \b
    Example:
      umqtt sparkplug rebirth plant/edge-7 plant/edge-8
    """
    from spark_ingest.decoders.sparkplug_payload import rebirth_request
    from umqtt_kit.links import Links

    topics = [_topic(node) for node in nodes]
    with Links(access) as link:
        for topic in topics:
            # [tck-id-payloads-ncmd-qos]: commands are QoS 0.
            link.publish(topic, rebirth_request(round(time.time() * 1000)), 0)
        if not link.wait_for(lambda: not link.pending, 30):
            raise KitError(f"{access.where}: not all requests were written within 30 s", EXIT_NETWORK)
    if as_json:
        click.echo(json.dumps({"asked": list(nodes)}))
        return
    print_result(f"asked {len(topics)} node{'s' if len(topics) > 1 else ''} for a rebirth")


def _topic(node: str) -> str:
    group, _, name = node.partition("/")
    if not group or not name or set(node) & set("+#\0") or "/" in name:
        raise KitError(f"{node!r} is no node — give GROUP/NODE, as in the table's device_id", EXIT_USAGE)
    return f"spBv1.0/{group}/NCMD/{name}"

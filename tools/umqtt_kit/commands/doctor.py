"""umqtt doctor: what is wrong with a board, and what to do about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from spark_ingest.printable import printable
from umqtt_kit.console import results
from umqtt_kit.device.choose import choose, device_option, interrupt_option

if TYPE_CHECKING:
    from umqtt_kit.doctor.checks import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@device_option
@interrupt_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(device: str, interrupt: bool, as_json: bool) -> int:
    """Check a board from its port to its broker, and say what to do.

    The firmware is asked while it runs: sensors, Wi-Fi and broker are as it finds them. A board at its prompt tries
    them itself. Passwords stay on the board. Exit codes: 0 nothing failed, 3 the port, 4 Wi-Fi or broker, 5 the board.

    \b
    Example:
      umqtt doctor --device ttyACM0
    """
    from umqtt_kit.doctor.checks import FAIL, examine

    port = choose(device)
    findings: list[Finding] = []
    for finding in examine(port, interrupt=interrupt):
        findings.append(finding)
        if not as_json:
            _show(finding)
    failures = [finding for finding in findings if finding.state == FAIL]
    if as_json:
        checks = [finding.as_dict() for finding in findings]
        click.echo(json.dumps({"port": port.name, "ok": not failures, "checks": checks}))
    return failures[0].exit_code if failures else 0


def _show(finding: Finding) -> None:
    from rich.text import Text

    line = Text.assemble(
        (f"{finding.state:4}", _COLOURS[finding.state]), printable(f"  {finding.name}: {finding.text}")
    )
    results().print(line, soft_wrap=True)
    for traced in finding.more:
        results().print(Text(printable(f"      {traced}")), soft_wrap=True)
    if finding.remedy:
        results().print(Text(printable(f"      try: {finding.remedy}")), soft_wrap=True)

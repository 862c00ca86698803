"""umqtt doctor: finds out what is wrong with a board, and what to do about it."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_result, results, say
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_kit.device.choose import choose, device_option, interrupt_option
from umqtt_kit.mqtt import broker_options_if

if TYPE_CHECKING:
    from umqtt_kit.doctor.checks import Finding
    from umqtt_kit.mqtt import Access

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@device_option
@interrupt_option
@click.option("--hardware", is_flag=True,
              help="Try flash, power cut, watchdog, sleep, Wi-Fi, TLS and an update; print a report.")  # fmt: skip
@click.option("--yes", is_flag=True, help="With --hardware: do not ask.")
@broker_options_if(lambda options: options["hardware"])
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(device: str, interrupt: bool, hardware: bool, yes: bool, access: Access | None, as_json: bool) -> int:
    """Check a board from its port to its broker, and say what to do.

    The firmware is asked while it runs: sensors, Wi-Fi and broker are as it finds them. A board at its prompt tries
    them itself. Passwords stay on the board. Exit codes: 0 nothing failed, 3 the port, 4 Wi-Fi or broker, 5 the board.

    --hardware stops the program of the board, restarts it several times and asks for a power cut; it takes about two
    minutes. Then it updates the board through --broker, and rolls that back: about three minutes more. Its report, in
    Markdown, is for the page of the board, or for a report of a defect.

    \b
    Example:
      umqtt doctor --device ttyACM0
      umqtt doctor --hardware --broker mqtt://192.168.1.2 > report.md
    """
    from umqtt_kit.doctor.checks import FAIL, examine

    port = choose(device)
    if access is not None:
        from umqtt_kit.doctor.hardware import try_hardware

        _confirm(port.name, yes)
        found = try_hardware(port, _ask_for_a_cut if sys.stdin.isatty() else None, access, say)
    else:
        found = examine(port, interrupt=interrupt)
    findings: list[Finding] = []
    for finding in found:
        findings.append(finding)
        if hardware:
            say(printable(f"{finding.state:4}  {finding.name}: {finding.text}"))
            if finding.remedy:
                say(printable(f"      try: {finding.remedy}"))
        elif not as_json:
            _show(finding)
    if hardware and not as_json:
        for line in _report(findings):
            print_result(line)
    failures = [finding for finding in findings if finding.state == FAIL]
    if as_json:
        checks = [finding.as_dict() for finding in findings]
        click.echo(json.dumps({"port": port.name, "ok": not failures, "checks": checks}))
    return failures[0].exit_code if failures else 0


def _confirm(name: str, yes: bool) -> None:
    if yes:
        return
    question = f"The program of {name} is stopped, and the board restarted several times. Go on?"
    if not sys.stdin.isatty():
        raise KitError("--hardware stops the program of the board — repeat with --yes", EXIT_USAGE)
    click.confirm(question, abort=True, err=True)


def _ask_for_a_cut() -> None:
    say("Now cut the power of the board: unplug it within a minute, and plug it in again.")


def _report(findings: list[Finding]) -> list[str]:
    """Return the findings as lines of Markdown."""
    lines = [
        f"### Hardware report, umqtt {version('umqtt-robust')}, {time.strftime('%Y-%m-%d')}",
        "",
        "| tried | result | what was seen |",
        "|---|---|---|",
    ]
    lines += [
        f"| {finding.name} | {finding.state} | {printable(finding.text).replace('|', '/')} |" for finding in findings
    ]
    return lines


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

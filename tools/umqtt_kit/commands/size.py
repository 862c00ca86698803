"""umqtt size: shows what the device library, or everything that a board gets, costs a board."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from umqtt_cli.console import print_table, results, say
from umqtt_cli.errors import EXIT_LOST


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--board",
    metavar="BOARD",
    help="Instead: the files that `umqtt deploy` puts onto this kind of board.",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(10, 86_400_000),
    metavar="MS",
    help="With --board: between two readings. [default: the firmware's]",
)
def size(as_json: bool, board: str | None, interval_ms: int | None) -> int:
    """Show what the device library costs a board.

    For each module: bytes of .mpy in flash, and bytes of heap that its import takes when what it imports is there.

    It measures the bundle that goes onto boards: the smallest useful set as one module, and the optional modules. Heap
    is that of a 64-bit MicroPython; a 32-bit board needs 0.7 to 0.8 of it. Exits with 1 if a budget is exceeded.

    With --board: firmware and library, file by file, the flash they take of the board's file system, for how long
    the rest keeps readings without a broker, and after how many years it is worn out.

    \b
    Example:
      umqtt size --json
      umqtt size --board RPI_PICO_W
    """
    if board is not None:
        _show_files(board, interval_ms, as_json)
        return 0
    if interval_ms is not None:
        raise click.UsageError("--interval-ms is of a board — name it with --board")
    from umqtt_kit.sizes import BUDGETS, measure

    sizes = measure()
    passed = sizes.passed()
    if as_json:
        click.echo(json.dumps(sizes.as_dict()))
        return EXIT_LOST if passed else 0
    numbers = ("mpy bytes", "heap bytes")
    print_table(
        ("module", *numbers, "set"),
        (
            (
                module.module,
                f"{module.mpy_bytes:,}",
                f"{module.heap_bytes:,}",
                "smallest" if module.smallest else "",
            )
            for module in sizes.modules
        ),
        numbers,
    )
    results().print()
    rows = []
    for name, used in sizes.totals.items():
        limit = f"{BUDGETS[name]:,}" if name in BUDGETS else ""
        rows.append((name.removesuffix("_bytes").replace("_", " "), f"{used:,}", limit))
    numbers = ("bytes", "limit")
    print_table(("total", *numbers), rows, numbers)
    for line in passed:
        say(f"umqtt: {line} — save elsewhere, or raise the limit in umqtt_kit/sizes.py")
    return EXIT_LOST if passed else 0


def _show_files(board: str, interval_ms: int | None, as_json: bool) -> None:
    from umqtt_kit.firmware_settings import firmware_module
    from umqtt_kit.sizes import measure_files

    sizes = measure_files(board, interval_ms)
    if as_json:
        click.echo(json.dumps(asdict(sizes)))
        return
    print_table(("file", "bytes"), ((path, f"{used:,}") for path, used in sizes.files.items()), ("bytes",))
    results().print(
        f"\n{len(sizes.files)} files, {sum(sizes.files.values()):,} bytes; in whole blocks {sizes.flash_bytes:,} of "
        f"{sizes.file_system_bytes:,} bytes that the file system of {sizes.board} has"
    )
    room = firmware_module("room")
    results().print(
        f"With a reading each {sizes.interval_ms / 1000:g} s: {room.describe(sizes.hours, sizes.years)} "
        f"({room.ENDURANCE:,} erases a block)",
        soft_wrap=True,
    )

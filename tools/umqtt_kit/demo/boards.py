"""The virtual boards of the demo: real MicroPython processes that run firmware/, each with its own flash image."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from umqtt_testkit.board import BoardError, VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.machine import Machine

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.demo.plan import RunFolder
from umqtt_kit.deploy.build import deployed_files
from umqtt_kit.ground_truth import ground_truth_path


def missing_micropython() -> str | None:
    """Return in one line why there can be no virtual boards on this machine, or None."""
    try:
        micropython_command()
    except MicroPythonMissing as missing:
        return str(missing)
    return None


def board_ids(count: int) -> list[str]:
    return [f"board-{number:02d}" for number in range(1, count + 1)]


@contextlib.contextmanager
def virtual_boards(
    ids: list[str],
    broker: str,
    interval_ms: int,
    folder: RunFolder,
    machines: Mapping[str, Machine],
    secrets: bytes | None = None,
) -> Iterator[dict[str, VirtualBoard]]:
    """Boot boards with the firmware and its settings on their flash; yield them by id, and end them at the end.

    machines: those below boards, by board id; without one, a board's clock is always right. secrets: secrets.json.
    """
    settings = {"brokers": [broker], "interval_ms": interval_ms}
    deployed: dict[str, bytes | Path] = dict(deployed_files())
    if secrets is not None:
        deployed["/secrets.json"] = secrets
    boards: dict[str, VirtualBoard] = {}
    with contextlib.ExitStack() as running:
        for device_id in ids:
            machine = machines.get(device_id)
            board = VirtualBoard(
                folder.boards / f"{device_id}.img",
                env={
                    "UMQTT_GROUND_TRUTH": str(ground_truth_path(folder.ground_truth, device_id)),
                    "UMQTT_COMMANDS": str(folder.commands / device_id),
                    **(machine.environment if machine else {}),
                },
                log=folder.logs / f"{device_id}.log",
            )
            running.enter_context(board)
            own = json.dumps(settings | {"device_id": device_id}).encode()
            try:
                board.install(deployed | {"/settings.json": own})
                board.start()
                boards[device_id] = board
            except BoardError as error:
                raise KitError(f"the virtual board {device_id} did not start: {error}", EXIT_DEVICE) from error
        yield boards

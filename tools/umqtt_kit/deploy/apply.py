"""Carries out a plan so that an interruption at any point leaves a board that the next deployment can finish.

The board is left with the old set of files, the new set, or nothing but the prompt; it never runs a mixture. (An
image with main.py frozen into it starts that main.py at any time. If it then stops at a mixture of files, the next
deployment repairs that too.)

The order: write the record of what may be there; remove main.py, so that nothing runs; write each file as a temporary
file and rename it; remove what is gone; hash every file again; remove versions that came over the air; write main.py;
write the final record.
"""

from __future__ import annotations

from collections.abc import Callable

from umqtt_cli.errors import EXIT_DEVICE, KitError
from umqtt_kit.deploy.plan import MAIN, OVER_THE_AIR, Plan, write_record
from umqtt_kit.device import Board, DeviceError

# Clears the record of failed boots, because it is about the files that were there before.
_FORGIVE = """
import boot_choice, startup
_u_startup = boot_choice.read_boots()
if _u_startup.count: _u_startup.mark(startup.INTERRUPTED)
"""


def apply(board: Board, plan: Plan, on_sent: Callable[[str, int], object] = lambda path, size: None) -> None:
    """Carry out a plan on a board. Raises KitError.

    on_sent: called with the path and the number of bytes after each chunk.
    """
    if not plan.changes:
        return
    build = plan.build
    # Recorded first, so that whatever is written from now on is known to be ours, wherever this ends.
    expected = dict.fromkeys(sorted(plan.record.files), "") | plan.hashes
    write_record(board, build, expected, complete=False)
    main_goes = MAIN in plan.record.files or MAIN in plan.hashes
    if main_goes:
        board.remove([MAIN])
    for path in plan.send:
        if path != MAIN:
            board.put(path, build.files[path], lambda size, path=path: on_sent(path, size))
    gone = [*plan.remove, *plan.foreign]
    board.remove(gone)
    board.remove_empty(_folders_of(gone))
    _verify(board, {path: digest for path, digest in plan.hashes.items() if path != MAIN})
    if plan.ota:
        # The pointer is removed first: from here on the base version is the one that boots.
        board.remove([f"{OVER_THE_AIR}/current"])
        board.remove_tree(OVER_THE_AIR)
    _forgive(board)
    if MAIN in plan.hashes:
        board.put(MAIN, build.files[MAIN], lambda size: on_sent(MAIN, size))
        _verify(board, {MAIN: plan.hashes[MAIN]})
    write_record(board, build, plan.hashes, complete=True)


def _verify(board: Board, hashes: dict[str, str]) -> None:
    wrong = [path for path, digest in board.hashes(hashes).items() if digest != hashes[path]]
    if wrong:
        raise KitError(
            f"{', '.join(wrong)}: not what was sent, though written without an error — repeat the command; "
            "if it stays, the flash is worn out or its file system damaged: flash the board anew",
            EXIT_DEVICE,
        )


def _forgive(board: Board) -> None:
    try:
        board.exec(_FORGIVE)
    except DeviceError as error:
        if "ImportError" not in error.error and "AttributeError" not in error.error:
            raise


def _folders_of(paths: list[str]) -> list[str]:
    """Return the folders that may be empty now, the deepest first."""
    folders = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/"))}
    return sorted(folders - {""}, key=lambda folder: (-folder.count("/"), folder))

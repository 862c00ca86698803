"""Carries out a plan. Interrupted anywhere, it leaves a board that runs the old set, the new set, or nothing but the
prompt; never a mixture. The next deployment finishes the work. (An image with main.py frozen into it starts that one at
any time; should it stop at a mixture of files, the next deployment ends that too.)

The order: the record of what may be there; main.py away, so that nothing runs; the files, each by a temporary file and
a rename; what is gone; every file hashed again; versions that came over the air; main.py; the record as it stays.
"""

from __future__ import annotations

from collections.abc import Callable

from umqtt_kit.deploy.plan import MAIN, OVER_THE_AIR, Plan, write_record
from umqtt_kit.device import Board, DeviceError
from umqtt_kit.errors import EXIT_DEVICE, KitError

# The boots that failed before were those of other files; a start of the new ones begins without that record.
_FORGIVE = """
import startup
_u_startup = startup.Startup()
if _u_startup.count: _u_startup.mark(startup.INTERRUPTED)
"""


def apply(board: Board, plan: Plan, on_sent: Callable[[str, int], object] = lambda path, size: None) -> None:
    """Raises KitError. on_sent: called with the path and the number of bytes after each chunk."""
    if not plan.changes:
        return
    build = plan.build
    # Recorded first: what is written from now on is known to be ours whenever this ends.
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
        # The pointer first: from here on the base version is the one that boots.
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
    """The folders that may be empty now, the deepest first."""
    folders = {path.rsplit("/", depth)[0] for path in paths for depth in range(1, path.count("/"))}
    return sorted(folders - {""}, key=lambda folder: (-folder.count("/"), folder))

"""The machine below a process: its clock can be wrong, and its disk can lose what was not synced.

    machine = Machine(folder)
    subprocess.Popen(command, env={**os.environ, **machine.environment})
    machine.set_clock(-86_400)                  # its time of day is a day behind; monotonic time goes on
    ... SIGKILL ...
    machine.lose_unsynced(data, random.Random(7))   # and the power fails: pages that were not synced are the old ones

A small library, compiled with `cc`, is preloaded into the process and what it starts (Linux). Programs that do not
call libc, such as those in Go, do not notice. Names of files always survive; what was written to them needs fsync().
"""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

_PAGE = 4096
_NS = 1_000_000_000


class MachineMissing(Exception):
    """There is no C compiler on this machine; str() says what to install."""


def require_compiler() -> str:
    """Return the path of the C compiler. Raises MachineMissing."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise MachineMissing("there is no C compiler: apt install gcc libc6-dev")
    return compiler


class Machine:
    """A machine for processes. folder: of its own, made here; disk: whether syncs are followed. Raises MachineMissing.

    environment: the variables with which its processes are started.
    """

    def __init__(self, folder: Path, disk: bool = True) -> None:
        (folder / "synced" if disk else folder).mkdir(parents=True)
        self._synced = folder / "synced"
        self._clock = folder / "clock"
        self._clock.write_bytes(bytes(8))
        library = folder / "machine.so"
        compiler = require_compiler()
        source = Path(__file__).with_suffix(".c")
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise MachineMissing(f"{compiler} cannot compile {source}: {done.stderr.strip()}")
        self.environment = {"LD_PRELOAD": str(library), "UMQTT_MACHINE": str(folder)}

    def set_clock(self, seconds: float) -> None:
        """Let the machine's time of day differ by so many seconds from this one's, from now on."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("q", int(seconds * _NS)))

    def lose_unsynced(self, data: Path, rng: random.Random) -> int:
        """Undo writes below `data` that were not synced, page by page at random; return how many pages were undone.

        Its processes must have ended. A page beyond what was synced is gone, with all that follows it in the file.
        """
        lost = 0
        for path in sorted(path for path in data.rglob("*") if path.is_file()):
            kept = self._synced / str(path.stat().st_ino)
            safe = kept.read_bytes() if kept.exists() else b""
            found = path.read_bytes()
            survives = bytearray()
            for at in range(0, max(len(found), len(safe)), _PAGE):
                new, old = found[at : at + _PAGE], safe[at : at + _PAGE]
                if new != old and rng.random() < 0.5:
                    lost += 1
                    new = old
                survives += new
                if len(new) < _PAGE:
                    break
            path.write_bytes(survives)
            kept.write_bytes(survives)
        return lost

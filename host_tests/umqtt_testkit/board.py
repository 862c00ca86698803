"""Virtual boards: real MicroPython with its own littlefs flash, started and stopped like hardware.

    with VirtualBoard(tmp_path / "flash.img") as board:
        board.install({"main.py": b"print('hello')"})
        board.start()
        board.wait_for("hello")
        ... mpremote connect {board.port} ...
        board.kill()                            # the power is cut; the flash keeps what littlefs had written
        board.start()

`python -m umqtt_testkit.board IMAGE [LINK]` runs one from the command line, until Ctrl-C: `umqtt devices` lists it
under the name of the link (or of the image), and `mpremote connect LINK` reaches it.

The board is a process that mounts the image as `/`, runs boot.py and main.py and then the REPL. A life of the board
lasts from one reset to the next: Ctrl-D is a soft reboot; `machine.reset()`, a deep sleep and the watchdog kill the
process at once, and the next life begins. Differences from hardware: the modules machine, network, ntptime, onewire,
ds18x20 and dht are those in `_device/stubs`, with hooks to make them fail; `time` and `sys.platform` are the host's
unless a board is played.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from .board_life import BoardError, BoardProcess, LifeSettings
from .interpreter import DEVICE_FILES, heap_bytes, micropython_command
from .models import GEOMETRIES, MODELS, Model
from .registry import RegistryError, registered
from .waiting import WAIT_LIMIT_S

_BLOCK_SIZE = 4096
# Bytes of heap per byte of the garbage collector's tables, which have 3 bits per block of 16 or 32 bytes.
_BYTES_PER_TABLE_BYTE = 40
_TOOL_HEAP = "4M"


class VirtualBoard:
    """A virtual board: its flash image, its serial port and its process.

    The image file is created (erased) if it does not exist, kept, and locked (flock) until close().

    board: name in MODELS of the board that is played: its port's modules, its clock that is not set, its flash
    geometry. The default, UNIX, has the host's clock, and hardware that answers like an esp32.
    geometry: "esp32" or "rp2", if not the board's own.
    heap: MicroPython's heap ("64K" plays a small board); the heap that the stub modules take is added.
    env: further environment variables of the board's process. UMQTT_GROUND_TRUTH=FILE records every published reading
    there, UMQTT_COMMANDS=FILE the id of every command that is begun; UMQTT_BOARD_NETWORK=wired or none plays an image
    without Wi-Fi, or without a network; UMQTT_BOARD_PORTS={"80": PORT} makes the board's port 80 reachable at PORT of
    127.0.0.1.
    link: symbolic link to the serial port.
    log: file that gets all output.
    deepsleep_s: how long a deep sleep takes, whatever the program asked for.
    unique_id: 6 bytes; by default made from the image's path, so it differs between boards and stays the same for
    one.
    Raises MicroPythonMissing, BoardError.
    """

    def __init__(
        self,
        image: Path,
        *,
        board: str = "UNIX",
        geometry: str | None = None,
        heap: str = "256K",
        env: Mapping[str, str] | None = None,
        link: Path | None = None,
        log: Path | None = None,
        deepsleep_s: float | None = None,
        unique_id: bytes | None = None,
    ) -> None:
        if board not in MODELS:
            raise BoardError(f"no board '{board}' - there are: {', '.join(MODELS)}")
        if geometry is not None and geometry not in GEOMETRIES:
            raise BoardError(f"no geometry '{geometry}' - there are: {', '.join(GEOMETRIES)}")
        model = MODELS[board]
        self.image = Path(image).resolve()
        self.geometry = GEOMETRIES[geometry] if geometry else model.geometry
        played = board_environment(model)
        #: Heap in bytes that the stub modules take, which a real board has in ROM; the heap is larger by this.
        self.stubs_heap = _heap_of_stubs(model, tuple(micropython_command(_TOOL_HEAP)))
        try:
            wanted = heap_bytes(heap)
        except ValueError:
            raise BoardError(f"heap={heap!r} must be like '64K' or '1M'") from None
        size = wanted + self.stubs_heap + self.stubs_heap // _BYTES_PER_TABLE_BYTE
        command = micropython_command(str(size), guard="terminal")
        self._locked = locked_flash(self.image, _BLOCK_SIZE * self.geometry.block_count)
        self._folder = Path(tempfile.mkdtemp(prefix="umqtt-board-"))
        self._link = link
        settings = LifeSettings(
            command=command,
            image=self.image,
            program_size=self.geometry.program_size,
            folder=self._folder,
            unique_id=unique_id or b"\x02" + hashlib.sha256(os.fsencode(self.image)).digest()[:5],
            env={**played, **(env or {})},
            log=log,
            deepsleep_s=deepsleep_s,
        )
        self._process = BoardProcess(settings)
        #: Path of the serial port, for mpremote and pyserial; the same over power cycles, also while the board is off.
        self.port = str(self._process.port_path)
        if link is not None:
            link.unlink(missing_ok=True)
            link.symlink_to(self.port)

    # Flash

    def install(self, files: Mapping[str, bytes | Path]) -> None:
        """Write files to the flash of a board that is off.

        files: path on the board to content (bytes), host file or host folder (Path). Nothing is compiled;
        `__pycache__` is left out. Raises BoardError if the board is running, the flash is full or a content is text.
        """
        orders: list[list[str]] = []
        staging = self._folder / "staging"
        staging.mkdir(exist_ok=True)
        for number, (path, content) in enumerate(files.items()):
            if isinstance(content, str):
                raise BoardError(f"{path}: content is bytes, a file is a Path, not str {content[:20]!r}")
            if isinstance(content, bytes):
                source = staging / str(number)
                source.write_bytes(content)
                orders.append(["put", _absolute(path), str(source)])
            elif content.is_dir():
                orders.extend(
                    ["put", _absolute(f"{path}/{source.relative_to(content).as_posix()}"), str(source)]
                    for source in sorted(content.rglob("*"))
                    if source.is_file() and "__pycache__" not in source.parts
                )
            else:
                orders.append(["put", _absolute(path), str(content.resolve())])
        self._use_flash(orders)
        shutil.rmtree(staging)

    def read(self, path: str) -> bytes:
        """Return a file's content, from the flash of a board that is off."""
        target = self._folder / "read"
        self._use_flash([["get", _absolute(path), str(target)]])
        return target.read_bytes()

    def remove(self, path: str) -> None:
        """Remove a file from the flash of a board that is off."""
        self._use_flash([["remove", _absolute(path)]])

    def files(self) -> dict[str, int]:
        """Return path and size of every file on the flash of a board that is off."""
        return dict(self._use_flash([["list"]])[0])

    def _use_flash(self, orders: list[list[str]]) -> list:
        if self.running:
            raise BoardError("the board is running: stop() it before its flash is changed from outside")
        script = str(DEVICE_FILES / "image_tool.py")
        done = subprocess.run(
            [
                *micropython_command(_TOOL_HEAP),
                script,
                str(self.image),
                str(self.geometry.program_size),
            ],
            input="".join(json.dumps(order) + "\n" for order in orders),
            capture_output=True,
            text=True,
            timeout=WAIT_LIMIT_S,
        )
        answers = done.stdout.splitlines()
        if done.returncode or len(answers) != len(orders):
            reason = (done.stdout + done.stderr).strip().rpartition("\n")[2]
            raise BoardError(f"the flash image {self.image} cannot be used: {reason}")
        results = [json.loads(answer) for answer in answers]
        for order, result in zip(orders, results, strict=True):
            if isinstance(result, dict):
                raise BoardError(f"{self.image}: {' '.join(order[:2])}: {result['error']}")
        return results

    # Power

    def start(self) -> None:
        """Switch on. Raises BoardError when the board is running."""
        if self.running:
            raise BoardError("the board is running already")
        self._process.power_on()

    def stop(self) -> None:
        """Switch off by killing the process, which is a power cut for the board. May be called again."""
        self._process.power_off()

    def kill(self) -> None:
        """Cut the power at any moment (SIGKILL). Same as stop(), for tests that are about power cuts."""
        self._process.power_off()

    @property
    def running(self) -> bool:
        return self._process.powered

    @property
    def pid(self) -> int:
        """Process id of the board now (another one after each reset); 0 while off or asleep."""
        return self._process.pid

    @property
    def lives(self) -> int:
        """How many times the board has booted since start()."""
        return self._process.lives

    # Console

    def wait_for(self, text: str, timeout_s: float = WAIT_LIMIT_S) -> str:
        """Wait until `text` appears on the console after the text that the last wait_for() found.

        Returns the output up to the end of `text`. Raises BoardError with the last output if it does not come in
        time.
        """
        return self._process.wait_for(text, timeout_s)

    def wait_for_life(self, number: int) -> None:
        """Wait until the board has booted `number` times since start(). Raises BoardError if it is off or too late."""
        self._process.wait_for_life(number, WAIT_LIMIT_S)

    def type(self, text: str | bytes) -> None:
        """Type on the console, as a person at the serial port ("\\x03" is Ctrl-C, "\\x04" Ctrl-D)."""
        if not self.running:
            raise BoardError("the board is off: start() it first")
        self._process.type(text.encode() if isinstance(text, str) else text)

    @property
    def output(self) -> str:
        """The last 256 KB of output."""
        return self._process.output

    def hooks(self, **hooks: object) -> None:
        """Change how the stub modules behave from now on; replaces earlier hooks.

        hooks: see the modules in _device/stubs, for example network.py; and power_cut=[N, QUARTERS], read at boot: the
        N-th program or erase of the flash in that life is done in part (0 to 4 quarters), then the power is off.
        """
        temporary = self._folder / "hooks.new"
        temporary.write_text(json.dumps(hooks))
        temporary.replace(self._folder / "hooks.json")

    def close(self) -> None:
        """Switch off and remove the port, the link and the scratch folder. The image stays."""
        self._process.close()
        if self._link is not None and self._link.is_symlink():
            self._link.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)
        if not self._locked.closed:
            # Unlock explicitly: a process that another thread starts at this moment has the file open too, until it
            # runs its program.
            fcntl.flock(self._locked, fcntl.LOCK_UN)
            self._locked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def board_environment(model: Model) -> dict[str, str]:
    """Return the environment variables that name the board to play; empty values stand for the host's own."""
    names = ("PLATFORM", "CHIP", "MACHINE")
    values = (model.platform or "", model.chip if model.platform else "", model.machine)
    return {f"UMQTT_BOARD_{name}": value for name, value in zip(names, values, strict=True)}


def locked_flash(image: Path, size: int) -> IO[bytes]:
    """Open the image and lock it for this board until it is closed: two boards would corrupt one flash.

    Creates an erased image if none exists. Raises BoardError if another board has it, OSError.
    """
    is_new = not image.exists()
    file = image.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        problem = f"{image} is the flash of a virtual board that runs"
        raise BoardError(f"{problem} - stop that one, or give another file") from None
    # Another board may have created it meanwhile, and been switched off again.
    if is_new and not image.stat().st_size:
        file.write(b"\xff" * size)
        file.flush()
    return file


@functools.cache
def _heap_of_stubs(model: Model, command: tuple[str, ...]) -> int:
    """Return the bytes of heap taken by the modules that make a process a board; a real board has them in ROM."""
    done = subprocess.run(
        [*command, str(DEVICE_FILES / "stubs_heap.py"), str(DEVICE_FILES)],
        capture_output=True,
        text=True,
        timeout=WAIT_LIMIT_S,
        env={**os.environ, **board_environment(model)},
    )
    if done.returncode:
        # An interpreter that cannot run this cannot run the board either; its start reports that.
        return 0
    return int(done.stdout)


def _absolute(path: str) -> str:
    return "/" + path.lstrip("/")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m umqtt_testkit.board", description="a virtual board on a pseudo terminal"
    )
    parser.add_argument("image", type=Path, help="flash image; made when it does not exist")
    parser.add_argument("link", type=Path, nargs="?", help="link to the port: mpremote connect LINK")
    parser.add_argument("--name", help="what `umqtt --device` calls it; by default the link's name, or the image's")
    parser.add_argument("--board", choices=list(MODELS), default="UNIX", help="the board that is played")
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), help="of another flash than the board's own")
    parser.add_argument("--heap", default="256K")
    parser.add_argument("--log", type=Path, help="file for all output")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    name = options.name or (options.link or options.image.with_suffix("")).name
    try:
        with (
            VirtualBoard(
                options.image,
                board=options.board,
                geometry=options.geometry,
                heap=options.heap,
                link=options.link,
                log=options.log,
            ) as board,
            registered(name, board.port, board=options.board, image=str(board.image)),
        ):
            board.start()
            print(f"board at {options.link or board.port}", flush=True)
            ended.wait()
    except (BoardError, RegistryError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

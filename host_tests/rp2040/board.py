"""A virtual board that runs an image: the emulator's process, its two serial ports, and its flash."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from umqtt_kit.flash.images import UF2, read_image
from umqtt_testkit.board import BoardError, locked_flash
from umqtt_testkit.console import Port
from umqtt_testkit.switchboard import Switchboard

from rp2040.package import emulator_command
from umqtt_cli.errors import EXIT_USAGE, KitError

FLASH_SIZE = 2 * 1024 * 1024
_FLASH_START = 0x10000000
_CHIP = "rp2040"
_UF2_BLOCK, _UF2_HEADER = 512, 32
_UF2_NOT_MAIN_FLASH = 0x1
# The block that every newer image begins with, which is for another chip.
_UF2_ABSOLUTE = 0xE48BFF57
_PROGRAM = Path(__file__).resolve().parent / "board.mjs"
_READ_SIZE = 16384
_OUTPUT_KEPT = 256 * 1024
_ANSWERS_WITHIN_S = 10.0


@dataclass(frozen=True)
class Cuts:
    """Power cuts: after each start the power fails within `most` operations of the flash, in the middle of one.

    The same seed gives the same cuts, as far as the image does the same each time.
    """

    seed: int
    most: int = 200


class ImageBoard:
    """A virtual Raspberry Pi Pico that runs an image of MicroPython.

    image: the UF2 file. flash: the file that keeps the chip's 2 MB; made if it does not exist, and locked until
    close(). The image is written into it at each start(), and leaves the board's files alone. on_event: called in
    another thread with a line that says what happened: a power cut, or an image that stopped. log: file that gets all
    output of USB. link, uart_link: symbolic links to the ports. Raises KitError: exit code 2 for an image or a flash
    that cannot be used, 6 for a missing emulator.
    """

    def __init__(
        self,
        image: Path,
        flash: Path,
        *,
        on_event: Callable[[str], object] = lambda line: None,
        link: Path | None = None,
        uart_link: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._node, self._package = emulator_command()
        self._blocks = image_blocks(image)
        self.flash = flash.resolve()
        self._on_event = on_event
        self._locked = _flash_file(self.flash)
        self._switchboard = Switchboard.shared()
        self._log = log.open("ab", buffering=0) if log else None
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._sockets: list[socket.socket] = []
        self._partial = b""
        self._changed = threading.Condition()
        self._output = bytearray()
        self._searched = 0
        self._lives = 0
        self._cut = 0
        self._operations: tuple[int, int] | None = None
        self._usb, self._uart = Port(self._switchboard), Port(self._switchboard)
        #: Paths of the serial ports: USB, for mpremote and `umqtt`, and UART 0.
        self.port, self.uart_port = str(self._usb.path), str(self._uart.path)
        self._links = []
        for name, target in ((link, self.port), (uart_link, self.uart_port)):
            if name is not None:
                name.unlink(missing_ok=True)
                name.symlink_to(target)
                self._links.append(name)

    @property
    def running(self) -> bool:
        child = self._child
        return child is not None and child.poll() is None

    @property
    def lives(self) -> int:
        """How many times it has booted since start(), resets and power cuts included."""
        return self._lives

    @property
    def power_cuts(self) -> int:
        """How many power cuts there have been since start()."""
        return self._cut

    def flash_operations(self) -> tuple[int, int]:
        """Return (erases of a sector, programs of a page) since start(), resets included. Raises BoardError."""
        child = self._child
        with self._changed:
            self._operations = None
            if child is not None and child.stdin is not None:
                with suppress(BrokenPipeError):
                    child.stdin.write(b"?")
                    child.stdin.flush()
            self._changed.wait_for(lambda: self._operations is not None, _ANSWERS_WITHIN_S)
            if self._operations is None:
                raise BoardError(f"the emulator does not answer: {self.why_ended()}")
            return self._operations

    @property
    def output(self) -> str:
        """The last 256 KB that came over USB."""
        with self._changed:
            return self._output.decode(errors="replace")

    def start(self, cuts: Cuts | None = None) -> None:
        """Write the image into the flash and switch on. Raises KitError if the board runs already."""
        if self.running:
            raise KitError("the board is running already — stop it first", EXIT_USAGE)
        self._release()
        with self.flash.open("r+b") as file:
            for address, data in self._blocks:
                file.seek(address)
                file.write(data)
        settings = {
            "package": str(self._package),
            "flash": str(self.flash),
            "unique_id": hashlib.sha256(os.fsencode(self.flash)).hexdigest()[:16],
            "cuts": asdict(cuts) if cuts else None,
        }
        usb, usb_inside = socket.socketpair()
        uart, uart_inside = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process, in _release()
        with usb_inside, uart_inside:
            self._child = subprocess.Popen(
                [self._node, str(_PROGRAM), json.dumps(settings), str(usb_inside.fileno()), str(uart_inside.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                pass_fds=(usb_inside.fileno(), uart_inside.fileno()),
                start_new_session=True,
            )
        self._sockets = [usb, uart]
        self._lives = self._cut = 0
        self._partial = b""
        with self._changed:
            self._searched = len(self._output)
        self._switchboard.call(lambda: self._watch(self._child, usb, uart))

    def stop(self) -> None:
        """Switch off; for the board this is a power cut between two operations of its flash."""
        child = self._child
        if child is not None:
            child.kill()
            child.wait()
        self._release()

    def type(self, text: str | bytes) -> None:
        """Type on the USB port, as a tool would."""
        data = text.encode() if isinstance(text, str) else text
        self._switchboard.call(lambda: self._send(self._sockets[0], data))

    def wait_for(self, text: str, timeout_s: float) -> str:
        """Wait until `text` comes over USB after the last match; return the output up to its end.

        Raises BoardError with the last output if it does not come in time.
        """
        wanted = text.encode()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while (found := self._output.find(wanted, self._searched)) < 0:
                left = deadline - time.monotonic()
                if left <= 0 or not self.running:
                    tail = self._output[-2000:].decode(errors="replace")
                    why = self.why_ended() if not self.running else f"within {timeout_s:g} s"
                    raise BoardError(f"the board did not print {text!r} ({why}); its last output:\n{tail}")
                self._changed.wait(min(left, 1.0))
            start, self._searched = self._searched, found + len(wanted)
            return self._output[start : self._searched].decode(errors="replace")

    def wait_for_cuts(self, number: int, timeout_s: float) -> None:
        """Wait until there have been `number` power cuts since start(), each within timeout_s. Raises BoardError."""
        for reached in range(1, number + 1):
            with self._changed:
                self._changed.wait_for(lambda reached=reached: self._cut >= reached or not self.running, timeout_s)
                if self._cut < reached:
                    why = f"within {timeout_s:g} s" if self.running else self.why_ended()
                    raise BoardError(f"power cut {reached} did not come ({why})")

    def why_ended(self) -> str:
        """Return the emulator's last error, for a board that no longer runs."""
        if self._errors is None:
            return "it was switched off"
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if "Error: " in line]
        return lines[-1].partition("Error: ")[2] if lines else "its process was killed"

    def close(self) -> None:
        """Switch off, and remove the ports and links. The flash stays."""
        self.stop()
        if self._locked.closed:
            return
        self._switchboard.call(self._close_ports)
        for link in self._links:
            link.unlink(missing_ok=True)
        if self._log is not None:
            self._log.close()
        # Unlocked explicitly: a process that another thread starts at this moment has the file open too (see
        # umqtt_testkit.board).
        fcntl.flock(self._locked, fcntl.LOCK_UN)
        self._locked.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the switchboard's thread

    def _watch(self, child: subprocess.Popen[bytes] | None, usb: socket.socket, uart: socket.socket) -> None:
        assert child is not None
        assert child.stdout is not None
        events = child.stdout.fileno()
        os.set_blocking(events, False)
        self._switchboard.watch(events, lambda: self._hear(events))
        self._switchboard.watch(usb.fileno(), lambda: self._pass_on(usb, self._usb, self._show))
        self._switchboard.watch(uart.fileno(), lambda: self._pass_on(uart, self._uart, lambda data: None))
        for port, target in ((self._usb, usb), (self._uart, uart)):
            self._switchboard.watch(port.master, lambda port=port, target=target: self._send(target, port.read()))

    def _pass_on(self, source: socket.socket, port: Port, show: Callable[[bytes], object]) -> None:
        try:
            data = source.recv(_READ_SIZE)
        except OSError:
            data = b""
        if not data:
            self._switchboard.unwatch(source.fileno())
            with self._changed:
                self._changed.notify_all()
            return
        show(data)
        port.write(data, lambda: None)

    def _send(self, target: socket.socket, data: bytes) -> None:
        # This does not block: the emulator reads at once, and keeps what the board has no room for.
        with suppress(OSError):
            target.sendall(data)

    def _show(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
        with self._changed:
            self._output += data
            surplus = len(self._output) - _OUTPUT_KEPT
            if surplus > 0:
                del self._output[:surplus]
                self._searched = max(0, self._searched - surplus)
            self._changed.notify_all()

    def _hear(self, events: int) -> None:
        try:
            data = os.read(events, _READ_SIZE)
        except BlockingIOError:
            return
        if not data:
            self._switchboard.unwatch(events)
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            with self._changed:
                self._lives += event["event"] == "boot"
                self._cut += event["event"] == "cut"
                if event["event"] == "flash":
                    self._operations = event["erases"], event["programs"]
                self._changed.notify_all()
            if "text" in event:
                self._on_event(event["text"])

    def _release(self) -> None:
        # Frees what belongs to the process that has ended.
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        events = child.stdout.fileno()
        sockets, self._sockets = self._sockets, []

        def unwatch() -> None:
            for descriptor in (events, *(one.fileno() for one in sockets), self._usb.master, self._uart.master):
                with suppress(KeyError):
                    self._switchboard.unwatch(descriptor)

        self._switchboard.call(unwatch)
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.wait(_ANSWERS_WITHIN_S)
        child.stdout.close()
        for one in sockets:
            one.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _close_ports(self) -> None:
        self._usb.close()
        self._uart.close()


def image_blocks(file: Path) -> list[tuple[int, bytes]]:
    """Return (offset in the flash, bytes) of each block of a UF2 image for RP2040. Raises KitError (exit code 2)."""
    image = read_image(file)
    if image.kind != UF2 or image.chip != _CHIP:
        raise KitError(
            f"{file} is for {image.chip}, and the emulator plays an rp2040 — give the image of a board with that chip",
            EXIT_USAGE,
        )
    data = file.read_bytes()
    blocks = []
    for start in range(0, len(data), _UF2_BLOCK):
        _, _, flags, address, size, _, _, family = struct.unpack_from("<8I", data, start)
        if not flags & _UF2_NOT_MAIN_FLASH and family != _UF2_ABSOLUTE:
            begin = start + _UF2_HEADER
            blocks.append((address - _FLASH_START, data[begin : begin + size]))
    if any(not 0 <= address <= FLASH_SIZE - len(data) for address, data in blocks):
        raise KitError(f"{file} does not fit the 2 MB flash of a Pico — give an image for one", EXIT_USAGE)
    return blocks


def _flash_file(flash: Path) -> IO[bytes]:
    try:
        locked = locked_flash(flash, FLASH_SIZE)
    except BoardError as error:
        raise KitError(str(error).replace(" - ", " — "), EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"{flash}: {error.strerror} — give a file that can be written", EXIT_USAGE) from error
    size = flash.stat().st_size
    if size != FLASH_SIZE:
        locked.close()
        raise KitError(
            f"{flash} is no flash of a Pico: {size:,} bytes, not {FLASH_SIZE:,} — give another file", EXIT_USAGE
        )
    return locked

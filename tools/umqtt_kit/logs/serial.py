"""The lines of boards on cables, several at once; each port is opened again whenever it has gone away."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from umqtt_cli.errors import KitError
from umqtt_kit.device import Port, find_ports, open_serial
from umqtt_kit.device.line import PortBusy
from umqtt_kit.logs.entries import Entry, Event, now
from umqtt_kit.logs.lines import Lines

if TYPE_CHECKING:
    import serial

_LOOK_AGAIN_S = 0.25
_WAIT_S = 0.1
_READ_SIZE = 65536
# Makes the firmware print its log once more, so that what it said before is seen: firmware/app/attend.py. At
# MicroPython's prompt it means nothing.
_TELL = b"\x12"


class Tail:
    """One board's port. It is found again by its USB serial number, else by its name, because its path may change."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self._lines = Lines(port.name)
        self._serial: serial.Serial | None = None
        self._told: str | None = None
        self._has_missed = True

    @property
    def descriptor(self) -> int | None:
        """For select(): the port's; None while there is no port."""
        return None if self._serial is None else self._serial.fileno()

    def open(self) -> Event:
        """Open the port. Raises KitError (exit code 3)."""
        self._serial = open_serial(self.port.path, timeout_s=0)
        self._told = None
        if self._has_missed:
            self._has_missed = False
            with contextlib.suppress(OSError):  # the next read says that the port is gone
                self._serial.write(_TELL)
        return Event(now(), self.port.name, "connected", f"{self.port.name}: connected, {self.port.path}")

    def open_again(self, ports: list[Port]) -> Event | None:
        """Try to open the port again. ports: those that are there. Return None if there is nothing new to tell."""
        found = self._among(ports)
        if found is None:
            return None
        self.port = found
        try:
            return self.open()
        except PortBusy as busy:
            return self._tell("busy", f"{str(busy).partition(' — ')[0]}; waiting for it")
        except KitError as error:
            return self._tell("gone", f"{str(error).partition(' — ')[0]}; waiting for it")

    def read(self) -> list[Entry | Event]:
        """Return the lines that have come, or the Event of a port that is gone, which is closed then."""
        import serial

        assert self._serial is not None
        try:
            data = self._serial.read(_READ_SIZE)
            # Readable, but nothing to read: the other end is gone.
            if not data:
                raise OSError("nothing to read")
        except (serial.SerialException, OSError):
            self.close()
            self._has_missed = True
            gone = Event(now(), self.port.name, "gone", f"{self.port.name}: the board is gone; waiting for it")
            return [*self._lines.unfinished(now(), closed=True), gone]
        return [*self._lines.take(data, now())]

    def unfinished(self) -> list[Entry]:
        """Return a line whose end does not come, for instance a prompt."""
        return self._lines.unfinished(now())

    def close(self) -> None:
        """Close the port, and leave the board running."""
        if self._serial is None:
            return
        with contextlib.suppress(OSError):
            # RTS first, then DTR: closing the port would lower both at once, which resets some boards.
            self._serial.rts = False
            self._serial.dtr = False
        with contextlib.suppress(OSError):
            self._serial.close()
        self._serial = None

    def _among(self, ports: list[Port]) -> Port | None:
        own = self.port
        for port in ports:
            same_usb = own.serial_number is not None and port.serial_number == own.serial_number
            if same_usb or (own.serial_number is None and port.name == own.name):
                return port
        return own if not own.virtual and os.path.exists(own.path) else None

    def _tell(self, kind: str, text: str) -> Event | None:
        # Returns None for the text that was told last, so that it is told once, not at every attempt.
        if text == self._told:
            return None
        self._told = text
        return Event(now(), self.port.name, kind, text)


def follow(ports: list[Port], ended: Callable[[], bool], *, join: bool = False) -> Iterator[Entry | Event]:
    """Yield lines and events of boards as they come, until ended(). join: also of boards that are plugged in later.

    Raises KitError (exit code 3) if one of the ports cannot be opened at the beginning.
    """
    tails = [Tail(port) for port in ports]
    try:
        for tail in tails:
            yield tail.open()
        looked = time.monotonic()
        while not ended():
            if time.monotonic() - looked >= _LOOK_AGAIN_S and (join or any(tail.descriptor is None for tail in tails)):
                yield from _look(tails, join)
                looked = time.monotonic()
            watched = {tail.descriptor: tail for tail in tails if tail.descriptor is not None}
            for descriptor in select.select(list(watched), [], [], _WAIT_S)[0]:
                yield from watched[descriptor].read()
            for tail in tails:
                yield from tail.unfinished()
    finally:
        for tail in tails:
            tail.close()


def _look(tails: list[Tail], join: bool) -> Iterator[Event]:
    ports = find_ports()
    for tail in tails:
        if tail.descriptor is None:
            event = tail.open_again(ports)
            if event is not None:
                yield event
    known = {tail.port.name for tail in tails}
    for port in ports if join else []:
        if port.boards and port.name not in known:
            tail = Tail(port)
            tails.append(tail)
            event = tail.open_again([port])
            if event is not None:
                yield event

"""A gateway from a board's serial line to a broker; the board's end is umqtt_robust.serial."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from umqtt_robust.serial import ANY, CLOSE, DATA, OPEN, OPENED, Line

if TYPE_CHECKING:
    from serial import Serial

# Longest wait in seconds before it looks for a frame that stalls, and for Ctrl-C.
_LOOK_S = 0.1
_PIECE = 240


class Gateway:
    """A gateway between a board at a serial port and a broker.

    port: an open one, whose read and write return at once. connect: makes a connection to the broker; it raises
    OSError. say: takes a line for the user. resend_ms: see umqtt_robust.serial.
    """

    def __init__(
        self, port: Serial, connect: Callable[[], socket.socket], say: Callable[[str], object], resend_ms: int = 300
    ) -> None:
        self._port = port
        self._connect = connect
        self._say = say
        self._line = Line(port, resend_ms, on_computer=True)
        self._broker: socket.socket | None = None
        self._piece = bytearray(_PIECE)
        # End the link that a board may still have to an earlier gateway.
        self._line.say(CLOSE, ANY)

    def step(self) -> None:
        """Wait for something to pass on, for a tenth of a second at most. Raises OSError if the port is gone."""
        line, broker = self._line, self._broker
        listens = broker is not None and not line.busy
        # select() does not see bytes that TLS has already read from the socket.
        has_read = listens and isinstance(broker, ssl.SSLSocket) and broker.pending() > 0
        due = line.due()
        limit = 0 if has_read else _LOOK_S if due is None else min(_LOOK_S, due / 1000)
        watched = [self._port, broker] if listens else [self._port]
        ready = select.select(watched, [self._port] if line.writing() else [], [], limit)[0]
        line.pump()
        if line.event:
            self._handle(line.event)
        elif broker is not None:
            try:
                if size := line.take(self._piece, 0):
                    broker.sendall(self._piece[:size])
                if listens and (has_read or broker in ready):
                    data = broker.recv(_PIECE)
                    if not data:
                        raise ConnectionResetError("it has closed the connection")
                    line.send(DATA, data, 0, len(data))
            except OSError as error:
                self.hang_up()
                self._say(f"the broker has gone: {error.strerror or error}")

    def hang_up(self) -> None:
        """Close the connection to the broker, and tell the board."""
        if self._line.link is not None:
            self._line.say(CLOSE, self._line.link)
        self._leave()

    def close(self) -> None:
        """Hang up, even if the port is gone."""
        with suppress(OSError):
            self.hang_up()
        self._leave()

    def _handle(self, event: int) -> None:
        line, number = self._line, self._line.new_link
        line.event = 0
        if event == CLOSE:
            self._say("the board has ended its connection")
            self._leave()
        elif event == OPEN and number is not None:
            if number != line.link:
                self._leave()
                try:
                    self._broker = self._connect()
                except OSError as error:
                    self._say(f"the broker cannot be reached: {error.strerror or error}")
                    line.say(CLOSE, number)
                    return
                line.begin(number)
                self._say("a board is connected")
            line.say(OPENED, number)

    def _leave(self) -> None:
        self._line.begin(None)
        if self._broker is not None:
            self._broker.close()
            self._broker = None

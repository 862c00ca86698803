"""Transports of accepted sockets without encryption: faster than asyncio's own, which serve every kind of stream.

They use only what asyncio documents for every event loop: add_reader, add_writer, call_soon; `event_loop` has faster
versions of the first two. A protocol sees no difference: its methods are called as asyncio calls them. This saves a
task and a few futures for each accepted connection, and checks at each read and write that do not apply here.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

from .event_loop import Readiness, Watcher, readiness

# Most connections accepted in one turn of the event loop.
_ACCEPT_AT_ONCE = 64

# Seconds until accepting is tried again after it failed, usually because the process has no file descriptors left.
_ACCEPT_AGAIN = 1.0
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Bytes of a read: a large buffer is used only if the last read filled the small one.
_SMALL_READ = 16 * 1024
_LARGE_READ = 256 * 1024

# Bytes that may wait before pause_writing(), as in asyncio; a Connection sets its own limit.
_HIGH_WATER = 64 * 1024

# Replaces the protocol of a transport whose connection is lost. Protocol and transport refer to each other; otherwise
# both would stay in memory until the garbage collector runs, which is seldom.
NOBODY = asyncio.Protocol()

_log = logging.getLogger(__name__)


class Acceptor:
    """Accepts connections on one listening socket.

    begin: called with each accepted socket, which does not block, and its address. make_room: called when the process
    has no room for one more; closes another connection, or returns False if none may be closed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        begin: Callable[[socket.socket, Any], None],
        make_room: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._begin = begin
        self._make_room = make_room
        self._again: asyncio.Handle | None = None
        # The error of the last attempt, so that it is logged only once; None after success.
        self._error: int | None = None
        self._listen()

    def close(self) -> None:
        """Stop accepting."""
        if self._again is not None:
            self._again.cancel()
        else:
            self._loop.remove_reader(self._listening.fileno())

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPT_AT_ONCE):
            try:
                client, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client has gone before it was accepted
            except OSError as error:
                self._fail(error)
                return
            if self._error is not None:
                self._error = None
                _log.warning("accepting clients at %s again", self._listening.getsockname())
            client.setblocking(False)
            self._begin(client, address)

    def _fail(self, error: OSError) -> None:
        """Log that accepting has failed, once, and try again later: at once if another connection makes room."""
        is_out = error.errno in _OUT_OF_RESOURCES
        if error.errno != self._error:
            self._error = error.errno
            advice = " — raise the limit of open files" if is_out else ""
            where, reason = self._listening.getsockname(), error.strerror or error
            _log.error("cannot accept clients at %s for now (%s)%s", where, reason, advice)
        # The socket stays readable: otherwise the loop would spin.
        self._loop.remove_reader(self._listening.fileno())
        # The connection that gives way closes its socket in the next turn.
        delay = 0.0 if is_out and self._make_room() else _ACCEPT_AGAIN
        self._again = self._loop.call_later(delay, self._listen)


class StreamServer(Acceptor):
    """Accepts connections without encryption on one listening socket. Accepted sockets inherit its TCP_NODELAY.

    new_protocol: makes the protocol of a connection. make_room: see Acceptor.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        new_protocol: Callable[[], asyncio.Protocol],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ready = readiness(loop)
        self._new_protocol = new_protocol
        super().__init__(loop, listening, self._begin_stream, make_room)

    def _begin_stream(self, client: socket.socket, address: Any) -> None:
        StreamTransport(self._loop, self._ready, client, address, self._new_protocol())


class StreamTransport(asyncio.Transport):
    """The transport of one connected socket. It has a protocol from the start, and reads until pause_reading()."""

    __slots__ = (
        "_address",
        "_closing",
        "_congested",
        "_fd",
        "_gone",
        "_high",
        "_loop",
        "_low",
        "_out",
        "_protocol",
        "_read_size",
        "_reading",
        "_ready",
        "_recv",
        "_send",
        "_socket",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ready: Readiness,
        connected: socket.socket,
        address: object,
        protocol: asyncio.BaseProtocol,
    ) -> None:
        self._loop = loop
        self._ready = ready
        self._socket = connected
        # The event loop gets descriptor numbers: for a socket object it would make a repr(), which takes two system
        # calls.
        self._fd = connected.fileno()
        self._address = address
        self._protocol = cast(asyncio.Protocol, protocol)
        self._recv = connected.recv
        self._send = connected.send
        self._out: bytearray | None = None
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._read_size = _SMALL_READ
        self._reading = False
        self._congested = False
        self._closing = False
        # True once connection_lost() is scheduled.
        self._gone = False
        self._tell(self._protocol.connection_made, self)
        self.resume_reading()

    # Input

    def _on_readable(self) -> None:
        try:
            data = self._recv(self._read_size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._read_size = _LARGE_READ if len(data) >= _SMALL_READ else _SMALL_READ
            # The code of _tell(), inlined to save a call.
            try:
                self._protocol.data_received(data)
            except Exception as error:  # noqa: BLE001 - a mistake may be anything, and is logged
                self._on_mistake(error)
        elif self._protocol.eof_received():
            self.pause_reading()
        else:
            self.close()

    def pause_reading(self) -> None:
        """Stop reading. Safe to call again."""
        if self._reading:
            self._reading = False
            self._ready.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Read again. Safe to call again; nothing happens once the transport closes."""
        if not self._reading and not self._closing:
            self._reading = True
            self._ready.add_reader(self._fd, self._on_readable)

    def is_reading(self) -> bool:
        """Return True while incoming data is read."""
        return self._reading

    # Output

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data`: at once as far as the socket accepts it, the rest later."""
        out = self._out
        if out is None:
            if self._gone:
                return
            try:
                sent = self._send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            self._out = bytearray(memoryview(data)[sent:])
            self._ready.add_writer(self._fd, self._on_writable)
        else:
            out += data
        self._tell_congested()

    def _on_writable(self) -> None:
        out = self._out
        assert out is not None
        try:
            sent = self._send(out)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del out[:sent]
        if self._congested and len(out) <= self._low:
            self._congested = False
            # The protocol may write more at once, or end the connection: check `_out` again.
            self._tell(self._protocol.resume_writing)
        if not out and self._out is not None:
            self._out = None
            self._ready.remove_writer(self._fd)
            if self._closing:
                self._end(None)

    def _tell_congested(self) -> None:
        if not self._congested and self._out is not None and len(self._out) > self._high:
            self._congested = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the socket has not accepted yet."""
        return len(self._out or b"")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the numbers of waiting bytes above which pause_writing() and down to which resume_writing() is called."""
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low
        self._tell_congested()

    # The end

    def is_closing(self) -> bool:
        """Tell whether close() or abort() was called, or the connection is lost."""
        return self._closing

    def close(self) -> None:
        """Stop reading, send the bytes that wait, then close."""
        if self._closing:
            return
        self.pause_reading()
        self._closing = True
        if self._out is None:
            self._end(None)

    def abort(self) -> None:
        """Close at once, without sending the bytes that wait."""
        self._end(None)

    def _tell(self, method: Callable[..., object], *arguments: object) -> None:
        """Call a method of the protocol. If it raises, log that and end this connection, but no other."""
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 - a mistake may be anything, and is logged
            self._on_mistake(error)

    def _on_mistake(self, error: Exception) -> None:
        text = "a defect of the broker ends the connection of %s: please report this traceback"
        _log.exception(text, self._address or "a client")
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._gone:
            return
        self.pause_reading()
        self._closing = self._gone = True
        if self._out is not None:
            self._out = None
            self._ready.remove_writer(self._fd)
        # Not at once: the caller may not have finished its own change.
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()
            self._protocol = NOBODY

    # Information

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return socket, peername or sockname, as asyncio does; or the function is_alone, see Connection.has_time()."""
        if name == "peername":
            return self._address or default
        if name == "is_alone":
            # A check against the protocol would take a sixth of the time of a connection.
            return self._is_alone if hasattr(self._ready, "is_any_ready_but") else default
        if name == "socket":
            return self._socket
        if name == "sockname":
            return self._socket.getsockname()
        return default

    def _is_alone(self) -> bool:
        """Return True if no other connection has anything to read or to write now."""
        watcher = cast(Watcher, self._ready)  # otherwise get_extra_info() does not return this method
        return not watcher.is_any_ready_but(self._fd)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Send events to another protocol from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

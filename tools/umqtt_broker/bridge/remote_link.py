"""The remote link of a bridge: a transport for umqtt_robust's Client over asyncio.

It sends bytes only when the local broker has committed what they promise. The host name is looked up in the event
loop's executor; the TLS handshake runs in the event loop without blocking it.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable

from umqtt_robust.errors import LinkLost

from ..clients.internal_client import LocalEnd

# Bytes that may wait for the remote broker before the link accepts no more from the client.
_MAX_UNSENT = 1 << 20

# Bytes that may be read and not yet processed before reading pauses; and bytes processed in one turn, so that a fast
# remote broker does not delay this broker's other clients.
_MAX_UNREAD = 1 << 18
_READ_AT_A_TIME = 1 << 15

# Seconds that a closed link has for its last bytes.
_CLOSE_TIMEOUT = 2.0


class RemoteLink(asyncio.Protocol):
    """The transport interface of umqtt_robust (its transport.py): ready, read, write, close.

    A byte is sent only after the local broker has answered everything that was sent to it before the byte was written.
    So an acknowledgement, in either direction, is sent only after the commit that it promises.
    """

    socket = None

    def __init__(
        self, local: LocalEnd, host: str, port: int, context: ssl.SSLContext | None, wake: Callable[[], None]
    ) -> None:
        self._local = local
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._ended = False
        self._received: deque[memoryview] = deque()
        self._unread = 0
        self._budget = 0
        # Pairs of the number of a local packet and the bytes that wait for its answer.
        self._awaiting_answer: deque[tuple[int, bytes]] = deque()
        self._unsent = 0
        self._flushing = False
        self._congested = False
        self._connecting = self._loop.create_task(self._loop.create_connection(lambda: self, host, port, ssl=context))
        self._connecting.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error if isinstance(error, OSError) else LinkLost(str(error))
            self._wake()

    # What the client calls

    def ready(self) -> bool:
        """Return True if the link is connected. Raises OSError or LinkLost if the connection fails."""
        if self._error is not None:
            raise self._error
        return self._transport is not None

    def read(self, buffer: bytearray, offset: int) -> int | None:
        """Copy received bytes into `buffer` from `offset` on. Returns how many, None for none now, 0 at the end."""
        if not self._received:
            if self._error is not None:
                raise self._error
            return 0 if self._ended else None
        if self._budget <= 0 or self._local.paused:
            return None
        at = offset
        while self._received and self._budget and at < len(buffer):
            data = self._received[0]
            count = min(len(data), len(buffer) - at, self._budget)
            buffer[at : at + count] = data[:count]
            if count == len(data):
                self._received.popleft()
            else:
                self._received[0] = data[count:]
            self._budget -= count
            at += count
        self._unread -= at - offset
        if self._unread <= _MAX_UNREAD and self._transport is not None:
            self._transport.resume_reading()
        return at - offset

    def write(self, buffer: bytes | bytearray, offset: int, size: int) -> int | None:
        """Accept `size` bytes of `buffer` from `offset` on. Returns how many, None for none now."""
        if self._error is not None:
            raise self._error
        if self._unsent > _MAX_UNSENT or self._congested:
            return None
        self._awaiting_answer.append((self._local.sent, bytes(memoryview(buffer)[offset : offset + size])))
        self._unsent += size
        if not self._flushing:
            # One flush for everything that is written in this turn of the loop.
            self._flushing = True
            self._loop.call_soon(self.flush)
        return size

    def close(self) -> None:
        """Close the link after the bytes that no longer wait for an answer; drop the others."""
        self._connecting.cancel()
        if self._transport is not None:
            self.flush()
            self._transport.close()
            self._loop.call_later(_CLOSE_TIMEOUT, self._transport.abort)
            self._transport = None
        self._ended = True
        self._awaiting_answer.clear()

    def wait(self, ms: int, writing: bool) -> None:
        """Not used: the event loop waits."""

    # What the bridge calls

    def flush(self) -> None:
        """Write the bytes that no longer wait for an answer."""
        self._flushing = False
        waiting, answered = self._awaiting_answer, self._local.answered
        ready: list[bytes] = []
        while waiting and waiting[0][0] <= answered:
            ready.append(waiting.popleft()[1])
        if ready and self._transport is not None:
            data = b"".join(ready)
            full = self._unsent > _MAX_UNSENT
            self._unsent -= len(data)
            self._transport.write(data)
            if full and not self._congested:
                self._wake()

    def begin_turn(self) -> None:
        """Allow one turn's worth of reading."""
        self._budget = _READ_AT_A_TIME

    @property
    def has_more(self) -> bool:
        """True if another turn would read more."""
        return bool(self._received) and self._budget <= 0

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start using the link: it is connected, including TLS."""
        assert isinstance(transport, asyncio.Transport)
        if self._ended:
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(high=_MAX_UNSENT)
        self._wake()

    def data_received(self, data: bytes) -> None:
        """Keep received data for the client's next turn."""
        if self._ended:
            return
        self._received.append(memoryview(data))
        self._unread += len(data)
        if self._unread > _MAX_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Handle the end of the remote broker's data."""
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a lost link."""
        self._ended = True
        self._transport = None
        if isinstance(exc, OSError):
            self._error = exc
        self._wake()

    def pause_writing(self) -> None:
        """Stop writing: the remote broker is slow."""
        self._congested = True

    def resume_writing(self) -> None:
        """Write again: the remote broker has caught up."""
        self._congested = False
        self._wake()

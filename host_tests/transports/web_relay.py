"""A WebSocket server of the independent package `websockets`, in front of a broker that has none."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Self

from umqtt_testkit.waiting import WAIT_LIMIT_S
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol


class WebRelay:
    """A relay in a thread, from ws:// (wss:// with `tls`) on its own port to TCP `upstream` on loopback.

    Leaving the `with` block waits until the clients have left.

    fragment: bytes of each piece of a message towards the client. pings: it sends a ping before each message.
    """

    def __init__(self, upstream: int, tls: ssl.SSLContext | None = None, fragment: int = 7, pings: bool = True) -> None:
        self._upstream, self._tls, self._fragment, self._pings = upstream, tls, fragment, pings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: Server | None = None
        self.pongs = 0
        self.port = 0
        self.closed_with: list[int | None] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(WAIT_LIMIT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(kind is not None), self._loop).result(WAIT_LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_LIMIT_S)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await serve(
            self._relay, "127.0.0.1", 0, subprotocols=[Subprotocol("mqtt")], ssl=self._tls, compression=None
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def _stop(self, close_connections: bool) -> None:
        assert self._server is not None
        self._server.close(close_connections)
        await self._server.wait_closed()

    async def _relay(self, client: ServerConnection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        down = asyncio.create_task(self._down(reader, client))
        try:
            async for message in client:
                assert isinstance(message, bytes)
                writer.write(message)
        except ConnectionClosed:
            pass  # without a Close frame, because the client was killed
        finally:
            self.closed_with.append(client.close_code)
            down.cancel()
            writer.close()

    async def _down(self, reader: asyncio.StreamReader, client: ServerConnection) -> None:
        while data := await reader.read(65536):
            if self._pings:
                waiter = await client.ping()
                waiter.add_done_callback(self._count)
            step = self._fragment
            await client.send([data[i : i + step] for i in range(0, len(data), step)])
        await client.close()

    def _count(self, pong: asyncio.Future[float]) -> None:
        if not pong.cancelled() and pong.exception() is None:
            self.pongs += 1

"""A TCP proxy that breaks the network on request, between devices and a broker.

In a test::

    with FaultProxy(("127.0.0.1", broker_port), seed=7) as proxy:
        ... connect devices to proxy.url ...
        proxy.blackhole(True)               # packets vanish, nobody is told
        proxy.blackhole(False)              # what was on the way arrives after all, as TCP would resend it
        proxy.cut()                         # RST on every connection; cut(reset=False): FIN
        proxy.cut_next(37, "up")            # the next connection dies after 37 bytes towards the broker

As a process: `python -m umqtt_testkit.proxy --listen 0 --upstream HOST:PORT`; prints `listening on
HOST:PORT`, then takes commands on stdin and answers each with one line, `ok` or `error: ...`. It ends at the
end of stdin, so it does not outlive the program that holds the pipe.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from .ports import bound
from .relay import Counters, Direction, Faults, Relay
from .waiting import WAIT_LIMIT_S

_Result = TypeVar("_Result")


class ProxyError(Exception):
    """The proxy cannot do what it was asked; str() says why."""


class Connection:
    """One connection through the proxy; its methods may be called from any thread."""

    def __init__(self, proxy: FaultProxy, relay: Relay) -> None:
        self._proxy = proxy
        self._relay = relay

    @property
    def closed(self) -> bool:
        return self._relay.closed

    def passed(self, direction: Direction) -> int:
        """Return the number of bytes handed on so far."""
        return self._pipe(direction).passed

    def cut(self, *, reset: bool = True) -> None:
        """Sever the connection now: RST, or FIN, to both ends."""
        self._proxy.call(lambda: self._relay.cut(reset=reset))

    def cut_after(self, count: int, direction: Direction, *, reset: bool = True) -> None:
        """Sever the connection after `count` more bytes in this direction, even in the middle of a packet."""
        self._proxy.call(lambda: _arm(self._relay, count, direction, reset))

    def stall(self, on: bool, direction: Direction) -> None:
        """Hold this direction (bytes wait, and arrive when released); the other one flows."""

        def switch() -> None:
            self._pipe(direction).stalled = on
            self._relay.refresh()

        self._proxy.call(switch)

    def _pipe(self, direction: Direction):
        return self._relay.up if direction == "up" else self._relay.down


def _arm(relay: Relay, count: int, direction: Direction, reset: bool) -> None:
    pipe = relay.up if direction == "up" else relay.down
    pipe.cut_after, pipe.cut_with_reset = count, reset


class FaultProxy:
    """Relays TCP from its own port to `upstream` (host, port), in its own thread.

    seed: seeds the random splits. Raises ProxyError if it cannot listen, or upstream is no tuple.
    """

    def __init__(self, upstream: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0, seed: int = 0) -> None:
        if not isinstance(upstream, tuple):
            raise ProxyError(f"upstream is {upstream!r} - give (host, port)")
        self._upstream = upstream
        self._faults = Faults(random=random.Random(seed))
        self._counters = Counters()
        self._relays: set[Relay] = set()
        self._changed = threading.Condition()
        self._next_cuts: list[tuple[int, Direction, bool]] = []
        self._server: asyncio.Server | None = None
        self._held: socket.socket | None = None  # keeps the port while nobody listens there
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        self.host, self.port = host, port
        try:
            self._run(self._listen(bound(host, port)))
        except OSError as error:
            self._stop_loop()
            raise ProxyError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    # Faults of all connections

    def cut(self, *, reset: bool = True) -> int:
        """Sever every open connection now (RST, or FIN); return how many. New ones are accepted as before."""

        def sever() -> int:
            relays = self._open()
            for relay in relays:
                relay.cut(reset=reset)
            return len(relays)

        return self.call(sever)

    def cut_next(self, count: int, direction: Direction, *, reset: bool = True) -> None:
        """Sever the next new connection after `count` bytes in this direction. Several calls queue up."""
        self.call(lambda: self._next_cuts.append((count, direction, reset)))

    def blackhole(self, on: bool) -> None:
        """Let packets vanish silently: connections are accepted and stay open. When lifted, what was sent arrives."""
        self._switch(lambda: setattr(self._faults, "blackhole", on))

    def stall(self, on: bool, direction: Direction) -> None:
        """Hold one direction of every connection."""
        change = self._faults.stalled.add if on else self._faults.stalled.discard
        self._switch(lambda: change(direction))

    def delay(self, round_trip_ms: float) -> None:
        """Delay each direction by half of `round_trip_ms`."""
        self._switch(lambda: setattr(self._faults, "one_way_delay_s", round_trip_ms / 2000))

    def dribble(self, on: bool, *, interval_ms: float = 0.5) -> None:
        """Pass one byte at a time, `interval_ms` apart."""
        self._switch(lambda: setattr(self._faults, "dribble_s", interval_ms / 1000 if on else None))

    def split(self, on: bool) -> None:
        """Break each chunk at up to three random places into separate segments."""
        self._switch(lambda: setattr(self._faults, "split", on))

    def refuse(self, on: bool) -> None:
        """Refuse new connections (RST to the SYN), as a machine without a broker does; open ones stay."""
        self._run(self._refuse(on))

    # What was observed

    @property
    def connections(self) -> list[Connection]:
        """Return the open connections."""
        return self.call(lambda: [Connection(self, relay) for relay in self._open()])

    @property
    def counters(self) -> Counters:
        return self.call(lambda: dataclasses.replace(self._counters))

    def wait_accepted(self, total: int, timeout_s: float = WAIT_LIMIT_S) -> None:
        """Wait until `total` connections were accepted since the start. Raises ProxyError if they do not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._counters.accepted >= total, timeout_s):
                raise ProxyError(f"{self._counters.accepted} of {total} connections came within {timeout_s:g} s")

    def close(self) -> None:
        """Close every connection (FIN) and stop. May be called again."""
        if self._loop.is_closed():
            return

        async def shut() -> None:
            if self._server is not None:
                self._server.close()
            if self._held is not None:
                self._held.close()
            for relay in self._open():
                relay.close(reset=False)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)  # one turn of the loop, in which the closed transports release their sockets

        self._run(shut())
        self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Run `function` in the proxy's thread and return its result."""

        async def run() -> _Result:
            return function()

        return self._run(run())

    def _run(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _switch(self, change: Callable[[], object]) -> None:
        def apply() -> None:
            change()
            for relay in self._open():
                relay.refresh()

        self.call(apply)

    def _open(self) -> list[Relay]:
        return list(self._relays)

    async def _listen(self, held: socket.socket) -> None:
        try:
            self._server = await self._loop.create_server(self._accept, sock=held, backlog=1024)
        except OSError:
            held.close()
            raise
        self.host, self.port = held.getsockname()[:2]

    async def _refuse(self, on: bool) -> None:
        if on and self._server is not None:
            self._server.close()
            self._server = None
            self._held = bound(self.host, self.port)
        elif not on and self._held is not None:
            held, self._held = self._held, None
            await self._listen(held)

    def _accept(self) -> asyncio.Protocol:
        relay = Relay(self._faults, self._counters, self._upstream, self._relays.discard)
        self._relays.add(relay)
        if self._next_cuts:
            _arm(relay, *self._next_cuts.pop(0))
        relay.connect()
        with self._changed:
            self._counters.accepted += 1
            self._changed.notify_all()
        return relay.downstream_protocol()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# The process form


def _switch_word(word: str) -> bool:
    if word not in ("on", "off"):
        raise ProxyError(f"'{word}' is neither on nor off")
    return word == "on"


def _reset_word(word: str) -> bool:
    if word not in ("rst", "fin"):
        raise ProxyError(f"'{word}' is neither rst nor fin")
    return word == "rst"


def _direction_word(word: str) -> Direction:
    if word == "up":
        return "up"
    if word == "down":
        return "down"
    raise ProxyError(f"'{word}' is neither up nor down")


_COMMANDS: dict[str, Callable[..., object]] = {
    "cut": lambda proxy, end="rst": proxy.cut(reset=_reset_word(end)),
    "cut-next": lambda proxy, count, direction, end="rst": proxy.cut_next(
        int(count), _direction_word(direction), reset=_reset_word(end)
    ),
    "blackhole": lambda proxy, on: proxy.blackhole(_switch_word(on)),
    "refuse": lambda proxy, on: proxy.refuse(_switch_word(on)),
    "stall": lambda proxy, direction, on: proxy.stall(_switch_word(on), _direction_word(direction)),
    "delay": lambda proxy, ms: proxy.delay(float(ms)),
    "dribble": lambda proxy, on: proxy.dribble(_switch_word(on)),
    "split": lambda proxy, on: proxy.split(_switch_word(on)),
    "counters": lambda proxy: json.dumps(dataclasses.asdict(proxy.counters)),
}


def execute(proxy: FaultProxy, line: str) -> str:
    """Run one command line; return the answer line."""
    name, *arguments = line.split()
    command = _COMMANDS.get(name)
    if command is None:
        return f"error: no command '{name}' - there are: {', '.join(_COMMANDS)}"
    try:
        result = command(proxy, *arguments)
    except (ProxyError, ValueError, TypeError, OSError) as error:
        return f"error: {line}: {error}"
    return f"ok {result}" if result is not None else "ok"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m umqtt_testkit.proxy", description="TCP proxy with faults")
    parser.add_argument("--listen", type=int, default=0, metavar="PORT", help="on 127.0.0.1; 0 picks a free one")
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    host, colon, port = options.upstream.rpartition(":")
    if not (colon and port.isdigit()):
        parser.error(f"--upstream {options.upstream}: give HOST:PORT")
    try:
        with FaultProxy((host, int(port)), port=options.listen, seed=options.seed) as proxy:
            print(f"listening on {proxy.host}:{proxy.port}", flush=True)
            for line in sys.stdin:
                if line.strip():
                    print(execute(proxy, line.strip()), flush=True)
    except ProxyError as error:
        print(f"{error} - choose another --listen port, or 0", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())

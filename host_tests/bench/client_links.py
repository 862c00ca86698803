"""How soon the client notices a dead link: when packets vanish, and when it was closed or reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from bench_rows import MOST_OF_OURS, Goal, Row
from client_lab import Lab
from client_plan import MQTT_AS, OURS, PAHO, Contender

_KEEP_ALIVE_S = 10
BLACKHOLES = f"blackholed link noticed, keep_alive {_KEEP_ALIVE_S} s"
# The longest pause between ticks in device/ours.py while it publishes.
_TICK_S = 0.1


class Blackholes:
    """Blackhole runs, made beside other measurements: they last until the clients notice, and use hardly any CPU."""

    def __init__(self, lab: Lab, pool: ThreadPoolExecutor, *, with_peers: bool) -> None:
        peers = [peer for peer in (PAHO, MQTT_AS) if lab.has(peer)] if with_peers else []
        self._runs: dict[tuple[str, bool], Future[float]] = {
            (contender.name, publishing): pool.submit(_blackhole, lab, contender, publishing)
            for contender in (OURS, *peers)
            for publishing in (False, True)
        }

    def rows(self) -> Iterator[Row]:
        """Wait for all runs and yield their rows."""
        for publishing in (False, True):
            ours = self._runs[OURS.name, publishing].result()
            for peer in (PAHO.name, MQTT_AS.name):
                run = self._runs.get((peer, publishing))
                yield Row(
                    f"{BLACKHOLES}, {'publishing' if publishing else 'idle'}",
                    ours,
                    run.result() if run else None,
                    peer,
                    Goal(_KEEP_ALIVE_S + _TICK_S, MOST_OF_OURS),
                    "s",
                )


def _blackhole(lab: Lab, contender: Contender, publishing: bool) -> float:
    link = lab.link()
    with lab.start(contender, "blackhole", port=link.port, keep_alive=_KEEP_ALIVE_S, publishing=publishing) as program:
        program.next()
        begin = time.perf_counter()
        link.blackhole(True)
        program.next()
        return time.perf_counter() - begin


def severed_rows(lab: Lab) -> Iterator[Row]:
    """Yield the rows of FIN and RST: ticks until the client notices, counted from the first tick that could."""
    for reset in (False, True):
        link = lab.link()
        with lab.start(OURS, "severed", port=link.port) as program:
            program.next()
            link.cut(reset=reset)
            ticks = program.next()["ticks"]
        yield Row(f"{'RST' if reset else 'FIN'} noticed", ticks, goal=Goal(1.0, MOST_OF_OURS), unit="ticks")

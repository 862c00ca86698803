"""Carries a plan of faults out on the running chain, and writes down what really happened.

It is also the service manager of the chain: a part that ends by itself is noted and started again.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import psutil
from umqtt_testkit.board import VirtualBoard

from umqtt_kit.demo.parts import Chain, Network
from umqtt_kit.processes import Child
from umqtt_kit.prove.damage import flip_bit, flip_in_outbox
from umqtt_kit.prove.faults import BROKER, Fault
from umqtt_kit.prove.updates import Updates
from umqtt_robust import Client

# The last flash operation of a life in which the power may be cut; early ones are drawn more often.
_FLASH_OPERATIONS = 120
# Bytes that the next links may pass, where they are cut in a packet; early ones are drawn more often.
_BYTES_OF_A_LINK = 4000
# Commands of a burst: their replies fit a board's ledger in two turns, and boards that stay up carry out 60 at once.
_BURST = 10
# What the collector writes in half a second.
_UNREAD_BYTES = 2048
# Seconds by which a clock is wrong.
_CLOCKS = tuple(sign * hours * 3600.0 for sign in (1, -1) for hours in (0.5, 3, 30, 24 * 9, 24 * 45))
# What a board may find changed at boot. With an outbox of 1000, no reading of an outage of three minutes is dropped.
_SETTINGS: Sequence[Mapping[str, object]] = (
    {"outbox": 1000},
    {"outbox": None},
    {"telemetry_qos": 2},
    {"telemetry_qos": 1},
    {"keep_alive": 5},
    {"interval_ms": 400},
    {"encoding": "cbor"},
    {"encoding": "json"},
)


# What was seen of a fault that has begun, and what ends it, which returns what was seen of it at last; None for a fault
# that has no end. A fault of which nothing was seen did not come about.
_Begun = tuple[str | None, Callable[[], str | None] | None]


class _Running(NamedTuple):
    fault: Fault
    end: Callable[[], str | None]


class Adversary:
    """Begins and ends the faults of a plan when turn() is called.

    history: file that gets one JSON object a line: the faults, each with what was seen of it, and the parts that ended
    by themselves. boards: the running boards by id. burst(device_id, count, qos): sends commands at once.
    updates: for plans with faults of that kind.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        chain: Chain,
        network: Network,
        boards: Mapping[str, VirtualBoard],
        history: TextIO,
        burst: Callable[[str, int, int], object],
        updates: Updates | None = None,
    ) -> None:
        self._waiting = sorted(faults, key=lambda fault: fault.at_s)
        self._running: list[_Running] = []
        self._chain = chain
        self._network = network
        self._boards = boards
        self._history = history
        self._burst_of = burst
        self._updates = updates
        self._limited: dict[str, tuple[int, int]] = {}
        self._thieves: list[Client] = []
        self._down: set[str] = set()
        #: How many faults were carried out and seen.
        self.happened = 0

    @property
    def now(self) -> list[str]:
        """What is broken at this moment."""
        return [f"{running.fault.target}: {running.fault.kind}" for running in self._running]

    def turn(self, seconds: float) -> None:
        """Begin and end what is due, `seconds` after the start."""
        for running in [running for running in self._running if running.fault.at_s + running.fault.for_s <= seconds]:
            self._end(running, seconds)
        while self._waiting and self._waiting[0].at_s <= seconds:
            self._begin(self._waiting.pop(0), seconds)
        for thief in self._thieves:
            thief.poll(0)

    def heal(self, seconds: float) -> None:
        """End every fault that is running. Those that have not begun never will."""
        for running in list(self._running):
            self._end(running, seconds)

    def restart_what_ended(self, seconds: float) -> None:
        """Start each part again that has ended though no fault was to end it."""
        for name, start in self._starts().items():
            child: Child | None = getattr(self._chain, name)
            if child is None or name in self._down or child.returncode is None:
                continue
            self._note(seconds, "ended", part=name, why=str(child.death()))
            self._chain.children.kill(child)
            start()
            if name in self._limited:
                self._limit(psutil.Process(_child(getattr(self._chain, name)).pid), *self._limited[name])

    def _starts(self) -> dict[str, Callable[[], object]]:
        chain = self._chain
        return {"broker": chain.start_broker, "collector": chain.start_collector, "spark": chain.start_spark}

    def _begin(self, fault: Fault, seconds: float) -> None:
        # On a busy machine the moment of a fault may come when the one before it should have ended.
        for running in [running for running in self._running if running.fault.target == fault.target]:
            self._end(running, seconds)
        seen, end = _BEGIN[fault.kind](self, fault)
        running = _Running(fault, end or (lambda: seen))
        if end is not None:
            self._note_fault(seconds, "begin", fault, seen)
        if fault.for_s and end is not None:
            self._running.append(running)
        else:
            self._end(running, seconds)

    def _end(self, running: _Running, seconds: float) -> None:
        seen = running.end()
        if running in self._running:
            self._running.remove(running)
        self._note_fault(seconds, "end", running.fault, seen)
        self.happened += bool(seen)

    def _note_fault(self, seconds: float, event: str, fault: Fault, seen: str | None) -> None:
        self._note(seconds, event, fault=fault.number, kind=fault.kind, target=fault.target, seen=seen)

    def _note(self, seconds: float, event: str, **about: object) -> None:
        line = {"s": round(seconds, 2), "event": event, **about}
        self._history.write(json.dumps(line) + "\n")
        self._history.flush()

    # The faults

    def _cut(self, _fault: Fault) -> _Begun:
        return f"{self._network.tell('cut rst')} links", None

    def _cut_in_packet(self, fault: Fault) -> _Begun:
        rng = random.Random(fault.draw)
        for _ in range(rng.randint(1, 10)):
            self._network.tell(f"cut-next {int(_BYTES_OF_A_LINK ** rng.random())} {rng.choice(('up', 'down'))}")
        return f"{self._network.tell('cut rst')} links", None

    def _refuse(self, _fault: Fault) -> _Begun:
        self._network.tell("refuse on")
        cut = self._network.tell("cut rst")
        return f"{cut} links", self._network_ends("refuse off")

    def _network_fault(self, on: str, off: str) -> _Begun:
        self._network.tell(on)
        return None, self._network_ends(off)

    def _network_ends(self, command: str) -> Callable[[], str]:
        def end() -> str:
            self._network.tell(command)
            return self._network.tell("counters")

        return end

    def _switch_off(self, fault: Fault, change: Callable[[VirtualBoard], str | None]) -> _Begun:
        """Cut a board's power and change something of it; at the end it boots. change: returns what was seen."""
        board = self._boards[fault.target]
        board.kill()
        seen = change(board)

        def end() -> str | None:
            board.start()
            return seen

        return seen, end

    def _power(self, fault: Fault) -> _Begun:
        seen = f"process {self._boards[fault.target].pid}"
        return self._switch_off(fault, lambda board: seen)

    def _power_in_flash(self, fault: Fault) -> _Begun:
        board = self._boards[fault.target]
        operation, quarters = int(_FLASH_OPERATIONS**fault.draw), random.Random(fault.draw).randint(0, 4)
        board.kill()
        board.hooks(power_cut=[operation, quarters])
        board.start()

        def end() -> str | None:
            seen = None if board.running else f"operation {operation}, {quarters} quarters of it done"
            board.kill()
            board.hooks()
            board.start()
            return seen

        return None, end

    def _board_stops(self, fault: Fault) -> _Begun:
        return self._stop([self._boards[fault.target].pid])

    def _settings(self, fault: Fault) -> _Begun:
        change = random.Random(fault.draw).choice(_SETTINGS)

        def install(board: VirtualBoard) -> str:
            settings = json.loads(board.read("/settings.json"))
            board.install({"/settings.json": json.dumps(settings | change).encode()})
            return json.dumps(change)

        return self._switch_off(fault, install)

    def _same_id(self, fault: Fault) -> _Begun:
        links = 0

        def connected(_session_present: bool) -> None:
            nonlocal links
            links += 1

        thief = Client(fault.target.encode(), (self._network.url,), clean_session=True, on_connect=connected)
        self._thieves.append(thief)

        def end() -> str | None:
            self._thieves.remove(thief)
            thief.disconnect()
            thief.poll(0)
            return f"{links} links" if links else None

        return None, end

    def _burst(self, fault: Fault) -> _Begun:
        qos = int(fault.draw * 3)
        self._burst_of(fault.target, _BURST, qos)
        return f"{_BURST} commands at QoS {qos}", None

    def _update(self, fault: Fault) -> _Begun:
        assert self._updates is not None
        return None, self._updates.order(fault.target, fault.draw)

    def _flash_bit(self, fault: Fault) -> _Begun:
        return self._switch_off(fault, lambda board: flip_in_outbox(board, random.Random(fault.draw)))

    def _clock(self, fault: Fault) -> _Begun:
        machine = self._chain.machines[fault.target]
        seconds = random.Random(fault.draw).choice(_CLOCKS)
        machine.set_clock(seconds)

        def end() -> str:
            machine.set_clock(0)
            return f"{seconds / 3600:+g} hours"

        return None, end

    def _dies(self, fault: Fault) -> _Begun:
        part, chain = fault.target, self._chain
        child = self._part(fault)
        if part == BROKER and (fault.kind == "broker_power" or (chain.kind.helpers_die and fault.draw < 0.5)):
            for helper in chain.helpers.values():
                chain.children.kill(helper)
        self._down.add(part)
        for process in _with_children(child):
            _quietly(process.kill)
        chain.children.kill(child)

        def end() -> str:
            self._starts()[part]()
            self._down.discard(part)
            return f"process {child.pid}"

        return f"process {child.pid}", end

    def _machine_dies(self, fault: Fault) -> _Begun:
        _, start = self._dies(fault)
        lost = self._chain.machines[fault.target].lose_unsynced(self._data(fault), random.Random(fault.draw))
        return None, lambda: f"{start and start()}, {lost} pages were not synced and are the old ones"

    def _spark_bit(self, fault: Fault) -> _Begun:
        _, start = self._dies(fault)
        files = sorted((self._chain.folder.checkpoint / "umqtt").glob("bucket-*/*.arrow"))
        flipped = flip_bit(files, random.Random(fault.draw))

        def end() -> str | None:
            assert start is not None
            start()
            return flipped.where if flipped else None

        return None, end

    def _spool_bit(self, fault: Fault) -> _Begun:
        # At the end of the newest segment that holds messages, which Spark is about to read.
        segments = sorted(path for path in self._chain.folder.spool.rglob("*.seg") if path.stat().st_size)
        flipped = flip_bit(segments[-1:], random.Random(fault.draw), _UNREAD_BYTES)
        return None, lambda: flipped.put_back() if flipped else None

    def _stops(self, fault: Fault) -> _Begun:
        helpers = self._chain.helpers.values() if fault.target == BROKER else ()
        children = (self._part(fault), *helpers)
        return self._stop([process.pid for child in children for process in _with_children(child)])

    def _stop(self, pids: Sequence[int]) -> _Begun:
        processes = []
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                process.suspend()
                processes.append(process)

        def end() -> str | None:
            stopped = [process for process in processes if process.is_running()]
            states = [process.status() for process in stopped]
            for process in stopped:
                _quietly(process.resume)
            return f"{len(stopped)} processes were {states[0]}" if stopped else None

        return None, end

    def _java_dies(self, _fault: Fault) -> _Begun:
        return self._kill_one(lambda process: process.name() == "java")

    def _worker_dies(self, _fault: Fault) -> _Begun:
        return self._kill_one(lambda process: any("pyspark" in word for word in process.cmdline()[1:]))

    def _kill_one(self, is_wanted: Callable[[psutil.Process], bool]) -> _Begun:
        spark = _child(self._chain.spark)
        for process in _with_children(spark):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != spark.pid and is_wanted(process):
                    process.kill()
                    return f"process {process.pid}", None
        return None, None

    def _broker_has_no_files(self, _fault: Fault) -> _Begun:
        process = psutil.Process(_child(self._chain.broker).pid)
        return self._limit(process, resource.RLIMIT_NOFILE, process.num_fds())

    def _disk_full(self, fault: Fault) -> _Begun:
        return self._limit(psutil.Process(self._part(fault).pid), resource.RLIMIT_FSIZE, self._size(fault))

    def _starts_full(self, fault: Fault) -> _Begun:
        part, size = fault.target, self._size(fault)
        _, start = self._dies(fault)
        assert start is not None
        start()
        # From its first instruction on, and again if it ends itself and is started again.
        self._limited[part] = (resource.RLIMIT_FSIZE, size)
        self._limit(psutil.Process(self._part(fault).pid), *self._limited[part])

        def end() -> str:
            what, _ = self._limited.pop(part)
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(self._part(fault).pid)
                process.rlimit(what, (process.rlimit(what)[1],) * 2)
            return f"limit {size}"

        return None, end

    def _part(self, fault: Fault) -> Child:
        return _child(getattr(self._chain, fault.target))

    def _data(self, fault: Fault) -> Path:
        return self._chain.folder.store if fault.target == BROKER else self._chain.folder.spool

    def _size(self, fault: Fault) -> int:
        # No file may become larger than the largest one is now, so a log of a few lines still has room.
        return max((path.stat().st_size for path in self._data(fault).rglob("*") if path.is_file()), default=0)

    def _limit(self, process: psutil.Process, what: int, limit: int) -> _Begun:
        before = process.rlimit(what)
        process.rlimit(what, (limit, before[1]))

        def end() -> str | None:
            if not process.is_running():
                return None
            process.rlimit(what, before)
            return f"process {process.pid}, limit {limit}"

        return None, end


def _with_children(child: Child) -> list[psutil.Process]:
    """Return a part's process and everything that it has started; [] once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(child.pid)
        return [*process.children(recursive=True), process]
    return []


def _child(child: Child | None) -> Child:
    assert child is not None, "the part was never started"
    return child


def _quietly(action: Callable[[], object]) -> None:
    """Do something to a process that may have ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        action()


_BEGIN: Mapping[str, Callable[[Adversary, Fault], _Begun]] = {
    "cut": Adversary._cut,
    "refuse": Adversary._refuse,
    "blackhole": lambda adversary, _: adversary._network_fault("blackhole on", "blackhole off"),
    "deaf": lambda adversary, _: adversary._network_fault("stall down on", "stall down off"),
    "mute": lambda adversary, _: adversary._network_fault("stall up on", "stall up off"),
    "dribble": lambda adversary, _: adversary._network_fault("dribble on", "dribble off"),
    "slow": lambda adversary, _: adversary._network_fault("delay 1000", "delay 0"),
    "cut_in_packet": Adversary._cut_in_packet,
    "power": Adversary._power,
    "power_in_flash": Adversary._power_in_flash,
    "board_stops": Adversary._board_stops,
    "settings": Adversary._settings,
    "board_clock": Adversary._clock,
    "flash_bit": Adversary._flash_bit,
    "update": Adversary._update,
    "burst": Adversary._burst,
    "same_id": Adversary._same_id,
    "broker_dies": Adversary._dies,
    "broker_stops": Adversary._stops,
    "broker_has_no_files": Adversary._broker_has_no_files,
    "broker_disk_full": Adversary._disk_full,
    "broker_starts_full": Adversary._starts_full,
    "broker_power": Adversary._machine_dies,
    "broker_clock": Adversary._clock,
    "collector_dies": Adversary._dies,
    "collector_stops": Adversary._stops,
    "collector_disk_full": Adversary._disk_full,
    "collector_starts_full": Adversary._starts_full,
    "collector_power": Adversary._machine_dies,
    "collector_clock": Adversary._clock,
    "spool_bit": Adversary._spool_bit,
    "spark_dies": Adversary._dies,
    "java_dies": Adversary._java_dies,
    "worker_dies": Adversary._worker_dies,
    "spark_clock": Adversary._clock,
    "spark_bit": Adversary._spark_bit,
    "spark_stops": Adversary._stops,
}

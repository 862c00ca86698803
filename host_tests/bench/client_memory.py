"""What the client costs a board in memory: flash, heap after import, the smallest heap, bytes allocated per operation.

Everything runs in the unix port of MicroPython from .mpy files, as on a board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench_rows import MOST_OF_OURS, MOST_RATIO, Goal, Row
from client_lab import Lab, LabError
from client_plan import MQTT_AS, OURS, OURS_ASYNCIO, SIMPLE, Contender
from umqtt_kit.bundle import Bundle, library_folder
from umqtt_kit.mpy_cross import compile_file
from umqtt_kit.sizes import heap_after_import, measure

# The range in which the smallest heap is searched, and the step, in bytes.
_SMALLEST_HEAP = 4 * 1024
_LARGEST_HEAP = 128 * 1024
_HEAP_STEP = 512
_COARSE_STEP = 4096
_EXCHANGES = 10
_EXCHANGED_WITHIN_S = 4.0
_STREAMED = 1000
# Keys of the programs' `allocation`, their descriptions, and the most that ours may take.
_OPERATIONS = (
    ("idle_tick", "bytes allocated: idle tick", 0),
    ("keep_alive", "bytes allocated: keep-alive round trip", 0),
    ("publish_0", "bytes allocated: publish QoS 0", 0),
    ("publish_1", "bytes allocated: publish QoS 1", 96),
    ("receive_raw", "bytes allocated: receive QoS 0, raw handler", 0),
    ("receive", "bytes allocated: receive QoS 0, handler of bytes", None),
)
_PEER_SOURCES = {"umqtt.simple": "umqtt/simple.py", "mqtt_as": "mqtt_as.py"}


def size_rows(lab: Lab, folder: Path) -> Iterator[Row]:
    """Yield the rows of flash and of heap after import. folder: an empty one, for .mpy files."""
    totals = measure().totals
    peers: dict[str, tuple[int, int]] = {}
    for name, source in _PEER_SOURCES.items():
        file = lab.peer_file(source)
        if file is not None:
            search = folder / name
            mpy = compile_file(file, search / source.replace(".py", ".mpy"))
            for stub in (Path(__file__).parent / "device" / "stubs").glob("*.py"):
                compile_file(stub, search / f"{stub.stem}.mpy")
            peers[name] = mpy, heap_after_import(search, [source.removesuffix(".py").replace("/", ".")])
    for key, title, which in (
        ("smallest_mpy_bytes", ".mpy bytes: smallest useful set", 0),
        ("everything_mpy_bytes", ".mpy bytes: everything", 0),
        ("smallest_heap_bytes", "heap after import: smallest useful set", 1),
    ):
        for name in _PEER_SOURCES:
            peer = peers.get(name)
            yield Row(title, totals[key], peer[which] if peer else None, name, None, "bytes")


def smallest_heap_rows(lab: Lab, folder: Path, *, quick: bool) -> Iterator[Row]:
    """Yield the rows of the smallest heap.

    folder: the same as for size_rows, which compiles the peers. quick: coarser, and without mqtt_as.
    """
    step = _COARSE_STEP if quick else _HEAP_STEP
    library = folder / "ours"
    Bundle(library_folder()).compile(library)

    def of_peer(contender: Contender) -> int | None:
        return smallest_heap(lab, contender, folder / contender.name, step) if lab.has(contender) else None

    title = "smallest heap: 256 B at QoS 1 both ways"
    ours = smallest_heap(lab, OURS, library, step)
    goal = Goal(24576, MOST_OF_OURS)
    yield Row(title, ours, of_peer(SIMPLE), SIMPLE.name, goal, "bytes")
    if not quick:
        mqtt_as = of_peer(MQTT_AS)
        yield Row(title, ours, mqtt_as, MQTT_AS.name, goal, "bytes")
        ours = smallest_heap(lab, OURS_ASYNCIO, library, step)
        yield Row(f"{title}, with asyncio", ours, mqtt_as, MQTT_AS.name, Goal(1, MOST_RATIO), "bytes")


def smallest_heap(lab: Lab, contender: Contender, search: Path, step: int) -> int:
    """Return the bytes of the smallest heap in which it connects and sends itself messages.

    The program that drives it is compiled too: a source file would need more heap than the client does. Raises
    LabError if no heap is large enough.
    """
    program = Path(contender.program.replace(".py", "_exchange.py"))
    compile_file(Path(__file__).parent / "device" / program, search / f"{program.stem}.mpy")

    def runs(heap: int) -> bool:
        arguments = (str(lab.broker_port), str(_EXCHANGES))
        with lab.start_compiled(program.stem, *arguments, heap=heap, search=search) as started:
            try:
                return started.next(_EXCHANGED_WITHIN_S) == {"exchanged": _EXCHANGES}
            except LabError:
                return False

    if not runs(_LARGEST_HEAP):
        raise LabError(f"{contender.name} does not exchange messages even with a heap of {_LARGEST_HEAP} bytes")
    return least(runs, _SMALLEST_HEAP, _LARGEST_HEAP, step)


def least(runs: Callable[[int], bool], low: int, high: int, step: int) -> int:
    """Return the least multiple of step, above low, for which `runs` is true.

    high: a multiple of step for which `runs` is true.
    """
    while high - low > step:
        middle = (low + high) // 2 // step * step
        if runs(middle):
            high = middle
        else:
            low = middle
    return high


def allocation_rows(lab: Lab) -> Iterator[Row]:
    """Yield the bytes allocated per operation, and per message of a continuous stream."""
    found: dict[str, dict[str, float]] = {}
    for contender in (OURS, SIMPLE, MQTT_AS):
        if lab.has(contender):
            with lab.start(contender, "allocation", port=lab.broker_port) as program:
                found[contender.name] = program.next()
    for key, title, most in _OPERATIONS:
        for peer in (SIMPLE.name, MQTT_AS.name):
            theirs = found.get(peer, {}).get(key)
            goal = None if most is None else Goal(most, MOST_OF_OURS)
            yield Row(title, found[OURS.name][key], theirs, peer, goal, "bytes")
    with lab.start(OURS, "allocation_stream", port=lab.source_port, count=_STREAMED) as program:
        yield Row("bytes allocated: receive QoS 0, raw, in a stream", program.next()["bytes"], unit="bytes")

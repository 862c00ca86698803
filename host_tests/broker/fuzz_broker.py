"""`make fuzz`: the broker's packet path under atheris, guided by coverage.

    python host_tests/broker/fuzz_broker.py [--minutes M] [--corpus DIR]

The invariant is that of test_broker_fuzz.py: no exception, the connection closed exactly when an independent decoder
says so, valid answers, nothing left behind, and a bystander who notices nothing. The corpus begins with the sessions
of the tests; with --corpus DIR new inputs are kept there. The behaviour of a connection depends on earlier ones, so
when the invariant breaks, all inputs since the broker began are written to a file; `--replay FILE` runs them again.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

_EXIT_MISSING = 6
# A broker is used for this many inputs, then its state is cleared.
_INPUTS_PER_BROKER = 200
_STORY = Path("broker-fuzz-story")


class Target:
    """The function that atheris calls: the first byte cuts the rest into reads."""

    def __init__(self) -> None:
        from broker_wire import Wire

        self._open = Wire.open
        self._loop = asyncio.new_event_loop()
        self._wire: Wire | None = None
        self._story: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        """Run one input. Raises if the invariant is broken."""
        if len(data) < 2:
            return
        self._story.append(data)
        try:
            self._loop.run_until_complete(self._play(data[1:], data[0] or len(data)))
        except BaseException:
            _STORY.write_bytes(b"".join(struct.pack(">I", len(each)) + each for each in self._story))
            print(f"the invariant is broken; run it again with --replay {_STORY.resolve()}", file=sys.stderr)
            raise

    async def _play(self, stream: bytes, size: int) -> None:
        if self._wire is None:
            self._wire = await self._open()
        self._wire.send([stream[at : at + size] for at in range(0, len(stream), size)])
        if len(self._story) >= _INPUTS_PER_BROKER:
            self._wire.forget_everything()
            await self._wire.close()
            self._wire = None
            self._story.clear()

    def replay(self, story: bytes) -> int:
        """Run the inputs written when the invariant broke. Returns their number."""
        at = count = 0
        while at < len(story):
            (size,) = struct.unpack_from(">I", story, at)
            self(story[at + 4 : at + 4 + size])
            at += 4 + size
            count += 1
        return count


def seed_corpus(folder: Path) -> None:
    """Write the sessions and packets of the tests, one file each."""
    from broker_wire import SESSIONS
    from test_broker_malformed import BROKEN, BROKEN_CONNECT, VALID
    from umqtt_testkit import encoder

    streams = [*SESSIONS, *BROKEN_CONNECT.values()]
    streams += [encoder.connect(b"c") + packet for packet in (*VALID.values(), *BROKEN.values())]
    for number, stream in enumerate(streams):
        for size in (0, 7):
            (folder / f"session-{number}-{size}").write_bytes(bytes((size,)) + stream)


def main() -> int:
    """Fuzz until the time is over or something breaks. Returns the exit code; atheris itself ends the process."""
    parser = argparse.ArgumentParser(prog="fuzz_broker", description="Fuzz the broker's packet path.")
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="how long (default: %(default)s)")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="folder that keeps the inputs that were found")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the inputs of such a file")
    options = parser.parse_args()
    if options.replay is not None:
        count = Target().replay(options.replay.read_bytes())
        print(f"{options.replay}: the invariant holds for {count} inputs")
        return 0
    try:
        import atheris
    except ImportError:
        print("the fuzzer atheris is not installed — try: make fuzz, which installs it", file=sys.stderr)
        return _EXIT_MISSING
    with tempfile.TemporaryDirectory(prefix="umqtt-fuzz-") as name:
        corpus = options.corpus or Path(name) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        # Before all other imports: a module that is already imported would not be instrumented.
        with atheris.instrument_imports(include=["umqtt_broker"]):
            target = Target()
        seed_corpus(corpus)
        limits = [
            f"-max_total_time={round(60 * options.minutes)}",
            "-max_len=2048",
            "-timeout=10",
            "-rss_limit_mb=1024",
        ]
        atheris.Setup([sys.argv[0], *limits, str(corpus)], target)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())

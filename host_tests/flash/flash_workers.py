"""Runs the sweeps of sweep_jobs.py in several MicroPython processes at once."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from umqtt_testkit.interpreter import device_search_path, micropython_command

_HERE = Path(__file__).resolve().parent
_HEAP = "32M"
_SILENT_S = 600.0  # without an answer for so long it hangs, however slow and busy the machine is

GEOMETRIES = ("esp32", "rp2", "fat")


@dataclass(frozen=True)
class Job:
    """A sweep. scenario: name of a fixed one or seed of a random one; most: size of the sample, 0: everything."""

    geometry: str
    scenario: str
    store: str = "FlashStore"
    most: int = 0
    seed: int = 1

    def line(self) -> bytes:
        return f"{self.geometry} {self.scenario} {self.store} {self.most} {self.seed}\n".encode()


@dataclass(frozen=True)
class Result:
    """The result of a sweep. cuts: how many were made; failure: the broken law and its cut, or empty text."""

    job: Job
    cuts: int
    failure: str


class _Worker:
    def __init__(self) -> None:
        folders = device_search_path(_HERE, _HERE.parent / "laws")
        self.job: Job | None = None
        self._process = subprocess.Popen(
            [*micropython_command(_HEAP), str(_HERE / "sweep_jobs.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "MICROPYPATH": os.pathsep.join([*folders, ".frozen"])},
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin = self._process.stdin
        self.stdout = self._process.stdout
        self._output = b""

    def begin(self, job: Job) -> None:
        self.job = job
        self._stdin.write(job.line())
        self._stdin.flush()

    def read(self) -> Result | None:
        """Read the available output; return the result if it is complete."""
        chunk = os.read(self.stdout.fileno(), 65536)
        self._output += chunk
        assert self.job is not None
        _, mark, rest = self._output.partition(b"@ ")
        if not chunk:
            said = self._output.decode(errors="replace")[-2000:]
            return Result(self.job, 0, f"MicroPython ended in the sweep: {said}")
        if not mark or b"\n" not in rest:
            return None
        kind, _, text = rest.partition(b"\n")[0].decode(errors="replace").partition(" ")
        self._output = b""
        return Result(self.job, int(text), "") if kind == "cuts" else Result(self.job, 0, text)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self.stdout.close()


def run_jobs(jobs: Iterable[Job], workers: int | None = None) -> Iterator[Result]:
    """Yield results as they come; the next job is taken from `jobs` whenever a worker is free.

    workers: number of processes, by default one per core. Raises MicroPythonMissing, TimeoutError.
    """
    source = iter(jobs)
    with selectors.DefaultSelector() as selector:
        running: list[_Worker] = []
        try:
            for _ in range(workers or os.cpu_count() or 1):
                job = next(source, None)
                if job is None:
                    break
                worker = _Worker()
                running.append(worker)
                worker.begin(job)
                selector.register(worker.stdout, selectors.EVENT_READ, worker)
            while selector.get_map():
                ready = selector.select(_SILENT_S)
                if not ready:
                    raise TimeoutError(f"no answer from the sweeps {[worker.job for worker in running]}")
                for key, _ in ready:
                    result = key.data.read()
                    if result is None:
                        continue
                    yield result
                    job = next(source, None)
                    if job is None or "MicroPython ended" in result.failure:
                        selector.unregister(key.fileobj)
                    else:
                        key.data.begin(job)
        finally:
            for worker in running:
                worker.close()

"""Updates many devices in stages: a stage begins when every device of the one before is healthy.

Nothing is kept here between two runs. A device that already runs the release says so and is not touched, so the same
command continues a rollout, whatever ended it. Such a device also says since when it is up: if that is a shorter time
than devices are watched, it is watched for the rest.
"""

from __future__ import annotations

import fnmatch
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from umqtt_cli.errors import EXIT_DEVICE, EXIT_USAGE, KitError
from umqtt_kit.device_commands import known_devices
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.order import ASLEEP, Wanted, ping, roll_back, update

# Devices that are updated at the same time: what they are sent goes through one broker.
_AT_ONCE = 16

WAITING, UPDATING, CHECKING, DONE, ALREADY, FAILED, LEFT = (
    "waiting", "updating", "being watched", "updated", "had it already", "failed", "left alone",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """The state of one device.

    stage: from 1, or 0 for none; state: one of the words above; text: its version, or why it failed.
    """

    device: str
    stage: int
    state: str = WAITING
    text: str = ""
    exit_code: int = 0

    def as_dict(self) -> dict[str, object]:
        return {"device": self.device, "stage": self.stage, "state": self.state, "text": self.text}


@dataclass(frozen=True)
class _Watch:
    """How a device is watched, until time.monotonic() is `ends`. boot: the same then, if it is healthy; state: then."""

    boot: object
    ends: float
    state: str


def find_devices(access: Access, fleet: str) -> list[str]:
    """Return the devices of a fleet. Raises KitError (exit code 2) if there are none.

    fleet: a file, one device id per line, or a pattern such as pump-* for the ids at the broker.
    """
    file = Path(fleet)
    if file.is_file():
        try:
            lines = file.read_text("utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise KitError(f"--fleet {fleet}: {error} — give a text file, one device id a line", EXIT_USAGE) from error
        found = list(dict.fromkeys(line.partition("#")[0].strip() for line in lines))
    else:
        found = sorted(fnmatch.filter(known_devices(access), fleet))
    found = [device for device in found if device]
    wrong = next((device for device in found if set(device) & set("/+#\0")), None)
    if wrong is not None:
        raise KitError(f"--fleet {fleet}: {wrong!r} is no device id — correct it", EXIT_USAGE)
    if not found and file.exists():
        what = "the file names no device" if file.is_file() else "this is a folder"
        raise KitError(f"--fleet {fleet}: {what} — give a text file, one device id a line", EXIT_USAGE)
    if not found:
        raise KitError(f"--fleet {fleet}: no such file, and no device of that name at {access.where} — see: umqtt sub "
                       "'fleet/+/status'", EXIT_USAGE)  # fmt: skip
    return found


def parse_stages(text: str, count: int) -> list[int]:
    """Return how many of `count` devices are updated after each stage, in rising order. text: such as "1,10%,100%".

    Raises KitError (exit code 2).
    """
    stages: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(%?)\s*", word)
        share = int(found[1]) if found else 0
        if found is None or share == 0 or (found[2] and share > 100):
            raise KitError(f"--stages {text}: {word.strip()!r} is no stage — give 1,10%,100%", EXIT_USAGE)
        stages.append(min(count, math.ceil(count * share / 100) if found[2] else share))
    if sorted(stages) != stages:
        raise KitError(f"--stages {text}: for {count} devices that is {stages} — give them rising", EXIT_USAGE)
    return sorted(set(stages))


class Rollout:
    """An update of many devices in stages.

    rows: of all devices, in order. on_change(row): called from any thread when a row has changed.
    """

    def __init__(
        self,
        access: Access,
        devices: list[str],
        stages: list[int],
        wanted: Wanted,
        *,
        healthy_s: float,
        stop_on_failure: bool,
        on_change: Callable[[Row], object] = lambda row: None,
    ) -> None:
        self._access = access
        self._wanted = wanted
        self._healthy_s = healthy_s
        self._stop_on_failure = stop_on_failure
        self._on_change = on_change
        self._stages = [range(first, last) for first, last in zip([0, *stages], stages, strict=False)]
        self._watches: dict[int, _Watch] = {}
        self.rows = [
            Row(device, stage) for stage, part in enumerate(self._stages, 1) for device in _some(devices, part)
        ]
        self.rows += [Row(device, 0, LEFT, "in no stage") for device in devices[len(self.rows) :]]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.state == FAILED]

    def run(self) -> None:
        """Run all stages, or stop after a failure if told so."""
        for part in self._stages:
            self._side_by_side(part, self._update)
            watched = [index for index in part if self.rows[index].state == CHECKING]
            if watched and not self._stopped():
                time.sleep(max(0.0, max(self._watches[index].ends for index in watched) - time.monotonic()))
            self._side_by_side(watched, self._check)
        for index, row in enumerate(self.rows):
            if row.state == WAITING:
                self._change(index, LEFT, "a stage before it failed")

    def _stopped(self) -> bool:
        return self._stop_on_failure and bool(self.failed)

    def _update(self, index: int) -> None:
        if self._stopped():
            return  # it stays as it is, and so do those of later stages
        self._change(index, UPDATING)
        device = self.rows[index].device
        on_asleep = partial(self._change, index, UPDATING, ASLEEP)
        done = update(self._access, device, self._wanted, lambda line: None, on_asleep=on_asleep)
        version = str(done.result.get("version"))
        told = self._ping(index, UPDATING)
        left_s = self._healthy_s - (_up_s(told) if done.already else 0.0)
        if done.already and left_s <= 0:
            self._change(index, ALREADY, version)
            return
        state = ALREADY if done.already else DONE
        self._watches[index] = _Watch(told.get("boot"), time.monotonic() + left_s, state)
        self._change(index, CHECKING, version)

    def _check(self, index: int) -> None:
        # A confirmed version may crash later: then the device has booted since, or runs another version. A board whose
        # memory does not outlast its sleep boots at every wake, though.
        device, version, watch = self.rows[index].device, self.rows[index].text, self._watches[index]
        told = self._ping(index, CHECKING)
        slept = self.rows[index].text == ASLEEP
        if told.get("fw") == version and (slept or told.get("boot") == watch.boot):
            self._change(index, watch.state, version)
            return
        problem = f"not healthy: it has restarted, and runs {told.get('fw')}"
        try:
            done = roll_back(self._access, device, self._wanted.timeout_s, lambda line: None)
            problem += f"; went back to {done.result.get('version')}"
        except KitError as error:
            problem += f"; not rolled back: {error}"
        self._change(index, FAILED, problem, EXIT_DEVICE)

    def _ping(self, index: int, state: str) -> dict[str, Any]:
        on_asleep = partial(self._change, index, state, ASLEEP)
        return ping(self._access, self.rows[index].device, self._wanted.timeout_s, on_asleep)

    def _side_by_side(self, indices: Iterable[int], work: Callable[[int], None]) -> None:
        left = iter(list(indices))
        lock = threading.Lock()
        problems: list[BaseException] = []
        # Daemon threads, so that Ctrl-C does not wait for devices, which go on by themselves.
        threads = [threading.Thread(target=self._work, args=(left, lock, work, problems), daemon=True)
                   for _ in range(_AT_ONCE)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def _work(
        self, left: Iterator[int], lock: threading.Lock, work: Callable[[int], None], problems: list[BaseException]
    ) -> None:
        while True:
            with lock:
                index = next(left, None)
            if index is None:
                return
            try:
                work(index)
            except KitError as error:
                self._change(index, FAILED, str(error), error.exit_code)
            except Exception as error:  # noqa: BLE001 - raised again where it is seen
                problems.append(error)
                return

    def _change(self, index: int, state: str, text: str = "", exit_code: int = 0) -> None:
        self.rows[index] = row = replace(self.rows[index], state=state, text=text, exit_code=exit_code)
        self._on_change(row)


def _up_s(told: Mapping[str, Any]) -> float:
    up = told.get("up")
    return up / 1000 if isinstance(up, int) else 0.0


def _some(devices: list[str], part: range) -> list[str]:
    return devices[part.start : part.stop]

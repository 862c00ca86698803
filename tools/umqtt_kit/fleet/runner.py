"""Serves all devices of a fleet in one loop: each when its socket has something to read, or its time has come."""

from __future__ import annotations

import heapq
import json
import random
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from umqtt_cli.durable import replace_file
from umqtt_kit.fleet.device import Device
from umqtt_kit.fleet.status import fleet_counts

# Longest wait, so that the status file, the signals and the time limit are looked after in time.
_LONGEST_WAIT_MS = 200
_STATUS_EVERY_MS = 500
_GOODBYE_MS = 3000


class _Socket(Protocol):
    """What select needs of Client.socket."""

    def fileno(self) -> int: ...


def now() -> int:
    """Return the monotonic time in milliseconds."""
    return time.monotonic_ns() // 1_000_000


class Fleet:
    """All devices of a fleet.

    stop() may be called from a signal handler; serve() then drains the outboxes and returns.
    """

    def __init__(self, devices: Sequence[Device], status: Path) -> None:
        self._devices = devices
        self._status = status
        self._next_status_ms = 0
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[Device, _Socket] = {}
        # (due in ms, number of the device). An entry whose time differs from the one in _due is outdated and skipped.
        self._queue: list[tuple[int, int]] = []
        self._due = [-1] * len(devices)
        self._stopping = False
        self.state = "running"

    def stop(self) -> None:
        self._stopping = True

    def stop_on_signals(self) -> None:
        """Let SIGTERM and SIGINT stop the fleet in order; a second signal has its usual effect."""

        def stop(number: int, _frame: FrameType | None) -> None:
            self.stop()
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    def serve(self, drain_s: float, connected: Callable[[], None]) -> int:
        """Run until stop(), then drain for drain_s at most.

        connected() is called once, when every device is connected. Returns how many messages the broker has not
        acknowledged: 0 unless it could not be reached.
        """
        self._run_all()
        self._until(self._all_connected)
        if self._all_connected():
            connected()
        self._until(lambda: False)
        self.state = "draining"
        for device in self._devices:
            device.stop_reading()
        deadline = now() + int(drain_s * 1000)
        self._stopping = False
        self._until(lambda: all(device.drained for device in self._devices), deadline)
        unacknowledged = sum(device.client.pending for device in self._devices)
        for device in self._devices:
            device.disconnect()
        self._run_all()
        # A device without a link has no broker to say goodbye to.
        self._until(lambda: not any(device.client.connected for device in self._devices),
                    max(deadline, now() + _GOODBYE_MS))  # fmt: skip
        self.state = "stopped"
        self._write_status()
        return unacknowledged

    def close(self) -> None:
        for device in self._devices:
            device.close()
        self._selector.close()

    def _all_connected(self) -> bool:
        return all(device.client.connected for device in self._devices)

    def _until(self, done: Callable[[], bool], deadline_ms: int | None = None) -> None:
        """Serve the devices until done(), stop() or the deadline."""
        while not (self._stopping or done()):
            at = now()
            if deadline_ms is not None and at >= deadline_ms:
                return
            if at >= self._next_status_ms:
                self._next_status_ms = at + _STATUS_EVERY_MS
                self._write_status()
            self._wait_and_serve(at)

    def _wait_and_serve(self, at: int) -> None:
        wait_ms = min(max(self._queue[0][0] - at, 0), _LONGEST_WAIT_MS)
        ready = self._selector.select(wait_ms / 1000)
        at = now()
        for key, _ in ready:
            self._run(key.data, at)
        while self._queue[0][0] <= at:
            due, number = heapq.heappop(self._queue)
            if due == self._due[number]:
                self._run(number, at)

    def _run_all(self) -> None:
        at = now()
        for number in range(len(self._devices)):
            self._run(number, at)

    def _run(self, number: int, at: int) -> None:
        device = self._devices[number]
        device.run(at)
        # Not before the next millisecond, so that one device cannot keep the others from their turn.
        due = max(device.due_ms, at + 1)
        if due != self._due[number]:
            self._due[number] = due
            heapq.heappush(self._queue, (due, number))
        self._watch(device, number)

    def _watch(self, device: Device, number: int) -> None:
        socket = device.client.socket
        before = self._sockets.get(device)
        if socket is before:
            return
        # At once, before another device can get the same file descriptor.
        if before is not None:
            self._selector.unregister(before)
            del self._sockets[device]
        if socket is not None:
            self._selector.register(socket, selectors.EVENT_READ, number)
            self._sockets[device] = socket

    def _write_status(self) -> None:
        counts = json.dumps(fleet_counts(self._devices, self.state)).encode()
        replace_file(self._status, counts + b"\n", durable=False)


def spread(count: int, interval_ms: int) -> list[int]:
    """Return when each device takes its first reading: at random within one interval, as real devices would."""
    start = now()
    return [start + random.randrange(interval_ms) for _ in range(count)]

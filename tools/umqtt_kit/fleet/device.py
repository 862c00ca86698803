"""One simulated device: takes readings at an interval and publishes them, as the firmware of a board does."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from umqtt_kit.ground_truth import GroundTruth
from umqtt_robust import Client, Will
from umqtt_robust.errors import OutboxFull
from umqtt_robust.store import MemoryStore

_FIRMWARE = "fleet"
_LINK_WAIT_MS = 20
_OUTBOX_MESSAGES = 256
# ru_maxrss counts KiB on Linux and bytes on macOS.
_RSS_UNITS_PER_KIB = 1024 if sys.platform == "darwin" else 1


def device_ids(count: int) -> list[str]:
    return [f"sim-{number:04d}" for number in range(1, count + 1)]


@dataclass(frozen=True)
class DeviceSettings:
    """What all devices of a fleet have in common.

    broker: its URL; interval_ms: between two readings; ground_truth: the folder of the files of readings made.
    """

    broker: str
    interval_ms: int
    ground_truth: Path


class Device:
    """One simulated device. Times are monotonic ms.

    run(now_ms) must be called whenever its socket has something to read, or due_ms has come.
    """

    def __init__(self, device_id: str, settings: DeviceSettings, first_reading_ms: int) -> None:
        self.device_id = device_id
        self.made = 0
        self.refused = 0
        self.due_ms = 0
        self._settings = settings
        self._next_reading_ms: int | None = first_reading_ms
        self._seq = 0
        self._started_ms = time.monotonic_ns() // 1_000_000
        self._online_said = False
        self._leaving = False
        self._ground_truth = GroundTruth(settings.ground_truth, device_id)
        # There is no flash to keep a counter: every start is a first boot, told apart by 64 random bits.
        self.boot = f"1-{os.urandom(8).hex()}"
        self._topic = f"fleet/{device_id}/telemetry".encode()
        self._status_topic = f"fleet/{device_id}/status".encode()
        self._head = f'{{"v":1,"id":{json.dumps(device_id)},"boot":"{self.boot}","seq":'
        self.client = Client(
            device_id.encode(),
            (settings.broker,),
            clean_session=False,
            store=MemoryStore(_OUTBOX_MESSAGES),
            will=Will(self._status_topic, self._status(False, "connection lost"), qos=1, retain=True),
        )

    @property
    def drained(self) -> bool:
        """Whether everything that it published is acknowledged."""
        return self.client.pending == 0

    def run(self, now_ms: int) -> None:
        """Take the reading that is due, drive the client, and set due_ms."""
        if self._next_reading_ms is not None and now_ms >= self._next_reading_ms:
            self._take_reading(now_ms, now_ms - self._next_reading_ms)
            interval = self._settings.interval_ms
            # Readings that were missed while the process was held up are not taken all at once: they would all say
            # the same.
            self._next_reading_ms = max(self._next_reading_ms + interval, now_ms + interval // 2)
        wait_ms = self.client.tick()
        if self.client.connected != self._online_said:
            self._say_online()
        if self._waits_for_no_arrival():
            wait_ms = min(wait_ms, _LINK_WAIT_MS)
        self.due_ms = now_ms + wait_ms
        if self._next_reading_ms is not None:
            self.due_ms = min(self.due_ms, self._next_reading_ms)

    def _waits_for_no_arrival(self) -> bool:
        """Return whether the link goes on without arriving bytes: it is opening, cannot write, or is about to end."""
        client = self.client
        return self._leaving or (client.socket is not None and (not client.connected or client.waits()))

    def stop_reading(self) -> None:
        self._next_reading_ms = None

    def disconnect(self) -> None:
        """Say goodbye once the outbox is empty; client.closed tells when this is done."""
        if self.client.connected:
            self._publish_status(False, "stopped")
        self._leaving = True
        self.client.disconnect(quiesce_ms=2000)

    def close(self) -> None:
        self._ground_truth.close()

    def _take_reading(self, now_ms: int, late_ms: int) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seq = self._seq
        self._seq += 1
        record = (
            f'{self._head}{seq},"ts":{time.time_ns() // 1_000_000},"up":{now_ms - self._started_ms},"m":{{'
            f'"late_ms":{late_ms},"outbox":{self.client.pending},'
            f'"cpu_s":{usage.ru_utime + usage.ru_stime:.3f},'
            f'"rss_kib":{usage.ru_maxrss // _RSS_UNITS_PER_KIB}}}}}'
        )
        try:
            self.client.publish(self._topic, record.encode(), qos=1)
        except OutboxFull:
            # Not made, because publish() did not take it. Its seq stays a gap, which the status file counts.
            self.refused += 1
            return
        self.made += 1
        self._ground_truth.note(self.boot, seq)

    def _say_online(self) -> None:
        if not self.client.connected:
            self._online_said = False
        elif self._publish_status(True, "connected"):
            self._online_said = True

    def _publish_status(self, online: bool, reason: str) -> bool:
        try:
            self.client.publish(self._status_topic, self._status(online, reason), qos=1, retain=True)
        except OutboxFull:
            return False
        return True

    def _status(self, online: bool, reason: str) -> bytes:
        return json.dumps({"online": online, "boot": self.boot, "fw": _FIRMWARE, "reason": reason}).encode()

"""The status file of a fleet: one JSON object, replaced whole, at least once a second.

devices    how many there are
online     how many have a link to the broker now
made       readings that publish() accepted (those in the ground truth)
refused    readings that a full outbox refused; each left a gap in its device's seq
pending    messages not yet acknowledged by the broker
state      "running", "draining" (no more readings, outboxes empty themselves) or "stopped"
updated_ms Unix milliseconds of this state
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from umqtt_kit.fleet.device import Device


def fleet_counts(devices: Sequence[Device], state: str) -> dict[str, int | str]:
    """Return the object described above."""
    return {
        "devices": len(devices),
        "online": sum(device.client.connected for device in devices),
        "made": sum(device.made for device in devices),
        "refused": sum(device.refused for device in devices),
        "pending": sum(device.client.pending for device in devices),
        "state": state,
        "updated_ms": time.time_ns() // 1_000_000,
    }

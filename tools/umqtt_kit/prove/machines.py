"""The machines below the parts of a run, for the faults of clocks and disks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from umqtt_testkit.machine import Machine, MachineMissing, require_compiler

from umqtt_kit.prove.faults import BROKER, COLLECTOR, KINDS, Fault

#: Kinds of faults for which a part needs a machine of its own.
ON_MACHINES = frozenset(name for name in KINDS if name.endswith(("_clock", "_power")))


def missing_machines() -> str | None:
    """Return in one line why there can be no machines here, or None."""
    try:
        require_compiler()
    except MachineMissing as missing:
        return str(missing)
    return None


def machines_of(faults: Iterable[Fault], folder: Path) -> dict[str, Machine]:
    """Make a machine for each part or board that a fault of ON_MACHINES is planned for."""
    targets = sorted({fault.target for fault in faults if fault.kind in ON_MACHINES})
    return {target: Machine(folder / target, disk=target in (BROKER, COLLECTOR)) for target in targets}

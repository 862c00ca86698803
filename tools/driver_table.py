"""`make driver-table`: writes the table of the drivers into docs/sensors.md, by their docstrings and by measuring.

Bytes are those of the .mpy as it is deployed. Heap is what importing the driver takes with all that it imports, on the
64-bit unix port: a chip needs about two thirds.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from pathlib import Path

from umqtt_kit.deploy.build import build
from umqtt_kit.deploy.filesets import driver_modules
from umqtt_kit.sizes import heap_after_import

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "sensors.md"
DRIVERS = ROOT / "firmware" / "app" / "sensors"
BEGIN, END = "<!-- drivers: begin -->", "<!-- drivers: end -->"

# What a board has and the unix port lacks: names alone, which take no part in the difference.
_BOARD = {
    "machine": "class Pin: pass\nADC = I2C = PWM = Timer = UART = Pin\n"
    "def disable_irq(): pass\nenable_irq = time_pulse_us = disable_irq\n",
    "dht": "",
    "ds18x20": "",
    "onewire": "",
}
# What a driver is compared with, beside the formulas of its data sheet.
_OTHERS = {"bme280": "Bosch's formulas in floating point", "dht22": "micropython-lib", "ds18b20": "micropython-lib"}


def named_drivers() -> list[str]:
    """Return the modules with a class Sensor."""
    return sorted(name for name in driver_modules() if "class Sensor" in (DRIVERS / f"{name}.py").read_text())


def table() -> str:
    """Return the table, in Markdown."""
    sys.path.append(str(ROOT / "host_tests" / "unit"))
    sys.path.append(str(ROOT / "host_tests" / "boards"))
    from test_driver_peers import PEER_OF  # pyrefly: ignore[missing-import]

    built = build(None, driver_modules())
    lines = ["| module | measures | .mpy bytes | heap bytes | compared with |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="umqtt-drivers-") as scratch:
        folder = Path(scratch)
        for path, content in built.files.items():
            if path.startswith("/app/sensors/"):
                file = folder / path[1:]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        for module, text in _BOARD.items():
            (folder / f"{module}.py").write_text(text)
        before = heap_after_import(folder, _BOARD)
        for name in named_drivers():
            first = (ast.get_docstring(ast.parse((DRIVERS / f"{name}.py").read_text())) or "").split("\n\n")[0]
            measures = re.sub(r":? *\{.*", "", " ".join(first.split())).rstrip(":.").replace("|", "/")
            size = len(built.files[f"/app/sensors/{name}.mpy"])
            heap = heap_after_import(folder, [*_BOARD, f"app.sensors.{name}"]) - before
            compared = PEER_OF.get(name) or _OTHERS.get(name) or "its formula"
            lines.append(f"| `{name}` | {measures} | {size:,} | {heap:,} | {compared} |")
    return "\n".join(lines)


def main() -> int:
    """Write the table into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

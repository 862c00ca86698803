"""Finds the laws' independent decoder of packets, which runs on MicroPython too; Hypothesis needs CPython."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))

"""The second opinion on packets lies with the laws, which run on MicroPython too; Hypothesis runs on CPython alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))

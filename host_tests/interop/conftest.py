"""Lets the tests of this folder import the suite, and the laws' modules that the suite needs."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "laws")]

"""The examples' tests run their programs as the transports' tests do, with the same fixtures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transports"))

from transport_fixtures import interpreter, mosquitto, program

__all__ = ("interpreter", "mosquitto", "program")

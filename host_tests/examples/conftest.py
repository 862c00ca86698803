"""The examples' tests run their programs with the fixtures of the transports' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transports"))

from transport_fixtures import certificates, interpreter, mosquitto, program

__all__ = ("certificates", "interpreter", "mosquitto", "program")

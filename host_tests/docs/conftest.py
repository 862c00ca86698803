"""The examples' broker is the one of the transports' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "transports"))

from transport_fixtures import mosquitto

__all__ = ("mosquitto",)

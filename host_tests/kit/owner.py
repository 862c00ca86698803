"""The owner of a test's board: the file of keys with which umqtt signs, and the board's copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

_KEY = "5a" * 32


def own(device_id: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Give umqtt a key for this device too; return the section of the device's secrets.json."""
    file = folder / "keys.json"
    entries = json.loads(file.read_text()) if file.exists() else {}
    entries[device_id] = {"key": _KEY, "counter": 0, "made": "2026-01-01T00:00:00+00:00"}
    file.write_text(json.dumps(entries))
    file.chmod(0o600)
    monkeypatch.setenv("UMQTT_KEYS", str(file))
    return {"commands": {"key": _KEY}}

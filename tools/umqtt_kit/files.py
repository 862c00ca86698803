"""Writes files atomically."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_file(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically: readers find the old content or the new one. Raises OSError.

    private: only the owner can read the file (mode 0600); otherwise everyone can (0644).
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o600 if private else 0o644)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

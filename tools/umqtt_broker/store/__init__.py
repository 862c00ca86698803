"""What survives a crash. `base` is the interface, `memory` keeps nothing, `sqlite` keeps everything."""

from ..settings.broker import MEMORY
from .base import Recovered, RecoveredSession, Store
from .memory import MemoryStore
from .sqlite import SqliteStore

__all__ = ["MemoryStore", "Recovered", "RecoveredSession", "SqliteStore", "Store", "open_store"]


def open_store(path: str, accept_loss: bool = False) -> Store:
    """Return the store for a path or ":memory:". accept_loss: also one that has lost something."""
    return MemoryStore() if path == MEMORY else SqliteStore(path, accept_loss)

"""What survives a crash. `base` is the interface, `memory` keeps nothing, `group_commit` keeps all in a backend."""

from ..settings.broker import MEMORY
from .base import Recovered, RecoveredSession, Store
from .group_commit import GroupCommitStore
from .memory import MemoryStore
from .sqlite import SqliteBackend

__all__ = ["MemoryStore", "Recovered", "RecoveredSession", "Store", "open_store"]


def open_store(path: str, accept_loss: bool = False) -> Store:
    """Return the store for a path or ":memory:". accept_loss: also one that has lost something."""
    return MemoryStore() if path == MEMORY else GroupCommitStore(SqliteBackend(path, accept_loss))

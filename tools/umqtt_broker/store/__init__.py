"""The stores. `base` is the interface, `memory` stores nothing, `group_commit` stores everything in a backend."""

from ..settings.broker import MEMORY
from ..settings.redis_url import is_redis_url, parse_redis_url
from .base import Recovered, RecoveredSession, Store
from .group_commit import GroupCommitStore
from .memory import MemoryStore
from .redis_backend import RedisBackend
from .sqlite import SqliteBackend

__all__ = ["MemoryStore", "Recovered", "RecoveredSession", "Store", "open_store"]


def open_store(path: str, accept_loss: bool = False) -> Store:
    """Return the store for a path of a file, ":memory:" or "redis://…".

    accept_loss: open a file even if part of it is lost or damaged. Raises ConfigError for an invalid address.
    """
    if path == MEMORY:
        return MemoryStore()
    if is_redis_url(path):
        return GroupCommitStore(RedisBackend(parse_redis_url(path)))
    return GroupCommitStore(SqliteBackend(path, accept_loss))

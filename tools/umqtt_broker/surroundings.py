"""What all sessions of one broker share."""

from typing import TYPE_CHECKING

from .config import BrokerConfig
from .expiry import Expiry
from .limits import QueueLimits
from .stats import Stats
from .store import Store

if TYPE_CHECKING:
    from .session import Session


class Surroundings:
    """dirty: the sessions with packets to flush, each once. limits: None as long as nothing limits the queues."""

    __slots__ = ("config", "dirty", "expiry", "limits", "stats", "store")

    def __init__(self, config: BrokerConfig, stats: Stats, store: Store) -> None:
        self.config = config
        self.stats = stats
        self.store = store
        self.expiry = Expiry(config)
        self.limits = QueueLimits.of(config, stats)
        self.dirty: list[Session] = []

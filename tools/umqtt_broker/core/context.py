"""What all sessions of one broker share."""

from typing import TYPE_CHECKING

from ..settings.broker import BrokerConfig
from ..stats import Stats
from ..store import Store
from .clock import Expiry
from .queue_limits import QueueLimits

if TYPE_CHECKING:
    from ..sessions.session import Session


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

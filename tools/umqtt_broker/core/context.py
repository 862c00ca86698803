"""The context of a broker: the objects that all its parts share."""

from typing import Protocol

from ..settings.broker import BrokerConfig
from ..stats import Stats
from ..store import Store
from .clock import Expiry
from .queue_limits import QueueLimits


class Flushable(Protocol):
    """A session that has packets to write."""

    def flush(self) -> None:
        """Write the packets in one piece."""


class BrokerContext:
    """Settings, counters, store, clock and limits of one broker.

    dirty: the sessions with packets to flush, each once. limits: None as long as no setting limits the queues.
    """

    __slots__ = ("config", "dirty", "expiry", "limits", "stats", "store")

    def __init__(self, config: BrokerConfig, stats: Stats, store: Store) -> None:
        self.config = config
        self.stats = stats
        self.store = store
        self.expiry = Expiry(config)
        self.limits = QueueLimits.of(config, stats)
        self.dirty: list[Flushable] = []

"""Protocols for the parts of a broker that its observation uses."""

import asyncio
from typing import Protocol

from ..bridge.bridges import Bridges
from ..clients.connection import Connection
from ..clients.registry import Sessions
from ..routing.router import Router
from ..settings.broker import BrokerConfig
from ..stats import Stats
from ..store import Store
from ..transport.listeners import BoundListener


class ObservedBroker(Protocol):
    """The parts that figures are read from, and on which an operator can act: publish, kick, discard, clear."""

    config: BrokerConfig
    stats: Stats
    store: Store
    standby: str
    router: Router
    sessions: Sessions
    bridges: Bridges
    connections: set[Connection]
    bound_listeners: list[BoundListener]
    loop: asyncio.AbstractEventLoop

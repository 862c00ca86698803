"""The paired broker: MQTT 5, 3.1.1 and 3.1 over asyncio, in pure Python, that loses nothing it acknowledged.

The packages. Each imports only those above it, types included; host_tests/architecture checks the order:

    errors, stats, json_log, log   what went wrong, counters, the log
    compiled        what mypyc must know about a class
    protocol        MQTT on the wire: packets, topic names, topic filters
    access          who may connect, publish and subscribe; the files that say so
    settings        the settings of a broker, as dataclasses
    store           what survives a crash: the interface, memory and SQLite
    core            what every part shares: context, clock, timers, limits of queued messages
    transport       sockets, TLS and WebSocket: bytes for a connection
    conf            mosquitto.conf: from lines to settings
    sessions        one session: its ordered queue, in-flight window and subscriptions; recorded or not; shared queues
    routing         from a PUBLISH to the sessions that get it: subscriptions, retained messages, shared groups
    clients         network connections: the packet loop and its answers, backpressure, sessions by identifier
    observation     $SYS topics, metrics, HTTP API, web page
    reload, broker  new settings for a running broker; Broker: start, network connections, shutdown
    process, start_check, __main__   `python -m umqtt_broker -c FILE`: signals, user, pid file; check of a start

Use it inside a program:

    async with Broker(BrokerConfig(port=0)) as broker:
        print(broker.port)
"""

from .access.files import FilePermission, PermissionHook
from .access.permission import Peer, Permission, Rights
from .broker import Broker
from .errors import BrokerError, ConfigError, MalformedPacket, PortInUse, StoreError
from .observation.view import BrokerView
from .settings.broker import BrokerConfig, Listener, Tls
from .stats import Stats

__all__ = [
    "Broker",
    "BrokerConfig",
    "BrokerError",
    "BrokerView",
    "ConfigError",
    "FilePermission",
    "Listener",
    "MalformedPacket",
    "Peer",
    "Permission",
    "PermissionHook",
    "PortInUse",
    "Rights",
    "Stats",
    "StoreError",
    "Tls",
]

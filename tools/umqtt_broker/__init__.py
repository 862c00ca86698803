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
    process, start_check, cli, __main__   `python -m umqtt_broker -c FILE`: signals, user, pid file; check of a start;
                    the commands of `umqtt`

Use it inside a program:

    async with Broker(BrokerConfig(port=0)) as broker:
        print(broker.port)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .access.files import FilePermission as FilePermission
    from .access.files import PermissionHook as PermissionHook
    from .access.permission import Peer as Peer
    from .access.permission import Permission as Permission
    from .access.permission import Rights as Rights
    from .broker import Broker as Broker
    from .errors import BrokerError as BrokerError
    from .errors import ConfigError as ConfigError
    from .errors import MalformedPacket as MalformedPacket
    from .errors import PortInUse as PortInUse
    from .errors import StoreError as StoreError
    from .observation.view import BrokerView as BrokerView
    from .settings.broker import BrokerConfig as BrokerConfig
    from .settings.broker import Listener as Listener
    from .settings.broker import Tls as Tls
    from .stats import Stats as Stats

_HOME_OF = {
    "Broker": ".broker",
    "BrokerConfig": ".settings.broker",
    "BrokerError": ".errors",
    "BrokerView": ".observation.view",
    "ConfigError": ".errors",
    "FilePermission": ".access.files",
    "Listener": ".settings.broker",
    "MalformedPacket": ".errors",
    "Peer": ".access.permission",
    "Permission": ".access.permission",
    "PermissionHook": ".access.files",
    "PortInUse": ".errors",
    "Rights": ".access.permission",
    "Stats": ".stats",
    "StoreError": ".errors",
    "Tls": ".settings.broker",
}


def __getattr__(name: str) -> object:
    # Imported on first use, because the help of a command does not wait for the broker.
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The paired broker: MQTT 3.1.1 and 3.1 over asyncio, in pure Python, that loses nothing it acknowledged.

What lives here, outermost first (each module imports only those below it and nothing else of the project):

    __main__, process   the process: `python -m umqtt_broker -c FILE`; signals, user, pid file
    conf, conf_said, conf_build, conf_keys, conf_values, conf_lines   mosquitto.conf: from lines to settings
    broker      Broker: start, network connections, shutdown
    view        BrokerView: what a broker holds, to be read
    reload      new settings for a broker that runs
    listeners, sockets, stream, tls, peers   where clients reach it, and who they are
    websocket, ws_upgrade, ws_frames   MQTT over WebSocket
    sessions    sessions by client identifier: CONNECT, takeover, wills, expiry, recovery
    connection  one network connection: reads bytes, writes what they cause
    deadlines   its timers, which share those of the event loop
    holdback    a client that is read from more slowly than it sends
    packet_loop, handlers   every packet of a read; what the rarer ones do
    publishing  what stands between a client's PUBLISH and the router: rights, limits, mount point
    greeting    retained messages on their way to a new subscription
    router      from a PUBLISH to the sessions that get it
    origins     which broker is at the other end of a bridge
    shares, shared   shared subscriptions: one queue for a group, whose members take from it
    durable, session   one session: its ordered queue, in-flight window and subscriptions; recorded or not
    surroundings, limits, expiry   what sessions share: limits of what waits, and the clock
    retained, trie, topics, packets   pure data structures and codecs, no I/O
    store       what survives a crash: the interface, memory and SQLite
    file_permission, blacklist, acl, filters, password_check, passwords   permission by files
    log, permission, config, stats, errors

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

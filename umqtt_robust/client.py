"""The client as programs see it; what it does is in links.py and, below that, in session.py."""

import os

from ._platform import collect, ticks_ms
from .links import Links
from .outbox import Outbox
from .parts import load
from .store import MemoryStore
from .subscriptions import checked


def _random(n):
    return int.from_bytes(os.urandom(4), "big") % n


def Will(topic, payload, qos=0, retain=False):
    """The message that the broker publishes when this client is lost (3.1.2.5): what Client(will=...) takes.

    Raises InvalidArgument.
    """
    return load("checks").will(topic, payload, qos, retain)


class Client(Links):
    """An MQTT 3.1.1 client that keeps every message at QoS 1 and 2 until the broker has acknowledged it.

    client_id: str or bytes. servers: URL or several, tried in turn; {name: URLs} says that these are nodes of a cluster
    of that name, which share their sessions. keep_alive: seconds, 0 switches it off.
    clean_session: whether the broker forgets this client when the link ends. store: where unacknowledged messages
    lie, a MemoryStore unless told otherwise. will: a Will. username, password: str or bytes.

    Further, by keyword: window: how many messages may be in flight; ack_timeout, connect_timeout, ping_after,
    ping_timeout: ms, see keep_alive(); rx_size, tx_size: bytes of the buffers; policy, max_bytes: of a full outbox,
    see policy.py; queue_qos0: keep messages at QoS 0 while they cannot be sent; manual_ack: see acknowledge();
    transports: {scheme: factory(host, port, path)} beside TCP for mqtt; allow_plain: servers may mix mqtts and mqtt;
    allow_mqtt31: fall back to MQTT 3.1; keep_broker_queue: see resume.py; ticks(): ms that wrap at 2**30;
    random(n): 0 to n - 1; handler_retries: how often a handler that raised is called again with its message, which
    repeats whatever it did before it raised; 0 unless told.

    Callbacks, by keyword or as attributes: on_connect(session_present), on_disconnect(error),
    on_acknowledged(packet_id), on_dropped(packet_id, topic, payload, reason), on_error(error),
    on_message(topic, payload) for what no other handler takes, on_large(topic, offset, size, chunk),
    on_dead_letter(topic, payload, error) and on_raw(buf, topic_start, topic_end, payload_start, payload_end), which
    takes every message and allocates nothing.
    Attributes to read: connected; closed, after disconnect(); subscribed, when the broker has answered every
    subscribe() and unsubscribe(); pending, how many messages are in the outbox, and in_flight, how many of them were
    sent on this link; socket, for select and poll, or None. While a handler runs, packet_id, flags (of its PUBLISH) and
    redelivered describe the message.

    Counters: sent, received, discarded, unhandled, dead_letters, unexpected (acknowledgements), downgraded (to QoS 1),
    reconnects.

    Raises InvalidArgument, and StoreError where its store cannot be read.
    """

    # Options and callbacks that are seldom read. Those that every message needs are set on the instance, because an
    # attribute that only the class has costs several times as much to read.
    connect_timeout = 15000
    rx_size = tx_size = 1024
    policy = 0
    max_bytes = transports = keep_broker_queue = None
    allow_plain = allow_mqtt31 = False
    on_connect = on_disconnect = on_message = on_large = on_dropped = on_error = on_dead_letter = None

    def __init__(self, client_id, servers, keep_alive=60, clean_session=True, store=None, will=None, username=None,
                 password=None, **options):  # fmt: skip
        self.window = 8
        self.ack_timeout = 30000
        self.ping_after = self.ping_timeout = 0
        self.queue_qos0 = self.manual_ack = False
        self.on_raw = self.on_acknowledged = None
        self.ticks = ticks_ms
        self.random = _random
        for name in options:
            # Everything else that an instance has so far is a method.
            if name not in ("ticks", "random") and callable(getattr(self, name, print)):
                raise load("errors").InvalidArgument("unknown option " + name)
            setattr(self, name, options[name])
        # What CONNECT says after its fixed header; what it says once, to make the broker forget; ms until the next
        # attempt, when it is not _back_off() that tells, or True: at once, and to the same server.
        self.connect_as_usual = self.purge = self.again = None
        self.assume_present = False  # the broker does not say whether it remembers: MQTT 3.1
        self.connect_as = self.servers = self._rx = self.transport = self.socket = self._closing_at = None
        self.clean_session = clean_session
        self.connected = self.closed = self._busy = self._slept = False
        self._server = self.tried = self._brief = self.limit = self._rx_end = self.reconnects = 0
        self._since = self._until = 0
        Links.__init__(self)
        client_id = checked(client_id, "check_utf8")
        self.connect_as = client_id, keep_alive, clean_session, will, username, password
        if (
            not client_id
            or not isinstance(keep_alive, int)
            or keep_alive >> 16
            or will
            or username is not None
            or password is not None
            or self.ping_after
            or not isinstance(self.window, int)
            or self.window < 1
        ):
            load("checks").connect(self)
        else:
            n = len(client_id)
            flags = 2 if clean_session else 0
            self.connect_as_usual = (
                b"\0\4MQTT\4" + bytes((flags, keep_alive >> 8, keep_alive & 255, n >> 8, n & 255)) + client_id
            )  # 3.1
        self.servers = not self.transports and _plain_server(servers) or load("servers").parse(self, servers)
        self.start(Outbox(store or MemoryStore(), self.window), keep_alive * 1000)
        self._rx = bytearray(self.rx_size)
        self.now = self.out.now = self.ticks() & 0x3FFFFFFF
        self._begin(self._back_off())
        collect()  # what comes now fills the gaps that all this has left, and large pieces find room behind them

    def is_pending(self, packet_id):
        """True while the message of that packet id is in the outbox."""
        return packet_id in self.outbox.slot_of

    def acknowledge(self, packet_id):
        """With manual_ack: the message that came under that packet id is done. False: none such waits."""
        return self.part("manual").acknowledge(packet_id)

    def disconnect(self, quiesce_ms=0):
        """Ends with DISCONNECT, after up to quiesce_ms for what is still in the outbox; tick() until `closed`."""
        self._closing_at = (self.ticks() + quiesce_ms) & 0x3FFFFFFF
        self._wait = 0

    def connect(self):
        """Begins again after disconnect()."""
        self._closing_at = None
        if self.closed:
            self.closed = False
            self._begin(0)


def _plain_server(url):
    # [(factory, arguments, name)] of mqtt://host or mqtt://host:port over TCP; None for servers.py to look at.
    if isinstance(url, str) and url[:7] == "mqtt://":
        host, _, port = url[7:].partition(":")
        port = port or "1883"
        if host and port.isdigit() and 0 < int(port) < 65536:
            for odd in "/@[":
                if odd in host:
                    return None
            from .transport import TCP

            return [(TCP, (host, int(port)), host + ":" + port)]
    return None

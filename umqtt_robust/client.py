"""The client: makes links, keeps them, makes new ones. Everything happens in tick(), which never waits."""

import os

from ._platform import const, ticks_diff, ticks_ms
from .base_errors import LinkLost, MQTTError
from .outbox import Outbox
from .parts import load
from .session import Session
from .states import CLOSED
from .store import MemoryStore
from .subscriptions import checked

_NEVER = const(0x1FFFFFFF)
_LONGEST = const(128000)  # ms between two attempts
_STABLE = const(10000)  # ms: a link that lasted this long was good
_BRIEF = const(3000)  # ms: a link that ended this soon after CONNACK was thrown off
_READS = const(8)  # receive buffers that one tick may take


def _random(n):
    return int.from_bytes(os.urandom(4), "big") % n


def Will(topic, payload, qos=0, retain=False):
    """The message that the broker publishes when this client is lost (3.1.2.5): what Client(will=...) takes.

    Raises InvalidArgument.
    """
    return load("checks").will(topic, payload, qos, retain)


class Client(Session):
    """An MQTT 3.1.1 client that keeps every message at QoS 1 and 2 until the broker has acknowledged it.

    client_id: str or bytes. servers: URL or several; they are tried in turn. keep_alive: seconds, 0 switches it off.
    clean_session: whether the broker forgets this client when the link ends. store: where unacknowledged messages
    lie, a MemoryStore unless told otherwise. will: a Will. username, password: str or bytes.

    Further, by keyword: window: how many messages may be in flight; ack_timeout, connect_timeout, ping_after,
    ping_timeout: ms, see keep_alive(); rx_size, tx_size: bytes of the buffers; policy, max_bytes: of a full outbox,
    see policy.py; queue_qos0: keep messages at QoS 0 while there is no link; manual_ack: see acknowledge();
    transports: {scheme: factory(host, port, path)} beside TCP for mqtt; allow_plain: servers may mix mqtts and mqtt;
    allow_mqtt31: fall back to MQTT 3.1; keep_broker_queue: see resume.py; ticks(): ms that wrap at 2**30;
    random(n): 0 to n - 1.

    Callbacks, by keyword or as attributes: on_connect(session_present), on_disconnect(error),
    on_acknowledged(packet_id), on_dropped(packet_id, topic, payload, reason), on_error(error),
    on_message(topic, payload) for what no other handler takes, on_large(topic, offset, size, chunk),
    on_dead_letter(topic, payload, error) and on_raw(buf, topic_start, topic_end, payload_start, payload_end), which
    takes every message and allocates nothing.
    Attributes to read: connected; closed, after disconnect(); subscribed, when the broker has answered every
    subscribe() and unsubscribe(); pending, how many messages are in the outbox, and in_flight, how many of them were
    sent on this link; socket, for select and poll, or None. While a handler runs, packet_id, flags (of its PUBLISH) and
    redelivered describe the message.

    Counters: sent, received, discarded, unhandled, dead_letters, unexpected (acknowledgements), reconnects.

    Raises InvalidArgument.
    """

    # Options and callbacks that are seldom read. Those that every message needs are set on the instance, because an
    # attribute that only the class has costs several times as much to read.
    connect_timeout = 15000
    rx_size = tx_size = 1024
    policy = 0
    max_bytes = transports = None
    allow_plain = allow_mqtt31 = keep_broker_queue = False
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
        Session.__init__(self)
        # What CONNECT says after its fixed header; what it says once, to make the broker forget; ms until the next
        # attempt, when it is not _back_off() that tells, or True: at once, and to the same server.
        self.connect_as_usual = self.purge = self.again = None
        self.assume_present = False  # the broker does not say whether it remembers: MQTT 3.1
        self.connect_as = self.servers = self._rx = self.transport = self.socket = self._closing_at = None
        self.clean_session = clean_session
        self.connected = self.closed = self._busy = self._slept = False
        self._server = self.tried = self._brief = self.limit = self._rx_end = self.reconnects = 0
        self._since = self._until = 0
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

    def poll(self, ms):
        """Waits up to ms, but no longer than tick() allows, for something to arrive; then calls tick()."""
        left = min(ms, self._wait - ticks_diff(self.ticks() & 0x3FFFFFFF, self.now))
        if left > 0 and not self._broken:
            if self.transport:
                try:
                    self.transport.wait(left, self.waits())
                except OSError as error:
                    self._broken = error
            else:
                from time import sleep

                sleep(left / 1000)
        return self.tick()

    def waits(self):
        """True while the client waits for `socket` to take bytes, or to connect: what a selector has to know."""
        writing = self.transport and self.state == CLOSED or self.out.waits()
        transport_waits = getattr(self.transport, "waits", None)  # WebSocket may have to read before it can write
        return transport_waits(writing) if transport_waits else writing

    def tick(self):
        """Does what is to be done now and never waits. Returns ms after which it must be called again at the latest.

        Raises nothing for the network: what goes wrong there goes to on_disconnect and on_error.
        """
        if self._busy:  # called by a handler
            return 0
        self._busy = True
        self.advance()
        wait = _NEVER
        try:
            for timer in self.timers:
                wait = min(wait, timer())
            if self._slept:
                self._slept = False
                if self._closing_at is not None:
                    self._closing_at = self.now
                if self.transport:
                    raise LinkLost("slept for days")
            self._wait = self._tick()
        except BaseException as error:  # of a callback too: the link is out of step with what was read from it
            self._lost(error)
            if not isinstance(error, (OSError, MQTTError, MemoryError)):
                raise
        finally:
            self._busy = False
        if self._closing_at is not None:
            wait = min(wait, max(0, ticks_diff(self._closing_at, self.now))) if self.outbox.queue else 0
        self._wait = min(self._wait, wait)
        return self._wait

    def advance(self):
        """Sets `now`."""
        now = self.ticks() & 0x3FFFFFFF
        if ticks_diff(now, self.now) < 0:  # at least 2**29 ms
            self._slept = True
        self.now = self.out.now = now

    def _tick(self):
        if self._closing_at is not None:
            if not self.outbox.queue or ticks_diff(self._closing_at, self.now) <= 0:
                self._closing_at = None
                if self.connected:
                    self.say_goodbye()
                self._drop()
                self.closed = True
        if self.closed:
            return _NEVER
        if not self.transport:
            elapsed = ticks_diff(self.now, self._since)
            if 0 <= elapsed < self._until:  # below 0: days ago
                return self._until - elapsed
            factory, arguments = self.servers[self._server][:2]
            self._begin(self.connect_timeout)
            self.transport = factory(*arguments)
        if self.state == CLOSED:
            ready = self.transport.ready()
            self.socket = self.transport.socket  # another one at the next address of a name
            if ready:
                self._begin(self.connect_timeout)
                self.open(self.transport.write, self.connect_packet())
        if self.state != CLOSED:
            self._read()
        wait = self.work()
        if not self.connected:
            wait = self._until - ticks_diff(self.now, self._since)
            if not 0 < wait <= self._until:
                raise LinkLost("connect_timeout")
        elif ticks_diff(self.now, self._since) >= _STABLE:
            self.limit = self._brief = 0
        return wait

    def connect_packet(self):
        """CONNECT after its fixed header, as the next link sends it."""
        return self.purge or self.connect_as_usual

    def _begin(self, until):
        # What begins now must be over, or done, in so many ms.
        self._since = self.now
        self._until = self._wait = until

    def _read(self):
        buf = self._rx
        end = self._rx_end
        for _ in range(_READS):
            space = len(buf) - end
            n = self.transport.read(buf, end) if space else None
            if n == 0:
                raise LinkLost("closed by the broker")
            end += n or 0
            if not end:
                return
            used = self.receive(buf, end)
            if self.transport is None:  # a callback closed the link
                return
            end -= used
            if used and end:
                buf[:end] = buf[used : used + end]
            self._rx_end = end
            if not n or n < space:
                return

    def connected_as(self, session_present, return_code):
        """CONNACK has come."""
        if return_code:
            load("refused").connection(self, return_code)
        name = self.servers[self._server][2]
        if self.purge:
            self.part("resume").purged(name)
        self.resume((session_present or self.assume_present) and self.part("resume").check(name))
        store = self.outbox.store
        if store.session != name:
            store.session = name
        self.connected = True
        self._begin(0)
        if self.on_connect:
            self.on_connect(bool(session_present))

    def _lost(self, error):
        connected = self.connected
        lasted = ticks_diff(self.now, self._since)
        again = self.again
        self.again = None
        self._drop()
        if connected:
            self.reconnects += 1
            self.tried = 0
            if not 0 <= lasted < _STABLE:
                self.limit = self._brief = 0
            self._brief = self._brief + 1 if lasted < _BRIEF else 0
            if self._brief == 3:
                self._brief = 0
                self.report(LinkLost("is this client id in use elsewhere?"))
        elif again is not True:
            self.tried += 1
            self.purge = None  # resume.py will ask for it again, where it is needed
            self._server = (self._server + 1) % len(self.servers)
            if self.tried < len(self.servers):
                again = True  # every server of the list is tried before the wait
        if again is True:
            again = 0
        else:
            self.tried = 0
            if again is None:
                again = self._back_off()
        self._begin(again)
        if not connected:
            self.report(error)
        elif self.on_disconnect:
            self.on_disconnect(error)

    def _back_off(self):
        # Full jitter: evenly between 0 and a limit, which is 1 s twice and then doubles. Even the first wait is random,
        # so that a restarted broker does not meet its whole fleet at once.
        limit = self.limit
        self.limit = min(limit * 2, _LONGEST) if limit else 1000
        return self.random((limit or 1000) + 1)

    def _drop(self):
        self.close()
        self.connected = False
        self._rx_end = 0
        transport = self.transport
        self.transport = self.socket = None
        if transport:
            transport.close()

    def say_goodbye(self):
        """Sends DISCONNECT, if the link takes it now."""
        try:
            self.out.put(0xE0, b"")
            self.out.flush()
        except OSError as error:
            self.report(error)

    def report(self, error):
        """Tells the program."""
        if self.on_error:
            self.on_error(error)


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

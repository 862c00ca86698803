"""The client: makes links, keeps them, makes new ones. Everything happens in tick(), which never waits."""

import os

from . import packets
from ._platform import const, ticks_diff, ticks_ms
from .errors import InvalidArgument, LinkLost, MQTTError, Refused
from .outbox import Outbox
from .session import Session
from .store import MemoryStore
from .topics import check_topic_name, check_utf8

_NEVER = const(0x1FFFFFFF)
_LONGEST = const(128000)  # ms between two attempts
_STABLE = const(10000)  # ms: a link that lasted this long was good
_BRIEF = const(3000)  # ms: a link that ended this soon after CONNACK was thrown off
_READS = const(8)  # receive buffers that one tick may take

# What the client is doing: _doing.
_WAIT = const(0)  # for the next attempt
_CONNECT = const(1)
_AWAIT_CONNACK = const(2)
_WORK = const(3)
_ENDED = const(4)


class Will:
    """The message that the broker publishes when this client is lost: MQTT 3.1.1, 3.1.2.5."""

    def __init__(self, topic, payload, qos=0, retain=False):
        self.topic = check_topic_name(topic)
        self.payload = payload.encode() if isinstance(payload, str) else bytes(payload)
        self.qos = qos
        self.retain = retain
        if qos not in (0, 1, 2) or len(self.payload) > 65535:
            raise InvalidArgument("a will has qos 0, 1 or 2 and a payload of at most 65535 bytes")


def parse_url(url):
    """(scheme, host, port, path) of a broker's URL such as mqtt://broker.example or mqtts://[::1]:8883."""
    scheme, _, rest = url.partition("://")
    port = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}.get(scheme)
    address, _, path = rest.partition("/")
    host, _, number = address.partition(":")
    if address[:1] == "[":
        host, closed, number = address[1:].partition("]")
        number = number[1:] if closed and number[:1] in ("", ":") else "?"
    if number and port:
        port = int(number) if number.isdigit() else 0
    if not port or port > 65535 or not host or "@" in host:
        raise InvalidArgument("a broker is like mqtt://host:1883, without credentials, not " + url)
    return scheme, host, port, "/" + path


def _random(n):
    return int.from_bytes(os.urandom(4), "big") % n


# The options, which Client takes by keyword and which are attributes of it. Set on the instance: an attribute that only
# the class has costs several times as much to read.
_OPTIONS = {
    "window": 8,
    "ack_timeout": 30000,
    "connect_timeout": 15000,
    "ping_after": 0,
    "ping_timeout": 0,
    "rx_size": 1024,
    "tx_size": 1024,
    "policy": 0,
    "max_bytes": None,
    "queue_qos0": False,
    "manual_ack": False,
    "transports": None,
    "allow_plain": False,
    "allow_mqtt31": False,
    "keep_broker_queue": False,
    "ticks": ticks_ms,
    "random": _random,
    "on_connect": None,
    "on_disconnect": None,
    "on_message": None,
    "on_raw": None,
    "on_large": None,
    "on_acknowledged": None,
    "on_dropped": None,
    "on_error": None,
    "on_dead_letter": None,
}


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

    def __init__(self, client_id, servers, keep_alive=60, clean_session=True, store=None, will=None, username=None,
                 password=None, **options):  # fmt: skip
        for name in _OPTIONS:
            setattr(self, name, options.pop(name, _OPTIONS[name]))
        if options:
            raise InvalidArgument("unknown option " + list(options)[0])
        if not isinstance(keep_alive, int) or not 0 <= keep_alive <= 65535:
            raise InvalidArgument("keep_alive must be 0 to 65535 seconds")
        if not 0 <= self.ping_after <= keep_alive * 1000:
            raise InvalidArgument("ping_after must be at most keep_alive")
        client_id = check_utf8(client_id, "client_id")
        if not client_id and not clean_session or password is not None and username is None:
            # [MQTT-3.1.3-7], [MQTT-3.1.2-22]
            raise InvalidArgument("an empty client_id needs clean_session, and a password a username")
        if username is not None:
            username = check_utf8(username, "username")
        if isinstance(password, str):
            password = password.encode()
        self._connect_as = client_id, keep_alive, clean_session, will, username, password
        self._servers = [self._parse(url) for url in ((servers,) if isinstance(servers, str) else servers)]
        secure = [server[3] for server in self._servers]
        if not secure or True in secure and False in secure and not self.allow_plain:
            raise InvalidArgument("servers are none, or mix encrypted and plain without allow_plain")
        Session.__init__(self, Outbox(store or MemoryStore(), self.window), keep_alive * 1000)
        self._rx = bytearray(self.rx_size)
        self._rx_end = 0
        self.transport = self.socket = self._closing_at = None
        self.connected = self.closed = False
        self._level = 4
        self.clean_session = clean_session
        self.purge = self.again = self._busy = self._slept = False
        self._server = self._tried = self._brief = self._limit = 0
        self.reconnects = 0
        self.now = self.out.now = self.ticks() & 0x3FFFFFFF
        self._do(_WAIT, self._back_off())

    def _parse(self, url):
        # (factory, arguments, name, whether it is encrypted)
        scheme, host, port, path = parse_url(url)
        factory = (self.transports or {}).get(scheme)
        arguments = host, port, path
        if not factory:
            if scheme != "mqtt":
                raise InvalidArgument("%s needs transports={'%s': ...}" % (url, scheme))
            from .transport import TCP as factory

            arguments = host, port
        return factory, arguments, "%s:%d" % (host, port), scheme[-1] == "s" and scheme != "ws"

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
            self._do(_WAIT)

    def poll(self, ms):
        """Waits up to ms, but no longer than tick() allows, for something to arrive; then calls tick()."""
        left = self._wait - ticks_diff(self.ticks() & 0x3FFFFFFF, self.now)
        if left > 0 and ms > 0 and not self._broken:
            if self.transport:
                try:
                    self.transport.wait(min(ms, left), self.waits())
                except OSError as error:
                    self._broken = error
            else:
                from time import sleep

                sleep(min(ms, left) / 1000)
        return self.tick()

    def waits(self):
        """True while the client waits for `socket` to take bytes, or to connect: what a selector has to know."""
        writing = self._doing == _CONNECT or self.out.waits()
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
        if self.has_part("policy"):
            self.part("policy").tick()
        try:
            if self._slept:
                self._slept = False
                if self._closing_at is not None:
                    self._closing_at = self.now
                if self.transport:
                    raise LinkLost("this device slept for days")
            self._wait = self._tick()
        except (OSError, MQTTError, MemoryError) as error:
            self._lost(error)
        except BaseException as error:  # of a callback: the link is out of step with what was read from it
            self._lost(error)
            raise
        finally:
            self._busy = False
        if self._closing_at is not None:
            left = ticks_diff(self._closing_at, self.now) if self.outbox.queue else 0
            self._wait = min(self._wait, max(0, left))
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
                self._end_now()
        if self._doing == _ENDED:
            return _NEVER
        if self._doing == _WAIT:
            elapsed = ticks_diff(self.now, self._since)
            if 0 <= elapsed < self._until:  # below 0: days ago
                return self._until - elapsed
            factory, arguments, _, _ = self._servers[self._server]
            self._do(_CONNECT, self.connect_timeout)
            self.transport = factory(*arguments)
        if self._doing == _CONNECT:
            ready = self.transport.ready()
            self.socket = self.transport.socket  # another one at the next address of a name
            if ready:
                self._do(_AWAIT_CONNACK, self.connect_timeout)
                self.open(self.transport.write, self.connect_packet())
        if self._doing != _CONNECT:
            self._read()
        wait = self.work()
        if ticks_diff(self.now, self._since) >= _STABLE and self._doing == _WORK:
            self._limit = self._brief = 0
        if self._doing < _WORK:
            wait = self._until - ticks_diff(self.now, self._since)
            if not 0 < wait <= self._until:
                raise LinkLost("no connection within connect_timeout")
        return wait

    def connect_packet(self):
        """CONNECT, as the next link sends it."""
        return packets.connect(*self._connect_as, self._level, self.purge)

    def _do(self, doing, until=0):
        self._doing = doing
        self._since = self.now
        self._until = self._wait = until
        self.connected = doing == _WORK

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
            if return_code == 1 and self.allow_mqtt31 and self._level == 4:
                self._level = 3
                self.again = True
            raise Refused("connect", return_code)
        name = self._servers[self._server][2]
        if self.purge:
            self.part("resume").purged(name)
        store = self.outbox.store
        known = False
        if session_present or self._level == 3 and not self.clean_session:
            known = self.part("resume").check(name)
        self.resume(known)
        if store.session != name:
            store.session = name
        self._do(_WORK)
        if self.on_connect:
            self.on_connect(bool(session_present))

    def _lost(self, error):
        doing = self._doing
        lasted = ticks_diff(self.now, self._since)
        self._drop()
        code = error.args[1] if isinstance(error, Refused) else 0
        if doing == _WORK:
            self.reconnects += 1
            self._tried = 0
            if not 0 <= lasted < _STABLE:
                self._limit = self._brief = 0
            self._brief = self._brief + 1 if lasted < _BRIEF else 0
            if self._brief == 3:
                self._brief = 0
                self._report(LinkLost("thrown off again and again: is this client id in use elsewhere?"))
        elif not self.again:
            self._tried += 1
            self.purge = False  # resume.py will ask for it again, where it is needed
            self._server = (self._server + 1) % len(self._servers)
        if self.again:
            self.again = False
            self._do(_WAIT)
        elif doing != _WORK and self._tried < len(self._servers):
            self._do(_WAIT)  # every server of the list is tried before the wait
        else:
            self._tried = 0
            self._do(_WAIT, self._back_off(code in (2, 4, 5)))
        if doing == _WORK and self.on_disconnect:
            self.on_disconnect(error)
        elif doing != _WORK:
            self._report(error)

    def _back_off(self, longest=False):
        # Full jitter: evenly between 0 and a limit, which is 1 s twice and then doubles. Even the first wait is random,
        # so that a restarted broker does not meet its whole fleet at once. Where another attempt is unlikely to fare
        # better: the longest limit, less up to a quarter.
        limit = self._limit
        self._limit = min(limit * 2, _LONGEST) if limit else 1000
        if longest:
            self._limit = _LONGEST
            return _LONGEST - self.random(_LONGEST // 4)
        return self.random((limit or 1000) + 1)

    def _drop(self):
        self.close()
        self._rx_end = 0
        transport = self.transport
        self.transport = self.socket = None
        if transport:
            transport.close()

    def _end_now(self):
        self._closing_at = None
        if self.connected:
            self.say_goodbye()
        self._drop()
        self._do(_ENDED)
        self.closed = True

    def say_goodbye(self):
        """Sends DISCONNECT, if the link takes it now."""
        try:
            self.out.put(b"\xe0\0")
            self.out.flush()
        except OSError as error:
            self._report(error)

    def _report(self, error):
        if self.on_error:
            self.on_error(error)

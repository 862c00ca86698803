"""The client: makes links, keeps them, makes new ones. Everything happens in tick(), which never waits."""

from . import packets
from ._platform import const, ticks_diff, ticks_ms
from .backoff import Backoff
from .errors import ConnectRefused, InvalidArgument, LinkLost, MQTTError, ProtocolError, SessionPurged
from .keepalive import KeepAlive
from .outbox import REJECT, Outbox
from .session import Session
from .topics import check_topic_name, check_utf8

_NEVER = const(0x1FFFFFFF)
_DISCONNECT = const(0xE0)
_STABLE = const(10000)  # ms: a link that lasted this long was good
_BRIEF = const(3000)  # ms: a link that ended this soon after CONNACK was thrown off
_READS = const(8)  # receive buffers that one tick may take

# What the client is doing.
_WAITING = const(0)  # for the next attempt
_CONNECTING = const(1)
_AWAIT_CONNACK = const(2)
_UP = const(3)
_CLOSED = const(4)


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
    scheme, found, rest = url.partition("://")
    port = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}.get(scheme)
    address, _, path = rest.partition("/")
    host = address
    number = ""
    if address.startswith("["):
        host, closed, number = address[1:].partition("]")
        if not closed or number and not number.startswith(":"):
            raise InvalidArgument("broker URL has a malformed IPv6 address: " + url)
        number = number[1:]
    elif ":" in address:
        host, _, number = address.partition(":")
    if port is None or not host or "@" in address:
        raise InvalidArgument("broker URL must be like mqtt://host:1883, without credentials: " + url)
    try:
        port = int(number) if number else port
    except ValueError:
        port = 0
    if not 0 < port < 65536:
        raise InvalidArgument("broker URL has a bad port: " + url)
    return scheme, host, port, "/" + path


class Client:
    """An MQTT 3.1.1 client that keeps every message at QoS 1 and 2 until the broker has acknowledged it.

    client_id: str or bytes. servers: URL or several; they are tried in turn. keep_alive: seconds, 0 switches it off.
    clean_session: whether the broker forgets this client when the link ends. store: where unacknowledged messages
    lie, a MemoryStore unless told otherwise. will: a Will. password: str or bytes, needs username.

    Further, by keyword: policy, max_bytes (see outbox.py); window: messages in flight; ping_after, ping_timeout,
    ack_timeout, connect_timeout: ms; rx_size, tx_size: bytes of the buffers; queue_qos0: keep messages at QoS 0 while
    there is no link; transports: {scheme: factory(host, port, path)} beside TCP for mqtt; allow_plain_fallback: a
    list of servers may mix mqtts and mqtt; allow_mqtt31: fall back to MQTT 3.1; keep_broker_queue: use a session
    that the broker remembers and this client does not (see SessionPurged); ticks(): ms that wrap at 2**30;
    random(n): 0 to n - 1.

    Callbacks, attributes to set: on_connect(session_present), on_disconnect(error), on_acknowledged(token),
    on_dropped(token, topic, payload, reason), on_error(error), on_message(topic, payload) for what no other handler
    takes, on_large(topic, offset, size, chunk), on_dead_letter(topic, payload, error),
    on_raw(buf, topic_start, topic_end, payload_start, payload_end), which takes every message and allocates nothing.

    Raises InvalidArgument.
    """

    def __init__(self, client_id, servers, keep_alive=60, clean_session=True, store=None, will=None, username=None,
                 password=None, *, policy=REJECT, max_bytes=None, window=8, ping_after=None, ping_timeout=None,
                 ack_timeout=30000, connect_timeout=15000, rx_size=1024, tx_size=1024, queue_qos0=False,
                 transports=None, allow_plain_fallback=False, allow_mqtt31=False, keep_broker_queue=False,
                 ticks=ticks_ms, random=None):  # fmt: skip
        if not isinstance(keep_alive, int) or not 0 <= keep_alive <= 65535:
            raise InvalidArgument("keep_alive must be 0 to 65535 seconds")
        if password is not None and username is None:
            raise InvalidArgument("a password needs a username")  # [MQTT-3.1.2-22]
        self.client_id = check_utf8(client_id, "client_id")
        if not self.client_id and not clean_session:
            raise InvalidArgument("an empty client_id needs clean_session")  # [MQTT-3.1.3-7]
        self._username = None if username is None else check_utf8(username, "username")
        self._password = password.encode() if isinstance(password, str) else password
        self._will = will
        self._keep_alive = keep_alive
        self._clean_session = clean_session
        self._servers = self._parse_servers(servers, transports or {}, allow_plain_fallback)
        self._allow_mqtt31 = allow_mqtt31
        self._keep_broker_queue = keep_broker_queue
        self._connect_timeout = connect_timeout
        self._ticks = ticks
        self._backoff = Backoff(random) if random else Backoff()
        outbox = Outbox(store, max_bytes, policy)
        outbox.on_dropped = self._dropped
        self._session = Session(
            outbox, KeepAlive(keep_alive * 1000, ping_after, ping_timeout), window, ack_timeout, tx_size, queue_qos0
        )
        self._session.on_connack = self._connack
        self._session.on_error = self._report
        self._rx = bytearray(rx_size)
        self._rx_end = 0
        self.on_connect = self.on_disconnect = self.on_dropped = self.on_error = None
        self.transport = None
        self._server = 0  # the server in use, or to be tried next
        self._tried = 0  # servers tried in this round
        self._level = 4
        self._purge = False
        self._brief = 0  # links in a row that ended right after CONNACK
        self._busy = False
        self._closing_at = None
        self.reconnects = 0
        now = self._session.out.now = ticks()
        self._since = now  # when the state began
        self._state = _WAITING
        self._wait = self._backoff.delay()

    @staticmethod
    def _parse_servers(servers, transports, allow_plain_fallback):
        if isinstance(servers, str):
            servers = (servers,)
        parsed = []
        secure = 0
        for url in servers:
            scheme, host, port, path = parse_url(url)
            if scheme == "mqtt" and scheme not in transports:
                from .transport import TCP

                factory = _tcp(TCP)
            elif scheme in transports:
                factory = transports[scheme]
            else:
                raise InvalidArgument("%s needs transports={'%s': ...}" % (url, scheme))
            secure += scheme in ("mqtts", "wss")
            parsed.append((factory, host, port, path))
        if not parsed:
            raise InvalidArgument("servers is empty")
        if 0 < secure < len(parsed) and not allow_plain_fallback:
            raise InvalidArgument("servers mix encrypted and plain: set allow_plain_fallback to allow that")
        return parsed

    # What the program does

    def publish(self, topic, payload, qos=0, retain=False, expires_in=None):
        """Sends a message, or keeps it until there is a link.

        topic: str or bytes; payload: bytes, str, bytearray or memoryview; expires_in: ms after which it is dropped if
        it was never sent. Returns a token, for on_acknowledged and is_pending(): above 0 at QoS 1 and 2, when the
        message is in the store; 0 at QoS 0, when it was handed to the link; None when it was dropped, and counted.
        Raises InvalidArgument, OutboxFull and StoreError; the message is not in the outbox then.
        """
        return self._session.publish(topic, payload, qos, retain, expires_in)

    def is_pending(self, token):
        """True while the message of that token is in the outbox."""
        outbox = self._session.outbox
        for slot in outbox.slots_in_order():
            if outbox.order[slot] == token:
                return True
        return False

    def subscribe(self, topic_filter, qos=0):
        """Subscribes now, and again whenever the broker has forgotten it. A refusal goes to on_error."""
        self._session.subscribe(topic_filter, qos)

    def unsubscribe(self, topic_filter):
        """Ends a subscription."""
        self._session.unsubscribe(topic_filter)

    def on(self, topic_filter, handler):
        """handler(topic: bytes, payload: bytes) takes the messages that the topic filter selects; None removes it."""
        self._session.inbound.on(topic_filter, handler)

    def acknowledge(self, packet_id):
        """With manual_ack: the message that `packet_id` named during its handler is done. False: no such message."""
        return self._session.acknowledge(packet_id)

    def disconnect(self, quiesce_ms=0):
        """Ends with DISCONNECT, after up to quiesce_ms for what is still in the outbox; tick() until `closed`."""
        if self._state != _CLOSED:
            self._closing_at = (self._ticks() + quiesce_ms) & 0x3FFFFFFF

    def connect(self):
        """Begins again after disconnect()."""
        self._closing_at = None
        if self._state == _CLOSED:
            self._enter(_WAITING, self._ticks(), 0)

    def tick(self):
        """Does what is to be done now and never waits. Returns ms after which it must be called again at the latest.

        Raises nothing for the network: what goes wrong there goes to on_disconnect and on_error.
        """
        if self._busy:  # called by a handler
            return 0
        now = self._ticks() & 0x3FFFFFFF
        self._busy = True
        try:
            return self._run(now)
        except (OSError, MQTTError, MemoryError) as error:
            self._link_lost(error, now)
            return self._wait
        finally:
            self._busy = False

    def poll(self, ms):
        """Waits up to ms for the link, no longer than tick() allows, then calls tick(); returns what it returned."""
        wait = min(ms, self.tick())
        if wait > 0:
            if self.transport:
                self.transport.wait(wait, self._session.out.waits)
            else:
                from time import sleep

                sleep(wait / 1000)
            return self.tick()
        return wait

    # What the program can ask

    @property
    def connected(self):
        """True while the broker has accepted this client."""
        return self._state == _UP

    @property
    def closed(self):
        """True after disconnect(), when it is done."""
        return self._state == _CLOSED

    @property
    def pending(self):
        """Messages in the outbox."""
        return self._session.outbox.count

    @property
    def in_flight(self):
        """Messages that were sent on this link and not acknowledged."""
        return self._session.outbox.in_flight

    @property
    def socket(self):
        """What select and poll take, or None while there is no link."""
        return self.transport.socket if self.transport else None

    @property
    def session(self):
        """The Session: its counters, and the message that a handler looks at."""
        return self._session

    # Links

    def _run(self, now):
        session = self._session
        session.advance(now)
        if self._closing_at is not None and self._close_when_done(now):
            return _NEVER
        if self._state == _WAITING:
            left = self._wait - ticks_diff(now, self._since)
            if left > 0:
                return left
            self._start_link(now)
        elif self._state == _CLOSED:
            return _NEVER
        if self._state == _CONNECTING:
            if not self.transport.ready():
                return self._deadline(now, "no connection")
            self._enter(_AWAIT_CONNACK, now)
            session.open(self.transport.write, self._connect_packet(), now)
        self._read()
        wait = session.tick()
        if self._state == _AWAIT_CONNACK:
            wait = self._deadline(now, "no CONNACK")
        return wait

    def _deadline(self, now, what):
        left = self._connect_timeout - ticks_diff(now, self._since)
        if left <= 0:
            raise LinkLost(what + " within connect_timeout")
        return left

    def _start_link(self, now):
        self.transport = None
        factory, host, port, path = self._servers[self._server]
        self._enter(_CONNECTING, now)
        self.transport = factory(host, port, path)

    def _enter(self, state, now, wait=0):
        self._state = state
        self._since = now
        self._wait = wait

    def _connect_packet(self):
        return packets.connect(
            self.client_id, self._keep_alive, self._clean_session or self._purge,
            None if self._purge else self._will, self._username, self._password, self._level,
        )  # fmt: skip

    def _read(self):
        session = self._session
        buf = self._rx
        end = self._rx_end
        for _ in range(_READS):
            space = len(buf) - end
            n = self.transport.read(buf, end) if space else None
            if n == 0:
                raise LinkLost("the broker closed the link")
            end += n or 0
            if not end:
                return
            used = session.receive(buf, end)
            if self.transport is None:  # a callback closed the link
                return
            end -= used
            if used and end:
                buf[:end] = buf[used : used + end]
            self._rx_end = end
            if not n or n < space:
                return

    def _connack(self, session_present, return_code):
        if return_code:
            raise ConnectRefused(return_code)
        session = self._session
        store = session.outbox.store
        server = self._server_name()
        if self._purge:
            self._purge = False
            session.out.put_empty(_DISCONNECT)
            session.out.flush()
            raise SessionPurged(server)
        if self._level == 3 and not self._clean_session:
            session_present = 1  # MQTT 3.1 does not say: go on as if
        if session_present and self._clean_session:
            raise ProtocolError("CONNACK with session_present after clean_session")  # [MQTT-3.2.2-1]
        known = session_present and store.session == server
        if session_present and not known and not self._keep_broker_queue:
            self._purge = True
            raise SessionPurged(server)
        session.resume(known)
        if store.session != server:
            store.set_session(server)
        self._enter(_UP, session.out.now)
        if self.on_connect:
            self.on_connect(bool(session_present))

    def _server_name(self):
        factory, host, port, path = self._servers[self._server]
        return "%s:%d%s" % (host, port, path)

    def _link_lost(self, error, now):
        was_up = self._state == _UP
        lasted = ticks_diff(now, self._since)
        self._drop_link()
        if isinstance(error, SessionPurged):
            self._report(error)
            self._enter(_WAITING, now, 0)
            return
        if isinstance(error, ConnectRefused):
            if error.return_code == 1 and self._allow_mqtt31 and self._level == 4:
                self._level = 3
                self._enter(_WAITING, now, 0)
                return
        self._enter(_WAITING, now, self._next_wait(error, was_up, lasted))
        if was_up:
            self.reconnects += 1
            if self.on_disconnect:
                self.on_disconnect(error)
        else:
            self._report(error)

    def _next_wait(self, error, was_up, lasted):
        if was_up:
            self._tried = 0
            self._brief = self._brief + 1 if lasted < _BRIEF else 0
            if self._brief and self._brief % 3 == 0:
                self._report(LinkLost("thrown off again and again: is this client id in use elsewhere?"))
            if lasted >= _STABLE:
                self._backoff.reset()
            return self._backoff.delay()
        self._tried += 1
        self._server = (self._server + 1) % len(self._servers)
        if self._tried < len(self._servers):
            return 0
        self._tried = 0
        if isinstance(error, ConnectRefused) and error.return_code in (2, 4, 5):
            return self._backoff.longest()
        return self._backoff.delay()

    def _drop_link(self):
        self._session.close()
        self._rx_end = 0
        transport = self.transport
        self.transport = None
        if transport:
            try:
                transport.close()
            except OSError as error:
                self._report(error)

    def _close_when_done(self, now):
        session = self._session
        if session.outbox.count and ticks_diff(self._closing_at, now) > 0:
            return False
        self._closing_at = None
        if self._state == _UP:
            try:
                session.out.put_empty(_DISCONNECT)
                session.out.flush()
            except OSError as error:
                self._report(error)
        self._drop_link()
        self._enter(_CLOSED, now)
        return True

    def _dropped(self, slot, reason):
        outbox = self._session.outbox
        self._session.discarded += 1
        if self.on_dropped:
            topic, payload = outbox.store.load(slot)
            self.on_dropped(outbox.order[slot], topic, payload, reason)

    def _report(self, error):
        if self.on_error:
            self.on_error(error)


def _tcp(transport):
    return lambda host, port, path: transport(host, port)

"""The client that programs use: a Session that connects to its brokers, and reconnects when a link is lost."""

import os
from time import sleep

from ._platform import NEVER, TICKS_MASK, Progress, collect, const, load, ticks_diff
from .base_errors import LinkLost, MQTTError
from .packets import CLOSED, UP
from .session import Session

_LONGEST = const(128000)  # ms between two attempts
_STABLE = const(10000)  # ms: a link that lasted this long was good
_SHORT = const(3000)  # ms: a link that ends this soon after CONNACK was ended by the broker


def _random(n):
    return int.from_bytes(os.urandom(4), "big") % n


def Will(topic, payload, qos=0, retain=False, properties=None):
    """Returns a will for Client(will=...): the message that the broker publishes when this client is lost (3.1.2.5).

    properties: of MQTT 5, see mqtt5.py. Raises InvalidArgument.
    """
    return load("checks").will(topic, payload, qos, retain, properties)


class Client(Session):
    """An MQTT 3.1.1 and MQTT 5 client that keeps every message at QoS 1 and 2 until the broker has acknowledged it.

    It receives, reconnects and calls handlers only inside poll() and tick(). Give all parameters after `keep_alive` by
    keyword.

    :param client_id: the id under which the broker knows this client
    :param servers: the URL of the broker, or a list of URLs, tried in turn; ``{name: URLs}``: the nodes of a cluster,
        which share sessions
    :param keep_alive: s after which a silent link is taken for dead at the latest; 0: never
    :param clean_session: whether the broker forgets this client when the link ends
    :param store: where messages are kept until they are acknowledged; None: a MemoryStore
    :param will: a Will, which the broker publishes when the link is lost
    :param username: the user name at the broker, or None
    :param password: the password at the broker, or None
    :param window: how many messages may be in flight at once
    :param ack_timeout: ms after which the link is lost if a message is not acknowledged
    :param connect_timeout: ms for a connection and its CONNACK
    :param ping_after: ms of silence before PINGREQ; 0: half of keep_alive
    :param ping_timeout: ms after PINGREQ in which something must arrive; 0: half of keep_alive, at most 10 s
    :param rx_size: bytes of the receive buffer; larger messages go to on_large
    :param tx_size: bytes of the send buffer
    :param policy: what happens when the outbox is full: a constant of policy.py
    :param max_bytes: the most bytes of topic names and payloads in the outbox; None: no limit
    :param queue_qos0: whether messages at QoS 0 are kept while they cannot be sent
    :param manual_ack: whether the program acknowledges each message itself, with acknowledge()
    :param transports: ``{scheme: factory(host, port, path)}``; without an entry, mqtt uses TCP
    :param allow_plain: whether `servers` may mix mqtts and mqtt
    :param allow_mqtt31: whether MQTT 3.1 is used with a broker that refuses MQTT 3.1.1
    :param handler_retries: how often a handler that raised is called again with the same message; what it
        did before is not undone
    :param keep_broker_queue: whether a session of the broker that the store does not know is kept, with the messages
        queued in it; None: if the store is volatile or knows another broker (resume.py)
    :param protocol: 4 for MQTT 3.1.1; 5 for MQTT 5; "auto" for MQTT 5, or 3.1.1 if the broker knows nothing newer
    :param connect_properties: the properties of CONNECT in MQTT 5, a dict (mqtt5.py)
    :param ticks: the clock: ``ticks()`` returns ms that wrap at 2**30
    :param random: ``random(n)``: an int from 0 to n - 1
    :param on_connect: ``on_connect(session_present)``
    :param on_disconnect: ``on_disconnect(error)``
    :param on_message: ``on_message(topic, payload)``, for messages that no handler of on() takes
    :param on_raw: ``on_raw(buf, topic_start, topic_end, payload_start, payload_end)``, for every message, in
        place of all other handlers; topic and payload are not copied
    :param on_large: ``on_large(topic, offset, size, chunk)``, for messages larger than rx_size
    :param on_acknowledged: ``on_acknowledged(packet_id)``
    :param on_dropped: ``on_dropped(packet_id, topic, payload, reason)``, for a message that the outbox drops; reason: a
        constant of policy.py
    :param on_error: ``on_error(error)``, for an error that does not end the link, or that comes before `connected`
    :param on_dead_letter: ``on_dead_letter(topic, payload, error)``, for a message whose handler raised; payload: None
        if it came in pieces
    :raises InvalidArgument: a parameter has a wrong type or value
    :raises StoreError: the store cannot be read

    Callbacks are attributes too, and may be set later. Attributes to read:

    :ivar connected: whether there is a link on which the broker has accepted this client
    :ivar closed: whether disconnect() is done
    :ivar subscribed: whether the broker has answered every subscribe() and unsubscribe()
    :ivar pending: how many messages are in the outbox
    :ivar in_flight: how many of them were sent on this link
    :ivar socket: what select and poll take, or None
    :ivar packet_id: the packet id of a message, while its handler runs
    :ivar flags: the flags of its PUBLISH
    :ivar redelivered: whether the broker may have sent it before
    :ivar properties: its properties in MQTT 5
    :ivar mqtt5: None unless the link speaks MQTT 5
    :ivar connack_properties: the properties of the last CONNACK in MQTT 5

    Counters: sent, received, discarded, unhandled, dead_letters, too_large, unexpected (acknowledgements), downgraded
    (to QoS 1), reconnects, quarantined (messages that were set aside: quarantine.py), malformed (messages received).
    """

    connect_timeout = 15000
    rx_size = 1024
    # before_reading: a method of a subclass that returns True if nothing is to be read now.
    transports = on_disconnect = before_reading = None
    allow_plain = False

    def __init__(self, client_id, servers, keep_alive=60, clean_session=True, store=None, will=None, username=None,
                 password=None, **options):  # fmt: skip
        self.random = _random
        self.reads = 8  # most reads into the receive buffer in one tick
        self.servers = self.transport = self.socket = self._closing_at = None
        self.closed = self._busy = False
        self._server = self._attempts = self._back_off_limit = self._rx_end = self.reconnects = 0
        Session.__init__(self, client_id, keep_alive, clean_session, store, will, username, password, **options)
        self.servers = not self.transports and _plain_server(servers) or load("servers").parse(self, servers)
        self._rx = buf = bytearray(self.rx_size)
        self._view = memoryview(buf)
        if not clean_session:
            load("resume")  # when a link needs it, the heap may be full
        if self.manual_ack:
            load("manual_ack")  # likewise
        if Progress:
            Progress(self)
        self._begin(self._back_off())
        collect()  # small objects then fill the gaps that this has left, and large ones find room behind them

    def is_pending(self, packet_id):
        """Returns True while the message with that packet id waits for its acknowledgement.

        Also returns True for any other packet id, while the outbox holds more messages than its index in RAM.
        """
        quarantine = self.parts.get("quarantine")
        if quarantine and quarantine.holds(packet_id):
            return False
        return packet_id in self.outbox.slot_of or self.outbox.more > 0

    def acknowledge(self, packet_id):
        """Acknowledges a received message, with manual_ack. Returns False if no message with that packet id waits."""
        return self.part("manual_ack").acknowledge(packet_id)

    def disconnect(self, quiesce_ms=0):
        """Asks for the end of the link, by DISCONNECT: once the outbox is empty, or after quiesce_ms at the latest.

        Call tick() or poll() until `closed` is True.
        """
        self._closing_at = (self.ticks() + quiesce_ms) & TICKS_MASK
        self.wait_ms = 0

    def connect(self):
        """Connects again after disconnect(), or cancels one that is not done yet."""
        self._closing_at = None
        if self.closed:
            self.closed = False
            self._begin(0)

    def poll(self, ms):
        """Waits until something arrives or tick() is due, for `ms` at most; then returns what tick() returns.

        Raises MQTTError if a handler calls it: nothing arrives while a handler runs, so it could wait for ever.
        """
        if self._busy:
            raise MQTTError("poll() in a handler")
        self.advance()
        left = min(ms, self.wait_ms)
        if left > 0 and not self.broken:
            if self.transport:
                try:
                    self.transport.wait(left, self.waits())
                except OSError as error:
                    self.broken = error
            else:
                sleep(left / 1000)
        return self.tick()

    def waits(self):
        """Returns True if a selector has to wait for `socket` to be writable: it connects, or bytes wait to be sent."""
        writing = self.transport and self.state == CLOSED or self.out.end > 0
        transport_waits = getattr(self.transport, "waits", None)  # WebSocket may have to read before it can write
        return transport_waits(writing) if transport_waits else writing

    def tick(self):
        """Does all work that is due, and never waits. Returns ms after which it must be called again at the latest.

        OSError, MQTTError and MemoryError are not raised: they end the link, and go to on_disconnect or on_error. Any
        other exception, from a callback that is not a message handler, ends the link and is raised.
        """
        if self._busy:  # called by a handler
            return 0
        self._busy = True
        wait = NEVER
        n = None
        try:
            self.advance()
            if self.idle and self.wait_ms > 0 and not (self.out.end or self.broken):
                # Nothing has happened since the last tick, and nothing is due: only the transport is asked.
                n = self.transport.read(self._rx, 0)
                if n is None:
                    return self.wait_ms
            self.idle = False
            for timer in self.timers:
                left = timer()
                if left < wait:  # min() would take longer than most timers
                    wait = left
            if self.slept:
                self.slept = False
                self._deadline = self.now
                if self._closing_at is not None:
                    self._closing_at = self.now
                if self.transport:
                    raise LinkLost("slept for days")
            self.wait_ms = self._tick(n)
        except BaseException as error:  # also from a callback: what was read is then handled in part
            if self.state == UP and not isinstance(error, OSError):
                try:
                    self.out.flush()  # acknowledgements leave first
                except OSError:
                    pass
            self._handle_loss(error)
            if not isinstance(error, (OSError, MQTTError, MemoryError)):
                raise
        finally:
            self._busy = False
        if self._closing_at is not None:
            wait = min(wait, max(0, ticks_diff(self._closing_at, self.now))) if self.pending else 0
        self.wait_ms = min(self.wait_ms, wait)
        return self.wait_ms

    def _tick(self, n):
        # n: bytes that tick() has read; None: it has read nothing.
        if self._closing_at is not None:
            if not self.pending or ticks_diff(self._closing_at, self.now) <= 0:
                self._closing_at = None
                if self.connected:
                    self.send_disconnect()
                self._drop()
                self.closed = True
        if self.closed:
            return NEVER
        if not self.transport:
            left = ticks_diff(self._deadline, self.now)
            if left > 0:
                return left
            factory, arguments = self.servers[self._server][:2]
            self._begin(self.connect_timeout)
            self.transport = factory(*arguments)
        if self.state == CLOSED:
            ready = self.transport.ready()
            self.socket = self.transport.socket  # another one at the next address of a name
            if ready:
                self._begin(self.connect_timeout)
                accepted = getattr(self.transport, "accepted", None)
                self.open(self.transport.write, self.servers[self._server][2], accepted)
        if self.state != CLOSED and (n or not self.before_reading or not self.before_reading()):
            # Not a function of its own: an RP2040 would take longer for its call than for a whole idle tick.
            buf = self._rx
            end = self._rx_end
            for _ in range(self.reads):
                space = len(buf) - end
                if n is None and space:
                    n = self.transport.read(buf, end)
                if n == 0:
                    raise LinkLost("closed by the broker")
                end += n or 0
                if not end:
                    self.idle = True
                    break
                used = self.receive(buf, end)
                if self.transport is None:  # a callback closed the link
                    break
                end -= used
                if used and end:
                    buf[:end] = buf[used : used + end]
                self._rx_end = end
                if not n or n < space:
                    break
                n = None
                self._pump()  # the acknowledgements just read make room in the window
        wait = self.work()
        if not self.connected:
            wait = ticks_diff(self._deadline, self.now)
            if wait <= 0:
                raise LinkLost("connect_timeout")
        return min(wait, self.wait_ms)  # wait_ms: 0 if a call from work() has left more to do

    def _begin(self, limit):
        # Sets the deadline of a connection phase, or the wait for the next one, in ms.
        self._deadline = self.now + limit & TICKS_MASK
        self.wait_ms = limit

    def _handle_loss(self, error):
        connected = self.connected
        delay = self.retry_delay
        self.retry_delay = None
        quarantine = None
        if connected:
            self.reconnects += 1
            lasted = ticks_diff(self.now, self.up_since)
            if not 0 <= lasted < _STABLE:
                self._back_off_limit = 0
            if delay is None and (0 <= lasted < _SHORT or self.in_flight or self.subscriptions.requests):
                try:
                    quarantine = self.part("quarantine")
                    quarantine.find_cause(error, lasted)
                except (MemoryError, MQTTError) as failure:
                    self.report(failure)
        self._drop()
        if not connected and delay != 0:
            self._attempts += 1
            self.purge = False  # resume.py will ask for it again, where it is needed
            self._server = (self._server + 1) % len(self.servers)
            if self._attempts < len(self.servers):
                delay = 0  # every server of the list is tried before the wait
            elif delay:
                # The refusal is unlikely to change soon.
                self._back_off_limit = _LONGEST
                delay = _LONGEST - self.random(_LONGEST // 4)
        if delay != 0:
            self._attempts = 0
            if delay is None:
                delay = self._back_off()
        self._begin(delay)
        if not connected:
            self.report(error)
        elif self.on_disconnect:
            self.on_disconnect(error)
        if quarantine:
            quarantine.tell()

    def _back_off(self):
        # Full jitter: evenly between 0 and a limit, which is 1 s twice and then doubles. Even the first wait is random,
        # so that a restarted broker does not meet its whole fleet at once.
        limit = self._back_off_limit
        self._back_off_limit = min(limit * 2, _LONGEST) if limit else 1000
        return self.random((limit or 1000) + 1)

    def _drop(self):
        self.close()
        self._rx_end = 0
        transport = self.transport
        self.transport = self.socket = None
        if transport:
            transport.close()


def _plain_server(url):
    # Returns [(factory, arguments, name)] of mqtt://host or mqtt://host:port over TCP, else None: servers.py parses it.
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

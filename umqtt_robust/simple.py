"""The API of umqtt.simple on this library: an existing program changes its import and nothing else.

    from umqtt_robust.simple import MQTTClient

What is different: no call waits for ever on a dead link, a message is acknowledged after its callback has returned, the
client pings while a call waits, QoS 2 works, and TLS always verifies the broker: ssl is an SSLContext that verifies,
what umqtt_robust.tls.TLS() returns, or True with the certificates of the CA in ssl_params["cadata"].
"""

from errno import ENOTCONN, ETIMEDOUT

from ._platform import NEVER, collect, const, load, print_exception
from .base_errors import LinkLost
from .client import Will
from .inbox import Inbox
from .packets import PING_SENT, PINGREQ, QOS_2, decode_length

_DUE = const(0x3FFFFFF0)  # tick(), which takes longer than handing over a message, is called every 16 ms


class MQTTException(Exception):
    """The broker refused the connection or a subscription; args[0]: the return code of CONNACK, or 0x80.

    Or it has ended each link at a message, which is set aside: see quarantine.py. args[0] says so.
    """


class _Client(Inbox):
    keep_broker_queue = True
    _deliver = Inbox._arrived  # there are no handlers of on()

    def packets(self):
        # Each step reads one packet. A generator, because MicroPython allocates a call on the heap if it needs more
        # than 11 words, as `except` does. If that happens to every message, it soon takes longer than all the rest:
        # the freed place is searched past, up to the end of the garbage. So wait_msg() and publish() are made of small
        # functions.
        while True:
            try:
                self.before_reading()
            except BaseException as error:  # noqa: BLE001 - tick() ends the link, and raises it if it is Ctrl-C
                self.broken = error
            yield

    def put_back(self, message):
        self.inbox.insert(0, message)
        self._waiting_bytes += len(message[0]) + len(message[1]) + 64  # _COST in inbox.py

    def before_reading(self):
        # Reads at most one packet: the others stay in the socket, where a selector sees them.
        if self.broken or Inbox.before_reading(self):
            return True
        self.socket.setblocking(False)  # the program may have set another mode
        buf = self._rx
        while True:
            end = self._rx_end
            if self.large:
                n = self.large._left
            elif end < 2:
                n = 2
            elif buf[1] < 128:
                n = buf[1] + 2
            else:
                n = sum(decode_length(buf, 1, end) or (end, 1))
            whole = n <= end or len(buf) <= end  # the packet waits for room in the send buffer
            if not whole:
                n = self.transport.read(memoryview(buf)[:n], end)
                if n == 0:
                    raise LinkLost("closed by the broker")
                if not n:
                    return True
                end += n
                if end == 2 and buf[1] and not self.large:  # receive() could do nothing yet
                    self._rx_end = 2
                    continue
            used = self.receive(buf, end)
            if self.transport is None:  # a callback closed the link
                return True
            end -= used
            if used and end:
                buf[:end] = buf[used : used + end]
            self._rx_end = end
            if used or whole:
                return True


class MQTTClient:
    """A client with the API of umqtt.simple. Calls raise OSError when the link is lost; connect() makes a new one."""

    def __init__(self, client_id, server, port=0, user=None, password=None, keepalive=0, ssl=None, ssl_params={}):
        self.client_id = client_id
        self.server = server
        self.port = port or (8883 if ssl else 1883)
        self.user = user
        self.pswd = password
        self.keepalive = keepalive
        self.ssl = ssl
        self.ssl_params = ssl_params
        # The same client for all links, as long as its arguments stay the same.
        self.cb = self.sock = self._client = self._made_of = self._error = None
        self.lw_topic = self.lw_msg = None
        self.lw_qos = 0
        self._pinged = self._handed_over = self.lw_retain = False
        self._wait = 1000  # ms, of the next wait_msg()

    def set_callback(self, f):
        self.cb = f

    def set_last_will(self, topic, msg, retain=False, qos=0):
        Will(topic, msg, int(qos), retain)  # raises now
        self.lw_topic = topic
        self.lw_msg = msg
        self.lw_qos = qos
        self.lw_retain = retain

    def connect(self, clean_session=True, timeout=None):
        """Connects to the broker. Returns True if the broker has a session of this client.

        timeout: seconds, 15 by default. Raises MQTTException if the broker refuses, and OSError.
        """
        old = client = self._client
        if old:
            self._close()
            old.subscriptions.filters = {}  # the program subscribes again, if the broker has forgotten it
        will = self.lw_topic and Will(self.lw_topic, self.lw_msg, int(self.lw_qos), self.lw_retain)
        made_of = (self.client_id, self.server, self.port, self.keepalive, will, self.user, self.pswd,
                   self.ssl, self.ssl_params)  # fmt: skip
        if made_of != self._made_of:
            server = self.server if isinstance(self.server, str) else self.server.decode()
            self._client = client = _Client(
                self.client_id,
                "mqtt://%s:%d" % ("[%s]" % server if ":" in server else server, int(self.port)),
                int(self.keepalive),
                clean_session,
                None,
                will or None,
                self.user or None,
                self.pswd if self.user else None,
                transports=self.ssl
                and {"mqtt": self.ssl if callable(self.ssl) else load("tls").with_arguments(self.ssl, self.ssl_params)},
                inbox_size=0,
                on_error=self._failed,
                on_disconnect=lambda error: self._client.fetching or self._failed(error),
            )
            if old:
                client.last_id = old.last_id
                client.start(old.outbox)
            self._made_of = made_of
            self._packets = client.packets()
        client.connect_timeout = int((timeout or 15) * 1000)
        client.clean_session = clean_session
        load("backpressure")  # when it is needed, the heap may be full
        present = []
        client.on_connect = present.append
        client.closed = True  # a link is made now, also the first one
        client.connect()
        self._pinged = False
        self._error = None
        while not client.connected:
            self._poll(1000, False)
        client.on_connect = None
        return present[-1]

    def _failed(self, error):
        self._error = error
        if not self._client.connected:
            self._client.disconnect()  # no new link before connect()
        elif not isinstance(error, (OSError, LinkLost)):
            print_exception(error)  # such as a dropped message: umqtt.simple has no callback for it

    def _close(self):
        self._client.disconnect()
        self._client.tick()

    def _poll(self, ms, hands_over=True):
        # As in umqtt.simple, calls that read hand over messages; in a callback only wait_msg() and check_msg() do.
        # Others leave them in the socket, where a selector sees them.
        client = self._client
        if client is None or client.closed and not self._error and not client.inbox:
            raise OSError(ENOTCONN)
        resting = client.resting
        client.resting = resting or not hands_over
        hands_over = hands_over and not resting
        try:
            if not self._error and not (hands_over and client.inbox):
                if client.connected:
                    client.socket.setblocking(False)  # raises OSError if the program has closed it
                client.poll(ms)
                while client.fetching and not self._error:
                    client.poll(1000)
        finally:
            client.resting = resting
        error = self._error
        if error:
            self._error = None
            if not client.connected:
                self._close()
            if isinstance(error, load("errors").Refused):
                if error.args[0] == "connect":
                    raise MQTTException(error.args[1])
                client.subscriptions.filters.pop(error.args[1], None)  # the program is told, and may ask again
                raise MQTTException(0x80)
            if client.closed:
                if not isinstance(error, OSError):
                    error = OSError(ETIMEDOUT if str(error)[-8:] == "_timeout" else -1, str(error))
                raise error
        self.sock = client.socket
        if hands_over:
            self._hand_over()
        return client

    def _hand_over(self):
        # Messages that came while a callback waited for an answer are handed over after it.
        self._client.resting = True
        try:
            while self._client.inbox:
                message = self._client.inbox[0]
                self._handed_over = 0x30 | message[3] & 15
                self._hand_over_one(message)
        finally:
            self._client.resting = False

    def _hand_over_one(self, message):
        try:
            self.cb(*self._client.take())
        except OSError:
            # The callback needed the link: up to QoS 1 it is called again on the next one.
            if self._client.closed and not message[3] & QOS_2:
                self._client.put_back(message)
            raise
        self._client.release()
        if self._client.ping or self._client.handover_limit < NEVER or self._client.ticks() - self._client.now & _DUE:
            self._client.tick()
        elif self._client.out.end:
            self._client.out.flush()

    def _until_answered(self, packet_id):
        # Waits for the acknowledgement of a message, or with None of all subscriptions. In a callback, messages that
        # arrive before it are kept, as far as there is room.
        client = self._client
        before = client.awaited
        client.awaited = client.resting
        try:
            while client.is_pending(packet_id) if packet_id else not client.subscribed:
                self._poll(1000)
        finally:
            client.awaited = before
        if packet_id in client.outbox.slot_of:
            raise MQTTException("set aside: the broker ends each link at it")

    def disconnect(self):
        self._poll(0, False)
        self._close()

    def ping(self):
        client = self._poll(0, False)
        self._flush()
        if not client.ping:
            client.out.put_ack(PINGREQ)
            client.ping = PING_SENT
            client.ping_at = client.now
        self._pinged = True
        self._flush()

    def _flush(self):
        try:
            self._client.out.flush()
        except OSError:
            self._client._drop()
            self._close()
            raise
        if self._client.out.end:
            self._flush_rest()

    def _flush_rest(self):
        # The broker may take no more before it has sent what it has: that is kept, as far as there is room.
        client = self._client
        before = client.awaited
        client.awaited = True
        try:
            while client.out.end:
                self._poll(1000, False)
        finally:
            client.awaited = before

    def publish(self, topic, msg, retain=False, qos=0):
        # No local variable: MicroPython would allocate each call.
        if self._client and self._client.connected:
            self._client.socket.setblocking(False)
        if (
            qos
            or retain
            or self._client is None
            or self._client.ticks() - self._client.out.now & _DUE
            or not self._client.put(topic, msg)
        ):
            self._publish(topic, msg, retain, qos)
        else:
            self._client.sent += 1
        if self._client.out.end:
            self._flush()

    def _publish(self, topic, msg, retain, qos):
        client = self._client
        if client is None or client.ticks() - client.now & _DUE:
            client = self._poll(0, qos > 0)
        while True:
            packet_id = client.publish(topic, msg, int(qos), retain)
            if packet_id is not None:
                break
            self._flush_rest() if client.out.end else self._poll(1000, False)
        if packet_id:
            try:
                self._wait_for(packet_id)
            except OSError:
                if client.closed and client.is_pending(packet_id):
                    client.remove(packet_id)  # the program decides whether it goes again
                raise

    def _wait_for(self, packet_id):
        self._until_answered(packet_id)
        self._flush()

    def subscribe(self, topic, qos=0):
        if not self.cb:
            raise load("errors").InvalidArgument("set_callback() comes first")
        self._poll(0).subscribe(topic, int(qos))
        self._until_answered(None)

    def unsubscribe(self, topic):
        self._poll(0).unsubscribe(topic)
        self._until_answered(None)

    def wait_msg(self):
        """Waits for one message, hands it to the callback and returns its first byte; None when PINGRESP came first.

        Raises MessageTooLarge if there is no memory for a message, and OSError.
        """
        ms = self._wait
        self._wait = 1000
        return self._receive(ms)

    def check_msg(self):
        """Hands over one message, if one is there. Raises MessageTooLarge if there is no memory for it, and OSError."""
        self._wait = 0
        return self.wait_msg()  # which a program may override

    def _recv_len(self):
        # For programs that override wait_msg() and read from `sock` themselves.
        buf = b"\0"
        while buf[-1] > 127 or len(buf) < 2:
            buf += self.sock.read(1)
        return decode_length(buf, 1, len(buf))[0]

    def _receive(self, ms):
        client = self._client
        if client is None:
            self._poll(0)
        if client.resting:
            return self._receive_in_callback(ms)
        client.release()  # a message whose callback raised
        return self._next(ms)

    def _receive_in_callback(self, ms):
        client = self._client
        client.resting = False
        try:
            return self._next(ms)
        finally:
            client.resting = True

    def _next(self, ms):
        client = self._client
        self._handed_over = False
        # Most often the message is there, nothing is due, and nothing waits in backpressure.py.
        if client.connected and not (
            client.inbox or self._error or client.handover_limit < NEVER or client.ticks() - client.now & _DUE
        ):
            next(self._packets, None)
            if client.inbox and not client.broken:
                self._hand_over()
        while not self._handed_over:
            self._poll(ms)
            if not ms:
                break
            if self._pinged and not (client.ping or self._handed_over):
                self._pinged = False
                break
        return self._handed_over or None


collect()

"""The API of umqtt.simple on this library: an existing program changes its import and nothing else.

    from umqtt_robust.simple import MQTTClient

What is different: no call waits for ever on a link that is dead, a message is acknowledged after its callback returned,
keepalive is kept while a call waits, QoS 2 works, and TLS is never unverified: ssl is what umqtt_robust.tls.TLS()
returns, or True with the certificates of the CA in ssl_params["cadata"].
"""

from errno import ENOTCONN

from .client import Will
from .errors import InvalidArgument, Refused
from .inbox import Inbox
from .store import MemoryStore


class MQTTException(Exception):
    """The broker said no; args[0]: the return code of CONNACK, or 0x80 of SUBACK."""


class _Client(Inbox):
    def connected_as(self, session_present, return_code):
        self.session_present = session_present
        Inbox.connected_as(self, session_present, return_code)


class MQTTClient:
    """See umqtt.simple. Raises OSError when the link is lost; connect() makes a new one."""

    def __init__(self, client_id, server, port=0, user=None, password=None, keepalive=0, ssl=None, ssl_params={}):
        self.client_id = client_id
        self.server = server
        self.port = port or (8883 if ssl else 1883)
        self.user = user
        self.pswd = password
        self.keepalive = keepalive
        self.ssl = ssl
        self.ssl_params = ssl_params
        self.cb = self.sock = self._will = self._client = self._error = None
        self._pinged = False
        # Over all links, for sessions that the broker keeps: what waits for PUBREL, and the packet id used last.
        self._store = MemoryStore()
        self._pid = 0

    def set_callback(self, f):
        self.cb = f

    def set_last_will(self, topic, msg, retain=False, qos=0):
        self._will = Will(topic, msg, qos, retain)

    def connect(self, clean_session=True, timeout=None):
        """timeout: seconds, 15 unless told. Returns whether the broker remembers this client."""
        if self._client:
            self._client.disconnect()
            self._client.tick()
        secure = self.ssl
        if secure is True:
            from .tls import TLS

            given = self.ssl_params
            secure = TLS(given.get("cadata"), given.get("cert"), given.get("key"), given.get("server_hostname"))
        self._pinged = False
        self._error = None
        self._client = client = _Client(
            self.client_id,
            ("mqtts://%s:%d" if secure else "mqtt://%s:%d")
            % ("[%s]" % self.server if ":" in self.server else self.server, self.port),
            self.keepalive,
            clean_session,
            self._store,
            self._will,
            self.user or None,
            self.pswd if self.user else None,
            transports={"mqtts": secure},
            connect_timeout=int((timeout or 15) * 1000),
            keep_broker_queue=True,
            random=lambda n: 0,
            on_error=self._failed,
            on_disconnect=self._failed,
        )
        client.last_id = self._pid
        self._until(lambda: client.connected)
        self.sock = client.socket
        return bool(client.session_present)

    def _failed(self, error):
        self._error = error

    def _poll(self, ms):
        client = self._client
        if not client:
            raise OSError(ENOTCONN)
        client.poll(ms)
        error = self._error
        self._error = None
        if error and not client.connected:
            self._client = self.sock = None
        if isinstance(error, Refused):
            raise MQTTException(error.args[1] if error.args[0] == "connect" else 0x80)
        if error and not self._client:
            raise error if isinstance(error, OSError) else OSError(-1, str(error))
        return client

    def _until(self, done):
        while not done():
            self._poll(1000)

    def disconnect(self):
        client = self._poll(0)
        client.disconnect()
        client.tick()
        self._client = self.sock = None

    def ping(self):
        client = self._poll(0)
        self._until(client.out.has_room)
        if not client._ping:
            client.out.put_ack(0xC0)
            client._ping = 2
            client._ping_at = client.now
        self._pinged = True
        self._until(lambda: not client.waits())

    def publish(self, topic, msg, retain=False, qos=0):
        client = self._poll(0)
        while True:
            packet_id = client.publish(topic, msg, qos, retain)
            self._pid = client.last_id
            if packet_id is not None:
                break
            self._poll(1000)
        self._until(lambda: not client.is_pending(packet_id) and not client.waits())

    def subscribe(self, topic, qos=0):
        if not self.cb:
            raise InvalidArgument("set_callback() comes first")
        client = self._poll(0)
        client.subscribe(topic, qos)
        self._until(lambda: client.subscribed)

    def unsubscribe(self, topic):
        client = self._poll(0)
        client.unsubscribe(topic)
        self._until(lambda: client.subscribed)

    def wait_msg(self):
        """Waits for one message and hands it to the callback; returns None when PINGRESP came first."""
        while not self._client or not self._client.inbox:
            client = self._poll(1000)
            if self._pinged and not client._ping:
                self._pinged = False
                return None
        return self._hand_over()

    def check_msg(self):
        """Hands over one message, if one is there."""
        if not self._client or not self._client.inbox:
            self._poll(0)
        return self._hand_over() if self._client.inbox else None

    def _hand_over(self):
        client = self._client
        self.cb(*client.take())
        client.release()
        if self._client is client:  # the callback did not disconnect
            client.tick()
        return 0x30

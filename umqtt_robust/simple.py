"""The programming interface of umqtt.simple on this client: an existing program changes one import.

    from umqtt_robust.simple import MQTTClient

As there, every call waits until it is done, and raises OSError when the link is gone or MQTTException when the broker
refuses; a message at QoS 1 that could not be delivered is the program's again. What differs: a dead link is noticed
within keepalive instead of never, half a message is never delivered, QoS 2 works, and TLS verifies the broker.
"""

from .client import Client, Will
from .errors import Refused


class MQTTException(Exception):
    """args[0]: the return code of the broker."""


class MQTTClient:
    """keepalive: seconds; ssl: True with ssl_params for tls.TLS() (ca, cert, key, server_name)."""

    def __init__(self, client_id, server, port=0, user=None, password=None, keepalive=0, ssl=None, ssl_params={}):
        scheme = "mqtts" if ssl else "mqtt"
        if ":" in server:
            server = "[" + server + "]"
        self._url = "%s://%s:%d" % (scheme, server, port) if port else "%s://%s" % (scheme, server)
        self._options = {"username": user or None, "password": password or None, "keep_alive": keepalive}
        if ssl:
            from .tls import TLS

            self._options["transports"] = {"mqtts": TLS(**ssl_params)}
        self.client_id = client_id
        self.cb = self.sock = None
        self._client = self._error = self._present = None
        self._inbox = []

    def set_callback(self, f):
        """f(topic, msg) takes every message, in wait_msg() and check_msg()."""
        self.cb = f

    def set_last_will(self, topic, msg, retain=False, qos=0):
        """Before connect()."""
        self._options["will"] = Will(topic, msg, qos, retain)

    def connect(self, clean_session=True, timeout=None):
        """Returns whether the broker remembers a session of this client. timeout: seconds."""
        self._close()
        self._error = self._present = None
        self._inbox = []
        if timeout:
            self._options["connect_timeout"] = int(timeout * 1000)
        self._client = client = Client(
            self.client_id,
            self._url,
            clean_session=clean_session,
            keep_broker_queue=True,
            manual_ack=True,
            random=lambda n: 0,
            on_connect=self._connected,
            on_disconnect=self._failed,
            on_error=self._failed,
            on_message=self._received,
            **self._options,
        )
        self._until(lambda: client.connected)
        self.sock = client.socket
        return self._present

    def _connected(self, session_present):
        self._present = session_present

    def _failed(self, error):
        if not self._error:
            self._error = error

    def _received(self, topic, payload):
        # Handed over, and then acknowledged, in wait_msg(): an exception of the callback goes to the program.
        self._inbox.append((topic, payload, self._client.packet_id))

    def _until(self, done):
        # Drives the client; raises what went wrong.
        client = self._client
        if not client:
            raise OSError(-1, "not connected")
        while True:
            error = self._error
            if error:
                self._error = None
                if isinstance(error, Refused):
                    if error.args[0] == "connect":
                        self._close()
                        raise MQTTException(error.args[1])
                    raise MQTTException(0x80)
                if client.connected:  # a report, no loss
                    continue
                self._close()
                raise error if isinstance(error, OSError) else OSError(-1, str(error))
            if done():
                return
            client.poll(10000)

    def _close(self):
        client = self._client
        self._client = self.sock = None
        if client:
            client.disconnect()
            client.tick()

    def disconnect(self):
        """Says goodbye to the broker."""
        self._close()

    def ping(self):
        """Asks the broker for a sign of life; the client does so by itself while it waits."""
        self._until(lambda: self._client.out.has_room())
        self._client.out.put_ping()
        self._until(lambda: self._client.tick() < 0 or not self._client.waits())

    def publish(self, topic, msg, retain=False, qos=0):
        """Returns when the broker has acknowledged it, at QoS 0 when the link took it."""
        self._until(lambda: True)
        client = self._client
        packet_id = client.publish(topic, msg, qos, retain)
        try:
            self._until(lambda: not client.is_pending(packet_id) and not client.waits())
        except OSError:
            if client.is_pending(packet_id):
                client.remove(packet_id)
            raise

    def subscribe(self, topic, qos=0):
        """Returns when the broker has agreed; raises MQTTException when it has not."""
        if not self.cb:
            raise MQTTException("set_callback() comes first")
        self._until(lambda: True)
        self._client.subscribe(topic, qos)
        self._until(lambda: self._client.subscribed)

    def unsubscribe(self, topic):
        """Returns when the broker has agreed."""
        self._until(lambda: True)
        self._client.unsubscribe(topic)
        self._until(lambda: self._client.subscribed)

    def wait_msg(self):
        """Waits for a message and hands it to the callback."""
        self._until(lambda: self._inbox)
        self._hand_over()

    def check_msg(self):
        """Hands a message to the callback if there is one."""
        if not self._inbox:
            self._until(lambda: True)
            self._client.poll(0)
            self._until(lambda: True)
        if self._inbox:
            self._hand_over()

    def _hand_over(self):
        topic, payload, packet_id = self._inbox.pop(0)
        self.cb(topic, payload)
        if packet_id:
            self._client.acknowledge(packet_id)
            self._client.tick()

"""The API of umqtt.robust on this library: the MQTTClient of simple.py, which makes a new link when one is lost.

from umqtt_robust.robust import MQTTClient
"""

from time import sleep

from . import simple


class MQTTClient(simple.MQTTClient):
    """A client with the API of umqtt.robust. reconnect() calls connect(False) until it returns, DELAY seconds apart."""

    DELAY = 2
    DEBUG = False
    _subs = ()  # (topic, qos)

    def delay(self, i):
        sleep(self.DELAY)

    def log(self, in_reconnect, e):
        if self.DEBUG:
            print("mqtt: no new link:" if in_reconnect else "mqtt: link lost:", repr(e))

    def reconnect(self):
        attempt = 0
        while True:
            try:
                return self.connect(False)
            except OSError as error:
                self.log(True, error)
            attempt += 1
            self.delay(attempt)

    def _insist(self, attempts, call, *arguments):
        while attempts:
            attempts -= 1
            try:
                return call(self, *arguments)
            except OSError as error:
                self.log(False, error)
            self.reconnect()

    def publish(self, topic, msg, retain=False, qos=0):
        while True:  # like _insist(), whose call would take longer than publishing
            try:
                return simple.MQTTClient.publish(self, topic, msg, retain, qos)
            except OSError as error:
                self.log(False, error)
            self.reconnect()

    def _wait_for(self, packet_id):
        # The message stays in the outbox over all links, so at QoS 2 it arrives once.
        self._insist(-1, simple.MQTTClient._wait_for, packet_id)

    def wait_msg(self):
        return self._insist(-1, simple.MQTTClient.wait_msg)

    def check_msg(self, attempts=2):
        return self._insist(attempts, simple.MQTTClient._receive, 0)

    # Of umqtt.robust2

    def is_conn_issue(self):
        """Returns True if there is no link: reconnect() makes a new one."""
        return not (self._client and self._client.connected)

    def subscribe(self, topic, qos=0):
        simple.MQTTClient.subscribe(self, topic, qos)
        self._subs = tuple([pair for pair in self._subs if pair[0] != topic]) + ((topic, qos),)

    def resubscribe(self):
        """Subscribes again to all that this object has subscribed to, if it has not done so on this link."""
        for topic, qos in self._subs:
            if (topic.encode() if isinstance(topic, str) else topic) not in self._client.subscriptions.filters:
                self.subscribe(topic, qos)

    def send_queue(self):
        """Returns True: publish() has sent everything."""
        return True

"""The API of umqtt.robust on this library: the MQTTClient of simple.py, which makes a new link when one is lost.

from umqtt_robust.robust import MQTTClient
"""

from time import sleep

from . import simple


class MQTTClient(simple.MQTTClient):
    """A client with the API of umqtt.robust. reconnect() calls connect(False) until it returns, DELAY seconds apart."""

    DELAY = 2
    DEBUG = False

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
        return self._insist(attempts, simple.MQTTClient.check_msg)

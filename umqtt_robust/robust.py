"""The programming interface of umqtt.robust on this client: as simple.py, but a lost link is made again.

from umqtt_robust.robust import MQTTClient
"""

import time

from . import simple


class MQTTClient(simple.MQTTClient):
    """A call that fails for the network is made again after a reconnect; connect() itself raises at its first try."""

    DELAY = 2
    DEBUG = False

    def delay(self, i):
        """Waits before attempt i to reconnect."""
        time.sleep(self.DELAY)

    def log(self, in_reconnect, e):
        """Told of every error."""
        if self.DEBUG:
            print("mqtt reconnect:" if in_reconnect else "mqtt:", repr(e))

    def reconnect(self):
        """Tries until it is connected; calls connect(False), which a program may have overridden."""
        i = 0
        while True:
            try:
                return self.connect(False)
            except OSError as error:
                self.log(True, error)
                i += 1
                self.delay(i)

    def _again(self, call, *arguments):
        while True:
            try:
                return call(*arguments)
            except OSError as error:
                self.log(False, error)
            self.reconnect()

    def publish(self, topic, msg, retain=False, qos=0):
        """As simple's, however often the link is lost."""
        return self._again(super().publish, topic, msg, retain, qos)

    def wait_msg(self):
        """As simple's, however often the link is lost."""
        return self._again(super().wait_msg)

    def check_msg(self, attempts=2):
        """As simple's; tries to reconnect at most `attempts` times."""
        while attempts:
            try:
                return super().check_msg()
            except OSError as error:
                self.log(False, error)
            self.reconnect()
            attempts -= 1

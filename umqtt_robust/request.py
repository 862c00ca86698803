"""Request and response with MQTT 5 (4.10): sends requests to other clients, and hands over the answers.

    client.part("request").send("fleet/pump-7/cmd", b"status", print, timeout_ms=5000)

The other client publishes its answer to the response topic of the request, with the correlation data of the request:
see docs/client.md.
"""

import os

from ._platform import NEVER, const, ticks_diff
from .client import Client  # its own methods: those of aio.Client have to be awaited
from .errors import InvalidArgument
from .packets import QOS
from .topics import check_topic_name

_DATA = const(8)  # random bytes, so that the answer to a request from before a reset matches no new one


class Request:
    """The requests of one session.

    topic: where their answers arrive, by default reply/ and the client id, or a random number if there is none.
    """

    def __init__(self, session):
        self._session = session
        self.topic = None
        self._subscribed = None  # the topic that is subscribed to
        self.waiting = {}  # correlation data: (function for the answer, ms when it was sent, ms that it may take)
        session.timers.append(self._tick)

    def forget(self, session):
        """Requests outlive the link: they are in the outbox, or the broker has them."""

    def pump(self):
        return True

    def send(self, topic, payload, on_answer, timeout_ms=10000, qos=1):
        """Publishes a request. on_answer(payload) is called once, with None if no answer comes within timeout_ms.

        The request expires after the same time. Raises what publish() raises, and InvalidArgument without MQTT 5.
        """
        session = self._session
        if session.protocol == 4 or session.connected and not session.mqtt5:
            raise InvalidArgument("a request needs MQTT 5")
        data = os.urandom(_DATA)
        if not self.topic:  # clients without an id must not get the answers of each other
            self.topic = b"reply/" + (session.client_id or ("%x" % int.from_bytes(data, "big")).encode())
        wanted = check_topic_name(self.topic)
        properties = {"response_topic": wanted, "correlation_data": data}
        if self._subscribed != wanted:
            session.on(wanted, self._handle_answer)
            # At QoS 0, so that answers need not keep the order of acknowledgements.
            Client.subscribe(session, wanted)
            self._subscribed = wanted
        Client.publish(session, topic, payload, qos, False, timeout_ms, properties)
        self.waiting[data] = on_answer, session.now, timeout_ms
        session.wait_ms = 0  # tick() is due: it returns the new deadline

    def takes(self, topic):
        """Returns True for the topic name of an answer, which need not wait behind other messages."""
        return topic.split(b"\0")[0] == self._subscribed

    def _handle_answer(self, topic, payload):
        session = self._session
        if session.manual_ack and session.flags & QOS:
            session.acknowledge(session.packet_id)
        found = self.waiting.pop(session.properties.get("correlation_data"), None)
        if found:
            found[0](payload)
        else:
            session.unhandled += 1  # too late, or for another program with this client id

    def _tick(self):
        # Returns ms until the next deadline.
        wait = NEVER
        for data in list(self.waiting):
            on_answer, began_at, timeout_ms = self.waiting[data]
            left = timeout_ms - ticks_diff(self._session.now, began_at)
            if not 0 < left <= timeout_ms:
                del self.waiting[data]
                on_answer(None)
            else:
                wait = min(wait, left)
        return wait


part = Request  # what Session.part() makes

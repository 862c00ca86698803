"""Hands inbound messages to the program's handlers."""

from ._platform import const
from .packets import check_inbound_topic
from .topics import check_topic_filter, matches

_TRIES = const(3)
_ROUTES = const(16)  # topics whose handlers are remembered


class Dispatcher:
    """Handlers by topic filter; on_message and on_raw take what they are told to.

    A handler that raises is called three times at once and the message then goes to on_dead_letter: acknowledgements
    leave in the order of arrival [MQTT-4.6.0-2], so a message that were put off would hold up all others.
    """

    def __init__(self):
        self.on_message = self.on_raw = self.on_dead_letter = None
        self.packet_id = self.flags = 0
        self.redelivered = False
        self.received = self.unhandled = self.dead_letters = 0
        self._handlers = []
        self._routes = {}
        self._seen_topic = self._seen_route = None  # the message before this one
        self._buf = self._view = None

    def on(self, topic_filter, handler):
        """Sets the handler of a topic filter; None removes it."""
        topic_filter = check_topic_filter(topic_filter)
        self._handlers = [pair for pair in self._handlers if pair[0] != topic_filter]
        if handler:
            self._handlers.append((topic_filter, handler))
        self._routes = {}
        self._seen_topic = None

    def deliver(self, head, packet_id, buf, t, k, p, end):
        """A message whose topic name is buf[t:k] and whose payload is buf[p:end]."""
        self.flags = head
        self.packet_id = packet_id
        self.redelivered = head & 8 != 0
        self.received += 1
        if self.on_raw:
            self._deliver_raw(buf, t, k, p, end)
            return
        if self._buf is not buf:
            self._buf = buf
            self._view = memoryview(buf)
        view = self._view
        if view[t:k] != self._seen_topic:
            topic = bytes(view[t:k])
            self._seen_route = self._route(topic)
            self._seen_topic = topic
        self._hand_over(self._seen_route, self._seen_topic, bytes(view[p:end]))

    def deliver_stored(self, flags, packet_id, topic, payload, redelivered):
        """A message that lay in the store."""
        self.flags = flags
        self.packet_id = packet_id
        self.redelivered = redelivered
        self.received += 1
        if self.on_raw:
            self._deliver_raw(topic + payload, 0, len(topic), len(topic), len(topic) + len(payload))
        else:
            self._hand_over(self._route(topic), topic, payload)

    def _route(self, topic):
        route = self._routes.get(topic)
        if route is None:
            check_inbound_topic(topic)
            route = [handler for topic_filter, handler in self._handlers if matches(topic_filter, topic)]
            if not route and self.on_message:
                route.append(self.on_message)
            if len(self._routes) == _ROUTES:
                self._routes = {}
            self._routes[topic] = route
        return route

    def _hand_over(self, route, topic, payload):
        if not route:
            self.unhandled += 1
        for handler in route:
            for tries in range(_TRIES):
                try:
                    handler(topic, payload)
                    break
                except Exception as error:  # noqa: BLE001 - the program's own code: anything may come
                    failure = error
                    self.redelivered = True
            else:
                self._dead_letter(topic, payload, failure)

    def _deliver_raw(self, buf, t, k, p, end):
        for tries in range(_TRIES):
            try:
                self.on_raw(buf, t, k, p, end)
                return
            except Exception as error:  # noqa: BLE001 - as above
                failure = error
                self.redelivered = True
        self._dead_letter(bytes(buf[t:k]), bytes(buf[p:end]), failure)

    def _dead_letter(self, topic, payload, error):
        self.dead_letters += 1
        if self.on_dead_letter:
            self.on_dead_letter(topic, payload, error)

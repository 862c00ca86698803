"""A client whose received messages wait until the program takes them: the base of aio.py and simple.py."""

from ._platform import const, load
from .client import Client
from .packets import BLOCKED, PING_SENT, QOS_2, RETAIN

_COST = const(64)  # bytes that keeping a message costs, as in backpressure.py


class Inbox(Client):
    """Arguments as for Client, and inbox_size: bytes of messages that may wait; each counts 64 bytes more.

    If more wait, the socket is not read until the program has taken some, and the broker keeps the rest. While the
    program waits for an answer of the broker, which comes behind them, the socket is read all the same; backpressure.py
    handles what cannot be kept then. A message is acknowledged when the program is done with it. A message larger than
    the receive buffer is put together here and acknowledged as it arrives; if there is no memory for it, take() raises
    MessageTooLarge in its place.
    """

    awaited = False  # the program waits for an answer, and takes no message before that
    resting = False  # the socket is not read unless an answer is awaited

    def __init__(self, *arguments, **options):
        # [topic, payload, packet id or 0: nothing to acknowledge, flags of its PUBLISH, properties], and an error that
        # take() raises
        self.inbox = []
        self._taken = ()  # the one that the program has
        self.retained = False  # whether the broker had kept that for new subscribers
        self.inbox_size = options.pop("inbox_size", 4096)
        self._waiting_bytes = 0
        self._large = None
        options.update(manual_ack=True, on_message=self._arrived, on_large=self._piece)
        Client.__init__(self, *arguments, **options)
        self.reads = 1  # so inbox_size is exceeded by one read at most
        # When it is needed, the heap may be full. In a session that the broker has forgotten, no message comes before a
        # subscribe(), which loads it then.
        if not self.clean_session:
            load("backpressure")

    def before_reading(self):
        """Returns True if the socket is not to be read now."""
        full = self._waiting_bytes > self.inbox_size
        pauses = self.connected and not self.awaited and (full or self.resting)
        if full and not pauses or "backpressure" in self.parts:
            self.part("backpressure").set_full(full)
        if pauses:
            # Nothing is read, so no packet counts as late; but PINGREQ must still be sent.
            self.heard_at = self.now
            self.restart_ack_timer()
            if self.ping == PING_SENT:
                self.ping = 0
        return pauses

    def _arrived(self, topic, payload):
        try:
            self.inbox.append([topic, payload, self.packet_id, self.flags, self.mqtt5 and self.properties])
        except MemoryError:
            self.handover_limit = BLOCKED  # it is to be put back
            return
        self._waiting_bytes += len(topic) + len(payload) + _COST
        if self._waiting_bytes > self.inbox_size and self.awaited:  # no more from among those that wait
            self.part("backpressure").set_full(True)

    def _piece(self, *arguments):
        load("large").put_together(self, *arguments)

    def forget(self, session, unsure=True):
        Client.forget(self, session, unsure)
        self._large = None  # it comes again from the beginning, or not at all
        # On another link, an id at QoS 1 may belong to another message, so it is forgotten: the message comes again. At
        # QoS 2 a message comes once in a session, so its id stays valid as long.
        for messages in (self.inbox, self._taken):
            for message in messages:
                if session or not message[3] & QOS_2:
                    message[2] = 0

    def take(self):
        """Returns the oldest message as (topic, payload); release() acknowledges it. Raises MessageTooLarge."""
        self.release()
        message = self.inbox.pop(0)
        self._taken = (message,)
        topic, payload = message[:2]
        self._waiting_bytes -= len(topic) + len(payload) + _COST
        self.retained = message[3] & RETAIN > 0
        self.properties = message[4]
        if len(message) > 5:
            raise message[5]
        return topic, payload

    def release(self):
        """Acknowledges the message that the program took last, if it has one."""
        taken = self._taken
        if taken:
            self._taken = ()
            if taken[0][2]:
                self.acknowledge(taken[0][2])
                self.wait_ms = 0  # tick() is due

"""A client whose messages wait until the program takes them: what aio.py and simple.py share."""

from .client import Client
from .errors import StoreError


class Inbox(Client):
    """Arguments as for Client, and inbox_size: how many messages may wait before one at QoS 0 is dropped and counted.

    At QoS 1 and 2 none is dropped: a message is acknowledged when the program is done with it, so no more can wait
    than the broker has in flight. A message larger than the receive buffer is put together here; that one is
    acknowledged as it arrives.
    """

    def __init__(self, *arguments, **options):
        self.inbox = []  # [topic, payload, packet id or 0: nothing to acknowledge, whether at QoS 2]
        self._taken = []  # the one that the program has
        self.inbox_size = options.pop("inbox_size", 32)
        self._large = None
        options.update(manual_ack=True, on_message=self._arrived, on_large=self._piece)
        Client.__init__(self, *arguments, **options)

    def _arrived(self, topic, payload):
        if len(self.inbox) < self.inbox_size or self.packet_id:
            self.inbox.append([topic, payload, self.packet_id, self.flags & 4])
        else:
            self.discarded += 1

    def _piece(self, topic, offset, size, chunk):
        if not offset:
            self._large = bytearray()
        self._large += chunk
        if len(self._large) == size:
            self.inbox.append([topic, bytes(self._large), 0, 0])
            self._large = None

    def _forget(self, session, unsure=True):
        Client._forget(self, session, unsure)
        self._large = None  # it comes again from the beginning, or not at all
        # On another link the id may be that of another message, and if it is the same one, it comes again. At QoS 2
        # it comes once in a session.
        for message in self.inbox + self._taken:
            if session or not message[3]:
                message[2] = 0

    def take(self):
        """The message that came first, as (topic, payload); it is acknowledged by release()."""
        self.release()
        message = self.inbox.pop(0)
        self._taken = [message]
        return message[0], message[1]

    def release(self):
        """The program is done with the message that it took last."""
        taken = self._taken
        self._taken = []
        if taken and taken[0][2]:
            try:
                self.acknowledge(taken[0][2])
            except StoreError as error:  # it comes again on another link
                self._broken = error
            self._wait = 0  # tick() is due

"""A client whose messages wait until the program takes them: what aio.py and simple.py share."""

from .client import Client
from .errors import LinkLost


class Inbox(Client):
    """Arguments as for Client, and inbox_size: how many messages may wait before one at QoS 0 is dropped and counted.

    At QoS 1 and 2 none is dropped: a message is acknowledged when the program is done with it, so no more can wait
    than the broker has in flight. A message larger than the receive buffer is put together here; that one is
    acknowledged as it arrives.
    """

    def __init__(self, *arguments, **options):
        self.inbox = []
        self.inbox_size = options.pop("inbox_size", 32)
        self._taken = self._large = None
        options.update(manual_ack=True, on_message=self._arrived, on_large=self._piece)
        Client.__init__(self, *arguments, **options)

    def _arrived(self, topic, payload):
        if len(self.inbox) < self.inbox_size or self.packet_id:
            self.inbox.append((topic, payload, self.packet_id, self.reconnects))
        else:
            self.discarded += 1

    def _piece(self, topic, offset, size, chunk):
        if not offset:
            self._large = bytearray()
        self._large += chunk
        if len(self._large) == size:
            self.inbox.append((topic, bytes(self._large), 0, 0))
            self._large = None

    def take(self):
        """The message that came first, as (topic, payload); it is acknowledged by release()."""
        self.release()
        message = self.inbox.pop(0)
        self._taken = message[2:]
        return message[:2]

    def release(self):
        """The program is done with the message that it took last."""
        taken = self._taken
        self._taken = None
        # On another link the id may be that of another message; if it is the same one, it comes again.
        if taken and taken[0] and taken[1] == self.reconnects:
            try:
                self.acknowledge(taken[0])
            except LinkLost as error:
                self._broken = error
            self._wait = 0  # tick() is due

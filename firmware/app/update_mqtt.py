"""Downloads objects of an update over MQTT, piece by piece, so that a lost link costs one piece.

fleet/{device_id}/update/want   SHA256 OFFSET SIZE          what the board asks for, QoS 0
fleet/{device_id}/update/data   SHA256 OFFSET TOTAL\\nBYTES  the answer, QoS 0: what is lost is asked for again
"""

_SIZE = 512
_AGAIN_MS = 3_000


class Mqtt:
    """A source for update.py, with the methods of update_http.Http."""

    def __init__(self, board):
        self._client = board.client
        self._clock = board.clock
        self._want = board.identity.topic("update/want")
        self._data = board.identity.topic("update/data")
        self._sha256 = None
        self._client.on(self._data, self._arrived)
        self._client.subscribe(self._data, qos=0)

    def open(self, sha256, offset):
        self._sha256 = sha256.encode()
        self._offset = offset
        self._total = None
        self._piece = None
        self._asked_at = None

    def read(self, buf):
        if self._piece is not None:
            n = len(self._piece)
            buf[:n] = self._piece
            self._piece = None
            self._offset += n
            self._asked_at = None
            if n:
                # Request the next piece while this one is written.
                self._ask()
            return n
        self._ask()
        if self._offset == self._total:
            return 0
        return None

    def _ask(self):
        now = self._clock.uptime_ms()
        if self._offset == self._total or self._asked_at is not None and now - self._asked_at < _AGAIN_MS:
            return
        if self._client.connected and self._client.subscribed:
            self._asked_at = now
            self._client.publish(self._want, b"%s %d %d" % (self._sha256, self._offset, _SIZE))

    def _arrived(self, topic, payload):
        # Late or unknown answers are ignored; a piece that matters is requested again.
        head, mark, piece = payload.partition(b"\n")
        words = head.split(b" ")
        if self._sha256 is None or not mark or len(words) != 3 or words[0] != self._sha256:
            return
        if words[1] != b"%d" % self._offset or not words[2].isdigit() or len(piece) > _SIZE:
            return
        self._total = int(words[2])
        if piece:
            self._piece = piece

    def close(self):
        self._sha256 = None

    def end(self):
        """End the update: unsubscribe from the pieces."""
        self.close()
        self._client.unsubscribe(self._data)
        self._client.on(self._data, None)

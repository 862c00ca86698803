"""The log topic: what a person should know about this board."""

import json

from umqtt_robust.errors import OutboxFull, StoreError


class Log:
    """The log topic: {"level": "warning", "text": "…", "boot": "17-…"}, with further fields if any."""

    def __init__(self, client, identity):
        self._client = client
        self._topic = identity.topic("log")
        self._boot = identity.boot
        self.refused = 0

    def report(self, level, text, fields=None):
        """True when the outbox took it. False: call again later; it is counted in refused."""
        record = {"level": level, "text": text, "boot": self._boot}
        if fields:
            record.update(fields)
        try:
            self._client.publish(self._topic, json.dumps(record).encode(), qos=1)
        except (OutboxFull, StoreError):
            self.refused += 1
            return False
        return True

"""Publishes the retained status: online after every connect; the will says offline when the link is lost."""

import json

from umqtt_robust.errors import OutboxFull


class Status:
    """The status message: {"online": true, "boot": "17-…", "fw": "0.1.0", "reason": "boot", …}

    reason: boot, reconnected, safe mode, sleeping, restarting; the will says connection lost. extra: dict that is
    added to every status of this boot: slot (version that runs), cause (of the reset), trial, rolled_back.
    """

    def __init__(self, identity, version, reason="boot", extra=None):
        self.topic = identity.topic("status")
        self._boot = identity.boot
        self._version = version
        self._connected = self._ever = False  # status sent on this link; there was a link
        self._reason = reason
        self._again = reason if reason == "safe mode" else "reconnected"
        self.extra = extra or {}

    def payload(self, online, reason):
        status = {"online": online, "boot": self._boot, "fw": self._version, "reason": reason}
        status.update(self.extra)
        return json.dumps(status).encode()

    def step(self, client):
        """Publish online once after every connect, because the broker has published the will of the last link."""
        if not client.connected:
            self._connected = self._connected and not self._ever
            return
        self._ever = True
        if not self._connected and self.say(client, True, self._reason):
            self._connected = True
            self._reason = self._again

    def again(self):
        """Publish the status once more, because something in it has changed."""
        self._connected = False

    def keep(self):
        """Leave the retained status as it is until something changes."""
        self._connected = True

    def say(self, client, online, reason):
        """Publish a status. Returns its packet id, or 0 if the outbox has no room: call again later."""
        try:
            return client.publish(self.topic, self.payload(online, reason), qos=1, retain=True)
        except OutboxFull:
            return 0

"""Gives messages the topics and payloads of a cloud. Loaded, and on a board at all, only with the setting `topics`.

The application, the outbox and the gaps know fleet/{device_id}/LEAF and their own payloads alone. This module stands
between them and the link: it changes a PUBLISH when it is sent and a message when it has come, so what waits in flash
fits any cloud. `topics` is a text like "site/{device_id}/{leaf}", or an object:

    "telemetry": ["v1/devices/me/telemetry", {"ts": "{ts}", "values": "{m}"}, "{m}"]

A topic has {device_id}, {leaf}, {username} and members of the payload; "{name}" in a payload is a member, "{}" all of
it. The first payload without null is sent. For what comes, "{+}" is the end of the topic. The leaves throttle and
errors are what a cloud says of this client.
"""

import json
from binascii import a2b_base64, b2a_base64

from umqtt_robust.errors import LinkLost

_TOKEN_S = 3600
_RENEW_MS = 3_060_000  # 85 % of it
_MINUTE_MS = 61_000  # with room for different clocks
_LOOK_MS = 1000
_PUBLISH = 0x30
_QOS = 6


class Cloud:
    """The topics of a board. board: app.board.Board; login: "mqtt" of the secrets.

    options: will, username and password for the client; attach() makes it speak so.
    """

    def __init__(self, board, login):
        self._board = board
        self._id = board.identity.device_id
        topics = board.settings["topics"]
        self._every, self._topics = (topics, {}) if isinstance(topics, str) else (None, topics)
        self._per_minute = board.settings["per_minute"]
        self._username = login.get("username", "").replace("{device_id}", self._id)
        self._key = login.get("sas_key")
        self._wanted = []  # (filter without its wildcard, leaf)
        self._sent = []  # (uptime in ms, data points) of the last minute
        if self._per_minute:  # a board that starts again and again must not exceed it either
            self._sent.append((board.clock.uptime_ms(), self._per_minute // 2))
        self._blocked_until = 0
        self._renew_at = None
        self._renews = False
        self.will = self.outbound(board.status.topic, board.status.payload(False, "connection lost"))[:2]
        self.options = {}
        if self._username:
            self.options["username"] = self._username
        if "password" in login:
            self.options["password"] = login["password"]

    def attach(self, client):
        """Make a client send and receive in the cloud's words."""
        self._client = client
        self._put, self._open, self._subscribe = client.out.put, client.open, client.subscribe
        client.out.put, client.subscribe = self.put, self.subscribe
        if self._key:
            client.open = self.open
            client.timers.append(self.renew)
        for leaf in ("throttle", "errors"):
            if leaf in self._topics:
                self.subscribe(("fleet/%s/%s" % (self._id, leaf)).encode(), 1)

    # What goes out

    def put(self, head, payload, topic=b"", packet_id=0, properties=b""):
        """Replaces SendBuffer.put(): returns False while a message must wait."""
        if not topic or head & 0xF0 != _PUBLISH:
            return self._put(head, payload, topic, packet_id, properties)
        found = self.outbound(topic, payload)
        if not found:
            return True  # at QoS 0: the cloud has no topic for it
        topic, payload, points = found
        if self._per_minute and not self._may_go(points) and head & _QOS:
            return False
        if not self._put(head, payload, topic, packet_id, properties):
            return False
        if self._per_minute:
            self._sent.append((self._board.clock.uptime_ms(), points))
        return True

    def outbound(self, topic, payload):
        """Return (topic, payload, number of data points) of a message, or None if the cloud has no topic for it."""
        parts = bytes(topic).split(b"/", 2)
        if parts[0] != b"fleet" or len(parts) < 3:
            return topic, payload, 1
        leaf = parts[2].decode()
        if self._every:
            return self._topic(self._every, leaf, {}), payload, 1
        entry = self._topics.get(leaf)
        if not entry:
            return None
        record = json.loads(bytes(payload))
        points = len(record.get("m", "1"))
        if isinstance(entry, str):
            return self._topic(entry, leaf, record), payload, points
        return self._topic(entry[0], leaf, record), _payload(entry, record), points

    def _topic(self, text, leaf, record):
        for name, value in (("device_id", self._id), ("leaf", leaf), ("username", self._username)):
            text = text.replace("{%s}" % name, value)
        if "{id}" in text:  # of a command; see _inbound()
            text = text.replace("{id}", str(record.get("id")).split("@")[0])
        return text.encode()

    def _may_go(self, points):
        now = self._board.clock.uptime_ms()
        if now < self._blocked_until:
            return False
        self._sent = [one for one in self._sent if now - one[0] < _MINUTE_MS]
        sent = sum([one[1] for one in self._sent])
        return not self._sent or sent + points <= self._per_minute

    # What comes in

    def subscribe(self, topic_filter, qos=0):
        """Replaces Client.subscribe(), for the topics of the board."""
        leaf = bytes(topic_filter).split(b"/", 2)[2].decode()
        entry = self._every or self._topics.get(leaf)
        if entry:
            wanted = self._topic(entry if isinstance(entry, str) else entry[0], leaf, {})
            prefix = wanted.rstrip(b"+#")
            if (prefix, leaf) not in self._wanted:
                self._wanted.append((prefix, leaf))
                self._client.on(wanted, self.receive)
            self._subscribe(wanted, qos)

    def receive(self, topic, payload):
        """Handle a message of the cloud, for the client."""
        for prefix, leaf in self._wanted:
            if not topic.startswith(prefix):
                continue
            if leaf in ("throttle", "errors"):
                return self._told(leaf, payload)
            entry = self._every or self._topics[leaf]
            if not isinstance(entry, str):
                payload = self._inbound(entry, topic[len(prefix) :].decode(), payload)
            if payload:
                self._board.commands.handle(self._board.identity.topic(leaf), payload)
            return None

    def _inbound(self, entry, rest, payload):
        try:
            values = json.loads(payload)
            # The cloud may count anew at its restart; a boot knows each id once.
            values["+"] = "%s@%s" % (rest, self._board.identity.boot)
        except (ValueError, TypeError):
            return payload  # the command is refused as what it is
        found = _fill(entry[1], values)
        return found and json.dumps(found).encode()

    def _told(self, leaf, payload):
        if leaf == "throttle":
            self._blocked_until = self._board.clock.uptime_ms() + _MINUTE_MS
        text = bytes(payload[:200])
        try:
            text = text.decode()
        except UnicodeError:
            pass  # shown as bytes
        self._board.log.report("warning", "the cloud says on %s: %s" % (leaf, text))

    # Shared access signatures (Azure IoT Hub)

    def open(self, write, broker="", accepted=None):
        """Replaces Session.open(): CONNECT has a new token as its password. Raises LinkLost without the time."""
        unix_ms = self._board.clock.unix_ms()
        if unix_ms is None:
            raise LinkLost("the time is not known yet")
        self._client.password = token(self._username.split("/")[0], self._id, self._key, unix_ms // 1000 + _TOKEN_S)
        self._renew_at = self._board.clock.uptime_ms() + _RENEW_MS
        self._open(write, broker, accepted)

    def renew(self):
        """Make a new link before the token ends. Returns ms until the next call, as one of Session.timers."""
        client = self._client
        if self._renews and client.closed:
            self._renews = False
            client.connect()
        elif client.connected and not self._renews and self._board.clock.uptime_ms() >= self._renew_at:
            self._renews = True
            client.disconnect()
        return _LOOK_MS


def token(hub, device_id, key, expires_s):
    """Return a shared access signature as bytes. key: in base64; expires_s: Unix time."""
    from app.signed import hmac

    resource = _quote("%s/devices/%s" % (hub, device_id))
    mac = hmac(a2b_base64(key), ("%s\n%d" % (resource, expires_s)).encode())
    signature = _quote(b2a_base64(mac).decode().strip())
    return ("SharedAccessSignature sr=%s&sig=%s&se=%d" % (resource, signature, expires_s)).encode()


def _quote(text):
    quoted = ""
    for character in text:
        plain = character.isalpha() or character.isdigit() or character in "-_.~"
        quoted += character if plain else "%%%02X" % ord(character)
    return quoted


def _payload(entry, record):
    # The first payload whose members are all there; else the last one.
    for template in entry[1:]:
        found = _fill(template, record)
        if found is not None and not (isinstance(found, dict) and None in found.values()):
            break
    return json.dumps(found).encode()


def _fill(template, values):
    if isinstance(template, dict):
        filled = {}
        for key in template:
            filled[key] = _fill(template[key], values)
        return filled
    if isinstance(template, str) and template[:1] == "{" and template[-1:] == "}":
        return values.get(template[1:-1]) if len(template) > 2 else values
    return template

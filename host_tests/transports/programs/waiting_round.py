# Shared by the programs for which messages wait. "name" in their configuration: the client id, and the beginning of
# the topics; "flash": the folder of a FlashStore, or nothing.
# A program says ready, then reads the first and the last number of a round from the pipe "gate"; a round whose last
# message was already taken ends at once. Messages begin with their number. For each message taken, one line is
# printed: [number, whether it is flagged as redelivered]. "taken" ends a round.
import gc
import json
import sys

config = json.loads(sys.stdin.readline())
qos = config["qos"]
callback = config["callback"]
clean = config["clean"]
INBOX = config["name"] + "/in"
OUT = config["name"] + "/out"
PUBLISHES = int(callback[-1]) if callback[-1] in "012" else None  # the QoS
too_large = []  # (topic, size) of messages for which there was no memory


class Round:
    def __init__(self):
        self.last = -1  # the highest number taken
        self.end = self.taken = self.count = 0
        self.turns = ()  # messages at which a callback unsubscribes or disconnects

    def begin(self, client):
        """Start a round: all messages are published when the gate opens."""
        self.taken = client.discarded = 0
        del too_large[:]
        print('{"event": "ready"}')
        with open(config["gate"]) as gate:
            first, end = json.loads(gate.readline())
        self.end = end
        self.count = end - first + 1
        # If the broker forgets the session, messages lost at its end are not counted, so there is only one turn.
        self.turns = (end,) if clean or not qos or first == end else ((first + end) // 2, end)

    def goes_on(self, client):
        """Return whether messages are still to come; those dropped that no broker sends again are counted."""
        return self.last < self.end and (qos > 0 and not clean or self.taken + client.discarded < self.count)

    def take(self, payload, redelivered=False):
        """Record a message; return True if it is the turn of a callback's action. Raises ValueError if told to."""
        number = int(bytes(payload[: payload.find(b" ")]))
        new = number > self.last
        if new:
            self.last = number
        self.taken += 1
        sys.stdout.write("[%d, %d]\n" % (number, redelivered))
        if callback == "raises":
            raise ValueError("of the callback")
        return new and number in self.turns

    def refuse(self, error):
        """Record a MessageTooLarge of a call for the next message; raise any other error."""
        from umqtt_robust.large import MessageTooLarge

        if not isinstance(error, MessageTooLarge):
            raise error
        too_large.append(error.args)
        self.taken += 1

    def result(self, client):
        gc.collect()
        free = gc.mem_free()
        print(json.dumps({"event": "taken", "discarded": client.discarded, "too_large": too_large, "free": free}))


def store():
    if not config["flash"]:
        return None
    from umqtt_robust.flash import FlashStore

    return FlashStore(config["flash"], slots=32)

# What the programs for which messages wait have in common. "name" of their configuration: the client id, and the
# beginning of the topics; "flash": the folder of a FlashStore, or nothing.
# A program says ready, and reads the first and the last number of a round from the pipe "gate"; a round whose last
# message was taken already ends at once. Messages begin with their number. Each that is taken is one line: [number,
# whether it is flagged as redelivered]. "taken" is the end of a round.
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
        self.last = -1  # the highest number that was taken
        self.end = self.taken = self.count = 0
        self.turns = ()  # at these messages a callback unsubscribes or disconnects

    def begin(self, client):
        """Whoever publishes is done when the gate opens."""
        self.taken = client.discarded = 0
        del too_large[:]
        print('{"event": "ready"}')
        with open(config["gate"]) as gate:
            first, end = json.loads(gate.readline())
        self.end = end
        self.count = end - first + 1
        # What is lost when a session ends that the broker forgets is not asked for.
        self.turns = (end,) if clean or not qos or first == end else ((first + end) // 2, end)

    def goes_on(self, client):
        """Whether messages are still to come. What is dropped at QoS 0 is counted."""
        return self.last < self.end and (qos > 0 or self.taken + client.discarded < self.count)

    def take(self, payload, redelivered=False):
        """A message was taken; True: it is the turn of what only some messages do. Raises ValueError if it is to."""
        # Nothing is kept: what the client takes of the heap is what this is about.
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
        """An error that a call for the next message has raised."""
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

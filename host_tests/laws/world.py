"""The laws' world in memory: a client, a wire that can be cut at any byte, brokers that record faults, and a clock.

Everything happens in one thread and in virtual time, so every run is the same.
"""

import sys

from cut_wire import PowerCut, Wire
from durable_store import DurableStore, Flash
from strict_broker import Broker
from umqtt_testkit.encoder import PINGREQ, PUBLISH, encode, publish
from umqtt_testkit.portable import FULL, Clock, skip

from umqtt_robust import Client

__all__ = (
    "FULL", "PINGREQ", "PUBLISH", "SHARE", "Broker", "DurableStore", "Flash", "PowerCut", "Wire", "World", "encode",
    "publish", "version", "with_mqtt5",
)  # fmt: skip

# MicroPython takes three times as long as CPython, so in `make test` it cuts at every fifth of CPython's places.
SHARE = 5 if sys.implementation.name == "micropython" and not FULL else 1


def every(total, step):
    """Return where a sweep cuts: everywhere, or at every `step`th place; always at both ends."""
    step *= SHARE
    if version[0] == 5:
        step *= 3
    return range(total + 1) if FULL else sorted(set(range(0, total, step)) | {total})


version = [4]  # of MQTT: the clients' option `protocol`


def with_mqtt5(test, sampled=True):
    """Return the same test under MQTT 5; `make test` cuts at a third of the places that it cuts with MQTT 3.1.1.

    sampled: whether `make test` runs it at all.
    """

    def test_with_mqtt5():
        if not (sampled or FULL):
            skip("a sweep of `make prove-client`")
        version[0] = 5
        try:
            test()
        finally:
            version[0] = 4

    return test_with_mqtt5


class World:
    """A client called c, its brokers, and the clock. `kind` is the client's class.

    cuts: arguments of Wire for the next wires. unreachable: no broker answers. flash: opens the
    client's store; a Flash opens a DurableStore. cluster: the name under which the brokers share their sessions.
    program(world): called when the program starts, also after a power cut.
    """

    kind = Client

    def __init__(self, brokers=None, start=0, flash=None, program=None, cluster=None, **options):
        self.clock = Clock(start)
        self.brokers = brokers or [Broker()]
        self.flash = flash
        self.program = program
        self.cluster = cluster
        self.wires = []
        self.cuts = []
        self.unreachable = False
        self.events = []
        self.messages = []  # (topic, payload), in the order in which they were handed over
        self.redelivered = []  # a flag for each of them
        self.power_cuts = 0
        options.setdefault("clean_session", False)
        options.setdefault("protocol", version[0])
        options.setdefault("random", lambda n: n - 1)
        self.options = options
        self.start()

    def start(self):
        """Start the program, with whatever its store holds."""
        if self.flash:
            self.options["store"] = self.flash.open()
        urls = tuple("mqtt://host%d" % i for i in range(len(self.brokers)))
        servers = {self.cluster: urls} if self.cluster else urls
        self.client = client = self.kind(
            b"c", servers, ticks=self.clock.ticks_ms, transports={"mqtt": self._make}, **self.options
        )
        if "topic_alias_maximum" in (self.options.get("connect_properties") or ()):  # both ways
            client.part("mqtt5").most_aliases = 16
        client.on_connect = lambda present: self.events.append(("connect", present))
        client.on_disconnect = lambda error: self.events.append(("disconnect", error))
        client.on_error = lambda error: self.events.append(("error", error))
        client.on_acknowledged = lambda packet_id: self.events.append(("acknowledged", packet_id))
        client.on_message = self._message
        if self.program:
            self.program(self)
        return client

    def restart(self):
        """Cut the power, and start the program again."""
        self.power_cuts += 1
        for wire in self.wires:
            wire.break_now()
        known = self.flash and self.flash.state.get("session")
        for i, broker in enumerate(self.brokers):
            if not self.flash or known not in (None, "host%d:1883" % i):  # the client will take over its session
                for client_id in broker.sessions:
                    broker.sessions[client_id].client_reset()
        self.start()

    def _message(self, topic, payload):
        if self.client.mqtt5:
            found = dict(self.client.properties)
            found.pop("topic_alias", None)
            if found != {"correlation_data": payload[:8]}:
                self.brokers[0].fault("%r came with %r" % (payload, found))
        self.messages.append((topic, payload))
        self.redelivered.append(self.client.redelivered)

    def _make(self, host, port, path):
        broker = self.brokers[int(host[4:])]
        if self.unreachable or broker.down:
            raise OSError(111)
        wire = Wire(broker, **(self.cuts.pop(0) if self.cuts else {}))
        self.wires.append(wire)
        return wire

    @property
    def wire(self):
        return self.wires[-1]

    def run(self, until, ms=600000):
        """Tick in virtual time until `until()`; return False if ms pass first. A power cut restarts the program."""
        left = ms
        ticks = 0
        while not until():
            ticks += 1
            assert ticks < 20000, "the client is busy for ever"
            try:
                wait = self.client.tick()
            except PowerCut:
                self.restart()
                continue
            if wait > 0 and not until() and not self._more():
                if left <= 0:
                    return False
                wait = min(wait, 1000, left)
                left -= wait
                self.clock.advance(wait)
        return True

    def settle(self, ms=0):
        """Tick until nothing moves, then let ms pass."""
        self.run(lambda: False, ms)

    def _more(self):
        for broker in self.brokers:
            broker.release_held()
        wire = self.client.transport
        return wire is not None and (wire.down and not wire.mute or not wire.alive)

    def of_kind(self, kind):
        return [event[1] for event in self.events if event[0] == kind]

    def faults(self):
        return [fault for broker in self.brokers for fault in broker.faults]

    def taken(self):
        return [message for broker in self.brokers for message in broker.taken]

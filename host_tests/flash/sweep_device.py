"""The world of the sweeps: a device with a FlashStore, a strict broker, and the record of an outside witness.

The Ledger is that record. It must not change after a cut, so it can be copied, with the broker and its sessions.
"""

from strict_broker import Broker, BrokerSession, Outgoing
from world import World

from umqtt_robust.errors import OutboxFull
from umqtt_robust.flash import FlashStore

TOPIC = b"up"
COMMANDS = b"down"
FOLDER = "/mqtt"
SLOTS = 8
STALL_MS = 6000


_LISTS = ("tried", "promised", "dropped", "acked", "sent", "handled", "twice", "at_risk")


class LateStore(FlashStore):
    """A FlashStore used behind late storing."""


class Ledger:
    """The record of what happened to each message.

    tried, promised: payloads given to publish(), and those for which it returned. dropped: those that the client
    announced as dropped. handled: (payload, redelivered) of each call of the handler. sent: commands given to the
    broker. acked: (payload whose last acknowledgement was reported, how often the broker had accepted it by then).
    at_risk: payloads that were in RAM only at a cut, as late storing allows.
    """

    def __init__(self):
        self.broker = Broker()
        self.tried = []
        self.promised = []
        self.dropped = []
        self.handled = []
        self.sent = []
        self.acked = []
        self.at_risk = []
        self.late = None  # the part of the client that stores late, if it is loaded
        self.session_lost = False
        self.twice = []  # commands that were handled but not yet removed at a cut

    def copy(self):
        twin = Ledger()
        twin.broker = copy_broker(self.broker)
        twin.session_lost = self.session_lost
        for name in _LISTS:
            setattr(twin, name, list(getattr(self, name)))
        twin.at_risk += self.in_ram()
        return twin

    def in_ram(self):
        """Return the payloads that a cut would lose now."""
        return [self.late.load(slot)[1] for slot in self.late._order] if self.late else []

    def __repr__(self):
        lists = [(name, getattr(self, name)) for name in _LISTS] + [("taken", taken(self))]
        return ", ".join([f"{name} {[short(one) for one in content]}" for name, content in lists])


def short(value):
    """Shorten a value for a message: the beginning identifies a long payload."""
    if isinstance(value, tuple):
        return tuple([short(part) for part in value])
    return value[:24] if isinstance(value, bytes) else value


def copy_broker(broker):
    """Return a copy of the broker after the client's power fails: the link is gone, the sessions stay."""
    twin = Broker(late=broker.late, hold_recs=broker.hold_recs)
    twin.acknowledge = broker.acknowledge
    twin.taken = list(broker.taken)
    twin.faults = list(broker.faults)
    for client_id in broker.sessions:
        session = broker.sessions[client_id]
        twin.sessions[client_id] = other = BrokerSession(session.born_on)
        other.subscriptions = dict(session.subscriptions)
        other.last_id = session.last_id
        other.inbound = dict(session.inbound)
        other.in_use = dict(session.in_use)
        other.place = dict(session.place)
        other.places = session.places
        for message in session.queue:
            copy = Outgoing(message.packet_id, message.topic, message.payload, message.qos)
            copy.sent = message.sent
            copy.released = message.released
            other.queue.append(copy)
    return twin


def copy_ledger(ledger):
    """Copy the ledger for the sweep: the ledger of PowerCutFlash is a dict."""
    return {"of": ledger["of"].copy()} if ledger else {}


class Device:
    """A device from one start to the next: a client called c, with what the flash holds."""

    def __init__(self, root, ledger, store=FlashStore, chunk=120):
        self.ledger = ledger
        ledger.broker.wire = ledger.broker.session = None
        # Handled but not removed at the cut: the broker does not know that these are done.
        for payload, _ in ledger.handled:
            if payload not in ledger.twice and payload in waiting(ledger.broker):
                ledger.twice.append(payload)
        self.store = store(root + FOLDER, SLOTS, chunk)
        self.world = World([ledger.broker], store=self.store, rx_size=256, tx_size=256)
        self.client = client = self.world.client
        ledger.at_risk += ledger.in_ram()
        ledger.late = client.part("late") if store is LateStore else None
        self._payload_of = {}
        client.on_message = self._handle
        client.on_acknowledged = self._acknowledged
        client.on_dropped = lambda packet_id, topic, payload, reason: ledger.dropped.append(payload)
        client.subscribe(COMMANDS, qos=2)

    def _handle(self, topic, payload):
        self.ledger.handled.append((payload, self.client.redelivered))

    def _acknowledged(self, packet_id):
        payload = self._payload_of.get(packet_id)
        if payload is not None:
            self.ledger.acked.append((payload, taken(self.ledger).count(payload)))

    def publish(self, payload, qos):
        """Publish a message; return False if the outbox refused it."""
        if self.ledger.late:
            qos = 1
        self.ledger.tried.append((payload, qos))
        try:
            packet_id = self.client.publish(TOPIC, payload, qos)
        except OutboxFull:
            self.ledger.tried.pop()
            return False
        self._payload_of[packet_id] = payload
        self.ledger.promised.append((payload, qos))
        return True

    def command(self, payload):
        """Send the client a message from the broker."""
        if self.ledger.broker.send(b"c", COMMANDS, payload, 2):
            self.ledger.sent.append(payload)

    def broker_forgets(self):
        """Let the broker lose its sessions."""
        self.ledger.session_lost = True
        self.ledger.broker.forget(b"c")

    def stall(self):
        """Let the broker accept messages and acknowledge none, for some seconds."""
        self.ledger.broker.acknowledge = False
        self.publish(b"stalled %d" % len(self.ledger.tried), 1)
        self.world.settle(STALL_MS)
        self.ledger.broker.acknowledge = True

    def connect(self):
        assert self.world.run(lambda: self.client.connected and self.client.subscribed), "no connection"

    def offline(self):
        """Break the link, and make the broker unreachable."""
        self.world.unreachable = True
        if self.world.wires:
            self.world.wire.break_now()
        self.client.tick()

    def online(self):
        self.world.unreachable = False
        self.connect()

    def tick(self):
        self.client.tick()

    def settle(self):
        """Wait until nothing is in progress."""
        self.online()
        done = self.world.run(lambda: not self.client.pending and self.client.connected and not waiting_at(self))
        assert done, "the client does not come to an end"


def waiting(broker):
    """Return the payloads that the broker has yet to deliver."""
    found = []
    for session in broker.sessions.values():
        found += [message.payload for message in session.queue]
    return found


def waiting_at(device):
    return waiting(device.ledger.broker)


def taken(ledger):
    return [payload for _, payload in ledger.broker.taken]


def check(ledger):
    """Check the laws, once everything has finished. Raises AssertionError."""
    broker = ledger.broker
    exactly_once = not ledger.session_lost  # after that no client can promise it
    # A broker may lose its session and begin a new one of which the device does not hear before its power fails. The
    # device then sends PUBREL for ids that the broker no longer knows.
    faults = [one for one in broker.faults if exactly_once or "without PUBREC" not in one]
    # A message that was only in RAM took its packet id along. At QoS 1 that does no harm.
    faults = [one for one in faults if not ledger.at_risk or "in use" not in one]
    assert not faults, faults
    arrived = taken(ledger)
    promised = [payload for payload, _ in ledger.promised]
    known = [payload for payload, _ in ledger.tried]
    strange = [payload for payload in arrived if payload not in known]
    assert not strange, f"nobody published {strange}"
    for payload, qos in ledger.tried:
        n = arrived.count(payload)
        gone = payload in ledger.dropped or payload in ledger.at_risk
        assert n or payload not in promised or gone, f"lost {short(payload)}"
        assert n < 2 or qos == 1 or not exactly_once, f"{n} times {short(payload)} at QoS 2"
    for qos in (1, 2):
        tried = [payload for payload, q in ledger.tried if q == qos]
        first = []
        for payload in arrived:
            if payload in tried and payload not in first:
                first.append(payload)
        assert first == [payload for payload in tried if payload in first], f"out of order: {first!r}"
    for payload, times in ledger.acked:
        assert arrived.count(payload) == times, f"{short(payload)} again after its acknowledgement"
    for payload in ledger.sent:
        flags = [redelivered for handled, redelivered in ledger.handled if handled == payload]
        assert flags, f"command {short(payload)} lost"
        again = payload in ledger.twice or not exactly_once
        assert len(flags) == 1 or again, f"command {short(payload)} {len(flags)} times"
        assert all(flags[1:]), f"command {short(payload)} again, not flagged"

"""MQTT as a page: what every client is owed, and what it may get again.

A session is a queue of owed messages with a cursor for each publisher and topic (the number of the message that came
last), the publisher's messages in flight, its inbound ids (how often its power was cut since a message came: until then
no message at QoS 2 may come twice), and a will. The model is told what programs did and saw; it knows no packets.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

DOUBTFUL, PROMISED, VOID, REFUSED = range(4)


def family_of(topic: str) -> str:
    """Return what a subscription to that topic name or filter covers: all below its first level, or one topic."""
    family = topic.removeprefix("$share/g/").partition("/")[0]
    return topic if family == "cmd" else family


@dataclass(eq=False)
class Party:
    """A client as the model sees it. losses, power_cuts: of its links, and of itself. in_flight: by packet id.

    unremoved: messages that are acknowledged, and could not be removed from its flash.

    granted: the QoS by topic family of the subscriptions that the broker has confirmed, once it has. groups: the topic
    families of its shared subscriptions. present: whether the broker must know its session; None: it may.
    """

    name: str
    keeps_session: bool
    keeps_messages: bool
    losses: int = 0
    power_cuts: int = 0
    present: bool | None = False
    granted: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()
    in_flight: dict[int, Message] = field(default_factory=dict)
    unremoved: list[Message] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Message:
    """A message, or a will. expires: the time, in s, from which on nobody may be sent it; None: never."""

    number: int
    publisher: Party
    topic: str
    qos: int
    retain: bool
    losses: int
    broker_deaths: int
    expires: float | None = None
    is_will: bool = False
    state: int = DOUBTFUL
    losses_at_end: int | None = None
    came: dict[object, Receipt] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """What clients subscribe to: see family_of()."""
        return family_of(self.topic)

    def resends(self, qos: int, broker_deaths: int) -> int:
        """Return how often it may come again at that QoS as another message.

        At QoS 1 a broker may send a message before it has it on disk; then the publisher, or the will, repeats it.
        """
        if not self.qos or (qos == 2 and (self.is_will or self.publisher.keeps_session)):
            return 0
        if self.is_will:
            return broker_deaths - self.broker_deaths
        return (self.publisher.losses if self.losses_at_end is None else self.losses_at_end) - self.losses


@dataclass(eq=False, slots=True)
class Receipt:
    """The first copy of a message: who got it, and how often its power was cut by then. others: copies not flagged.

    was_flagged: it says that another copy was sent before; of a group, that one may arrive later, at another member.
    """

    party: Party
    power_cuts: int
    was_flagged: bool
    others: int = 0


class Model:
    """All clients and messages. divergences: what no broker and client may do, as text."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.parties: list[Party] = []
        self.owed: defaultdict[object, dict[int, Message]] = defaultdict(dict)
        self.retained: dict[str, list[Message | None]] = {}
        self.divergences: list[str] = []
        self.broker_deaths = 0
        self._cursor: dict[tuple[Party, Party, str, int], int] = {}

    # What publishers do

    def publish(
        self, publisher: Party, topic: str, qos: int, retain: bool, expires: float | None = None, is_will: bool = False
    ) -> Message:
        """Note that a message is about to be published."""
        message = Message(
            len(self.messages), publisher, topic, qos, retain, publisher.losses, self.broker_deaths, expires, is_will
        )
        self.messages.append(message)
        return message

    def promise(self, message: Message) -> None:
        """publish() has returned, or a link with that will has ended: all who subscribe must get the message."""
        message.state = PROMISED
        if message.retain and message.qos:
            self.retained.setdefault(message.topic, []).append(message)
        if not message.qos or message.expires is not None:
            return
        for party in self.parties:
            if party.granted.get(message.family):
                key = message.family if message.family in party.groups else party
                if key not in message.came:
                    self.owed[key][message.number] = message

    def refuse(self, message: Message) -> None:
        """publish() has raised: nobody may get the message."""
        message.state = REFUSED

    def void(self, message: Message) -> None:
        """The publisher has forgotten the message, as it may: nobody must get it."""
        message.state = VOID
        if message in self.retained.get(message.topic, ()):
            self.retained[message.topic].remove(message)
        for owed in self.owed.values():
            owed.pop(message.number, None)

    def acknowledged(self, party: Party, packet_id: int, *, is_removed: bool = True) -> None:
        """The publisher will not send that message again; if its disk is full, not before its power is cut."""
        if message := party.in_flight.pop(packet_id, None):
            message.losses_at_end = party.losses
            if not is_removed:
                party.unremoved.append(message)

    def power_cut(self, party: Party) -> None:
        """A client has lost its power, and without flash its memory."""
        party.power_cuts += 1
        party.losses += 1
        for message in party.unremoved:
            message.losses_at_end = None
        if not party.keeps_messages:
            for message in party.in_flight.values():
                message.losses_at_end = party.losses
                self.void(message)
            party.in_flight.clear()
            # What the broker has a PUBREC of, the client had in RAM until PUBREL.
            for key in (party, *party.groups):
                for number, message in list(self.owed[key].items()):
                    if message.qos == 2 == party.wanted.get(message.family):
                        del self.owed[key][number]

    # What clients see

    def connected(self, party: Party, session_present: bool) -> None:
        """Compare what the broker says of the session with what it must know."""
        if party.present is not None and session_present != party.present:
            self.diverge(f"session_present is {session_present} for {party.name}, must be {party.present}")
        party.present = party.keeps_session

    def receive(self, party: Party, number: int, topic: str, retain: bool, redelivered: bool, now: float) -> None:
        """Compare a message that is handed over with what is owed."""
        if number >= len(self.messages) or self.messages[number].topic != topic:
            self.diverge(f"{party.name} got message {number} in {topic}, which nobody published")
            return
        message = self.messages[number]
        if message.state == REFUSED:
            self.diverge(f"{party.name} got message {number} in {topic}, whose publish() had raised")
        if message.expires is not None and now > message.expires:
            self.diverge(f"{party.name} got message {number}, {now - message.expires:.1f} s after it had expired")
        if retain:
            if not message.retain:
                self.diverge(f"{party.name} got message {number} in {topic} as a retained one")
            return
        is_shared = message.family in party.groups
        key = message.family if is_shared else party
        is_owed = self.owed[key].pop(number, None) is not None
        first = message.came.get(key)
        if first is None:
            message.came[key] = Receipt(party, party.power_cuts, redelivered)
            if not is_shared and (is_owed or not message.resends(1, self.broker_deaths)):
                flow = party, message.publisher, topic, message.qos
                if number < self._cursor.get(flow, -1):
                    self.diverge(f"reordered: {party.name} got message {number} in {topic} after {self._cursor[flow]}")
                self._cursor[flow] = number
        elif not self._may_come_again(message, party, first, redelivered):
            self.diverge(f"doubled: {party.name} got message {number} in {topic} again ({redelivered=})")

    def _may_come_again(self, message: Message, party: Party, first: Receipt, redelivered: bool) -> bool:
        # A session that is kept has inbound ids: at QoS 2 nothing comes again until the power is cut.
        kept = 2 if first.party.keeps_session and party.keeps_session else 1
        who = self.parties if message.family in party.groups else (party,)
        qos = min(message.qos, kept, *(one.wanted[message.family] for one in who if message.family in one.wanted))
        if qos == 1 and first.was_flagged and party is not first.party:
            redelivered = True
        if redelivered and (qos == 1 or (qos == 2 and party is first.party and party.power_cuts > first.power_cuts)):
            return True
        first.others += 1
        return first.others <= message.resends(qos, self.broker_deaths)

    def diverge(self, text: str) -> None:
        """Note a divergence."""
        self.divergences.append(text)

    # The end

    def check_end(self, retained: dict[str, int | None]) -> None:
        """Compare what is left. retained: what the broker retains, by topic name the number of the message."""
        for key, owed in self.owed.items():
            for message in owed.values():
                name = key.name if isinstance(key, Party) else f"group {key}"
                self.diverge(
                    f"lost: message {message.number} in {message.topic} at QoS {message.qos} of"
                    f" {message.publisher.name}{' (a will)' * message.is_will}, owed to {name}"
                )
        for topic, found in retained.items():
            if topic not in self.retained:
                self.retained.setdefault(topic, [])
                if found is not None and not self.messages[found].retain:
                    self.diverge(f"{topic} retains message {found}, which is not to be retained")
        for topic, messages in self.retained.items():
            last = messages[-1] if messages else None
            if last is not None and last.expires is None and (retained.get(topic) or -1) < last.number:
                self.diverge(f"{topic} retains {retained.get(topic)}, must be {last.number}")

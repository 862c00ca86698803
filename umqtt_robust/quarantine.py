"""Finds the message at which the broker ends the link, and sets it aside, so that those behind it are sent.

    quarantine = client.part("quarantine")
    for packet_id, topic, payload in quarantine.messages():
        quarantine.send_on(packet_id)  # or drop(packet_id)

A broker of MQTT 3.1.1 cannot refuse a message: it closes the link, or stays silent. Such a message would be sent first
on each link, for ever. So after the broker has ended a link with messages in flight, the next links begin with PINGREQ;
after PINGRESP those messages are sent one at a time. The message that is alone in flight when the broker ends the link
gets a strike. After STRIKES of them it is set aside and reported. Once the broker has acknowledged another message, it
is sent once more on the same link: a broker that took nothing at all for a while has not made it a bad one. If it ends
that link too, it is set aside for good.

A message at QoS 2 may be the one to blame at its PUBREL too: then the broker has it, and only that PUBREL is given up.

A topic filter at whose SUBSCRIBE so many links end is left out for an hour. A session whose stored packets end so many
links by breaking the protocol is left.

Strikes lie in the store, with the rank of a message, so they add up over resets; those of a topic filter do not. A
message that is set aside keeps its slot and its packet id until a new message needs the slot.
"""

import errno

from ._platform import NEVER, const, ticks_diff
from .base_errors import LinkLost, MQTTError, ProtocolError
from .errors import Refused
from .packets import AWAIT_PUBCOMP, DUP, PING_SENT, PINGREQ, STATE
from .policy import FULL, QUARANTINED, REFUSED
from .store import IN_FLIGHT, SET_ASIDE, STRIKES_AT, STRUCK
from .subscriptions import ASIDE

STRIKES = const(3)  # a mark is 1 for a message that was in flight when a link ended, and one more for each strike
_STORED = const(0x5F)  # the flags that count for the store, as in qos2.py
_SHORT = const(3000)  # ms: a link that ends this soon after CONNACK was ended by the broker
_HOUR = const(3600000)  # ms
_LOOK = const(1000)  # ms between two looks at a message that is sent alone

# Errors of a network that is gone; the numbers are those of lwIP and ESP-IDF.
_NETWORK = (errno.ETIMEDOUT, errno.EHOSTUNREACH, 100, 101, 114, 116, 118)
# DISCONNECT in MQTT 5 for reasons that lie in no message: shutdown, busy, session taken over, rate, and so on.
_NO_MESSAGE = const(b"\x89\x8b\x8d\x8e\x96\x98\x9c\x9d\x9f")


def packet_ids(outbox):
    """Returns the packet ids of the messages in the outbox's index, in the order of publish()."""
    found = []
    slot = outbox.next[outbox.end]
    while slot != outbox.end:
        found.append(outbox.ids[slot])
        slot = outbox.next[slot]
    return found


def _is_by_broker(error):
    if isinstance(error, OSError):
        return error.errno not in _NETWORK
    if isinstance(error, Refused) and error.args[0] == "disconnect":
        return error.args[1] not in _NO_MESSAGE
    return isinstance(error, LinkLost) and error.args[0] not in ("ping_timeout", "slept for days")


class Quarantine:
    """The suspects of one session, and the messages that were set aside."""

    def __init__(self, session):
        self._session = session
        outbox = session.outbox
        self._marks = dict(outbox.marks)
        self._release_marks = {one: self._marks.pop(one) for one in outbox.released if one in self._marks}
        self._kept = [pair[0] for pair in outbox.marks if pair[1] >= STRUCK]
        self._known = self._kept[:]  # those of which the broker's session may know the packet id
        # Messages that are sent alone. Only one of those in flight before a reset has its mark.
        self._suspects = packet_ids(outbox)[: session.window] if len(self._marks) > len(self._kept) else []
        self._filters_alone = self._filters_last = len(self._suspects) > 0
        self._releases_alone = len(self._release_marks) > 0  # PUBRELs go one at a time, before all others
        self._filter_strikes = {}
        self._aside_at = 0  # ms
        self._bad_topics = []
        self._reports = []  # (function, arguments)
        self._short = self._protocol_errors = (0, 0)  # number of such links in a row, number of the last one
        self._window = None  # the session's own, while messages are sent alone
        self._retried = 0
        session.subscriptions.gate = self._is_open
        session.timers.append(self._tick)
        self.forget(False)
        if self._kept:
            session.quarantined = len(self._kept)
            session.part("policy")  # it makes room

    def forget(self, session):
        """Drops what was known of a link that is gone."""
        if session:
            self._known = []
        session = self._session
        if self._waits(self._retried):
            self._take_out(self._retried, self._place)
        self._retried = 0  # the packet id of one that was set aside, and is sent once more
        if self._window is not None:
            session.window = self._window
        self._window = None
        self._ping_at = self._late_ping = None  # ms: when PINGREQ was sent
        self._alone_at = session.now  # ms: since when a message, or a filter, waits for its answer alone
        self._sent = session.sent
        self._watched = 0  # a packet id: if it is gone, the broker has acknowledged a message that is not struck
        self._passed = False
        if self._filter_strikes and ticks_diff(session.now, self._aside_at) >= _HOUR:
            self._filter_strikes = {}
            filters = session.subscriptions.filters
            for topic_filter in filters:
                filters[topic_filter] &= ~ASIDE

    # Sending

    def pump(self):
        """Sets how many messages may be in flight now: none, one, or as many as ever. Returns True."""
        session = self._session
        outbox = session.outbox
        if self._releases_alone:
            for packet_id in list(self._release_marks):
                if packet_id not in outbox.released:
                    del self._release_marks[packet_id]
            self._releases_alone = len(outbox.released) > 0
        if not self._marks and not self._suspects and not self._filters_alone and not self._releases_alone:
            return True
        while outbox.more and 2 * len(self._kept) > outbox.end:
            self.drop(self._kept[0])  # those that wait outside the index need it too
        for packet_id in list(self._marks):
            if not self._waits(packet_id):
                del self._marks[packet_id]
        self._suspects = [one for one in self._suspects if self._waits(one) and one not in self._kept]
        self._filters_last = self._filters_last and len(self._suspects) > 0
        if session.subscribed and not self._suspects:
            self._filters_alone = False
        if self._watched and not self._waits(self._watched):
            self._passed = self._passed or session.discarded == self._discarded
            self._watched = 0
        alone = self._suspects or self._filters_alone or self._releases_alone
        if alone or self._waits(self._retried) or self._passed and self._unproven():
            if self._window is None:
                self._window = session.window
            if self._window:
                session.window = session.in_flight + self._allowed()
        elif self._window is not None:
            session.window = self._window
            self._window = None
        packet_id = session.outbox.next_unsent()
        if not self._watched and packet_id and packet_id != self._retried:
            self._watched = packet_id
            self._discarded = session.discarded
        return True

    def _unproven(self):
        # Returns the first message that was set aside before another one had passed, or 0.
        for packet_id in self._kept:
            if self._marks[packet_id] != SET_ASIDE:
                return packet_id
        return 0

    def _allowed(self):
        # Returns 1 if a message may be sent alone now, else 0.
        session = self._session
        subscriptions = session.subscriptions
        now = session.now
        if self._flying() or self._released() or subscriptions.requests:
            # PINGRESP shows whether it is silent, or the line only slow.
            if self._late_ping is None and ticks_diff(now, self._alone_at) > session.ack_timeout // 2:
                self._late_ping = self._ask()
            return 0
        if self._ping_at is None:
            self._ping_at = self._ask()
            return 0
        if session.ping:
            if ticks_diff(now, self._ping_at) > session.ack_timeout:
                raise LinkLost("ping_timeout")
            return 0
        self._alone_at = now
        self._late_ping = None
        self._sent = session.sent
        if self._releases_alone:
            return 1
        if subscriptions.must_send and not self._filters_last:
            subscriptions.send(1 if self._filters_alone else NEVER)
            return 0 if subscriptions.requests else 1
        if not self._suspects and not self._filters_alone:
            self._retried = self._unproven()
            self._place = self._kept.index(self._retried)
            self._put_back(self._retried, session.outbox.head)
        return 1

    def _flying(self):
        # Returns the packet ids of the messages in flight that no PUBREC has answered.
        outbox = self._session.outbox
        found = []
        for slot in outbox.in_flight():
            if outbox.flags[slot] & IN_FLIGHT and outbox.flags[slot] & STATE != AWAIT_PUBCOMP:
                found.append(outbox.ids[slot])
        return found

    def _released(self):
        # Returns the packet ids of the messages whose PUBREL was sent on this link and not answered.
        outbox = self._session.outbox
        return [one for one in outbox.released if outbox.flags[outbox.slot_of[one]] & IN_FLIGHT]

    def _waits(self, packet_id):
        # Returns False once the broker has a message.
        outbox = self._session.outbox
        slot = outbox.slot_of.get(packet_id)
        return slot is not None and outbox.flags[slot] & STATE != AWAIT_PUBCOMP

    def _ask(self):
        session = self._session
        if not session.out.has_room():
            return None
        session.out.put_ack(PINGREQ)
        session.ping = PING_SENT
        session.ping_at = session.now
        return session.now

    def _is_open(self):
        # Whether the core may send requests; else this module sends them.
        return not (self._suspects or self._filters_alone or self._releases_alone)

    def _tick(self):
        return NEVER if self._window is None else _LOOK

    # The end of a link

    def find_cause(self, error, lasted):
        """Finds out what has ended a link, which is still there. lasted: ms since CONNACK."""
        session = self._session
        if session._loaded[0] is not self:  # the others send what it allows
            session._loaded.remove(self)
            session._loaded.insert(0, self)
        outbox = session.outbox
        flying = self._flying()
        released = self._released()
        filters = list(session.subscriptions.requests.values())
        if 0 <= lasted < _SHORT:
            self._short = self._follows(self._short)
            if self._short[0] % STRIKES == 0:
                topic = self._topic(flying[0]) if flying else session.sent and session._topic_bytes or b""
                session.report(LinkLost("id in use elsewhere, or topic forbidden?", topic))
        if not _is_by_broker(error):
            return
        if isinstance(error, ProtocolError) and not flying and not filters and not released:
            self._handle_malformed(error)
        elif self._window is None:
            self._releases_alone = len(released) > 0
            if released and released[0] not in self._release_marks:
                self._mark_release(released[0], 1)
            if flying or filters:  # all of them are under suspicion
                self._suspects = flying
                self._filters_alone = self._filters_last = len(filters) > 0
                first = flying[0] if flying else outbox.next_unsent()
                if first and first not in self._marks:
                    self._mark(first, 1)
        elif error.args[0] == "ack_timeout" and (session.ping or self._late_ping is None):
            pass  # the line may be slow
        elif self._ping_at is not None and len(flying + released + filters) == 1 and session.sent - self._sent <= 1:
            for packet_id in released:
                self._strike_release(packet_id)
            for packet_id in flying:
                self._strike(packet_id)
            for topic_filter in filters:
                self._strike_filter(topic_filter)

    def tell(self):
        """Reports what find_cause() has found out."""
        while self._reports:
            function, arguments = self._reports.pop(0)
            function(*arguments)

    def _follows(self, series):
        # Counts links in a row.
        links = self._session.reconnects
        return (series[0] + 1 if series[1] == links - 1 else 1), links

    def _topic(self, packet_id):
        outbox = self._session.outbox
        return outbox.store.load(outbox.slot_of[packet_id])[0].split(b"\0")[0]

    def _strike(self, packet_id):
        session = self._session
        topic = self._topic(packet_id)
        if packet_id == self._retried:
            self._retried = 0
            self._take_out(packet_id, self._place)
            self._mark(packet_id, SET_ASIDE)
            return
        mark = self._marks.get(packet_id, 1) + 1
        if topic in self._bad_topics:
            mark = STRUCK
        self._mark(packet_id, mark)
        if mark == STRUCK:
            self._take_out(packet_id, len(self._kept))
            self._bad_topics = [topic] + self._bad_topics[:7]
            session.quarantined += 1
            session._back_off_limit = 0  # this link has brought us further
            self._reports.append((self._tell_dropped, (packet_id, topic)))

    def _strike_release(self, packet_id):
        self._releases_alone = True
        mark = self._release_marks.pop(packet_id, 1) + 1
        if mark < STRUCK:
            self._mark_release(packet_id, mark)
        else:
            self._reports.append((self._give_up_release, (packet_id,)))

    def _mark_release(self, packet_id, mark):
        # The first PUBREL goes first also with place 0, in a store that keeps one rank alone.
        self._release_marks[packet_id] = mark
        if packet_id == self._session.outbox.released[0]:
            self._store_mark(packet_id, mark << STRIKES_AT)

    def _give_up_release(self, packet_id):
        session = self._session
        topic = self._topic(packet_id)
        session.refused = Refused("publish", topic, 0x80, b"the broker has it, and ends each link at its PUBREL")
        session.report(session.refused)
        try:
            session.part("policy").drop(packet_id, REFUSED)
        except MQTTError as error:  # the store cannot forget it
            session.report(error)

    def _mark(self, packet_id, mark):
        self._marks[packet_id] = mark
        self._store_mark(packet_id, mark)

    def _store_mark(self, packet_id, rank):
        outbox = self._session.outbox
        slot = outbox.slot_of[packet_id]
        flags = outbox.flags[slot]
        try:
            outbox.store.change(slot, flags & _STORED, rank)
        except MQTTError as error:
            self._session.report(error)

    def _take_out(self, packet_id, place):
        # Takes a message out of those that are sent. place: among those that are set aside.
        session = self._session
        outbox = session.outbox
        slot = outbox.slot_of[packet_id]
        outbox.take_out(slot)
        outbox.aside += 1
        session.pending -= 1
        if outbox.flags[slot] & DUP:
            self._known.append(packet_id)
        # An acknowledgement does not count for it from now on. The link that it was in flight on is gone.
        outbox.flags[slot] &= ~(DUP | IN_FLIGHT)
        self._kept.insert(place, packet_id)
        session.part("policy")  # it makes room

    def _put_back(self, packet_id, after):
        # Puts a message back among those that are sent. after: the slot of the one that follows it.
        session = self._session
        outbox = session.outbox
        self._kept.remove(packet_id)
        slot = outbox.slot_of[packet_id]
        if packet_id in self._known:
            self._known.remove(packet_id)
            outbox.flags[slot] |= DUP
        outbox.insert(slot, after)
        outbox.aside -= 1
        session.pending += 1
        session.idle = False
        session.wait_ms = 0

    def _tell_dropped(self, packet_id, topic):
        session = self._session
        if session.on_dropped and packet_id in self._kept:
            payload = session.outbox.store.load(session.outbox.slot_of[packet_id])[1]
            session.on_dropped(packet_id, topic, payload, QUARANTINED)

    def _strike_filter(self, topic_filter):
        session = self._session
        strikes = self._filter_strikes[topic_filter] = self._filter_strikes.get(topic_filter, 0) + 1
        if strikes >= STRIKES and topic_filter:
            session.subscriptions.filters[topic_filter] |= ASIDE
            self._aside_at = session.now
            error = Refused("subscribe", topic_filter, 0x80, b"the broker ends each link at it")
            self._reports.append((session.report, (error,)))

    def _handle_malformed(self, error):
        # What the broker has stored for this client comes again on each link.
        session = self._session
        self._protocol_errors = self._follows(self._protocol_errors)
        if self._protocol_errors[0] % STRIKES == 0 and not session.clean_session:
            session.purge = True
            text = "leaving the session: a packet in it ended %d links" % STRIKES
            self._reports.append((session.report, (LinkLost(text, error.args[0]),)))

    # What was set aside

    def holds(self, packet_id):
        """Returns True if the message with that packet id is set aside."""
        return packet_id in self._kept

    def messages(self):
        """Returns (packet id, topic name, payload) of each message that was set aside, the oldest first."""
        outbox = self._session.outbox
        found = []
        for packet_id in self._kept:
            topic, payload = outbox.store.load(outbox.slot_of[packet_id])
            found.append((packet_id, topic.split(b"\0")[0], payload))
        return found

    def send_on(self, packet_id):
        """Puts a message that was set aside behind all that wait. Returns False if there is none of that packet id."""
        if packet_id not in self._kept:
            return False
        self._put_back(packet_id, self._session.outbox.end)
        self._mark(packet_id, 0)
        return True

    def drop(self, packet_id, reason=FULL):
        """Drops a message that was set aside. Returns False if there is none of that packet id."""
        if packet_id not in self._kept:
            return False
        self._put_back(packet_id, self._session.outbox.end)
        self._session.part("policy").drop(packet_id, reason)
        return True

    def make_room(self, drops):
        """Drops the oldest message that was set aside; without `drops`, only one that is set aside for good.

        Returns False if there is none.
        """
        for packet_id in self._kept:
            if drops or self._marks[packet_id] == SET_ASIDE:
                return self.drop(packet_id)
        return False


part = Quarantine  # what Session.part() makes

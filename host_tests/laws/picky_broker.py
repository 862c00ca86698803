"""A broker in memory that does not take some messages or topic filters, and says so as badly as brokers do."""

from strict_broker import Broker
from umqtt_testkit.encoder import CONNECT, PUBCOMP, PUBLISH, PUBREL, SUBSCRIBE, acknowledgement, parse_publish

# What the broker does at a message or a topic filter that it does not take.
WAYS = ("close", "reset", "third byte", "silent", "wrong answer", "garbage", "disconnect")


class PickyBroker(Broker):
    """A Broker that refuses, in one of WAYS, messages whose topic begins with b"bad/", and that topic filter.

    with_code: so many CONNECTs are refused with the return code `code` first. stored: a packet that comes right after
    CONNACK, as long as the session exists. links: how many there were. at_pubrel: it refuses the PUBRELs of such
    messages instead.
    """

    def __init__(self, way, code=0, with_code=0, at_pubrel=False, **options):
        Broker.__init__(self, **options)
        self.at_pubrel = at_pubrel
        self.bad = []  # packet ids
        self.way = way
        self.code = code
        self.with_code = with_code
        self.links = 0
        self.picks = True
        self.stored = b""

    def accept(self, wire):
        Broker.accept(self, wire)
        self.links += 1
        self.deaf = False

    def feed(self, wire, data):
        if wire is not self.wire or self.deaf:
            return
        if self.picks and self.way == "third byte" and b"bad/" in data:
            # Packets before it are handled; the link ends as soon as the bad one has begun.
            whole = self.rest + data
            start = 0
            while True:
                size, at = self._length(whole, start + 1)
                if b"bad/" in whole[start : at + size]:
                    break
                start = at + size
            Broker.feed(self, wire, data[: max(0, start - len(self.rest))])
            self._end(wire, True)
            return
        Broker.feed(self, wire, data)

    def _length(self, data, at):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return size, at

    def is_bad(self, topic):
        """Return whether it takes no message on that topic."""
        return topic[:4] == b"bad/"

    def _end(self, wire, at_once):
        self.deaf = True
        if at_once:
            wire.break_now()
        else:
            wire.fin = True

    def _take(self, wire, head, body):
        kind = head >> 4
        if self.deaf:
            return
        if kind == CONNECT and self.with_code:
            self.with_code -= 1
            self.connects.append(body)
            wire.send(bytes((0x20, 2, 0, self.code)))
            self._end(wire, False)
        elif self.picks and kind == PUBLISH and self.is_bad(parse_publish(head, body)[0]):
            self.bad.append(parse_publish(head, body)[1])
            if self.at_pubrel:
                Broker._take(self, wire, head, body)
            else:
                self._refuse(wire, head >> 1 & 3, self.bad[-1])
        elif self.at_pubrel and kind == PUBREL and (body[0] << 8 | body[1]) in self.bad:
            self._refuse(wire, 2, 0)
        elif self.picks and kind == SUBSCRIBE and body[4:8] == b"bad/":
            self._refuse(wire, 0, body[0] << 8 | body[1], True)
        else:
            clean = kind == CONNECT and body[2 + (body[0] << 8 | body[1]) + 1] & 2
            if clean:
                self.stored = b""
            Broker._take(self, wire, head, body)
            if kind == CONNECT and self.stored:
                wire.send(self.stored)

    def _refuse(self, wire, qos, packet_id, subscribes=False):
        if self.way == "silent":
            return
        if self.way == "disconnect" and self.level == 5:
            wire.send(b"\xe0\x01\x83")
            self._end(wire, False)
        elif self.way == "wrong answer" and subscribes:
            properties = b"\0" if self.level == 5 else b""
            wire.send(bytes((0x90, 3 + len(properties), packet_id >> 8, packet_id & 255)) + properties + b"\x55")
        elif self.way == "wrong answer" and qos:
            wire.send(acknowledgement(PUBCOMP, packet_id))
        elif self.way == "garbage":
            wire.send(b"\xf7\x81\x80\x80\x80\x80")
        else:
            self._end(wire, self.way == "reset")


__all__ = ("WAYS", "PickyBroker")

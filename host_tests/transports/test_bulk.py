"""Laws of the client that hands messages over in groups: any cut gives the same packets and acknowledgements."""

from __future__ import annotations

import itertools
import random
import socket
import ssl
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from umqtt_testkit import encoder

from umqtt_robust.bulk import BulkClient, scan
from umqtt_robust.errors import Downgraded, LinkLost, ProtocolError, Refused
from umqtt_robust.tls import CertificateRefused

CONNACK = encoder.connack()
PINGREQ, PINGRESP = encoder.pingreq(), encoder.pingresp()


def publish_packet(topic: bytes, payload: bytes, packet_id: int = 1, qos: int = 1, *, dup: bool = False) -> bytes:
    return encoder.publish(topic, payload, qos, packet_id, dup=dup)


PUBLISHES = st.builds(
    publish_packet,
    st.binary(min_size=1, max_size=20),
    st.binary(max_size=300),
    st.integers(1, 65535),
    st.sampled_from([0, 1, 1, 1, 2]),
    dup=st.booleans(),
)


def acknowledgements(packets: Iterable[bytes]) -> bytes:
    """Return what acknowledges these PUBLISH packets, in their order."""
    found = b""
    for first, body in encoder.split_packets(b"".join(packets))[0]:
        if first & 6:
            packet_id = body[2 + int.from_bytes(body[:2], "big") :][:2]
            found += (b"\x40\x02" if first & 6 == 2 else b"\x50\x02") + packet_id
    return found


class Wire:
    """A transport that reads prepared pieces, one a read, at most as many bytes as there is room for.

    None: nothing is there now; an exception is raised. `sent` is what the client has written.
    """

    def __init__(self, pieces: Iterable[bytes | Exception | None] = ()) -> None:
        self.pieces = list(pieces)
        self.sent = b""
        self.takes = 1 << 30
        self.reads = 0
        self.ends = False  # the broker answers DISCONNECT
        self.socket, self._other = socket.socketpair()
        self._other.send(b"x")  # always readable: no test waits

    def ready(self) -> bool:
        return True

    def read(self, buf: bytearray, offset: int) -> int | None:
        self.reads += 1
        if self.ends and self.sent.endswith(b"\xe0\x00"):
            return 0
        piece = self.pieces.pop(0) if self.pieces else None
        if isinstance(piece, Exception):
            raise piece
        if piece is None:
            return None
        count = min(len(piece), len(buf) - offset)
        if count < len(piece):
            self.pieces.insert(0, piece[count:])
        buf[offset : offset + count] = piece[:count]
        return count

    def write(self, buf: bytes | bytearray, offset: int, size: int) -> int:
        size = min(size, self.takes)
        self.takes -= size
        self.sent += buf[offset : offset + size]
        return size

    def wait(self, ms: int, writing: bool) -> None:
        pass

    def close(self) -> None:
        self.socket.close()
        self._other.close()


class World:
    """A client, its links in turn, and the clock."""

    def __init__(self, *wires: Wire, **options) -> None:
        self.now = 0
        self.wires = list(wires)
        self.used: list[Wire] = []
        self.errors: list[Exception] = []
        self.client = BulkClient(
            "c",
            "mqtt://127.0.0.1",
            clean_session=False,
            transports={"mqtt": self._next},
            ticks=lambda: self.now,
            on_error=self.errors.append,
            on_disconnect=self.errors.append,
            **{"random": lambda _: 0, **options},
        )

    def _next(self, *_: object) -> Wire:
        self.used.append(self.wires.pop(0))
        return self.used[-1]

    def collect(self, until: Callable[[], bool]) -> tuple[bytes, int]:
        """Take and acknowledge groups until a condition holds; return their packets, and how many they are."""
        packets, count = b"", 0
        while not until():
            self.client.tick()
            if group := self.client.take():
                packets += group.packets
                count += group.count
                self.client.acknowledge_group(group)
        return packets, count


def pieces_of(stream: bytes, cuts: Iterable[int]) -> list[bytes | None]:
    """Return a stream cut at these places, with a pause where two of them are the same."""
    places = [0, *sorted(cuts), len(stream)]
    return [stream[a:b] or None for a, b in itertools.pairwise(places)]


@given(
    st.lists(PUBLISHES | st.just(PINGRESP), max_size=25),
    st.data(),
    st.sampled_from([1, 7, 100, 1 << 20]),
    st.sampled_from([64, 1000, 1 << 18]),
)
def test_any_cutting_into_reads_and_groups_gives_the_same_packets_and_acknowledgements(packets, data, limit, rx_size):
    """Planted: a resize that loses bytes; what is behind a full group is forgotten."""
    stream = b"".join(packets)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    wire = Wire([CONNACK, *pieces_of(stream, cuts), PINGRESP, None, None])
    world = World(wire, group_bytes=limit, rx_size=rx_size)
    found, count = world.collect(lambda: not wire.pieces and not world.client.waiting())
    wanted = [packet for packet in packets if packet[0] & 0xF0 == 0x30]
    assert (found, count) == (b"".join(wanted), len(wanted))
    assert wire.sent[wire.sent.index(b"MQTT") + 11 :] == acknowledgements(wanted)
    assert world.errors == []


def test_every_single_split_of_a_stream_gives_the_same_packets():
    packets = [
        publish_packet(b"fleet/a/telemetry", b"one", 1),
        publish_packet(b"fleet/a/telemetry", bytes(140), 2),
        publish_packet(b"t", b"", qos=0),
        publish_packet(b"fleet/b/status", b"x" * 5, 65535, dup=True),
    ]
    stream = b"".join([packets[0], PINGRESP, *packets[1:]])
    for cut in range(len(stream) + 1):
        wire = Wire([CONNACK, *pieces_of(stream, [cut]), None])
        world = World(wire)
        found, count = world.collect(lambda: not wire.pieces and not world.client.waiting())  # noqa: B023
        assert (found, count) == (b"".join(packets), 4), f"cut at {cut}"
        assert wire.sent.endswith(acknowledgements(packets)), f"cut at {cut}"


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": st.binary(max_size=200),
        "subscription_identifier": st.lists(st.integers(1, 2**28 - 1), max_size=3),
        "user_property": st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=3),
    },
)


@example([(b"t", b"x", 1, {"content_type": bytes(200)}), (b"t", b"", 0, {})], 1)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=300), st.integers(0, 2), PROPERTIES)),
    st.integers(1, 4),
)
def test_messages_with_properties_are_kept_as_they_came_and_a_group_without_any_in_the_form_of_3_1_1(messages, parts):
    """Planted: the form of 3.1.1 for a group whose last message has properties; a remaining length that is not
    adjusted.
    """
    stream = wanted = b""
    for number, (name, payload, qos, properties) in enumerate(messages, 1):
        stream += encoder.publish(name, payload, qos, number, properties=encoder.properties(**properties))
        wanted += encoder.publish(name, payload, qos, number)
    size = len(stream) // parts + 1
    wire = Wire([b"\x20\x03\0\0\0", *(stream[at : at + size] for at in range(0, len(stream), size)), None])
    world = World(wire, protocol=5)
    while wire.pieces:
        world.client.tick()  # all is one group
    group = world.client.take()
    has_properties = any(encoder.properties(**properties) != b"\0" for *_, properties in messages)
    found = (group.packets, group.level, group.count) if group else (b"", 4, 0)
    assert found == (stream if has_properties else wanted, 5 if has_properties else 4, len(messages))


@given(st.lists(PUBLISHES, max_size=6))
def test_both_versions_of_a_stream_give_the_same_packets(packets):
    newer = b""
    for first, body in encoder.split_packets(b"".join(packets))[0]:
        at = 2 + int.from_bytes(body[:2], "big") + (2 if first & 6 else 0)
        newer += encoder.encode(first, body[:at] + b"\0" + body[at:])
    found = scan(newer, 5)
    assert (found[4] or b"", *found[1:4]) == (b"".join(packets), *scan(b"".join(packets), 4)[1:4])


@pytest.mark.parametrize("size", [0, 121, 122, 16377, 16378, 2097146, 2097147])
def test_lengths_of_one_to_four_bytes_are_taken(size):
    packet = publish_packet(b"ab", bytes(size), 1)
    assert scan(packet + b"\x30", 4)[:2] == (len(packet), 1)
    assert scan(packet[:-1], 4)[:2] == (0, 0)


HARMLESS = {
    "QoS 2 on a subscription at QoS 1": publish_packet(b"t", b"x", 7, 2),
    "a wildcard": publish_packet(b"a/+/#", b"x", 7),
    "no UTF-8": publish_packet(b"\xff\xfe", b"x", 7),
    "an empty topic": publish_packet(b"", b"x", 7),
    "a NUL": publish_packet(b"a\0b", b"x", 7),
    "DUP at QoS 0": publish_packet(b"t", b"x", 7, 0, dup=True),
}
HARMLESS_PROPERTIES = {
    "cut short": b"\x26\x00\x05a",
    "unknown": b"\x99",
    "no UTF-8": b"\x03\x00\x01\xff",
    "a long integer": b"\x0b\xff\xff\xff\xff\xff",
    "a topic alias": b"\x23\x00\x01",
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_does_not_disturb_the_stream_is_received_and_acknowledged(what):
    """Otherwise it would come again on each link and hold up all behind it. Planted: it ends the link."""
    packets = [publish_packet(b"t", b"before", 6), HARMLESS[what], publish_packet(b"t", b"after", 8)]
    wire = Wire([CONNACK, b"".join(packets), None])
    world = World(wire)
    assert world.collect(lambda: not wire.pieces)[0] == b"".join(packets)
    assert wire.sent.endswith(acknowledgements(packets))
    assert world.errors == []


@pytest.mark.parametrize("what", HARMLESS_PROPERTIES)
def test_properties_that_are_malformed_within_their_length_are_received(what):
    # Planted: properties that are decoded here.
    inside = HARMLESS_PROPERTIES[what]
    packet = encoder.publish(b"t", b"x", 1, 9, properties=encoder.variable(len(inside)) + inside)
    assert scan(packet, 5) == (len(packet), 1, 0, b"\x40\x02\x00\x09", None)


def test_a_message_at_qos_2_is_completed():
    wire = Wire([CONNACK, publish_packet(b"t", b"x", 7, 2), None, b"\x62\x02\x00\x07", None, None])
    world = World(wire)
    world.collect(lambda: not wire.pieces)
    assert wire.sent.endswith(b"\x50\x02\x00\x07" + b"\x70\x02\x00\x07")


MALFORMED = [
    (4, b"\x00\x00"),
    (4, b"\x10\x00"),
    (4, b"\xf0\x00"),
    (4, b"\x21\x02\x00\x00"),  # CONNACK with flags
    (4, b"\xd0\xff\xff\xff\xff\x01"),
    (4, publish_packet(b"t", b"", 0)),
    (4, publish_packet(b"t", b"", 1, 3)),
    (4, b"\x30\x01\x00"),
    (4, b"\x30\x02\x00\x01"),
    (4, b"\x32\x03\x00\x00\x01"),
    (4, b"\x32\x04\x00\x01t\x01"),
    (4, b"GET / HTTP/1.1\r\n\r\n"),
    (4, b"\x20\xff\xff\xff\x7f"),
    (5, encoder.publish(b"t", b"", 1, 1, properties=b"")),
    (5, encoder.publish(b"t", b"", 1, 1, properties=b"\x05")),
    (5, encoder.publish(b"t", b"", 1, 1, properties=b"\xff\xff\xff\xff\x01")),
    (5, encoder.publish(b"t", b"", 0, properties=b"")),
]


@pytest.mark.parametrize(("level", "packet"), MALFORMED)
@pytest.mark.parametrize("after", [False, True])
def test_what_no_broker_may_send_ends_the_link_once_what_came_before_is_acknowledged(level, packet, after):
    """Planted: good messages before it are dropped with the link, and come with it again for ever."""
    connack = b"\x20\x03\0\0\0" if level == 5 else CONNACK
    good = encoder.publish(b"t", b"good", 1, 5, properties=b"\0" if level == 5 else b"")
    wire = Wire([connack, (good if after else b"") + packet + bytes(8), None, None])
    world = World(wire, Wire(), protocol=level)
    found, count = world.collect(lambda: bool(world.errors))
    assert [type(error) for error in world.errors] == [ProtocolError]
    assert (b"good" in found, count) == (after, int(after))
    assert wire.sent.endswith(b"\x40\x02\x00\x05") == after


@given(st.binary(max_size=200), st.sampled_from([4, 5]))
def test_garbage_is_read_or_refused_but_never_anything_else(garbage, level):
    wire = Wire([b"\x20\x03\0\0\0" if level == 5 else CONNACK, garbage, None])
    world = World(wire, Wire(), protocol=level)
    found, _ = world.collect(lambda: not wire.pieces or bool(world.errors))
    assert len(found) <= len(garbage)
    assert {type(error) for error in world.errors} <= {ProtocolError, Refused, LinkLost}


def test_the_reason_of_the_broker_is_told_although_the_link_has_ended_and_messages_came_before_it():
    # Planted: the end of the link is read first.
    packet = encoder.publish(b"t", b"x", 1, 5, properties=b"\0")
    end = encoder.disconnect(b"\x8b" + encoder.properties(reason_string=b"for the night"))
    wire = Wire([b"\x20\x03\0\0\0", packet + end, ConnectionResetError("gone")])
    world = World(wire, Wire(), protocol=5)
    world.collect(lambda: bool(world.errors))
    assert [error.args for error in world.errors] == [("disconnect", 0x8B, b"for the night")]
    assert wire.sent.endswith(b"\x40\x02\x00\x05")


def test_a_large_message_is_looked_at_once_and_not_taken_apart_at_every_read(monkeypatch):
    """Planted: the whole buffer is copied at every read; memory for a length that is announced and never comes."""
    packet = publish_packet(b"t", bytes(5 << 20), 7)
    stream = PINGRESP + packet + publish_packet(b"t", b"after", 8)
    looked = []
    monkeypatch.setattr("umqtt_robust.bulk.scan", lambda data, level: looked.append(len(data)) or scan(data, level))
    wire = Wire([CONNACK, *(stream[at : at + 10_000] for at in range(0, len(stream), 10_000)), None])
    world = World(wire, rx_size=10_000)
    found, count = world.collect(lambda: not wire.pieces)
    assert (found, count) == (stream[2:], 2)
    assert len(looked) <= 3
    wire = Wire([CONNACK, b"\x32\xff\xff\xff\x7f\x00\x01t" + bytes(60_000), None, None])
    world = World(wire, rx_size=10_000)
    world.collect(lambda: not wire.pieces)
    assert len(world.client._rx) < 200_000


def test_a_full_group_stops_reading_until_it_is_taken_and_is_not_taken_for_silence():
    # Planted: a client that reads on; a ping that counts as unanswered while nothing is read.
    packet = publish_packet(b"t", bytes(100), 7)
    wire = Wire([CONNACK, *([packet] * 50)])
    world = World(wire, group_bytes=300, keep_alive=60)
    for _ in range(100):
        world.client.tick()
        world.now += 1000
    assert world.client.connected and world.client.waiting() == 3
    assert len(wire.pieces) >= 46
    assert world.collect(lambda: not wire.pieces)[1] >= 49


def test_a_broker_that_does_not_read_its_acknowledgements_is_not_read_either():
    """Planted: acknowledgements without a bound."""
    packets = [publish_packet(b"t", b"x", 1 + number) for number in range(4_000)]
    wire = Wire([CONNACK, *packets])
    world = World(wire, tx_size=512)
    world.client.tick()
    wire.takes = 100
    for _ in range(6_000):
        world.client.tick()
        if group := world.client.take():
            world.client.acknowledge_group(group)
    assert len(wire.pieces) > 3_500
    wire.takes = 1 << 30
    world.collect(lambda: not wire.pieces and not world.client.waiting())
    assert wire.sent.endswith(acknowledgements(packets))


def test_acknowledgements_of_a_link_that_is_gone_are_not_sent_on_the_next():
    # Planted: the packet ids of the old link acknowledge messages of the new one.
    first = Wire([CONNACK, publish_packet(b"t", b"x", 7), None, ConnectionResetError("cut")])
    second = Wire([encoder.connack(True), None, None])
    world = World(first, second)
    while not world.client.waiting():
        world.client.tick()
    group = world.client.take()
    while len(world.used) < 2 or not world.client.connected:
        world.client.tick()
    assert group.packets == publish_packet(b"t", b"x", 7)
    assert not world.client.acknowledge_group(group)
    assert not world.client.acknowledge_group(group)
    world.client.tick()
    assert b"\x40\x02" not in second.sent


def test_messages_that_came_before_the_link_ended_are_taken():
    # At QoS 0 they come once. Planted: what was not taken yet ends with the link.
    wire = Wire([CONNACK, publish_packet(b"t", b"x", qos=0), None, ConnectionResetError("cut")])
    world = World(wire, Wire([CONNACK]))
    while not world.errors:
        world.client.tick()
    assert world.client.take().packets == publish_packet(b"t", b"x", qos=0)


def test_a_disk_that_takes_long_is_no_dead_link():
    """The answer to a ping counts even if it is read late."""
    wire = Wire([CONNACK, publish_packet(b"t", b"x", 7), None, None])
    world = World(wire, keep_alive=60)
    while not world.client.waiting():
        world.client.tick()
    world.now = 30_000
    world.client.tick()
    assert wire.sent.endswith(PINGREQ)
    group = world.client.take()
    wire.pieces = [PINGRESP]
    world.now = 300_000  # storing the group has taken so long
    assert world.client.acknowledge_group(group)
    world.client.tick()
    assert world.client.connected
    world.now = 340_000
    world.client.tick()
    world.now = 350_000
    world.client.tick()
    assert [error.args for error in world.errors] == [("ping_timeout",)]


def test_finish_waits_until_the_broker_has_everything():
    """Planted: the link is closed at once, which may destroy acknowledgements that the broker has not read."""
    wire = Wire([CONNACK, publish_packet(b"t", b"x", 7), None])
    world = World(wire, Wire([CONNACK]))
    while not world.client.waiting():
        world.client.tick()
    world.client.acknowledge_group(world.client.take())
    wire.pieces = [publish_packet(b"t", b"unread", 8), None]
    wire.ends = True
    assert world.client.finish(10_000)
    assert wire.sent.endswith(b"\x40\x02\x00\x07\xe0\x00")
    assert world.client.closed and not world.client.waiting()
    world.client.connect()
    world.client.tick()
    assert world.client.connected


def test_a_broker_that_does_not_answer_disconnect_delays_the_end_by_no_more_than_that():
    wire = Wire([CONNACK])
    world = World(wire)
    world.client.tick()
    assert not world.client.finish(20)
    assert world.client.closed


def test_a_subscription_below_its_qos_is_told():
    # Planted: any SUBACK without a refusal counts as granted.
    wire = Wire([CONNACK, None])
    world = World(wire)
    world.client.subscribe("a/b", 1)
    world.client.tick()
    wire.pieces = [encoder.suback(1, 0)]
    world.client.tick()
    assert [(type(error), error.args[1:]) for error in world.errors] == [(Downgraded, (b"a/b", 0))]


OLD = {
    "closes the link": ConnectionResetError("closed"),
    "answers without properties": CONNACK,
    "answers with something else": b"HTTP/1.1 400 Bad Request",
    "refuses the version": b"\x20\x02\x00\x01",
}


@pytest.mark.parametrize("answer", OLD)
def test_each_link_tries_mqtt_5_first_and_then_the_older_version(answer):
    # Planted: the version is never lowered; the newer one is never tried again.
    wires = [Wire([OLD[answer]]), Wire([CONNACK, None, ConnectionResetError("cut")]), Wire([OLD[answer]]),
             Wire([encoder.connack(True)])]  # fmt: skip
    world = World(*wires, protocol="auto")
    while len(world.used) < 4 or not world.client.connected:
        world.now += min(1000, world.client.tick())
    assert [wire.sent[8] for wire in wires] == [5, 4, 5, 4]


@pytest.mark.parametrize("answer", OLD)
def test_the_older_version_is_tried_soon_however_long_the_broker_was_away(answer):
    """A broker that knew MQTT 3.1.1 alone was reached up to two minutes after it listened again.

    Planted: it is tried at once: where one CONNECT a second is taken, neither version ever is.
    """
    away = [Wire([ssl.SSLError(1, "away")]) for _ in range(8)]
    world = World(*away, Wire([OLD[answer]]), Wire([CONNACK]), protocol="auto", random=lambda limit: limit - 1)
    while len(world.used) < 9:
        wait = world.client.tick()
        world.now += wait
    assert wait == 0 if answer == "refuses the version" else 1000 < wait < 2000
    while not world.client.connected:
        world.client.tick()
    assert [wire.sent[8] for wire in world.used[-2:]] == [5, 4]
    # If that fails too, it waits as ever.
    world = World(Wire([OLD[answer]]), Wire([ConnectionResetError("closed")]), protocol="auto", random=lambda n: n - 1)
    while len(world.errors) < 2:
        world.now += world.client.tick()
    assert world.client.wait_ms >= 1000


@pytest.mark.parametrize("failure", [None, CertificateRefused("self-signed"), ssl.SSLError(1, "handshake failure")])
def test_a_certificate_or_an_answer_that_does_not_come_is_no_sign_of_an_old_broker(failure):
    # Planted: whatever ends a link before CONNACK lowers the version.
    world = World(Wire([failure]), Wire(), protocol="auto")
    world.client.tick()
    world.now = 20_000
    while len(world.used) < 2:
        world.client.tick()
    assert [wire.sent[8] for wire in world.used] == [5, 5]


def test_a_broker_that_is_silent_at_mqtt_5_twice_is_asked_with_the_older_version():
    # As amqtt 0.12.1 is. Planted: silence alone never lowers the version, or does so at once; the newer one is never
    # tried again.
    wires = [Wire() for _ in range(4)] + [Wire([CONNACK, ConnectionResetError("cut")]), *(Wire() for _ in range(3))]
    world = World(*wires, protocol="auto")
    while len(world.used) < len(wires):
        world.client.tick()
        world.now += 1000
    assert [wire.sent[8] for wire in wires[:-1]] == [5, 5, 4, 5, 4, 5, 4]


@pytest.mark.parametrize("longest", [128_000, 5_000, 50])
def test_the_waits_have_full_jitter_up_to_1_1_2_4_and_so_on_s_and_end_at_the_longest_delay(longest):
    def refused(*_: object) -> None:
        raise ConnectionRefusedError("nobody listens")

    now = [0]
    highest = [0] * 12
    for seed in range(300):
        client = BulkClient(
            "c", "mqtt://x", transports={"mqtt": refused}, ticks=lambda: now[0], longest_delay=longest,
            random=random.Random(seed).randrange,
        )  # fmt: skip
        for turn in range(len(highest)):
            highest[turn] = max(highest[turn], client.wait_ms)
            now[0] += client.wait_ms
            client.tick()
    bounds = [min(1000 * bound, longest) for bound in (1, 1, 2, 4, 8, 16, 32, 64, 128, 128, 128, 128)]
    assert all(0.9 * bound < seen <= bound for seen, bound in zip(highest, bounds, strict=True)), highest


def test_after_a_refusal_it_waits_nearly_the_longest_delay():
    for seed in range(50):
        world = World(Wire([encoder.connack(False, 5)]), longest_delay=8000, random=random.Random(seed).randrange)
        while not world.errors:
            world.now += world.client.tick()
        assert 6000 <= world.client.wait_ms <= 8000

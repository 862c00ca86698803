"""Whatever the broker sends makes an error or a valid event: never a hang or another exception; memory is bounded."""

import gc

from fuzz_packets import BAD, ODD, OK, Eater, connack, make_stream, valid_packet, verdict
from umqtt_testkit.encoder import (
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    acknowledgement,
    encode,
    parse_publish,
    publish,
    split_packets,
    string,
)
from umqtt_testkit.portable import Rng, equal
from world import FULL, SHARE, version, with_mqtt5

from umqtt_robust.quarantine import packet_ids

HEAP = "1M"
TIMEOUT_S = 100
ROUNDS = 20000 if FULL else 2500 // SHARE


def rounds():
    return ROUNDS if FULL or version[0] == 4 else ROUNDS // 3


def check(stream, pieces):
    """Check that the client treats the stream as verdict() says; return the state."""
    eater = Eater()
    up = eater.eat([connack() + pieces[0]] + pieces[1:] if pieces else [connack()])
    messages, answers, state = verdict(stream)
    if state == ODD:
        return state
    equal(eater.messages, messages)
    packets, rest = split_packets(eater.peer.written)
    equal(rest, b"")
    # A broker that uses an alias which the client has not allowed is told so.
    sent = [(head >> 4, body[0] << 8 | body[1]) for head, body in packets[1:] if head != 0xE0]
    # The link may be closed before the last acknowledgements leave; none may be wrong.
    equal(sent, answers[: len(sent)] if state != OK else answers)
    if state == OK:
        assert up, eater.errors
    elif state == BAD:
        assert not up, "not closed"
    return state


def test_random_packets():
    # Planted: PUBLISH may have QoS 3.
    states = {}
    for seed in range(rounds()):
        rng = Rng(seed, quiet=True)
        stream = make_stream(rng)
        pieces = rng.pieces(stream) if rng.chance(50) else [stream] if stream else []
        try:
            state = check(stream, pieces)
        except BaseException:
            print("seed", seed, stream)
            raise
        states[state] = states.get(state, 0) + 1
    print(states)
    for state in (OK, BAD):
        assert states[state] > rounds() // 20, states


def test_truncated_at_every_byte_then_the_end():
    # Planted: a packet is taken for complete where the bytes end.
    for seed in range(20 if FULL else (20 if version[0] == 4 else 6) // SHARE):
        rng = Rng(seed, quiet=True)
        stream = b"".join([valid_packet(rng) for _ in range(3)])
        for at in range(len(stream)):
            eater = Eater()
            try:
                assert not eater.eat([connack() + stream[:at]], fin=True)
                messages, _, state = verdict(stream[:at])
                if state != ODD:
                    equal(eater.messages, messages)
            except BaseException:
                print("seed", seed, "at", at, stream[:at])
                raise


def test_after_any_stream_the_next_link_is_clean():
    # Planted: half a packet of the last link is joined with the first one of the next.
    clean = connack() + publish(b"t", b"after", 1, 7)
    for seed in range(rounds() // 10):
        rng = Rng(seed, quiet=True)
        eater = Eater()
        for _ in range(2 + rng.below(3)):
            eater.eat([connack() + make_stream(rng)])
        try:
            assert eater.eat([clean]) or eater.eat([clean])
            assert (b"t", b"after") in eater.messages
        except BaseException:
            print("seed", seed)
            raise


def test_the_second_opinion_knows_good_from_bad():
    # Planted: a verdict that accepts a PUBLISH whose topic name is longer than the packet.
    messages, _, state = verdict(publish(b"t", b"x"))
    equal((messages, state), ([(b"t", b"x")], OK))
    # Wildcards in a topic name do not disturb the stream.
    assert verdict(encode(0x30, string(b"a/#")))[2] == OK
    assert verdict(encode(0x30, string(b"a/b")[:-1]))[2] == BAD


def test_anything_instead_of_connack():
    # Planted: PUBLISH may come before connack().
    for seed in range(rounds() // 5):
        rng = Rng(seed, quiet=True)
        stream = make_stream(rng) if rng.chance(60) else bytes((0x20, 2, rng.below(4), rng.below(8)))
        if stream.startswith(connack()):
            continue
        accepted = stream[: len(connack())] in (connack(0), connack(1))
        eater = Eater()
        up = eater.eat([stream or connack()[:2]])
        try:
            if accepted:
                continue
            equal(eater.messages, [])
            assert not eater.client.connected
            assert not up or not split_packets(stream)[0], "the link is still open"
        except BaseException:
            print("seed", seed, stream)
            raise


def _answer(head, body):
    # Returns what a good broker answers to a packet.
    kind = head >> 4
    if kind == PINGREQ:
        return b"\xd0\0"
    if kind == PUBLISH and head & 6:
        return acknowledgement(PUBACK if head & 2 else PUBREC, parse_publish(head, body)[1])
    if kind == PUBREL:
        return acknowledgement(PUBCOMP, body[0] << 8 | body[1])
    if kind == SUBSCRIBE:
        return encode(0x90, body[:2] + (b"\0\0" if version[0] == 5 else b"\0"))
    return b""


def test_random_packets_during_work_end_in_order():
    # Planted: the count of messages in flight outlives the link.
    # With messages in flight and open requests, acknowledgements of anything must not break the client.
    for seed in range(rounds() // 10):
        rng = Rng(seed, quiet=True)
        eater = Eater()
        client = eater.client
        client.subscribe(b"t", 2)
        for i in range(6):
            client.publish(b"t", b"%d" % i, i % 3)
        pending = client.pending
        stream = make_stream(rng)
        try:
            eater.eat([connack(), stream or b"\xd0"])
            eater.eat([connack(rng.below(2)), make_stream(rng) or b"\xd0"])
            assert client.pending <= pending
            equal(sorted(client.outbox.slot_of), sorted(packet_ids(client.outbox)))
            assert 0 <= client.in_flight <= client.window, client.in_flight
            # Afterwards it works with a good broker, which also answers the client's look at whether the link is good.
            for _ in range(3):
                eater.eat([connack()])
                if client.connected:
                    break
            assert client.connected
            answered = 0
            for _ in range(40):
                packets = split_packets(eater.peer.written)[0]
                answer = b"".join([_answer(head, body) for head, body in packets[answered:]])
                answered = len(packets)
                if answer:
                    eater.peer.pieces.append(answer)
                client.tick()
            equal(client.pending, 0)
            equal(client.quarantined, 0)
        except BaseException:
            print("seed", seed, stream)
            raise


def test_memory_is_bounded():
    # Planted: the client keeps every topic name that it received.
    if not hasattr(gc, "mem_alloc"):
        return
    eater = Eater()
    used = []
    for turn in range(2):
        for seed in range(turn * 300, 300 + turn * 300):
            rng = Rng(seed, quiet=True)
            eater.eat([connack() + make_stream(rng)])
        eater.eat([connack()])
        eater.messages = eater.errors = rng = None
        gc.collect()
        used.append(gc.mem_alloc())
    assert used[1] - used[0] < 2048, used


def test_a_length_of_256_megabytes_takes_no_memory():
    # Planted: begin() allocates the whole message.
    for head in (0x30, 0x32, 0x34, 0x40, 0x90):
        eater = Eater()
        up = eater.eat([connack(), bytes((head, 0xFF, 0xFF, 0xFF, 0x7F)), b"\0\1t\0\1" + bytes(5000)])
        equal(up, head & 0xF0 == 0x30)
        equal(eater.messages, [])


test_random_packets_with_mqtt5 = with_mqtt5(test_random_packets)
test_truncated_at_every_byte_then_the_end_with_mqtt5 = with_mqtt5(test_truncated_at_every_byte_then_the_end)
test_anything_instead_of_connack_with_mqtt5 = with_mqtt5(test_anything_instead_of_connack)
test_random_packets_during_work_end_in_order_with_mqtt5 = with_mqtt5(test_random_packets_during_work_end_in_order)
test_memory_is_bounded_with_mqtt5 = with_mqtt5(test_memory_is_bounded)

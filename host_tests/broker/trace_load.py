"""A load that exercises every rule of `trace_law`, and the traced broker it runs against."""

import random
import subprocess
from pathlib import Path

import broker_mistakes
from broker_peer import Packet, Peer
from law_peer import law_peer
from trace_law import CALLS, TraceLaw
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.strace import strace_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

MESSAGES = 150
SUBSCRIBERS = {
    b"quick": {b"online"},
    b"both": {b"online", b"absent"},
    b"pair": {b"online", b"other"},
    b"twice": {b"exactly"},
    b"retained": set(),
}

MISTAKES = {
    "acknowledges before the commit": broker_mistakes.ACKNOWLEDGES_EARLY,
    "commits without syncing": broker_mistakes.DOES_NOT_SYNC,
    "takes one subscriber's acknowledgement for all": broker_mistakes.COUNTS_ONE_FOR_ALL,
    "releases what was held behind a message not yet acknowledged": broker_mistakes.RELEASES_OUT_OF_TURN,
}

# Shown by clients of MQTT 5 only.
MISTAKES_5 = {"stores no properties": broker_mistakes.FORGETS_PROPERTIES}


def trace(tmp_path: Path, seed: int, mistake: str = "", protocol_level: int = 4) -> TraceLaw:
    """Run a load against a traced broker and return what the trace shows. protocol_level: of all clients."""
    output = tmp_path / "trace"
    broker = broker_mistakes.command(mistake, "-p", "0", "--store", str(tmp_path / "b.db"))
    process = subprocess.Popen(
        [*strace_command(output, CALLS), *broker],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        load(int(process.stdout.readline().rpartition(":")[2]), random.Random(seed), protocol_level)
    finally:
        process.terminate()
        process.wait(WAIT_LIMIT_S)
        # strace has the pipe open too: its end is the end of the trace.
        process.stdout.read()
        process.stdout.close()
    law = TraceLaw(SUBSCRIBERS)
    law.read(output)
    return law


def load(port: int, rng: random.Random, protocol_level: int) -> None:
    """Publish at QoS 1 and 2 to sessions that acknowledge at once, late, and never."""

    def new_peer() -> Peer:
        return law_peer(port, protocol_level)

    with new_peer() as absent:
        absent.connect(b"absent", clean_session=False)
        absent.subscribe(b"both", 1)
        absent.disconnect()
    with new_peer() as online, new_peer() as other, new_peer() as exactly, new_peer() as publisher:
        for client, name, topics in (
            (online, b"online", (b"quick", b"both", b"pair")),
            (other, b"other", (b"pair",)),
            (exactly, b"exactly", (b"twice",)),
        ):
            client.connect(name, clean_session=False)
            for topic_name in topics:
                client.subscribe(topic_name, 2 if client is exactly else 1)
        publisher.connect(b"publisher", clean_session=False)
        number = 0
        while number < MESSAGES:
            # One topic per round, so that the recipients are known.
            topic_name = rng.choice(sorted(SUBSCRIBERS))
            count = rng.randint(1, 5)
            qos = 2 if topic_name == b"twice" else rng.choice([1, 1, 2])
            packets = []
            for _ in range(count):
                number += 1
                retain = topic_name == b"retained"
                # Of two retained messages of one topic in one transaction, only the later is written.
                name = b"retained/%d" % number if retain else topic_name
                packets.append(publisher.publish_packet(name, b"<%d>" % number, qos, number, retain=retain))
            publisher.send(b"".join(packets))
            readers = {b"quick": [online], b"both": [online], b"pair": [online, other], b"twice": [exactly]}
            to = readers.get(topic_name, [])
            # The last of two acknowledges before the publisher is answered, or only afterwards.
            late = to[1:] if rng.random() < 0.7 else []
            for reader in to[: len(to) - len(late)]:
                take(reader, count, rng)
            finish(publisher, count, qos)
            for reader in late:
                take(reader, count, rng)


def take(reader: Peer, count: int, rng: random.Random) -> None:
    """Receive `count` messages to the end, with acknowledgements one by one or together."""
    messages: list[Packet] = []
    while len(messages) < count:
        packet = reader.receive()
        if packet.kind == PUBLISH:
            messages.append(packet)
        else:
            reader.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
    acknowledgements = [encoder.acknowledgement(PUBACK if one.qos == 1 else PUBREC, one.packet_id) for one in messages]
    if rng.random() < 0.5:
        reader.send(b"".join(acknowledgements))
    else:
        for acknowledgement in acknowledgements:
            reader.send(acknowledgement)
            reader.send(encoder.pingreq())
            while (packet := reader.receive()).kind == PUBREL:
                reader.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))


def finish(publisher: Peer, count: int, qos: int) -> None:
    """Wait until the broker has completed `count` messages."""
    completed = 0
    while completed < count:
        packet = publisher.receive()
        if packet.kind == PUBREC:
            publisher.send(encoder.acknowledgement(PUBREL, packet.packet_id))
        else:
            assert packet.kind == (PUBACK if qos == 1 else PUBCOMP)
            completed += 1

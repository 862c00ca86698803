"""A bridge whose remote broker is away, slow or cut off: nothing is lost, and at QoS 2 nothing comes twice.

UMQTT_FULL_SWEEPS=1 cuts the links in more ways.
"""

import os
import random
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from bridge_parts import BridgedBroker, RemoteScript, bridge_config, far_broker, far_mosquitto, next_publish
from broker_peer import Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
CUTS = 12


def publish_all(port: int, topic: bytes, count: int, qos: int, *, first: int = 0) -> None:
    """Publish numbers, many in flight, and return once all are acknowledged."""
    with Peer(port) as peer:
        peer.connect(b"publisher of " + topic)
        done = sent = 0
        while done < count:
            while sent < count and sent - done < 20:
                peer.send(encoder.publish(topic, b"%d" % (first + sent), qos, sent % 65535 + 1))
                sent += 1
            packet = peer.receive()
            if packet.kind == PUBREC:
                peer.send(encoder.acknowledgement(PUBREL, packet.packet_id))
            else:
                assert packet.kind == (PUBACK if qos == 1 else PUBCOMP)
                done += 1


def collect(peer: Peer, count: int) -> list[int]:
    """Return the numbers that come until `count` different ones have come, and any that follow shortly after."""
    numbers: list[int] = []
    seen: set[int] = set()
    while len(seen) < count:
        number = int(peer.receive_message().payload)
        numbers.append(number)
        seen.add(number)
    numbers += [int(packet.payload) for packet in peer.flush() if packet.kind == PUBLISH]
    return numbers


def check(numbers: list[int], count: int, qos: int, seed: object = None) -> None:
    """Check that none is lost and their first arrivals are in order; at QoS 2 none may come twice."""
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == list(range(count)), seed
    if qos == 2:
        assert numbers == first_seen, (seed, "came twice")


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_published_while_the_remote_broker_is_away_arrives_in_order_when_it_is_back(
    tmp_path: Path, qos: int
) -> None:
    with far_broker() as remote, FaultProxy(("127.0.0.1", remote.port)) as proxy:
        config = bridge_config(proxy.port, f"a out {qos}")
        with BridgedBroker(config, store=str(tmp_path / "broker.db")) as broker, Peer(remote.port) as far:
            broker.wait_connected()
            far.connect(b"far")
            far.subscribe(b"a", 2)
            proxy.refuse(True)
            proxy.cut()
            broker.wait_until(lambda: not broker.view.bridges[0].connected)
            publish_all(broker.port, b"a", 500, qos)
            assert broker.status().queued == 500
            proxy.refuse(False)
            check(collect(far, 500), 500, qos)
            broker.wait_until(lambda: broker.view.bridges[0].queued == 0)


@pytest.mark.parametrize(("qos", "level"), [(1, 5), (2, 4), (1, 4), (2, 5)] if FULL else [(1, 5), (2, 4)])
@pytest.mark.parametrize("seed", [1, 2] if FULL else [1])
def test_cut_anywhere_nothing_is_lost_in_either_direction_and_at_qos_2_nothing_comes_twice(
    request: pytest.FixtureRequest, remote: int, tmp_path: Path, qos: int, level: int, seed: int
) -> None:
    ours = "ours" in request.node.name
    rng = random.Random(seed)
    count = 1500 if FULL else 1000
    with FaultProxy(("127.0.0.1", remote), seed=seed) as proxy, Peer(remote) as far:
        far.connect(b"far")
        far.subscribe(b"out", 2)
        rules = (f"out out {qos}", f"in in {qos}")
        config = bridge_config(proxy.port, *rules, restart_timeout=(0.001, 0.005), protocol_level=level)
        with BridgedBroker(config, store=str(tmp_path / "broker.db")) as broker, Peer(broker.port) as near:
            broker.wait_connected()
            near.connect(b"near")
            near.subscribe(b"in", 2)
            for _ in range(CUTS):
                proxy.cut_next(rng.randint(20, 12_000), rng.choice(("up", "down")), reset=rng.random() < 0.5)
            proxy.cut()
            threads = [
                threading.Thread(target=publish_all, args=(broker.port, b"out", count, qos)),
                threading.Thread(target=publish_all, args=(remote, b"in", count, qos)),
            ]
            for thread in threads:
                thread.start()
            outward, inward = collect(far, count), collect(near, count)
            for thread in threads:
                thread.join(WAIT_LIMIT_S)
                assert not thread.is_alive()
            check(outward, count, qos, seed)
            # mosquitto 2.0 repeats PUBLISH instead of PUBREL if the link was cut once more.
            check(inward, count, qos if ours else 1, seed)
            assert broker.status().connects > 3, "the cuts came too late to prove anything"


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_at_which_every_link_ends_is_not_overtaken_and_the_reason_names_its_topic(
    caplog: pytest.LogCaptureFixture, qos: int
) -> None:
    # Planted: the bridge keeps the client that has set the message aside.
    with RemoteScript() as remote, ExitStack() as stack:
        config = bridge_config(remote.port, f"a out {qos}", restart_timeout=(0.001, 0.005))
        broker = stack.enter_context(BridgedBroker(config))
        far = remote.accept(session_present=False)
        publish_all(broker.port, b"a", 3, qos)
        for _ in range(8):
            assert next_publish(far).payload == b"0"
            far.close()
            far = remote.accept(session_present=True)
        payloads: list[bytes] = []
        while len(payloads) < 3:
            packet = next_publish(far)
            if packet.kind == PUBREL:
                far.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
                continue
            payloads.append(packet.payload)
            far.send(encoder.acknowledgement(PUBACK if qos == 1 else PUBREC, packet.packet_id))
        far.close()
        assert payloads == [b"0", b"1", b"2"]
        assert any("ends each link at a message to b'a'" in line for line in caplog.messages)


def test_a_slow_remote_broker_makes_the_local_queue_grow_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    payload = bytes(10_000)
    with far_broker() as remote, FaultProxy(("127.0.0.1", remote.port)) as proxy:
        settings = {"store": str(tmp_path / "broker.db"), "max_inflight_messages": 20, "max_queued_in_memory": 50}
        with BridgedBroker(bridge_config(proxy.port, "a out 1", keep_alive=0), **settings) as broker:
            broker.wait_connected()
            proxy.stall(True, "up")
            with Peer(broker.port) as near, Peer(remote.port) as far:
                near.connect(b"near")
                far.connect(b"far")
                far.subscribe(b"a", 1)
                for number in range(1000):
                    near.publish(b"a", b"%d" % number + payload, 1)
                session = broker.call(lambda: broker.view.session(b"local.bridge"))
                assert broker.status().queued >= 1000
                assert len(session.queue) <= 50 and len(session.in_flight) <= 20
                proxy.stall(False, "up")
                for number in range(1000):
                    assert far.receive_message().payload == b"%d" % number + payload


def test_a_remote_broker_that_forgets_the_session_gets_every_message_and_every_subscription_again(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        mosquitto = stack.enter_context(far_mosquitto(tmp_path))
        proxy = stack.enter_context(FaultProxy(("127.0.0.1", mosquitto.port)))
        broker = stack.enter_context(BridgedBroker(bridge_config(proxy.port, "out out 1", "in in 1")))
        with Peer(broker.port) as near:
            near.connect(b"near")
            near.subscribe(b"in", 1)
            broker.wait_connected()
            for life in range(2, 5):
                proxy.refuse(True)  # until someone is there who can receive them
                mosquitto.stop(signal.SIGKILL)
                broker.wait_until(lambda: not broker.view.bridges[0].connected)
                publish_all(broker.port, b"out", 100, 1)
                mosquitto.start()
                with Peer(mosquitto.port) as far:
                    far.connect(b"far")
                    far.subscribe(b"out", 1)
                    proxy.refuse(False)
                    broker.wait_connected(life)
                    broker.wait_until(lambda: broker.view.bridges[0].queued == 0)
                    assert sorted(collect(far, 100)) == list(range(100))
                with Peer(mosquitto.port) as far:
                    far.connect(b"far")
                    far.publish(b"in", b"%d" % life, 1)
                    assert near.receive_message().payload == b"%d" % life

"""A topic that is shared in both directions does not loop."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bridge_parts import BridgedBroker, bridge_config, far_broker, far_mosquitto
from broker_peer import BrokerThread, Peer
from umqtt_broker import BrokerConfig, Listener
from umqtt_broker.core.context import BrokerContext
from umqtt_broker.routing.bridge_loops import BridgeLoops
from umqtt_broker.routing.routes5 import Route5
from umqtt_broker.sessions.session import Session
from umqtt_broker.stats import Stats
from umqtt_broker.store.memory import MemoryStore
from umqtt_testkit.ports import reserved_port


def origin(broker: BrokerThread, client_id: bytes) -> bytes | None:
    """Return the origin of a session's messages, once that and the session are known."""
    session = broker.view.session(client_id)
    return None if session is None else session.origin


def cross(broker: BridgedBroker, remote: int, qos: int) -> tuple[list[bytes], list[bytes]]:
    """Publish at either end, and return what subscribers at both ends got until all was quiet."""
    broker.wait_connected()
    with Peer(broker.port) as near, Peer(remote) as far, Peer(broker.port) as sender, Peer(remote) as far_sender:
        near.connect(b"near")
        far.connect(b"far")
        near.subscribe(b"a/#", 0)
        far.subscribe(b"a/#", 0)
        sender.connect(b"sender")
        far_sender.connect(b"far sender")
        for number in range(20):
            sender.publish(b"a/1", b"n%d" % number, qos)
            far_sender.publish(b"a/2", b"f%d" % number, qos)
        here, there = [], []
        # A QoS 0 marker that crosses in both directions comes after everything that was sent before it.
        sender.publish(b"a/1", b"end", qos)
        far_sender.publish(b"a/2", b"end", qos)
        for peer, got in ((near, here), (far, there)):
            ends = 0
            while ends < 2:
                payload = peer.receive_message().payload
                ends += payload == b"end"
                got.append(payload)
        broker.wait_until(lambda: broker.view.bridges[0].queued == 0)
        for _ in range(3):
            here += [packet.payload for packet in near.flush()]
            there += [packet.payload for packet in far.flush()]
        return here, there


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_both_brokers_share_arrives_once_at_either_end(tmp_path: Path, qos: int) -> None:
    with far_mosquitto(tmp_path) as far, BridgedBroker(bridge_config(far.port, f"a/# both {qos}")) as broker:
        for got in cross(broker, far.port, qos):
            assert len(got) == len(set(got)) + 1 == 42


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("try_private", [True, False])
def test_a_remote_broker_that_sends_back_what_it_got_starts_no_loop(qos: int, try_private: bool) -> None:
    with far_broker() as remote:
        config = bridge_config(remote.port, f"a/# both {qos}", try_private=try_private)
        with BridgedBroker(config) as broker:
            here, there = cross(broker, remote.port, qos)
            # Without the remote broker's help, what was published here comes back once, and goes no further.
            assert all(there.count(payload) == 1 for payload in there if payload != b"end"), there
            assert all(here.count(payload) <= 2 for payload in here if payload != b"end"), here
            status = broker.status()
            assert status.messages_out <= 21 and status.messages_in <= 42


@pytest.mark.parametrize("levels", [(4, 4), (5, 5), (4, 5)])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_two_brokers_that_bridge_each_other_start_no_loop_and_nothing_comes_twice(
    tmp_path: Path, qos: int, levels: tuple[Any, Any]
) -> None:
    # Planted, for level 5: a CONNACK that does not say which broker it is of.
    ports = reserved_port(), reserved_port()
    rule = f"a/# both {qos}"
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                BrokerThread(
                    BrokerConfig(
                        listeners=(Listener(port=ports[number], bridge_users=(b"*",)),),
                        store=str(tmp_path / f"{number}.db"),
                        bridges=(
                            bridge_config(
                                ports[1 - number], rule, name=f"bridge-{number}", protocol_level=levels[number]
                            ),
                        ),
                    )
                )
            )
            for number in range(2)
        ]
        for number, broker in enumerate(brokers):
            other = brokers[1 - number].broker.router.bridge_loops.broker_id
            # Each end knows the broker that it leads to.
            for client_id in (b"local.bridge-%d" % number, b"bridge-%d" % (1 - number)):
                broker.wait_until(lambda b=broker, c=client_id, o=other: origin(b, c) == o)
            broker.wait_until(lambda b=broker: b.broker.bridges.status[0].subscribed)
        here, there = [stack.enter_context(Peer(port)) for port in ports]
        senders = [stack.enter_context(Peer(port)) for port in ports]
        for reader, sender in zip((here, there), senders, strict=True):
            reader.connect(b"reader")
            reader.subscribe(b"a/#", 0)
            sender.connect(b"sender")
        for count in range(20):
            for number, sender in enumerate(senders):
                sender.publish(b"a/%d" % number, b"%d:%d" % (number, count), qos)
        wanted = sorted(b"%d:%d" % (number, count) for number in range(2) for count in range(20))
        got: list[list[bytes]] = []
        for reader in (here, there):
            payloads = [reader.receive_message().payload for _ in wanted]
            got.append(payloads)
        # A looping message would still be on its way.
        for _ in range(3):
            for broker in brokers:
                broker.wait_until(lambda b=broker: b.broker.bridges.status[0].queued == 0)
            for reader, payloads in zip((here, there), got, strict=True):
                payloads += [packet.payload for packet in reader.flush()]
        assert [sorted(payloads) for payloads in got] == [wanted, wanted]
        out = [broker.call(lambda b=broker: b.broker.bridges.status[0].messages_out) for broker in brokers]
        assert all(20 <= messages <= 25 for messages in out), out


class _CountedRoutes(list[Route5]):
    """Routes that count how often they are walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Route5]:
        self.walks += 1
        return super().__iter__()


def test_the_choice_between_bridges_walks_a_few_times_through_the_subscribers_however_many_there_are() -> None:
    # Planted: all routes are walked through for each route: a message to 40,000 of them stopped the broker for minutes.
    context = BrokerContext(BrokerConfig(), Stats(), MemoryStore())
    sessions = [Session(b"%d" % number, b"%d" % number, b"", context) for number in range(1000)]
    loops = BridgeLoops()
    for session in sessions[:500]:
        session.origin = b"other%d" % (sessions.index(session) % 250)
        loops.own(session)
    routes = _CountedRoutes(Route5(session, 1, False, b"", None) for session in sessions)
    chosen = loops.choose(routes)
    assert routes.walks <= 3
    # Of two that lead to one broker, that of the own bridge stays: here the later one.
    assert [route.session for route in chosen] == sessions[250:]

"""Limits for clients do not apply to the broker's own end of a bridge, and a bridge takes no client's place."""

from functools import partial

from bridge_parts import BridgedBroker, bridge_config, far_broker
from broker_peer import BrokerThread, Closed, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK


def test_rules_for_clients_do_not_refuse_a_bridge(start_broker) -> None:
    remote: BrokerThread = start_broker()
    config = bridge_config(remote.port, "a out 1")
    with (
        BridgedBroker(config, max_connections=1, client_id_prefixes=(b"pump-",)) as broker,
        Peer(broker.port) as near,
        Peer(remote.port) as far,
    ):
        # Before asking for the bridge, which is in this broker whether others are or not.
        near.connect(b"pump-1")
        broker.wait_connected()
        far.connect(b"far")
        far.subscribe(b"a", 1)
        near.publish(b"a", b"1", 1)
        assert far.receive_message().payload == b"1"
        with Peer(broker.port) as second:
            try:
                second.connect(b"pump-2")
            except (Closed, ConnectionError):
                pass
            else:
                raise AssertionError("max_connections lets a second client in")


def test_a_bridge_that_connects_again_finds_room_at_the_limit(start_broker) -> None:
    remote: BrokerThread = start_broker()
    with BridgedBroker(bridge_config(remote.port, "a out 1"), max_connections=1) as broker, Peer(broker.port) as near:
        near.connect(b"near")
        broker.wait_connected()
        session = broker.view.session(b"local.bridge")
        assert session is not None and session.connection is not None
        broker.call(partial(session.connection.abort, "the test"))
        broker.wait_connected(2)
        assert broker.call(lambda: broker.stats.connections) == 2


def test_no_client_gets_the_session_of_a_bridge(start_broker) -> None:
    remote: BrokerThread = start_broker()
    with BridgedBroker(bridge_config(remote.port, "a out 1")) as broker, Peer(broker.port) as near:
        broker.wait_connected()
        session = broker.view.session(b"local.bridge")
        near.send(encoder.connect(b"local.bridge", clean_session=False))
        assert near.expect(CONNACK).body == bytes((0, 2))
        near.wait_closed()
        assert broker.view.session(b"local.bridge") is session
        assert broker.stats.takeovers == 0 and broker.status().connected


def test_the_limit_of_connections_is_as_large_as_before_when_bridges_have_gone() -> None:
    with far_broker() as remote:
        config = bridge_config(remote.port, "a out 1")
        with BridgedBroker(config, max_connections=2) as broker:
            broker.wait_connected()
            for _ in range(3):
                session = broker.view.session(b"local.bridge")
                assert session is not None and session.connection is not None
                broker.call(partial(session.connection.abort, "the test"))
                broker.wait_until(lambda: broker.view.session(b"local.bridge").connection is not None)
            with Peer(broker.port) as one, Peer(broker.port) as two:
                one.connect(b"one")
                two.connect(b"two")

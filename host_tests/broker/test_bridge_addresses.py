"""A bridge with several addresses fails over, and returns to the first unless all are equal."""

import pytest
from bridge_parts import BridgedBroker, bridge_config, far_broker
from broker_peer import Peer
from umqtt_testkit.proxy import FaultProxy


@pytest.mark.parametrize("round_robin", [False, True])
def test_it_fails_over_and_returns_to_the_first_address_unless_all_are_equal(round_robin: bool) -> None:
    with (
        far_broker() as first,
        far_broker() as second,
        FaultProxy(("127.0.0.1", first.port)) as proxy,
        Peer(second.port) as far,
    ):
        far.connect(b"far")
        far.subscribe(b"a", 1)
        proxy.refuse(True)
        addresses = (("127.0.0.1", proxy.port), ("127.0.0.1", second.port))
        config = bridge_config(0, "a out 1", addresses=addresses, round_robin=round_robin)
        with BridgedBroker(config) as broker, Peer(broker.port) as near:
            broker.wait_connected()
            near.connect(b"near")
            assert broker.status().remote == f"127.0.0.1:{second.port}"
            near.publish(b"a", b"to the second", 1)
            assert far.receive_message().payload == b"to the second"
            proxy.refuse(False)
            if round_robin:
                near.publish(b"a", b"still there", 1)
                assert far.receive_message().payload == b"still there"
                assert proxy.counters.accepted == 0
            else:
                broker.wait_connected(2)
                assert broker.status().remote == f"127.0.0.1:{proxy.port}"

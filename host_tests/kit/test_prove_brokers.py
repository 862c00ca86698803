"""The brokers of a proof start, take messages, and have them again after a kill of all that belongs to them."""

from __future__ import annotations

import os

import pytest
from umqtt_kit.demo.parts import Chain
from umqtt_kit.demo.plan import RunFolder
from umqtt_kit.processes import Children
from umqtt_kit.prove.brokers import BROKERS, broker_of
from umqtt_testkit.waiting import eventually

from umqtt_cli.errors import EXIT_MISSING, KitError
from umqtt_robust import Client

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


def until(condition, *clients):
    def look():
        for client in clients:
            client.poll(20)
        return condition()

    eventually(look, "what the clients wait for")


@pytest.mark.parametrize("name", [name for name in (*BROKERS, "cloud:aws") if FULL or name != "rabbitmq"])
def test_a_broker_has_what_it_took_after_a_kill_unless_it_says_otherwise(name, tmp_path):
    broker = broker_of(name)
    (tmp_path / "logs").mkdir()
    got = []
    with Children(tmp_path / "logs") as children, RunFolder(tmp_path / "run") as folder:
        chain = Chain(children, folder, broker)
        try:
            chain.start_broker()
        except KitError as error:
            if error.exit_code != EXIT_MISSING:
                raise
            pytest.skip(str(error))
        chain.start_cloud()
        network = chain.start_network()

        def client(client_id):
            # Everybody uses the topics of board-01, as the clouds want it.
            return Client(client_id, (network.url,), clean_session=False)

        subscriber, publisher = client(b"umqtt-collector-x"), client(b"board-01")
        subscriber.on(b"fleet/board-01/telemetry", lambda topic, payload: got.append(bytes(payload)))
        subscriber.subscribe(b"fleet/board-01/telemetry", qos=1)
        until(lambda: not subscriber.subscriptions.must_send and subscriber.connected, subscriber)
        publisher.publish(b"fleet/board-01/telemetry", b"1", qos=1)
        until(lambda: got, publisher, subscriber)
        subscriber.close()
        publisher.publish(b"fleet/board-01/telemetry", b"2", qos=1)
        until(lambda: not publisher.pending, publisher)
        for child in (chain.broker, *chain.helpers.values()):
            children.kill(child)
        chain.start_broker()
        publisher.publish(b"fleet/board-01/telemetry", b"3", qos=1)
        again = client(b"umqtt-collector-x")
        again.on(b"fleet/board-01/telemetry", lambda topic, payload: got.append(bytes(payload)))
        again.subscribe(b"fleet/board-01/telemetry", qos=1)
        until(lambda: b"3" in got, again, publisher)
    assert "broker_dies" in broker.may_lose or list(dict.fromkeys(got)) == [b"1", b"2", b"3"]

"""Laws of a fleet on a cluster of somebody else's engine, as tools/clusters configures it.

NATS starts in a second; RabbitMQ takes 15 s of CPU, so it runs in tier 3 and in `make prove-cluster`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from chain import run
from engines import ENGINES, PASSWORDS, Cluster, Shards, patiently
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_robust import Client
from umqtt_robust.errors import Refused
from umqtt_robust.tls import TLS

_EACH = [pytest.param("nats"), pytest.param("rabbitmq", marks=pytest.mark.tier(3))]


@pytest.fixture(scope="module", params=_EACH)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    with Shards(tmp_path_factory.mktemp("shards")) as running:
        yield running


def test_each_client_comes_to_the_same_shard_always(shards: Shards) -> None:
    # Planted: the hash is of what the balancer cannot read any more, so it draws a broker for each connection.
    names = [f"pump-{number}" for number in range(12)]
    for name in 2 * names:
        client = Client(
            name,
            shards.url,
            username="devices",
            password=PASSWORDS["devices"],
            transports={"mqtts": TLS(str(shards.ca))},
            random=lambda n: 0,
        )
        patiently(lambda client=client: client.poll(20) and client.connected, name)
        client.disconnect()
        patiently(lambda client=client: client.poll(20) and client.closed, name)
    seen = [{name: node.log.count(f"client {name} connected") for name in names} for node in shards.nodes]
    assert all(sorted(part[name] for part in seen) == [0, 0, 0, 2] for name in names), seen
    assert all(any(part.values()) for part in seen), seen


def test_a_connect_in_pieces_is_waited_for_and_what_is_none_is_turned_away(shards: Shards) -> None:
    # Planted: the balancer looks at the first bytes alone.
    connect = encoder.connect(b"pump-7", user_name=b"devices", password=PASSWORDS["devices"].encode())
    context = ssl.create_default_context(cafile=str(shards.ca))
    for pieces, answer in (
        ([connect[:1], connect[1:9], connect[9:]], encoder.connack()),
        ([b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"], b""),
    ):
        with (
            socket.create_connection(("localhost", shards.balancer.port), WAIT_LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as link,
        ):
            for piece in pieces:
                link.sendall(piece)
            assert link.recv(4) == answer


def test_a_shard_that_is_killed_and_one_that_is_lost_for_good_cost_nothing(shards: Shards, tmp_path: Path) -> None:
    """Four paired brokers, 8 devices, a command for each at all of them."""
    # Planted: the balancer draws a broker for each connection, so that commands wait for a device at another one.
    outcome = run(shards, tmp_path, ["kill one", "lose one"], seed=1, devices=8, spark=False)
    assert outcome.acknowledged > 100 and outcome.commands > 3
    assert (outcome.lost, outcome.commands_lost) == (0, 0), outcome


@pytest.mark.parametrize("fault", ["kill one", pytest.param("kill all", marks=pytest.mark.tier(3))])
def test_nodes_that_are_killed_cost_no_reading_and_no_command(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    # Planted: devices purge the session that another node shows them; the engine keeps a session on one node alone.
    outcome = run(cluster, tmp_path, [fault], seed=1, spark=False)
    assert outcome.acknowledged > 50 and outcome.commands > 3
    assert (outcome.lost, outcome.commands_lost) == (0, 0), outcome


def test_a_wrong_password_is_refused(cluster: Cluster) -> None:
    # Planted: anonymous clients are let in; the permissions of a user are those of all.
    for username, password in ((None, None), ("devices", "guessed"), ("devices", ""), ("guest", "guest")):
        errors: list[object] = []
        client = Client(
            "pump-7",
            cluster.url,
            username=username,
            password=password,
            transports={"mqtts": TLS(str(cluster.ca))},
            random=lambda n: 0,
            on_error=errors.append,
        )

        def refused(client: Client = client, errors: list[object] = errors) -> bool:
            client.poll(20)
            assert not client.connected
            return any(isinstance(error, Refused) for error in errors)

        patiently(refused, lambda errors=errors: errors)
        client.disconnect()
        client.tick()

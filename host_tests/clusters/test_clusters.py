"""Laws of a fleet on a cluster of somebody else's engine, as tools/clusters configures it.

NATS starts in a second; RabbitMQ takes 15 s of CPU, so it runs in tier 3 and in `make prove-cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chain import run
from engines import ENGINES, Cluster, patiently

from umqtt_robust import Client
from umqtt_robust.errors import Refused
from umqtt_robust.tls import TLS

_EACH = [pytest.param("nats"), pytest.param("rabbitmq", marks=pytest.mark.tier(3))]


@pytest.fixture(scope="module", params=_EACH)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


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

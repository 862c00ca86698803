"""Laws of a fleet on a cluster of another maker's engine, as tools/clusters configures it.

NATS starts in a second. RabbitMQ takes 15 s of CPU and needs the machine for itself: one test of it runs alone at the
end of `make test`, the others in tier 3 and in `make prove-cluster`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from chain import run
from engines import ENGINES, FILES, PASSWORDS, ROOT, Cluster, RabbitMq, Shards, patiently
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
    # Planted: the hash uses a field that the balancer can no longer read, so each connection goes to a random broker.
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
    # Planted: the balancer checks only the first bytes.
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
    """Run four paired brokers with 8 devices; each command for a device is published at all brokers."""
    # Planted: the balancer sends each connection to a random broker, so that commands wait for a device at another
    # one.
    outcome = run(shards, tmp_path, ["kill one", "lose one"], seed=1, devices=8, spark=False)
    assert outcome.acknowledged > 100 and outcome.commands > 3
    assert (outcome.lost, outcome.commands_lost) == (0, 0), outcome


@pytest.mark.parametrize(
    ("cluster", "fault"),
    [
        pytest.param("nats", "kill one"),
        pytest.param("rabbitmq", "kill one", marks=pytest.mark.tier(3)),
        pytest.param("nats", "kill all", marks=pytest.mark.tier(3)),
        pytest.param("rabbitmq", "kill all", marks=pytest.mark.tier(3)),
    ],
    indirect=["cluster"],
)
def test_nodes_that_are_killed_cost_no_reading_and_no_command(cluster: Cluster, tmp_path: Path, fault: str) -> None:
    # Planted: devices purge the session that another node has for them; the engine keeps a session on one node only.
    outcome = run(cluster, tmp_path, [fault], seed=1, spark=False)
    assert outcome.acknowledged > 50 and outcome.commands > 3
    assert (outcome.lost, outcome.commands_lost) == (0, 0), outcome


@pytest.mark.tier(3)
@pytest.mark.parametrize("cluster", ["rabbitmq"], indirect=True)
def test_a_queue_that_starts_late_is_waited_for_when_leaders_are_elected(cluster: RabbitMq) -> None:
    """Planted: elect-leaders triggers the election once, which fails where the queue has not started yet."""
    node = cluster.nodes[0]
    queue = queue_of("pump-7", cluster)
    cluster.operate(node, "rabbitmqctl", "eval", f"ra:stop_server(quorum_queues, {{{queue}, node()}}).")
    # It starts again after seconds in which elect-leaders has begun, and until then no leader is known there.
    start = f"spawn(fun() -> timer:sleep(8000), ra:restart_server(quorum_queues, {{{queue}, node()}}) end)"
    cluster.operate(node, "rabbitmqctl", "eval", f"{start}, ets:delete(ra_leaderboard, {queue}).")
    assert cluster.operate(node, str(FILES / "rabbitmq" / "elect-leaders")) == "[]"


@pytest.mark.tier(3)
@pytest.mark.parametrize("cluster", ["rabbitmq"], indirect=True)
def test_a_copy_that_the_nodes_have_forgotten_runs_again_when_leaders_are_elected(cluster: RabbitMq) -> None:
    """Planted: elect-leaders does not compare RabbitMQ's list of a queue's copies with the queue's own."""
    node, lost = cluster.nodes[:2]
    queue = queue_of("pump-8", cluster)
    name = 'rabbit_misc:r(<<"/">>, queue, <<"mqtt-subscription-pump-8qos1">>)'
    # What is left when all nodes die a second after `grow`: the copy is there, and no node knows of it.
    forget = (
        "rabbit_misc:execute_mnesia_transaction(fun() -> rabbit_amqqueue:update("
        f"{name}, fun(Q) -> #{{nodes := Nodes}} = State = amqqueue:get_type_state(Q), "
        f"amqqueue:set_type_state(Q, State#{{nodes := Nodes -- [{lost.name}@localhost]}}) end) end)."
    )
    cluster.operate(lost, "rabbitmqctl", "eval", f"ra:stop_server(quorum_queues, {{{queue}, node()}}).")
    cluster.operate(node, "rabbitmqctl", "eval", forget)
    for each in cluster.nodes:
        assert cluster.operate(each, str(FILES / "rabbitmq" / "elect-leaders")) == "[]"
    known = f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), length(maps:get(nodes, amqqueue:get_type_state(Q)))."
    assert cluster.operate(node, "rabbitmqctl", "eval", known) == "3"
    assert cluster.operate(lost, "rabbitmqctl", "eval", f"is_pid(whereis({queue})).") == "true"


def queue_of(client_id: str, cluster: Cluster) -> str:
    """Make a session of a device at the first node; return the name that its queue has in Erlang."""
    client = Client(
        client_id,
        f"mqtts://localhost:{cluster.nodes[0].port}",
        clean_session=False,
        username="devices",
        password=PASSWORDS["devices"],
        transports={"mqtts": TLS(str(cluster.ca))},
    )
    client.subscribe(f"fleet/{client_id}/cmd", 1)
    patiently(lambda: (client.poll(20), client.subscribed)[1], "subscribed")
    client.disconnect()
    patiently(lambda: (client.poll(20), client.closed)[1], "closed")
    return f"'%2F_mqtt-subscription-{client_id}qos1'"


def test_a_wrong_password_is_refused(cluster: Cluster) -> None:
    # Planted: anonymous clients are accepted; every user has all permissions.
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


class Plain:
    """A client that sends raw bytes, over TLS. received: all bytes so far. is_let_in: CONNACK accepted it."""

    def __init__(self, cluster: Cluster, username: str, client_id: str) -> None:
        context = ssl.create_default_context(cafile=str(cluster.ca))
        address = ("localhost", cluster.balancer.port)
        self._link = context.wrap_socket(socket.create_connection(address, WAIT_LIMIT_S), server_hostname="localhost")
        self.received = b""
        connect = encoder.connect(
            client_id.encode(), user_name=username.encode(), password=PASSWORDS[username].encode()
        )
        self.is_let_in = self.ask(connect, encoder.connack())

    def ask(self, packet: bytes, answer: bytes) -> bool:
        """Send a packet; return True once the answer has arrived, False if the link ends first."""
        seen = len(self.received)
        try:
            self._link.sendall(packet)
            while answer not in self.received[seen:]:
                data = self._link.recv(65536)
                if not data:
                    return False
                self.received += data
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._link.close()


# Topics forbidden to a device. RabbitMQ identifies it by its client id, NATS only by its user.
_BOTH, _BY_CLIENT_ID = ("nats", "rabbitmq"), ("rabbitmq",)
_NOT_WRITTEN = [
    ("pump-7", "fleet/pump-7/cmd", _BOTH),
    ("pump-7", "fleet/pump-8/cmd", _BOTH),
    ("pump-7", "fleet/pump-8/telemetry", _BY_CLIENT_ID),
    ("pump.8", "fleet/pump-8/telemetry", _BY_CLIENT_ID),
    ("[^.]+", "fleet/pump-8/telemetry", _BY_CLIENT_ID),
]
_NOT_READ = [
    ("pump-7", "fleet/#", _BOTH),
    ("pump-7", "#", _BOTH),
    ("pump-7", "fleet/pump-8/telemetry", _BOTH),
    ("pump-7", "fleet/pump-8/cmd", _BY_CLIENT_ID),
    ("pump-7", "fleet/+/cmd", _BY_CLIENT_ID),
    ("[^.]+", "fleet/pump-8/cmd", _BY_CLIENT_ID),
    ("[^.]+", "fleet/+/cmd", _BY_CLIENT_ID),
    ("\\E[^.]+\\Q", "fleet/+/cmd", _BY_CLIENT_ID),
]


# What the firmware publishes, and what it subscribes to, below fleet/{device_id}/.
_PUBLISHES = {"telemetry", "status", "reply", "log", "reported", "update/want"}
_SUBSCRIBES = {"cmd", "desired", "update/data"}


def test_the_firmware_has_no_topics_but_these() -> None:
    # Planted: a topic is added to the firmware, and nobody gives devices the right to it.
    found: set[str] = set()
    for file in {*(ROOT / "firmware" / "app").glob("*.py")} - {ROOT / "firmware" / "app" / "cloud.py"}:
        text = file.read_text()
        found.update(re.findall(r'topic\("([a-z/]+)"\)', text))
        for leaves in re.findall(r"for leaf in \((.+)\):", text):
            found.update(re.findall(r'"([a-z/]+)"', leaves))
    assert found == _PUBLISHES | _SUBSCRIBES


@pytest.mark.parametrize("cluster", [*_EACH, "shards"], indirect=True)
def test_every_topic_of_the_firmware_is_permitted(cluster: Cluster) -> None:
    """Planted: devices may not read desired settings; the operator may not write them; no update over MQTT."""
    received: set[tuple[str, str]] = set()
    clients: list[Client] = []
    for name, user in (("pump-7", "devices"), ("operator", "operator")):
        client = Client(
            name,
            f"mqtts://localhost:{cluster.nodes[0].port}",
            username=user,
            password=PASSWORDS[user],
            transports={"mqtts": TLS(str(cluster.ca))},
            on_message=lambda topic, payload: received.add((topic.decode(), payload.decode())),
        )
        clients.append(client)
        for leaf in _SUBSCRIBES if name == "pump-7" else _PUBLISHES:
            client.subscribe(f"fleet/pump-7/{leaf}", qos=1)

    def exchanged(wanted: set[str]) -> bool:
        for client in clients:
            client.poll(20)
        return {(f"fleet/pump-7/{leaf}", leaf) for leaf in wanted} <= received

    patiently(lambda: not exchanged({"-"}) and all(client.subscribed for client in clients), received)
    for client, leaves in zip(clients, (_PUBLISHES, _SUBSCRIBES), strict=True):
        for leaf in leaves:
            client.publish(f"fleet/pump-7/{leaf}", leaf, qos=1)
    patiently(lambda: exchanged(_PUBLISHES | _SUBSCRIBES), lambda: received)
    for client in clients:
        client.disconnect()
        client.tick()


def test_a_device_writes_and_reads_no_topics_but_its_own(cluster: Cluster) -> None:
    # Planted: no topic_permissions; a client id that works as a regular expression in them.
    puback, suback = encoder.acknowledgement(encoder.PUBACK, 1), encoder.suback(1, 1)
    everything = encoder.subscribe(1, (b"fleet/#", 1))
    own_commands = encoder.subscribe(1, (b"fleet/pump-7/cmd", 1))
    own_reading = encoder.publish(b"fleet/pump-7/telemetry", b"own reading", 1, 1)
    with contextlib.ExitStack() as stack:

        def connected(username: str, client_id: str, *exchanges: tuple[bytes, bytes]) -> Plain:
            """Return a client that got these answers. An engine whose nodes hold elections may end the first ones."""

            def try_it() -> Plain | None:
                with contextlib.suppress(OSError):
                    client = stack.enter_context(contextlib.closing(Plain(cluster, username, client_id)))
                    if client.is_let_in and all(client.ask(*exchange) for exchange in exchanges):
                        return client
                return None

            return patiently(try_it, client_id)

        def only_the_own_one_arrives() -> bool:
            operator = connected("operator", "watcher", (everything, suback))
            for client_id, topic, engines in _NOT_WRITTEN:
                if cluster.engine in engines:
                    forged = encoder.publish(topic.encode(), f"forged by {client_id} for {topic}".encode(), 1, 1)
                    connected("devices", client_id).ask(forged + encoder.pingreq(), encoder.pingresp())
            connected("devices", "pump-7", (own_commands, suback), (own_reading, puback))
            arrived = operator.ask(b"", b"own reading")
            assert b"forged" not in operator.received
            # If the operator's link ended, nobody knows what would have arrived.
            return arrived

        patiently(only_the_own_one_arrives, "the operator's link ends each time")
        for client_id, topic_filter, engines in _NOT_READ:
            if cluster.engine in engines:
                # RabbitMQ ends the connection, NATS keeps it.
                curious = connected("devices", client_id)
                subscribe = encoder.subscribe(1, (topic_filter.encode(), 1))
                curious.ask(subscribe + encoder.pingreq(), encoder.pingresp())
                assert suback not in curious.received, (client_id, topic_filter)

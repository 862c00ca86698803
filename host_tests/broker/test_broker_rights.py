"""Rights, names and mount points: a client's rights follow it wherever its session goes. Mostly on both stores."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_peer import BrokerProcess, BrokerThread, Peer
from peer5 import Peer5
from umqtt_broker import BrokerConfig, Listener, Permission
from umqtt_broker.access.permission import Rights
from umqtt_broker.log import NOTICE
from umqtt_broker.protocol.reason_codes import ReasonCode
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBCOMP

MakePeer = Callable[..., Peer]


class Names(Rights):
    """Rights to read and write the names in a set; counts the questions."""

    def __init__(self, readable: set[bytes], writable: set[bytes]) -> None:
        self._readable = readable
        self._writable = writable
        self.asked = 0

    def may_publish(self, topic_name: bytes) -> bool:
        self.asked += 1
        return topic_name in self._writable

    def may_read(self, topic_name: bytes) -> bool:
        self.asked += 1
        return topic_name in self._readable


class ByName(Permission):
    """Rights by client identifier; everything for a client that is not in the table. A reload swaps tables."""

    def __init__(self, table: dict[bytes, Rights], after_reload: dict[bytes, Rights] | None = None) -> None:
        self.table = table
        self.after_reload = after_reload
        self.asked_for: list[tuple[bytes, bytes | None]] = []

    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        self.asked_for.append((client_id, username))
        return self.table.get(client_id)

    def prepare_reload(self) -> Callable[[], None]:
        return self._swap

    def _swap(self) -> None:
        if self.after_reload is not None:
            self.table = self.after_reload


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else str(tmp_path / "broker.db")


def test_nobody_gets_what_he_may_not_read_live_queued_or_retained(start_broker, store: str) -> None:
    permission = ByName({b"reader": Names({b"open", b"kept/open"}, set())})
    broker = start_broker(permission=permission, store=store)
    with Peer(broker.port) as publisher, Peer(broker.port) as reader:
        publisher.connect(b"publisher")
        for name in (b"kept/open", b"kept/secret"):
            publisher.publish(name, name, 1, retain=True)
        reader.connect(b"reader", clean_session=False)
        assert reader.subscribe(b"#", 1) == 1
        assert reader.receive_message().topic_name == b"kept/open"
        for name in (b"open", b"secret"):
            publisher.publish(name, b"live", 1)
            publisher.publish(name, b"live", 0)
        assert {reader.receive_message().topic_name for _ in range(2)} == {b"open"}
        assert reader.flush() == []
        reader.disconnect()
        for name in (b"open", b"secret"):
            publisher.publish(name, b"queued", 1)
        with Peer(broker.port) as again:
            assert again.connect(b"reader", clean_session=False)
            assert again.receive_message().topic_name == b"open"
            assert again.flush() == []


def test_a_denied_message_is_acknowledged_counted_logged_and_routed_to_nobody_nor_retained(
    start_broker, caplog
) -> None:
    caplog.set_level(NOTICE, "umqtt_broker.clients")
    rights = Names({b"a", b"b"}, {b"a"})
    broker = start_broker(permission=ByName({b"writer": rights}))
    with Peer(broker.port) as writer, Peer(broker.port) as reader:
        writer.connect(b"writer", will=(b"b", b"", 0, False))
        reader.connect(b"reader")
        reader.subscribe(b"#", 0)
        for qos in (0, 1, 2):
            writer.publish(b"a", b"allowed", qos)
            writer.publish(b"b", b"denied", qos, retain=True)
        assert [packet.payload for packet in reader.flush()] == [b"allowed"] * 3
        assert broker.call(lambda: broker.stats.denied) == 3
        assert caplog.messages.count("client writer from 127.0.0.1 may not publish to b") == 3
        assert broker.call(lambda: broker.view.retained) == []
        # An allowed name is not asked about again, a denied one is.
        assert rights.asked == 4
        writer.send(encoder.publish(b"b/#", b"", 0))
        assert writer.wait_closed() == []
    assert "the will of client writer is dropped: it may not publish to b" in caplog.messages


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_reload_changes_rights_without_dropping_a_connection(start_broker, store: str, is_replaced: bool) -> None:
    before: dict[bytes, Rights] = {b"reader": Names({b"a"}, {b"a"}), b"away": Names({b"a"}, set())}
    after: dict[bytes, Rights] = {b"reader": Names({b"b"}, {b"b"}), b"away": Names({b"b"}, set())}
    broker = start_broker(permission=ByName(before, after), store=store)
    # Reading a configuration file again makes new permissions.
    new = BrokerConfig(port=0, sys_interval=0, store=store, permission=ByName(after)) if is_replaced else None
    with Peer(broker.port) as reader, Peer(broker.port) as away, Peer(broker.port) as publisher:
        reader.connect(b"reader")
        away.connect(b"away", clean_session=False)
        publisher.connect(b"publisher")
        for client in (reader, away):
            client.subscribe(b"+", 1)
        away.disconnect()

        def publish_both() -> list[bytes]:
            for name in (b"a", b"b"):
                publisher.publish(name, b"", 1)
            reader.send(encoder.publish(b"a", b"mine", 0) + encoder.publish(b"b", b"mine", 0))
            return [reader.receive_message().topic_name for _ in range(2)]

        assert publish_both() == [b"a", b"a"]
        broker.call(lambda: broker.broker.reload(new))
        assert publish_both() == [b"b", b"b"]
        assert reader.flush() == []
        with Peer(broker.port) as again:
            assert again.connect(b"away", clean_session=False)
            # What was queued under a right that is gone stays with the broker.
            assert again.receive_message().topic_name == b"b"
            assert again.flush() == []


def test_the_user_name_of_a_persistent_session_outlives_a_restart(start_broker, tmp_path: Path) -> None:
    class ByUser(Permission):
        def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
            return Names({username or b""}, {b"a"}) if client_id == b"reader" else None

    settings = {"permission": ByUser(), "store": str(tmp_path / "broker.db")}
    with BrokerThread(BrokerConfig(port=0, **settings)) as broker, Peer(broker.port) as reader:
        packet = encoder.connect(b"reader", clean_session=False)
        user = b"\0\3ada"
        reader.send(encoder.encode(0x10, packet[2:9] + bytes((packet[9] | 0x80,)) + packet[10:] + user))
        reader.expect(CONNACK)
        reader.subscribe(b"#", 1)
    broker = start_broker(**settings)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        for name in (b"bob", b"ada"):
            publisher.publish(name, b"", 1)
    session = broker.view.session(b"reader")
    assert session is not None and (session.username, session.queued) == (b"ada", 1)


def test_what_waits_for_one_user_is_not_for_another_under_the_same_identifier(start_broker, store: str) -> None:
    class ByUser(Permission):
        def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
            return Names({username or b""}, set()) if client_id == b"shared" else None

    broker = start_broker(permission=ByUser(), store=store)

    def connect(client: Peer, name: bytes) -> bytes:
        packet = encoder.connect(b"shared", clean_session=False)
        client.send(encoder.encode(0x10, packet[2:9] + bytes((packet[9] | 0x80,)) + packet[10:] + encoder.string(name)))
        return client.expect(CONNACK).body

    with Peer(broker.port) as ada, Peer(broker.port) as bob, Peer(broker.port) as publisher, Peer(broker.port) as back:
        publisher.connect(b"publisher")
        assert connect(ada, b"ada") == b"\0\0"
        ada.subscribe(b"#", 1)
        publisher.publish(b"ada", b"1", 1)
        ada.reset()
        assert connect(back, b"ada") == b"\1\0"
        assert back.receive_message(acknowledge=False).dup
        back.reset()
        assert connect(bob, b"bob") == b"\0\0"
        publisher.publish(b"ada", b"2", 1)
        assert bob.flush() == []
        assert broker.call(lambda: broker.stats.sessions_of_others) == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_client_of_mqtt_5_publishes_below_sys(start_broker, qos: int) -> None:
    # Planted: a message with properties is not asked for its topic.
    broker = start_broker()
    state = b"$SYS/broker/connection/x/state"
    with Peer5(broker.port) as client, Peer5(broker.port) as watcher:
        watcher.connect5(b"watcher")
        watcher.subscribe5((state, 0))
        client.connect5(b"client")
        reason_code = client.publish5(state, b"1", qos, content_type=b"text/plain")
        assert broker.stats.denied == 1
        assert reason_code == (ReasonCode.NOT_AUTHORIZED if qos else 0)
        assert watcher.flush() == []


class Slow(Permission):
    """Answers a CONNECT when told to."""

    def __init__(self) -> None:
        self.decisions: dict[bytes, asyncio.Future[int]] = {}

    def connect(self, packet, peer) -> int | asyncio.Future[int]:
        if packet.client_id == b"watcher":
            return 0
        return self.decisions.setdefault(packet.client_id, asyncio.get_running_loop().create_future())


def test_bytes_behind_a_connect_wait_for_its_decision_and_nobody_else_does(start_broker) -> None:
    permission = Slow()
    broker = start_broker(permission=permission)
    with Peer(broker.port) as client, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"a", 0)
        publish = encoder.publish(b"a", b"1", 1, 1)
        client.send(encoder.connect(b"client") + publish[:5])
        broker.wait_until(lambda: b"client" in permission.decisions)
        client.send(publish[5:] + encoder.publish(b"a", b"2", 1, 2))
        assert watcher.flush() == []
        client.assert_silent()
        broker.call(lambda: permission.decisions[b"client"].set_result(0))
        assert client.expect(CONNACK).body == b"\0\0"
        assert [client.expect(PUBACK).packet_id for _ in "12"] == [1, 2]
        assert [packet.payload for packet in watcher.flush()] == [b"1", b"2"]
        # From now on it is read like every other connection.
        assert broker.call(lambda: broker.view.session(b"client").connection.backpressure) is None


@pytest.mark.parametrize(("outcome", "code"), [(5, 5), (RuntimeError("a hook with a bug"), 3)])
def test_a_late_refusal_is_answered_and_what_came_behind_the_connect_is_forgotten(start_broker, outcome, code) -> None:
    permission = Slow()
    broker = start_broker(permission=permission)
    with Peer(broker.port) as client, Peer(broker.port) as watcher:
        watcher.connect(b"watcher")
        watcher.subscribe(b"a", 0)
        client.send(encoder.connect(b"client") + encoder.publish(b"a", b"1", 1, 1))
        broker.wait_until(lambda: b"client" in permission.decisions)
        decision = permission.decisions[b"client"]
        broker.call(
            lambda: decision.set_result(outcome) if isinstance(outcome, int) else decision.set_exception(outcome)
        )
        assert client.expect(CONNACK).body == bytes((0, code))
        assert client.wait_closed() == []
        assert watcher.flush() == []


def test_the_decision_for_a_client_that_went_away_is_cancelled(start_broker) -> None:
    permission = Slow()
    broker = start_broker(permission=permission)
    with Peer(broker.port) as client:
        client.send(encoder.connect(b"client"))
        broker.wait_until(lambda: b"client" in permission.decisions)
        # Its time is over.
        broker.advance(broker.broker.config.connect_timeout + 1)
        assert client.wait_closed() == []
    broker.wait_until(lambda: permission.decisions[b"client"].cancelled())
    assert broker.call(lambda: len(broker.view.sessions)) == 0


def test_client_identifiers_must_begin_as_configured_but_for_those_the_broker_gives(start_broker) -> None:
    broker = start_broker(client_id_prefixes=(b"pump-", b"valve-"), auto_id_prefix=b"given-")
    for client_id, code in ((b"pump-1", 0), (b"valve-", 0), (b"pum", 2), (b"x-pump-", 2), (b"", 0)):
        with Peer(broker.port) as client:
            client.send(encoder.connect(client_id))
            assert client.expect(CONNACK).body == bytes((0, code))
            names = broker.call(lambda: [session.client_id for session in broker.view.sessions])
            assert code or names[-1].startswith(client_id or b"given-")


def test_each_listener_has_its_own_permission_and_its_own_limit_of_connections(start_broker) -> None:
    class Nobody(Permission):
        def connect(self, packet, peer) -> int:
            return 5

    broker = start_broker(
        listeners=(Listener(port=0, max_connections=1), Listener(port=0, permission=Nobody())), max_connections=3
    )
    first, second = ports(broker)
    with Peer(first) as client, Peer(first) as too_many, Peer(second) as refused:
        client.connect(b"client")
        assert too_many.wait_closed() == []
        refused.send(encoder.connect(b"client"))
        assert refused.expect(CONNACK).body == b"\0\5"
    broker.wait_until(lambda: broker.stats.connections == 0)
    with Peer(first) as client:
        client.connect(b"client")
    assert broker.call(lambda: broker.stats.connections_refused) == 2


# Mount points


def mounted_config(store: str = ":memory:") -> BrokerConfig:
    """Return the configuration of a plain listener and two behind mount points."""
    mounts = (b"", b"north/", b"south/")
    return BrokerConfig(listeners=tuple(Listener(port=0, mount_point=mount) for mount in mounts), store=store)


def ports(broker: BrokerThread) -> list[int]:
    """Return the ports of a broker's listeners."""
    return broker.view.listening_ports


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_behind_a_mount_point_clients_see_only_each_other_and_no_prefix(store: str, qos: int) -> None:
    with (
        BrokerThread(mounted_config(store)) as broker,
        Peer(ports(broker)[0]) as outside,
        Peer(ports(broker)[1]) as inside,
        Peer(ports(broker)[2]) as other,
        Peer(ports(broker)[1]) as publisher,
    ):
        outside.connect(b"outside")
        inside.connect(b"same", clean_session=False)
        other.connect(b"same", clean_session=False)  # takes over nobody's session
        publisher.connect(b"publisher", will=(b"will", b"gone", 0, False))
        outside.subscribe(b"#", 0)
        for client in (inside, other):
            client.subscribe(b"#", qos)
        publisher.publish(b"a", b"1", 2, retain=True)
        message = inside.receive_message()
        assert (message.topic_name, message.qos) == (b"a", qos)
        if qos == 2:
            inside.receive()
            inside.send(encoder.acknowledgement(PUBCOMP, message.packet_id))
        assert [packet.topic_name for packet in outside.flush()] == [b"north/a"]
        outside.send(encoder.publish(b"south/b", b"2", 0))
        assert other.receive_message().topic_name == b"b"
        outside.send(encoder.publish(b"north/", b"no name behind the mount point", 0))
        assert [outside.receive_message().topic_name for _ in range(2)] == [b"south/b", b"north/"]
        publisher.reset()
        assert inside.receive_message().topic_name == b"will"
        inside.subscribe(b"+", 0)
        assert inside.receive_message().topic_name == b"a"  # retained
        assert inside.flush() == other.flush() == []
        assert not broker.call(lambda: broker.stats.malformed)


def test_a_queue_behind_a_mount_point_outlives_a_restart_without_its_prefix(tmp_path: Path) -> None:
    config = mounted_config(str(tmp_path / "broker.db"))
    with BrokerThread(config) as broker, Peer(ports(broker)[1]) as inside, Peer(ports(broker)[0]) as outside:
        inside.connect(b"inside", clean_session=False)
        inside.subscribe(b"a", 1)
        inside.disconnect()
        outside.connect(b"outside")
        outside.publish(b"north/a", b"1", 1)
    with BrokerThread(config) as broker, Peer(ports(broker)[1]) as inside, Peer(ports(broker)[0]) as outside:
        outside.connect(b"outside")
        outside.publish(b"north/a", b"2", 1)
        assert inside.connect(b"inside", clean_session=False)
        assert [(m.topic_name, m.payload) for m in (inside.receive_message(), inside.receive_message())] == [
            (b"a", b"1"),
            (b"a", b"2"),
        ]


def test_an_empty_topic_name_is_malformed_behind_a_mount_point_too() -> None:
    with BrokerThread(mounted_config()) as broker, Peer(ports(broker)[1]) as client:
        client.connect(b"client")
        client.send(encoder.publish(b"", b"x", 0))
        assert client.wait_closed() == []


def test_only_the_broker_itself_publishes_under_sys(start_broker, tmp_path: Path) -> None:
    path = str(tmp_path / "broker.db")
    settings = {"store": path, "sys_interval": 0}
    with (
        BrokerThread(BrokerConfig(port=0, **settings)) as broker,
        Peer(broker.port) as forger,
        Peer(broker.port) as reader,
    ):
        forger.connect(b"forger", will=(b"$SYS/x", b"forged", 0, True))
        reader.connect(b"reader")
        reader.subscribe(b"$SYS/#", 0)
        for qos in (0, 1, 2):
            forger.publish(b"$SYS/x", b"forged", qos, retain=True)
        forger.reset()
        broker.wait_until(lambda: broker.stats.denied == 4)
        broker.call(lambda: broker.broker.router.publish_own(b"$SYS/x", b"own"))
        broker.call(broker.broker.router.flush)
        assert [packet.payload for packet in reader.flush()] == [b"own"]
        reader.subscribe(b"$SYS/x", 0)
        assert reader.receive_message().retain
    broker = start_broker(**settings)
    assert broker.call(lambda: broker.view.retained_count) == 0


# Wills


def test_after_kill_9_the_wills_of_connected_clients_are_published(tmp_path: Path) -> None:
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker:
        watcher, polite, dropped, connected, clean = (Peer(broker.port) for _ in range(5))
        watcher.connect(b"watcher", clean_session=False)
        watcher.subscribe(b"will/#", 1)
        for peer, name in ((polite, b"polite"), (dropped, b"dropped"), (connected, b"connected")):
            peer.connect(name, clean_session=False, will=(b"will/" + name, b"gone", 1, False))
        clean.connect(b"clean", will=(b"will/clean", b"gone", 1, True))
        polite.disconnect()
        dropped.reset()
        assert watcher.receive_message().topic_name == b"will/dropped"
        # Its SUBACK leaves once everything so far is safe; the will is not published again.
        watcher.subscribe(b"will/+", 1)
        broker.kill()
        for peer in (watcher, connected, clean):
            peer.close()
    for expected in ({b"will/connected", b"will/clean"}, set()):
        with BrokerProcess(store) as broker, Peer(broker.port) as watcher:
            assert watcher.connect(b"watcher", clean_session=False)
            found = {watcher.receive_message().topic_name for _ in range(len(expected))}
            assert found == expected
            # Acknowledgements lost by the kill cause repetitions, marked as such; a will published twice would not be
            # marked.
            assert all(packet.dup for packet in watcher.flush())
            watcher.close()
            broker.kill()


def test_a_will_that_may_not_be_published_is_not(start_broker) -> None:
    broker = start_broker(permission=ByName({b"client": Names(set(), set())}))
    with Peer(broker.port) as watcher, Peer(broker.port) as client:
        watcher.connect(b"watcher")
        watcher.subscribe(b"#", 0)
        client.connect(b"client", will=(b"a", b"gone", 0, False))
        client.reset()
        broker.wait_until(lambda: broker.stats.denied == 1)
        assert watcher.flush() == []
        assert broker.call(lambda: broker.stats.wills) == 0

"""New settings while the broker runs: which take effect at once, which at a restart, and which are refused."""

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from broker_certificates import Pki
from broker_peer import BrokerProcess, BrokerThread, Peer, StartBroker
from configured_broker import ConfiguredBroker
from umqtt_broker import Broker, BrokerConfig, ConfigError, Listener, Tls
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.permission import Permission
from umqtt_broker.clients import registry
from umqtt_broker.routing import router
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBLISH
from umqtt_testkit.waiting import WAIT_LIMIT_S

OPEN = "listener 0 127.0.0.1\nallow_anonymous true\n"


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """Provide certificates for this test, which it may replace."""
    return Pki(tmp_path)


def tls_link(port: int, context: ssl.SSLContext, client_id: bytes = b"visitor") -> ssl.SSLSocket:
    peer = Peer(port)
    link = context.wrap_socket(peer.socket, server_hostname="localhost")
    link.sendall(encoder.connect(client_id))
    assert link.recv(4) == b"\x20\x02\x00\x00"
    return link


def is_alive(link: ssl.SSLSocket) -> bool:
    link.sendall(encoder.pingreq())
    return link.recv(2) == b"\xd0\x00"


# In the same process


class Counting(Permission):
    """Counts the calls that it gets."""

    def __init__(self, error: str = "") -> None:
        self.reads = self.reloads = self.closed = 0
        self.error = error

    def close(self) -> None:
        self.closed += 1

    def prepare_reload(self) -> Callable[[], None]:
        self.reads += 1
        if self.error:
            raise ConfigError(self.error)
        return self.take_over

    def take_over(self) -> None:
        self.reloads += 1


def with_broker(config: BrokerConfig, check: object) -> None:
    async def run() -> None:
        async with Broker(config) as broker:
            check(broker)

    asyncio.run(run())


# Settings that only a restart changes; all others change at once.
AT_START = {"host", "port", "store", "http_host", "http_port", "http_token_file"}
OF_LISTENERS_AT_START = {"host", "port", "path", "protocol", "socket_domain", "mode", "mount_point"}

CHANGED = {
    "at_queue_limit": "drop",
    int: 1234,
    str: "changed",
    float: 1.5,
    bytes: b"changed",
}


def test_every_setting_changes_at_once_or_is_named_as_one_that_does_not() -> None:
    def check(broker: Broker) -> None:
        for one in fields(BrokerConfig):
            if one.name in ("listeners", "permission", "client_id_prefixes", "host", "port"):
                continue
            before = getattr(broker.config, one.name)
            value = (
                "drop"
                if one.name == "at_queue_limit"
                else not before
                if before in (True, False)
                else CHANGED[type(before)]
            )
            new = BrokerConfig(port=0, **{one.name: value})
            needs_restart = broker.reload(new)
            assert needs_restart == ([one.name] if one.name in AT_START else []), one.name
            assert getattr(broker.config, one.name) == (before if one.name in AT_START else value), one.name
            broker.reload(BrokerConfig(port=0))

    with_broker(BrokerConfig(port=0), check)


@pytest.mark.parametrize(
    ("name", "value"),
    [("allow_anonymous", True), ("max_connections", 5), ("origins", ("https://a",)),
     ("protocol", "websockets"), ("mount_point", b"x"), ("use_identity_as_username", True), ("auto_id_prefix", b"x"),
     ("socket_domain", "ipv4"), ("permission", Permission())],
)  # fmt: skip
def test_every_setting_of_a_listener_too_and_its_connections_see_it(name: str, value: object) -> None:
    old = Listener(port=0)

    def check(broker: Broker) -> None:
        needs_restart = broker.reload(BrokerConfig(listeners=(Listener(port=0, **{name: value}),)))
        if name in OF_LISTENERS_AT_START:
            assert needs_restart == [f"listener 0 127.0.0.1: {name}"] and getattr(old, name) != value
        else:
            assert needs_restart == [] and getattr(old, name) == value

    with_broker(BrokerConfig(listeners=(old,)), check)


def test_a_listener_that_is_new_waits_for_a_restart_and_one_that_has_moved_stays_until_then() -> None:
    def check(broker: Broker) -> None:
        new = BrokerConfig(listeners=(Listener(port=0, max_connections=3), Listener("::1", 1884)))
        assert broker.reload(new) == ["listener 0 127.0.0.2 (removed)", "listener 1884 ::1 (new)"]
        assert broker.config.listeners[0].max_connections == 3 and len(broker.addresses()) == 2

    with_broker(BrokerConfig(listeners=(Listener(port=0), Listener("127.0.0.2", 0))), check)


def test_a_removed_listener_is_closed_at_once_and_its_clients_stay(caplog: pytest.LogCaptureFixture) -> None:
    """Planted: it stays bound until the next start; its permission, still in use, is closed."""
    public = Listener(port=0, permission=(open_to_all := Counting()))
    config = BrokerConfig(listeners=(Listener(port=0), public), sys_interval=0)
    with BrokerThread(config) as broker, caplog.at_level("INFO", "umqtt_broker"):
        ports = broker.view.listening_ports
        with Peer(ports[1]) as stays, Peer(ports[0]) as other:
            stays.connect(b"stays")
            stays.subscribe(b"a", 1)
            other.connect(b"other")
            moved = BrokerConfig(listeners=(Listener(port=0), Listener("127.0.0.1", 9)), sys_interval=0)
            assert "(removed)" in str(broker.call(lambda: broker.broker.reload(moved)))
            broker.advance(100)
            assert other.flush() == [] and open_to_all.closed == 0, "it still serves"
            alone = BrokerConfig(listeners=(Listener(port=0),), sys_interval=0)
            assert broker.call(lambda: broker.broker.reload(alone)) == []
            assert broker.view.listening_ports == ports[:1] and len(broker.view.listeners) == 1
            with pytest.raises(ConnectionRefusedError):
                Peer(ports[1])
            other.publish(b"a", b"x", 1)
            assert stays.receive_message().payload == b"x"
    assert "is removed: closed; its clients stay connected" in caplog.text


def test_a_reload_that_fails_changes_nothing(pki: Pki) -> None:
    old = Listener(port=0, tls=pki.tls())
    broken = Listener(port=0, tls=Tls(certfile=pki.path("nowhere"), keyfile=pki.path("nowhere")), max_connections=3)

    def check(broker: Broker) -> None:
        with pytest.raises(ConfigError, match=r"certfile .*nowhere"):
            broker.reload(BrokerConfig(listeners=(broken,), sys_interval=77))
        with pytest.raises(ConfigError, match="max_packet_size"):
            broker.reload(
                BrokerConfig(listeners=(Listener(port=0, tls=pki.tls(), max_connections=3),), max_packet_size=0)
            )
        assert (old.max_connections, broker.config.sys_interval, broker.config.max_packet_size) == (None, 10, 16777216)

    with_broker(BrokerConfig(listeners=(old,)), check)


def test_without_new_settings_each_permission_reads_its_files_once() -> None:
    everyone, other = Counting(), Counting()

    def check(broker: Broker) -> None:
        assert broker.reload() == []
        assert (everyone.reloads, other.reloads) == (1, 1)
        other.error = "acl_file is wrong"
        with pytest.raises(ConfigError, match="acl_file"):
            broker.reload()
        # All were read, and none changed.
        assert (everyone.reads, other.reads) == (2, 2)
        assert (everyone.reloads, other.reloads) == (1, 1)
        assert (everyone.closed, other.closed) == (0, 0)

    listeners = (Listener(port=0), Listener(port=0, permission=other), Listener(port=0, permission=other))
    with_broker(BrokerConfig(listeners=listeners, permission=everyone), check)
    assert (everyone.closed, other.closed) == (1, 1)


def test_of_several_permission_files_all_change_or_none_does(tmp_path: Path) -> None:
    rules = [tmp_path / name for name in ("one.acl", "two.acl")]
    for file in rules:
        file.write_text("topic read old\n")
    one, two = (FilePermission(acl_file=str(file), allow_anonymous=True) for file in rules)

    def may_read(permission: FilePermission) -> list[bytes]:
        rights = permission.rights(b"client", None)
        assert rights is not None
        return [name for name in (b"old", b"new") if rights.may_read(name)]

    def check(broker: Broker) -> None:
        for broken, sound in (rules, rules[::-1]):
            sound.write_text("topic read new\n")
            broken.write_text("topic reed new\n")
            with pytest.raises(ConfigError, match=broken.name):
                broker.reload()
            assert (may_read(one), may_read(two)) == ([b"old"], [b"old"])
        for file in rules:
            file.write_text("topic read new\n")
        broker.reload()
        assert (may_read(one), may_read(two)) == ([b"new"], [b"new"])

    listeners = tuple(Listener(port=0, permission=permission) for permission in (one, two))
    with_broker(BrokerConfig(listeners=listeners), check)


# In a separate process, by SIGHUP


def test_sighup_changes_the_certificate_and_revokes_without_dropping_anybody(pki: Pki) -> None:
    text = (
        f"listener 0 127.0.0.1\nallow_anonymous true\n"
        f"certfile {pki.path('broker.pem')}\nkeyfile {pki.path('broker.key')}\n"
        f"require_certificate true\ncafile {pki.path('ca.pem')}\ncrlfile {pki.path('crl.pem')}\n"
    )
    with ConfiguredBroker(pki.folder / "broker.conf", text) as broker:
        link = tls_link(broker.port(), pki.context("good"), b"resident")
        before = link.getpeercert(True)
        pki.authority.sign("broker")
        pki.authority.revoke(pki.bad, pki.good)
        with tls_link(broker.port(), pki.context("good")) as unchanged:
            assert unchanged.getpeercert(True) == before
        broker.reload()
        assert is_alive(link)
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            tls_link(broker.port(), pki.context("good"))
        pki.authority.revoke()
        broker.reload()
        with tls_link(broker.port(), pki.context("good")) as renewed:
            assert renewed.getpeercert(True) != before
        assert is_alive(link)
        link.close()
        assert broker.stop() == 0


def test_sighup_with_mistakes_names_each_and_keeps_everything(tmp_path: Path) -> None:
    with ConfiguredBroker(tmp_path / "broker.conf", OPEN) as broker, Peer(broker.port()) as peer:
        peer.connect(b"peer")
        broker.reload(f"{OPEN}bogus 1\nsys_interval x\nlog_type none\n", until="reload refused")
        found = [line.split("error: ")[1] for line in broker.log if "error: " in line]
        assert [line.split(": ")[0] for line in found[:-1]] == [f"{broker.path}:{number}" for number in (3, 4)]
        assert found[-1] == "reload refused: all settings stay as they were"
        broker.path.unlink()
        broker.reload(until="reload refused")
        peer.flush()
        broker.reload(OPEN)
        assert broker.stop() == 0


def test_sighup_with_a_log_that_cannot_be_opened_changes_nothing(tmp_path: Path) -> None:
    with ConfiguredBroker(tmp_path / "broker.conf", OPEN) as broker, Peer(broker.port()) as peer:
        peer.connect(b"peer")
        changed = f"{OPEN}retain_available false\nlog_type error\nlog_dest file {tmp_path}/nowhere/log\n"
        broker.reload(changed, until="reload refused")
        named = next(line.split("error: ")[1] for line in broker.log if "error: " in line)
        assert named == f"log_dest file {tmp_path}/nowhere/log cannot be opened (No such file or directory)"
        peer.publish(b"kept", b"1", 1, retain=True)
        peer.subscribe(b"kept", 0)
        assert peer.receive_message().retain
        # Notices are still logged.
        broker.reload(OPEN)
        assert broker.stop() == 0


def test_sighup_names_what_waits_for_a_restart_and_opens_the_log_anew(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    pid_file = tmp_path / "broker.pid"
    text = f"{OPEN}log_dest file {log}\nlog_dest stderr\npid_file {pid_file}\n"
    with ConfiguredBroker(tmp_path / "broker.conf", text) as broker, Peer(broker.port()) as peer:
        peer.connect(b"peer")
        rotated = log.rename(tmp_path / "broker.log.1")
        changed = "protocol websockets\npersistence true\n"
        broker.reload(text.replace("allow_anonymous", f"{changed}allow_anonymous").replace("broker.pid", "other.pid"))
        named = sorted(line.split("warning: ")[1].split(": a change")[0] for line in broker.log if ": a change" in line)
        assert named == ["listener 0 127.0.0.1: protocol", "pid_file", "store"]
        assert "notice: reloaded" in log.read_text() and "reloaded" not in rotated.read_text()
        peer.flush()
        assert broker.stop() == 0
    assert not pid_file.exists()


def test_sighup_without_a_file_reads_certificates_and_permissions_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker.db") as broker, Peer(broker.port) as peer:
        broker.process.send_signal(signal.SIGHUP)
        peer.connect(b"peer")
        peer.flush()
        assert broker.stop() == (0, "")


def test_many_signals_at_once_are_one_reload_after_another(tmp_path: Path) -> None:
    with ConfiguredBroker(tmp_path / "broker.conf", OPEN) as broker, Peer(broker.port()) as peer:
        for _ in range(20):
            broker.process.send_signal(signal.SIGHUP)
        broker.reload(f"{OPEN}log_type all\n")
        peer.connect(b"peer")
        assert broker.stop() == 0


def test_what_is_being_read_when_the_broker_is_told_to_stop_is_not_taken_over(tmp_path: Path) -> None:
    with (
        ConfiguredBroker(tmp_path / "broker.conf", OPEN) as broker,
        Peer(broker.port(), receive_buffer=4096) as deaf,
    ):
        deaf.connect(b"deaf")
        deaf.subscribe(b"a", 0)
        # It takes a while until the broker gives up on a client that reads nothing.
        deaf.send(encoder.publish(b"a", bytes(10_000_000)))
        broker.path.unlink()
        os.mkfifo(broker.path)
        broker.process.send_signal(signal.SIGHUP)
        with broker.path.open("w") as settings:  # the pipe opens once the broker has opened it
            broker.process.terminate()
            broker.wait_for("stopping")
            settings.write(f"{OPEN}listener 0 127.0.0.2\n")
        assert broker.process.wait(WAIT_LIMIT_S) == 0
        assert not [line for line in broker.end() if "reloaded" in line or "takes effect" in line]


@pytest.mark.skipif(
    shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed: apt install mosquitto"
)
def test_sighup_reads_passwords_and_rules_again(tmp_path: Path) -> None:
    passwords, rules = tmp_path / "passwords", tmp_path / "rules"
    passwords.touch(0o600)

    def set_password(name: str, password: str) -> None:
        subprocess.run(["mosquitto_passwd", "-b", str(passwords), name, password], check=True, timeout=WAIT_LIMIT_S)

    set_password("ada", "first")
    rules.write_text("user ada\ntopic readwrite a/#\n")
    settings = f"listener 0 127.0.0.1\npassword_file {passwords}\nacl_file {rules}\n"

    def connack(password: str) -> int:
        with Peer(broker.port()) as peer:
            peer.send(connect_packet_of(b"visitor", "ada", password))
            return peer.expect(CONNACK).body[1]

    with ConfiguredBroker(tmp_path / "broker.conf", settings) as broker, Peer(broker.port()) as ada:
        ada.send(connect_packet_of(b"resident", "ada", "first"))
        assert ada.expect(CONNACK).body[1] == 0
        assert ada.subscribe(b"a/b") == 0 and ada.subscribe(b"b/b") == 0x80
        set_password("ada", "second")
        rules.write_text("user ada\ntopic readwrite b/#\n")
        assert (connack("first"), connack("second")) == (0, 4)
        broker.reload()
        assert (connack("first"), connack("second")) == (4, 0)
        assert ada.subscribe(b"a/b") == 0x80 and ada.subscribe(b"b/b") == 0
        rules.write_text("topic nonsense more nonsense\n")
        broker.reload(until="reload refused")
        assert ada.subscribe(b"b/c") == 0
        assert broker.stop() == 0


def connect_packet_of(client_id: bytes, name: str, password: str) -> bytes:
    """Return a CONNECT with credentials."""
    body = (
        b"\x00\x04MQTT\x04\xc2\x00\x00"
        + encoder.string(client_id)
        + encoder.string(name.encode())
        + encoder.string(password.encode())
    )
    return encoder.encode(0x10, body)


# Effects on connected clients


def reloaded(broker: BrokerThread, **settings: object) -> None:
    assert broker.call(lambda: broker.broker.reload(BrokerConfig(port=0, sys_interval=0, **settings))) == []


def test_limits_of_size_hold_at_once_for_who_is_connected(start_broker: StartBroker) -> None:
    broker = start_broker(sys_interval=0)
    with Peer(broker.port) as peer:
        peer.connect(b"peer")
        peer.subscribe(b"a", 0)
        reloaded(broker, max_payload_size=10)
        peer.send(encoder.publish(b"a", bytes(11)) + encoder.publish(b"a", bytes(10)))
        assert peer.receive_message().payload == bytes(10)
        reloaded(broker)
        peer.send(encoder.publish(b"a", bytes(11)))
        assert peer.receive_message().payload == bytes(11)
        reloaded(broker, max_packet_size=100)
        peer.send(encoder.publish(b"a", bytes(101)))
        peer.wait_closed()


def test_retained_messages_and_qos_0_for_the_absent_change_at_once(start_broker: StartBroker) -> None:
    broker = start_broker(sys_interval=0)
    with Peer(broker.port) as publisher:
        publisher.connect(b"publisher")
        with Peer(broker.port) as away:
            away.connect(b"away", clean_session=False)
            away.subscribe(b"a", 0)
            away.disconnect()
        reloaded(broker, retain_available=False, queue_qos0_messages=True)
        publisher.publish(b"a", b"kept", retain=True)
        assert broker.call(lambda: broker.view.retained_count) == 0
        with Peer(broker.port) as back:
            back.connect(b"away", clean_session=False)
            assert back.receive_message().payload == b"kept"


def test_a_window_that_grows_or_shrinks_counts_for_who_is_connected(start_broker: StartBroker) -> None:
    broker = start_broker(sys_interval=0, max_inflight_messages=2)
    with Peer(broker.port) as peer, Peer(broker.port) as publisher:
        peer.connect(b"peer")
        peer.subscribe(b"a", 1)
        publisher.connect(b"publisher")
        for number in range(10):
            publisher.publish(b"a", bytes([number]), 1)
        first = [peer.expect(PUBLISH) for _ in range(2)]
        assert peer.flush() == []
        reloaded(broker, max_inflight_messages=5)
        # At once: nobody has to send anything first.
        assert broker.call(lambda: list(broker.broker.router.dirty)) == []
        assert [peer.expect(PUBLISH).payload for _ in range(3)] == [bytes([number]) for number in range(2, 5)]
        peer.send(encoder.acknowledgement(PUBACK, first[0].packet_id))
        assert peer.expect(PUBLISH).payload == bytes([5])
        assert peer.flush() == []
        reloaded(broker, max_inflight_messages=1)
        peer.send(encoder.acknowledgement(PUBACK, first[1].packet_id))
        assert peer.flush() == []


class TurnCounter(Permission):
    """Counts how many rights are looked up in one turn of the event loop, at most, and in all."""

    def __init__(self) -> None:
        self.all = self.most = self._in_this_turn = 0

    def rights(self, client_id: bytes, username: bytes | None) -> None:
        if not self._in_this_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._in_this_turn += 1
        self.all += 1
        self.most = max(self.most, self._in_this_turn)

    def _end_turn(self) -> None:
        self._in_this_turn = 0


def test_the_event_loop_has_turns_while_the_rights_of_very_many_sessions_are_looked_up(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a reload looks up the rights of all sessions in one turn."""
    counter = TurnCounter()
    broker = start_broker(permission=counter)
    for number in range(30):
        with Peer(broker.port) as peer:
            peer.connect(b"%d" % number, clean_session=False)
            peer.disconnect()
    counter.all = counter.most = 0
    for module in (registry, router):
        monkeypatch.setattr(module, "SLICE", 0.0)
    broker.call(broker.broker.reload)
    broker.wait_until(lambda: counter.all == 30)
    assert counter.most == 1


class Failing(Permission):
    """A rule of somebody's own that cannot answer for one client at a reload."""

    fails = False

    def rights(self, client_id: bytes, username: bytes | None) -> None:
        if self.fails and client_id == b"2":
            raise RuntimeError("no answer")


def test_rights_that_cannot_be_looked_up_keep_no_other_work_waiting(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: what is to be done in slices waits for ever behind what has failed."""
    permission = Failing()
    broker = start_broker(permission=permission)
    peers = [Peer(broker.port) for _ in range(4)]
    for number, peer in enumerate(peers):
        peer.connect(b"%d" % number)
        peer.subscribe(b"a/%d" % number)
    for module in (registry, router):
        monkeypatch.setattr(module, "SLICE", 0.0)
    monkeypatch.setattr(router, "_FEW", 0)
    permission.fails = True
    broker.call(broker.broker.reload)
    for peer in peers:
        peer.disconnect()
    broker.wait_until(lambda: broker.view.subscription_nodes == 0)

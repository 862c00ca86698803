"""Permission by files and hooks: who gets in, reloading, and how the broker asks."""

import asyncio
import logging
import re
import sys
from pathlib import Path

import pytest
from broker_peer import Peer
from umqtt_broker import ConfigError, FilePermission, Listener, PermissionHook
from umqtt_broker import Peer as BrokerPeer
from umqtt_broker.access.blacklist import Blacklist
from umqtt_broker.access.files import file_permission
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_broker.cli.authority import Authority
from umqtt_broker.conf import load
from umqtt_broker.protocol.connect import Connect
from umqtt_broker.transport.tls import make_context
from umqtt_testkit import encoder
from umqtt_testkit.encoder import CONNACK, PUBACK, PUBREC
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.tier(0)

ACCEPTED, IDENTIFIER_REJECTED, WRONG_PASSWORD, NOT_AUTHORIZED = 0, 2, 4, 5
DOCS = Path(__file__).parents[2] / "docs" / "permission.md"


def _documented(language: str) -> str:
    """Return the only block of this language in the documentation."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return block


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    file = PasswordFile(tmp_path / "passwords")
    for username in (b"ada", b"bob"):
        file.set(username, PasswordHash.make(b"secret of " + username, 7))
    file.write()
    return str(file.path)


def _ask(
    permission: FilePermission | PermissionHook,
    client_id: bytes = b"c",
    username: bytes | None = None,
    password: bytes | None = None,
    *,
    address: str = "127.0.0.1",
    identity: str | None = None,
    listener: Listener | None = None,
) -> int:
    """Ask as the broker does; the permission is closed afterwards."""

    async def run() -> int:
        packet = Connect(4, True, 60, client_id, None, username, password)
        answer = permission.connect(packet, BrokerPeer(address, identity, listener or Listener()))
        return answer if isinstance(answer, int) else await asyncio.wait_for(answer, WAIT_LIMIT_S)

    try:
        return asyncio.run(run())
    finally:
        permission.close()


def test_only_the_right_password_lets_a_user_in(passwords: str) -> None:
    permission = FilePermission(passwords)
    assert _ask(permission, b"c", b"ada", b"secret of ada") == ACCEPTED
    assert _ask(permission, b"c", b"ada", b"secret of bob") == WRONG_PASSWORD
    assert _ask(permission, b"c", b"eve", b"secret of ada") == WRONG_PASSWORD
    assert _ask(permission, b"c", b"ada", None) == WRONG_PASSWORD
    assert _ask(permission) == NOT_AUTHORIZED
    assert _ask(permission, b"c", b"", b"") == NOT_AUTHORIZED


def test_clients_without_credentials_get_in_where_they_may(passwords: str) -> None:
    assert _ask(FilePermission(passwords, allow_anonymous=True)) == ACCEPTED
    assert _ask(FilePermission(passwords), listener=Listener(allow_anonymous=True)) == ACCEPTED
    # A wrong password is not the same as none.
    assert _ask(FilePermission(passwords, allow_anonymous=True), b"c", b"ada", b"x") == WRONG_PASSWORD
    assert _ask(FilePermission()) == NOT_AUTHORIZED
    assert _ask(FilePermission(), b"c", b"ada", b"x") == NOT_AUTHORIZED


def test_a_certificate_is_a_user_name_that_needs_no_password(passwords: str, tmp_path: Path) -> None:
    blacklist = tmp_path / "blacklist"
    blacklist.write_text("username stolen\n")
    permission = FilePermission(passwords, blacklist_file=str(blacklist), client_id_pattern="%u*")
    tls = Listener(use_identity_as_username=True, allow_anonymous=True)
    assert _ask(permission, b"pump-7", identity="pump-7", listener=tls) == ACCEPTED
    # With a certificate, the client's own claims do not count.
    assert _ask(permission, b"pump-7", b"ada", b"x", identity="pump-7", listener=tls) == ACCEPTED
    assert _ask(permission, b"ada", b"ada", b"secret of ada", identity="pump-7", listener=tls) == IDENTIFIER_REJECTED
    assert _ask(permission, b"stolen", identity="stolen", listener=tls) == NOT_AUTHORIZED
    assert _ask(permission, b"", identity=None, listener=tls) == NOT_AUTHORIZED
    assert _ask(permission, b"", b"ada", b"secret of ada", identity=None, listener=tls) == NOT_AUTHORIZED
    # On a listener that does not ask for it, a certificate is not a credential.
    assert _ask(permission, b"", identity="pump-7") == NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("pattern", "client_id", "username", "fits"),
    [
        ("pump-*", b"pump-7", None, True),
        ("pump-*", b"xpump-7", None, False),
        ("pump-[0-9]", b"pump-7", None, True),
        ("pump-[0-9]", b"pump-7\n", None, False),
        ("pump-?", b"PUMP-7", None, False),
        ("%u-*", b"ada-1", b"ada", True),
        ("%u-*", b"bob-1", b"ada", False),
        ("%u-*", b"bob-1", None, False),
        ("%u", b"ada", b"ada", True),
        ("%u", b"bob", b"*", False),
        ("%u", b"b", b"[b]", False),
        ("%u", b"?", b"?", True),
        ("pump-*", b"", None, True),
    ],
)
def test_client_identifiers_must_fit_the_pattern(
    pattern: str, client_id: bytes, username: bytes | None, fits: bool
) -> None:
    permission = FilePermission(allow_anonymous=True, client_id_pattern=pattern)
    assert _ask(permission, client_id, username, b"x") == (ACCEPTED if fits else IDENTIFIER_REJECTED)


def test_the_blacklist_refuses_names_and_addresses_and_nobody_else(tmp_path: Path, passwords: str) -> None:
    path = tmp_path / "blacklist"
    path.write_text(
        "# not these\n\nclient_id pump-7\n client_id old-* \nusername\tbob\nusername [xy]z\n"
        "address 192.0.2.0/24\naddress 2001:db8::/32\naddress 198.51.100.7\nclient_id a b\n"
    )
    blacklist = Blacklist.read(path)
    for client_id, username, address in (
        (b"pump-7", None, "127.0.0.1"),
        (b"old-", b"ada", "127.0.0.1"),
        (b"old-9", None, "127.0.0.1"),
        (b"c", b"bob", "127.0.0.1"),
        (b"c", b"yz", "127.0.0.1"),
        (b"a b", None, "127.0.0.1"),
        (b"c", None, "192.0.2.255"),
        (b"c", None, "::ffff:192.0.2.1"),
        (b"c", None, "2001:db8::1"),
        (b"c", None, "2001:db8::1%eth0"),
        (b"c", None, "198.51.100.7"),
    ):
        assert blacklist.refuses(client_id, username, address), (client_id, username, address)
    for client_id, username, address in (
        (b"pump-70", b"bobby", "192.0.3.1"),
        (b"bob", b"pump-7", "198.51.100.8"),
        (b"xold-1", b"[xy]z", "::1"),
        (b"c", None, "/run/broker.sock"),
    ):
        assert not blacklist.refuses(client_id, username, address), (client_id, username, address)
    # Before the password is checked: a stolen board has the right one.
    permission = FilePermission(passwords, blacklist_file=str(path))
    assert _ask(permission, b"c", b"bob", b"secret of bob") == NOT_AUTHORIZED
    assert _ask(permission, b"c", b"ada", b"secret of ada", address="192.0.2.1") == NOT_AUTHORIZED
    assert _ask(permission, b"c", b"ada", b"secret of ada") == ACCEPTED


@pytest.mark.parametrize("line", ["pump-7", "client_id", "clientid x", "address 300.0.0.1", "address 192.0.2.1/24"])
def test_a_malformed_line_of_the_blacklist_is_refused_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "blacklist"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: ")):
        Blacklist.read(path)


def test_a_blacklist_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: cannot read"):
        Blacklist.read(tmp_path / "nowhere")
    (tmp_path / "latin").write_bytes(b"username \xe9lan\n")
    with pytest.raises(ConfigError, match=r"latin: .*UTF-8"):
        Blacklist.read(tmp_path / "latin")


@pytest.mark.parametrize("bad", ["passwords", "acl", "blacklist"])
def test_a_bad_file_leaves_all_rules_as_they_were(tmp_path: Path, passwords: str, bad: str) -> None:
    acl, blacklist = tmp_path / "acl", tmp_path / "blacklist"
    acl.write_text("topic a\n")
    blacklist.write_text("client_id x\n")
    permission = FilePermission(passwords, str(acl), True, blacklist_file=str(blacklist))
    # All files change, one of them to nonsense.
    PasswordFile(passwords).write()
    acl.write_text("topic b\n")
    blacklist.write_text("client_id y\n")
    (tmp_path / bad).write_text("nonsense\n")
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / bad}:1: ")):
        permission.reload()
    assert _ask(permission, b"c", b"ada", b"secret of ada") == ACCEPTED
    assert _ask(permission, b"x") == NOT_AUTHORIZED and _ask(permission, b"y") == ACCEPTED
    rights = permission.rights(b"c", None)
    assert rights is not None and rights.may_read(b"a") and not rights.may_read(b"b")
    # Once repaired, all of them count.
    (tmp_path / bad).write_text({"passwords": "", "acl": "topic b\n", "blacklist": "client_id y\n"}[bad])
    permission.reload()
    assert _ask(permission, b"c", b"ada", b"secret of ada") == WRONG_PASSWORD
    assert _ask(permission, b"x") == ACCEPTED and _ask(permission, b"y") == NOT_AUTHORIZED
    rights = permission.rights(b"c", None)
    assert rights is not None and rights.may_read(b"b") and not rights.may_read(b"a")


def test_without_an_acl_everything_is_allowed_at_no_cost(passwords: str) -> None:
    assert FilePermission(passwords).rights(b"c", b"ada") is None


def test_unsafe_settings_are_said_in_the_log(tmp_path: Path, passwords: str, caplog: pytest.LogCaptureFixture) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user ada\ntopic #\n")
    Path(passwords).chmod(0o644)
    with caplog.at_level(logging.WARNING):
        FilePermission(passwords, str(acl), allow_anonymous=True)
        assert [record.getMessage() for record in caplog.records] == [
            f"{passwords} can be read by other users — run: chmod 600 {passwords}"
        ]
        FilePermission("", str(acl), allow_anonymous=True)
    assert "any client may claim any name" in caplog.records[-1].getMessage()


# Hooks


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide the documentation's example as a module."""
    (tmp_path / "guests.py").write_text(_documented("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guests", raising=False)
    return "guests:Guests"


def test_the_example_of_the_documentation_works(example: str, passwords: str, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user ada\ntopic home/#\n")
    permission = file_permission(passwords, str(acl), permission_hook=example)
    assert isinstance(permission, PermissionHook)
    assert _ask(permission, b"c", b"guest") == ACCEPTED
    assert _ask(permission, b"c", b"ada", b"secret of ada") == ACCEPTED
    assert _ask(permission, b"c", b"ada", b"wrong") == WRONG_PASSWORD
    guest, ada = permission.rights(b"c", b"guest"), permission.rights(b"c", b"ada")
    assert guest is not None and guest.may_read(b"public/a") and not guest.may_publish(b"public/a")
    assert ada is not None and ada.may_publish(b"home/a") and not ada.may_publish(b"public/a")
    acl.write_text("user ada\ntopic public/#\n")
    permission.reload()
    ada = permission.rights(b"c", b"ada")
    assert ada is not None and ada.may_publish(b"public/a")


def test_the_rules_of_the_documentation_are_valid(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(_documented("acl"))
    (tmp_path / "blacklist").write_text(_documented("blacklist"))
    permission = FilePermission("", str(tmp_path / "acl"), blacklist_file=str(tmp_path / "blacklist"))
    rights = permission.rights(b"pump-7", b"ada")
    assert rights is not None and rights.may_publish(b"fleet/pump-7/telemetry") and not rights.may_read(b"home/safe/a")
    assert not rights.may_publish(b"fleet/pump-7/cmd")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("guests", "MODULE:CLASS"),
        (":Guests", "MODULE:CLASS"),
        ("no_such_module:Guests", "no_such_module"),
        ("guests:Nobody", "Nobody"),
        ("guests:ReadOnly", "PermissionHook"),
        ("guests:Peer", "PermissionHook"),
    ],
)
@pytest.mark.usefixtures("example")
def test_a_hook_that_is_none_is_an_error_that_names_it(name: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"permission_hook .*{named}"):
        file_permission(permission_hook=name)


# The broker's questions


def _connect_packet(client_id: bytes, username: bytes, password: bytes) -> bytes:
    head = encoder.string(b"MQTT") + b"\x04\xc2\x00\x00"
    return encoder.encode(0x10, head + encoder.string(client_id) + encoder.string(username) + encoder.string(password))


@pytest.mark.tier(1)
def test_the_broker_lets_in_by_password_and_routes_by_rights(start_broker, tmp_path: Path, passwords: str) -> None:
    acl = tmp_path / "acl"
    acl.write_text("user ada\ntopic home/#\ntopic deny home/safe\ntopic write bell\nuser bob\ntopic #\n")
    broker = start_broker(permission=FilePermission(passwords, str(acl)))
    with Peer(broker.port) as ada, Peer(broker.port) as bob, Peer(broker.port) as stranger:
        stranger.send(_connect_packet(b"stranger", b"ada", b"wrong"))
        assert stranger.expect(CONNACK).body == b"\0\x04"
        assert stranger.wait_closed() == []
        # Packets right after the CONNECT wait for the password check, and are not lost.
        ada.send(_connect_packet(b"ada", b"ada", b"secret of ada") + encoder.publish(b"home/a", b"x", 1, 9))
        assert ada.expect(CONNACK).body == b"\0\0"
        ada.expect(PUBACK, 9)
        bob.send(_connect_packet(b"bob", b"bob", b"secret of bob"))
        assert bob.expect(CONNACK).body == b"\0\0"
        assert ada.subscribe(b"#", 1) == 1
        for refused in (b"bell", b"other/#", b"home/safe", b"$SYS/#"):
            assert ada.subscribe(refused, 1) == 0x80
        assert bob.subscribe(b"bell", 0) == bob.subscribe(b"home/#", 0) == 0
        for topic_name in (b"home/safe", b"other/a", b"home/b", b"bell"):
            bob.send(encoder.publish(topic_name, b""))
        # His own messages may come after the answer to the first PINGREQ.
        his = bob.flush() + bob.flush()
        assert [packet.topic_name for packet in his] == [b"home/safe", b"home/b", b"bell"]
        assert [packet.topic_name for packet in ada.flush()] == [b"home/b"]
        ada.send(encoder.publish(b"home/safe", b"1", 1, 5) + encoder.publish(b"x", b"2", 2, 6))
        ada.send(encoder.publish(b"bell", b"3", 1, 7))
        answers = {(packet.kind, packet.packet_id) for packet in ada.flush()}
        assert answers == {(PUBACK, 5), (PUBREC, 6), (PUBACK, 7)}
        assert [packet.topic_name for packet in bob.flush()] == [b"bell"]
        assert broker.call(lambda: broker.stats.denied) == 2


def test_the_configuration_of_the_documentation_takes_the_files_of_umqtt_certs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    authority = Authority(Path("certs"))
    authority.create("fleet")
    authority.issue_broker(["localhost"])
    Path("broker.conf").write_text(_documented("conf"))
    (listener,) = load("broker.conf").broker.all_listeners()
    assert listener.use_identity_as_username and listener.tls is not None and listener.tls.require_certificate
    make_context(listener.tls)

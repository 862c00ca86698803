"""umqtt certs: handshakes prove who may speak to whom, by ssl, the broker's own TLS and real MicroPython."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from kit_command import Ended, umqtt_here
from umqtt_broker.cli.authority import Authority
from umqtt_broker.settings.broker import Tls
from umqtt_broker.transport.tls import make_context
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run
from umqtt_cli.errors import KitError

pytestmark = pytest.mark.tier(1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "certs")
    made.create("fleet")
    made.issue_broker(["localhost", "127.0.0.1", "*.fleet.example"])
    made.issue_device("pump-7")
    return made


def _certs(folder: Path, *arguments: str) -> Ended:
    return umqtt_here(folder, "certs", *arguments)


def _broker_context(authority: Authority) -> ssl.SSLContext:
    """Return the context of a listener of the broker with the authority's files."""
    folder = authority.folder
    return make_context(
        Tls(
            certfile=str(folder / "broker" / "cert.pem"),
            keyfile=str(folder / "broker" / "key.pem"),
            cafile=str(folder / "ca.pem"),
            crlfile=str(folder / "crl.pem"),
            require_certificate=True,
        )
    )


@contextlib.contextmanager
def _serving(context: ssl.SSLContext) -> Iterator[tuple[int, list[str]]]:
    """Answer one connection by echoing. Yields the port, and what the server saw: a name or an error."""
    seen: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_LIMIT_S)

        def serve() -> None:
            link, _ = listening.accept()
            link.settimeout(WAIT_LIMIT_S)
            try:
                with context.wrap_socket(link, server_side=True) as secure:
                    certificate = secure.getpeercert()
                    assert certificate is not None
                    seen.append(dict(name for group in certificate["subject"] for name in group)["commonName"])
                    secure.sendall(secure.recv(100))
            except ssl.SSLError as error:
                seen.append(str(error))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], seen
        finally:
            thread.join(WAIT_LIMIT_S)


def _speak(authority: Authority, device: Path | None, server_name: str = "localhost") -> list[str]:
    """Connect as a device; return what the broker saw of it. Raises ssl.SSLError if the broker is not genuine."""
    client = ssl.create_default_context(cafile=authority.folder / "ca.pem")
    # As strict as a client can be, because other libraries check these properties of a certificate too.
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    if device is not None:
        client.load_cert_chain(device / "cert.pem", device / "key.pem")
    with _serving(_broker_context(authority)) as (port, seen):
        link = socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S)
        # The broker's view of it is in `seen`.
        with client.wrap_socket(link, server_hostname=server_name) as secure, contextlib.suppress(OSError):
            secure.sendall(b"hello")
            secure.recv(100)
    return seen


def _crl(authority: Authority) -> x509.CertificateRevocationList:
    return x509.load_pem_x509_crl((authority.folder / "crl.pem").read_bytes())


@pytest.mark.parametrize("server_name", ["localhost", "127.0.0.1", "broker.fleet.example"])
def test_a_device_and_the_broker_know_each_other(authority: Authority, server_name: str) -> None:
    assert _speak(authority, authority.folder / "devices" / "pump-7", server_name) == ["pump-7"]


def test_a_device_finds_out_that_this_is_not_its_broker(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _speak(authority, authority.folder / "devices" / "pump-7", "elsewhere.example")
    # A device of the same authority is not a broker, whatever name it uses.
    pump = authority.folder / "devices" / "pump-7"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pump / "cert.pem", pump / "key.pem")
    client = ssl.create_default_context(cafile=authority.folder / "ca.pem")
    with _serving(context) as (port, _), socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S) as link:
        client.check_hostname = False
        with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
            client.wrap_socket(link, server_hostname="pump-7")


def test_who_shows_no_certificate_or_a_strangers_is_refused(authority: Authority, tmp_path: Path) -> None:
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in _speak(authority, None)[0]
    stranger = Authority(tmp_path / "other")
    stranger.create("fleet")
    stranger.issue_device("pump-7")
    assert "CERTIFICATE_VERIFY_FAILED" in _speak(authority, stranger.folder / "devices" / "pump-7")[0]
    assert "CERTIFICATE_VERIFY_FAILED" in _speak(authority, authority.folder / "broker")[0], "a broker is no device"


def test_a_revoked_device_is_refused_with_every_certificate_it_ever_had(authority: Authority, tmp_path: Path) -> None:
    pump, stolen = authority.folder / "devices" / "pump-7", tmp_path / "stolen"
    authority.issue_device("pump-8")
    pump.rename(stolen)
    pump.mkdir()
    authority.renew("pump-7")
    assert _speak(authority, pump) == _speak(authority, stolen) == ["pump-7"], "renewed, the old one stays valid"
    assert authority.revoke("pump-7") == 2
    for folder in (pump, stolen):
        assert "certificate revoked" in _speak(authority, folder)[0]
    assert _speak(authority, authority.folder / "devices" / "pump-8") == ["pump-8"]
    # Later revocations keep the earlier ones, in a list with a higher number.
    before = _crl(authority).extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    assert authority.revoke("pump-8") == 1 and authority.revoke("pump-7") == 0
    assert _crl(authority).extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == before + 2
    assert "certificate revoked" in _speak(authority, stolen)[0]
    with pytest.raises(KitError, match="revoked"):
        authority.renew("pump-7")
    # The board was found: it gets a new certificate, and the stolen one stays revoked.
    authority.issue_device("pump-7", force=True)
    assert _speak(authority, pump) == ["pump-7"]
    assert "certificate revoked" in _speak(authority, stolen)[0]


def test_the_revocation_list_does_not_expire_before_the_authority(authority: Authority) -> None:
    ca = x509.load_pem_x509_certificate((authority.folder / "ca.pem").read_bytes())
    assert _crl(authority).next_update_utc == ca.not_valid_after_utc
    authority.issue_device("old", days=36000)
    (issued,) = [issued for issued, _ in authority.newest() if issued.name == "old"]
    assert issued.expires == ca.not_valid_after_utc.isoformat(), "outlives its authority"


BOARD = """
import socket, sys, tls
folder, port = {folder!r}, {port}
read = lambda name: open(folder + "/" + name, "rb").read()
context = tls.SSLContext(tls.PROTOCOL_TLS_CLIENT)
context.load_verify_locations(read("ca.der"))
context.load_cert_chain(read("cert.der"), read("key.der"))
link = socket.socket()
link.connect(socket.getaddrinfo("127.0.0.1", port)[0][-1])
secure = context.wrap_socket(link, server_hostname="localhost")
secure.write(b"hello")
print(secure.read(5))
"""


def test_a_board_speaks_with_the_files_of_its_folder_alone(authority: Authority, tmp_path: Path) -> None:
    try:
        micropython = micropython_command()
    except MicroPythonMissing as error:
        pytest.skip(str(error))
    folder = authority.folder / "devices" / "pump-7"
    with _serving(_broker_context(authority)) as (port, seen):
        script = tmp_path / "board.py"
        script.write_text(BOARD.format(folder=str(folder), port=port))
        board = subprocess.run(
            [*micropython, str(script)], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
        )
    assert "b'hello'" in board.stdout, (board.stdout, board.stderr, seen)
    assert seen == ["pump-7"]


def test_private_keys_can_be_read_by_their_owner_alone(authority: Authority) -> None:
    files = [path for path in authority.folder.rglob("*") if path.is_file()]
    private = {path for path in files if "key" in path.name}
    assert len(private) == 4  # ca.key, the broker's key.pem, the device's key.pem and key.der
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if path in private else 0o644), path
        assert (b"PRIVATE" in path.read_bytes()) <= (path in private)


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ca"], "ca.key exists"),
        (["broker", "localhost"], "broker/key.pem exists"),
        (["device", "pump-7"], "pump-7/key.pem exists"),
        (["device", "a/b"], "'a/b'"),
        (["device", ".."], "'..'"),
        (["device", "+"], "'+'"),
        (["device", "broker"], "'broker'"),
        (["device", "x" * 65], "64"),
        (["broker", "mqtt://host", "--force"], "'mqtt://host'"),
        (["broker", "host:8883", "--force"], "'host:8883'"),
        (["broker"], "HOST"),
        (["revoke", "pump-9"], "'pump-9'"),
        (["revoke", "broker"], "'broker'"),
        (["renew", "pump-9"], "'pump-9'"),
        (["renew"], "--within"),
        (["ls", "--dir", "nowhere"], "umqtt certs ca"),
        (["device", "pump-9", "--dir", "nowhere"], "umqtt certs ca"),
        (["ca", "--dir", "/dev/null"], "/dev/null"),
    ],
)
@pytest.mark.usefixtures("authority")
def test_what_cannot_be_is_one_line_and_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = _contents(tmp_path)
    assert run(["certs", *arguments]) == 2
    shown, error = capsys.readouterr()
    assert shown == "" and len(error.splitlines()) == 1 and named in error and "—" in error, error
    assert _contents(tmp_path) == before


def test_the_commands_make_list_renew_and_revoke(tmp_path: Path) -> None:
    for arguments in (
        ["ca", "--name", "my fleet", "--days", "1000"],
        ["broker", "localhost", "--days", "20"],
        ["device", "pump-7", "pump-8"],
        ["revoke", "pump-8"],
    ):
        ended = _certs(tmp_path, *arguments)
        assert ended.code == 0 and ended.stdout == "", ended.stderr
    listed = [json.loads(line) for line in _certs(tmp_path, "ls", "--json").stdout.splitlines()]
    assert [(one["name"], one["kind"], one["days_left"] in (19, 20), one["revoked"]) for one in listed] == [
        ("broker", "broker", True, False),
        ("pump-7", "device", False, False),
        ("pump-8", "device", False, True),
    ]
    before = _contents(tmp_path / "certs" / "broker")
    assert "renewed broker" in _certs(tmp_path, "renew", "--within", "30").stderr
    after = _contents(tmp_path / "certs" / "broker")
    assert all(after[path] != before[path] for path in before), "a new key too"
    table = _certs(tmp_path, "ls").stdout.splitlines()
    assert "revoked" in table[3] and "valid" in table[1] and len(table) == 4
    # Another authority under the old name: certificates of the first one are no longer trusted.
    assert _certs(tmp_path, "ca", "--force").code == 0
    assert _certs(tmp_path, "ls", "--json").stdout == ""


def test_a_damaged_record_is_named_by_line(authority: Authority) -> None:
    with (authority.folder / "issued.jsonl").open("a") as index:
        index.write("{\n")
    with pytest.raises(KitError, match=r"issued.jsonl:3: "):
        authority.newest()


_ODD = {"serial": 5, "kind": "device", "name": "x", "hosts": [], "expires": "2030-01-01T00:00:00+00:00"}


@pytest.mark.parametrize("arguments", [["ls"], ["device", "pump-8"], ["revoke", "pump-7"], ["renew", "pump-7"]])
@pytest.mark.parametrize(
    "content", [b"\xff\x00garbage", None, json.dumps(_ODD).encode()], ids=["bytes", "folder", "odd"]
)
@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "crl.pem", "issued.jsonl"])
def test_garbage_in_the_folder_is_named_in_one_line(
    authority: Authority, name: str, content, arguments, capsys
) -> None:
    file = authority.folder / name
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    code = run(["certs", *arguments, "--dir", str(authority.folder)])
    out, error = capsys.readouterr()
    # A command that does not need the file works without it.
    if code:
        assert (code, out, error.count("\n")) == (2, "", 1)
        assert str(file) in error and "—" in error
    else:
        assert (name, arguments[0]) in {("ca.key", "ls"), ("ca.pem", "ls"), ("crl.pem", "device")}


@pytest.mark.parametrize("name", ["", "x" * 65, "\udcff", "a\nb"])
def test_an_authority_has_a_name_that_a_certificate_can_hold(tmp_path: Path, name: str, capsys) -> None:
    assert run(["certs", "ca", "--dir", str(tmp_path / "certs"), "--name", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_devices_made_at_the_same_time_are_all_on_record(authority: Authority) -> None:
    names = [f"board-{number}" for number in range(20)]
    threads = [threading.Thread(target=authority.issue_device, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_LIMIT_S)
    assert {issued.name for issued, _ in authority.newest()} == {"broker", "pump-7", *names}


@pytest.mark.parametrize("arguments", [["--help"], ["certs", "--help"], ["passwd", "--help"]])
def test_help_does_not_wait_for_what_the_work_needs(arguments: list[str]) -> None:
    program = (
        "import sys; from umqtt_cli.__main__ import run\n"
        f"assert run({arguments!r}) == 0\n"
        "slow = {'cryptography', 'umqtt_broker.broker', 'umqtt_broker.cli.authority', 'rich.table'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=True
    )
    assert ended.stdout.splitlines()[-1] == "[]"

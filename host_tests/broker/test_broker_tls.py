"""TLS: who is accepted, what a certificate identifies, and the messages about unusable files."""

import asyncio
import json
import logging
import re
import shutil
import socket
import ssl
import struct
import subprocess
import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from broker_certificates import CONNACK, Authority, Pki, answer
from broker_peer import StartBroker
from cryptography import x509
from observed import ObservedBroker
from umqtt_broker import Broker, BrokerConfig, ConfigError, Listener, Tls
from umqtt_broker.conf import load
from umqtt_broker.transport import listeners
from umqtt_broker.transport.tls import make_context, warnings_of
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S


def test_tls_carries_a_session_and_plain_bytes_are_refused_and_counted(start_broker: StartBroker, pki: Pki) -> None:
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),))
    assert broker.broker.addresses() == [f"127.0.0.1:{broker.port} (tls)"]
    assert answer(broker.port, pki.context()) == CONNACK
    with pytest.raises(ConnectionError), socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S) as plain:
        plain.sendall(encoder.connect(b"p"))
        while plain.recv(100):
            pass
        raise ConnectionError
    broker.wait_until(lambda: sum(count for name, count in broker.stats.malformed.items() if "TLS" in name) == 1)


def test_a_client_over_tls_costs_the_broker_no_more_than_64_kb(start_broker: StartBroker, pki: Pki) -> None:
    """Planted: asyncio's own buffer, of 256 KB for each connection."""
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),))
    clients = 20
    with ExitStack() as open_links:
        before = 0
        for number in range(-1, clients):
            # The first one pays for what all share.
            if number == 0:
                tracemalloc.start()
                open_links.callback(tracemalloc.stop)
                before = tracemalloc.get_traced_memory()[0]
            plain = socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S)
            link = open_links.enter_context(pki.context().wrap_socket(plain, server_hostname="localhost"))
            link.sendall(encoder.connect(b"client %d" % number))
            assert link.recv(4) == CONNACK
        each = (tracemalloc.get_traced_memory()[0] - before) / clients
    assert each < 64 * 1024


@pytest.mark.parametrize("require_certificate", [False, True])
def test_a_chain_that_cafile_completes_is_sent(
    start_broker: StartBroker, pki: Pki, tmp_path: Path, require_certificate: bool
) -> None:
    """certfile contains only the leaf, cafile its issuers. Planted: cafile is read only with require_certificate."""
    between = Authority(tmp_path, "between", pki.authority)
    between.sign("leaf")
    cafile = tmp_path / "chain.pem"
    cafile.write_bytes(between.path.read_bytes() + pki.authority.path.read_bytes())
    leaf, key = str(tmp_path / "leaf.pem"), str(tmp_path / "leaf.key")
    tls = Tls(certfile=leaf, keyfile=key, cafile=str(cafile), require_certificate=require_certificate)
    broker = start_broker(listeners=(Listener(port=0, tls=tls),))
    # The client knows only the root.
    assert answer(broker.port, pki.context("good" if require_certificate else "")) == CONNACK


def test_tls_of_the_lowest_version_is_let_in(start_broker: StartBroker, pki: Pki) -> None:
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls(tls_version="tlsv1.3")),))
    assert answer(broker.port, pki.context()) == CONNACK


@pytest.mark.parametrize(
    ("certificate", "options", "alert", "reason"),
    [
        ("", {}, "CERTIFICATE_REQUIRED", "no certificate"),
        ("bad", {}, "CERTIFICATE_REVOKED", "its certificate is not valid (certificate revoked)"),
        ("expired", {}, "CERTIFICATE_EXPIRED", "its certificate is not valid (certificate has expired)"),
        ("stranger", {}, "UNKNOWN_CA", "its certificate is not valid (unable to get local issuer certificate)"),
        ("good", {"tls_version": "tlsv1.3"}, "PROTOCOL_VERSION", "its version of TLS is below tls_version"),
        ("good", {"ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}, "HANDSHAKE_FAILURE", "none of its ciphers is allowed"),
    ],
)
def test_a_handshake_that_fails_sends_its_alert_and_is_logged(
    start_broker: StartBroker,
    pki: Pki,
    caplog: pytest.LogCaptureFixture,
    certificate: str,
    options: dict[str, str],
    alert: str,
    reason: str,
) -> None:
    """Planted: the socket is closed without the alert, which clients take for a wrong port."""
    caplog.set_level(logging.INFO)
    tls = pki.tls(cafile=pki.path("ca.pem"), crlfile=pki.path("crl.pem"), require_certificate=True, **options)
    broker = start_broker(listeners=(Listener(port=0, tls=tls),))
    context = pki.context(certificate)
    if options:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError, match=f"ALERT_{alert}"):
        answer(broker.port, context, b"")  # with TLS 1.3 the client learns of the refusal when it reads
    broker.wait_until(lambda: any("TLS" in one for one in broker.stats.malformed))
    broker.wait_until(lambda: bool(caplog.records))
    assert f"a client from 127.0.0.1 refused: TLS handshake failed: {reason}" in caplog.messages


@pytest.mark.parametrize("protocol", ["mqtt", "websockets"])
@pytest.mark.parametrize(
    ("certificate", "is_let_in"), [("good", True), ("", False), ("bad", False), ("expired", False), ("stranger", False)]
)
def test_only_a_valid_certificate_that_is_not_revoked_lets_in(
    start_broker: StartBroker, pki: Pki, certificate: str, is_let_in: bool, protocol: str
) -> None:
    tls = pki.tls(cafile=pki.path("ca.pem"), crlfile=pki.path("crl.pem"), require_certificate=True)
    broker = start_broker(listeners=(Listener(port=0, tls=tls, protocol=protocol),))
    from websocket_peer import request

    packet = request() if protocol == "websockets" else encoder.connect(b"p")
    if is_let_in:
        assert answer(broker.port, pki.context(certificate), packet)[:4] in (CONNACK, b"HTTP")
        return
    # With TLS 1.3 the client learns of the refusal when it reads.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        assert answer(broker.port, pki.context(certificate), packet) == b""
        raise ConnectionError
    broker.wait_until(lambda: any("TLS" in reason for reason in broker.stats.malformed))


def test_a_client_that_never_shakes_hands_is_cut_in_time(start_broker: StartBroker, pki: Pki) -> None:
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),), connect_timeout=0.1)
    with socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S) as silent, suppress(ConnectionResetError):
        assert silent.recv(100) == b""
    broker.wait_until(lambda: broker.stats.connect_timeouts == 1)


def test_a_handshake_that_hangs_holds_nobody_up(start_broker: StartBroker, pki: Pki) -> None:
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),))
    with ExitStack() as stack:
        # More than the limit of concurrent handshakes.
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S))
        assert answer(broker.port, pki.context()) == CONNACK


def test_the_oldest_of_very_many_that_say_nothing_makes_room_for_the_newest(
    start_broker: StartBroker, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_MAX_WAITING", 3)
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),))
    broker.stop_clock()
    with ExitStack() as stack:
        silent = []
        for _ in range(4):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S)))
        # All are from one address: the newest has to wait until the others have had time to begin.
        assert silent.pop().recv(1) == b""
        broker.advance(1.5)
        silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S)))
        assert silent[0].recv(1) == b""
        assert answer(broker.port, pki.context()) == CONNACK
        assert silent[1].recv(1) == b""
        # Other clients can still begin.
        with pki.context().wrap_socket(silent[3], server_hostname="localhost") as link:
            link.sendall(encoder.connect(b"late"))
            assert link.recv(4) == CONNACK
        assert broker.stats.connections_refused == 3 and broker.stats.connect_timeouts == 0


def test_more_handshakes_than_there_may_be_at_once_are_all_made(
    start_broker: StartBroker, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "_MAX_HANDSHAKES", 2)
    broker = start_broker(listeners=(Listener(port=0, tls=pki.tls()),))

    def connect(number: int) -> bytes:
        return answer(broker.port, pki.context(), encoder.connect(b"%d" % number))

    with ThreadPoolExecutor(10) as clients:
        assert list(clients.map(connect, range(20))) == [CONNACK] * 20


def test_a_broker_that_stops_leaves_no_handshake_behind(pki: Pki) -> None:
    async def run() -> None:
        async with Broker(BrokerConfig(listeners=(Listener(port=0, tls=pki.tls()),))) as broker:
            silent = [await asyncio.open_connection("127.0.0.1", broker.port) for _ in range(3)]
            context = pki.context()
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", broker.port, ssl=context, server_hostname="localhost"
            )
            writer.write(encoder.connect(b"p"))
            assert await reader.readexactly(4) == CONNACK
            writer.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for _, one in silent:
            one.close()

    asyncio.run(run())


def test_the_socket_of_a_client_that_is_gone_before_its_handshake_is_closed(pki: Pki) -> None:
    """Planted: getpeername() fails, and the garbage collector closes the socket."""

    async def run() -> None:
        async with Broker(BrokerConfig(listeners=(Listener(port=0, tls=pki.tls()),))) as broker:
            with socket.create_connection(("127.0.0.1", broker.port), WAIT_LIMIT_S) as client:
                client.send(b"\x16")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            async with asyncio.timeout(WAIT_LIMIT_S):
                while not broker.stats.malformed:
                    await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        asyncio.run(run())
    assert not warned


Break = Callable[[Pki, Path], Tls]
UNUSABLE: list[tuple[Break, str]] = [
    (lambda pki, _: Tls(certfile=pki.path("broker.pem")), "TLS needs both certfile and keyfile"),
    (lambda pki, _: Tls(certfile=pki.path("x"), keyfile=pki.path("broker.key")), "certfile .*x cannot be read"),
    (lambda pki, _: Tls(certfile=pki.path("broker.pem"), keyfile=pki.path("x")), "keyfile .*x cannot be read"),
    (lambda pki, _: Tls(certfile=pki.path("broker.pem"), keyfile=pki.path("good.key")), "do not belong together"),
    (lambda pki, _: Tls(certfile=pki.path("broker.key"), keyfile=pki.path("broker.key")), "cannot be used: not PEM"),
    (lambda pki, _: pki.tls(require_certificate=True), "needs cafile or capath"),
    (lambda pki, _: pki.tls(require_certificate=True, cafile=pki.path("x")), "cafile .*x cannot be read"),
    (lambda pki, _: pki.tls(require_certificate=True, cafile=pki.path("broker.key")), "cafile .* is not PEM"),
    (lambda pki, _: pki.tls(require_certificate=True, capath=pki.path("x")), "capath .*x is not a folder"),
    (
        lambda pki, _: pki.tls(require_certificate=True, cafile=pki.path("ca.pem"), crlfile=pki.path("ca.pem")),
        "crlfile .* has no revocation list",
    ),
    (lambda pki, _: pki.tls(ciphers="NONSENSE"), "OpenSSL knows none"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "reason"), UNUSABLE)
def test_files_that_cannot_be_used_are_named(pki: Pki, tmp_path: Path, broken: Break, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        make_context(broken(pki, tmp_path))
    assert "\n" not in str(caught.value)


def test_an_encrypted_key_is_never_asked_for_on_the_terminal(pki: Pki, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(pki.path("broker.key")).read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="is encrypted"):
        make_context(Tls(certfile=pki.path("broker.pem"), keyfile=str(encrypted)))


def test_a_key_that_others_can_read_is_warned_of(pki: Pki, tmp_path: Path) -> None:
    """Planted: nothing is warned of where the end of the certificate, in OpenSSL's own format, cannot be read."""
    key, trusted = Path(shutil.copy(pki.path("broker.key"), tmp_path)), tmp_path / "trusted.pem"
    trusted.write_text(Path(pki.path("broker.pem")).read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    for certificate in (pki.path("broker.pem"), str(trusted)):
        tls = Tls(certfile=certificate, keyfile=str(key))
        make_context(tls)
        for mode, is_warned in ((0o600, False), (0o640, False), (0o644, True), (0o660, True)):
            key.chmod(mode)
            assert bool(warnings_of(tls)) == is_warned, oct(mode)


def test_a_certificate_that_expires_soon_is_warned_of_and_its_end_is_a_metric_until_it_is_renewed(
    tmp_path: Path,
) -> None:
    """Planted: the metric is that of the start after a reload."""
    mine = Authority(tmp_path)
    mine.sign("broker")
    settings = tmp_path / "broker.conf"
    lines = ["listener 0 127.0.0.1", "certfile broker.pem", "keyfile broker.key", "allow_anonymous true"]
    settings.write_text("\n".join(lines).replace("broker.", f"{tmp_path}/broker."))
    tls = Tls(certfile=str(tmp_path / "broker.pem"), keyfile=str(tmp_path / "broker.key"))
    with ObservedBroker(tmp_path, listeners=(Listener(port=0, tls=tls),)) as broker:
        for days in (29, 90):
            end = mine.sign("broker", days=days).not_valid_after_utc
            warnings = load(str(settings)).warnings
            assert [f"expires on {end:%Y-%m-%d}" in text and ":2: " in text for text in warnings] == [True] * (
                days < 30
            )
            broker.call(lambda: broker.broker.reload())
            metrics = broker.request("GET", "/metrics", headers={"Accept": "text/plain"}).body.decode()
            (told,) = re.findall(r"^umqtt_broker_certificate_expires_seconds\{.*\} (.*)$", metrics, re.MULTILINE)
            assert float(told) == end.timestamp()
            (listed,) = json.loads(broker.request("GET", "/api/broker").body)["listeners"]
            assert listed["certificate_expires_at"] == end.timestamp()


# Whom a certificate identifies


class _Transport(asyncio.Transport):
    def __init__(self, *names: tuple[str, str]) -> None:
        super().__init__({"peercert": {"subject": tuple((name,) for name in names)}})


@pytest.mark.parametrize(
    ("names", "common_name", "subject"),
    [
        (
            (("countryName", "CH"), ("organizationName", "Fleet"), ("commonName", "pump-7")),
            "pump-7",
            "CN=pump-7,O=Fleet,C=CH",
        ),
        ((("commonName", "a,CN=admin"),), "a,CN=admin", r"CN=a\,CN=admin"),
        ((("commonName", '#x"<>;+\\ '),), '#x"<>;+\\ ', """CN=\\#x\\"\\<\\>\\;\\+\\\\\\ """),
        ((("organizationName", "Fleet"),), None, "O=Fleet"),
        ((), None, None),
    ],
)
def test_the_identity_is_the_common_name_or_the_whole_subject(
    names: tuple[tuple[str, str], ...], common_name: str | None, subject: str | None
) -> None:
    from umqtt_broker.transport.tls import identity_of

    transport = _Transport(*names)
    assert identity_of(transport, Listener()) is None
    assert identity_of(transport, Listener(use_identity_as_username=True)) == common_name
    listener = Listener(use_identity_as_username=True, use_subject_as_username=True)
    assert identity_of(transport, listener) == subject


def test_the_subject_is_written_as_mosquitto_writes_it(pki: Pki) -> None:
    certificate = x509.load_pem_x509_certificate(Path(pki.path("good.pem")).read_bytes())
    found = subprocess.run(
        ["openssl", "x509", "-in", pki.path("good.pem"), "-noout", "-subject", "-nameopt", "RFC2253"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == f"subject={certificate.subject.rfc4514_string()}" == "subject=CN=pump-7,C=CH"

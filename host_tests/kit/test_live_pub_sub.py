"""umqtt pub and umqtt sub with the paired broker: every message once, in order; every error in one line."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import paho.mqtt.publish as paho
import pytest
from cable import broker
from guarded_broker import PASSWORD, guarded_broker
from kit_command import umqtt_command
from terminals import terminal
from umqtt_kit.commands import sub as sub_module
from umqtt_kit.mqtt import Link, explain, make_access
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.__main__ import run

pytestmark = pytest.mark.tier(1)

_WEB_PAGE = b"HTTP/1.1 400 Bad Request\r\nServer: somebody\r\n\r\n" + b"<p>What?" * 20


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with broker(tmp_path_factory.mktemp("broker")) as port:
        yield port


@pytest.fixture
def at(port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide the broker's address, which the commands know."""
    monkeypatch.setenv("UMQTT_BROKER", f"mqtt://127.0.0.1:{port}")
    return f"mqtt://127.0.0.1:{port}"


def test_a_client_id_is_used_where_the_broker_wants_a_certain_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Planted: --client-id is ignored."""
    with broker(tmp_path, "allow_anonymous true", "clientid_prefixes lab-") as port:
        at = ("--broker", f"mqtt://127.0.0.1:{port}", "--connect-timeout", "5")
        assert run(["pub", "a", "b", *at]) == 4
        assert "it does not accept the client id" in capsys.readouterr().err
        assert run(["pub", "a", "b", *at, "--client-id", "lab-1"]) == 0


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "asks for a certificate of this client — give --cert and --key"),
        ("SSLV3_ALERT_CERTIFICATE_REVOKED", "does not accept the certificate of this client (certificate revoked)"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not accept the certificate of this client (unknown ca)"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "ends the TLS handshake (protocol version) — see its log"),
        ("WRONG_VERSION_NUMBER", "is that a port for mqtts://?"),
    ],
)
def test_the_alert_of_a_broker_is_told_in_words(reason: str, said: str):
    """Planted: each failure of TLS is taken for a wrong port."""
    error = ssl.SSLError(1, "failed")
    error.reason = reason
    assert said in explain(error, 10)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"test/{request.node.name.partition('[')[0]}"


@pytest.fixture
def kept(topic: str, at: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Provide the name of a session that has subscribed to `topic` and is disconnected."""
    assert run(["sub", topic, "--session", topic, "--timeout", "0.1"]) == 0
    assert capsys.readouterr() == ("", "")
    return topic


def received(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert run(["sub", *arguments, "--timeout", str(WAIT_LIMIT_S)]) == 0
    return capsys.readouterr().out.splitlines()


def start(*arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(umqtt_command(*arguments), stdin=pipe, stdout=pipe, stderr=pipe)


@contextlib.contextmanager
def listening(topic: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `umqtt sub` that prints payloads; yield it once it has subscribed.

    The retained message shows that, as after each reconnect.
    """
    assert run(["pub", topic, "ready", "--retain"]) == 0
    with start("sub", topic, "--fields", "payload", *arguments) as process:
        try:
            assert line_of(process) == "ready"
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip("\n")


def refused(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails with this code; return its one line of error."""
    assert run(arguments) == code
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1 and error.startswith("umqtt"), error
    assert "—" in error, "no next step"
    return error


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_what_is_published_and_retained_comes_as_it_was_at_every_qos(at, topic, qos, capsys):
    payload = "21.4 °C\x1b[2J\n"
    assert run(["pub", topic, payload, "--retain", "--qos", qos, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"topic": topic, "published": 1, "qos": int(qos), "retain": True}
    found = json.loads(received(capsys, topic, "--json", "--qos", "2", "-n", "1")[0])
    assert found.pop("time")
    assert found == {"topic": topic, "qos": int(qos), "retain": True, "payload": payload}
    # A terminal shows what the sequence would do, without executing it.
    assert received(capsys, topic, "-n", "1") == [f"{topic} 21.4 °C\\x1b[2J\\n"]
    assert received(capsys, topic, "-n", "1", "--format", "hex", "--fields", "payload") == [payload.encode().hex()]
    fields = received(capsys, topic, "-n", "1", "--fields", "qos,retain,topic")
    assert fields == [f"q{min(int(qos), 1)} retained {topic}"]
    assert run(["pub", topic, "", "--retain"]) == 0
    assert run(["sub", topic, "-n", "1", "--timeout", "0.3"]) == 4


def test_bytes_that_are_no_text_are_told_apart(at, topic, tmp_path, capsys):
    file = tmp_path / "frame"
    file.write_bytes(b"\xff\x00ok")
    assert run(["pub", topic, "--file", str(file), "--retain"]) == 0
    assert received(capsys, topic, "-n", "1", "--fields", "payload") == ["\\xff\\x00ok"]
    found = json.loads(received(capsys, topic, "-n", "1", "--json")[0])
    assert (found["payload"], found["hex"]) == (None, "ff006f6b")


def test_every_line_is_a_message_and_comes_once_and_in_order(at, kept, capsys):
    numbers = [str(number) for number in range(1000)]
    process = start("pub", kept, "--lines", "--qos", "2", "--json")
    out, error = process.communicate("\r\n".join(numbers).encode(), WAIT_LIMIT_S)
    assert (process.returncode, error) == (0, b"")
    assert json.loads(out)["published"] == 1000
    assert received(capsys, kept, "--session", kept, "-n", "1000", "--fields", "payload") == numbers


def test_a_link_that_breaks_between_two_lines_is_made_again(at, port, topic):
    with (
        FaultProxy(("127.0.0.1", port)) as proxy,
        listening(topic) as listener,
        start("pub", topic, "--lines", "--broker", proxy.url) as process,
    ):
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert line_of(listener) == "first"
        # The link is watched even while stdin is silent.
        proxy.cut()
        assert b"connecting again" in process.stderr.readline()
        process.stdin.write(b"second\n")
        process.stdin.close()
        # The cut may have taken the PUBACK of the first line with it: then that line rightly comes twice.
        came = line_of(listener)
        assert (line_of(listener) if came == "first" else came) == "second"
        assert process.wait(WAIT_LIMIT_S) == 0


def test_what_comes_while_a_session_is_away_is_not_missed_and_what_is_not_printed_is_not_lost(at, kept, capsys):
    assert run(["pub", kept, "again", "-n", "5"]) == 0
    # All five are in the receive buffer when the second is printed.
    assert received(capsys, kept, "--session", kept, "-n", "2", "--fields", "payload") == ["again"] * 2
    assert received(capsys, kept, "--session", kept, "-n", "3", "--fields", "payload") == ["again"] * 3
    assert run(["sub", kept, "--session", kept, "-n", "1", "--timeout", "0.3"]) == 4


def test_what_came_while_the_process_was_stopped_counts_though_the_time_is_over(at, port, topic, monkeypatch):
    came: list[bytes] = []
    ahead_s = 0.0
    monkeypatch.setattr("umqtt_kit.mqtt.time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))

    def stopped() -> bool:
        nonlocal ahead_s
        # Stopped between two looks, for longer than the timeout: the message is in the socket when it continues.
        if not came and not select.select([link.client.socket], [], [], 0)[0]:
            paho.single(topic, "x", 1, port=port)
            assert select.select([link.client.socket], [], [], WAIT_LIMIT_S)[0]
            ahead_s += WAIT_LIMIT_S
        return bool(came)

    with Link(make_access([at]), on_message=lambda topic, payload, *_: came.append(payload)) as link:
        link.subscribe(topic)
        assert link.wait_for(stopped, WAIT_LIMIT_S)


def test_a_subscriber_survives_a_broken_link_and_says_so(at, port, topic):
    with FaultProxy(("127.0.0.1", port)) as proxy, listening(topic, "--broker", proxy.url) as process:
        assert process.stderr is not None
        proxy.cut()
        assert b"connecting again" in process.stderr.readline()
        assert b"connected again" in process.stderr.readline()
        assert line_of(process) == "ready"
        assert run(["pub", topic, "after"]) == 0
        assert line_of(process) == "after"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_subscriber_with_exit_code_0(at, topic, number):
    with listening(topic) as process:
        process.send_signal(number)
        assert process.communicate(timeout=WAIT_LIMIT_S) == (b"", b"")
        assert process.returncode == 0


def test_a_reader_that_has_seen_enough_ends_the_subscriber(at, topic):
    with listening(topic) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert run(["pub", topic, "x"]) == 0
        assert process.wait(WAIT_LIMIT_S) == 0
        assert process.stderr.read() == b""


def test_a_message_that_is_too_large_is_left_out_and_that_is_said(at, kept, tmp_path, capsys, monkeypatch):
    file = tmp_path / "large"
    file.write_bytes(b"x" * 200_000)
    assert run(["pub", kept, "--file", str(file), "--retain"]) == 0
    assert received(capsys, kept, "-n", "1", "--fields", "payload") == ["x" * 200_000]
    # In the session the next one comes after it.
    assert run(["pub", kept, "small"]) == 0
    monkeypatch.setattr(sub_module, "_LARGEST", 1024)
    assert run(["sub", kept, "--session", kept, "-n", "1", "--fields", "payload", "--timeout", str(WAIT_LIMIT_S)]) == 0
    out, error = capsys.readouterr()
    assert out == "small\n"
    assert "too large" in error and "200000" in error


# Errors


def _served(answer: Callable[[socket.socket], object]) -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over
            with connection:
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "within_s", "said"),
    [
        (
            lambda connection: connection.recv(100) and connection.sendall(_WEB_PAGE),
            WAIT_LIMIT_S,
            "does not speak MQTT: this is a web server: a login page of the network?",
        ),
        (lambda connection: connection.recv(100), 60, "closed without an answer"),
        (lambda connection: connection.recv(100) and connection.recv(100), 0.3, "no answer within 0.3 s"),
        (
            lambda connection: connection.recv(100) and connection.sendall(b"\x20\x02\x00\x03"),
            WAIT_LIMIT_S,
            "is not available",
        ),
        (lambda connection: connection.recv(100) and connection.sendall(b"\x20\x02\x00\x89"), 60, "busy (0x89)"),
        (lambda connection: connection.recv(100) and connection.sendall(b"\x20\x02\x00\x06"), 60, "reason (6)"),
    ],
    ids=["http", "closed", "silent", "refused", "busy", "unknown"],
)
def test_what_is_no_broker_is_exit_code_4_and_told_by_how_it_answers(answer, within_s, said, capsys):
    listener, number = _served(answer)
    with listener:
        url = f"mqtt://127.0.0.1:{number}"
        for command in (["pub", "a", "b"], ["sub", "a"]):
            error = refused([*command, "--broker", url, "--connect-timeout", str(within_s)], 4, capsys)
            assert said in error and url in error


@pytest.mark.parametrize("answer", [lambda connection: None, lambda connection: connection.recv(200)])
def test_the_next_address_of_a_name_is_tried_before_it_gives_up(at, topic, answer, monkeypatch, capsys):
    # Planted: one attempt, so only the first address that accepts the connection.
    listener, number = _served(lambda connection: connection.recv(100) and answer(connection))
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        for port in (number, int(at.rpartition(":")[2]))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: list(found))
    with listener:
        assert run(["pub", topic, "x", "--broker", "mqtt://two.example", "--connect-timeout", "1"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_port_where_nobody_listens_and_a_name_nobody_has_are_exit_code_4(capsys):
    assert "nothing listens there" in refused(["sub", "a", "--broker", "mqtt://127.0.0.1:1"], 4, capsys)
    assert "no computer of that name" in refused(["sub", "a", "--broker", "mqtt://nobody.invalid"], 4, capsys)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["pub", "a/+", "x"], "a/+"),
        (["pub", "a"], "PAYLOAD"),
        (["pub", "a", "x", "--lines"], "PAYLOAD"),
        (["pub", "a", "--lines", "-n", "2"], "--count"),
        (["sub", "a/#/b"], "a/#/b"),
        (["sub", "a", "--fields", "topic,colour"], "colour"),
        (["sub", "a", "--session", "s", "--qos", "2"], "--session"),
        (["sub", "a", "--broker", "http://127.0.0.1"], "http://127.0.0.1"),
        (["sub", "a", "--broker", "mqtt://127.0.0.1:99999"], "99999"),
        (["sub", "a", "--cert", "/dev/null"], "--key"),
    ],
)
def test_bad_usage_is_exit_code_2_and_names_it(at, arguments, named, capsys):
    assert named in refused(arguments, 2, capsys)


def test_a_password_in_the_address_is_refused_and_not_repeated(capsys):
    error = refused(["sub", "a", "--broker", "mqtt://me:correct-horse@127.0.0.1"], 2, capsys)
    assert "correct-horse" not in error and "--password-file" in error


@pytest.mark.parametrize(
    "host", ["a..b", ".", "x" * 64, "x" * 64 + ".example", "é..b", "\udcff"], ids=lambda host: ascii(host[:8])
)
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_name_that_no_computer_can_have_is_told(host, scheme, capsys):
    url = f"{scheme}://{host}"
    assert "no computer can have that name" in refused(["pub", "a", "b", "--broker", url], 2, capsys)


# Credentials and TLS


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as found:
        yield found


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    file.chmod(0o600)
    return file


def test_a_password_comes_from_a_file_or_the_environment_over_tls(guarded, password_file, monkeypatch, capsys):
    url, ca = guarded
    options = ["--broker", url, "--ca", str(ca), "--username", "me"]
    assert run(["pub", "t", "x", *options, "--password-file", str(password_file)]) == 0
    monkeypatch.setenv("UMQTT_PASSWORD", PASSWORD)
    assert run(["pub", "t", "x", *options]) == 0
    monkeypatch.setenv("UMQTT_PASSWORD", "battery staple")
    error = refused(["pub", "t", "x", *options], 4, capsys)
    assert "user name or password are wrong" in error and "staple" not in error


@pytest.mark.parametrize(("content", "named"), [(b"caf\xe9\n", "no UTF-8"), (None, "Input/output error")])
def test_a_password_file_that_cannot_be_read_is_told(content, named, tmp_path, capsys):
    file = Path("/proc/self/mem")  # it can be opened, but its beginning cannot be read
    if content is not None:
        file = tmp_path / "password"
        file.write_bytes(content)
        file.chmod(0o600)
    elif not file.exists():
        pytest.skip("no file that cannot be read")
    error = refused(["pub", "a", "b", "--username", "me", "--password-file", str(file)], 2, capsys)
    assert str(file) in error and named in error


def test_a_password_is_asked_for_on_a_terminal_and_not_shown(guarded):
    """Planted: the password is shown; the prompt does not say which broker gets it."""
    url, ca = guarded
    with terminal("pub", "t", "x", "--broker", url, "--ca", str(ca), "--username", "me") as opened:
        opened.until(f"Password of me at {url}: ")
        opened.type(PASSWORD + "\n")
        assert opened.end() == 0
        assert "horse" not in opened.shown


def test_what_is_wrong_with_credentials_and_certificates_is_told(guarded, password_file, tmp_path, monkeypatch, capsys):
    url, ca = guarded
    monkeypatch.delenv("UMQTT_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 - for the rest of the test
    trusting = ["--broker", url, "--ca", str(ca)]
    assert "UMQTT_PASSWORD" in refused(["sub", "t", *trusting, "--username", "me"], 2, capsys)
    assert "--username" in refused(["sub", "t", *trusting, "--password-file", str(password_file)], 2, capsys)
    assert "user may not connect" in refused(["sub", "t", *trusting], 4, capsys)
    password_file.chmod(0o644)
    options = ["--username", "me", "--password-file", str(password_file)]
    assert "chmod 600" in refused(["sub", "t", *trusting, *options], 2, capsys)
    # It is signed by nobody this computer trusts.
    assert "--ca FILE" in refused(["sub", "t", "--broker", url], 4, capsys)
    assert "mqtts://" in refused(["sub", "t", "--broker", url.replace("mqtts", "mqtt")], 4, capsys)
    ca_text = tmp_path / "no.pem"
    ca_text.write_text("no certificate")
    assert "--ca" in refused(["sub", "t", "--broker", url, "--ca", str(ca_text)], 2, capsys)


def test_tls_to_a_port_without_it_is_told(at, guarded, capsys):
    error = refused(["sub", "t", "--broker", at.replace("mqtt:", "mqtts:"), "--ca", str(guarded[1])], 4, capsys)
    assert "TLS fails" in error or "closed without an answer" in error


def test_topics_that_the_broker_does_not_allow_are_told(tmp_path, capsys):
    acl = tmp_path / "acl"
    acl.write_text("topic read public/#\n")
    with broker(tmp_path, "allow_anonymous true", f"acl_file {acl}") as port:
        url = f"mqtt://127.0.0.1:{port}"
        assert "secret/#" in refused(["sub", "public/#", "secret/#", "--broker", url], 4, capsys)


# MQTT 5


@pytest.fixture(params=["paired", "mosquitto"])
def either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the address of a broker that speaks MQTT 5, which the commands know."""
    with contextlib.ExitStack() as stack:
        if request.param == "paired":
            found = request.getfixturevalue("port")
        else:
            found = stack.enter_context(Mosquitto(tmp_path, "allow_anonymous true")).port
        monkeypatch.setenv("UMQTT_BROKER", f"mqtt://127.0.0.1:{found}")
        yield f"mqtt://127.0.0.1:{found}"


def test_properties_go_from_pub_to_the_json_of_sub(either, topic, capsys):
    """Planted: -V 5 reaches only `umqtt pub`."""
    assert run(["sub", topic, "-V", "5", "--session", topic, "--timeout", "0.1"]) == 0
    given = ("content-type=text/plain", "response-topic=a/b", "payload-format-indicator=1",
             "message-expiry-interval=60", "user-property=site=north=1", "user-property=empty=")  # fmt: skip
    assert run(["pub", topic, "x", "-V", "5", *(word for each in given for word in ("-D", each))]) == 0
    assert run(["pub", topic, "y", "-V", "5", "-D", os.fsdecode(b"correlation-data=\xff=")]) == 0
    arguments = [topic, "--session", topic, "-n", "2", "--json", "--timeout", str(WAIT_LIMIT_S)]
    assert run(["sub", *arguments, "-V", "5"]) == 0
    first, second = [json.loads(line)["properties"] for line in capsys.readouterr().out.splitlines()]
    assert 0 < first.pop("message_expiry_interval") <= 60
    assert first == {
        "content_type": "text/plain", "response_topic": "a/b", "payload_format_indicator": 1,
        "user_property": [["site", "north=1"], ["empty", ""]],
    }  # fmt: skip
    assert second == {"correlation_data": {"hex": "ff3d"}}
    # Both versions share the session.
    assert run(["pub", topic, "z"]) == 0
    assert run(["sub", topic, "--session", topic, "-n", "1", "--json", "--timeout", str(WAIT_LIMIT_S)]) == 0
    assert "properties" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["-D", "content-type=x"], "-V 5"),
        (["-V", "5", "-D", "content-type"], "NAME=VALUE"),
        (["-V", "5", "-D", "topic-alias=1"], "topic-alias"),
        (["-V", "5", "-D", "user-property=x"], "user-property=NAME=VALUE"),
        (["-V", "5", "-D", "message-expiry-interval=-1"], "from 0 to 4294967295"),
        (["-V", "5", "-D", "payload-format-indicator=2"], "from 0 to 1"),
        (["-V", "5", "-D", "content-type=a", "-D", "content-type=b"], "twice"),
        (["-V", "5", "-D", "response-topic=a/+"], "response_topic"),
        (["-V", "4"], "3.1.1"),
    ],
)
def test_what_is_no_property_is_exit_code_2_and_named(at, topic, given, named, capsys):
    """Planted: properties without -V 5 are ignored."""
    assert named in refused(["pub", topic, "x", *given], 2, capsys)


def _answering(connack: bytes, puback: bytes = b"") -> tuple[socket.socket, int]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(connack)
        if puback:
            connection.recv(1000)
            connection.sendall(puback)
        connection.recv(1000)

    return _served(answer)


@pytest.mark.parametrize(
    ("connack", "puback", "said"),
    [
        (b"\x20\x03\x00\x87\x00", b"", "this user may not connect"),
        (b"\x20\x03\x00\x84\x00", b"", "does not speak that version"),
        (b"\x20\x02\x00\x01", b"", "does not speak that version"),
        (b"\x20\x08\x00\x89\x05\x1f\x00\x02\x1b[", b"", "server busy: \\x1b[ (0x89)"),
        (b"\x20\x07\x00\x9d\x04\x1c\x00\x01b", b"", "server moved: b (0x9d)"),
        (b"\x20\x03\x00\x00\x00", b"\x40\x03\x00\x01\x87", "1 of 1 messages will not be delivered"),
        (b"\x20\x03\x00\x00\x00", b"\x40\x03\x00\x01\xab", "unknown reason (0xab)"),
    ],
    ids=["user", "version", "old", "text", "moved", "message", "unknown"],
)  # fmt: skip
def test_what_a_broker_of_mqtt_5_refuses_is_exit_code_4_with_its_reason(connack, puback, said, capsys):
    """Planted: a message that the broker refused counts as acknowledged."""
    listener, number = _answering(connack, puback)
    with listener:
        assert said in refused(["pub", "a", "b", "-V", "5", "--broker", f"mqtt://127.0.0.1:{number}"], 4, capsys)


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the address of a broker that closes the connection at what is not permitted, as RabbitMQ does."""
    monkeypatch.setattr("umqtt_kit.mqtt._random", lambda limit: 0)
    listener, number = _served(
        lambda connection: (connection.recv(1000), connection.sendall(b"\x20\x02\0\0"), connection.recv(1000))
    )
    with listener:
        yield f"mqtt://127.0.0.1:{number}"


def test_a_broker_that_closes_the_connection_at_each_subscribe_is_told_in_a_line(closing, capsys):
    """Planted: Link.subscribe() waits for SUBACK alone."""
    assert run(["sub", "fleet/#", "--broker", closing, "--connect-timeout", str(WAIT_LIMIT_S)]) == 4
    error = capsys.readouterr().err.splitlines()[-1]
    assert "closes the connection at each SUBSCRIBE: it may not let this user read fleet/#" in error and "—" in error


def test_a_broker_that_closes_the_connection_at_each_publish_is_told_in_a_line(closing):
    """Planted: explain() does not know the client's words for it."""
    told: list[str] = []
    with Link(make_access([closing]), on_lost=told.append) as link:
        link.publish("fleet/pump-7/cmd", b"x", 1)
        link.wait_for(lambda: any("may have no right to that topic" in text for text in told), WAIT_LIMIT_S)
    assert any("may have no right to that topic" in text for text in told), told


def test_why_a_broker_of_mqtt_5_ends_a_link_is_said(at, topic, capfd):
    """Planted: a link that the broker ends is reported as one that it refuses."""
    other = Link(make_access([at], mqtt_version="5"), session=topic)
    with listening(topic, "-V", "5", "--session", topic) as process, other:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert b"the broker ended the connection: session taken over (0x8e); connecting again" in line

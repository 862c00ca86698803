"""Programs for umqtt.simple and umqtt.robust work with this library, on both interpreters.

Their published examples belong to others and are not included: with UMQTT_PEERS=DIR, where DIR/examples holds them,
they run with only their import changed.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import threading
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from umqtt_testkit.encoder import acknowledgement, connack, publish, suback
from umqtt_testkit.interpreter import device_search_path
from umqtt_testkit.peer import ScriptedPeer
from umqtt_testkit.waiting import WAIT_LIMIT_S
from umqtt_testkit.wire import Type

PEERS = Path(os.environ.get("UMQTT_PEERS", "/nowhere")) / "examples"
HOST = "127.0.0.1"


def test_every_call_against_a_broker(program, mosquitto) -> None:
    assert program("simple_cases.py", server=HOST, port=mosquitto(), case="broker").finish()[-1]["event"] == "done"


@pytest.mark.parametrize("case", ["callbacks", "overridden", "robust2", "no_authority"])
def test_styles_of_programs_for_umqtt_work(program, mosquitto, case: str) -> None:
    # Planted in each: what the issues of other people's programs were; see the case.
    assert program("simple_cases.py", server=HOST, port=mosquitto(), case=case).finish()[-1]["event"] == "done"


def test_a_selector_and_check_msg_lose_sight_of_no_message(program, mosquitto) -> None:
    # Planted: check_msg() hands over only one of the messages that it read.
    assert program("simple_cases.py", server=HOST, port=mosquitto(), case="selected").finish()[-1]["event"] == "done"


def test_ssl_is_a_context_that_verifies_or_true(program, mosquitto, certificates: Path) -> None:
    # Planted: a context is treated like the result of TLS(); one that verifies nothing is accepted.
    port = mosquitto(f"certfile {certificates / 'broker.pem'}", f"keyfile {certificates / 'broker.key'}")
    files = {"ca": str(certificates / "ca.pem"), "der": str(certificates / "ca.der")}
    program("simple_cases.py", server="localhost", port=port, case="secure", **files).finish()


def scripted(program, case: str, script) -> None:
    with ScriptedPeer() as peer:
        peer.run(script)
        program("simple_cases.py", server=peer.host, port=peer.port, case=case).finish()


def test_a_refusal_is_an_mqtt_exception_with_its_code(program) -> None:
    def script(peer: ScriptedPeer) -> None:
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack(return_code=5))
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack())
        link.send(suback(link.expect(Type.SUBSCRIBE).packet_id, 0x80))
        link.send(acknowledgement(Type.PUBACK, link.expect(Type.PUBLISH).packet_id))
        link.expect(Type.DISCONNECT)

    scripted(program, "refused", script)


def test_fin_instead_of_puback_is_an_error_after_which_programs_connect_again(program) -> None:
    def script(peer: ScriptedPeer) -> None:
        for _ in range(2):
            link = peer.accept()
            link.expect(Type.CONNECT)
            link.send(connack())
            link.expect(Type.PUBLISH)
            link.close()
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack())
        link.send(acknowledgement(Type.PUBACK, link.expect(Type.PUBLISH, payload=b"again").packet_id))
        link.expect(Type.DISCONNECT)

    scripted(program, "sock_of_a_lost_link", script)


def test_a_silent_server_is_known_by_its_errno(program) -> None:
    def script(peer: ScriptedPeer) -> None:
        for answer in (b"", connack()):
            link = peer.accept()
            link.expect(Type.CONNECT)
            link.send(answer)
            while link.receive():
                pass

    scripted(program, "silent", script)


def test_robust_makes_a_new_link_in_every_call(program) -> None:
    def script(peer: ScriptedPeer) -> None:
        for last in (False, True):
            link = peer.accept()
            link.expect(Type.CONNECT)
            link.send(connack())
            if last:  # after a link that ended with a message in flight, PINGREQ goes first
                link.expect(Type.PINGREQ)
                link.send(b"\xd0\0")
            packet = link.expect(Type.PUBLISH, payload=b"1")
            if not last:
                link.close()
        link.send(acknowledgement(Type.PUBACK, packet.packet_id))
        link.close()
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack() + publish(b"m", b"n", qos=1, packet_id=7))
        link.expect(Type.PUBACK, packet_id=7)
        link.close()
        link = peer.accept()
        link.expect(Type.CONNECT)
        link.send(connack())
        link.expect(Type.DISCONNECT)

    scripted(program, "robust_goes_on", script)


def run_example(interpreter: list[str], tmp_path: Path, name: str, port: int, wait: str | None = None):
    """Run the published example; only its import is changed, and `localhost` is the test's broker."""
    text = (PEERS / name).read_text()
    text = re.sub(r"^from umqtt\.", "from umqtt_robust.", text, flags=re.MULTILINE)
    text = re.sub(r"^import umqtt\.robust$", "import umqtt_robust as umqtt, umqtt_robust.robust", text, flags=re.M)
    (tmp_path / name).write_text(text)
    # The examples name no port, so 1883 is redirected, as by a port forward.
    start = "import sys, umqtt_robust.simple as s\ni = s.MQTTClient.__init__\n"
    start += f"def f(self, *a, **k):\n    i(self, *a, **k)\n    self.port = {port}\n"
    start += f"s.MQTTClient.__init__ = f\nexec(open({str(tmp_path / name)!r}).read(), {{'__name__': '__main__'}})\n"
    (tmp_path / "start.py").write_text(start)
    path = ":".join(device_search_path())
    return subprocess.Popen(
        [*interpreter, str(tmp_path / "start.py")],
        env={"PYTHONPATH": path, "MICROPYPATH": f"{path}:.frozen", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def listener(mosquitto):
    """Provide a mosquitto, and a paho client that receives every message there."""
    port = mosquitto()
    heard: queue.Queue[tuple[str, bytes]] = queue.Queue()
    ready = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda c, u, message: heard.put((message.topic, message.payload))
    client.on_subscribe = lambda *_: ready.set()
    client.connect(HOST, port)
    client.loop_start()
    client.subscribe([("#", 1), ("$SYS/broker/subscriptions/count", 0)])
    assert ready.wait(WAIT_LIMIT_S)
    yield port, client, heard
    client.disconnect()
    client.loop_stop()


def hear(heard, topic: str) -> bytes:
    while True:
        got = heard.get(timeout=WAIT_LIMIT_S)
        if got[0] == topic:
            return got[1]


needs_peers = pytest.mark.skipif(not PEERS.is_dir(), reason="the published examples are not here: set UMQTT_PEERS")


@needs_peers
def test_the_published_publisher_runs(interpreter, tmp_path: Path, listener) -> None:
    port, _, heard = listener
    process = run_example(interpreter, tmp_path, "example_pub.py", port)
    assert process.communicate(timeout=WAIT_LIMIT_S) == ("", None) and process.returncode == 0
    assert hear(heard, "foo_topic") == b"hello"


@needs_peers
@pytest.mark.parametrize("name", ["example_sub.py", "example_sub_robust.py"])
def test_the_published_subscribers_run(interpreter, tmp_path: Path, listener, name: str) -> None:
    port, client, _ = listener
    client.publish("foo_topic", b"for you", retain=True)
    process = run_example(interpreter, tmp_path, name, port)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("for you" in line for line in lines)
    finally:
        process.kill()
        process.communicate()


@needs_peers
def test_the_published_will_is_published(interpreter, tmp_path: Path, listener) -> None:
    port, _, heard = listener
    process = run_example(interpreter, tmp_path, "example_lwt_robust.py", port)
    try:
        assert hear(heard, "tele/test/LWT") == b"Online"
        process.kill()
        assert hear(heard, "tele/test/LWT") == b"Offline"
    finally:
        process.kill()
        process.communicate()


@needs_peers
def test_the_published_resubscriber_runs(interpreter, tmp_path: Path, listener) -> None:
    port, _, heard = listener
    process = run_example(interpreter, tmp_path, "example_resubscribe_robust.py", port)
    output, _ = process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 0, output
    # umqtt.robust loses message 2; here it arrives, as the second one that the program sees.
    assert "message 1" in output and "message 2" in output
    assert [hear(heard, "test/topic/a") for _ in range(3)] == [b"message 1", b"message 2", b"message 3"]

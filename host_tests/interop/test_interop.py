"""The same suite passes against mosquitto and the paired broker, on CPython and on MicroPython."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import client_suite
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from umqtt_testkit.interpreter import MicroPythonMissing, device_search_path, micropython_command
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.paired_broker import paired_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

HERE = Path(__file__).resolve().parent
LAWS = HERE.parent / "laws"

# Processes by interpreter, broker and version of MQTT.
_Suites = dict[tuple[str, str, int], "subprocess.Popen[str]"]

INTERPRETERS = "cpython", "micropython"
BROKERS = "mosquitto", "paired_broker"
PROTOCOLS = 4, 5


def suite_command(interpreter: str, port: int, other: int, protocol: int = 4) -> list[str]:
    """Return the command that runs client_suite.py against a broker, with another one to fail over to."""
    if interpreter == "cpython":
        path = [str(LAWS), *device_search_path()]
        code = f"import sys, runpy; sys.path[:0] = {path!r}; sys.argv.pop(0); sys.path.insert(0, {str(HERE)!r}); "
        code += "runpy.run_path(sys.argv[0], run_name='__main__')"
        return [sys.executable, "-c", code, str(HERE / "client_suite.py"), str(port), str(other), str(protocol)]
    path = [str(HERE), str(LAWS), *device_search_path()]
    code = f"import sys; sys.path[:0] = {path!r}; import client_suite; client_suite.main({port}, {other}, {protocol})"
    return [*micropython_command("4M"), "-c", code]


@pytest.fixture(scope="session")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Suites]:
    """Run the suite on each interpreter with its own brokers, all at once, because it mostly waits."""
    started: _Suites = {}
    with ExitStack() as stack:
        for interpreter, broker, protocol in product(INTERPRETERS, BROKERS, PROTOCOLS):
            mosquitto = stack.enter_context(Mosquitto(tmp_path_factory.mktemp("mosquitto"), "allow_anonymous true"))
            ports = {"mosquitto": mosquitto.port, "paired_broker": stack.enter_context(paired_broker())}
            try:
                command = suite_command(interpreter, ports.pop(broker), *ports.values(), protocol)
            except MicroPythonMissing:
                continue
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            started[interpreter, broker, protocol] = stack.enter_context(process)
            stack.callback(process.kill)
        yield started


class Results:
    """The output of one interpreter about one broker."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.text = process.communicate(timeout=WAIT_LIMIT_S)[0].replace("\r\n", "\n")

    def of(self, check: str) -> str:
        """Return empty text if the check passed, else what was printed before its line."""
        before: list[str] = []
        for line in self.text.splitlines():
            if line == f"ok {check}":
                return ""
            if line == f"failed {check}":
                return "\n".join(before)
            before = [] if line.startswith(("ok check_", "failed check_")) else [*before, line]
        return "no result: " + self.text[-2000:]


@pytest.fixture(scope="module", params=INTERPRETERS)
def interpreter(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=product(BROKERS, PROTOCOLS), ids=lambda pair: f"{pair[0]}-{pair[1]}")
def results(request: pytest.FixtureRequest, suites: _Suites, interpreter: str) -> Results:
    if (interpreter, *request.param) not in suites:
        pytest.skip("MicroPython is not there")
    return Results(suites[(interpreter, *request.param)])


@pytest.mark.parametrize("check", client_suite.CHECKS)
def test_interop(results: Results, check: str):
    failure = results.of(check)
    assert not failure, failure


# Answers each request at its response topic, with its correlation data and content type, and user properties.
_ANSWERS = """
from umqtt_robust import Client
client = Client("ours", "mqtt://127.0.0.1:{}", protocol=5)
def answer(topic, payload):
    asked = client.properties
    told = {{name: asked[name] for name in ("correlation_data", "content_type")}}
    told["user_property"] = asked["user_property"] + [("from", "ours"), ("from", "too")]
    client.publish(asked["response_topic"], payload + b"!", client.flags >> 1 & 3, expires_in=5000, properties=told)
client.on("ask", answer)
client.subscribe("ask", 2)
while not client.subscribed:
    client.poll(1000)
print("ready")
while client.received < 3 or client.pending:
    client.poll(1000)
client.disconnect()
client.tick()
"""


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("interpreter_name", INTERPRETERS)
def test_paho_is_the_other_side_with_mqtt_5(tmp_path: Path, interpreter_name: str, broker: str):
    """Planted: a property is encoded under the number of another one, or the first of several user properties alone."""
    try:
        command = [sys.executable] if interpreter_name == "cpython" else micropython_command("4M")
    except MicroPythonMissing:
        pytest.skip("MicroPython is not there")
    with ExitStack() as stack:
        if broker == "mosquitto":
            port = stack.enter_context(Mosquitto(tmp_path, "allow_anonymous true")).port
        else:
            port = stack.enter_context(paired_broker())
        got: list[tuple[bytes, int, dict]] = []
        peer = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        peer.on_message = lambda _client, _data, message: got.append(
            (message.payload, message.qos, message.properties.json())
        )
        peer.connect("127.0.0.1", port)
        peer.subscribe("answers", 2)
        peer.loop_start()
        stack.callback(peer.loop_stop)
        code = f"import sys; sys.path[:0] = {device_search_path()!r}\n{_ANSWERS.format(port)}"
        ours = stack.enter_context(subprocess.Popen([*command, "-c", code], stdout=subprocess.PIPE, text=True))
        stack.callback(ours.kill)
        assert ours.stdout is not None and ours.stdout.readline().strip() == "ready"
        for qos in (0, 1, 2):
            asked = Properties(PacketTypes.PUBLISH)
            asked.ResponseTopic, asked.CorrelationData = "answers", b"\0%d" % qos
            asked.ContentType, asked.UserProperty = "text/plain", ("to", "ours")
            peer.publish("ask", b"%d" % qos, qos, properties=asked)
        eventually(lambda: len(got) == 3)
        assert ours.wait(WAIT_LIMIT_S) == 0
    for qos, (payload, with_qos, told) in enumerate(sorted(got, key=lambda one: one[0])):
        assert (payload, with_qos) == (b"%d!" % qos, qos)
        assert [*map(list, told["UserProperty"])] == [["to", "ours"], ["from", "ours"], ["from", "too"]]
        assert (told["ContentType"], told["CorrelationData"]) == ("text/plain", (b"\0%d" % qos).hex())
        assert 0 < told["MessageExpiryInterval"] <= 5

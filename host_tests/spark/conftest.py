"""Fixtures of the ingester's tests: one Spark session for all of them, a mosquitto for each that asks."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from spark_helpers import Process

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.session import start_session


@pytest.fixture(scope="session")
def spark():
    try:
        require_java()
    except MissingDependency as error:
        pytest.skip(str(error))
    scratch = Path(tempfile.mkdtemp(prefix="umqtt-spark-tests-"))
    session = start_session(scratch)
    from spark_ingest import MqttDataSource

    session.dataSource.register(MqttDataSource)
    yield session
    session.stop()
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[int]:
    """The port of a mosquitto of this test's own, on loopback."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        pytest.skip("mosquitto is not installed: apt install mosquitto")
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = tmp_path / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_inflight_messages 1000\n"
            "max_queued_messages 0\npersistence false\n"
        )
        null = subprocess.DEVNULL
        process = subprocess.Popen([program, "-c", str(config)], stdout=null, stderr=null)
        if _listens(process, port):
            break
    else:
        pytest.fail("mosquitto did not start")
    yield port
    process.terminate()
    process.wait(10)


@pytest.fixture
def paired(tmp_path: Path) -> Iterator[int]:
    """The port of a paired broker of this test's own."""
    command = [sys.executable, "-m", "umqtt_broker", "-p", 0, "--store", tmp_path / "broker.db"]
    with Process(command) as process:
        yield int(process.wait_for_line("listening on ").rsplit(":", 1)[1])
        process.terminate()


@pytest.fixture(params=["mosquitto", "paired"])
def broker(request: pytest.FixtureRequest) -> int:
    """The port of a broker, once of each make."""
    return request.getfixturevalue(request.param)


def _listens(process: subprocess.Popen, port: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except ConnectionRefusedError:
            time.sleep(0.01)
    return False


@pytest.fixture
def publish(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """``publish([(topic, payload), …])`` at QoS 1: returns when the broker has acknowledged everything."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "tests")
    client.max_inflight_messages_set(1000)
    broker = "broker" if "broker" in request.fixturenames else "mosquitto"
    client.connect("127.0.0.1", request.getfixturevalue(broker))
    client.loop_start()

    def send(messages: list[tuple[str, bytes]]) -> None:
        for sent in [client.publish(topic, payload, qos=1) for topic, payload in messages]:
            sent.wait_for_publish(30)

    yield send
    client.disconnect()
    client.loop_stop()

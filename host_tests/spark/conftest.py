"""Fixtures of the ingestion tests: one Spark session for all of them, a mosquitto for each that asks."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from spark_helpers import Process
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.errors import MissingDependency
from spark_ingest.java import require_java
from spark_ingest.pipeline.process import stop_session
from spark_ingest.pipeline.run.session import start_session


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
    stop_session(session)
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[int]:
    """Provide the port of a mosquitto on loopback, for this test alone."""
    settings = ("allow_anonymous true", "max_inflight_messages 1000", "max_queued_messages 0")
    with Mosquitto(tmp_path, *settings) as broker:
        yield broker.port


@pytest.fixture
def paired(tmp_path: Path) -> Iterator[int]:
    """Provide the port of a paired broker, for this test alone."""
    command = [sys.executable, "-m", "umqtt_broker", "-p", 0, "--store", tmp_path / "broker.db"]
    with Process(command) as process:
        yield int(process.wait_for_line("listening on ").rsplit(":", 1)[1])
        process.terminate()


@pytest.fixture(params=["mosquitto", "paired"])
def broker(request: pytest.FixtureRequest) -> int:
    """Provide the port of a broker, once for each make."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def publish(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """Provide ``publish([(topic, payload), …])`` at QoS 1; it returns once the broker has acknowledged everything."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "tests")
    client.max_inflight_messages_set(1000)
    broker = "broker" if "broker" in request.fixturenames else "mosquitto"
    client.connect("127.0.0.1", request.getfixturevalue(broker))
    client.loop_start()

    def send(messages: list[tuple[str, bytes]]) -> None:
        for sent in [client.publish(topic, payload, qos=1) for topic, payload in messages]:
            sent.wait_for_publish(WAIT_LIMIT_S)
            assert sent.is_published(), "the broker has not acknowledged everything"

    yield send
    client.disconnect()
    client.loop_stop()

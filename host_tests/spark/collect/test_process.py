"""Laws of the collector process, with real brokers.

Several brokers, TLS, credentials, alarms, metrics, log, serving.
"""

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from spark_helpers import Process, alive, collector_process, record, status
from umqtt_broker.cli.authority import Authority
from umqtt_testkit import encoder
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

from spark_ingest.collector import collector as collector_module
from spark_ingest.collector import process as process_module
from spark_ingest.collector.collector import Collector
from spark_ingest.collector.config import CollectorConfig
from spark_ingest.collector.counters import Counters
from spark_ingest.collector.process import ProcessConfig
from spark_ingest.spool.messages import messages
from spark_ingest.spool.view import Spools
from spark_ingest.spool.writer import Spool

TOPIC = "fleet/pump/telemetry"
MESSAGES = [(TOPIC, record("pump", "1-a", seq)) for seq in range(200)]


def payloads(root: Path, name: str = "north") -> list[bytes]:
    return [message.payload for message in messages(Spools(root).view(name))]


@pytest.fixture
def mosquitto_with(tmp_path: Path) -> Iterator[Callable[[str], Mosquitto]]:
    with ExitStack() as running:

        def start(lines: str) -> Mosquitto:
            return running.enter_context(Mosquitto(tmp_path, lines))

        yield start


def publisher(port: int, **tls: object) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, "tests")
    if tls:
        client.tls_set(**tls)
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    return client


def test_one_process_collects_from_several_brokers_into_spools_of_their_own(mosquitto, paired, tmp_path):
    config, state = tmp_path / "collect.toml", tmp_path / "status.json"
    config.write_text(
        'spool = "spool"\nlongest_delay_s = 0.2\n'
        f'[[collector]]\nname = "north"\nbroker = "mqtt://127.0.0.1:{mosquitto}"\n'
        f'[[collector]]\nname = "south"\nbroker = "mqtt://127.0.0.1:{paired}"\ntopics = ["plant/#"]\n'
    )
    command = [sys.executable, "-m", "umqtt_cli", "collect", "--config", config, "--status", state]
    with Process(command) as one:
        for name in ("north", "south"):
            one.wait_for_line(f"subscribed {name}")
        for port, topic in (
            (mosquitto, TOPIC),
            (mosquitto, "fleet/a/status"),
            (mosquitto, "other"),
            (paired, "plant/x"),
        ):
            client = publisher(port)
            client.publish(topic, topic.encode(), qos=1).wait_for_publish(60)
            client.disconnect()
            client.loop_stop()
        eventually(lambda: status(state).get("messages") == 3, "a message at each, and a status")
        assert status(state)["collectors"]["south"]["messages"] == 1
        again = subprocess.run(
            [*map(str, command[:-2])], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
        )
        assert again.returncode == 2 and f"process id {one.pid}" in again.stderr, "one process a spool"
        assert one.terminate()[0] == 0
    root = tmp_path / "spool"
    assert sorted(payloads(root)) == [b"fleet/a/status", TOPIC.encode()]
    assert payloads(root, "south") == [b"plant/x"]


@pytest.mark.parametrize("told", ["by a file", "by options"])
def test_one_broker_that_is_away_holds_up_no_other(mosquitto, publish, tmp_path, told):
    # Planted: of several --broker options, only the last one is collected from.
    config, state = tmp_path / "collect.toml", tmp_path / "status.json"
    command = [sys.executable, "-m", "spark_ingest.collector", "--status", state, "--metrics", "0", "--log", "json"]
    with socket.socket() as nobody:
        # Bound, so that no other broker gets the port, but not listening.
        nobody.bind(("127.0.0.1", 0))
        away, north = f"mqtt://127.0.0.1:{nobody.getsockname()[1]}", f"mqtt://127.0.0.1:{mosquitto}"
        config.write_text(
            'spool = "spool"\nlongest_delay_s = 0.2\n'
            f'[[collector]]\nname = "away"\nbroker = "{away}"\n[[collector]]\nname = "north"\nbroker = "{north}"\n'
        )
        options = ["--broker", away, "--name", "away", "--broker", north, "--name", "north"]
        options += ["--spool", tmp_path / "spool", "--longest-delay", "0.2"]
        with Process(command + (["--config", config] if told == "by a file" else options)) as one:
            one.wait_for_line("subscribed north")
            publish(MESSAGES)
            eventually(
                lambda: status(state).get("messages") == len(MESSAGES), "everything from the broker that is there"
            )
            eventually(lambda: status(state)["collectors"]["away"]["lost_links"] > 3, "tried again and again")
            code, _, err = one.terminate()
    assert code == 0
    started = [json.loads(line)["message"] for line in err.splitlines() if '"started"' in line]
    assert any("metrics on" in line for line in started), "one place for the metrics of both"
    assert len(payloads(tmp_path / "spool")) == len(MESSAGES)


def test_nodes_of_a_cluster_are_one_session_that_goes_on_at_the_next_node(mosquitto_with, tmp_path):
    # Planted: the collector tries one node for ever; a list without one of its nodes counts as another broker.
    broker, state = mosquitto_with("allow_anonymous true"), tmp_path / "status.json"
    more = ["--spool", tmp_path / "spool", "--status", state, "--longest-delay", "0.2"]
    command = [sys.executable, "-m", "spark_ingest.collector", *more]
    client = publisher(broker.port)
    with socket.socket() as dead, ExitStack() as proxies:
        dead.bind(("127.0.0.1", 0))
        upstream = ("127.0.0.1", broker.port)
        first, second = (proxies.enter_context(FaultProxy(upstream, seed=seed)) for seed in (1, 2))
        nodes = f"mqtt://127.0.0.1:{dead.getsockname()[1]}, {first.url},{second.url}"
        with Process([*command, "--broker", nodes]) as one:
            one.wait_for_line("subscribed collector")
            for seq in range(10):
                if seq == 5:
                    first.close()
                client.publish(TOPIC, b"%d" % seq, qos=1).wait_for_publish(WAIT_LIMIT_S)
            eventually(lambda: len(set(payloads(tmp_path / "spool", "collector"))) == 10, "all, by the other node")
            assert status(state)["sessions_lost"] == 0
            assert one.terminate()[0] == 0
        client.disconnect()
        client.loop_stop()
        broker.stop()
        broker.start()  # Without persistence: it has forgotten everything.
        with Process([*command, "--broker", f"{second.url},mqtt://127.0.0.1:1"]) as one:
            one.wait_for_line("subscribed collector")
            eventually(lambda: status(state)["sessions_lost"] == 1, "the alarm")
            assert one.terminate()[0] == 0


def test_brokers_that_share_no_sessions_are_told_at_the_start(mosquitto, paired, tmp_path):
    """Two engines in one list: one alarm that names the second, while the first is collected from."""
    # Planted: the check ends after the first node; it takes every answer of a node for that of a stranger.
    other = f"mqtt://127.0.0.1:{paired}"
    with socket.socket() as dead, ExitStack() as stack:
        dead.bind(("127.0.0.1", 0))
        away = f"mqtt://127.0.0.1:{dead.getsockname()[1]}"
        first, second = (stack.enter_context(FaultProxy(("127.0.0.1", mosquitto), seed=seed)).url for seed in (1, 2))
        for name, nodes, strangers, unchecked in (
            ("same", [first, second], None, []),
            ("mixed", [first, other], other, []),
            ("away", [away, first, second], None, [away]),
            ("three", [away, other, first, second], f"{first}, {second}", [away]),
        ):
            log = tmp_path / f"{name}.log"
            command = [sys.executable, "-m", "spark_ingest.collector", "--spool", tmp_path / "spool", "--name", name]
            with Process([*command, "--broker", ",".join(nodes)], stderr=stack.enter_context(log.open("wb"))) as one:
                one.wait_for_line(f"subscribed {name}")
                eventually(lambda log=log: "one_cluster" in log.read_text(), log.read_text)
                assert one.terminate()[0] == 0
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            (said,) = [line for line in lines if line["event"] in ("one_cluster", "not_one_cluster")]
            if strangers is None:
                assert (said["event"], said["level"]) == ("one_cluster", "info")
            else:
                assert (said["event"], said["level"]) == ("not_one_cluster", "error")
                assert said["message"].startswith(f"{strangers} did not know a session of "), said
                assert said["message"].endswith("give each broker a --broker and a --name of its own")
            skipped = [line["message"] for line in lines if line["event"] == "node_unchecked"]
            assert len(skipped) == len(unchecked) and all(map(str.__contains__, skipped, unchecked)), skipped
            for port in (mosquitto, paired):
                assert not session_present(port, f"umqtt-collector-{name}-check"), "removed at the end"


def session_present(port: int, client_id: str) -> bool:
    with socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S) as link:
        link.sendall(encoder.connect(client_id.encode(), clean_session=False))
        return link.recv(4) == b"\x20\x02\x01\x00"


def test_tls_with_a_client_certificate_and_nothing_is_sent_to_a_stranger(mosquitto_with, tmp_path):
    ours, strangers = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    for authority in (ours, strangers):
        authority.create("test")
    ours.issue_broker(["127.0.0.1"])
    ours.issue_device("collector")
    broker = ours.folder / "broker"
    one_broker = mosquitto_with(
        f"cafile {ours.folder}/ca.pem\ncertfile {broker}/cert.pem\nkeyfile {broker}/key.pem\n"
        "require_certificate true\nuse_identity_as_username true"
    )
    device = ours.folder / "devices" / "collector"
    mine = ["--cert", device / "cert.pem", "--key", device / "key.pem", "--longest-delay", "0.2"]
    state = tmp_path / "status.json"

    def collector(host: str, ca: Path, *more: object) -> Process:
        fixed = ["--broker", f"mqtts://{host}:{one_broker.port}", "--spool", tmp_path / "spool", "--name", "north"]
        return Process([sys.executable, "-m", "spark_ingest.collector", *fixed, "--ca", ca, "--status", state, *more])

    client = publisher(
        one_broker.port, ca_certs=ours.folder / "ca.pem", certfile=device / "cert.pem", keyfile=device / "key.pem"
    )
    with collector("127.0.0.1", ours.folder / "ca.pem", *mine) as one:
        one.wait_for_line("subscribed north")
        # Larger than a TLS record and than one read takes.
        large = [bytes([i]) * size for i, size in enumerate((1, 16384, 16385, 300_000, 5))]
        for payload in [*large, *(payload for _, payload in MESSAGES)]:
            client.publish(TOPIC, payload, qos=1)
        eventually(lambda: status(state).get("messages") == len(MESSAGES) + 5, "everything over TLS")
        assert one.terminate()[0] == 0
    assert payloads(tmp_path / "spool") == [*large, *(payload for _, payload in MESSAGES)]
    client.disconnect()
    client.loop_stop()
    for host, ca, more, why in (
        ("127.0.0.1", strangers.folder / "ca.pem", mine, "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        ("localhost", ours.folder / "ca.pem", mine, "[Hh]ostname mismatch"),
        ("127.0.0.1", ours.folder / "ca.pem", ["--longest-delay", "0.2"], "certificate required|closed|EOF|reset"),
    ):
        state.unlink()
        with collector(host, ca, *more) as one:
            eventually(lambda: status(state).get("lost_links", 0) >= 2, f"refused: {why}")
            assert re.search(why, status(state)["last_error"]), status(state)["last_error"]
            assert status(state)["subscribed"] is False
            assert one.terminate()[0] == 0


def test_a_password_lets_in_and_is_seen_nowhere(mosquitto_with, tmp_path):
    secret = "correct horse"
    passwords = tmp_path / "passwords"
    made = subprocess.run(["mosquitto_passwd", "-b", "-c", passwords, "collector", secret], check=False)
    assert made.returncode == 0
    one_broker = mosquitto_with(f"allow_anonymous false\npassword_file {passwords}")
    file, state = tmp_path / "password", tmp_path / "status.json"
    file.write_text("wrong\n")
    options = ["--username", "collector", "--password-file", file, "--status", state]
    with collector_process(one_broker.port, tmp_path / "spool", "north", *options) as one:
        eventually(lambda: status(state).get("refusals"), "refused")
        assert "not authorized" in status(state)["last_error"] or "bad user name" in status(state)["last_error"]
        file.write_text(secret + "\n")  # Read at every attempt.
        one.wait_for_line("subscribed north")
        assert secret not in Path(f"/proc/{one.pid}/cmdline").read_text()
        code, _, err = one.terminate()
    assert code == 0 and secret not in err and secret not in state.read_text()


def test_a_session_that_a_real_broker_forgot_is_an_alarm_in_status_metrics_and_log(mosquitto_with, tmp_path):
    one_broker, state = mosquitto_with("allow_anonymous true"), tmp_path / "status.json"
    more = ["--status", state, "--metrics", "0", "--log", "json"]
    with collector_process(one_broker.port, tmp_path / "spool", "north", *more) as one:
        one.wait_for_line("subscribed north")
        one_broker.stop()
        one_broker.start()  # Without persistence: it has forgotten everything.
        eventually(lambda: status(state)["sessions_lost"] == 1, "the alarm")
        eventually(lambda: status(state)["subscribed"], "subscribed anew")
        code, _, err = one.terminate()
    lines = [json.loads(line) for line in err.splitlines()]
    (alarm,) = [line for line in lines if line["event"] == "session_lost"]
    assert (alarm["level"], alarm["collector"]) == ("error", "north")
    assert "had forgotten the session umqtt-collector-north" in alarm["message"]
    assert code == 0


def test_another_broker_under_the_same_name_is_told_for_the_old_one_still_holds_messages(mosquitto, paired, tmp_path):
    state = tmp_path / "status.json"
    with collector_process(mosquitto, tmp_path / "spool") as one:
        one.wait_for_line("subscribed north")
        assert one.terminate()[0] == 0
    with collector_process(paired, tmp_path / "spool", "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        eventually(lambda: "what the old broker still holds" in (status(state).get("last_error") or ""), "told")
        assert status(state)["sessions_lost"] == 0
        assert one.terminate()[0] == 0


def test_two_collectors_with_one_client_id_are_told_of_each_other(mosquitto, tmp_path):
    state = tmp_path / "status.json"
    with collector_process(mosquitto, tmp_path / "a", "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        with collector_process(mosquitto, tmp_path / "b") as other:
            eventually(lambda: status(state)["takeovers"], "the alarm")
            assert "another collector called north" in status(state)["last_error"] or status(state)["takeovers"]
            other.terminate()
        assert one.terminate()[0] == 0


def test_metrics_are_prometheus_text_with_every_counter(mosquitto, publish, tmp_path):
    more = ["--metrics", "0", "--log", "json", "--max-spool-bytes", "1G"]
    err = tmp_path / "err"
    command = [sys.executable, "-m", "spark_ingest.collector", "--broker", f"mqtt://127.0.0.1:{mosquitto}"]
    command += ["--spool", tmp_path / "spool", "--name", "north", *more]
    with err.open("w") as log:
        child = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=log)
    try:
        assert child.stdout is not None and child.stdout.readline() == b"subscribed north\n"
        publish(MESSAGES)
        text = err.read_text()
        url = re.search(r"http://127\.0\.0\.1:\d+/metrics", text)
        assert url

        def scrape() -> dict[str, float]:
            with urllib.request.urlopen(url[0], timeout=WAIT_LIMIT_S) as answer:
                lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
            return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

        eventually(lambda: scrape()['umqtt_collector_messages_total{collector="north"}'] == len(MESSAGES), "counted")
        found = scrape()
        names = {name.split("{")[0] for name in found}
        numbers = {k for k, v in vars(Counters()).items() if isinstance(v, int | float) and not isinstance(v, bool)}
        assert {f"umqtt_collector_{key}_total" for key in numbers} <= names, "every counter is a metric"
        assert found['umqtt_collector_subscribed{collector="north"}'] == 1
        assert found['umqtt_collector_waiting{collector="north"}'] == 0
        assert found['umqtt_collector_spool_limit_bytes{collector="north"}'] == 1 << 30
        assert found['umqtt_collector_last_message_timestamp_seconds{collector="north"}'] > 1.6e9
    finally:
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_LIMIT_S) == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr", "stdout that was closed"])
def test_nobody_who_reads_its_output_or_a_full_disk_below_it_is_no_reason_not_to_collect(
    mosquitto, publish, tmp_path, stream
):
    root, state = tmp_path / "spool", tmp_path / "status.json"
    where = ["--broker", f"mqtt://127.0.0.1:{mosquitto}", "--spool", root, "--name", "north", "--status", state]
    command = [sys.executable, "-m", "spark_ingest.collector", *where, "--longest-delay", "0.2"]
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "wb") as full, open(writer, "wb") as closed:
        streams = {"stdout": {"stdout": full}, "stderr": {"stderr": full}}.get(stream, {"stdout": closed})
        one = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, **streams)
    try:
        eventually(lambda: status(state).get("subscribed") or one.poll() is not None, "the subscription")
        publish(MESSAGES)
        eventually(lambda: status(state)["messages"] == len(MESSAGES) or one.poll() is not None, "every message")
        assert (status(state)["lost_links"], one.poll()) == (0, None)
        one.terminate()
        assert one.wait(WAIT_LIMIT_S) == 0
    finally:
        one.kill()
        one.wait()
    assert payloads(root) == [payload for _, payload in MESSAGES]


def test_one_that_fails_in_an_unforeseen_way_ends_all_in_order_and_is_told(monkeypatch, tmp_path):
    def fail(self: Collector) -> None:
        if self.config.name == "bad":
            raise RuntimeError("unforeseen")
        while not self._stopping:
            self._sleep(1)

    monkeypatch.setattr(collector_module.Collector, "run", fail)
    monkeypatch.setattr(process_module.signal, "signal", lambda *_: None)
    configs = [CollectorConfig("mqtt://127.0.0.1:1", tmp_path, name) for name in ("good", "bad")]
    with pytest.raises(RuntimeError, match="unforeseen"):
        process_module.run(ProcessConfig(configs))
    for name in ("good", "bad"):
        Spool(tmp_path / name).close()  # The locks are free again.


def test_an_orderly_end_comes_soon_under_load(mosquitto, tmp_path):
    client = publisher(mosquitto)
    with collector_process(mosquitto, tmp_path / "spool") as one:
        one.wait_for_line("subscribed north")
        for i in range(20_000):
            client.publish(TOPIC, struct.pack(">I", i), qos=1)
        assert one.terminate()[0] == 0
        assert not alive(one.pid)
    client.disconnect()
    client.loop_stop()

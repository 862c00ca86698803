"""The broker as a process, with other makers' clients."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from broker_peer import BrokerProcess, Peer, run_broker
from umqtt_testkit.waiting import WAIT_LIMIT_S


def test_an_occupied_port_is_one_line_and_exit_code_2() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = run_broker("-p", str(port))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == (
        f"port {port} on 127.0.0.1 is in use — choose another with -p, or stop the program that holds it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--host", "0.0.0.0"), "--allow-anonymous"),
        (("--host", "::"), "--allow-anonymous"),
        (("-p", "70000"), "between 0 and 65535"),
        (("--store", f"{__file__}/folder/broker.db"), "--store"),
    ],
)
def test_an_unsafe_or_impossible_setting_is_one_line_that_names_the_remedy(
    arguments: tuple[str, ...], remedy: str
) -> None:
    result = run_broker("-p", "0", *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert remedy in result.stderr and result.stderr.count("\n") == 1


def test_two_brokers_never_share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "broker.db"
    link = tmp_path / "link.db"
    link.symlink_to("broker.db")
    with BrokerProcess(store) as broker:
        for path in (store, link):
            result = run_broker("-p", "0", "--store", str(path))
            assert result.returncode == 2 and "open in another broker" in result.stderr
        assert broker.stop() == (0, "")
    assert store.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_everything_committed_and_exit_code_0(tmp_path: Path, number: int) -> None:
    store = tmp_path / "broker.db"
    with BrokerProcess(store) as broker, Peer(broker.port) as peer:
        peer.connect(b"peer", clean_session=False)
        peer.subscribe(b"a", 1)
        peer.send(b"\x30\x03\0\x01a")  # the connection is open when the signal comes
        broker.process.send_signal(number)
        assert broker.process.wait(WAIT_LIMIT_S) == 0
    with BrokerProcess(store) as broker, Peer(broker.port) as peer:
        assert peer.connect(b"peer", clean_session=False)


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub_talk_through_it(tmp_path: Path, qos: str) -> None:
    with BrokerProcess(tmp_path / "broker.db") as broker:
        port = str(broker.port)
        subscriber = ["mosquitto_sub", "-p", port, "-i", "keeper", "-c", "-q", qos, "-t", "house/#"]
        subprocess.run([*subscriber, "-E"], check=True, timeout=WAIT_LIMIT_S)
        publisher = ["mosquitto_pub", "-p", port, "-q", qos, "-t", "house/1", "-l"]
        lines = "".join(f"line {number}\n" for number in range(100))
        if qos == "0":
            subprocess.run(
                ["mosquitto_pub", "-p", port, "-t", "house/1", "-r", "-m", "retained"], check=True, timeout=WAIT_LIMIT_S
            )
            expected, count = "retained\n", "1"
        else:
            subprocess.run(publisher, input=lines, text=True, check=True, timeout=WAIT_LIMIT_S)
            expected, count = lines, "100"
        result = subprocess.run(
            [*subscriber, "-C", count], capture_output=True, text=True, check=True, timeout=WAIT_LIMIT_S
        )
        assert result.stdout == expected

"""The ports that a local Spark listens on are for its own processes."""

import os
import socket
import struct
from pathlib import Path

import pytest
from umqtt_testkit.waiting import WAIT_LIMIT_S


def _listening(pid: str) -> list[int]:
    """Return the TCP ports of a process."""
    files = [os.readlink(one) for one in Path("/proc", pid, "fd").iterdir() if one.is_symlink()]
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files]


def _answer(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S) as link:
        link.sendall(request)
        return link.recv(1000)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="ports are found in /proc")
def test_no_port_of_sparks_serves_who_has_not_its_secret_and_no_command_line_shows_it(spark):
    """Planted: spark.authenticate is false."""
    mine = Path("/proc/self/task").glob("*/children")
    left = [pid for one in mine for pid in one.read_text().split()]
    pids, ports = [], []
    while left:
        pids.append(left.pop())
        left += [pid for one in Path("/proc", pids[-1], "task").glob("*/children") for pid in one.read_text().split()]
        command = Path("/proc", pids[-1], "cmdline").read_bytes()
        assert b"secret" not in command.lower()
        ports += _listening(pids[-1]) if b"java" in command.partition(b"\0")[0] else []
    # Requests of Spark's own protocol (its length, kind 3, a number, the body; the end of a line), and of py4j's.
    asked = struct.pack(">QBQI", 26, 3, 7, 5) + b"hello\n", b"r\nu\njava.lang.System\ne\n"
    answers = [_answer(port, request) for port in ports for request in asked]
    # The driver's messages and the blocks; the gateway knows no command but that with its secret.
    assert sum(b"Expected SaslMessage" in answer for answer in answers) == 2
    assert sum(b"Authentication error" in answer for answer in answers) == len(ports) - 2 == 1, answers
    assert sum(not answer for answer in answers) == 2, answers
    assert not any("secret" in key for key, _ in spark.sparkContext.getConf().getAll())

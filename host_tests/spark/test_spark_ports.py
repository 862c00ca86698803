"""The ports that a local Spark listens on are for its own processes."""

import contextlib
import os
import socket
import struct
from pathlib import Path

import pytest
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually


def _listening(pid: str) -> list[int]:
    """Return the TCP ports of a process."""
    files = [os.readlink(one) for one in Path("/proc", pid, "fd").iterdir() if one.is_symlink()]
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in files]


class _Asked:
    """A connection to a port, on which one request was sent."""

    def __init__(self, port: int, request: bytes) -> None:
        self.answer = b""
        self._link = socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S)
        self._link.sendall(request)
        self._link.setblocking(False)

    def read(self) -> bytes:
        """Return what was answered until now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.answer += self._link.recv(1000)
        return self.answer

    def close(self) -> None:
        self._link.close()


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
    links = [_Asked(port, request) for port in ports for request in asked]
    # The driver's messages and the blocks; the gateway knows no command but that with its secret. Other ports, such as
    # those on which Java waits for a process that it has started, say nothing.
    refusals = b"Expected SaslMessage", b"Authentication error", b"Unknown command received"

    def counts() -> list[int]:
        answers = [link.read() for link in links]
        return [sum(refusal in answer for answer in answers) for refusal in refusals]

    eventually(lambda: counts() == [2, 1, 1])
    for link in links:
        assert not link.answer or any(refusal in link.answer for refusal in refusals), link.answer
        link.close()
    assert not any("secret" in key for key, _ in spark.sparkContext.getConf().getAll())

"""The real mosquitto as a judge: started with a configuration, asked what it allows.

MQTT 5 is spoken to it because only there a PUBACK says whether the message was allowed.
"""

import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path
from types import TracebackType

import pytest
from patience import PATIENCE
from umqtt_testkit.ports import reserved_port

NOT_AUTHORIZED = 0x87


def require_mosquitto(program: str = "mosquitto") -> str:
    """Return the path of the program, or skip the test."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


class Mosquitto:
    """A mosquitto on a free port of 127.0.0.1 with the settings given, one a line."""

    def __init__(self, folder: Path, settings: str) -> None:
        self._program = require_mosquitto()
        self.port = reserved_port()
        self._config = folder / "mosquitto.conf"
        # As root it would become the user mosquitto, who may not read files of 0600.
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\nuser root\nlog_dest stderr\nset_tcp_nodelay true\n{settings}\n"
        )

    def __enter__(self) -> "Mosquitto":
        self._process = subprocess.Popen(
            [self._program, "-c", str(self._config)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.wait_for_log(" running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line.decode(errors="replace").rstrip())
                self._changed.notify_all()
        with self._changed:
            self._lines.append("the end")
            self._changed.notify_all()

    def wait_for_log(self, text: str) -> None:
        """Wait for a line that holds `text`, and forget everything up to it."""
        with self._changed:
            while True:
                for index, line in enumerate(self._lines):
                    if text in line:
                        del self._lines[: index + 1]
                        return
                    assert line != "the end", f"mosquitto ended before {text!r}: {self._lines}"
                assert self._changed.wait(PATIENCE), f"no {text!r} in {self._lines}"

    def reload(self) -> None:
        """Make it read its files again. What is sent to it afterwards is judged by the new ones."""
        os.kill(self._process.pid, signal.SIGHUP)
        # It looks at signals when something happens on the network, or after 100 ms.
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE):
            self.wait_for_log("Reloading config")


class Client5:
    """An MQTT 5 client of a few packets."""

    def __init__(
        self, port: int, client_id: bytes, username: bytes | None = None, password: bytes | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self.packet_id = 0
        flags = 2 | (username is not None) << 7 | (password is not None) << 6
        body = _text(b"MQTT") + struct.pack(">BBHB", 5, flags, 60, 0) + _text(client_id)
        self._send(0x10, body + b"".join(_text(field) for field in (username, password) if field is not None))
        kind, answer = self._receive()
        assert kind == 0x20
        self.reason = answer[1]

    def __enter__(self) -> "Client5":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()

    def publish(self, topic_names: list[bytes]) -> set[bytes]:
        """Publish to each at QoS 1, one after the other, and return those that the broker took."""
        first, packets = self.packet_id + 1, b""
        for topic_name in topic_names:
            self.packet_id += 1
            packets += _packet(0x32, _text(topic_name) + struct.pack(">HB", self.packet_id, 0))
        self._socket.sendall(packets)
        taken = set()
        for packet_id, topic_name in enumerate(topic_names, first):
            kind, answer = self._receive()
            assert kind == 0x40 and answer[:2] == struct.pack(">H", packet_id), (kind, answer)
            if len(answer) == 2 or answer[2] < 0x80:
                taken.add(topic_name)
            else:
                assert answer[2] == NOT_AUTHORIZED, answer
        return taken

    def subscribe(self, *topic_filters: bytes) -> bytes:
        """Subscribe at QoS 0 and return the reason codes. The SUBACK must be the next packet."""
        self.packet_id += 1
        requests = b"".join(_text(topic_filter) + b"\0" for topic_filter in topic_filters)
        self._send(0x82, struct.pack(">HB", self.packet_id, 0) + requests)
        kind, answer = self._receive()
        assert kind == 0x90, (kind, answer)
        return answer[3:]

    def received(self) -> set[bytes]:
        """Return the topic names of all messages that the broker has sent until now."""
        self._send(0xC0, b"")
        topic_names = set()
        while True:
            kind, body = self._receive()
            if kind == 0xD0:
                return topic_names
            assert kind & 0xF0 == 0x30, kind
            topic_names.add(body[2 : 2 + struct.unpack(">H", body[:2])[0]])

    def _send(self, first_byte: int, body: bytes) -> None:
        self._socket.sendall(_packet(first_byte, body))

    def _receive(self) -> tuple[int, bytes]:
        kind = self._read(1)[0]
        length = shift = 0
        while True:
            digit = self._read(1)[0]
            length |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return kind, self._read(length)

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        assert len(data) == count, "the broker closed the connection"
        return data


def _text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def _packet(first_byte: int, body: bytes) -> bytes:
    length, head = len(body), bytearray([first_byte])
    while True:
        length, digit = length >> 7, length & 127
        head.append(digit | (128 if length else 0))
        if not length:
            return bytes(head) + body

"""Readings for the ingestion's bench: made once, published at QoS 1 as fast as the broker takes them, or at a rate."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Sequence

from umqtt_testkit.encoder import connect, disconnect, publish

_IDS = 60_000
_CHUNK = 500
_PATIENCE_S = 60.0


def record(device: int, seq: int, ts_ms: int) -> bytes:
    """Return a telemetry record's payload, as a board makes it."""
    return (
        f'{{"v":1,"id":"device-{device:06d}","boot":"17-9f3a2c5d8e1b4a70","seq":{seq},"ts":{ts_ms},"up":{seq * 1000},'
        '"m":{"temp_c":21.4,"rssi":-61,"mem_free":104320}}'
    ).encode()


def readings(count: int, devices: int, tree: str = "fleet", first: int = 0) -> list[tuple[bytes, bytes]]:
    """Return topics and payloads of `count` readings of `devices` devices in turn.

    first: the number of readings made before.
    """
    now = time.time_ns() // 1_000_000
    return [
        (b"%s/device-%06d/telemetry" % (tree.encode(), n % devices), record(n % devices, n // devices, now))
        for n in range(first, first + count)
    ]


def packets(messages: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the PUBLISH packets of messages, with packet ids that do not repeat within 60,000."""
    return [publish(topic, payload, 1, n % _IDS + 1) for n, (topic, payload) in enumerate(messages)]


class Publisher:
    """A client on a raw socket, so that the cost of the load is not measured."""

    def __init__(self, port: int, client_id: str = "bench-publisher") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(connect(client_id.encode()))
        connack = self._socket.recv(4)
        if connack[3:] != b"\0":
            raise ConnectionError(f"the broker answered CONNECT with {connack.hex()}")

    def close(self) -> None:
        """Disconnect."""
        self._socket.sendall(disconnect())
        self._socket.close()

    def blast(self, sent: Sequence[bytes], window: int = 20_000) -> None:
        """Publish with at most `window` messages unacknowledged; return when all are acknowledged."""
        chunks = [b"".join(sent[at : at + _CHUNK]) for at in range(0, len(sent), _CHUNK)]
        acknowledged = begun = 0
        waiting = memoryview(b"")
        self._socket.setblocking(False)
        deadline = time.monotonic() + _PATIENCE_S
        while acknowledged < len(sent) * 4:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{acknowledged // 4} of {len(sent)} messages acknowledged in {_PATIENCE_S:g} s")
            if not waiting and begun < len(chunks) and begun * _CHUNK - acknowledged // 4 < window:
                waiting, begun = memoryview(chunks[begun]), begun + 1
            readable, writable, _ = select.select([self._socket], [self._socket] if waiting else [], [], 1.0)
            if writable:
                waiting = waiting[self._socket.send(waiting) :]
            if readable:
                data = self._socket.recv(1 << 20)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                acknowledged += len(data)
        self._socket.setblocking(True)

    def steady(self, rate: int, seconds: float, devices: int, first: int) -> dict[tuple[str, int], float]:
        """Publish `rate` new readings a second; return when each was made (Unix seconds), by device and seq."""
        made: dict[tuple[str, int], float] = {}
        begun, number = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < seconds:
            due = round(passed * rate)
            while number < due:
                n = first + number
                device, seq, now = n % devices, n // devices, time.time()
                payload = record(device, seq, int(now * 1000))
                topic = b"fleet/device-%06d/telemetry" % device
                self._socket.sendall(publish(topic, payload, 1, n % _IDS + 1))
                made[f"device-{device:06d}", seq] = now
                number += 1
            if select.select([self._socket], [], [], 0.002)[0]:
                self._socket.recv(1 << 16)
        return made

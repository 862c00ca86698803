"""An MQTT 5 client for mosquitto as the reference: only MQTT 5's PUBACK says whether the message was allowed."""

import socket
import struct

from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

NOT_AUTHORIZED = 0x87


class Client5:
    """An MQTT 5 client with few packets."""

    def __init__(
        self, port: int, client_id: bytes, username: bytes | None = None, password: bytes | None = None
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self.packet_id = 0
        flags = 2 | (username is not None) << 7 | (password is not None) << 6
        # No properties: a length of 0 after the keep_alive, which no other version has.
        head = encoder.string(b"MQTT") + bytes((5, flags)) + encoder.uint16(60) + b"\0"
        fields = [client_id, *(field for field in (username, password) if field is not None)]
        self._send(encoder.first_byte(encoder.CONNECT), head + b"".join(map(encoder.string, fields)))
        kind, answer = self._receive()
        assert kind == 0x20
        self.reason = answer[1]

    def __enter__(self) -> "Client5":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def publish(self, topic_names: list[bytes]) -> set[bytes]:
        """Publish to each at QoS 1, one after the other, and return those that the broker accepted."""
        first, packets = self.packet_id + 1, b""
        for topic_name in topic_names:
            self.packet_id += 1
            packets += encoder.publish(topic_name, b"\0", 1, self.packet_id)
        self._socket.sendall(packets)
        taken = set()
        for packet_id, topic_name in enumerate(topic_names, first):
            kind, answer = self._receive()
            assert kind == 0x40 and answer[:2] == encoder.uint16(packet_id), (kind, answer)
            if len(answer) == 2 or answer[2] < 0x80:
                taken.add(topic_name)
            else:
                assert answer[2] == NOT_AUTHORIZED, answer
        return taken

    def subscribe(self, *topic_filters: bytes) -> bytes:
        """Subscribe at QoS 0 and return the reason codes. The SUBACK must be the next packet."""
        self.packet_id += 1
        requests = b"".join(encoder.string(topic_filter) + b"\0" for topic_filter in topic_filters)
        self._send(encoder.first_byte(encoder.SUBSCRIBE), encoder.uint16(self.packet_id) + b"\0" + requests)
        kind, answer = self._receive()
        assert kind == 0x90, (kind, answer)
        return answer[3:]

    def received(self) -> set[bytes]:
        """Return the topic names of all messages that the broker has sent so far."""
        self._send(encoder.first_byte(encoder.PINGREQ), b"")
        topic_names = set()
        while True:
            kind, body = self._receive()
            if kind == 0xD0:
                return topic_names
            assert kind & 0xF0 == 0x30, kind
            topic_names.add(body[2 : 2 + struct.unpack(">H", body[:2])[0]])

    def _send(self, first_byte: int, body: bytes) -> None:
        self._socket.sendall(encoder.encode(first_byte, body))

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

"""Brokers that play MQTT clouds: the paired broker behind the documented rules of a cloud (cloud_rules).

    with CloudBroker("azure") as cloud:
        ... connect a device to cloud.url, with cloud.user and cloud.secret ...
        cloud.messages                     # what the cloud has taken, in order
        cloud.refusals                     # the rules that were broken
        cloud.send("devices/pump-7/messages/devicebound/", b"…")
        cloud.disconnect()                 # as at a maintenance: every link ends
        cloud.forget_sessions()            # as after the cloud's limit for clients that are away

As a process: `python -m umqtt_testkit.cloud_broker NAME --upstream PORT` plays it without a login; it prints
`listening on HOST:PORT`.

What it cannot play: dashboards, rules engines, device registries, and ThingsBoard's `me`, which is every device here.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

from . import encoder
from .cloud_rules import CLOUDS, LONGEST_SILENCE_S, Rule, points, rules_of, sas_expiry
from .paired_broker import paired_broker
from .wire import Packet, Type

# The login that each cloud knows: (user or hub, password, key or token).
LOGINS = {
    "azure": ("hub.azure-devices.example", "c2VjcmV0IGtleSBvZiBwdW1wLTc="),
    "thingsboard": ("", "A1_TOKEN"),
    "adafruitio": ("ada", "aio_key"),
    "hivemq": ("pump", "password"),
    "emqx": ("pump", "password"),
}
# Return codes of MQTT 3.1.1 as reason codes of MQTT 5.
_REASONS = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
_BAN_S = 30
# Adafruit IO bans who exceeds the rate "too often within a short time span"; the number is ours.
_THROTTLED_BEFORE_BAN = 10
_REJECTED_BEFORE_BAN = 10  # a minute


@dataclass(frozen=True)
class Message:
    """A message that a cloud has taken. A message that was sent again is there twice."""

    client_id: str
    topic: str
    payload: bytes
    qos: int
    retain: bool


class CloudBroker:
    """A cloud on 127.0.0.1.

    name: one of cloud_rules.CLOUDS. user, secret: the login it knows, see LOGINS. now: Unix time in seconds. tls: a
    server's SSLContext; without it, links are not encrypted. upstream: the port of a broker on 127.0.0.1 that asks for
    no password; without it, a paired broker is started, which needs the extra `broker`. allows(client_id, topic): the
    policy of AWS; by default a client may use fleet/ITS ID/…, and one whose id begins with umqtt-collector may read
    fleet/….

    Attributes: port; url; messages; refusals: (rule, client id) each; links: how many there have been.
    """

    def __init__(
        self,
        name: str,
        *,
        user: str | None = None,
        secret: str | None = None,
        now: Callable[[], float] = time.time,
        tls: ssl.SSLContext | None = None,
        upstream: int | None = None,
        allows: Callable[[str, str], bool] | None = None,
    ) -> None:
        self.name = name
        self.rules = rules_of(name)
        self.user, self.secret = LOGINS.get(name, ("", ""))
        self.user = self.user if user is None else user
        self.secret = self.secret if secret is None else secret
        self.now = now
        self.allows = allows or _own_topics
        self.messages: list[Message] = []
        self.refusals: list[tuple[Rule, str]] = []
        self.links = 0
        self.banned_until = 0.0
        self.throttled = 0
        self.events: dict[tuple[str, str], deque[float]] = {}
        self._stack = ExitStack()
        self._upstream = self._stack.enter_context(paired_broker()) if upstream is None else upstream
        self._tls = tls
        self._names: dict[int, str] = {}
        if tls is not None:
            tls.sni_callback = self._note_name
        self._open: set[Link] = set()
        self._ids: set[bytes] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"cloud {name}", daemon=True)
        self._thread.start()
        self._run(self._start())

    @property
    def url(self) -> str:
        return f"mqtt{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def send(self, topic: str, payload: bytes) -> None:
        """Publish to the devices, at QoS 1, as the cloud itself does."""
        self._run(self._as_client(encoder.publish(topic.encode(), payload, 1, 1), b"cloud"))

    def disconnect(self) -> int:
        """End every link, as clouds do for maintenance; return how many."""

        async def end() -> int:
            links = list(self._open)
            for link in links:
                link.end()
            return len(links)

        return self._run(end())

    def forget_sessions(self) -> None:
        """End every link and forget the sessions, as after the cloud's limit: an hour at AWS, two at EMQX."""
        self.disconnect()
        for client_id in self._ids:
            self._run(self._as_client(b"", client_id))

    def close(self) -> None:
        """Stop. May be called again."""
        if not self._loop.is_closed():
            self.forget_sessions()
            self._run(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    def _note_name(self, sock: Any, name: str | None, _context: object) -> None:
        self._names[id(sock)] = name or ""

    async def _as_client(self, packet: bytes, client_id: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        writer.write(encoder.connect(client_id) + packet)
        await reader.readexactly(8 if packet else 4)  # CONNACK, and PUBACK
        writer.write(encoder.disconnect())
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(self, reader, writer, self._names)
        self._open.add(link)
        self.links += 1
        try:
            await link.serve(self._upstream)
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client, or the cloud, has ended it
        finally:
            self._open.discard(link)
            self._ids.add(link.client_id.encode())
            link.end()


def _own_topics(client_id: str, topic: str) -> bool:
    if client_id.startswith("umqtt-collector"):
        return topic.startswith("fleet/")
    return topic.startswith(f"fleet/{client_id}/")


class Link:
    """One client's link, as the rules see it: client_id; cloud; secure: by TLS; sni: the name it asked for."""

    def __init__(
        self, cloud: CloudBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, names: dict[int, str]
    ) -> None:
        self.cloud = cloud
        self.client_id = ""
        sock = writer.get_extra_info("ssl_object")
        self.secure = sock is not None
        self.sni = names.pop(id(sock), "")
        self._level = 4
        self._filters: set[bytes] = set()
        self._reader, self._writer = reader, writer
        self._up: asyncio.StreamWriter | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._copier: asyncio.Task[None] | None = None

    # What rules ask

    def rate(self, what: str, period_s: float, count: int = 1) -> int:
        """Count an event, of a client or of the whole account; return how many there were in the last period."""
        whose = self.client_id if self.cloud.name in ("aws", "emqx") else ""
        events = self.cloud.events.setdefault((what, whose), deque())
        now = self.cloud.now()
        while events and events[0] <= now - period_s:
            events.popleft()
        events.extend([now] * count)
        return len(events)

    def allowed(self, topic: bytes | None) -> bool:
        """Return whether the policy lets this client use a topic or filter."""
        return self.cloud.allows(self.client_id, (topic or b"").decode())

    def subscribed(self, packet: Packet) -> int:
        """Return how many filters this client has with those of a SUBSCRIBE."""
        return len(self._filters | {one for one, _ in packet.topic_filters})

    # The relay

    async def serve(self, upstream: int) -> None:
        """Relay packets that break no rule to the paired broker, until the link ends."""
        data = b""
        limit = LONGEST_SILENCE_S.get(self.cloud.name)
        while True:
            async with asyncio.timeout(limit):
                chunk = await self._reader.read(1 << 20)
            if not chunk:
                return
            packets, data = encoder.split_packets(data + chunk)
            for first, body in packets:
                packet = read_packet(first, body, self._level)
                if packet.type is Type.CONNECT:
                    self._level = packet.protocol_level
                    self.client_id = packet.client_id.decode()
                for rule in self.cloud.rules:
                    if rule.packet is packet.type and rule.broken(packet, self):
                        self.cloud.refusals.append((rule, self.client_id))
                        if not await self._answer(rule.answer, packet):
                            break
                else:
                    await self._pass_on(packet, upstream)

    async def _pass_on(self, packet: Packet, upstream: int) -> None:
        if packet.type is Type.CONNECT and self._up is None:
            reader, self._up = await asyncio.open_connection("127.0.0.1", upstream)
            self._copier = asyncio.create_task(self._copy(reader))
            if self.cloud.name == "azure":
                left = sas_expiry(packet.password) - self.cloud.now()
                self._timers.append(asyncio.get_running_loop().call_later(left, self.end))
        if self._up is None:
            raise ConnectionResetError("no CONNECT")
        if packet.type is Type.SUBSCRIBE:
            self._filters.update(one for one, _ in packet.topic_filters)
        self._up.write(packet.raw)
        await self._up.drain()
        if packet.type is Type.PUBLISH:
            self._take(packet)

    def _take(self, packet: Packet) -> None:
        topic = (packet.topic_name or b"").decode()
        self.cloud.messages.append(Message(self.client_id, topic, packet.payload, packet.qos, packet.retain))

    async def _answer(self, answer: int | str, packet: Packet) -> bool:
        # Returns True if the packet goes on all the same.
        if isinstance(answer, int):
            if self._level == 5:
                self._writer.write(encoder.connack(return_code=_REASONS.get(answer, 0x80), properties=b"\0"))
            else:
                self._writer.write(encoder.connack(return_code=answer))
            await self._writer.drain()
        if isinstance(answer, int) or answer == "close":
            raise ConnectionResetError(answer)
        if answer == "wait":
            await asyncio.sleep(0.1)
            return True
        if answer in ("as 1", "lose") and packet.qos:
            self._writer.write(encoder.acknowledgement(encoder.PUBACK, packet.packet_id or 0))
        if answer == "as 1":
            self._take(packet)
        if answer == "grant 1":
            pairs = [(one, min(qos, 1)) for one, qos in packet.topic_filters]
            packet.raw = encoder.subscribe(packet.packet_id or 0, *pairs)
            return True
        if answer == "refuse":
            codes = [0x80] * len(packet.topic_filters)
            properties = [0] if self._level == 5 else []
            self._writer.write(encoder.suback(packet.packet_id or 0, *properties, *codes))
        elif answer == "throttle":
            self._throttle(packet)
        elif answer == "reject":
            self._notify("errors", b"PUBLISH %s rejected, not a valid resource topic" % (packet.topic_name or b""))
            if self.rate("rejected", 60) >= _REJECTED_BEFORE_BAN:
                self._ban()
        return False

    def _notify(self, leaf: str, text: bytes) -> None:
        topic = f"{self.cloud.user}/{leaf}".encode()
        if topic in self._filters:
            self._writer.write(encoder.publish(topic, text))

    def _ban(self) -> None:
        self.cloud.banned_until = self.cloud.now() + _BAN_S
        raise ConnectionResetError("banned")

    def _throttle(self, packet: Packet) -> None:
        cloud = self.cloud
        cloud.throttled += 1
        if packet.qos:
            self._writer.write(encoder.acknowledgement(encoder.PUBACK, packet.packet_id or 0))
        self._notify("throttle", b"data rate limit reached, %d points refused; wait 60 seconds" % points(packet))
        if cloud.throttled >= _THROTTLED_BEFORE_BAN:
            cloud.throttled = 0
            self._ban()

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self._writer.write(data)
                await self._writer.drain()
        self.end()

    def end(self) -> None:
        """End the link and that to the paired broker, which then publishes the will. May be called again."""
        for timer in self._timers:
            timer.cancel()
        for writer in (self._writer, self._up):
            if writer is not None:
                writer.close()


def read_packet(first: int, body: bytes, level: int) -> Packet:
    """Return a client's packet with the fields that rules look at; MQTT 3.1.1, or MQTT 5 by its level."""
    packet = Packet(Type(first >> 4), encoder.encode(first, body))
    if packet.type is Type.CONNECT:
        _, at = encoder.parse_string(body, 0)
        packet.protocol_level = level = body[at] & 127
        flags = body[at + 1]
        packet.clean_session = bool(flags & 2)
        packet.keep_alive = int.from_bytes(body[at + 2 : at + 4], "big")
        at = _after_properties(body, at + 4, level)
        packet.client_id, at = encoder.parse_string(body, at)
        if flags & 4:
            packet.will_topic, at = encoder.parse_string(body, _after_properties(body, at, level))
            packet.will_payload, at = encoder.parse_string(body, at)
        if flags & 128:
            packet.user_name, at = encoder.parse_string(body, at)
        if flags & 64:
            packet.password, at = encoder.parse_string(body, at)
    elif packet.type is Type.PUBLISH:
        packet.qos, packet.retain, packet.dup = first >> 1 & 3, bool(first & 1), bool(first & 8)
        packet.topic_name, at = encoder.parse_string(body, 0)
        if packet.qos:
            packet.packet_id = int.from_bytes(body[at : at + 2], "big")
            at += 2
        packet.payload = body[_after_properties(body, at, level) :]
    elif packet.type is Type.SUBSCRIBE:
        packet.packet_id = int.from_bytes(body[:2], "big")
        at = _after_properties(body, 2, level)
        while at < len(body):
            topic_filter, at = encoder.parse_string(body, at)
            packet.topic_filters.append((topic_filter, body[at]))
            at += 1
    return packet


def _after_properties(body: bytes, at: int, level: int) -> int:
    return encoder.parse_properties(body, at)[1] if level == 5 else at


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m umqtt_testkit.cloud_broker", description="a cloud's rules")
    parser.add_argument("name", choices=CLOUDS)
    parser.add_argument("--upstream", type=int, required=True, metavar="PORT", help="of a broker on 127.0.0.1")
    options = parser.parse_args(arguments)
    cloud = CloudBroker(options.name, user="", secret="", upstream=options.upstream)
    print(f"listening on 127.0.0.1:{cloud.port}", flush=True)
    # Its thread serves until the signal ends the process; the broker behind it keeps the sessions.
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())

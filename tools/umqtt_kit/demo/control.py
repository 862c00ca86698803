"""The demo's own link to the broker, beside the faulty network: who is online, and commands with replies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence

from umqtt_robust import Client
from umqtt_robust.store import MemoryStore

_WAITING_COMMANDS = 4096


class Control:
    """A link that is driven by poll(). online: ids of the devices whose retained status says that they are online."""

    def __init__(self, broker: str) -> None:
        self.online: set[str] = set()
        self._replies: dict[str, object] = {}
        self._refusals: dict[str, str] = {}
        self._client = Client(
            f"umqtt-demo-{os.urandom(4).hex()}".encode(),
            (broker,),
            # A reply that comes while the link is down waits at the broker.
            clean_session=False,
            store=MemoryStore(_WAITING_COMMANDS),
        )
        for leaf, handler in (("status", self._on_status), ("reply", self._on_reply)):
            topic_filter = f"fleet/+/{leaf}".encode()
            self._client.on(topic_filter, handler)
            self._client.subscribe(topic_filter, qos=1)

    @property
    def connected(self) -> bool:
        return self._client.connected

    def poll(self, wait_ms: int) -> None:
        """Handle what has arrived; wait up to wait_ms for something to come."""
        self._client.poll(wait_ms)

    def command(self, device_ids: Iterable[str], name: str, qos: int = 1) -> Replies:
        """Send a command to every device; the replies come in during poll(). An id may be there more than once."""
        expected: list[tuple[str, str]] = []
        for device_id in device_ids:
            command_id = os.urandom(6).hex()
            expected.append((device_id, command_id))
            payload = json.dumps({"id": command_id, "cmd": name}).encode()
            self.send(device_id, payload, qos)
        return Replies(self, expected)

    def send(self, device_id: str, payload: bytes, qos: int = 1) -> None:
        self._client.publish(f"fleet/{device_id}/cmd".encode(), payload, qos=qos)

    def reply(self, command_id: str) -> object | None:
        """Return the `result` of a reply that has come, or None."""
        return self._replies.get(command_id)

    def refusal(self, command_id: str) -> str | None:
        """Return why a device did not carry out a command, or None."""
        return self._refusals.get(command_id)

    def _on_status(self, topic: bytes, payload: bytes) -> None:
        device_id = topic.decode().split("/")[1]
        if json.loads(payload)["online"]:
            self.online.add(device_id)
        else:
            self.online.discard(device_id)

    def _on_reply(self, _topic: bytes, payload: bytes) -> None:
        reply = json.loads(payload)
        if reply["ok"]:
            self._replies[reply["id"]] = reply["result"]
        else:
            self._refusals[reply["id"]] = str(reply["result"])


class Replies:
    """The replies to commands. expected: device and id of each."""

    def __init__(self, control: Control, expected: Sequence[tuple[str, str]]) -> None:
        self._control = control
        self._expected = expected

    @property
    def missing(self) -> list[str]:
        """The devices that have not yet replied with success."""
        return [device_id for device_id, command_id in self._expected if self._control.reply(command_id) is None]

    @property
    def why_missing(self) -> list[str]:
        """For each device in `missing`: its id, and what it replied instead."""
        return [
            f"{device_id}: {self._control.refusal(command_id) or 'no reply'}"
            for device_id, command_id in self._expected
            if self._control.reply(command_id) is None
        ]

    def total(self, name: str) -> int:
        """Return the sum of one number over the results that have come."""
        results = [self._control.reply(command_id) for _, command_id in self._expected]
        return sum(result[name] for result in results if isinstance(result, dict))

    @property
    def complete(self) -> bool:
        return not self.missing

"""Commands to a device over the broker, and its replies; firmware/app/commands.py is the other end.

    fleet/{device_id}/cmd     {"id": "…", "cmd": "set", "args": {"key": "interval_ms", "value": 500}}   QoS 2
    fleet/{device_id}/reply   {"id": "…", "ok": true, "result": …}

A command is carried out once however often it is sent under one id; sent again, its reply comes again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from umqtt_kit.errors import EXIT_DEVICE, EXIT_NETWORK, KitError
from umqtt_kit.mqtt import Access, Link

_SENT_WITHIN_S = 10.0


class Remote:
    """Connected, and subscribed to the replies and the status of one device, within the context.

    status: the last that it said, {} for none. Raises KitError (exit code 4).
    """

    def __init__(self, access: Access, device_id: str) -> None:
        self.device_id = device_id
        self.status: dict[str, Any] = {}
        self._replies: dict[str, dict[str, Any]] = {}
        self._url = access.url
        self._link = Link(access, on_message=self._take)

    def __enter__(self) -> Self:
        self._link.__enter__()
        try:
            # The status first, which is retained: it has come before any reply can.
            self._link.subscribe(self._topic("status"), self._topic("reply"))
        except BaseException:
            self._link.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.__exit__(kind, error, trace)

    @property
    def asleep(self) -> bool:
        """Whether it has said that it sleeps until its next reading."""
        return self.status.get("reason") == "sleeping"

    def ask(
        self, command: str, args: Mapping[str, Any], timeout_s: float | None, command_id: str | None = None
    ) -> dict[str, Any]:
        """Send a command and wait for its reply: {"id", "ok", "result"}. timeout_s: None waits for ever.

        Raises KitError (exit code 4) when none comes in time; what the device refuses is a reply.
        """
        command_id = command_id or secrets.token_hex(8)
        self.send(command, args, command_id)
        self._link.wait_for(lambda: command_id in self._replies, timeout_s)
        reply = self._replies.get(command_id)
        if reply is None:
            why = self._why(command_id)
            raise KitError(f"{self.device_id} did not answer within {timeout_s:g} s: {why}", EXIT_NETWORK)
        return reply

    def send(self, command: str, args: Mapping[str, Any], command_id: str) -> None:
        """Send a command; returns when the broker has it. Raises KitError."""
        payload = json.dumps({"id": command_id, "cmd": command, "args": dict(args)}, ensure_ascii=False)
        self._link.publish(self._topic("cmd"), payload.encode(), qos=2)
        if not self._link.wait_for(lambda: not self._link.pending, _SENT_WITHIN_S):
            raise KitError(f"{self._url} does not take the command — see its log", EXIT_NETWORK)

    def _why(self, command_id: str) -> str:
        again = f"ask again with --id {command_id}"
        if not self.status:
            return f"{self._url} knows no device of that name — see those it knows: umqtt sub 'fleet/+/status'"
        if self.asleep:
            return f"it sleeps, and has the command at its next wake — wait with --wait, or {again}"
        if not self.status.get("online"):
            return f"it is offline ({self.status.get('reason')}), and has the command when it is back — {again}"
        return f"its last status is {self.status.get('reason')!r} — {again}, or see: umqtt logs"

    def _topic(self, leaf: str) -> str:
        return f"fleet/{self.device_id}/{leaf}"

    def _take(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        try:
            found = json.loads(payload)
        except ValueError:
            return  # not of this firmware, so nobody's reply
        if not isinstance(found, dict):
            return
        if topic.endswith("/status"):
            self.status = found
        else:
            self._replies[str(found.get("id"))] = found


def result_of(reply: Mapping[str, Any], device_id: str, command: str) -> Any:
    """What the device answered. Raises KitError (exit code 5) with its words when it refused."""
    if not reply.get("ok"):
        raise KitError(f"{device_id}: {command}: {reply.get('result')}", EXIT_DEVICE)
    return reply.get("result")

"""The conversation with one device over MQTT: its commands and replies, its status, and the pieces that it asks for."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from umqtt_kit.deploy.telemetry import Access
from umqtt_kit.errors import EXIT_DEVICE, EXIT_NETWORK, EXIT_NO_DEVICE, KitError
from umqtt_kit.ota.release import Release
from umqtt_robust.errors import MQTTError

_POLL_MS = 100
_CONNECTED_WITHIN_S = 10.0
_LARGEST_PIECE = 4096


class Talk:
    """Connected and subscribed within the context. Raises KitError (exit code 4) when the broker cannot be reached."""

    def __init__(self, access: Access, device: str) -> None:
        self.device = device
        self.status: dict[str, Any] = {}
        self._access = access
        self._replies: dict[str, dict[str, Any]] = {}
        self._release: Release | None = None
        self._on_sent: Callable[[int], object] = lambda size: None
        self._problem: BaseException | None = None

    def __enter__(self) -> Self:
        where = ", ".join(self._access.addresses)
        try:
            self._client = self._access.client(on_error=self._note)
            for leaf, qos, handler in (
                ("reply", 1, self._take_reply),
                ("status", 1, self._take_status),
                ("update/want", 0, self._take_want),
            ):
                self._client.on(self._topic(leaf), handler)
                self._client.subscribe(self._topic(leaf), qos=qos)
        except MQTTError as error:
            raise KitError(f"{where}: {error} — correct --broker", EXIT_NETWORK) from error
        self._drive(lambda: self._client.connected and self._client.subscribed, _CONNECTED_WITHIN_S)
        if not (self._client.connected and self._client.subscribed):
            why = f" ({self._problem})" if self._problem is not None else ""
            raise KitError(f"no connection to {where}{why} — is the broker running? See --broker", EXIT_NETWORK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect(1000)
        self._drive(lambda: self._client.closed, 2.0)

    def serve(self, release: Release, on_sent: Callable[[int], object]) -> None:
        """Answer what the device asks for from now on. on_sent: called with the bytes of each piece."""
        self._release, self._on_sent = release, on_sent

    def ask(
        self, command: str, args: Mapping[str, Any], timeout_s: float, may_wait: bool = False
    ) -> dict[str, Any]:
        """The result of a command. may_wait: the device may be asleep or away, and that is no error of its own.

        Raises KitError: 3 when no reply comes in time, 5 when the device refuses.
        """
        command_id = secrets.token_hex(8)
        payload = {"id": command_id, "cmd": command, "args": dict(args)}
        self._client.publish(self._topic("cmd"), json.dumps(payload).encode(), qos=2)
        self._drive(lambda: command_id in self._replies, timeout_s)
        reply = self._replies.get(command_id)
        if reply is None:
            raise self._silence(command, timeout_s, may_wait)
        if not reply.get("ok"):
            raise KitError(f"{self.device}: {command}: {reply.get('result')}", EXIT_DEVICE)
        result = reply.get("result")
        return result if isinstance(result, dict) else {"result": result}

    def _silence(self, command: str, timeout_s: float, may_wait: bool) -> KitError:
        seen = f"its last status is {self.status.get('reason')!r}" if self.status else "it has no status there"
        if may_wait:
            return KitError(
                f"{self.device} did not finish {command} within {timeout_s:g} s ({seen}); it goes on by itself — "
                "look again later, or give a longer --timeout",
                EXIT_NETWORK,
            )
        return KitError(
            f"{self.device} did not answer within {timeout_s:g} s at {', '.join(self._access.addresses)}; {seen} — "
            "check the name and that the board is on",
            EXIT_NO_DEVICE,
        )

    def _topic(self, leaf: str) -> str:
        return f"fleet/{self.device}/{leaf}"

    def _drive(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._client.tick()
        while not condition() and time.monotonic() < deadline:
            self._client.poll(_POLL_MS)

    def _take_reply(self, topic: bytes, payload: bytes) -> None:
        reply = _object(payload)
        self._replies[str(reply.get("id"))] = reply

    def _take_status(self, topic: bytes, payload: bytes) -> None:
        self.status = _object(payload)

    def _take_want(self, topic: bytes, payload: bytes) -> None:
        # Whatever else comes on this topic is for another release, and its owner answers.
        words = payload.decode("ascii", "replace").split()
        content = self._release.objects.get(words[0]) if self._release and len(words) == 3 else None
        if content is None or not (words[1].isdigit() and words[2].isdigit()):
            return
        offset, size = int(words[1]), min(int(words[2]), _LARGEST_PIECE)
        piece = content[offset : offset + size]
        head = f"{words[0]} {offset} {len(content)}\n".encode()
        self._client.publish(self._topic("update/data"), head + piece)
        self._on_sent(len(piece))

    def _note(self, problem: BaseException) -> None:
        self._problem = problem


def _object(payload: bytes) -> dict[str, Any]:
    # What this firmware sends is an object; anything else is nobody's reply.
    try:
        found = json.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

"""Commands to a device over the broker, and its replies; firmware/app/commands.py is the other end.

    fleet/{device_id}/cmd     {"id": "…", "cmd": "set", "args": {"key": "interval_ms", "value": 500}}   QoS 1
    fleet/{device_id}/reply   {"id": "…", "ok": true, "result": …}

The device carries out a command once, however often it is sent under one id; if it is sent again, the reply is
repeated. Commands that need a signature are signed if there is a key of the device (keys.py). What was done is then
believed only if the device has signed that too; a refusal need not be signed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.keys import ENVIRONMENT, Keys
from umqtt_kit.links import Links
from umqtt_kit.mqtt import Access

#: Largest payload of a command that a device accepts, in bytes: _MAX_COMMAND_BYTES of firmware/app/commands.py.
MOST_BYTES = 900
_SENT_WITHIN_S = 30.0
_STATUS_WITHIN_S = 1.0
# Parts of replies that come from firmware/app/guard.py.
_WRONG_SIGNATURE = "signature is wrong"
_UNSIGNED = "must be signed"


class NoReply(KitError):
    """The device did not answer in time. command_id: of the command; reason: what is known about the silence."""

    def __init__(self, message: str, command_id: str, reason: str) -> None:
        super().__init__(message, EXIT_NETWORK)
        self.command_id = command_id
        self.reason = reason


class Remote:
    """A connection to one device within the context, subscribed to its replies and its status.

    status: the last one the device has published, {} for none. also: functions that take the payloads of further
    topics of the device, by the part of the topic after the device's id. on_status: called after each status. Raises
    KitError (exit code 4).
    """

    def __init__(
        self,
        access: Access,
        device_id: str,
        also: Mapping[str, Callable[[bytes], object]] | None = None,
        on_status: Callable[[], object] = lambda: None,
    ) -> None:
        self.device_id = device_id
        self._on_status = on_status
        self.status: dict[str, Any] = {}
        self._replies: dict[str, dict[str, Any]] = {}
        self._where = access.where
        self._keys = Keys()
        self._always_sign = False
        self._signed: dict[str, str | None] = {}  # by command id: the key with which the device has signed its reply
        self._forged = 0
        self._also = {self.topic(leaf): take for leaf, take in (also or {}).items()}
        self.link = Links(access, on_message=self._take)

    def __enter__(self) -> Self:
        self.link.__enter__()
        try:
            self.link.subscribe(self.topic("status"), self.topic("reply"), *self._also)
        except BaseException:
            self.link.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.link.__exit__(kind, error, trace)

    @property
    def asleep(self) -> bool:
        """Whether the device has said that it sleeps until its next reading."""
        return self.status.get("reason") == "sleeping"

    def ask(
        self, command: str, args: Mapping[str, Any], timeout_s: float | None, command_id: str | None = None
    ) -> dict[str, Any]:
        """Send a command and return its reply: {"id", "ok", "result"}. timeout_s: None waits for ever.

        Raises NoReply if none comes in time. A refusal by the device is a reply, not an error.
        """
        reply = self._ask(command, args, timeout_s, command_id or new_id())
        # A key rotation was interrupted: the device may have the other of the two keys.
        if _WRONG_SIGNATURE in str(reply.get("result")) and self._keys.swap(self.device_id):
            return self._ask(command, args, timeout_s, new_id())
        return reply

    def find_key(self, timeout_s: float) -> None:
        """Find out which key the device has, and forget the other. Raises KitError if it has neither."""
        self._always_sign = True
        self._signed.clear()
        try:
            self.result("ping", {}, timeout_s)
        finally:
            self._always_sign = False
        found = next((key for key in self._signed.values() if key), None)
        assert found, "a reply without proof was believed"
        self._keys.accept(self.device_id, found)

    def _ask(self, command: str, args: Mapping[str, Any], timeout_s: float | None, command_id: str) -> dict[str, Any]:
        self.send(command, args, command_id)
        self.link.wait_for(lambda: command_id in self._replies, timeout_s)
        reply = self._replies.get(command_id)
        if reply is None:
            # The status is retained: if there is one, it has come long ago, unless the broker is slow.
            self.link.wait_for(lambda: bool(self.status), _STATUS_WITHIN_S)
            reason, remedy = self._why()
            message = f"{self.device_id} did not answer within {timeout_s:g} s: {reason} — {remedy}"
            raise NoReply(message, command_id, reason)
        return reply

    def result(self, command: str, args: Mapping[str, Any], timeout_s: float | None) -> Any:
        """Send a command and return the result. Raises NoReply, and KitError (exit code 5) if the device refuses."""
        return result_of(self.ask(command, args, timeout_s), self.device_id, command)

    def send(self, command: str, args: Mapping[str, Any], command_id: str) -> None:
        """Send a command; return when the broker has it. Raises KitError."""
        payload = payload_of(self._keys, self.device_id, command, args, command_id, always_sign=self._always_sign)
        if firmware_module("signed").is_signed(payload):
            self._signed.setdefault(command_id, None)
        self.link.publish(self.topic("cmd"), payload, qos=1)
        if not self.link.wait_for(lambda: not self.link.pending, _SENT_WITHIN_S):
            raise KitError(f"{self._where} does not take the command — see its log", EXIT_NETWORK)

    def topic(self, leaf: str) -> str:
        """Return the device's topic of that name."""
        return f"fleet/{self.device_id}/{leaf}"

    def _why(self) -> tuple[str, str]:
        # Returns what is known about a silent device, and what to do.
        if self._forged:
            what = "replies came that it has not signed with its key"
            return what, "the broker, or somebody there, may have invented them: look at the device over the cable"
        if not self.status:
            if self.link.away:
                unheard = f"its broker may be {' or '.join(self.link.away)}, which could not be reached"
                return f"no other broker knows a device of that name; {unheard}", "start that broker"
            return f"{self._where} knows no device of that name", "see those it knows: umqtt sub 'fleet/+/status'"
        if self.asleep:
            return "it sleeps, and has the command at its next wake", "give it time"
        reason = self.status.get("reason")
        if not self.status.get("online"):
            return f"it is offline ({reason}), and has the command when it is back", "is its power on, and its network?"
        return f"its last status is {reason!r}", "see what it says: umqtt logs"

    def _take(self, topic: str, payload: bytes, *_: object) -> None:
        if topic in self._also:
            self._also[topic](payload)
            return
        try:
            found = loads(payload)
        except ValueError:
            return  # not from this firmware, so not a reply
        if not isinstance(found, dict):
            return
        if topic.endswith("/status"):
            self.status = found
            self._on_status()
        elif self._is_believed(found, payload):
            self._replies[str(found.get("id"))] = found

    def _is_believed(self, reply: dict[str, Any], payload: bytes) -> bool:
        command_id = str(reply.get("id"))
        if command_id not in self._signed:
            return True
        self._signed[command_id] = self._keys.signer(self.device_id, payload)
        if self._signed[command_id] is None and reply.get("ok"):
            self._forged += 1
            return False
        return True


def known_devices(access: Access, within_s: float = _STATUS_WITHIN_S) -> list[str]:
    """Return the ids of all devices whose status the broker retains, sorted. Raises KitError."""
    found: set[str] = set()
    with Links(access, on_message=lambda topic, *_: found.add(topic.split("/")[1])) as link:
        link.subscribe("fleet/+/status")
        link.wait_for(lambda: False, within_s)
    return sorted(found)


def new_id() -> str:
    """Return a new random id for a command."""
    return secrets.token_hex(8)


def payload_of(
    keys: Keys, device_id: str, command: str, args: Mapping[str, Any], command_id: str, *, always_sign: bool = False
) -> bytes:
    """Return the payload of a command, signed if it must be and there is a key of the device. Raises KitError."""
    payload = encoded(command, args, command_id)
    if always_sign or firmware_module("signed").needs_signature(command, args):
        payload = keys.sign(device_id, {"id": command_id, "cmd": command, "args": dict(args)}) or payload
        _check_size(command, payload)
    return payload


def encoded(command: str, args: Mapping[str, Any], command_id: str) -> bytes:
    """Return the payload of a command, not signed. Raises KitError (exit code 2) if it is not UTF-8 or too large."""
    text = json.dumps({"id": command_id, "cmd": command, "args": dict(args)}, ensure_ascii=False)
    try:
        payload = text.encode()
    except UnicodeEncodeError:
        raise KitError(f"{command}: an argument is no UTF-8 — correct it", EXIT_USAGE) from None
    _check_size(command, payload)
    return payload


def _check_size(command: str, payload: bytes) -> None:
    if len(payload) > MOST_BYTES:
        problem = f"the command has {len(payload):,} bytes, and a device takes {MOST_BYTES}"
        raise KitError(f"{command}: {problem} — give shorter arguments", EXIT_USAGE)


def result_of(reply: Mapping[str, Any], device_id: str, command: str) -> Any:
    """Return the result in a reply. Raises KitError (exit code 5) with the device's words if it refused."""
    if not reply.get("ok"):
        raise KitError(f"{device_id}: {refusal(reply, device_id, command)}", EXIT_DEVICE)
    return reply.get("result")


def refusal(reply: Mapping[str, Any], device_id: str, command: str) -> str:
    """Return why the device refused a command, in its own words, and what to do if the key was not found here."""
    words = str(reply.get("result"))
    if _UNSIGNED not in words:
        return f"{command}: {words}"
    # The board cannot know that its owner has the key in another folder.
    return (
        f"{command} {_UNSIGNED}, and {Keys().file.absolute()} has no key of {device_id} — go to the folder of its "
        f"keys.json, or name that file by {ENVIRONMENT}; the first key comes over the cable: umqtt keys make"
    )

"""Waits at the broker for the first reading that a board takes after its start.

It connects as the board does: to the same addresses, with its credentials and its CA, under another client id. The
subscription is acknowledged before the board is started, so that no reading comes before it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from umqtt_kit.device import Board
from umqtt_kit.errors import EXIT_NETWORK, KitError
from umqtt_robust import Client
from umqtt_robust.errors import MQTTError, Refused

_POLL_MS = 200
_SUBSCRIBED_WITHIN_S = 10.0
_MAX_PAYLOAD = 16 * 1024
# CONNACK return codes [MQTT-3.2.2.3], in words that name what to change.
_REFUSALS = {
    1: "it does not speak MQTT 3.1.1 — use another broker",
    2: "it does not accept the client id — give the board another device_id: umqtt provision",
    3: "it is not available — look at the broker's log",
    4: "user name or password are wrong — correct them: umqtt provision",
    5: "this user may not connect — correct the user name, or the broker's permissions",
}


@dataclass(frozen=True)
class Access:
    """How the board reaches its broker. The files of tls are held as bytes. repr() shows no secret."""

    addresses: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_board(cls, board: Board, settings: Mapping[str, Any], secrets: Mapping[str, Any]) -> Access:
        """As settings.json and secrets.json say, with the certificates that lie on the board."""
        tls = {name: board.get(path) for name, path in secrets.get("tls", {}).items()}
        mqtt = secrets.get("mqtt", {})
        return cls(
            tuple(settings["brokers"]),
            mqtt.get("username"),
            mqtt.get("password"),
            tls.get("ca"),
            tls.get("cert"),
            tls.get("key"),
        )

    def client(self, **options: Any) -> Client:
        """A client for this computer. Raises MQTTError for an address or a certificate that is none."""
        if self.username is not None:
            options |= {"username": self.username, "password": self.password}
        if self.ca is not None:
            from umqtt_robust.tls import TLS

            options["transports"] = {"mqtts": TLS(self.ca, self.cert, self.key)}
        # One computer is no fleet that would come all at once: it need not wait before it connects.
        options["random"] = lambda limit: 0
        # Without the process's number two tools at once would throw each other off.
        name = f"umqtt-{os.getpid()}"
        return Client(name, self.addresses, rx_size=_MAX_PAYLOAD, keep_alive=30, **options)


class Watch:
    """Subscribed to one device's telemetry when made. Raises KitError (exit code 4) when that cannot be had."""

    def __init__(self, access: Access, device_id: str) -> None:
        self.device_id = device_id
        self._topic = f"fleet/{device_id}/telemetry"
        self._where = ", ".join(access.addresses)
        self._problem: BaseException | None = None
        self._records: list[dict[str, Any]] = []
        try:
            self._client = access.client(on_error=self._note, on_disconnect=self._note)
            self._client.on(self._topic, self._take)
            self._client.subscribe(self._topic, qos=1)
        except MQTTError as error:
            raise KitError(f"{self._where}: {error} — correct it: umqtt provision", EXIT_NETWORK) from error
        self._drive_until(lambda: self._client.connected and self._client.subscribed, _SUBSCRIBED_WITHIN_S)
        if not (self._client.connected and self._client.subscribed):
            raise self.error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.disconnect(500)
        self._drive_until(lambda: self._client.closed, 1.0)

    def first(self, after_boot: int, timeout_s: float, check: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """The first record of a boot with a higher count. Readings of earlier boots, sent late, are passed over.

        check: called now and then; what it raises ends the waiting.
        Raises KitError (exit code 4) when none comes in time.
        """

        def found() -> dict[str, Any] | None:
            check()
            return next((record for record in self._records if _boot_count(record) > after_boot), None)

        self._drive_until(lambda: found() is not None, timeout_s)
        record = found()
        if record is None:
            late = f", only {len(self._records)} of earlier boots" if self._records else ""
            raise KitError(
                f"no telemetry of {self.device_id} at {self._where} within {timeout_s:g} s{late} — "
                "see what it says: umqtt logs, and what is wrong: umqtt doctor",
                EXIT_NETWORK,
            )
        return record

    def error(self) -> KitError:
        """Why there is no subscription."""
        problem = self._problem
        if isinstance(problem, Refused) and problem.args[0] == "connect":
            reason = f"the broker refuses the connection: {_REFUSALS.get(problem.args[1], problem.args[1])}"
        elif isinstance(problem, Refused):
            reason = f"the broker does not let this user read {self._topic} — allow it, or deploy with --no-wait"
        else:
            why = f" ({problem})" if problem is not None and str(problem) else ""
            reason = f"the broker cannot be reached from here{why} — is it running? See: umqtt doctor, or use --no-wait"
        return KitError(f"{self._where}: {reason}", EXIT_NETWORK)

    def _drive_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._client.tick()
        while not condition() and time.monotonic() < deadline and not isinstance(self._problem, Refused):
            left_ms = int((deadline - time.monotonic()) * 1000)
            self._client.poll(max(1, min(_POLL_MS, left_ms)))

    def _take(self, topic: bytes, payload: bytes) -> None:
        try:
            record = json.loads(payload)
        except ValueError:
            return  # not from this firmware; whoever waits is told that nothing came
        if isinstance(record, dict):
            self._records.append(record)

    def _note(self, problem: BaseException) -> None:
        self._problem = problem


def _boot_count(record: Mapping[str, Any]) -> int:
    count = str(record.get("boot", "")).partition("-")[0]
    return int(count) if count.isdigit() else -1

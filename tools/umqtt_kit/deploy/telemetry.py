"""Waits at the broker for the first reading that a board takes after its start.

It connects as the board does: to the same addresses, with the board's credentials and CA, but with another client id.
Its subscription is acknowledged before the board is started, so no reading can come too early.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from umqtt_kit.device import Board
from umqtt_kit.errors import EXIT_NETWORK, KitError
from umqtt_kit.mqtt import Access, Link
from umqtt_kit.strict_json import loads


def access_of_board(board: Board, settings: Mapping[str, Any], secrets: Mapping[str, Any]) -> Access:
    """Return how the board reaches its broker, by its settings, its secrets and the certificates on it."""
    tls = {name: board.get(path) for name, path in secrets.get("tls", {}).items()}
    mqtt = secrets.get("mqtt", {})
    return Access(
        tuple(settings["brokers"]),
        mqtt.get("username"),
        mqtt.get("password"),
        tls.get("ca"),
        tls.get("cert"),
        tls.get("key"),
    )


class Watch:
    """A subscription to one device's telemetry within the context. Raises KitError (exit code 4) if it fails."""

    def __init__(self, access: Access, device_id: str) -> None:
        self.device_id = device_id
        self._where = access.where
        self._records: list[dict[str, Any]] = []
        self._link = Link(access, on_message=self._take)

    def __enter__(self) -> Self:
        try:
            self._link.__enter__()
            self._link.subscribe(f"fleet/{self.device_id}/telemetry")
        except KitError as error:
            self._link.close(0)
            # The link suggests its own remedies, but here the board's settings are what can be corrected.
            problem = str(error).partition(" — ")[0]
            remedy = "is the broker running, and are the board's settings right (umqtt provision)? Or use --no-wait"
            raise KitError(f"{problem} — {remedy}", EXIT_NETWORK) from error
        except BaseException:
            self._link.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.__exit__(kind, error, trace)

    def has_record(self, timeout_s: float) -> bool:
        """Wait for a record of any boot. Returns whether one has come."""
        return self._link.wait_for(lambda: bool(self._records), timeout_s)

    def first(self, after_boot: int, timeout_s: float, check: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Return the first record of a boot with a higher count; skip readings of earlier boots that come late.

        check: called now and then; an exception from it ends the wait. Raises KitError (exit code 4) if no record
        comes in time.
        """

        def found() -> dict[str, Any] | None:
            check()
            return next((record for record in self._records if _boot_count(record) > after_boot), None)

        self._link.wait_for(lambda: found() is not None, timeout_s)
        record = found()
        if record is None:
            late = f", only {len(self._records)} of earlier boots" if self._records else ""
            raise KitError(
                f"no telemetry of {self.device_id} at {self._where} within {timeout_s:g} s{late} — "
                "see what it says: umqtt logs, and what is wrong: umqtt doctor",
                EXIT_NETWORK,
            )
        return record

    def _take(self, topic: str, payload: bytes, *_: object) -> None:
        try:
            record = loads(payload)
        except ValueError:
            return  # not from this firmware; the user is told that nothing came
        if isinstance(record, dict):
            self._records.append(record)


def _boot_count(record: Mapping[str, Any]) -> int:
    count = str(record.get("boot", "")).partition("-")[0]
    return int(count) if re.fullmatch("[0-9]{1,18}", count) else -1

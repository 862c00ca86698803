"""Work beside the micro-batches of a pipeline, without delaying them: update gold, join small files, vacuum.

It runs in a thread of its own, so that the pipeline tells its lag and its health during a long update of gold.
"""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from deltalake.exceptions import DeltaError

from umqtt_cli.escape import remark

from ...alerts.delivery import Delivery
from ...errors import IngestError
from ...gold import Gold
from ...location import may_pass
from ...tables.upkeep import SmallFiles, vacuum_hourly
from ..process import first_line, panics_as_errors, write_failure
from .config import PipelineConfig

# Gold pauses five times as long as an update took: under load, gold falls behind before silver is delayed.
_SHARE = 1 / 5
# Seconds between updates without new rows: devices of an idle stream go offline too.
_IDLE_S = 60.0
_LAST_ALERTS_S = 15.0
_STOP_S = 0.1
# Each check is a request for every table.
_FILES_S = 5.0
# Gold that failed is likely to fail again.
_AGAIN_S = 60.0
FIGURES = ("alerts", "alerts_by_rule", "alerts_waiting", "alerts_failing", "gold_ms", "gold_failing")
"""Keys of the pipeline's status; all are null without gold."""


class Upkeep:
    """The upkeep of the tables, called periodically by the pipeline's main loop.

    It reads committed versions only, so it needs no lock. If gold cannot be updated, this is reported once and tried
    again; silver does not depend on gold and goes on.

    :param on_stage: see :class:`Gold`.
    :param report: called with one line for a person.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        on_stage: Callable[[str], None],
        report: Callable[[str], None] = remark,
    ) -> None:
        self._config = config
        alerts = config.alerts
        self._gold = (
            Gold(
                config.tables,
                rules=alerts.rules,
                recipients=lambda alert: alerts.recipients(alert, time.time_ns() // 1000),
                on_stage=on_stage,
                report=report,
            )
            if config.gold
            else None
        )
        self._delivery = None
        if self._gold is not None and alerts.destinations:
            self._delivery = Delivery(self._gold.journal, alerts.destinations, alerts.wait_s, report=report)
            self._delivery.start()
        self._files = SmallFiles(config.tables, report)
        self._report = report
        self._failing = False
        self._next_gold = 0.0 if config.gold else math.inf
        self._next_idle = self._next_vacuum = self._next_files = 0.0
        self._thread = ThreadPoolExecutor(1, "upkeep")
        self._work: Future[None] | None = None

    def figures(self) -> dict[str, object]:
        """Return the keys FIGURES of the pipeline's status."""
        gold = self._gold
        if gold is None:
            return {**dict.fromkeys(FIGURES)}
        duration_ms = round(gold.last_duration_s * 1000)
        by_rule = gold.open_alerts
        return {
            "alerts": sum(by_rule.values()),
            "alerts_by_rule": by_rule,
            "alerts_waiting": gold.journal.waiting,
            "alerts_failing": len(self._delivery.failing) if self._delivery else 0,
            "gold_ms": duration_ms,
            "gold_failing": self._failing,
        }

    def step(self, lag_bytes: int | None) -> None:
        """Begin to update gold if it is due, to join small files if there are many, and to vacuum every hour.

        It returns at once, and does nothing while earlier work goes on.

        :param lag_bytes: bytes of the spool that are not in the tables yet; None: unknown.
        :raises TablesWriteFailed: a table below gold cannot be written, and waiting for the store will not help.
        """
        if self._work is not None and not self._work.done():
            return
        self.wait()
        if time.monotonic() >= min(self._next_gold, self._next_files, self._next_vacuum):
            self._work = self._thread.submit(self._step, lag_bytes)

    def wait(self) -> None:
        """Wait until the work that was begun is done.

        :raises TablesWriteFailed: as :meth:`step`.
        """
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def _step(self, lag_bytes: int | None) -> None:
        if self._gold is not None and time.monotonic() >= self._next_gold:
            try:
                with panics_as_errors("the update of gold"):
                    self._update(self._gold, lag_bytes)
                self._failing = False
            except Exception as error:  # noqa: BLE001 - whatever it is, silver goes on
                if not self._failing:
                    self._report(f"gold is not up to date and will be tried again: {first_line(error)}")
                self._failing = True
                self._next_gold = time.monotonic() + max(self._config.gold_interval_s, _AGAIN_S)
        if time.monotonic() >= self._next_files:
            self._next_files = time.monotonic() + _FILES_S
            try:
                with panics_as_errors("the joining of small files"):
                    self._files.step()
            except (OSError, DeltaError) as error:
                # If the store is only unreachable for now, the micro-batches wait for it.
                if not may_pass(error):
                    raise write_failure(error, self._config.tables) from error
        self._vacuum()

    def finish(self, lag_bytes: int | None) -> None:
        """Update gold to what has been committed, and save its state.

        :param lag_bytes: as in :meth:`step`.
        :raises IngestError: gold cannot be updated; the tables below gold are complete.
        """
        self.wait()
        if self._gold is None:
            return
        try:
            with panics_as_errors("the update of gold"):
                self._gold.update(self._now_us(lag_bytes), note_alerts=self._nearly_read(lag_bytes))
                self._gold.save()
        except (OSError, DeltaError) as error:
            raise write_failure(error, self._config.tables) from error
        except Exception as error:
            tables = self._config.tables
            raise IngestError(
                f"gold is not up to date, silver is: {first_line(error)}; "
                f"run umqtt tables rebuild --gold-only --tables {tables}, or go on with --no-gold"
            ) from error

    def close(self) -> None:
        """End an update that goes on, and stop sending alerts.

        The next start goes on with the update. Waiting alerts are sent now if they can be, otherwise after that start.
        """
        while self._gold is not None and self._work is not None and not self._work.done():
            # Again, since it may be between two statements.
            self._gold.stop()
            wait([self._work], _STOP_S)
        self._thread.shutdown()
        if self._gold is not None:
            self._gold.close()
        if self._delivery is not None:
            self._delivery.close(_LAST_ALERTS_S)

    def _vacuum(self) -> None:
        if time.monotonic() < self._next_vacuum:
            return
        self._next_vacuum = time.monotonic() + _IDLE_S
        try:
            with panics_as_errors("the vacuum"):
                vacuum_hourly(self._config.tables, self._config.keep_hours)
        except (IngestError, OSError, DeltaError) as error:
            # A damaged gold table must not stop silver.
            self._report(f"not all tables were vacuumed: {first_line(error)}; it is tried again in an hour")
            self._next_vacuum = time.monotonic() + 60 * _IDLE_S

    def _update(self, gold: Gold, lag_bytes: int | None) -> None:
        now_us = self._now_us(lag_bytes) if time.monotonic() >= self._next_idle else None
        if gold.update(now_us, note_alerts=self._nearly_read(lag_bytes)) or now_us is not None:
            self._next_idle = time.monotonic() + _IDLE_S
        pause = max(self._config.gold_interval_s, gold.last_duration_s / _SHARE)
        self._next_gold = time.monotonic() + pause

    @staticmethod
    def _now_us(lag_bytes: int | None) -> int | None:
        # While messages wait in the spool, a device with a waiting message would be called silent.
        return None if lag_bytes is None or lag_bytes else time.time_ns() // 1000

    def _nearly_read(self, lag_bytes: int | None) -> bool:
        # The waiting messages fit into the next micro-batch.
        return lag_bytes is not None and lag_bytes <= self._config.max_bytes

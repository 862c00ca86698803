"""The settings of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...alerts.config import AlertConfig
from ...decoders.rules import NO_RULES, Rules
from ...location import Location


@dataclass(frozen=True)
class PipelineConfig:
    """The settings of a pipeline.

    :ivar spool: folder of the collectors' spools.
    :ivar once: read what is there now, then end.
    :ivar interval_ms: time between the beginnings of micro-batches.
    :ivar max_rows: messages in a micro-batch, at most.
    :ivar max_bytes: bytes of spool in a micro-batch, at most.
    :ivar cores: threads of a local Spark.
    :ivar master: a cluster, as Spark spells it; None: this machine, or what ``spark-submit`` was given.
    :ivar buckets: tasks that deduplicate; None: as many as `cores`, or 8 on a cluster.
    :ivar settings: additional settings of Spark.
    :ivar gold: keep the gold tables up to date.
    :ivar gold_interval_s: seconds between updates of gold, at least.
    :ivar alerts: the rules of alerts, which are checked when gold is updated, and their destinations.
    :ivar retention_hours: hours that a segment of the spool is kept after it was read; None: for ever.
    :ivar keep_hours: hours that a file is kept after the last version of its table that uses it.
    :ivar rules: whether ids in records are trusted, and which decoder reads which topic.
    :ivar transform: file of the job that readings pass through before they are written (:mod:`transform`).
    """

    spool: Path
    tables: Location
    checkpoint: Path
    once: bool = False
    interval_ms: int = 250
    max_rows: int = 500_000
    max_bytes: int = 64 << 20
    cores: int = 2
    allow_data_loss: bool = False
    master: str | None = None
    buckets: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    gold: bool = True
    gold_interval_s: float = 5.0
    alerts: AlertConfig = field(default_factory=AlertConfig)
    retention_hours: float | None = None
    keep_hours: float = 24.0
    rules: Rules = NO_RULES
    transform: Path | None = None

    def source_options(self) -> dict[str, str]:
        """Return the options of ``format("mqtt")``."""
        options = {
            "path": str(self.spool.absolute()),
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "maxOffsetsPerTrigger": str(self.max_rows),
            "maxBytesPerTrigger": str(self.max_bytes),
        }
        if self.retention_hours is not None:
            options["retentionHours"] = str(self.retention_hours)
        return options

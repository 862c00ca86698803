"""What a pipeline is started with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..alerts.config import AlertConfig
from ..decoders.rules import NO_RULES, Rules
from ..location import Location
from .session import is_cluster


@dataclass(frozen=True)
class PipelineConfig:
    """What a pipeline is started with; `interval_ms` is the time between the beginnings of micro-batches.

    One of `spool` (folder) and `server` (``https://HOST:PORT`` of collectors) says where the messages are;
    `token_file`, `delete_token_file` and `server_ca` go with `server`.
    `write_path`: ``driver``, ``executors`` (:mod:`cluster`), or ``auto``: executors on a cluster's `master`.
    `format`: of the tables, ``delta`` or ``parquet``; gold is kept of Delta only.
    `gold_interval_s`: between updates of gold, at least; `alerts`: the rules that gold is judged by.
    `rules`: whose word is taken, and which decoder reads which topic.
    `max_rows`, `max_bytes`: messages, and bytes of spool, of a micro-batch.
    `retention_hours`: for so long a segment of the spool stays after it was read; None: for ever.
    `keep_hours`: for so long a file stays that no newer version of its table uses.
    """

    spool: Path | None
    tables: Location
    checkpoint: Path
    once: bool = False
    interval_ms: int = 500
    max_rows: int = 500_000
    max_bytes: int = 64 << 20
    cores: int = 2
    allow_data_loss: bool = False
    server: str | None = None
    token_file: Path | None = None
    delete_token_file: Path | None = None
    server_ca: Path | None = None
    master: str | None = None
    write_path: str = "auto"
    format: str = "delta"
    buckets: int = 8
    settings: Mapping[str, str] = field(default_factory=dict)
    gold: bool = True
    gold_interval_s: float = 5.0
    alerts: AlertConfig = field(default_factory=AlertConfig)
    retention_hours: float | None = None
    keep_hours: float = 24.0
    rules: Rules = NO_RULES

    @property
    def on_executors(self) -> bool:
        """Who writes the tables."""
        return is_cluster(self.master) if self.write_path == "auto" else self.write_path == "executors"

    def source_options(self) -> dict[str, str]:
        """The options of ``format("mqtt")``."""
        options = {
            "failOnDataLoss": str(not self.allow_data_loss).lower(),
            "maxOffsetsPerTrigger": str(self.max_rows),
            "maxBytesPerTrigger": str(self.max_bytes),
        }
        if self.retention_hours is not None:
            options["retentionHours"] = str(self.retention_hours)
        if self.spool is not None:
            options["path"] = str(self.spool.absolute())
        if self.server is not None:
            options["server"] = self.server
        files = {"tokenFile": self.token_file, "deleteTokenFile": self.delete_token_file, "caFile": self.server_ca}
        return options | {name: str(file.absolute()) for name, file in files.items() if file is not None}

"""The command line: ``umqtt ingest``, ``python -m spark_ingest.pipeline`` and ``spark-submit`` run the same command."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from umqtt_cli.escape import remark
from umqtt_cli.numbers import Bytes, Finite

from ...address import Address
from ...errors import IngestError, MissingDependency, SparkEnded
from ...location import PathOption, TablesOption

_FOLDER = PathOption(file_okay=False)
_FILE = PathOption(dir_okay=False)
_STARTS = "_UMQTT_INGEST_STARTS"
_MOST_STARTS = 4


def _prepare(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        _require_pyspark()
        from .class_archive import make_archive

        archive = make_archive()
    except IngestError as error:
        remark(f"pipeline: {error}")
        context.exit(error.exit_code)
    print(f"Spark starts with {archive} ({archive.stat().st_size >> 20} MB)")
    context.exit()


@click.command()
@click.option("--spool", required=True, type=_FOLDER, metavar="DIR", help="The spool folder of the collectors.")
@click.option("--tables", required=True, type=TablesOption(), help="Folder of the tables, or s3://BUCKET/PREFIX.")
@click.option("--checkpoint", required=True, type=_FOLDER, metavar="DIR",
              help="Folder of Spark's progress; belongs to the tables.")  # fmt: skip
@click.option("--once/--continuous", default=False, help="Read what is there, then end; or go on (default).")
@click.option("--interval-ms", type=click.IntRange(0, 86_400_000), default=250, show_default=True, metavar="MS",
              help="Between the beginnings of micro-batches.")  # fmt: skip
@click.option("--max-rows", type=click.IntRange(1, 1_000_000_000), default=500_000, show_default=True, metavar="N",
              help="Messages a micro-batch.")  # fmt: skip
@click.option("--max-bytes", type=Bytes(1), default="64M", show_default=True,
              help="Bytes of spool a micro-batch.")  # fmt: skip
@click.option("--gold/--no-gold", default=True, help="Keep the gold tables up to date (default), or not.")
@click.option("--gold-interval", "gold_interval_s", type=Finite(0, 86_400), default=5.0, show_default=True,
              metavar="S", help="Between updates of gold, at least.")  # fmt: skip
@click.option("--alerts", type=_FILE, metavar="FILE", help="Rules of alerts and groups of devices: alerts.toml.")
@click.option("--retention", "retention_hours", type=Finite(0, 876_000), metavar="HOURS",
              help="Remove segments of the spool this long after they were read.  [default: keep]")  # fmt: skip
@click.option("--keep-hours", type=Finite(1, 876_000), default=24.0, show_default=True, metavar="HOURS",
              help="Readers of tables as old as this still find their files; older ones are removed.")  # fmt: skip
@click.option("--cores", type=click.IntRange(1, 10_000), default=2, show_default=True, metavar="N",
              help="Spark's threads on this machine.")  # fmt: skip
@click.option("--master", metavar="URL", help="A cluster, as Spark spells it.  [default: this machine]")
@click.option("--buckets", type=click.IntRange(1, 100_000), metavar="N",
              help="Tasks that deduplicate.  [default: --cores, 8 on a cluster]")  # fmt: skip
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; may be given several times.")
@click.option("--trust-ids", is_flag=True,
              help="Take a record's id whatever topic it came on: behind bridges, and where topics are not "
              "fleet/DEVICE/…. Whoever may publish anywhere can then be any device.")  # fmt: skip
@click.option("--config", type=_FILE, metavar="FILE",
              help="Decoders for payloads of other kinds, and a transform of readings: ingest.toml.")  # fmt: skip
@click.option("--allow-data-loss", is_flag=True, help="Go on when messages of the spool are gone.")
@click.option("--status", type=_FILE, metavar="FILE", help="File rewritten twice a second with counts.")
@click.option("--metrics", type=Address(), help="Prometheus, and /health. Without HOST for this machine alone.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object at the end.")
@click.option("--prepare", is_flag=True, is_eager=True, expose_value=False, callback=_prepare,
              help="Only make what lets Spark start in half of the time, once: half a minute and 150 MB.")  # fmt: skip
@click.pass_context
def ingest(
    context: click.Context,
    /,
    conf: tuple[str, ...],
    config: Path | None,
    alerts: Path | None,
    trust_ids: bool,
    status: Path | None,
    metrics: tuple[str, int] | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Turn the spool into tables with Spark, one row a reading.

    Prints `ready` once the query runs. Ctrl-C ends it in order.

    \b
    Example:
      umqtt ingest --spool spool --tables tables --checkpoint checkpoint
    """
    if alerts is not None and not given["gold"]:
        raise click.UsageError("--alerts needs gold, which finds them: leave out --no-gold")
    try:
        _require_pyspark()
        from ...alerts.config import AlertConfig
        from ...alerts.config import load as load_alerts
        from ...decoders.rules import Rules, load, transform_of

        given |= {"settings": _settings(conf), "rules": Rules(trust_ids, load(config) if config else "")}
        given["transform"] = transform_of(config) if config else None
        given["alerts"] = load_alerts(alerts) if alerts else AlertConfig()
        # As a command of umqtt, the context has an object of another kind.
        stages = context.find_object(_Stages)
        environment = dict(os.environ)
        try:
            counts = _run(given, status, metrics, stages.on_stage if stages else _nothing)
        except SparkEnded as error:
            _start_again(error, environment)
            raise
    except IngestError as error:
        remark(f"pipeline: {error}")
        return error.exit_code
    if as_json:
        print(json.dumps(counts), flush=True)
    return 0


class _Stages(NamedTuple):
    """What is told when a stage is done."""

    on_stage: Callable[[str], None]


def main(argv: Sequence[str] | None = None, *, on_stage: Callable[[str], None] | None = None) -> int:
    """Run ``python -m spark_ingest.pipeline`` and return the exit code.

    :param on_stage: see :class:`spark_ingest.pipeline.run.pipeline.Pipeline`.
    """
    try:
        program = "python -m spark_ingest.pipeline"
        stages = _Stages(on_stage or _nothing)
        return ingest.main(args=argv, prog_name=program, standalone_mode=False, obj=stages) or 0
    except click.ClickException as error:
        remark(f"pipeline: {error.format_message()}")
        return error.exit_code


def _run(
    given: dict[str, Any],
    status: Path | None,
    metrics: tuple[str, int] | None,
    on_stage: Callable[[str], None],
) -> dict[str, object]:
    # Imported here so that --help need not wait for it.
    from rich.console import Console

    from ...java import require_java
    from ...metrics import MetricsServer
    from ...status import StatusFile
    from .config import PipelineConfig
    from .metrics import Figures, health
    from .panel import Live
    from .pipeline import Pipeline

    require_java()
    pipeline = Pipeline(PipelineConfig(**given), on_stage=on_stage)
    server = None
    if metrics is not None:
        server = MetricsServer(*metrics, Figures(pipeline.status), lambda: health(pipeline.status(), time.time() * 1e3))
    status_file = StatusFile(status, pipeline.status)
    live = Live(Console(stderr=True), pipeline.status)
    live.start()
    try:
        pipeline.run(live.ready)
    finally:
        live.stop()
        status_file.close()
        if server is not None:
            server.close()
    return pipeline.status()


def _start_again(error: SparkEnded, environment: dict[str, str]) -> None:
    """Replace this process by a new one with the same arguments, since PySpark starts Java once; three times at most.

    :param environment: the environment in which this process was started.
    """
    starts = int(environment.get(_STARTS, "1"))
    if starts < _MOST_STARTS:
        remark(f"{error}. Starting Spark again")
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, environment | {_STARTS: str(starts + 1)})


def _require_pyspark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency("the package pyspark is missing: pip install 'umqtt-robust[spark]'")


def _settings(given: Sequence[str]) -> dict[str, str]:
    wrong = [setting for setting in given if not setting.partition("=")[0].strip() or "=" not in setting]
    if wrong:
        raise click.UsageError(f"--conf {wrong[0]}: must be KEY=VALUE")
    return {key: value for key, _, value in (setting.partition("=") for setting in given)}


def _nothing(_stage: str) -> None:
    pass

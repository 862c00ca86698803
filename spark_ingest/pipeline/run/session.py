"""The Spark session of the pipeline."""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import SparkEnded, UsageError
from ...java import require_java
from ..process import cause, note_java
from .spark_home import archive_options, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Only lines that a person needs reach standard error. Spark's own default prints a dozen lines before the level is
# set.
_LOG4J = """\
rootLogger.level = error
# Spark's shell logger announces its level unless it equals the root's.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.query.name = org.apache.spark.sql.execution.streaming
logger.query.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2
logger.write.level = off
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{short}
"""


def is_cluster(master: str) -> bool:
    """Return whether tasks run in processes other than the driver's, on this machine or on others.

    :param master: Spark's master, as it spells it.
    """
    return master.startswith(("spark:", "yarn", "k8s:", "local-cluster"))


def start_session(
    scratch: Path,
    *,
    cores: int = 2,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: str | None = None,
) -> "SparkSession":
    """Start a quiet Spark session without a web interface; neither Spark nor Java writes files outside `scratch`.

    Under ``spark-submit``, the Java process is already running with the master and the memory that it was given; the
    other settings apply there too.

    :param scratch: an existing folder for temporary files; remove it after the session has stopped.
    :param cores: threads of a local session, and partitions of a shuffle.
    :param master: as Spark spells it (``spark://HOST:PORT``, ``local-cluster[2,1,1024]``); None: local, or the one of
        ``spark-submit``.
    :param settings: additional settings of Spark, which override those made here.
    :param java_options: additional options of the driver's Java; None: the options for using the archive of classes,
        if there is one.
    :raises MissingDependency: there is no Java, or it is too old.
    :raises UsageError: Spark does not start with `settings` or `master`.
    :raises SparkEnded: Spark does not start though neither was given.
    """
    require_java()
    is_default = not settings and master is None
    # spark-submit has chosen the master, and started Java with its own settings.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    here = not is_submitted and not is_cluster(master or "local")
    # If PYSPARK_PYTHON is unset, Spark's workers take python3 from PATH, which may be another interpreter without these
    # packages. On other machines the interpreter may have another path, so there the user sets it.
    if here:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {**_SETTINGS, "spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    if not is_submitted:
        master = master or f"local[{cores}]"
        home = os.environ.get("SPARK_HOME") or str(spark_home(scratch))
        if java_options is None:
            java_options = archive_options(Path(home))
        chosen |= {"spark.master": master, **_java_settings(scratch, java_options)}
        if _on_this_machine(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
        if re.match(r"local(\[[\d*]|$)", master):
            # Other users of this machine reach Spark's ports; Spark makes a secret for them.
            chosen["spark.authenticate"] = "true"
        os.environ["SPARK_HOME"] = home
        # Options of the short-lived Java that only composes Spark's command.
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", _SHORT_START)
    if here:
        chosen["spark.sql.shuffle.partitions"] = str(cores)
        # On other machines, this package may come by --py-files, which Spark unpacks only after this module has begun.
        chosen["spark.python.daemon.module"] = "spark_ingest.pipeline.run.workers"
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    logging.getLogger().addFilter(_is_ours)
    # py4j logs the traceback of each micro-batch that fails or loses its Java, which one line reports anyway.
    py4j = logging.getLogger("py4j")
    py4j.addHandler(logging.NullHandler())
    py4j.propagate = False
    every = {"spark.app.name": "umqtt-ingest", **chosen, **(settings or {})}
    conf = SparkConf(loadDefaults=False).setAll(list(every.items()))
    try:
        with _safe_path():
            # In a session of its own: a service manager, `timeout` or a terminal signals every process of a group, but
            # Java must survive the signal until the query was stopped in order. It ends when its input is closed.
            gateway = launch_gateway(conf, {"start_new_session": True})
            note_java(gateway)
            SparkContext(conf=conf, gateway=gateway)
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        # Only this makes Spark check the values of its settings for SQL.
        _ = session.conf
    except (PySparkException, Py4JError) as error:
        if is_default:
            # Nothing that the user gave is at fault; Java was killed while it started, for instance.
            raise SparkEnded(f"Spark's Java ended while it started: {cause(str(error))}") from error
        raise UsageError(f"Spark does not start with this --conf or --master: {cause(str(error))}") from error
    # Otherwise the accumulator server prints the traceback of a broken connection when Java has ended.
    accumulators = session.sparkContext._accumulatorServer
    if accumulators is not None:
        accumulators.handle_error = lambda *_: None  # pyrefly: ignore[bad-assignment]
    return session


@contextmanager
def _safe_path() -> Iterator[None]:
    """Set PYTHONSAFEPATH for a Java that is started meanwhile, and thus for all workers that it starts.

    Spark starts them with `python -m`, which would import modules from the current folder first. Other children of this
    process may need their script's folder.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _is_ours(record: logging.LogRecord) -> bool:
    """Return False for py4j's records: it logs tracebacks when Java has ended, which one line reports anyway."""
    return "py4j" not in record.pathname


_SAFE_PATH = "PYTHONSAFEPATH"
_SETTINGS = {
    f"spark.executorEnv.{_SAFE_PATH}": "1",
    "spark.sql.adaptive.enabled": "false",
    # The source limits a micro-batch by --max-bytes. A second limit here could only fail micro-batches within it.
    "spark.driver.maxResultSize": "0",
    "spark.sql.session.timeZone": "UTC",
    # What is shuffled is compressed already.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
    # Every task can run anywhere: a wait for a better place is lost time.
    "spark.locality.wait": "0",
    # With the default manager, which renames through Hadoop's FileContext, a micro-batch takes 50 % longer.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Hadoop ignores the umask of the process; a checkpoint is for its user alone, as the spool is.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def began_too_slowly(query: "StreamingQuery") -> bool:
    """Return whether a query has ended only because its source's Python process did not start in time.

    Such a query can be started again. Spark gives that process 10 s, which cannot be configured and is too short on a
    busy machine.
    """
    return "Python worker failed to connect back" in str(query.exception())


# A short start and a small heap matter more here than peak speed, because numpy and Arrow do the heavy work. Without
# the last option, every Java leaves a folder in /tmp.
_SHORT_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


def _java_settings(scratch: Path, java_options: str) -> dict[str, str]:
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    return {
        "spark.driver.memory": "1g",
        # Java ignores TMPDIR: after a kill, native libraries, broadcasts and artifacts would be left in /tmp.
        "spark.driver.extraJavaOptions": (
            f'-Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={scratch}" {_SHORT_START} {java_options}'
        ),
    }


def _on_this_machine(master: str) -> bool:
    return master.startswith("local") or re.match(r"spark://(127\.0\.0\.1|localhost):", master) is not None

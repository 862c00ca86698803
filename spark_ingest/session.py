"""The Spark session of the pipeline, and the check for Java that must come before it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
_NEXT_STEP = "apt install openjdk-17-jre-headless, brew install openjdk@17, or set JAVA_HOME"

# Only what concerns a person reaches standard error. Spark's own default prints a dozen lines before the
# level is set.
_LOG4J = """\
rootLogger.level = error
# Spark's shell logger announces its level unless it equals the root's.
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.query.name = org.apache.spark.sql.execution.streaming
logger.query.level = off
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


def require_java() -> None:
    """Make sure that Java is there, without importing pyspark, which would end in a traceback.

    :raises MissingDependency: no Java, or one older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = "was not found"
    if java:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except OSError as error:
            found = f"was not found at {java} ({error.strerror})"
        else:
            version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
            if version and int(version[1]) >= JAVA_NEEDED:
                return
            found = f"was not found: {java} is version {version[1] if version else 'unknown'}"
    raise MissingDependency(f"Java {JAVA_NEEDED} or newer is needed for Spark and {found}: {_NEXT_STEP}")


def start_session(scratch: Path, *, cores: int = 2, memory: str = "1g") -> "SparkSession":
    """A local session that keeps to itself: loopback, no web interface, no files outside `scratch`, quiet.

    :param scratch: an existing folder for what Spark drops; remove it after the session has stopped.
    """
    require_java()
    # Unset, Spark's workers take python3 from PATH, which need not be this interpreter with these packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J)
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(_own_spark_home(scratch))
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": memory,
        # A short start and a small heap count for more here than peak speed: the heavy work is numpy's and
        # Arrow's.
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log4j.as_uri()} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        ),
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        # The default one needs a rename through Hadoop's FileContext and half as much time again per micro-
        # batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("umqtt-ingest")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _own_spark_home(scratch: Path) -> Path:
    """A SPARK_HOME like pip's with two differences.

    It lacks ``python/lib/pyspark.zip``. Spark puts that zip first on its workers' path. Modules in a zip have no
    bytecode, so each of the seven processes that a query starts would compile all of pyspark anew, which on two cores
    delays the first micro-batch by seconds. Without it they import the installed package.

    Its ``spark-submit`` starts Java in a session of its own: a service manager, ``timeout`` or a terminal signals every
    process of a group, and Java must outlive the signal, until this process has stopped the query in order. It ends
    with its standard input, so it is never left behind.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    home = scratch / "spark-home"
    (home / "bin").mkdir(parents=True)
    (home / "jars").symlink_to(installed / "jars", target_is_directory=True)
    for script in (installed / "bin").iterdir():
        if script.name != "spark-submit":
            (home / "bin" / script.name).symlink_to(script)
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "os.setsid()\n"
        f"os.execv({str(installed / 'bin' / 'spark-submit')!r}, ['spark-submit', *sys.argv[1:]])\n"
    )
    submit.chmod(0o700)
    return home

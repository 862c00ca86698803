"""A standalone Spark cluster on loopback: a master and a worker with two cores, ended by their process ids."""

import os
import re
import sys
from pathlib import Path

from spark_helpers import Process, children
from umqtt_testkit.waiting import eventually

from spark_ingest.pipeline.run.spark_home import archive_options, spark_home

_CLASS = "org.apache.spark.deploy"
# Many Java processes share few cores: a short start is worth more than peak speed.
SHORT_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"


class Cluster:
    """Master and worker, each with its own folder below `folder`; use as a context manager.

    :ivar url: the master's ``spark://`` URL.
    :ivar home: its SPARK_HOME, whose Python processes start in time on a busy machine: Spark gives them 10 s.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[Process] = []
        self._logs: list[Path] = []
        self.url = ""
        folder.mkdir(parents=True, exist_ok=True)
        self.home = spark_home(folder)

    def __enter__(self) -> "Cluster":
        try:
            self.url = self._start("master", "master.Master", "--port", 0).wait(r"Starting Spark master at (\S+)")
            size = ["--cores", 2, "--memory", "1g", "--work-dir", self._folder / "worker", self.url]
            self._start("worker", "worker.Worker", *size).wait(r"Successfully registered with master ()")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in reversed(self._processes):
            process.__exit__()

    def executors(self) -> list[int]:
        """Return the process ids of the executors' Java processes."""
        return [pid for process in self._processes[1:] for pid in children(process.pid) if _is_executor(pid)]

    def _start(self, name: str, kind: str, *arguments: object) -> "_Log":
        folder = self._folder / name
        folder.mkdir(parents=True)
        log = folder / "log"
        environment = os.environ | {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Djava.io.tmpdir={folder} {SHORT_START} {archive_options(self.home)}",
            "SPARK_LAUNCHER_OPTS": SHORT_START,
            "SPARK_LOCAL_DIRS": str(folder),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = ["sh", "-c", f'exec "$0" "$@" > {log} 2>&1', self.home / "bin" / "spark-class", f"{_CLASS}.{kind}"]
        on_loopback = ["--host", "127.0.0.1", "--webui-port", 0]
        self._processes.append(Process([*command, *on_loopback, *arguments], cwd=folder, env=environment))
        return _Log(log)


class _Log:
    """The log file of a process that reports in no other way."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wait(self, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            return re.search(pattern, self._path.read_text()) if self._path.exists() else None

        return eventually(found, lambda: f"{pattern!r} in {self._path}")[1]


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False

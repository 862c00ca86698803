"""Where Spark starts from, and Java's archive of its classes, with which it starts in half of the time.

Spark loads 20,000 classes before the first micro-batch, and Java checks each. An archive (Java calls it class data
sharing, JEP 350) holds them checked. It serves one Java and one class path only, which is why SPARK_HOME is a folder of
its own in the user's cache and not one for each run. Java itself refuses an archive that does not fit, and starts
without it.
"""

import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import IngestError

_ARCHIVED_WITHIN_S = 600.0
# A reading as a collector keeps it: what Spark loads for it, it loads for all.
_READING = b'{"v":1,"id":"d","boot":"b","seq":1,"ts":1,"up":1,"m":{"t":1.5}}'
_TOPIC = b"fleet/d/telemetry"
_PACKET = bytes([0x32, len(_READING) + len(_TOPIC) + 4, 0, len(_TOPIC)]) + _TOPIC + b"\0\1" + _READING


def spark_home(scratch: Path) -> Path:
    """The SPARK_HOME of this Python and this pyspark: in the user's cache, or in `scratch` if that cannot be written.

    It is like pip's with two differences.

    It lacks ``python/lib/pyspark.zip``. Spark puts that zip first on its workers' path. Modules in a zip have no
    bytecode, so each of the seven processes that a query starts would compile all of pyspark anew, which on two cores
    delays the first micro-batch by seconds. Without it they import the installed package.

    Its ``spark-submit`` starts Java in a session of its own: a service manager, ``timeout`` or a terminal signals every
    process of a group, and Java must outlive the signal, until this process has stopped the query in order. It ends
    with its standard input, so it is never left behind.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    known_by = hashlib.sha256(f"{sys.executable}\n{installed}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    home = _cache() / f"spark-{known_by}"
    try:
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not home.exists():
            made = Path(tempfile.mkdtemp(dir=home.parent))
            _fill(made, installed)
            try:
                made.rename(home)
            except OSError:  # Another process was faster.
                shutil.rmtree(made)
    except OSError:
        home = scratch / "spark-home"
        home.mkdir()
        _fill(home, installed)
    return home


def archive_options(home: Path) -> str:
    """Java's options that use the archive of a SPARK_HOME, if there is one for the Java that would start."""
    archive = archive_path(home)
    return f'"-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off' if archive.exists() else ""


def archive_path(home: Path) -> Path:
    """Where the archive lies for the Java that would start, and the jars as they are: a new installation is another."""
    folder = os.environ.get("JAVA_HOME")
    java = Path(shutil.which(f"{folder}/bin/java" if folder else "java") or "java").resolve()
    changed = java.stat().st_mtime_ns if java.exists() else 0
    jars = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in (home / "jars").glob("*.jar"))
    known_by = hashlib.sha256(f"{java}\n{changed}\n{jars}".encode()).hexdigest()[:16]
    return home / f"classes-{known_by}.jsa"


def make_archive() -> Path:
    """Read a stream of one message with Spark, and let Java archive the classes that it has loaded.

    :returns: the archive, about 150 MB; the one that is there already, if it fits.
    :raises MissingDependency: no Java, or one that is too old.
    :raises IngestError: Java made none, or the cache cannot be written.
    """
    from ..source.data_source import MqttDataSource
    from ..spool.writer import Spool
    from .process import stop_session
    from .session import start_session

    with tempfile.TemporaryDirectory(prefix="umqtt-archive-") as name:
        folder = Path(name)
        home = spark_home(folder)
        archive = archive_path(home)
        if archive.exists():
            return archive
        if not home.is_relative_to(_cache()):
            raise IngestError(f"the folder {_cache()} cannot be written: set XDG_CACHE_HOME to one that can")
        with Spool(folder / "spool" / "collector") as spool:
            spool.append(_PACKET, 1, 1)
        made = archive.with_suffix(f".{os.getpid()}")
        session = start_session(folder, java_options=f'"-XX:ArchiveClassesAtExit={made}" -Xlog:disable')
        try:
            session.dataSource.register(MqttDataSource)
            stream = session.readStream.format("mqtt").option("path", str(folder / "spool")).load()
            writer = stream.writeStream.foreachBatch(lambda frame, _number: frame.toArrow())
            query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
            query.awaitTermination()
        finally:
            stop_session(session, within_s=_ARCHIVED_WITHIN_S)
        if not made.exists():
            raise IngestError(f"Java wrote no archive to {made}: is the disk full?")
        # Whoever has the one of an earlier Java open keeps it.
        for old in home.glob("classes-*.jsa"):
            with suppress(OSError):
                old.unlink()
        made.rename(archive)
        return archive


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umqtt-robust"


def _fill(home: Path, installed: Path) -> None:
    (home / "bin").mkdir()
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

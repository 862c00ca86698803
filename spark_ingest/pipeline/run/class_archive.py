"""Make Java's archive of Spark's classes, with which Spark starts in half the time (its path: :mod:`spark_home`)."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ...errors import IngestError
from ..process import stop_session
from .session import start_session
from .spark_home import archive_path, cache_folder, spark_home

_ARCHIVED_WITHIN_S = 600.0
# A reading as a collector stores it: Spark loads the same classes for it as for any other.
_READING = b'{"v":1,"id":"d","boot":"b","seq":1,"ts":1,"up":1,"m":{"t":1.5}}'
_TOPIC = b"fleet/d/telemetry"
_PACKET = bytes([0x32, len(_READING) + len(_TOPIC) + 4, 0, len(_TOPIC)]) + _TOPIC + b"\0\1" + _READING


def make_archive() -> Path:
    """Read a stream of one message with Spark, and make Java archive the classes that it has loaded.

    :returns: the archive, about 150 MB; an existing one if it fits the Java and the jars.
    :raises MissingDependency: there is no Java, or it is too old.
    :raises IngestError: Java wrote no archive, or the cache cannot be written.
    """
    from ...source.data_source import MqttDataSource
    from ...spool.writer import Spool

    with tempfile.TemporaryDirectory(prefix="umqtt-archive-") as name:
        folder = Path(name)
        home = spark_home(folder)
        archive = archive_path(home)
        if archive.exists():
            return archive
        if not home.is_relative_to(cache_folder()):
            raise IngestError(f"the folder {cache_folder()} cannot be written: set XDG_CACHE_HOME to one that can")
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
        # A process that has an old archive open can go on using it.
        for old in home.glob("classes-*.jsa"):
            with suppress(OSError):
                old.unlink()
        made.rename(archive)
        return archive

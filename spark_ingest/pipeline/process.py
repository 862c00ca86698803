"""What surrounds the query: its folders, and what is said when it fails."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..durable import read_checked_json, replace_checked, replace_file, sync_directory
from ..errors import FileDamaged, IngestError, SparkEnded, TablesWriteFailed, UsageError
from ..location import Location, StorePath, reason
from ..tables.parquet import MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_FORMAT = 2
"""Of the files in CHECKPOINT/umqtt; 1 had a whole set of readings seen per micro-batch, and no number."""

UNFINISHED = "umqtt.unfinished"
"""A file in the tables' folder while a command changes several of them: the command, to be run again."""

_JAVA_ENDS_WITHIN_S = 30.0
_JAVA_IS_GONE_WITHIN_S = 5.0
_SCRATCH_PREFIX = "umqtt-ingest-"
_NOTHING_LOST = "mend that and start again: nothing is lost, the spool has it"
_SMALLER = "give a smaller --max-bytes"
_REMEDIES = {"spark.driver.maxResultSize": _SMALLER, "java.lang.OutOfMemoryError": _SMALLER, "MemoryError": _SMALLER}
_REASONS = ("No space left on device", "Permission denied", "Read-only file system", "Disk quota exceeded")


class StopBetweenBatches(Exception):
    """Refuses a micro-batch while the pipeline stops."""


def own_error(text: str) -> str | None:
    """The message of one of this package's errors inside a Spark exception's text; None when there is none."""
    for line in reversed(text.splitlines()):
        if line.startswith("spark_ingest.errors."):
            return line.split(": ", 1)[-1]
    return None


def require_writable(folder: Location) -> None:
    if isinstance(folder, StorePath):
        probe = folder / "umqtt.probe"
        try:
            probe.write_bytes(b"written to see whether this may be written")
            probe.unlink()
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {reason(error)}") from error
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another folder") from error


@contextmanager
def scratch_folder(checkpoint: Path) -> Iterator[Path]:
    """A new temporary folder for one run, removed at its end; the caller holds the checkpoint's lock.

    A file in the checkpoint names it, so that the next run removes the folder of one that was killed.
    """
    note = checkpoint / "umqtt" / "scratch"
    with suppress(OSError, ValueError):
        left = Path(note.read_text())
        if left.name.startswith(_SCRATCH_PREFIX):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
    try:
        # On a full disk the run ends anyway, and says so where it matters.
        with suppress(OSError):
            note.parent.mkdir(exist_ok=True)
            replace_file(note, str(scratch).encode())
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def stop_session(session: "SparkSession", *, within_s: float = _JAVA_ENDS_WITHIN_S) -> None:
    """Stop Spark and its Java process: `stop()` alone would leave Java running until this process ends."""
    gateway = session.sparkContext._gateway
    java = getattr(gateway, "proc", None)
    if java is not None and java.poll() is not None:
        _forget_session()
        return
    session.stop()
    if gateway is None:
        return
    gateway.shutdown()
    if java is not None:
        end_java(java, within_s)


def java_ended(session: "SparkSession") -> SparkEnded | None:
    """After an error: what to tell when it came of Spark's Java process, which is gone; None when that lives."""
    java = getattr(session.sparkContext._gateway, "proc", None)
    if java is None:
        return None
    try:
        # Its connections break a moment before the process is gone.
        code = java.wait(_JAVA_IS_GONE_WITHIN_S)
    except subprocess.TimeoutExpired:
        return None
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return SparkEnded(
        f"Spark's Java process {how}; nothing is lost. A kill that nobody sent is the kernel's, for want of memory: "
        "give a smaller --max-bytes or --conf spark.driver.memory"
    )


def _forget_session() -> None:
    """Let pyspark forget a session whose Java process is gone: it would hand it out again."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def end_java(java: "subprocess.Popen[bytes]", within_s: float = _JAVA_ENDS_WITHIN_S) -> None:
    """Java ends when its standard input does. All its work is done by then: one that takes too long is killed."""
    assert java.stdin is not None
    java.stdin.close()
    try:
        java.wait(within_s)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def require_checkpoint(checkpoint: Path, silver_id: str) -> None:
    """Make sure that a checkpoint was written by this version and for these tables; mark a new one.

    :param silver_id: the id in the metadata of the table silver.
    :raises UsageError: it was not. Going on would read its files wrongly, or skip what the tables do not have.
    """
    path = checkpoint / "umqtt" / "version.json"
    mine = {"format": CHECKPOINT_FORMAT, "silver": silver_id}
    remedy = "give a new --checkpoint: the spool is read again from its beginning, and what the tables have is skipped"
    try:
        found = read_checked_json(path)
    except FileNotFoundError:
        if (checkpoint / "metadata").exists():
            raise UsageError(f"the checkpoint {checkpoint} is of an older version; {remedy}") from None
        path.parent.mkdir(exist_ok=True)
        replace_checked(path, json.dumps(mine).encode())
        return
    except FileDamaged as error:
        raise UsageError(f"{error}: {remedy}") from error
    if found.get("format") != CHECKPOINT_FORMAT:
        raise UsageError(f"the checkpoint {checkpoint} is of another version; {remedy}")
    if found.get("silver") != silver_id:
        raise UsageError(f"the checkpoint {checkpoint} belongs to other tables; {remedy}")


def require_format(tables: Location, wanted: str) -> None:
    """Make sure that tables which exist are of the format `wanted`: ``delta`` or ``parquet``.

    :raises UsageError: they are not.
    """
    silver = tables / "silver"
    if isinstance(silver, StorePath):
        return
    found = "delta" if (silver / "_delta_log").exists() else "parquet" if (silver / MARK).exists() else wanted
    if found != wanted:
        raise UsageError(f"the tables in {tables} are of the format {found}: give --format {found} or other --tables")


@contextmanager
def unfinished(tables: Location, command: str) -> Iterator[None]:
    """Mark the tables while `command` changes them: broken off, it is to be run again before anything else is done.

    :param command: what follows ``umqtt tables``.
    :raises UsageError: another one was broken off.
    """
    require_whole(tables, but_for=command)
    replace_file(tables / UNFINISHED, command.encode())
    yield
    (tables / UNFINISHED).unlink()
    sync_directory(tables)


def require_whole(tables: Location, *, but_for: str | None = None) -> None:
    """Make sure that no command was broken off that has to be run again.

    :param but_for: the one that is about to be run.
    :raises UsageError: one was.
    """
    try:
        command = (tables / UNFINISHED).read_text()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read the tables {tables}: {reason(error)}") from error
    if command != but_for:
        again = f"run umqtt tables {command} --tables {tables} again"
        raise UsageError(f"a change of {tables} was broken off: {again}")


def write_failure(error: BaseException, tables: Location) -> TablesWriteFailed:
    """What to tell of an error of the disk or of Delta."""
    why = getattr(error, "strerror", None) or _reason(str(error)) or first_line(error)
    return TablesWriteFailed(f"cannot write the tables {tables}: {why}; {_NOTHING_LOST}")


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Raise an IngestError in the place of what is no Exception, such as a panic of delta-rs.

    In a callback of Spark nothing answers Java after such a one, and the query would wait for ever.

    :param what: what was being done, for people.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise IngestError(f"{what} was broken off by {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or what it is when it says nothing."""
    return str(error).strip().splitlines()[0] if isinstance(error, IngestError) else reason(error)


def explained(text: str, checkpoint: Path) -> IngestError:
    """What to tell of a query that failed, from the text of Spark's exception."""
    own = own_error(text)
    if own is not None:
        return IngestError(f"the query stopped: {own}")
    why = _reason(text)
    if why is not None:
        return TablesWriteFailed(f"cannot write the checkpoint {checkpoint}: {why}; {_NOTHING_LOST}")
    details = checkpoint / "umqtt" / "failure.txt"
    line = f"the query stopped: {_cause(text)}"
    try:
        replace_file(details, text.encode())
    except OSError:
        return IngestError(line)
    return IngestError(f"{line}; all of it is in {details}")


def _cause(text: str) -> str:
    """What a failure began with: Java's innermost exception, or the Python exception that ended a traceback."""
    lines = text.strip().splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")] or [
        line for line in lines if re.match(r"(: )?((\w+\.)+\w+|\w+(Error|Exception|Exit|Interrupt)): ", line)
    ]
    cause = (causes or lines)[-1 if causes else 0]
    cause = re.sub(r"^(Caused by: |: )?([a-z_]\w*\.)*(SparkException: )?", "", cause)
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in text), None)
    return f"{cause}: {remedy}" if remedy else cause


def _reason(text: str) -> str | None:
    return next((reason for reason in _REASONS if reason in text), None)

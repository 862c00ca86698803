"""Functions around the query: check folders and the checkpoint, end the Java process, explain failures."""

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..durable import read_checked, read_checked_json, replace_checked, replace_file, sync_directory
from ..errors import FileDamaged, IngestError, SparkEnded, TablesWriteFailed, UsageError
from ..location import Location, StorePath, reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..source.offsets import Offset

CHECKPOINT_FORMAT = 3
"""Version of the files in CHECKPOINT/umqtt."""

READ_UP_TO = "read.json"
"""The file in CHECKPOINT/umqtt with the offset up to which messages are in the tables."""

UNFINISHED = "umqtt.unfinished"
"""The file that is in the tables' folder while a command changes several tables. It holds the command to run again."""

_JAVA_ENDS_WITHIN_S = 30.0
_JAVA_IS_GONE_WITHIN_S = 5.0
_SCRATCH_PREFIX = "umqtt-ingest-"
_NOTHING_LOST = "fix this and start again: nothing is lost, the spool has it"
_SMALLER = "give a smaller --max-bytes"
_REMEDIES = {"spark.driver.maxResultSize": _SMALLER, "java.lang.OutOfMemoryError": _SMALLER, "MemoryError": _SMALLER}
_REASONS = ("No space left on device", "Permission denied", "Read-only file system", "Disk quota exceeded")


class StopBetweenBatches(Exception):
    """Raised to refuse a micro-batch while the pipeline stops."""


def own_error(text: str) -> str | None:
    """Return the message of this package's error inside a Spark exception's text, or None if there is none."""
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
    """Create a temporary folder for one run and remove it at the end; the caller holds the checkpoint's lock.

    A file in the checkpoint names the folder, so that the next run removes it if this one is killed.
    """
    note = checkpoint / "umqtt" / "scratch"
    with suppress(OSError, ValueError):
        left = Path(note.read_text())
        if left.name.startswith(_SCRATCH_PREFIX):
            shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX))
    try:
        # If the disk is full, the run fails anyway, with a better message than this write would give.
        with suppress(OSError):
            note.parent.mkdir(exist_ok=True)
            replace_file(note, str(scratch).encode())
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


_gateways: list[Any] = []
"""The gateway to the Java process that this process has started, if it has."""


def note_java(gateway: Any) -> None:
    """Note the Java process that :func:`stop_session` ends.

    :param gateway: the result of pyspark's ``launch_gateway``.
    """
    _gateways.append(gateway)


def stop_session(session: "SparkSession", *, within_s: float = _JAVA_ENDS_WITHIN_S) -> None:
    """Stop Spark and its Java process; `stop()` alone would leave Java running until this process ends.

    :param within_s: seconds after which Java is killed.
    """
    gateway = next(iter(_gateways), None)
    # spark-submit has started Java itself.
    java = None if gateway is None else gateway.proc
    if java is not None and java.poll() is not None:
        return
    session.stop()
    if gateway is not None:
        gateway.shutdown()
    if java is not None:
        end_java(java, within_s)


def java_ended() -> SparkEnded | None:
    """Return the error to raise if Spark's Java process has ended, or None if it is still running after 5 s."""
    java = next((gateway.proc for gateway in _gateways), None)
    if java is None:
        return None
    try:
        # Java's connections break a moment before the process has ended.
        code = java.wait(_JAVA_IS_GONE_WITHIN_S)
    except subprocess.TimeoutExpired:
        return None
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"ended with code {code}"
    return SparkEnded(
        f"Spark's Java process {how}; nothing is lost. A kill that nobody sent is the kernel's, for want of memory: "
        "give a smaller --max-bytes or --conf spark.driver.memory"
    )


def end_java(java: "subprocess.Popen[bytes]", within_s: float) -> None:
    """End Java by closing its standard input; kill it if it takes longer than `within_s`."""
    assert java.stdin is not None
    java.stdin.close()
    try:
        java.wait(within_s)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def require_checkpoint(checkpoint: Path, silver_id: str) -> None:
    """Check that a checkpoint has this format and is for these tables; mark a new one.

    :param silver_id: the id in the metadata of the table silver.
    :raises UsageError: it was not. Continuing would misread its files, or skip messages that the tables lack.
    """
    path = checkpoint / "umqtt" / "version.json"
    mine = {"format": CHECKPOINT_FORMAT, "silver": silver_id}
    remedy = "give a new --checkpoint: the spool is read again from its beginning, and what the tables have is skipped"
    try:
        found = read_checked_json(path)
    except FileNotFoundError:
        if (checkpoint / "metadata").exists():
            raise UsageError(f"the checkpoint {checkpoint} is not of umqtt ingest; {remedy}") from None
        path.parent.mkdir(exist_ok=True)
        replace_checked(path, json.dumps(mine).encode())
        return
    except FileDamaged as error:
        raise UsageError(f"{error}: {remedy}") from error
    if found.get("format") != CHECKPOINT_FORMAT:
        raise UsageError(f"the checkpoint {checkpoint} is of another version; {remedy}")
    if found.get("silver") != silver_id:
        raise UsageError(f"the checkpoint {checkpoint} belongs to other tables; {remedy}")


def remove_first_plan_cut_short(checkpoint: Path) -> None:
    """Remove what a kill leaves while Spark writes its first plan; the caller holds the checkpoint's lock.

    Spark writes a plan under a hidden name and then renames it. It refuses to plan micro-batch 0 while anything is in
    the folder of plans, at every start, and has no setting or command that mends that. Without this, the user would
    have to remove a checkpoint that holds nothing.
    """
    plans = checkpoint / "offsets"
    if not any(plans.glob("[!.]*")):
        for hidden in plans.glob(".*"):
            hidden.unlink()


def committed_offset(checkpoint: Path) -> "Offset":
    """Return the offset up to which messages are in the tables.

    :raises UsageError: there is none, or it cannot be read.
    """
    try:
        return json.loads((checkpoint / "umqtt" / READ_UP_TO).read_bytes())
    except (OSError, ValueError):
        raise UsageError(
            f"{checkpoint} holds no micro-batch that was committed: give the --checkpoint of umqtt ingest"
        ) from None


@contextmanager
def unfinished(tables: Location, command: str) -> Iterator[None]:
    """Mark the tables while `command` changes them; if it is interrupted, it must be run again before anything else.

    :param command: the part of the command line after ``umqtt tables``.
    :raises UsageError: another command was interrupted.
    """
    require_whole(tables, but_for=command)
    replace_checked(tables / UNFINISHED, command.encode())
    yield
    (tables / UNFINISHED).unlink()
    sync_directory(tables)


def require_whole(tables: Location, *, but_for: str | None = None) -> None:
    """Check that no command was interrupted that must be run again.

    :param but_for: the command that is about to run, which may have been interrupted.
    :raises UsageError: another command was interrupted, or the tables cannot be read.
    """
    path = tables / UNFINISHED
    try:
        command = bytes(read_checked(path)).decode()
    except FileNotFoundError:
        return
    except FileDamaged as error:
        # A rebuild completes whatever was interrupted, except that it removes no device.
        if but_for == "rebuild":
            return
        raise UsageError(
            f"{error}: a change of {tables} was interrupted: run umqtt tables rebuild --tables {tables}, and if it was "
            "umqtt tables forget, run that again afterwards"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read the tables {tables}: {reason(error)}") from error
    if command != but_for:
        again = f"run umqtt tables {command} --tables {tables} again"
        raise UsageError(f"a change of {tables} was interrupted: {again}")


def write_failure(error: BaseException, tables: Location) -> TablesWriteFailed:
    """Return the error to raise for an error of the disk or of Delta."""
    why = getattr(error, "strerror", None) or _reason(str(error)) or first_line(error)
    return TablesWriteFailed(f"cannot write the tables {tables}: {why}; {_NOTHING_LOST}")


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Raise an IngestError instead of a BaseException that is no Exception, such as a panic of delta-rs.

    In a callback of Spark, Java would get no answer after such an exception, and the query would wait for ever.

    :param what: what was being done, for people.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise IngestError(f"{what} was interrupted by {type(error).__name__}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's kind if it has no message."""
    return str(error).strip().splitlines()[0] if isinstance(error, IngestError) else reason(error)


def explained(text: str, checkpoint: Path) -> IngestError:
    """Return the error to raise for a failed query, from the text of Spark's exception.

    A text that is not explained by this package's error or a full disk is saved to CHECKPOINT/umqtt/failure.txt.
    """
    own = own_error(text)
    if own is not None:
        return IngestError(f"the query stopped: {own}")
    why = _reason(text)
    if why is not None:
        return TablesWriteFailed(f"cannot write the checkpoint {checkpoint}: {why}; {_NOTHING_LOST}")
    details = checkpoint / "umqtt" / "failure.txt"
    line = f"the query stopped: {cause(text)}"
    try:
        replace_file(details, text.encode())
    except OSError:
        return IngestError(line)
    return IngestError(f"{line}; all of it is in {details}")


def cause(text: str) -> str:
    """Return the cause of a failure of Spark: Java's innermost exception, or the Python one that ended a traceback."""
    lines = text.strip().splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")] or [
        line for line in lines if re.match(r"(: )?((\w+\.)+\w+|\w+(Error|Exception|Exit|Interrupt)): ", line)
    ]
    line = (causes or lines)[-1 if causes else 0]
    line = re.sub(r"^(Caused by: |: )?([a-z_]\w*\.)*(SparkException: )?", "", line)
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in text), None)
    return f"{line}: {remedy}" if remedy else line


def _reason(text: str) -> str | None:
    return next((reason for reason in _REASONS if reason in text), None)

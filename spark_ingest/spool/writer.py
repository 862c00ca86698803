"""The writer of a spool: appends blocks, syncs them and then publishes the new durable position.

The order of an append makes it safe: write header and data, ``fdatasync``, publish `pos`, return. The collector
acknowledges after the return, so an acknowledged message survives a power cut, and a reader that follows `pos` sees
only such messages.

Each start recovers the spool. Blocks at the end of the last segment that fail their checksum and are at or above the
durable position are incomplete writes; their messages were never acknowledged, and they are cut off. Damage below the
durable position is an error, because acknowledged messages may be lost. Then a new segment begins, so that nothing is
ever appended to a file of an earlier process, and with it a run with a UUID of its own. The writer cannot know
whether the folder was restored from a copy meanwhile, but the new UUID shows it to earlier readers.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from umqtt_cli.durable import sync_data, sync_directory, write_all

from ..durable import read_checked_json, replace_checked
from ..errors import FileDamaged, SpoolDamaged, SpoolInUse, SpoolWriteFailed, UsageError
from .blocks import (
    FORMAT_VERSION,
    Position,
    Run,
    checked_blocks,
    damage_message,
    decode_position,
    encode_block_header,
    encode_position,
    known_runs,
    marked_runs,
    run_path,
    segment_numbers,
    segment_path,
    spool_of,
)

DEFAULT_SEGMENT_BYTES = 32 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Spool:
    """The only writer of the spool in `folder`. Use it as a context manager, or call :meth:`close`.

    :param folder: the folder of the spool; created if it does not exist.
    :param segment_bytes: a new segment begins after the block with which the segment reaches this size.
    :param sync: makes a file descriptor's data durable; replaced in tests that record the order of calls.
    :raises UsageError: the folder cannot be created or written, or the spool has another format version.
    :raises SpoolInUse: another process has the spool open for writing.
    :raises SpoolDamaged: see :meth:`_recover`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        sync: Callable[[int], None] = sync_data,
    ) -> None:
        self.folder = folder
        self.truncated_bytes = 0
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._segment_fd = -1
        self._pos_fd = -1
        self._lock_fd = -1
        self._segment = -1
        self._position = 0
        self._failed = False
        try:
            made = [path for path in folder.parents if not path.exists()]
            # Readings are for this user alone, as in the broker's store.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A folder is durable once its parent is synced. The parent of `folder` is always synced, because an
            # interrupted start may have created `folder`.
            for path in (folder, *made):
                sync_directory(path.parent)
            self._lock()
            # The first run has the UUID of spool.json; every other gets its own when its first segment begins.
            self._next_uuid = "" if self._make_identity() else uuid.uuid4().hex
            last = self._recover()
            self._forget_runs(last)
            self._uuid = spool_of(known_runs(folder), max(last, 0)) or ""
            self._begin_first_segment(last)
        except OSError as error:
            self.close()
            reason = error.strerror or error
            raise UsageError(f"cannot write the spool {folder}: {reason}; choose another --spool") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def durable(self) -> Position:
        """The durable position: everything below it survives a power cut."""
        return Position(self._uuid, self._segment, self._position)

    def append(self, data: bytes, count: int, received_ms: int, level: int = 4) -> None:
        """Append one block and return when it is durable.

        :param data: the complete PUBLISH packets.
        :param count: the number of packets in `data`.
        :param received_ms: the time at which the group was received, in Unix milliseconds.
        :param level: protocol level of the packets: 4 for MQTT 3.1.1, or 5.
        :raises SpoolWriteFailed: no reader will ever see any part of the block, and the caller must not acknowledge
            its messages. The spool stays usable: the next append tries again in a new segment.
        :raises SpoolDamaged: the folder was replaced by another one; nothing was written.
        """
        block = encode_block_header(data, count, received_ms, level) + data
        end = self._position + len(block)
        try:
            if self._failed:
                self._mend()
            if self._segment_fd < 0 or self._position >= self._segment_bytes:
                self._begin_segment(self._segment + 1)
                end = len(block)
            write_all(self._segment_fd, block)
            self._sync(self._segment_fd)
            self._publish(end)
        except OSError as error:
            self._failed = True
            raise SpoolWriteFailed(
                f"cannot append to the spool {self.folder}: {error.strerror or error}; "
                "nothing was acknowledged, the broker keeps the messages until there is room"
            ) from error

    def rotate(self) -> None:
        """Finish the current segment, so that it can be removed once it is read, and begin a new one.

        :raises SpoolWriteFailed, SpoolDamaged: as :meth:`append`.
        """
        try:
            if self._failed:
                self._mend()
            self._begin_segment(self._segment + 1)
        except OSError as error:
            self._failed = True
            raise SpoolWriteFailed(
                f"cannot begin a segment in the spool {self.folder}: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Sync the `pos` file, close everything and release the lock. May be called twice."""
        try:
            if self._pos_fd >= 0:
                # Not needed for safety, since an older durable position is valid too; but recovery then knows the
                # newest one.
                self._sync(self._pos_fd)
        finally:
            for fd in (self._segment_fd, self._pos_fd, self._lock_fd):
                if fd >= 0:
                    os.close(fd)
            self._segment_fd = self._pos_fd = self._lock_fd = -1

    def _lock(self) -> None:
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise SpoolInUse(
                f"the spool {self.folder} is in use by the collector with process id {holder}: "
                "stop it, or give this one another --name"
            ) from None
        self._lock_fd = fd
        # The process id is only for people: a full disk must not end a collector that would wait for room.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def _make_identity(self) -> bool:
        """Create ``spool.json``, or check the existing one; return whether it was created.

        :raises SpoolDamaged: the file is damaged, or missing although there are segments.
        :raises UsageError: the spool has another format version.
        """
        path = self.folder / "spool.json"
        try:
            found = read_checked_json(path).get("format")
        except FileNotFoundError:
            if segment_numbers(self.folder):
                raise SpoolDamaged(
                    f"{path} is missing although there are segments: "
                    "restore it from a copy, or move the folder away to start anew"
                ) from None
            identity = {"format": FORMAT_VERSION, "spool": uuid.uuid4().hex}
            replace_checked(path, json.dumps(identity).encode(), mode=0o600)
            return True
        except FileDamaged as error:
            raise SpoolDamaged(f"{error}: restore it from a copy") from error
        if found != FORMAT_VERSION:
            raise UsageError(
                f"the spool {self.folder} has format {found}, not {FORMAT_VERSION}: "
                "choose another --spool and let Spark finish reading the old one"
            )
        return False

    def _recover(self) -> int:
        """Cut off an incomplete write, open `pos` and return the number of the last segment (-1 without segments).

        :raises SpoolDamaged: a block below the durable position fails its checksum, the segment of the durable
            position is missing, or `pos` is damaged or belongs to another spool.
        """
        segments = segment_numbers(self.folder)
        path = self.folder / "pos"
        raw = path.read_bytes() if path.exists() else b""
        durable = decode_position(raw)
        if durable is None:
            if raw or any(segment_path(self.folder, segment).stat().st_size for segment in segments):
                raise SpoolDamaged(
                    f"{path} is damaged or missing: restore it from a copy, or move the spool folder away"
                )
            durable = Position("", 0, 0)
        elif durable.segment not in segments or durable.spool != spool_of(known_runs(self.folder), durable.segment):
            raise SpoolDamaged(
                f"{path} does not belong to this spool or names a segment that is gone: "
                "restore the folder from a copy, or move it away"
            )
        # Every segment but the last was synced before the next one began, even if `pos` is older.
        for segment in (s for s in segments if s >= durable.segment):
            last = segment == segments[-1]
            floor = durable.position if segment == durable.segment else 0
            self._check_segment(segment_path(self.folder, segment), floor, may_be_torn=last)
        self._pos_fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        return segments[-1] if segments else -1

    def _check_segment(self, path: Path, durable_position: int, *, may_be_torn: bool) -> None:
        data = path.read_bytes()
        good = 0
        for header, _body in checked_blocks(data, 0):
            good = header.end
        if good < durable_position or (good < len(data) and not may_be_torn):
            raise SpoolDamaged(damage_message(path, good))
        fd = os.open(path, os.O_RDWR)
        try:
            if good < len(data):
                os.ftruncate(fd, good)
                self.truncated_bytes += len(data) - good
            # Complete blocks above the durable position may be only in the page cache: sync before publishing them.
            self._sync(fd)
        finally:
            os.close(fd)

    def _forget_runs(self, last: int) -> None:
        """Remove the file of each run without segments: retention removed them, or its start was interrupted."""
        runs = marked_runs(self.folder)
        first = min(segment_numbers(self.folder), default=0)
        for run, following in itertools.zip_longest(runs, runs[1:]):
            if run.segment > last or (following is not None and following.segment <= first):
                run_path(self.folder, run).unlink()

    def _begin_first_segment(self, last: int) -> None:
        """Begin the segment after `last`; on a full disk, leave that to the first append that finds room."""
        try:
            self._begin_segment(last + 1)
        except OSError as error:
            if error.errno not in _DISK_FULL or last < 0:
                raise
            self._failed = True
            if self._segment_fd < 0:
                self._segment = last
                self._publish(segment_path(self.folder, last).stat().st_size)

    def _begin_segment(self, segment: int) -> None:
        if not os.path.samestat(os.stat(self.folder / "lock"), os.fstat(self._lock_fd)):
            # The open folder was replaced by a copy, or its lock was removed: readers that follow the folder's `pos`
            # would never see what is written here.
            raise SpoolDamaged(f"the spool {self.folder} was replaced while it was written: start the collector again")
        if self._segment_fd >= 0:
            os.close(self._segment_fd)
            self._segment_fd = -1
        if self._next_uuid:
            os.close(os.open(run_path(self.folder, Run(segment, self._next_uuid)), os.O_WRONLY | os.O_CREAT, 0o600))
        fd = os.open(segment_path(self.folder, segment), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._segment_fd, self._segment, self._position = fd, segment, 0
        self._uuid, self._next_uuid = self._next_uuid or self._uuid, ""
        sync_directory(self.folder)
        self._publish(0)
        self._sync(self._pos_fd)

    def _mend(self) -> None:
        """Cut off what a failed append left behind, and close its segment for good.

        Readers use a finished segment's length as its end, so unsynced bytes must not stay. The file is not appended
        to again, because after a failed sync the kernel may have dropped the pages and marked the file clean.
        """
        if self._segment_fd >= 0:
            os.ftruncate(self._segment_fd, self._position)
            self._sync(self._segment_fd)
            os.close(self._segment_fd)
            self._segment_fd = -1
        self._failed = False

    def _publish(self, position: int) -> None:
        os.pwrite(self._pos_fd, encode_position(Position(self._uuid, self._segment, position)), 0)
        self._position = position

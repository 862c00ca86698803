"""Updates app, lib and sensors over the air: in the slot that does not run, verified, tried once, kept or given up.

    {"cmd": "update", "args": {"url": "http://192.168.1.2:8080/", "sha256": "…", "version": "0.2.0"}}
    {"cmd": "update", "args": {"mqtt": true, "sha256": "…", "version": "0.2.0"}}
    {"cmd": "update", "args": {"rollback": true, "from": "a"}}      back to the previous version

sha256 names the manifest (versions.py), and the manifest names the files: their server need not be trusted, only the
command, whose signature was checked before (guard.py). A version older than the installed one needs "downgrade": true
in the command. Every object is requested by its hash, unless the slot or the running version already has it. The slot
that does not run is written and verified by reading it back; only then does the pointer file name it (startup.py). If
the flash has no room for a third version, the base version runs first, and the slot that ran is overwritten. A power
cut at any moment leaves a version that boots, and the update continues where it was: complete files are kept.
The reply is sent when the broker has acknowledged the first reading of the new version, or when it was given up.
"""

import gc
import hashlib
import os
from binascii import hexlify

import boot_choice
import startup

from app import versions
from app.commands import CommandError

_LARGEST_MANIFEST = 32_768
_PIECE = 512
_WAIT_MS = 20
_SILENT_MS = 20_000
_TRIES = 8
_LONGEST_PAUSE_MS = 60_000
# For the file that is being written, and what the rest of the board may need meanwhile.
_SPARE_BYTES = 24_576
# For the folders of a slot: six with two blocks each. Small files lie in them, and are counted as a block each as well,
# which is more than all that the folders grow by.
_FOLDERS_BYTES = 49_152


class Updater:
    """An update, one at a time. board: app.board.Board. Call step() in every pass of the loop."""

    command = "update"

    def __init__(self, board):
        self._board = board
        self._order = None
        self._work = None
        self._source = None

    @property
    def busy(self):
        return self._work is not None

    def begin(self, args, order):
        """Start the update that a command asks for. Raises CommandError."""
        if self._work:
            raise CommandError("an update is under way")
        if args.get("rollback"):
            if args.get("from") != self._board.boots.run:
                raise CommandError("runs %s; give it as from" % self._board.boots.run)
            work = self._roll_back()
        else:
            self._check(args)
            boots = self._board.boots
            if boots.slot == boots.run and self._is(boots.run, args):
                work = self._done()
            else:
                self._check_version(args)
                work = self._fetch(args)
        self._order = order
        self._work = work

    def recover(self, args, order):
        """Continue an update after a restart, whether or not the restart was part of it. Raises CommandError."""
        boots = self._board.boots
        if boots.on_trial:
            self._order = order
            self._work = self._await_confirmation()
        elif boots.failed != startup.NONE and self._is(boots.failed, args):
            raise CommandError("rolled back: %s was started and not confirmed" % boots.failed)
        elif self._is(boots.run, args):
            self._order = order
            self._work = self._done()
        else:
            self.begin(args, order)

    def step(self):
        """Do a little of the work. Returns the milliseconds until more can be done, or None if there is none."""
        if not self._work:
            return None
        try:
            return next(self._work)
        except StopIteration:
            text = None
        except (CommandError, versions.ManifestError) as error:
            text = str(error)
        except OSError as error:
            text = "the flash refused: %r" % error
        except Exception as error:  # noqa: BLE001 - if raised, recover() would meet it after every restart
            text = "failed: %r" % error
        self._work = None
        if self._source:
            self._source.end()
            self._source = None
        if text:
            self._board.commands.reply(self._order, False, text)
        return 0

    def _check_version(self, args):
        version = args.get("version")
        if not isinstance(version, str):
            raise CommandError("update needs version, for instance 0.2.0")
        installed = self._installed()
        if args.get("downgrade") is not True and versions.is_older(version, installed):
            text = "%s is older than %s, which is installed: send downgrade: true if that is wanted"
            raise CommandError(text % (version, installed))

    def _installed(self):
        # Not the running version: in safe mode that is the base version, which may be older.
        boots = self._board.boots
        if boots.run != startup.BASE:
            try:
                return versions.version_of(self._board.folder + startup.folder_of(boots.run) + "/" + versions.MANIFEST)
            except (OSError, versions.ManifestError):
                pass  # a slot that lost its manifest has no known version
        return self._board.version

    # The steps of an update: each yields the milliseconds until it can continue

    def _fetch(self, args):
        slot = "a" if self._board.boots.run != "a" else "b"
        folder = startup.folder_of(slot)
        root = self._board.folder
        boot_choice.overwrite(self._board.boots, slot)
        for path in ("/ota", folder):
            try:
                os.mkdir(root + path)
            except OSError:
                pass  # it exists, or writing into it fails
        folder = root + folder
        manifest = folder + "/" + versions.MANIFEST
        if versions.sha256_of(manifest) != args["sha256"]:
            self._open_source(args)
            yield from self._download(args["sha256"], None, manifest)
        if versions.version_of(manifest) != args["version"]:
            raise CommandError("the manifest is of version " + versions.version_of(manifest))
        missing = self._missing_sensors(manifest)
        if missing:
            text = "no module %s is in this release or on the board, and sensors in its settings need it: send it along"
            raise CommandError(text % ", ".join(sorted(missing)))
        yield from self._make_room(folder, manifest)
        for sha256, size, path in versions.entries(manifest):
            gc.collect()
            yield from self._take(args, folder, sha256, size, path)
        yield from self._verify(folder)
        yield from self._try(slot)

    def _missing_sensors(self, manifest):
        # Returns the names of modules that sensors of the settings need and the new version would not find. The
        # modules of a release replace all those that came over the cable.
        wanted = {sensor["module"] for sensor in self._board.settings.get("sensors", ())}
        cable = self._board.folder + "/sensors"
        replaced = False
        for _, _, path in versions.entries(manifest):
            parts = path.split("/")
            if parts[0] == "sensors" or parts[:2] == ["app", "sensors"]:
                wanted.discard(parts[-2 if parts[-1].startswith("__init__.") else -1].partition(".")[0])
                replaced = replaced or parts[0] == "sensors"
        if wanted and not replaced and versions.is_folder(cable):
            wanted -= {name.partition(".")[0] for name in os.listdir(cable)}
        return wanted

    def _take(self, args, folder, sha256, size, path):
        # Gets one file: keeps it, copies it from the version that runs, or downloads it.
        target = folder + "/" + path
        if versions.sha256_of(target) == sha256:
            return
        versions.make_folders(folder, path)
        yield 0
        here = self._board.folder + self._board.boots.folder + "/" + path
        if versions.sha256_of(here) == sha256:
            yield from self._copy(here, target)
        else:
            self._open_source(args)
            yield from self._download(sha256, size, target)

    def _make_room(self, folder, manifest):
        # This also finds lines that are not allowed, before a file is touched.
        for path in list(versions.strays(folder, manifest)):
            os.remove(folder + "/" + path)
            yield 0
        boots = self._board.boots
        running = self._board.folder + startup.folder_of(boots.run)
        needed = in_place = _SPARE_BYTES  # in_place: if the files of the version that runs were overwritten
        if not versions.is_folder(folder + "/app"):
            needed += _FOLDERS_BYTES
        for sha256, size, path in versions.entries(manifest):
            if versions.sha256_of(folder + "/" + path) != sha256:
                needed += versions.space_added(size, folder + "/" + path)
            in_place += versions.space_added(size, running + "/" + path)
            yield 0
        try:
            # An empty folder would be found before /sensors, which holds the modules installed over the cable.
            os.rmdir(folder + "/sensors")
        except OSError:
            pass  # it does not exist, or is not empty
        free = versions.free_bytes(self._board.folder)
        if free >= needed:
            return
        if boots.run == startup.BASE or free < in_place:
            raise CommandError("needs %d bytes of flash, and %d are free" % (needed, free))
        # There is no room for a third version: the base version runs until the update has overwritten this one.
        versions.remove(folder)
        boot_choice.run_base(boots)
        yield from self._restart()

    def _verify(self, folder):
        # Checks what the flash holds, not what was written to it.
        for sha256, _, path in versions.entries(folder + "/" + versions.MANIFEST):
            if versions.sha256_of(folder + "/" + path) != sha256:
                raise CommandError("%s is not in flash as it should be; send the update again" % path)
            yield 0

    def _roll_back(self):
        boots = self._board.boots
        slot = boots.previous
        if slot == startup.NONE:
            raise CommandError("there is no version before this one that was not given up: send an update")
        if slot != startup.BASE:
            yield from self._verify(self._board.folder + startup.folder_of(slot))
        yield from self._try(slot)

    def _try(self, slot):
        boot_choice.try_version(self._board.boots, slot)
        yield from self._restart()

    def _restart(self):
        self._board.restart()
        while True:  # the restart ends this
            yield 1000

    def _await_confirmation(self):
        while self._board.boots.on_trial:
            yield 1000
        yield from self._done()

    def _done(self):
        boots = self._board.boots
        self._board.commands.reply(self._order, True, {"slot": boots.slot, "version": self._board.version})
        yield 0

    def _is(self, slot, args):
        # Returns True if this slot is what the command asked for.
        if args.get("rollback"):
            return slot != args.get("from")
        manifest = self._board.folder + startup.folder_of(slot) + "/" + versions.MANIFEST
        return slot != startup.BASE and versions.sha256_of(manifest) == args.get("sha256", "")

    # Files

    def _copy(self, source, target):
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        with open(source, "rb") as reader, open(target + ".new", "wb") as writer:
            while True:
                n = reader.readinto(piece)
                if not n:
                    break
                _write(writer, view[:n])
        os.rename(target + ".new", target)
        yield 0

    def _download(self, sha256, size, target):
        # Writes under another name until the file is complete. size: None for the manifest, whose hash is enough.
        for _ in range(3):
            digest = hashlib.sha256()
            with open(target + ".new", "wb") as file:
                yield from self._receive(sha256, size, file, digest)
            if hexlify(digest.digest()).decode() == sha256:
                os.rename(target + ".new", target)
                return
        os.remove(target + ".new")
        raise CommandError("%s came three times with another hash" % target)

    def _receive(self, sha256, size, file, digest):
        source = self._source
        piece = bytearray(_PIECE)
        view = memoryview(piece)
        have = failures = 0
        while True:
            try:
                source.open(sha256, have)
                n = None
                silent_since = self._now()
                while n != 0:
                    n = source.read(piece)
                    if n:
                        have += n
                        if have > (size if size is not None else _LARGEST_MANIFEST):
                            raise CommandError("%s is longer than %s bytes" % (sha256, size or _LARGEST_MANIFEST))
                        digest.update(view[:n])
                        self._keep(file, view[:n])
                        failures = 0
                        silent_since = self._now()
                        yield 0
                    elif n is None:
                        if self._now() - silent_since > _SILENT_MS:
                            raise OSError("silence")
                        yield _WAIT_MS
                if size is None or have == size:
                    source.close()
                    return
                raise OSError("it ended after %d bytes" % have)
            except OSError as error:
                source.close()
                # Failures without a network do not count: they are no reason to give up.
                failures += self._board.client.connected
                if failures >= _TRIES:
                    raise CommandError("%s: %r" % (sha256, error))
            until = self._now() + min(500 << failures, _LONGEST_PAUSE_MS)
            while self._now() < until:
                yield 500

    def _keep(self, file, piece):
        # A flash error must not look like a network error, which would be retried.
        try:
            _write(file, piece)
        except OSError as error:
            raise CommandError("the flash refused: %r" % error)

    def _now(self):
        return self._board.clock.uptime_ms()

    def _check(self, args):
        if not versions.is_hash(args.get("sha256")):
            raise CommandError('needs sha256, and url or mqtt: {"url": "http://…/", "sha256": "…"}')
        url = args.get("url")
        if not isinstance(url, str) and (url is not None or not args.get("mqtt")):
            raise CommandError("needs url, or mqtt: true")
        allowed = self._board.settings.get("update_url")
        if url is not None and allowed and not url.startswith(allowed):
            raise CommandError("updates may only come from " + allowed)
        if url is not None:
            from app.update_http import parse

            parse(url, self._transports())

    def _open_source(self, args):
        if self._source:
            return
        if args.get("url") is not None:
            from app.update_http import Http

            self._source = Http(args["url"], self._transports(), self._board)
        else:
            from app.update_mqtt import Mqtt

            self._source = Mqtt(self._board)

    def _transports(self):
        return self._board.client.transports or {}


def _write(file, piece):
    if file.write(piece) != len(piece):
        raise OSError(28)  # ENOSPC

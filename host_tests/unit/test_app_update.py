"""An update leaves a bootable version, wherever the power is cut, and exactly the files of the command's manifest."""

import hashlib
import json
import os
from binascii import hexlify

import _app_fakes as fakes
import boot_choice
from app import signed, versions
from app.actions import Actions
from app.commands import CommandError
from app.commands import Commands as Commands_
from app.ledger import Ledger
from app.settings_files import save
from app.update import Updater
from app.update_http import Http
from startup import BASE, CONFIRMED, NONE
from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import FULL, equal, new_path, raises

from umqtt_robust.errors import LinkLost

HEAP = "8M"
TIMEOUT_S = 900
CUTS = None if FULL else 15

_SPARE = 24576  # bytes of flash that an update leaves free
# Size of the ledger: a small one soon forgets.
_SIGNED_SIZE = 4
OLD = {"app/__init__.mpy": b"old init", "app/main.mpy": b"o" * 900, "lib/l/x.mpy": b"same" * 200, "app/gone.mpy": b"g"}
NEW = {"app/__init__.mpy": b"new init", "app/main.mpy": b"n" * 5000, "lib/l/x.mpy": b"same" * 200, "app/d/e.mpy": b"e"}
NEWER = {"app/__init__.mpy": b"newer init", "app/main.mpy": b"N" * 300, "lib/l/x.mpy": b"same" * 200}


def sha256(data):
    return hexlify(hashlib.sha256(data).digest()).decode()


def manifest_of(files, version):
    lines = ["umqtt-manifest 1 " + version]
    for path in sorted(files):
        lines.append("%s %d %s" % (sha256(files[path]), len(files[path]), path))
    return ("\n".join(lines) + "\n").encode()


class Source:
    """A source that serves objects by hash, in pieces, over a link that breaks now and then."""

    def __init__(self, objects, breaks=0):
        self.objects = objects
        self.breaks = breaks
        self.asked = []
        self.ended = False

    def open(self, name, offset):
        self.asked.append((name, offset))
        self._data = self.objects[name][offset:]
        self._broken = self.breaks > 0
        self.breaks -= self._broken

    def read(self, buf):
        if self._broken and len(self._data) < 300:
            raise OSError(104)
        n = min(len(buf), len(self._data), 200)
        buf[:n] = self._data[:n]
        self._data = self._data[n:]
        return n

    def close(self):
        pass

    def end(self):
        self.ended = True


class Commands:
    def __init__(self):
        self.replies = []

    def reply(self, order, ok, result):
        self.replies.append((ok, result))


class Board:
    """A board with everything that an update needs; drive() runs the update to its end."""

    version = "?"
    commands_until = 0

    def __init__(self, root, boots, files, version, breaks=0):
        self.folder = root
        self.boots = boots
        self.settings = {}
        self.client = fakes.Client()
        self.client.transports = None
        self.ticks, self.clock = fakes.clock()
        self.commands = Commands()
        self.restarts = 0
        manifest = manifest_of(files, version)
        objects = {sha256(data): data for data in files.values()}
        objects[sha256(manifest)] = manifest
        self.args = {"mqtt": True, "sha256": sha256(manifest), "version": version}
        self.source = Source(objects, breaks)
        self.updater = Updater(self)
        self.updater._open_source = self._open_source

    def _open_source(self, args):
        self.updater._source = self.source

    def restart(self):
        self.restarts += 1

    def drive(self):
        for _ in range(20000):
            if not self.updater.busy or self.restarts:
                return self
            self.ticks.advance(self.updater.step() or 0)
        raise AssertionError("the update does not come to an end")

    def update(self, **changes):
        self.args.update(changes)
        self.updater.begin(self.args, 1)
        return self.drive()


def write(root, files):
    for path in files:
        versions.make_folders(root, path)
        with open(root + "/" + path, "wb") as file:
            file.write(files[path])


def files_in(root):
    found = {}
    for top in ("app", "lib"):
        for path in versions._walk(root, top):
            with open(root + "/" + path, "rb") as file:
                found[path] = file.read()
    return found


def _confirm(boots):
    """Keep the version that runs, as a healthy boot does."""
    if boots.on_trial:
        boot_choice.adopt(boots)
    boots.mark(CONFIRMED)


def boot(root, confirm=False):
    boots = boot_choice.read_boots(root)
    boot_choice.begin(boots)
    if confirm:
        _confirm(boots)
    return boots


def fresh():
    root = new_path("update")
    os.mkdir(root)
    write(root, OLD)
    boot(root, True)
    return root


def test_a_new_version_is_written_beside_tried_and_confirmed():
    root = fresh()
    board = Board(root, boot(root), NEW, "2").update()
    equal((board.restarts, board.commands.replies), (1, []))
    equal(files_in(root + "/ota/a"), NEW)
    equal(files_in(root), OLD)
    trial = boot(root)
    equal((trial.slot, trial.on_trial), ("a", True))
    board = Board(root, trial, NEW, "2")
    board.updater.recover(board.args, 1)
    for _ in range(3):
        board.updater.step()
    equal(board.commands.replies, [])
    _confirm(trial)
    board.drive()
    equal(board.commands.replies, [(True, {"slot": "a", "version": "?"})])
    # A power cut before the reply was kept: the same reply once more, and nothing else.
    board = Board(root, boot(root), NEW, "2")
    board.updater.recover(board.args, 1)
    equal(board.drive().commands.replies, [(True, {"slot": "a", "version": "?"})])


def test_a_version_that_is_not_confirmed_is_given_up_and_said_so():
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    equal(boot(root).slot, "a")
    after = boot(root)
    equal((after.slot, after.failed), (BASE, "a"))
    board = Board(root, after, NEW, "2")
    assert "rolled back" in str(raises(CommandError, board.updater.recover, board.args, 1))


def test_an_older_version_is_refused_unless_it_is_asked_for_by_name():
    """Planted: versions are compared as text; in safe mode the running version is compared."""
    for version, other, older in (
        ("0.9", "0.10", True), ("0.10", "0.9", False), ("1.0", "1", False), ("1", "1.0.0", False),
        ("1.0.1", "1", False), ("nightly", "0.1", True), ("0.1", "nightly", False), ("2-rc1", "2", False),
        ("1.x.9", "1.1", True), ("", "", False),
    ):  # fmt: skip
        equal(versions.is_older(version, other), older, version + " " + other)
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    boots = boot(root, True)
    board = Board(root, boots, NEWER, "1.9")
    board.version = "1"  # as in safe mode, where the base version runs
    assert "older than 2" in str(raises(CommandError, board.updater.begin, board.args, 1))
    raises(CommandError, board.updater.begin, dict(board.args, downgrade="yes"), 1)
    equal(board.update(downgrade=True).restarts, 1)


def test_what_is_there_is_not_fetched_again():
    root = fresh()
    board = Board(root, boot(root), NEW, "2").update()
    asked = [name for name, _ in board.source.asked]
    assert sha256(NEW["lib/l/x.mpy"]) not in asked
    equal(len(asked), 4)
    # Cut short after everything was written: nothing is fetched twice.
    board = Board(root, boot(root, True), NEW, "2").update()
    boot(root)
    boot(root)
    board = Board(root, boot(root), NEW, "2").update()
    equal(board.source.asked, [])


def test_the_next_update_takes_the_other_slot_and_leaves_nothing_of_the_one_before_in_it():
    root = fresh()
    for number, files in enumerate((NEW, NEWER, OLD, NEW)):
        Board(root, boot(root), files, str(number)).update()
        boots = boot(root, True)
        equal(boots.slot, "ab"[number % 2])
        equal(files_in(root + boots.folder), files)


def test_rollback_goes_to_the_version_before_once():
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    boot(root, True)
    board = Board(root, boot(root), NEW, "2")
    raises(CommandError, board.updater.begin, {"rollback": True, "from": "b"}, 1)
    args = {"rollback": True, "from": "a"}
    board.updater.begin(args, 1)
    board.drive()
    boots = boot(root, True)
    equal((boots.slot, boots.previous, boots.failed), (BASE, NONE, "a"))
    # The same command, cut short after the new version was confirmed, does not go back and forth.
    board.boots = boots
    board.restarts = 0
    board.updater = Updater(board)
    board.updater.recover(args, 1)
    equal(board.drive().commands.replies, [(True, {"slot": BASE, "version": "?"})])


def test_no_rollback_brings_back_what_was_rolled_back_from_or_given_up():
    """Planted: after a rollback the abandoned version counts as the previous one; so does an overwritten slot."""
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    boots = boot(root, True)
    args = {"rollback": True, "from": "a"}
    Board(root, boots, NEW, "2").update(**args)
    boots = boot(root, True)
    equal(boots.slot, BASE)
    board = Board(root, boots, NEW, "2").update(rollback=True, **{"from": BASE})
    assert "no version before" in board.commands.replies[0][1], board.commands.replies
    equal((board.restarts, boot(root, True).slot), (0, BASE))
    # b is the previous version when a new one is written over it and fails its trial.
    for files in (NEW, NEWER, OLD):
        Board(root, boot(root), files, "3").update()
        boots = boot(root, True)
    equal((boots.slot, boots.previous), ("a", "b"))
    Board(root, boots, NEW, "4").update()
    boot(root)
    boots = boot(root, True)
    equal((boots.slot, boots.failed), ("a", "b"))
    board = Board(root, boots, NEW, "4").update(rollback=True, **{"from": "a"})
    assert "no version before" in board.commands.replies[0][1], board.commands.replies


def test_a_release_without_a_sensor_that_the_settings_name_is_refused():
    """Planted: the modules of the cable count although the release has some of its own; any file is a sensor."""
    own = {"sensors/door.mpy": b"door", "app/sensors/chip.mpy": b"chip"}
    package = {"sensors/door/__init__.mpy": b"door"}
    for on_the_cable, in_release, needed, missing in (
        ((), (), ("door",), "door"),
        ((), own, ("door", "chip"), ""),
        (("door.mpy", "pump.py"), (), ("door", "pump"), ""),
        (("pump.py", "door.mpy"), own, ("door", "pump"), "pump"),
        ((), {"app/sensors/chip.mpy": b"chip"}, ("lamp", "chip", "door"), "door, lamp"),
        ((), {"app/lamp.mpy": b"lamp"}, ("lamp",), "lamp"),
        ((), package, ("door",), ""),
    ):
        root = fresh()
        write(root, {"sensors/" + name: b"cable" for name in on_the_cable})
        files = dict(NEW)
        files.update(in_release or {})
        board = Board(root, boot(root), files, "2")
        board.settings = {"sensors": [{"module": name} for name in needed]}
        board.update()
        told = [text for _, text in board.commands.replies]
        if missing:
            equal((len(told), board.restarts), (1, 0))
            assert "no module %s is in" % missing in told[0], told
            assert "app" not in os.listdir(root + "/ota/a"), "nothing but the manifest is written"
        else:
            equal((told, board.restarts), ([], 1))


def test_a_broken_link_goes_on_where_it_broke():
    root = fresh()
    board = Board(root, boot(root), NEW, "2", breaks=3).update()
    equal(board.restarts, 1)
    assert [offset for _, offset in board.source.asked if offset], board.source.asked
    equal(files_in(root + "/ota/a"), NEW)


def test_what_does_not_have_its_hash_is_not_run():
    root = fresh()
    board = Board(root, boot(root), NEW, "2")
    board.source.objects[sha256(NEW["app/main.mpy"])] = b"x" * 5000
    board.update()
    equal((board.restarts, board.commands.replies[0][0]), (0, False))
    assert "another hash" in board.commands.replies[0][1]
    equal((boot(root).slot, boot(root).trial), (BASE, NONE))
    assert board.source.ended


def test_a_manifest_that_asks_for_what_is_not_allowed_changes_nothing():
    for path in (
        "boot.py",
        "main.py",
        "settings.json",
        "app/../boot.py",
        "/app/x",
        "lib//x",
        "app/.",
        "state/boot-a",
        "app/" + "x" * 120,
        "app\\x/y",
        "secrets.json",
        "ota/current",
        "app",
    ):
        root = fresh()
        files = dict(NEW)
        files[path] = b"evil"
        board = Board(root, boot(root), files, "2").update()
        equal((board.restarts, [ok for ok, _ in board.commands.replies]), (0, [False]), path)
        equal(files_in(root), OLD)
        equal(files_in(root + "/ota/a"), {})


def test_what_is_no_manifest_is_refused():
    for text in (
        b"",
        b"umqtt-manifest 2 2\n",
        b"umqtt-manifest 1 3\n",
        b"umqtt-manifest 1 2\nabc 1 app/x\n",
        b"umqtt-manifest 1 2\n" + b"0" * 64 + b" -1 app/x\n",
        b"umqtt-manifest 1 2\n" + b"0" * 64 + b" 1 app/x",
        b"umqtt-manifest 1 2\n" + b"x" * 40000,
        b"\xff\xfe",
        b"umqtt-manifest 1 2\n\xff\xfe\n",
        b"umqtt-manifest 1 2\n" + b"0" * 64 + b" 1 app/\xff\n",
    ):
        root = fresh()
        board = Board(root, boot(root), NEW, "2")
        board.source.objects[sha256(text)] = text
        board.update(sha256=sha256(text))
        equal((board.restarts, [ok for ok, _ in board.commands.replies]), (0, [False]), repr(text[:40]))
        assert "manifest" in board.commands.replies[0][1] or len(text) > 32768, board.commands.replies


def test_an_update_that_does_not_fit_is_refused_before_a_file_is_touched():
    root = fresh()
    board = Board(root, boot(root), NEW, "2")
    free = versions.free_bytes
    versions.free_bytes = lambda root: 70000
    try:
        board.update()
    finally:
        versions.free_bytes = free
    assert "are free" in board.commands.replies[0][1], board.commands.replies
    equal(files_in(root + "/ota/a"), {})


def test_a_server_that_is_gone_ends_the_update_with_an_answer():
    root = fresh()
    board = Board(root, boot(root), NEW, "2", breaks=1000)
    board.update()
    equal([ok for ok, _ in board.commands.replies], [False])


def test_commands_that_are_wrong_are_refused():
    root = fresh()
    board = Board(root, boot(root), NEW, "2")
    good = board.args
    for change in (
        {"sha256": "abc"},
        {"sha256": None},
        {"sha256": int("1" * 64)},
        {"sha256": ["0"] * 64},
        {"version": 2},
        {"mqtt": None},
        {"url": 7},
        {"url": ["http://host/"]},
        {"url": "ftp://x/"},
        {"url": "http://user@host/"},
        {"url": "https://192.0.2.1/"},
        {"url": "http://host:x/"},
        {"url": "http://host:²/"},
        {"url": "http://host:65536/"},
    ):
        args = dict(good)
        args.update(change)
        raises(CommandError, board.updater.begin, args, 1)
    board.settings["update_url"] = "http://10.0.0.1/"
    raises(CommandError, board.updater.begin, dict(good, url="http://10.0.0.2/"), 1)
    board.updater.begin(good, 1)
    raises(CommandError, board.updater.begin, good, 2)


def test_a_mistake_in_the_update_itself_is_answered_and_does_not_end_the_application():
    root = fresh()
    board = Board(root, boot(root), NEW, "2")

    def mistaken(name, offset):
        raise AttributeError("mistaken")

    board.source.open = mistaken
    board.update()
    equal((board.restarts, board.source.ended), (0, True))
    equal(board.commands.replies, [(False, "failed: %r" % AttributeError("mistaken"))])


def test_an_update_without_a_hash_that_the_power_cut_short_was_not_done():
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    boots = boot(root, True)
    os.remove(root + "/ota/a/" + versions.MANIFEST)
    board = Board(root, boots, NEW, "2")
    raises(CommandError, board.updater.recover, {"mqtt": True, "version": "2"}, 1)


class Transport:
    """A transport that answers a request with `answer`, a few bytes at a time."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = b""

    def ready(self):
        return True

    def write(self, buf, offset, size):
        self.asked += bytes(buf[offset : offset + size])
        return size

    def read(self, buf, offset):
        n = min(len(buf), len(self.answer), 7)
        buf[:n] = self.answer[:n]
        self.answer = self.answer[n:]
        return n

    def close(self):
        pass


def fetched(answer, offset=0):
    """Return the object that a web server with this answer delivers."""
    http = Http("https://192.0.2.1/folder", {"mqtts": lambda host, port, path: Transport(answer)}, None)
    http.open("0" * 64, offset)
    buf = bytearray(100)
    data = b""
    n = None
    while n != 0:
        n = http.read(buf)
        data += bytes(buf[: n or 0])
    return data


def test_a_web_server_may_write_the_names_of_its_header_fields_as_it_likes():
    for name in (b"Content-Length", b"content-length", b"CONTENT-LENGTH"):
        equal(fetched(b"HTTP/1.1 200 OK\r\n" + name + b": 5\r\n\r\nhello"), b"hello")
        equal(fetched(b"HTTP/1.1 200 OK\r\n" + name + b": 5\r\n\r\nhello", 2), b"llo")
        raises(OSError, fetched, b"HTTP/1.1 200 OK\r\n" + name + b": 6\r\n\r\nhello")


def test_what_a_web_server_does_wrong_is_an_error_of_the_network():
    for answer in (b"", b"\r\n\r\n", b"HTTP/1.0 404 Nothing\r\n\r\n", b"HTTP/1.0 \xff\xfe\r\n\r\n", b"x" * 3000):
        raises(OSError, fetched, answer)


def test_a_transport_that_cannot_be_made_yet_is_an_error_of_the_network():
    def too_early(host, port, path):
        raise LinkLost("set the clock before TLS")

    http = Http("https://192.0.2.1/", {"mqtts": too_early}, None)
    http.open("0" * 64, 0)
    assert "clock" in str(raises(OSError, http.read, bytearray(9)))


# The power cut at every flash operation


def _life(root, updater_class=Updater):
    """Boot and update the board until it is at rest; return the last Startup."""
    for _ in range(6):
        boots = boot(root)
        # The version that boots is complete, whatever happened before.
        expected = {"": OLD, "/ota/a": NEW}[boots.folder]
        equal(files_in(root + boots.folder), expected, "of the version that boots, " + boots.slot)
        board = Board(root, boots, NEW, "2")
        if updater_class is not Updater:
            board.updater = updater_class(board)
            board.updater._open_source = board._open_source
        try:
            board.updater.recover(board.args, 1)
        except CommandError:
            return boots  # it was given up
        _confirm(boots)
        board.drive()
        if not board.restarts:
            assert board.commands.replies == [(True, {"slot": boots.slot, "version": "?"})], board.commands.replies
            return boots
    raise AssertionError("the board is not at rest after 6 boots")


def _small_life(root, ledger):
    """Version a runs, and there is no room for a third version while it does. Returns the last Startup."""
    for _ in range(6):
        boots = boot(root)
        found = files_in(root + boots.folder)
        assert found == OLD if boots.slot == "base" else found in (NEW, NEWER), (boots.slot, found)
        board = Board(root, boots, NEWER, "3")
        versions.free_bytes = lambda root: 1 << 30 if boots.run == BASE else 8192  # three files need 12288
        try:
            board.updater.recover(board.args, 1)
        except CommandError:
            return boots  # it was given up
        _confirm(boots)
        board.drive()
        if not board.restarts:
            equal(board.commands.replies, [(True, {"slot": boots.slot, "version": "?"})])
            return boots
    raise AssertionError("the board is not at rest after 6 boots")


def _small_check(root, ledger):
    boots = _small_life(root, ledger)
    assert boots.slot == "a" or boots.failed == "a", "neither updated nor given up: " + boots.slot
    equal(files_in(root + boots.folder), NEWER if boots.slot == "a" else OLD)


def test_a_power_cut_at_any_flash_operation_of_an_update_without_room_for_three_versions():
    """Planted: the base version is not run before the slot that runs is overwritten."""
    spare = versions_spare(None)
    free_bytes = versions.free_bytes
    try:
        with PowerCutFlash("esp32", 80) as flash:
            write(ROOT, OLD)
            boot(ROOT, True)
            versions.free_bytes = lambda root: 1 << 30
            equal(_life(ROOT).slot, "a")
            print("small", flash.sweep(_small_life, _small_check, most=CUTS, seed=3))
    finally:
        versions.free_bytes = free_bytes
        versions_spare(spare)


def test_a_release_that_fits_nowhere_leaves_the_version_that_runs():
    """Planted: the base version runs first, whatever the size of the release."""
    root = fresh()
    Board(root, boot(root), NEW, "2").update()
    _confirm(boot(root))
    free_bytes = versions.free_bytes
    try:
        versions.free_bytes = lambda root: _SPARE + 8192
        board = Board(root, boot(root), {"app/main.mpy": b"n" * 30000}, "3").update()
    finally:
        versions.free_bytes = free_bytes
    equal((board.restarts, board.boots.run), (0, "a"))
    assert "are free" in board.commands.replies[0][1], board.commands.replies


def test_an_update_counts_the_flash_of_the_files_that_it_overwrites():
    root = fresh()
    board = Board(root, boot(root), NEW, "2").update()
    write(root + "/ota/a", {"app/main.mpy": b"x" * 5000})
    free_bytes = versions.free_bytes
    try:
        for free, restarts in ((_SPARE - 1, 0), (_SPARE, 1)):
            versions.free_bytes = lambda root: free  # noqa: B023 - called within this pass
            board = Board(root, boot(root), NEW, "2")
            equal(board.update().restarts, restarts)
    finally:
        versions.free_bytes = free_bytes


def test_a_small_file_that_replaces_one_as_large_takes_no_more_flash():
    """Planted: it counts as a block, and the old one as nothing: 25 of them were more than a Pico W has free."""
    path = fresh() + "/file"
    for old, new, added in (
        (None, 0, 0), (None, 1, 4096), (500, 500, 0), (500, 20, 0), (1022, 1022, 0), (500, 501, 4096),
        (1023, 1023, 0), (1023, 10, 0), (5000, 10, -4096), (5000, 5000, 0), (500, 5000, 8192),
    ):  # fmt: skip
        if old is not None:
            with open(path, "wb") as file:
                file.write(bytes(old))
        equal(versions.space_added(new, path), added, (old, new))


def _scenario(updater_class=Updater):
    def scenario(root, ledger):
        _life(root, updater_class)

    return scenario


def _check(root, ledger):
    boots = _life(root)
    assert boots.slot == "a" or boots.failed == "a", "neither updated nor given up: %s %s" % (
        boots.slot,
        (boots.run, boots.trial, boots.tries, boots.previous, boots.failed, boots.failures),
    )
    equal(files_in(root + boots.folder), NEW if boots.slot == "a" else OLD)


def _sweep(scenario, geometry, **options):
    with PowerCutFlash(geometry, 80) as flash:
        write(ROOT, OLD)
        boot(ROOT, True)
        return flash.sweep(scenario, _check, **options)


def test_a_power_cut_at_any_flash_operation_of_an_update_leaves_a_version_that_boots():
    spare = versions_spare(None)
    try:
        for geometry in ("esp32", "rp2"):
            print(geometry, _sweep(_scenario(), geometry, most=CUTS, second_cuts=0 if CUTS else 1, seed=3))
    finally:
        versions_spare(spare)


def _signed_life(root, ledger):
    """Boot until the board is at rest, with a broker that sends the signed command again after every boot.

    Returns the last Startup and the `ok` of the replies.
    """
    for _ in range(6):
        boots = boot(root)
        equal(files_in(root + boots.folder), {"": OLD, "/ota/a": NEW}[boots.folder], "of " + boots.slot)
        board = Board(root, boots, NEW, "2")
        # The method update() of this Board is hidden: actions.py looks for the part there.
        part = board.update = board.updater
        part._open_source = lambda args: setattr(part, "_source", board.source)
        board.settings = {"unsigned_commands": False}
        board.identity, board.log = fakes.identity(), fakes.Log()
        commands = Ledger(root + "/state/commands", _SIGNED_SIZE)
        board.commands = Commands_(board.client, b"reply", commands, Actions(board))
        board.commands.step()
        _confirm(boots)
        board.commands.handle(b"c", _signed_update(board.args))
        while part.busy and not board.restarts:
            board.ticks.advance(part.step() or 0)
        board.commands.step()
        if not board.restarts:
            # Long afterwards, when its id is forgotten, it counts as an old command.
            replies = [json.loads(payload) for payload in board.client.payloads(b"reply")]
            ledger["answered"] = True
            for n in range(_SIGNED_SIZE):
                board.client.acknowledge()
                board.commands.step()
                board.commands.handle(b"c", b'{"id": "flood %d", "cmd": "ping"}' % n)
                board.commands.step()
            board.commands.handle(b"c", _signed_update(board.args))
            assert not part.busy, "an old command was carried out again"
            return boots, [reply["ok"] for reply in replies if reply["id"] == "1"]
    raise AssertionError("the board is not at rest after 6 boots")


def _signed_update(args):
    command = {"id": "1", "cmd": "update", "args": args, "counter": 1}
    return signed.sign(b"k" * 32, "pump-7", json.dumps(command).encode())


def _signed_check(root, ledger):
    answered = ledger.get("answered")
    boots, replies = _signed_life(root, ledger)
    assert boots.slot == "a" or boots.failed == "a", "neither updated nor given up: " + boots.slot + repr(replies)
    # If the board answered long ago, it may have forgotten the id. The broker sends the command after every boot: the
    # same reply may then come twice.
    if not answered:
        equal(sorted(set(replies)), [boots.slot == "a"], "the replies")


def test_a_power_cut_at_any_flash_operation_of_a_signed_update_leaves_it_done_once():
    """Planted: the counter of a command is kept only when the command is done; the next boot does not keep it."""
    spare = versions_spare(None)
    try:
        with PowerCutFlash("esp32", 80) as flash:
            write(ROOT, OLD)
            save(ROOT, "secrets.json", {"commands": {"key": "6b" * 32}})
            boot(ROOT, True)
            print("signed", flash.sweep(_signed_life, _signed_check, most=CUTS, seed=3))
    finally:
        versions_spare(spare)


class PointerFirst(Updater):
    """Planted mistake: the pointer names the slot before the slot's files are written."""

    def _verify(self, folder):
        yield 0

    def _make_room(self, folder, manifest):
        boot_choice.try_version(self._board.boots, "a")
        yield 0


class InPlace(Updater):
    """Planted mistake: the update overwrites the running version."""

    def _fetch(self, args):
        for path in NEW:
            write(self._board.folder, {path: NEW[path]})
            yield 0
        self._board.restart()


def test_the_sweep_finds_planted_mistakes():
    spare = versions_spare(None)
    try:
        for mistake in (PointerFirst, InPlace):
            raises(AssertionError, _sweep, _scenario(mistake), "esp32", most=CUTS, seed=3)
    finally:
        versions_spare(spare)


def versions_spare(size):
    """Set the bytes that an update needs besides its files, (0, 0) for None; return those before.

    A sweep needs a small flash, to copy it fast.
    """
    from app import update

    before = update._SPARE_BYTES, update._FOLDERS_BYTES
    update._SPARE_BYTES, update._FOLDERS_BYTES = size or (0, 0)
    return before

"""A power-cut flash: NOR memory under a real littlefs, with the power cut at any operation. For portable tests.

    from umqtt_testkit.flash import PowerCutFlash

    def test_a_saved_value_survives_every_cut():
        def scenario(root, ledger):                     # what the device does; it may die at any flash operation
            for value in range(5):
                ledger["tried"] = value
                save(root + "/value", value)
                ledger["saved"] = value                 # reached only when save() has returned

        def check(root, ledger):                        # after the reboot, on the remounted flash
            assert load(root + "/value") in (ledger.get("saved"), ledger.get("tried"))

        with PowerCutFlash(geometry="esp32") as flash:
            flash.sweep(scenario, check)

Runs where VfsLfs2 exists: inside MicroPython. On CPython the test is skipped with that reason. The file of the tests
needs `HEAP = "4M"`. The ledger is the test's knowledge outside the board, a new dict for every run.

`flash.sweep(scenario, check, copy=function)` sweeps a long scenario many times faster: see there.
"""

import gc
import os

from umqtt_testkit.flash_device import BLOCK_SIZE, NorFlash, PowerCut, SectorDisk
from umqtt_testkit.portable import Rng, skip

__all__ = ("BLOCK_SIZE", "PROGRAM_SIZES", "ROOT", "NorFlash", "PowerCut", "PowerCutFlash", "SectorDisk")

# Bytes of one program operation of the ports' littlefs.
PROGRAM_SIZES = {"esp32": 32, "rp2": 256}
ROOT = "/flash"

_QUARTERS = (0, 1, 2, 3, 4)
_NEVER = -1


class PowerCutFlash:
    """A formatted flash for sweeps and for measuring wear.

    geometry: "esp32" or "rp2": littlefs with program size 32 or 256; "fat": FAT on a SectorDisk, which has no erases.
    blocks: number of blocks of 4096 bytes; fewer blocks are copied faster.
    """

    def __init__(self, geometry="esp32", blocks=24):
        self._geometry = geometry
        # Filled in place: a stale word on MicroPython's stack could keep a temporary copy of half the heap alive for
        # good.
        self._memory = memory = bytearray(BLOCK_SIZE * blocks)
        erased = b"\xff" * BLOCK_SIZE
        for start in range(0, len(memory), BLOCK_SIZE):
            memory[start : start + BLOCK_SIZE] = erased
        self.flash = self._device(self._memory)
        self._mounted = False

    def __enter__(self):
        vfs = _vfs()
        if self._geometry == "fat":
            vfs.VfsFat.mkfs(self.flash)
        else:
            vfs.VfsLfs2.mkfs(self.flash, progsize=PROGRAM_SIZES[self._geometry])
        self.mount()
        return self

    def _device(self, memory):
        return (SectorDisk if self._geometry == "fat" else NorFlash)(memory)

    def __exit__(self, kind, error, trace):
        self.unmount()

    # Mounting by hand: to prepare a sweep, or to count what an operation costs

    def mount(self, readonly=False):
        """Power on: mount the flash as it is, at ROOT. `flash` is its device, with counters at zero."""
        vfs = _vfs()
        self.flash = self._device(self._memory)
        if self._geometry == "fat":
            vfs.mount(vfs.VfsFat(self.flash), ROOT, readonly=readonly)
        else:
            littlefs = vfs.VfsLfs2(self.flash, progsize=PROGRAM_SIZES[self._geometry])
            vfs.mount(littlefs, ROOT, readonly=readonly)
        self._mounted = True

    def unmount(self):
        """Power off cleanly."""
        if self._mounted:
            self._mounted = False
            _vfs().umount(ROOT)
            # Files left open belong to the previous life: their finalisers must not write into the next one.
            self.flash.off = True

    # Sweeps

    def sweep(self, scenario, check, most=None, second_cuts=0, seed=1, copy=None):
        """Cut the power at every program and erase of `scenario`, each with 0..4 quarters of it applied.

        scenario(root, ledger): starts on the flash as it is now. check(root, ledger): runs after the reboot and
        raises AssertionError if something is lost; it may write, as a device that restores does. After it the file
        system must still take a file.
        most: size of a random sample of the cuts (see seed); None: all cuts.
        second_cuts: number of times after each cut that the check itself is cut at a random operation and run again.
        copy: copy(ledger) returns a ledger that shares nothing changeable with it. With it the scenario runs only
        once, and each check starts from flash and ledger as they were at its cut. Everything the scenario knows must
        then be in the ledger. A second cut is left out if its random number is beyond the check's last operation.
        Returns the number of cuts made. Raises AssertionError that names the cut of the first failure.
        """
        if self._mounted:
            self.unmount()
        start = bytes(self._memory)
        rng = Rng(seed, quiet=True)
        if copy:
            cuts, operations = self._sweep_copies(scenario, check, most, second_cuts, rng, copy)
        else:
            cuts, operations = self._sweep_replays(scenario, check, most, second_cuts, rng)
        self._memory[:] = start
        self.mount()
        print(f"{cuts} cuts, {operations} operations, seed {seed}")
        return cuts

    def _sweep_copies(self, scenario, check, most, second_cuts, rng, copy):
        start = bytes(self._memory)
        ledger = {}
        recorded = self._record(scenario, ledger, lambda number: copy(ledger))
        assert recorded, f"the scenario writes nothing to {ROOT}"
        self._checked(check, copy(ledger), "no cut at all", _NEVER, 0)
        points = _sample(len(recorded), most, rng)
        now = bytearray(start)
        forward = self._device(now)
        torn = self._device(self._memory)
        cuts = 0
        second_operations = 10
        for at in range(len(recorded)):
            address, data, then = recorded[at]
            for quarters in _QUARTERS:
                if points is not None and (at, quarters) not in points:
                    continue
                where = f"cut at operation {at} of {len(recorded)}, {quarters} quarters applied"
                self._memory[:] = now
                torn.apply(address, data, quarters)
                wanted = [rng.below(second_operations) for _ in range(second_cuts)]
                again = self._checked_and_recorded(check, copy(then), where, wanted, copy)
                second_operations = max(1, again[0])
                for image, later, where in again[1]:
                    self._memory[:] = image
                    self._checked(check, later, where, _NEVER, 0)
                cuts += 1 + len(again[1])
            forward.apply(address, data, 4)
        return cuts, len(recorded)

    def _record(self, function, ledger, remember):
        # Run without a cut; return [(address, data or None, remember(number of the operation))].
        recorded = []

        def watch(address, data):
            recorded.append((address, data and bytes(data), remember(len(recorded))))

        self.mount()
        self.flash.watch = watch
        try:
            function(ROOT, ledger)
        finally:
            self.unmount()
        return recorded

    def _checked_and_recorded(self, check, ledger, where, wanted, copy):
        # Run the check; return (its operations, [(memory, ledger, where)] as cut again at the operations of
        # `wanted`).
        found = []
        before = bytes(self._memory) if wanted else b""
        try:
            recorded = self._record(check, ledger, lambda number: copy(ledger) if number in wanted else None)
        except (AssertionError, OSError) as error:
            raise AssertionError(f"{where}: {_text(error)}; ledger {ledger!r}")  # noqa: B904 - as below
        for number in wanted:
            if number < len(recorded):
                image = bytearray(before)
                device = self._device(image)
                for address, data, _ in recorded[:number]:
                    device.apply(address, data, 4)
                quarters = (number + len(found)) % 5
                device.apply(recorded[number][0], recorded[number][1], quarters)
                text = f"{where}; then the check cut at operation {number}, {quarters} quarters"
                found.append((image, copy(recorded[number][2]), text))
        return len(recorded), found

    def _sweep_replays(self, scenario, check, most, second_cuts, rng):
        start = bytes(self._memory)
        operations = self._count_operations(scenario, check)
        points = [(at, quarters) for at in range(operations) for quarters in _QUARTERS]
        if most is not None and most < len(points):
            rng.shuffle(points)
            points = points[:most]
        cuts = 0
        for at, quarters in points:
            self._memory[:] = start
            where = f"cut at operation {at} of {operations}, {quarters} quarters applied"
            ledger = {}
            self._run(scenario, ledger, at, quarters)
            cuts += 1 + self._check_with_cuts(check, ledger, second_cuts, rng, where)
            gc.collect()
        return cuts, operations

    def _count_operations(self, scenario, check):
        start = bytes(self._memory)
        ledger = {}
        operations, died = self._run(scenario, ledger, _NEVER, 0)
        assert not died and operations, f"the scenario writes nothing to {ROOT}"
        # A check that fails without any cut is an error of the test.
        self._checked(check, ledger, "no cut at all", _NEVER, 0)
        self._memory[:] = start
        return operations

    def _check_with_cuts(self, check, ledger, second_cuts, rng, where):
        after_first = bytes(self._memory if second_cuts else b"")
        operations, _ = self._checked(check, ledger, where, _NEVER, 0)
        made = 0
        for _ in range(second_cuts if operations else 0):
            self._memory[:] = after_first
            at, quarters = rng.below(operations), rng.choice(_QUARTERS)
            again = f"{where}; then the check cut at operation {at}, {quarters} quarters"
            self._checked(check, ledger, again, at, quarters)
            self._checked(check, ledger, again, _NEVER, 0)
            made += 1
        return made

    def _checked(self, check, ledger, where, at, quarters):
        try:
            operations, died = self._run(check, ledger, at, quarters)
            if not died:
                self._run(_still_takes_a_file, ledger, _NEVER, 0)
        except (AssertionError, OSError) as error:
            message = f"{where}: {_text(error)}; ledger {ledger!r}"
            raise AssertionError(message)  # noqa: B904 - MicroPython has no `raise from`
        return operations, died

    def _run(self, function, ledger, at, quarters):
        """Run one life; return the number of flash operations it made and whether the cut ended it."""
        self.mount()
        self.flash.cut_at, self.flash.quarters = at, quarters
        try:
            function(ROOT, ledger)
        except BaseException:
            # A finally or a close on the way out meets the dead device and turns the cut into an OSError.
            if not self.flash.dead:
                raise
        finally:
            self.unmount()
        return self.flash.operations, self.flash.dead


def _sample(operations, most, rng):
    # Return a set of (operation, quarters), or None for all of them.
    points = [(at, quarters) for at in range(operations) for quarters in _QUARTERS]
    if most is None or most >= len(points):
        return None
    rng.shuffle(points)
    return set(points[:most])


def _still_takes_a_file(root, ledger):
    name = root + "/.power-cut-flash"
    data = b"p" * 700  # too large to be inlined: needs a block
    with open(name, "wb") as file:
        file.write(data)
    with open(name, "rb") as file:
        assert file.read() == data, "the file system does not keep a file any more"
    os.remove(name)


def _text(error):
    return f"{type(error).__name__}: {error}"


def _vfs():
    try:
        import vfs  # pyrefly: ignore[missing-import]
    except ImportError:
        vfs = skip("VfsLfs2 is in MicroPython only")
    return vfs

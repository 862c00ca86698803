"""A power-cut flash: NOR memory under a real littlefs, with the power cut at any operation. For portable tests.

    from umqtt_testkit.flash import PowerCutFlash

    def test_a_saved_value_survives_every_cut():
        def scenario(root, ledger):                     # what the device does; swept at every flash operation
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
"""

import os

from umqtt_testkit.flash_device import BLOCK_SIZE, NorFlash, SectorDisk
from umqtt_testkit.portable import Rng, skip

__all__ = ("BLOCK_SIZE", "PROGRAM_SIZES", "ROOT", "NorFlash", "PowerCutFlash", "SectorDisk")

# Bytes of one program operation of the ports' littlefs.
PROGRAM_SIZES = {"esp32": 32, "rp2": 256}
ROOT = "/flash"

_QUARTERS = (0, 1, 2, 3, 4)


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

        scenario(root, ledger): runs once, without a cut, on the flash as it is now, with a new dict as its ledger.
        check(root, ledger): runs for each cut, on the flash and with a copy of the ledger as they were at the cut, and
        raises AssertionError if something is lost; it may write, as a device that restores does. After it the file
        system must still take a file. Whatever the check knows of the scenario must be in the ledger.
        most: size of a random sample of the cuts (see seed); None: all cuts.
        second_cuts: number of times after each cut that the check itself, if it writes, is cut at a random operation
        and run again.
        copy: copy(ledger) returns a ledger that shares nothing changeable with it. None: dicts, lists, sets and
        bytearrays within the ledger are copied, all other objects are shared.
        Returns the number of cuts made. Raises AssertionError that names the cut of the first failure.
        """
        if self._mounted:
            self.unmount()
        start = bytes(self._memory)
        cuts, operations = self._sweep(scenario, check, most, second_cuts, Rng(seed, quiet=True), copy or _copied)
        self._memory[:] = start
        self.mount()
        print(f"{cuts} cuts, {operations} operations, seed {seed}")
        return cuts

    def _sweep(self, scenario, check, most, second_cuts, rng, copy):
        # Nothing ends inside a running program: a file that it left open would be closed by the garbage collector,
        # with buffers that littlefs gave back when it was unmounted (seen: a crash of MicroPython itself).
        now = bytearray(self._memory)
        ledger = {}
        recorded = self._record(scenario, ledger, lambda number: copy(ledger))
        assert recorded, f"the scenario writes nothing to {ROOT}"
        self._checked(check, copy(ledger), "no cut at all", (), copy)
        points = _sample(len(recorded), most, rng)
        forward = self._device(now)
        torn = self._device(self._memory)
        cuts = 0
        second_operations = 10
        for at, (address, data, then) in enumerate(recorded):
            for quarters in _QUARTERS:
                if points is not None and (at, quarters) not in points:
                    continue
                where = f"cut at operation {at} of {len(recorded)}, {quarters} quarters applied"
                self._memory[:] = now
                torn.apply(address, data, quarters)
                # A guess: the check has about as many operations as the last time.
                wanted = [rng.below(second_operations) for _ in range(second_cuts)]
                second_operations, again = self._checked(check, copy(then), where, wanted, copy)
                for image, later, where in again:
                    self._memory[:] = image
                    self._checked(check, later, where, (), copy)
                cuts += 1 + len(again)
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

    def _checked(self, check, ledger, where, wanted, copy):
        # Run the check; return (its operations, [(memory, ledger, where)] as cut again at the operations `wanted`).
        before = bytes(self._memory) if wanted else b""
        unused = copy(ledger) if wanted else {}
        try:
            recorded = self._record(check, ledger, lambda number: copy(ledger) if number in wanted else None)
            if recorded and wanted and max(wanted) >= len(recorded):  # it has fewer: once more
                wanted = [number % len(recorded) for number in wanted]
                self._memory[:] = before
                ledger = unused
                recorded = self._record(check, ledger, lambda number: copy(ledger) if number in wanted else None)
            self._record(_takes_a_file, ledger, lambda number: None)
        except (AssertionError, OSError) as error:
            message = f"{where}: {_text(error)}; ledger {ledger!r}"
            raise AssertionError(message)  # noqa: B904 - MicroPython has no `raise from`
        found = []
        for number in wanted if recorded else ():
            image = bytearray(before)
            device = self._device(image)
            for address, data, _ in recorded[:number]:
                device.apply(address, data, 4)
            quarters = (number + len(found)) % 5
            device.apply(recorded[number][0], recorded[number][1], quarters)
            text = f"{where}; then the check cut at operation {number}, {quarters} quarters"
            found.append((image, copy(recorded[number][2]), text))
        return max(1, len(recorded)), found


def _copied(value):
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_copied(item) for item in value])
    if isinstance(value, (set, bytearray)):
        return type(value)(value)
    return value


def _sample(operations, most, rng):
    # Return a set of (operation, quarters), or None for all of them.
    points = [(at, quarters) for at in range(operations) for quarters in _QUARTERS]
    if most is None or most >= len(points):
        return None
    rng.shuffle(points)
    return set(points[:most])


def _takes_a_file(root, ledger):
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

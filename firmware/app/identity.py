"""Who a reading comes from: the device id, and the boot id COUNT-RANDOM.

COUNT is kept in flash and raised once a boot, durable before the first reading. RANDOM is 64 fresh random
bits every boot, so that a flash that was erased, cloned or restored from a backup never repeats an identity
already used.
"""

import binascii
import os

# Two files written in turn: whatever moment the power fails, the other one is whole. On littlefs a rewrite in
# place is atomic anyway; on FAT it truncates first.
_COUNTER_FILES = ("boot-a", "boot-b")
_CHECKSUM_DIGITS = 8
_COUNT_LIMIT = 1 << 30
_RANDOM_BYTES = 8


class Identity:
    """device_id: str; boot: str, COUNT-RANDOM; boot_count: int; counter_error: None if durable."""

    def __init__(self, device_id, boot_count, random_bits, counter_error=None):
        self.device_id = device_id
        self.boot_count = boot_count
        self.boot = "%d-%s" % (boot_count, binascii.hexlify(random_bits).decode())
        self.counter_error = counter_error

    def topic(self, leaf):
        """The topic name fleet/{device_id}/{leaf} as bytes."""
        return ("fleet/%s/%s" % (self.device_id, leaf)).encode()


def open_identity(device_id, folder, urandom=os.urandom):
    """Raise the boot counter in folder, durably, and return this boot's Identity.

    A counter that cannot be written does not stop the board: the random half keeps the identity unique. The
    reason is in counter_error, to be reported.
    """
    count, next_file = _read_counter(folder)
    count += 1
    error = None
    try:
        _write_counter(folder + "/" + next_file, count)
    except OSError as caught:
        error = "boot counter not written in %s: %r" % (folder, caught)
    return Identity(device_id, count, urandom(_RANDOM_BYTES), error)


def hardware_id(unique_id):
    """A device id from the bytes of machine.unique_id(): lower-case hex."""
    return binascii.hexlify(unique_id).decode()


def _read_counter(folder):
    """(last count or 0, name of the file to write next). A missing or torn file counts as absent."""
    best = 0
    next_file = _COUNTER_FILES[0]
    for position in (0, 1):
        try:
            with open(folder + "/" + _COUNTER_FILES[position], "rb") as file:
                count = _decode(file.read())
        except OSError:
            continue
        if count is not None and count > best:
            best = count
            next_file = _COUNTER_FILES[1 - position]
    return best, next_file


def _write_counter(path, count):
    with open(path, "wb") as file:
        file.write(_encode(count))
        file.flush()
        # littlefs is durable at close; an operating system needs to be told.
        if hasattr(os, "fsync"):
            os.fsync(file.fileno())


def _encode(count):
    text = b"%d" % count
    return text + b" " + _checksum(text)


def _decode(data):
    """The count, or None for anything but what _encode wrote."""
    text, _, checksum = data.partition(b" ")
    if not text.isdigit() or len(checksum) != _CHECKSUM_DIGITS or checksum != _checksum(text):
        return None
    count = int(text)
    return count if 0 < count < _COUNT_LIMIT else None


def _checksum(text):
    return b"%08x" % (binascii.crc32(text) & 0xFFFFFFFF)

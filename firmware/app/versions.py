"""Reads the manifest of a version, and checks the files in its slot against it.

A manifest is text. Its first line is `umqtt-manifest 1 VERSION`; each other line is `SHA256 SIZE PATH`, where PATH
lies in app/, lib/ or sensors/. It is read line by line, never as a whole. No path may leave the slot; boot.py,
main.py and everything else outside these folders are installed over the cable only.
"""

import hashlib
import os
from binascii import hexlify

MANIFEST = "manifest"
FOLDERS = ("app", "lib", "sensors")
_HEAD = "umqtt-manifest 1 "
_LONGEST_LINE = 200
_LONGEST_PATH = 100
_PIECE = 512
_FOLDER = 0x4000
_LARGEST_FILE = 1 << 20
# littlefs gives every file that is not tiny blocks of its own.
_BLOCK = 4096
# A smaller one may lie in its folder: littlefs allows at most 1022 bytes.
_INLINE = 1022


class ManifestError(ValueError):
    """The manifest is malformed, or names a file that is not allowed; the text says which."""


def sha256_of(path):
    """Return the SHA-256 of a file in hex, or None if it cannot be read."""
    digest = hashlib.sha256()
    piece = bytearray(_PIECE)
    view = memoryview(piece)
    try:
        with open(path, "rb") as file:
            while True:
                n = file.readinto(piece)
                if not n:
                    return hexlify(digest.digest()).decode()
                digest.update(view[:n])
    except OSError:
        return None


def version_of(path):
    """Return the version that the manifest at `path` names. Raises ManifestError and OSError."""
    with open(path) as file:
        head = _line(file).strip()
    if not head.startswith(_HEAD) or len(head) > 60:
        raise ManifestError("the manifest does not begin with 'umqtt-manifest 1 VERSION'")
    return head[len(_HEAD) :]


def is_older(version, other):
    """Return True if a version's numbers are lower: 0.9.1 is older than 0.10, text without numbers is the oldest.

    Only the numbers at the beginning count, separated by dots.
    """
    return _numbers(version) < _numbers(other)


def _numbers(version):
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    while numbers and not numbers[-1]:
        numbers.pop()  # 1.0 is 1
    return numbers


def entries(path):
    """Yield (sha256, size, path) for each line of the manifest at `path`. Raises ManifestError and OSError."""
    with open(path) as file:
        _line(file)
        number = 1
        while True:
            line = _line(file)
            if not line:
                return
            number += 1
            parts = line.split()
            if len(parts) != 3 or not line.endswith("\n") or not is_hash(parts[0]) or not parts[1].isdigit():
                raise ManifestError("line %d of the manifest is not 'SHA256 SIZE PATH'" % number)
            size = int(parts[1])
            if size > _LARGEST_FILE or not is_allowed(parts[2]):
                raise ManifestError("line %d: %s may not be written" % (number, parts[2]))
            yield parts[0], size, parts[2]


def _line(file):
    try:
        return file.readline(_LONGEST_LINE)
    except UnicodeError:
        raise ManifestError("the manifest is not UTF-8")


def is_allowed(path):
    """Return True for the path of a file within FOLDERS."""
    parts = path.split("/")
    if len(parts) < 2 or parts[0] not in FOLDERS or len(path) > _LONGEST_PATH:
        return False
    for part in parts:
        if part in ("", ".", "..") or "\\" in part or ord(min(part)) < 33 or ord(max(part)) > 126:
            return False
    return True


def is_hash(text):
    """Return True for a SHA-256 in hex."""
    return isinstance(text, str) and len(text) == 64 and not text.strip("0123456789abcdef")


def space_needed(size):
    """Return the bytes of flash that a file of that size takes at most, without its folder."""
    # In a file of several blocks, littlefs begins each with pointers to earlier ones: 8 bytes on average.
    return (size + size // 256 + _BLOCK - 1) // _BLOCK * _BLOCK


def space_added(size, path):
    """Return how many more bytes of flash a file of that size takes at most than the one at `path` that it replaces.

    Negative if it takes fewer.
    """
    try:
        old = os.stat(path)[6]
    except OSError:
        old = 0
    if size <= old <= _INLINE:
        return 0  # wherever the old one lies, the new one has room there
    return space_needed(size) - (space_needed(old) if old > _INLINE else 0)


def free_bytes(root):
    """Return the bytes of flash that are free. Raises OSError.

    littlefs counts the two blocks of a folder twice (seen in MicroPython 1.29: of 212 blocks it calls 130 free beside
    20 folders, and 170 are). Another folder shows whether it does so here.
    """
    free = _reported(root)
    probe = root + "/probe"
    if not is_folder(probe):  # left by a power cut
        os.mkdir(probe)
        twice = free - _reported(root) - 2 * _BLOCK
    else:
        twice = 0
    os.rmdir(probe)
    return free + max(0, twice) * _folders(root)


def _reported(root):
    found = os.statvfs(root or "/")
    blocks = found[3]
    if blocks > found[2]:
        blocks -= 1 << 32  # fewer than none: see above
    return found[0] * blocks


def _folders(path):
    count = 0
    for name in os.listdir(path or "/"):
        if is_folder(path + "/" + name):
            count += 1 + _folders(path + "/" + name)
    return count


def is_folder(path):
    """Return True if there is a folder at that path."""
    try:
        return os.stat(path)[0] & _FOLDER != 0
    except OSError:
        return False


def remove(folder):
    """Remove a folder with everything in it. Raises OSError."""
    for name in os.listdir(folder):
        path = folder + "/" + name
        if is_folder(path):
            remove(path)
        else:
            os.remove(path)
    os.rmdir(folder)


def make_folders(root, path):
    """Make the folders above root + "/" + path. Raises OSError."""
    parts = path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        folder = root + "/" + "/".join(parts[:depth])
        try:
            os.mkdir(folder)
        except OSError:
            if not is_folder(folder):
                raise


def strays(slot, manifest):
    """Yield the paths of the files in the folder `slot` that its manifest does not name.

    A leftover module could be imported in place of a new one of the same name.
    """
    for top in FOLDERS:
        for path in _walk(slot, top):
            if not _names(manifest, path):
                yield path


def _names(manifest, path):
    for entry in entries(manifest):
        if entry[2] == path:
            return True
    return False


def _walk(root, folder):
    try:
        names = os.listdir(root + "/" + folder)
    except OSError:
        return
    for name in names:
        path = folder + "/" + name
        if is_folder(root + "/" + path):
            for found in _walk(root, path):
                yield found
        else:
            yield path

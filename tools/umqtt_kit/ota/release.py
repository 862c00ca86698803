"""The files of a version that can go over the air, each known by its SHA-256, and the manifest that names them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from umqtt_kit.deploy.build import build
from umqtt_kit.deploy.sensors import with_sensors

# What only the cable may write, such as startup.py and postmortem.py, is outside these folders.
FOLDERS = ("/app/", "/lib/", "/sensors/")


@dataclass(frozen=True)
class Release:
    """The objects of a version. objects: content by SHA-256 in hex, with the manifest; manifest: its SHA-256.

    The command to the device names the manifest by that SHA-256.
    """

    version: str
    manifest: str
    objects: dict[str, bytes]
    files: int

    @property
    def size(self) -> int:
        """Bytes of all objects."""
        return sum(map(len, self.objects.values()))


def make_release(version: str, files: Mapping[str, bytes]) -> Release:
    """Return the release of these files. Raises ValueError if the version is invalid.

    files: content by path on the board; those outside FOLDERS are left out.
    """
    check_version(version)
    lines = [f"umqtt-manifest 1 {version}"]
    objects: dict[str, bytes] = {}
    for path, content in sorted(files.items()):
        if path.startswith(FOLDERS):
            digest = hashlib.sha256(content).hexdigest()
            objects[digest] = content
            lines.append(f"{digest} {len(content)} {path[1:]}")
    manifest = ("\n".join(lines) + "\n").encode()
    name = hashlib.sha256(manifest).hexdigest()
    objects[name] = manifest
    return Release(version, name, objects, len(lines) - 1)


def sealed_release(content: bytes) -> Release:
    """Return a Release that holds only the sealed secrets of a key rotation; its version is empty."""
    name = hashlib.sha256(content).hexdigest()
    return Release("", name, {name: content}, 1)


def build_release(optional: Iterable[str], version: str | None = None, sensors: Path | None = None) -> Release:
    """Return the firmware of this installation as a release, with the user's own sensors; it suits every board.

    optional: modules of filesets.OPTIONAL. version: what the firmware calls itself, on the device too. Raises KitError,
    and ValueError if the version is invalid.
    """
    if version is not None:
        check_version(version)
    built = with_sensors(build(None, optional, version), sensors)
    return make_release(built.version, built.files)


def check_version(version: str) -> None:
    """Raise ValueError unless the version is one word of at most 40 printable ASCII characters."""
    if not re.fullmatch("[!-~]{1,40}", version):
        raise ValueError(f"{version!r} is no version: at most 40 printable ASCII characters without spaces")

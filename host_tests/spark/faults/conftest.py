"""Disks that are full and folders that may not be written, for the tests of this folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Root passes over permissions; without these two rights it does not.
_OBEDIENT = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


class Disk:
    """A file system of its own at `path`, which can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no room at all."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """`disk(name, megabytes)`: a new small file system."""
    mounted: list[Path] = []

    def make(name: str, megabytes: int = 16) -> Disk:
        path = tmp_path / name
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "umqtt-test", str(path)]
        if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small file system can be mounted by root on Linux only")
        mounted.append(path)
        return Disk(path)

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def obedient() -> list[str]:
    """The beginning of a command that has to obey permissions, whoever runs the tests."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root passes over permissions, and there is no setpriv: apt install util-linux")
    if subprocess.run([*_OBEDIENT, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root passes over permissions, and may not give up that right here")
    return _OBEDIENT

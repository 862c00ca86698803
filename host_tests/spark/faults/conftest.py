"""Full disks and read-only folders, for the tests of this folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Root ignores permissions; without these two capabilities it does not.
_OBEDIENT = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


class Disk:
    """A separate file system at `path`, which can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Fill the file system completely."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        """Release the space."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """Provide `disk(name, megabytes)`, which mounts a new small file system."""
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
    """Return the beginning of a command that has to obey permissions, whoever runs the tests."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root passes over permissions, and there is no setpriv: apt install util-linux")
    if subprocess.run([*_OBEDIENT, "true"], capture_output=True, check=False).returncode:
        pytest.skip("root passes over permissions, and may not give up that right here")
    return _OBEDIENT

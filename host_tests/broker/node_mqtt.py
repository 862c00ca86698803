"""node's mqtt, the npm package that web pages and JavaScript servers use as a client."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PACKAGE = "mqtt@5"
_INSTALL_WITHIN_S = 90


def run_node(script: str, *arguments: str, timeout: float) -> str:
    """Run a script that may require mqtt, and return what it printed. Skips if node or npm is missing."""
    ended = subprocess.run(
        ["node", "-", *arguments],
        input=script,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "NODE_PATH": str(_modules())},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _modules() -> Path:
    """Return the folder with the package: NODE_PATH's, or one in the user's cache, filled once."""
    if shutil.which("node") is None:
        pytest.skip("node's mqtt needs node")
    for folder in filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)):
        if (Path(folder) / "mqtt").is_dir():
            return Path(folder)
    if shutil.which("npm") is None:
        pytest.skip("node's mqtt needs npm, or NODE_PATH with the package")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umqtt-tests" / "node"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("wb") as lock:
        # Tests that run at the same time need it too.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "node_modules" / "mqtt" / "package.json").is_file():
            _install(cache)
    return cache / "node_modules"


def _install(folder: Path) -> None:
    command = ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    try:
        ended = subprocess.run(
            [*command, "--prefix", str(folder), _PACKAGE],
            capture_output=True,
            text=True,
            timeout=_INSTALL_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not install {_PACKAGE} within {_INSTALL_WITHIN_S} s")
    if ended.returncode:
        pytest.skip(f"npm cannot install {_PACKAGE}: {(ended.stderr.strip().splitlines() or ['no reason'])[-1]}")

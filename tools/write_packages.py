"""Writes package.json and package-full.json, which `mpremote mip install` reads, from the folder umqtt_robust.

    .venv/bin/python tools/write_packages.py            to be run when a module of umqtt_robust comes, goes or moves

package.json is the core set of boards/filesets.json, package-full.json all that a board can use. mip reads no relative
dependencies, so the full package lists every file itself.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE, FULL = "package.json", "package-full.json"


def library_sets(root: Path = ROOT) -> dict[str, list[str]]:
    """Set name to its modules: those of filesets.json, and `core`, which is the rest of the folder."""
    sets = json.loads((root / "boards" / "filesets.json").read_text())
    del sets["what"]
    modules = {file.stem for file in (root / "umqtt_robust").glob("*.py")}
    named = {module for members in sets.values() for module in members}
    return {**sets, "core": sorted(modules - named)}


def packages(root: Path = ROOT) -> dict[str, dict[str, object]]:
    """File name to content."""
    sets = library_sets(root)
    full = [module for name, members in sets.items() if name != "host" for module in members]
    return {CORE: _package(root, sets["core"]), FULL: _package(root, full)}


def _package(root: Path, modules: list[str]) -> dict[str, object]:
    paths = [f"umqtt_robust/{module}.py" for module in sorted(modules)]
    version = re.search(r'^VERSION = "([^"]+)"', (root / "firmware/app/__init__.py").read_text(), re.MULTILINE)
    return {"urls": [[path, path] for path in paths], "deps": [], "version": version[1] if version else "0"}


def text_of(package: dict[str, object]) -> str:
    """One file a line, so that a change reads well."""
    urls = package["urls"]
    assert isinstance(urls, list)
    lines = ",\n".join(f"    {json.dumps(entry)}" for entry in urls)
    return f'{{\n  "urls": [\n{lines}\n  ],\n  "deps": [],\n  "version": {json.dumps(package["version"])}\n}}\n'


def main() -> int:
    for name, package in packages().items():
        (ROOT / name).write_text(text_of(package))
    return 0


if __name__ == "__main__":
    sys.exit(main())

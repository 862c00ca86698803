"""Write the package files that `mpremote mip install` reads, from the folder umqtt_robust.

    .venv/bin/python tools/write_packages.py             package.json and package-full.json: run it when a module of
                                                         umqtt_robust is added, removed or moved
    .venv/bin/python tools/write_packages.py --index DIR a package index that any web server can serve

package.json is the core set of boards/filesets.json, package-full.json all that a board can use, both as .py. mip
reads no relative dependencies, so the full package lists every file itself.

The index has the same two packages, umqtt-robust and umqtt-robust-full, each as .py and as the bundle of .mpy files
that fits into a small heap. mip asks for the .mpy version that the board loads.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from umqtt_kit.bundle import Bundle

ROOT = Path(__file__).resolve().parent.parent
CORE, FULL = "package.json", "package-full.json"
# Package of an index -> package file with the same modules.
INDEX_PACKAGES = {"umqtt-robust": CORE, "umqtt-robust-full": FULL}


def library_sets(root: Path = ROOT) -> dict[str, list[str]]:
    """Return the modules of each set by its name: the sets of filesets.json, and `core`, all other modules."""
    sets = json.loads((root / "boards" / "filesets.json").read_text())
    del sets["what"]
    modules = {file.stem for file in (root / "umqtt_robust").glob("*.py")}
    named = {module for members in sets.values() for module in members}
    return {**sets, "core": sorted(modules - named)}


def packages(root: Path = ROOT) -> dict[str, dict[str, object]]:
    """Return the content of each package file by its name."""
    return {
        name: {"urls": [[path, path] for path in _paths(modules)], "deps": [], "version": version(root)}
        for name, modules in _modules(root).items()
    }


def version(root: Path = ROOT) -> str:
    """Return the project's version, or "0" if none is found."""
    found = re.search(r'^VERSION = "([^"]+)"', (root / "firmware/app/__init__.py").read_text(), re.MULTILINE)
    return found[1] if found else "0"


def _modules(root: Path) -> dict[str, list[str]]:
    sets = library_sets(root)
    full = [module for name, members in sets.items() if name != "host" for module in members]
    return {CORE: sets["core"], FULL: full}


def _paths(modules: Iterable[str]) -> list[str]:
    return [f"umqtt_robust/{module}.py" for module in sorted(modules)]


def write_index(folder: Path, root: Path = ROOT) -> None:
    """Write a package index into `folder`. Raises KitError.

    It consists of package/MPY_VERSION/PACKAGE/VERSION.json and latest.json, the same under package/py, and the files
    themselves as file/AB/ABCD…, named by their SHA-256.
    """
    with tempfile.TemporaryDirectory(prefix="umqtt-index-") as scratch:
        bundle = Bundle(root / "umqtt_robust")
        bundle.compile(Path(scratch))
        compiled = sorted((Path(scratch) / "umqtt_robust").glob("*.mpy"))
        mpy_version = str(compiled[0].read_bytes()[1])
        for package, file in INDEX_PACKAGES.items():
            modules = _modules(root)[file]
            left_out = {module for members in _modules(root).values() for module in members} - set(modules)
            sources = [root / path for path in _paths(modules)]
            _write_package(folder / "package" / "py" / package, folder, root, sources, version(root))
            chosen = [path for path in compiled if path.stem not in left_out]
            _write_package(folder / "package" / mpy_version / package, folder, Path(scratch), chosen, version(root))


def _write_package(place: Path, index: Path, base: Path, files: Iterable[Path], release: str) -> None:
    hashes = []
    for file in files:
        content = file.read_bytes()
        name = hashlib.sha256(content).hexdigest()
        stored = index / "file" / name[:2] / name
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(content)
        hashes.append([file.relative_to(base).as_posix(), name])
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"hashes": hashes, "deps": [], "version": release}, indent=1) + "\n"
    for name in (release, "latest"):
        (place / f"{name}.json").write_text(text)


def text_of(package: dict[str, object]) -> str:
    """Return the package as JSON with one file per line, so that changes are easy to review."""
    urls = package["urls"]
    assert isinstance(urls, list)
    lines = ",\n".join(f"    {json.dumps(entry)}" for entry in urls)
    return f'{{\n  "urls": [\n{lines}\n  ],\n  "deps": [],\n  "version": {json.dumps(package["version"])}\n}}\n'


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--index"] and len(arguments) == 2:
        write_index(Path(arguments[1]))
        return 0
    if arguments:
        print("usage: write_packages.py [--index DIR]", file=sys.stderr)
        return 2
    for name, package in packages().items():
        (ROOT / name).write_text(text_of(package))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

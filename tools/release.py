"""Make a release: `make release VERSION=0.3.0`; with KEY=~/.ssh/id_ed25519 it is signed too.

    dist/umqtt_robust-0.3.0-py3-none-any.whl, dist/umqtt_robust-0.3.0.tar.gz
    dist/mip/            the index for `mpremote mip install --index`
    dist/constraints.txt the exact versions of all packages that the extras install, as they were tested here
    dist/requirements.txt  the same for services, with the hashes of their files for Linux and this Python
    dist/sbom.cdx.json   the same as constraints.txt, as a software bill of materials, in CycloneDX's format
    dist/SHA256SUMS      checksums of all these; SHA256SUMS.sig by ssh-keygen, namespace umqtt-robust
    a commit that turns the changelog's section Unreleased into that of the version, and the tag v0.3.0

Nothing is pushed or uploaded. The release is built in a worktree of its own, from committed files only. Branch, tag
and dist change only after the wheel has been tried in an empty environment, so a failed release leaves nothing
behind.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from write_packages import version, write_index

ROOT = Path(__file__).resolve().parent.parent
_NAMESPACE = "umqtt-robust"
_SERVICE = ("broker", "spark")
_UNRELEASED = "## [Unreleased]\n"
# File -> the line that holds the version. package.json takes it from the first file.
_VERSIONS = {"firmware/app/__init__.py": 'VERSION = "{}"', "CITATION.cff": "version: {}"}
_TRY = "from umqtt_robust import Client; Client('pump-7', 'mqtt://127.0.0.1').publish('t', b'21', qos=1)"


class Refused(Exception):
    """The release cannot be made; str() says why and what to do."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--key", type=Path, help="private key for ssh-keygen, or the public one of a key in ssh-agent")
    given = parser.parse_args(arguments)
    try:
        release(ROOT, given.version, given.key)
    except (Refused, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, wanted: str, key: Path | None) -> None:
    """Release the committed state of `root`. Raises Refused."""
    check(root, wanted, key)
    with worktree(root) as tree:
        prepare(tree, wanted)
        git(tree, "commit", "--quiet", "--all", "--message", f"release: Version {wanted}.")
        built = tree / "dist"
        # With the commit's own time, the same commit gives the same files.
        stamp = git(tree, "log", "-1", "--format=%ct").strip()
        run(tree, sys.executable, "-P", "-m", "hatchling", "build", "-d", str(built), SOURCE_DATE_EPOCH=stamp)
        try_wheel(next(built.glob("*.whl")))
        write_index(built / "mip", tree)
        write_locked(built, tree, stamp)
        write_sums(built, key)
        commit = git(tree, "rev-parse", "HEAD").strip()
        shutil.rmtree(root / "dist", ignore_errors=True)
        shutil.copytree(built, root / "dist")
    git(root, "merge", "--quiet", "--ff-only", commit)
    git(root, "tag", "--annotate", "--message", f"Version {wanted}", f"v{wanted}")
    print(f"v{wanted} is committed, tagged and in dist; to publish it: git push --follow-tags, and upload dist")


def check(root: Path, wanted: str, key: Path | None) -> None:
    """Check version, repository, changelog and key before a release. Raises Refused if one of them is not ready."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", wanted):
        raise Refused(f"{wanted!r} is no version - try: make release VERSION=0.3.0")
    if dirty := git(root, "status", "--porcelain").splitlines():
        raise Refused(f"{dirty[0][3:]} is not committed ({len(dirty)} such files) - commit or stash first")
    if not git(root, "branch", "--show-current").strip():
        raise Refused("no branch is checked out - git switch to one first")
    if numbers(wanted) < numbers(version(root)):
        raise Refused(f"{wanted} is older than {version(root)}, which is here already")
    if git(root, "tag", "--list", f"v{wanted}").strip():
        raise Refused(f"the tag v{wanted} exists already - choose a higher version")
    if not unreleased(root).strip():
        raise Refused("the section Unreleased of CHANGELOG.md is empty - say what has changed")
    if key is not None and not key.is_file():
        raise Refused(f"there is no key {key}")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def unreleased(root: Path) -> str:
    """Return the text of the changelog's section Unreleased. Raises Refused if CHANGELOG.md has no such section."""
    _, found, rest = (root / "CHANGELOG.md").read_text().partition(_UNRELEASED)
    if not found:
        raise Refused("CHANGELOG.md has no section [Unreleased]")
    return re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def prepare(tree: Path, wanted: str) -> None:
    """Write the version into every file that holds it and give the changelog its section. Raises Refused."""
    for name, line in _VERSIONS.items():
        file = tree / name
        text, count = re.subn(
            "^" + re.escape(line).replace(r"\{\}", ".*") + "$",
            line.format(wanted),
            file.read_text(),
            flags=re.MULTILINE,
        )
        if count != 1:
            raise Refused(f"{name} has {count} lines like {line.format(wanted)!r}, not one")
        file.write_text(text)
    run(tree, sys.executable, "tools/write_packages.py")
    today = datetime.datetime.now(datetime.UTC).date()
    changelog = tree / "CHANGELOG.md"
    section = f"{_UNRELEASED}\n## [{wanted}] - {today}\n"
    changelog.write_text(changelog.read_text().replace(_UNRELEASED, section, 1))


def try_wheel(wheel: Path) -> None:
    """Install the wheel into an empty environment, import the client and run the command. Raises Refused."""
    with tempfile.TemporaryDirectory(prefix="umqtt-release-") as folder:
        python = f"{folder}/bin/python"
        run(wheel.parent, sys.executable, "-P", "-m", "venv", "--without-pip", folder)
        pip = (sys.executable, "-P", "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet")
        run(wheel.parent, *pip, "install", "--no-index", "--no-compile", str(wheel))
        run(Path(folder), python, "-I", "-c", _TRY)
        command = subprocess.run([f"{folder}/bin/umqtt"], cwd=folder, capture_output=True, text=True, check=False)
        if "pip install one of" not in command.stderr:
            raise Refused(f"umqtt without an extra does not say which one is missing: {command.stderr}")


def write_locked(folder: Path, tree: Path, stamp: str) -> None:
    """Write constraints.txt, sbom.cdx.json and requirements.txt of what extras install. Raises Refused."""
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{one}\n" for one in locked("all")))
    how = ("--pyproject", str(tree / "pyproject.toml"), "--output-reproducible", "-o", str(folder / "sbom.cdx.json"))
    command = (sys.executable, "-P", "-m", "cyclonedx_py", "requirements", *how, str(constraints))
    run(tree, *command, SOURCE_DATE_EPOCH=stamp)
    (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in hashed(folder, locked(*_SERVICE))))


def locked(*extras: str) -> list[str]:
    """Return NAME==VERSION of every package that these extras install, in the version here. Raises Refused."""
    found: dict[str, str] = {}
    wanted = [(canonicalize_name("umqtt-robust"), ("", *extras))]
    seen = set(wanted)
    while wanted:
        name, chosen = wanted.pop()
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise Refused(f"{name} is not installed here - make setup") from None
        for text in metadata.requires(name) or []:
            needs = Requirement(text)
            one = canonicalize_name(needs.name), ("", *sorted(needs.extras))
            applies = needs.marker is None or any(needs.marker.evaluate({"extra": extra}) for extra in chosen)
            if applies and one not in seen:
                seen.add(one)
                wanted.append(one)
    del found["umqtt-robust"]
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def hashed(folder: Path, packages: list[str]) -> list[str]:
    """Return the packages with the hashes of the files that pip would install here, and on the other kind of machine.

    Raises Refused.
    """
    found = downloads(folder, packages)
    native = [one for one, (name, _) in found.items() if name.endswith(".whl") and not name.endswith("-any.whl")]
    machine = next(one for one in ("aarch64", "x86_64") if one != platform.machine())
    tags = [f"manylinux2014_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(17, 41))]
    where = ("--target", str(folder / "nowhere"), "--only-binary", ":all:", *(f"--platform={tag}" for tag in tags))
    there = downloads(folder, native, *where) if native else {}
    lines = []
    for one in sorted(found):
        digests = dict.fromkeys(files[one][1] for files in (found, there) if one in files)
        lines.append(" ".join([one, *(f"--hash=sha256:{digest}" for digest in digests)]))
    return lines


def downloads(folder: Path, packages: list[str], *options: str) -> dict[str, tuple[str, str]]:
    """Return the name and SHA-256 of the file that pip would install of each package. Raises Refused."""
    pip = (sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options)
    report = run(folder, *pip, "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", *packages)
    found = {}
    for one in json.loads(report)["install"]:
        name, version = canonicalize_name(one["metadata"]["name"]), one["metadata"]["version"]
        archive = one["download_info"]["archive_info"]
        # pip before 23.1 has the one field alone.
        digest = archive["hashes"]["sha256"] if "hashes" in archive else archive["hash"].removeprefix("sha256=")
        found[f"{name}=={version}"] = Path(one["download_info"]["url"]).name, digest
    return found


def write_sums(folder: Path, key: Path | None) -> None:
    """Write SHA256SUMS of all files below `folder`, in the format of sha256sum, and sign it if there is a key."""
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    if key is not None:
        run(folder, "ssh-keygen", "-q", "-Y", "sign", "-f", str(key.resolve()), "-n", _NAMESPACE, "SHA256SUMS")


@contextmanager
def worktree(root: Path) -> Iterator[Path]:
    """Yield a worktree of HEAD; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="umqtt-release-") as folder:
        tree = Path(folder) / "tree"
        git(root, "worktree", "add", "--quiet", "--detach", str(tree))
        try:
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))


def git(root: Path, *arguments: str) -> str:
    """Run git in `root` and return its output. Raises Refused if it fails."""
    return run(root, "git", *arguments)


def run(folder: Path, *command: str, **environment: str) -> str:
    """Run a command in `folder` and return its output. Raises Refused if it fails."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Refused(f"{' '.join(command[:4])} ... failed: {said[-1]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make release` in a copy of the repository is complete and verifiable, and a refused one leaves no trace."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import release

ROOT = Path(__file__).resolve().parents[2]


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of one commit with the current files, committed or not."""
    folder = tmp_path_factory.mktemp("copy")
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate").splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "Tester")
    git(folder, "config", "user.email", "tester@example.org")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    git(folder, "branch", "as-it-was")
    return folder


@pytest.fixture
def copy(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide that repository for release.main(), and restore it for the next test. No hash is asked for."""
    monkeypatch.setattr(release, "ROOT", repository)
    monkeypatch.setattr(release, "hashed", lambda folder, packages: [f"{one} --hash=…" for one in packages])
    yield repository
    git(repository, "checkout", "--quiet", "--force", "-B", "main", "as-it-was")
    git(repository, "clean", "--quiet", "--force", "-d", "-x")
    for tag in git(repository, "tag").split():
        git(repository, "tag", "--delete", tag)


def test_a_release_is_whole_and_its_signed_sums_verify(copy: Path, tmp_path: Path, capsys) -> None:
    """Planted: the tag is on the commit before the release; a file is missing in SHA256SUMS; of a package, only what it
    needs without its extras is locked."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed - apt install openssh-client")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tester", "-f", str(key)], check=True)
    assert release.main(["9.8.7", "--key", str(key)]) == 0, capsys.readouterr().err
    dist = copy / "dist"
    # The sums leave nothing out, and they are signed.
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    files = {path.relative_to(dist).as_posix(): path for path in dist.rglob("*") if path.is_file()}
    assert set(files) == set(sums) | {"SHA256SUMS", "SHA256SUMS.sig"}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == digest for name, digest in sums.items())
    signers = tmp_path / "signers"
    signers.write_text(f"releases@example.org {(tmp_path / 'key.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "releases@example.org", "-n", "umqtt-robust"]
    with (dist / "SHA256SUMS").open() as signed:
        verified = subprocess.run(
            [*verify, "-s", dist / "SHA256SUMS.sig"], stdin=signed, capture_output=True, check=False
        )
    assert verified.returncode == 0, verified.stderr
    # Every package that users install is in the constraints and in the bill of materials, in the tested version.
    locked = dict(line.split("==") for line in (dist / "constraints.txt").read_text().splitlines())
    assert {"aiohttp", "pyspark", "redis", "apprise", "frozenlist"} <= locked.keys() and "pytest" not in locked
    assert all(metadata.version(name) == version for name, version in locked.items())
    hashed = (dist / "requirements.txt").read_text().splitlines()
    services = dict(line.removesuffix(" --hash=…").split("==") for line in hashed)
    assert {"aiohttp", "pyspark"} <= services.keys() and services.items() <= locked.items()
    assert "esptool" in locked and "esptool" not in services
    bill = json.loads((dist / "sbom.cdx.json").read_text())
    assert {one["name"]: one["version"] for one in bill["components"]} == locked
    assert bill["metadata"]["component"]["name"] == "umqtt-robust"
    # The tag is on the branch's head, and everything built names the same version.
    assert git(copy, "rev-parse", "v9.8.7^{commit}") == git(copy, "rev-parse", "main")
    assert git(copy, "status", "--porcelain") == "" and git(copy, "worktree", "list").count("\n") == 0
    with zipfile.ZipFile(next(dist.glob("umqtt_robust-9.8.7-*.whl"))) as wheel:
        assert 'VERSION = "9.8.7"' in wheel.read("umqtt_kit/_data/firmware/app/__init__.py").decode()
    with tarfile.open(dist / "umqtt_robust-9.8.7.tar.gz") as sdist:
        changelog = sdist.extractfile("umqtt_robust-9.8.7/CHANGELOG.md")
        assert changelog is not None
        sections = [line for line in changelog.read().decode().splitlines() if line.startswith("## ")]
    assert sections[0] == "## [Unreleased]" and sections[1].startswith("## [9.8.7] - ")
    for package in ("6/umqtt-robust", "6/umqtt-robust-full", "py/umqtt-robust"):
        assert json.loads((dist / "mip" / "package" / package / "latest.json").read_text())["version"] == "9.8.7"
    # A second release has nothing to describe.
    assert release.main(["9.8.8"]) == 1
    assert (
        capsys.readouterr().err == "release: the section Unreleased of CHANGELOG.md is empty - say what has changed\n"
    )


def test_a_package_is_installed_only_if_it_is_the_one_of_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Planted: the hashes are those of the installed files; or of this kind of machine alone."""

    def wheel(content: str, name: str = "Some_Thing", tag: str = "py3-none-any") -> Path:
        path = tmp_path / f"{name}-1.5-{tag}.whl"
        info = f"{name.lower()}-1.5.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{name.lower()}.py", content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
            archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
            archive.writestr(f"{info}/RECORD", "")
        return path

    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(tmp_path), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    digest = hashlib.sha256(wheel("x = 1").read_bytes()).hexdigest()
    lines = release.hashed(tmp_path, ["some-thing==1.5"])
    assert lines == [f"some-thing==1.5 --hash=sha256:{digest}"]
    # What is compiled has a file for each kind of machine.
    for machine in ("x86_64", "aarch64"):
        wheel(f"machine = {machine!r}", "Native", f"py3-none-manylinux_2_24_{machine}")
    native = release.hashed(tmp_path, ["some-thing==1.5", "native==1.5"])
    assert native[1] == lines[0]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.glob("Native*.whl")}
    assert {one.removeprefix("--hash=sha256:") for one in native[0].split()[1:]} == digests and len(digests) == 2
    (tmp_path / "requirements.txt").write_text(lines[0] + "\n")
    pip = [sys.executable, "-m", "pip", "install", "--target", str(tmp_path / "there"), "--require-hashes", "-r"]
    assert subprocess.run([*pip, str(tmp_path / "requirements.txt")], check=False).returncode == 0
    wheel("x = 2")
    done = subprocess.run([*pip, str(tmp_path / "requirements.txt")], capture_output=True, text=True, check=False)
    assert done.returncode and "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "prepare", "said"),
    [
        ([], "", "'' is no version - try: make release VERSION=0.3.0"),
        (["9.8"], "", "'9.8' is no version - try: make release VERSION=0.3.0"),
        (
            ["9.8.7"],
            "echo >> README.md; echo > new",
            "README.md is not committed (2 such files) - commit or stash first",
        ),
        (["0.0.1"], "", "0.0.1 is older than "),
        (["9.8.7"], "git tag v9.8.7", "the tag v9.8.7 exists already - choose a higher version"),
        (["9.8.7"], "git checkout -q --detach", "no branch is checked out - git switch to one first"),
        (["9.8.7", "--key", "none"], "", "there is no key none"),
        (["9.8.7"], "echo 'import nothing' >> umqtt_robust/__init__.py; git commit -qam broken", "failed: "),
    ],
)
def test_what_cannot_be_released_is_refused_in_one_line_and_changes_nothing(
    copy: Path, capsys, arguments: list[str], prepare: str, said: str
) -> None:
    """Planted: the branch moves before the wheel has been tried."""
    subprocess.run(prepare, shell=True, cwd=copy, check=True)
    before = git(copy, "for-each-ref"), git(copy, "status", "--porcelain"), git(copy, "worktree", "list")
    assert release.main(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("release: ") and said in line
    assert before == (git(copy, "for-each-ref"), git(copy, "status", "--porcelain"), git(copy, "worktree", "list"))
    assert not (copy / "dist").exists()

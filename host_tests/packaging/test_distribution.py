"""What pip installs is complete, has one version, and says in one line which extra is missing.

Planted: a package that the wheel leaves out (an editable installation hides it), an import of click at the top of a
module that needs no extra, a version in package.json that differs from the project's.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
# Folder here -> folder in the wheel.
PARTS = {
    "umqtt_robust": "umqtt_robust",
    "umqtt_cli": "umqtt_cli",
    "tools/umqtt_kit": "umqtt_kit",
    "tools/umqtt_broker": "umqtt_broker",
    "tools/umqtt_console": "umqtt_console",
    "tools/umqtt_page": "umqtt_page",
    "host_tests/umqtt_testkit": "umqtt_testkit",
    "spark_ingest": "spark_ingest",
    "firmware": "umqtt_kit/_data/firmware",
    "boards": "umqtt_kit/_data/boards",
}
NAME = "umqtt-robust"


def tracked(folder: str = ".") -> set[str]:
    """Return the files below `folder` that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate", folder]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hatchling", "build", "-d", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warn" not in (done.stdout + done.stderr).lower()
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def installed(built: Path, wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel unpacked as pip would install it."""
    folder = tmp_path_factory.mktemp("site")
    wheel.extractall(folder)
    return folder


def test_the_wheel_holds_every_file_of_every_part(wheel: zipfile.ZipFile) -> None:
    wanted = {there + name[len(here) :] for here, there in PARTS.items() for name in tracked(here)}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_the_source_distribution_holds_every_file(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held == tracked() | {"PKG-INFO"}


def test_there_is_one_version(built: Path) -> None:
    said = {re.search(r"-(\d+\.\d+\.\d+)", file.name)[1] for file in built.iterdir()}
    said |= {json.loads((ROOT / name).read_text())["version"] for name in ("package.json", "package-full.json")}
    said |= set(re.findall(r'^VERSION = "(.*)"', (ROOT / "firmware/app/__init__.py").read_text(), re.MULTILINE))
    said |= set(re.findall(r"^version: (.*)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert len(said) == 1


def brought_by(extra: str, installed: Path) -> set[str]:
    """Return the distributions that pip installs for NAME[extra], by the requirements of the wheel and of these."""
    ours = Distribution.at(next(installed.glob("*.dist-info")))
    found: set[tuple[str, str]] = set()
    todo = [(NAME, extra)]
    while todo:
        name, of_extra = todo.pop()
        if (name, of_extra) in found:
            continue
        found.add((name, of_extra))
        try:
            lines = (ours if name == NAME else distribution(name)).requires or []
        except PackageNotFoundError:  # not for this platform
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": of_extra}):
                todo += [(requirement.name.lower(), one) for one in ["", *requirement.extras]]
    return {name for name, _ in found} - {NAME}


@pytest.fixture(scope="module")
def with_extra(installed: Path, tmp_path_factory: pytest.TempPathFactory):
    """Provide a function that runs a program with the wheel and only those packages that one extra brings."""
    sites: dict[str, Path] = {}

    def site(extra: str) -> Path:
        if extra not in sites:
            sites[extra] = folder = tmp_path_factory.mktemp(f"extra-{extra or 'none'}")
            for name in brought_by(extra, installed) if extra else ():
                try:
                    found = distribution(name)
                except PackageNotFoundError:
                    continue
                for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
                    if not (folder / top).exists():
                        (folder / top).symlink_to(str(found.locate_file(top)))
        return sites[extra]

    def run(extra: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-S", "-c", program, *arguments],
            env=os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{site(extra)}"},
            cwd=installed, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_the_client_needs_nothing(installed: Path) -> None:
    code = "from umqtt_robust import Client; c = Client('pump-7', 'mqtt://127.0.0.1'); print(c.publish('t', b'21'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "arguments", "missing", "ways"),
    [
        ("", ["--help"], "click", "'umqtt-robust[broker]' for the broker, 'umqtt-robust[console]' for the console"),
        ("broker", ["report", "--tables", "tables"], "deltalake", "'umqtt-robust[spark]' for collector"),
        ("broker", ["devices"], "mpremote", "'umqtt-robust[kit]' for boards"),
        ("spark", ["certs", "ca"], "cryptography", "'umqtt-robust[broker]' for the broker"),
    ],
)
def test_what_is_missing_is_one_line_that_names_the_extra(with_extra, extra, arguments, missing, ways) -> None:
    """Planted: the names are not in quotes, so zsh refuses what is pasted."""
    done = with_extra(extra, "from umqtt_cli.entry import main; main()", *arguments)
    assert done.returncode == 6, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"umqtt: the package {missing} is missing — pip install one of: ") and ways in line


@pytest.mark.parametrize(
    ("extra", "commands"),
    [
        ("broker", ["broker", "passwd", "certs", "pub", "sub", "cmd"]),
        ("kit", ["board", "devices", "flash", "provision", "deploy", "logs", "doctor", "ota", "size"]),
        ("spark", ["collect", "spool", "ingest", "alerts", "report", "tables"]),
    ],
)
def test_with_an_extra_its_commands_are_there(with_extra, extra: str, commands: list[str]) -> None:
    program = "from umqtt_cli.__main__ import run, sys; sys.exit(any(run([each, '--help']) for each in sys.argv[1:]))"
    done = with_extra(extra, program, *commands)
    assert done.returncode == 0, done.stderr
    assert [command for command in commands if f"Usage: umqtt {command} " not in done.stdout] == []


def test_the_help_says_how_to_install_what_is_missing(with_extra) -> None:
    """Planted: the help imports each command, and ends at the first whose package is missing."""
    program = "from umqtt_cli.__main__ import run; run(['--help'])"
    missing = {
        extra: [line for line in with_extra(extra, program).stdout.splitlines() if "after pip install" in line]
        for extra in ("broker", "kit", "spark")
    }
    titles = ("Board on a cable", "Without a board", "Device over the air")
    kit = [f"{title}, after pip install 'umqtt-robust[kit]':" for title in titles]
    spark = ["Data, after pip install 'umqtt-robust[spark]':"]
    page = ["Page, after pip install 'umqtt-robust[console]':"]
    broker = ["Broker, after pip install 'umqtt-robust[broker]':"]
    assert missing == {"broker": [*kit, *spark, *page], "kit": [*spark, *page], "spark": [*kit, *broker, *page]}

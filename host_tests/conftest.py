"""Rules for all test folders: order, tiers, costs, what a run may leave behind, and how its failures are kept."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import costs
import failures
import pytest
import sharing
import tiers
from hypothesis import HealthCheck, settings
from made_once import builds_made_once
from umqtt_testkit.both import LIMIT_FACTOR
from xdist.remote import Producer

_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))

# The machines that run these tests are shared, so the speed at which inputs are generated says nothing about the
# code. A failing example is printed together with what reproduces it. The examples are the same in every run, so that
# a failure comes from a change; full sweeps look for new ones.
settings.register_profile(
    "shared",
    deadline=None,
    derandomize=not _FULL,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("shared")

# A shell starts background processes with Ctrl-C ignored, and children inherit that: the tests that send Ctrl-C would
# wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests of brokers and stores mostly wait for the disk: in memory they take half the time.
_MEMORY = Path("/dev/shm")
_MEMORY_B = 4 << 30

_CHROMIUM = "/usr/bin/chromium"
# Without these, Chromium looks up its vendor's hosts at every start.
_CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("umqtt-robust's own tests")
    group.addoption(
        "--failures", metavar="FOLDER", type=Path, help="keep the log of every failure (see running/failures.py)"
    )
    group.addoption(
        "--tiers", metavar="N,smoke", help="run only these tiers, and all tests marked so (see running/tiers.py)"
    )


def _has_memory_for_files() -> bool:
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _MEMORY_B


def pytest_configure(config: pytest.Config) -> None:
    if not _FULL and "TMPDIR" not in os.environ and _has_memory_for_files():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    if (kept := config.getoption("--failures")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(failures.Keeper(kept))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: all that is made stays, and this saves a tenth of the processor's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its tier and limit, and start with the slowest files, so that none of them runs last."""
    kept = costs.by_file()
    seconds: dict[Path, float] = defaultdict(float)
    for path in {item.path for item in items}:
        seconds[sharing.first_of(path)] += costs.worker_seconds(path, kept, costs.LONG_S)

    def place(item: pytest.Item) -> tuple[float, Path, Path]:
        first = sharing.first_of(item.path)
        return -seconds[first], first, item.path

    items.sort(key=place)
    for item in items:
        tier = tiers.tier_of(item)
        if item.get_closest_marker("tier") is None:
            item.add_marker(pytest.mark.tier(tier))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(tiers.TIERS[tier].hung_after_s * LIMIT_FACTOR))
    unwanted = set() if _FULL else set(tiers.left_out(items))
    if wanted := config.getoption("--tiers"):
        chosen = tiers.Chosen(wanted)
        unwanted |= {item for item in items if item not in chosen}
    config.hook.pytest_deselected(items=list(unwanted))
    items[:] = [item for item in items if item not in unwanted]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> sharing.Scheduling | None:
    return sharing.Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    if tiers.tier_of(pyfuncitem) > 0:
        return (yield)
    with tiers.tier_0_guard():
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def what_was_there_before_is_left_alone() -> Iterator[None]:
    """Hide earlier objects from the garbage collector: firmware collects often, at 0.1 s for 5,000 tests and Spark.

    They are thawed after each file: objects frozen to the end are never destroyed, and a worker may then wait for
    them for ever.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide the folder that replaces /tmp for the tests and their processes; it must be empty at the end."""
    folder = tmp_path_factory.mktemp("tmp", numbered=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    left = sorted(path.name for path in folder.iterdir())
    assert not left, f"tests left these in the temporary folder: {', '.join(left)}"


@pytest.fixture(scope="session", autouse=True)
def builds_are_made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with builds_made_once(tmp_path_factory):
        yield


@pytest.fixture(scope="session")
def rp2040_image() -> Path:
    """Return the image that UMQTT_RP2040_IMAGE names; skip if there is none or the emulator is not installed."""
    from rp2040 import emulator_command

    from umqtt_cli.errors import KitError

    named = os.environ.get("UMQTT_RP2040_IMAGE")
    if not named:
        pytest.skip("UMQTT_RP2040_IMAGE names no image: give the UF2 file of RPI_PICO from micropython.org/download")
    try:
        emulator_command()
    except KitError as missing:
        pytest.skip(str(missing))
    return Path(named)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Run headless Chromium for one module only: while it runs, nothing else in this process may use asyncio."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(_CHROMIUM).exists():
        pytest.skip("chromium is not installed — apt install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=_CHROMIUM, args=_CHROMIUM_OPTIONS)
        yield opened
        opened.close()

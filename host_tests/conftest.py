"""What holds for every test folder."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machines that run these tests are shared: how fast inputs are generated says nothing about the code. A failing
# example is printed with what it takes to run it again. The examples are the same in every run, so that a failure comes
# from a change; full sweeps look for new ones.
settings.register_profile(
    "shared",
    deadline=None,
    derandomize=not os.environ.get("UMQTT_FULL_SWEEPS"),
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("shared")

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that: the tests that press it
# would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take minutes go first, one to each worker: what begins last decides when a run ends.
_LONGEST = (
    "flash/test_flash_sweep.py",
    "spark/test_prove.py",
    "spark/cluster/test_cluster.py",
    "spark/test_pipeline.py",
    "spark/faults/test_pipeline_faults.py",
    "end_to_end/test_demo.py",
)

_CHROMIUM = "/usr/bin/chromium"
# Without these it looks up its maker's hosts at every start.
_CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the rest keeps its order."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(_CHROMIUM).exists():
        pytest.skip("chromium is not installed — apt install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=_CHROMIUM, args=_CHROMIUM_OPTIONS)
        yield opened
        opened.close()

"""pytest plugin of the test kit (entry point pytest11: it is active once it is installed).

ini option `umqtt_both`: folders whose test files run on CPython and on real MicroPython (see `portable`).
Select one side with `-m micropython`, `-k micropython` or by node id: `test_x.py::test_y[micropython]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .board import VirtualBoard
from .both import BothModule
from .cloud_broker import CloudBroker
from .interpreter import MicroPythonMissing
from .network import Network, NetworkMissing
from .peer import ScriptedPeer
from .proxy import FaultProxy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("umqtt_both", "folders whose test files run on CPython and on MicroPython", type="paths", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "micropython: runs inside real MicroPython")
    for folder in config.getini("umqtt_both"):
        # With a misspelt folder its tests would run, and pass, under CPython alone.
        if not folder.exists():
            raise pytest.UsageError(f"umqtt_both: there is no folder {folder} - correct it in {config.inipath}")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    folders: list[Path] = parent.config.getini("umqtt_both")
    if any(module_path.is_relative_to(folder) for folder in folders):
        return BothModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def peer() -> Iterator[ScriptedPeer]:
    """Provide a scripted MQTT peer on 127.0.0.1, closed at the end of the test (see umqtt_testkit.peer)."""
    with ScriptedPeer() as scripted:
        yield scripted


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[tuple[str, int]], FaultProxy]]:
    """Provide `fault_proxy((host, port))`, which puts a fault proxy before an address until the end of the test."""
    with ExitStack() as stack:
        yield lambda upstream, seed=0: stack.enter_context(FaultProxy(upstream, seed=seed))


@pytest.fixture
def cloud_broker() -> Iterator[Callable[..., CloudBroker]]:
    """Provide `cloud_broker("aws", ...)`, which plays a cloud (see umqtt_testkit.cloud_broker).

    The brokers are stopped at the end of the test.
    """
    with ExitStack() as stack:
        yield lambda name, **options: stack.enter_context(CloudBroker(name, **options))


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    """Provide `network(loss=0.3, delay_ms=200, ...)`, a router between two hosts (see umqtt_testkit.network).

    Where this machine cannot make one, the test is skipped with that reason.
    """
    with ExitStack() as stack:

        def make(**options: Any) -> Network:
            try:
                return stack.enter_context(Network(**options))
            except NetworkMissing as missing:
                pytest.skip(str(missing))

        yield make


@pytest.fixture
def virtual_board(tmp_path: Path) -> Iterator[Callable[..., VirtualBoard]]:
    """Provide `virtual_board("name", heap="64K", ...)`, which makes a board (off) with its image in tmp_path.

    The boards are closed at the end of the test. Without MicroPython on this machine the test is skipped with that
    reason.
    """
    with ExitStack() as stack:

        def make(name: str = "board", **options: Any) -> VirtualBoard:
            try:
                return stack.enter_context(VirtualBoard(tmp_path / f"{name}.img", **options))
            except MicroPythonMissing as missing:
                pytest.skip(str(missing))

        yield make

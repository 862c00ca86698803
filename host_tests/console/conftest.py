"""Tables of a small story, and consoles on them."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_here import broker_here
from gold_tables import fleet
from served_console import Serve, ServedConsole
from story_tables import story


@pytest.fixture(scope="session")
def story_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the tables of four devices over six hours, with what happened to them."""
    return story(tmp_path_factory.mktemp("story"))


@pytest.fixture(scope="session")
def fleet_of_forty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide gold tables of 40 devices over a day."""
    return fleet(tmp_path_factory.mktemp("fleet"), devices=40, days=1)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Provide serve(tables, users=…, broker=…), which starts consoles; they end with the test."""
    with ExitStack() as stack:

        def start(tables: Path, **options: Any) -> ServedConsole:
            options.setdefault("audit", tmp_path / "audit.jsonl")
            return stack.enter_context(ServedConsole(tables, **options))

        yield start


@pytest.fixture(scope="module")
def broker() -> Iterator[int]:
    """Provide the port of a broker."""
    with broker_here() as port:
        yield port

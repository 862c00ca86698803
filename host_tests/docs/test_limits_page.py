"""docs/limits.md has every listener, and the numbers of the code."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
NAMES = [(row, name) for row in ROWS for name in re.findall(r"`((?:umqtt|spark)_\w+\.[\w.]+)`", row[-1])]
# What begins to listen, in the standard library and in aiohttp.
LISTENS = re.compile(r"\.listen\(|\bcreate_server\(|\bstart_(?:unix_)?server\(|serve_forever|AppRunner\(")
# The first only accepts for others; the second has updates for the boards of a proof, on loopback alone.
APART = {"spark_ingest/limited_threads.py", "tools/umqtt_kit/prove/updates.py"}


@pytest.mark.parametrize(("row", "name"), NAMES, ids=[name for _, name in NAMES])
def test_the_bounds_are_those_of_the_code(row, name):
    """Planted: a bound that has been raised."""
    module, _, last = name.rpartition(".")
    owner = module.rpartition(".")[2]
    holder = getattr(importlib.import_module(module.rpartition(".")[0]), owner) if owner[0].isupper() else None
    value = getattr(holder or importlib.import_module(module), last)
    assert re.search(rf"(?<![\d,]){value:,}(?!,?\d)", " ".join(row[:-1])), f"{name} is {value:,}"


def test_every_listener_of_the_product_is_in_the_table():
    """Planted: a server that the page does not know."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("firmware", "spark_ingest", "tools", "umqtt_cli", "umqtt_robust")
        for path in (ROOT / folder).rglob("*.py")
        if LISTENS.search(path.read_text())
    }
    named = {name for row in ROWS for name in re.findall(r"`([\w/]+\.py)`", row[-1])}
    assert found - APART == named - {"tools/umqtt_broker/transport/listeners.py"}
    assert all((ROOT / name).exists() for name in named)

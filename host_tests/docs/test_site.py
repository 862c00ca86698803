"""`make docs` builds a site without dead links that loads nothing from other hosts."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


class Page(HTMLParser):
    """The parts of a page. ids: possible targets of links. links: (tag, address)."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        self.links += [(tag, address) for key in ("href", "src") if (address := given.get(key))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    # 404.html is served for any address, so its links begin at the root of a server.
    return {file: Page(file) for file in folder.rglob("*.html") if file.name != "404.html"}


def test_every_link_leads_to_a_place_of_the_site(site: dict[Path, Page]) -> None:
    """Planted: a link to a missing section; a link to a file outside docs that is left unchanged."""
    dead = []
    for file, page in site.items():
        for _, link in page.links:
            if re.match("[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = Path(os.path.normpath(file.parent / unquote(path))) if path else file
            if not target.is_file() or (anchor and target in site and unquote(anchor) not in site[target].ids):
                dead.append((file.name, link))
    assert not dead


def test_nothing_is_loaded_from_another_host(site: dict[Path, Page]) -> None:
    """Planted: the theme's fonts are loaded."""
    assert not {link for page in site.values() for tag, link in page.links if tag != "a" and "://" in link}


def test_the_index_names_every_page() -> None:
    """Planted: a new page that is only in the menu."""
    named = set(re.findall(r"\]\(([a-z0-9-]+\.md)\)", (DOCS / "index.md").read_text()))
    assert named == {file.name for file in DOCS.glob("*.md")} - {"index.md"}


def test_the_reference_has_every_method_that_the_clients_stub_makes_public(site: dict[Path, Page]) -> None:
    """Planted: a new method of Client is missing."""
    classes = [node for node in ast.parse((ROOT / "umqtt_robust/client.pyi").read_text()).body
               if isinstance(node, ast.ClassDef) and node.name == "Client"]  # fmt: skip
    methods = [node.name for node in classes[0].body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    (reference,) = (page for file, page in site.items() if file.name == "api.html")
    expected = {
        f"umqtt_robust.client.Client.{name}" for name in [*methods, "publish", "subscribe", "unsubscribe", "on"]
    }
    assert len(methods) > 5 and expected <= reference.ids

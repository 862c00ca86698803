"""Hooks for mkdocs: add the files outside docs that pages link to, so that no link of the site is dead offline.

A Markdown file of another folder (boards/NAME/README.md) becomes a page; any other file becomes a page that shows its
text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(?=[)\s])")
# A word after the language tells our tests what to do with the block; mkdocs would not recognise the block.
_FENCE = re.compile(r"^```(\w+) [a-z]+$", re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".conf": "ini", ".ipynb": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs that a page links to, directly or through such a page."""
    todo = [(f"docs/{file.src_uri}", Path(file.abs_src_path or "").read_text()) for file in files.documentation_pages()]
    seen: set[str] = set()
    while todo:
        page, text = todo.pop()
        for match in _LINK.finditer(text):
            path = target_of(page, match[2])
            if path is None or path.startswith("docs/") or path in seen:
                continue
            seen.add(path)
            content = (ROOT / path).read_text()
            if path.endswith(".md"):
                todo.append((path, content))
            else:
                content = f"# {path}\n\n~~~~{_LANGUAGES.get(Path(path).suffix, 'text')}\n{content}~~~~\n"
            files.append(File.generated(config, place_of(path), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page: links out of docs point to the pages added by on_files(), and fences lose their test words."""
    here = page.file.src_uri
    source = here.removeprefix("project/") if here.startswith("project/") else f"docs/{here}"
    if source.endswith(".source.md"):
        return markdown

    def rewritten(match: re.Match[str]) -> str:
        path = target_of(source, match[2])
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(place_of(path), posixpath.dirname(here) or ".") + (match[3] or "")

    return _LINK.sub(rewritten, _FENCE.sub(r"```\1", markdown))


def target_of(page: str, link: str) -> str | None:
    """Return the file that a link on a page points to, relative to the project's folder; None if there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path += "/README.md"
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def place_of(path: str) -> str:
    """Return the path within the site of a file of the project."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path}" if path.endswith(".md") else f"project/{path}.source.md"

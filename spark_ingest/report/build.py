"""Writes the report: data, style and script in one page that loads nothing from elsewhere."""

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import umqtt_page

from ..durable import replace_file
from ..errors import UsageError
from ..location import Location
from .data import collect
from .tables import Tables

_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Report:
    """The result of a report: the file's size in bytes, the totals in the tiles, the names of missing tables."""

    bytes: int
    totals: dict[str, int]
    absent: list[str]


def write_report(tables: Location, out: Path, *, days: float = 7.0, made_at: float | None = None) -> Report:
    """Write the page to `out`, completely or not at all.

    :param tables: the --tables of the pipeline.
    :param days: the days before the newest reading that the charts show.
    :param made_at: the time that the page names as that of its making, in Unix seconds; None: now.
    :raises UsageError: there are no gold tables, or `out` cannot be written.
    :raises IngestError: a table cannot be read.
    """
    opened = Tables(tables)
    data = collect(opened, days)
    data["made"] = int(time.time() if made_at is None else made_at)
    page = _page(data).encode()
    try:
        replace_file(out, page, durable=False)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}; choose another --out") from error
    return Report(len(page), data["totals"], opened.absent)


def _page(data: dict[str, Any]) -> str:
    shared = {name: umqtt_page.read(f"{name}.js").decode() for name in ("dom", "table", "chart")}
    charts, chart_style = (umqtt_page.read(f"uplot/uPlot.{end}").decode() for end in ("iife.min.js", "min.css"))
    script = charts + _bundle(shared | {"report": _part("report.js")})
    style = chart_style + umqtt_page.read("base.css").decode() + _part("report.css")
    parts = {
        "policy": _POLICY.format(script=_hash(script), style=_hash(style)),
        "style": style,
        "script": script,
        "data": _json(data),
        **{name: f"{data['totals'][name]:,}" for name in ("devices", "readings")},
    }
    # Replace all marks in one pass, because text from a device may look like a mark.
    return re.sub(r"<!--@(\w+)-->", lambda mark: parts[mark[1]], _part("index.html"))


def _bundle(modules: Mapping[str, str]) -> str:
    """Return modules, which import only those before them, as one script: each becomes a function's result."""
    parts = []
    for name, source in modules.items():
        body = _IMPORT.sub(r"const {\1} = \2;", source)
        exports = ", ".join(_EXPORT.findall(body))
        body = _EXPORT.sub(lambda found: found[0].removeprefix("export "), body)
        parts.append(f"const {name} = (() => {{\n{body}\nreturn {{ {exports} }};\n}})();")
    return "\n".join(parts)


def _json(data: dict[str, Any]) -> str:
    """Return JSON for a script element, with <, > and & escaped: `<` could end the element or begin a comment."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return resources.files("spark_ingest.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

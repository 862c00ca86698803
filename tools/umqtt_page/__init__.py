"""The design system of every page: console, broker and report read these files; nothing here imports anything of ours.

base.css      colours, type and space as custom properties; buttons, cards, tables, dialogs
dom.js        elements, text, formats of numbers and times
table.js      a table that sorts, and draws only the rows in view
chart.js      a chart, drawn by uPlot (uplot/, MIT licence)
broker.js     one broker: its figures, its clients
"""

from functools import cache
from importlib.resources import files

NAMES = {
    "base.css": "text/css",
    "dom.js": "text/javascript",
    "table.js": "text/javascript",
    "chart.js": "text/javascript",
    "broker.js": "text/javascript",
    "uplot/uPlot.iife.min.js": "text/javascript",
    "uplot/uPlot.min.css": "text/css",
}
"""The files with their media types."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    # The page loads only from here, has no inline code, cannot be framed, and turns no string into markup.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
}
"""Of every answer of a listener with a page."""


@cache
def read(name: str) -> bytes:
    """Return the content of a file of NAMES."""
    if name not in NAMES:
        raise KeyError(name)
    return (files(__name__) / name).read_bytes()

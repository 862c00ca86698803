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


@cache
def read(name: str) -> bytes:
    """Return the content of a file of NAMES."""
    if name not in NAMES:
        raise KeyError(name)
    return (files(__name__) / name).read_bytes()

"""The pages on what MQTT demands of a server are complete, and the proofs they name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier(0)

_HERE = Path(__file__).resolve().parent
_ROW = re.compile(r"^\| MQTT-([\d.]+-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_PROOF = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
# What is not proved here, and why: it is the client's duty, or its subject never occurs.
_NO_PROOF = re.compile(r"\*Client\*|\*Does not arise\*: [^|]+")
# The number of statements in each section, numbered from 1; a skipped number is a forgotten one.
_MQTT311 = {
    "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
    "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
    "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1,
    "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
    "6.0.0": 4, "7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
}  # fmt: skip


_MQTT5 = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
    "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
    "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
    "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1,
    "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6,
    "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1,
    "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip
# The standard has no statement with this number.
_MISSING = {"2.2.1-1"}
_PAGES = {"broker-conformance.md": _MQTT311, "broker-conformance-mqtt5.md": _MQTT5}

_each_page = pytest.mark.parametrize("page", _PAGES)


def _rows(page: str) -> list[tuple[str, str, str]]:
    return _ROW.findall((_HERE.parents[1] / "docs" / page).read_text())


@_each_page
def test_every_statement_has_one_row_and_every_row_a_statement(page: str) -> None:
    numbers = [f"{section}-{each}" for section, last in _PAGES[page].items() for each in range(1, last + 1)]
    missing = _MISSING if page.endswith("5.md") else set[str]()
    assert [number for number, _, _ in _rows(page)] == [number for number in numbers if number not in missing]


@_each_page
def test_every_row_names_a_proof_or_says_why_there_is_none(page: str) -> None:
    for number, _, proof in _rows(page):
        named = "<br>".join(f"`{file}::{test}`" for file, test in _PROOF.findall(proof))
        assert _NO_PROOF.fullmatch(proof) or (named and proof == named), number


@_each_page
def test_every_proof_is_a_test_that_exists(page: str) -> None:
    tests = {
        (path.name, node.name)
        for path in _HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {each for _, _, proof in _rows(page) for each in _PROOF.findall(proof)} - tests == set()

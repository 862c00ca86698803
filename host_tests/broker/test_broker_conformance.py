"""docs/broker-conformance.md is complete and its proofs exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tier(0)

_HERE = Path(__file__).resolve().parent
_TABLE = (_HERE.parents[1] / "docs" / "broker-conformance.md").read_text()
_ROW = re.compile(r"^\| (MQTT-[\d.]+-\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
_PROOF = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
# How many statements each section has; a number in the list that is skipped is one that was forgotten.
_LAST = {
    "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
    "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
    "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1,
    "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2,
    "6.0.0": 4, "7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
}  # fmt: skip


def numbers() -> list[str]:
    lines = (_HERE / "norms_mqtt311.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_the_list_of_statements_has_every_number_of_every_section():
    assert numbers() == [f"MQTT-{section}-{each}" for section, last in _LAST.items() for each in range(1, last + 1)]


def test_every_statement_has_one_row_and_every_row_a_statement():
    assert [number for number, _, _ in _ROW.findall(_TABLE)] == numbers()


def test_every_row_names_a_proof_or_says_that_it_is_the_clients():
    for number, _, proof in _ROW.findall(_TABLE):
        named = "<br>".join(f"`{file}::{test}`" for file, test in _PROOF.findall(proof))
        assert proof in ("*Client*", named), number


def test_every_proof_is_a_test_that_exists():
    tests = {
        (path.name, node.name)
        for path in _HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert not set(_PROOF.findall(_TABLE)) - tests

"""The state diagrams in the docs are those of the code."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import draw_states

from umqtt_robust import qos2, states


def test_the_diagrams_are_up_to_date():
    assert draw_states.TARGET.read_text() == draw_states.text(), "run host_tests/docs/draw_states.py"


def test_every_transition_is_drawn():
    drawn = sum(sum(state in diagram.names for state, _ in diagram.table) for diagram in draw_states.diagrams())
    packets = len(states.LINK) - states.LINK.count(states.NEVER)
    puback = 1
    assert drawn == packets + puback + len(qos2.OUTBOUND) + len(qos2.INBOUND)


@pytest.mark.parametrize("table", ["OUTBOUND", "INBOUND"])
def test_a_transition_that_is_taken_away_changes_the_diagrams(monkeypatch, table):
    shorter = dict(getattr(qos2, table))
    shorter.popitem()
    monkeypatch.setattr(qos2, table, shorter)
    assert draw_states.TARGET.read_text() != draw_states.text()


def test_a_packet_that_may_not_come_any_more_changes_the_diagrams(monkeypatch):
    shorter = bytearray(states.LINK)
    shorter[0x90 >> 4] = states.NEVER
    monkeypatch.setattr(states, "LINK", bytes(shorter))
    assert draw_states.TARGET.read_text() != draw_states.text()

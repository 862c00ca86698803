"""The state diagrams in the docs are those of the code."""

import draw_states
import pytest

from umqtt_robust import packets as states

TABLES = "LINK", "LINK_5", "OUTBOUND", "INBOUND"


def there():
    return {path: path.read_text() for path in draw_states.files()}


def test_the_diagrams_are_up_to_date():
    assert there() == draw_states.files(), "run host_tests/docs/draw_states.py"


def test_every_transition_is_drawn():
    drawn = sum(sum(state in diagram.names for state, _ in diagram.table) for diagram in draw_states.diagrams())
    assert drawn == sum(len(getattr(states, table)) for table in TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_a_transition_that_is_taken_away_changes_the_diagrams(monkeypatch, table):
    shorter = dict(getattr(states, table))
    shorter.popitem()
    monkeypatch.setattr(states, table, shorter)
    assert there() != draw_states.files()

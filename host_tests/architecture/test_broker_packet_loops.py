"""The code that the broker's packet loops have in common is identical in both."""

from pathlib import Path

import pytest
import umqtt_broker

_CLIENTS = Path(umqtt_broker.__file__).parent / "clients"


def _between(source: str, first: str, last: str) -> str:
    """Return the text from one line to another; both must occur exactly once."""
    assert source.count(first) == source.count(last) == 1
    return source[source.index(first) : source.index(last)]


@pytest.mark.parametrize("planted", ["", "step += step", "else end - at + 1"])
def test_both_loops_find_packets_in_the_same_way(planted: str) -> None:
    """Planted, and found: a change in one of them."""
    loops = [(_CLIENTS / name).read_text() for name in ("packet_loop.py", "packet_loop5.py")]
    if planted:
        loops[1] = loops[1].replace(planted, "pass")
    heads = [_between(loop, "    step = FIRST_STEP\n", "if not body:\n") for loop in loops]
    last = "connection.keep_rest(data[at:] if at"
    ends = [_between(loop, "        connection.count_in(messages)\n", last) for loop in loops]
    assert (heads[0] == heads[1] and ends[0] == ends[1]) is not bool(planted)

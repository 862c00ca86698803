"""A shared subscription is not a session: both are queues, and a queue uses nothing of either."""

from pathlib import Path

import pytest
import umqtt_broker
from class_names import uses_and_makes

_SESSIONS = Path(umqtt_broker.__file__).parent / "sessions"
_FILES = {"MessageQueue": "queue.py", "DurableQueue": "durable.py", "SharedQueue": "shared_queue.py"}


@pytest.mark.parametrize(
    ("classes", "planted", "unknown"),
    [
        (["MessageQueue"], ("return len(self.queue)", "return len(self.queue) + len(self.in_flight)"), "in_flight"),
        (["DurableQueue", "MessageQueue"], ("self.queued - self._passing,", "len(self.in_flight),"), "in_flight"),
        (["SharedQueue", "MessageQueue"], ("        if not self.window:", "        if not self.output:"), "output"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_queue_uses_no_name_of_sessions(classes: list[str], planted: tuple[str, str], unknown: str) -> None:
    """Planted, and found: a use of a name that only a session has."""
    sources = {name: (_SESSIONS / _FILES[name]).read_text() for name in classes}
    assert _unknown(sources) == set()
    whole = sources[classes[0]]
    sources[classes[0]] = whole.replace(*planted)
    assert sources[classes[0]] != whole and _unknown(sources) == {unknown}


def _unknown(sources: dict[str, str]) -> set[str]:
    """Return the names that the first class uses and none of the classes defines."""
    found = [uses_and_makes(source, name) for name, source in sources.items()]
    return found[0][0] - {name for _, made in found for name in made}

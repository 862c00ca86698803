"""A wait ends with its event, or at the limit with a message that says what was missing."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from umqtt_testkit import virtual_time
from umqtt_testkit.waiting import WAIT_LIMIT_S, NotInTime, eventually, eventually_async

# The event loop of a test uses a pair of sockets, and nothing else.
pytestmark = pytest.mark.tier(0)


class OwnTime:
    """A clock that only sleep() advances. late_s: what the machine adds to each sleep."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 5000.0
        self.sleeps: list[float] = []
        self._late_s = late_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds + self._late_s


def in_virtual_time(scenario: Callable[[asyncio.AbstractEventLoop], Coroutine[object, object, None]]) -> None:
    async def run() -> None:
        await scenario(asyncio.get_running_loop())

    virtual_time.run(run())


def test_what_is_true_already_is_returned_without_a_pause():
    clock = OwnTime()
    assert eventually(lambda: [7], clock=clock) == [7]
    assert clock.sleeps == []


def test_what_becomes_true_is_returned_after_pauses_that_grow_to_a_limit():
    clock = OwnTime()
    answers = iter([None, 0, "", [], {}, False, None, None, None, "found"])
    assert eventually(lambda: next(answers), clock=clock) == "found"
    assert len(clock.sleeps) == 9
    assert clock.sleeps == sorted(clock.sleeps)
    assert 0 < clock.sleeps[0] < 0.01 and clock.sleeps[-1] <= 0.1


@pytest.mark.parametrize("late_s", [0.0, 0.5, 10 * WAIT_LIMIT_S])
def test_at_the_limit_the_condition_has_been_asked_once_more(late_s: float):
    """Planted: giving up by the clock alone, after a pause in which the machine stood still."""
    clock = OwnTime(late_s)
    began_s = clock.now_s
    asked: list[float] = []
    with pytest.raises(NotInTime):
        eventually(lambda: asked.append(clock.now_s), clock=clock)
    assert asked[-1] == clock.now_s > began_s + WAIT_LIMIT_S
    assert asked[-2] <= began_s + WAIT_LIMIT_S


@pytest.mark.parametrize(
    ("what", "said"),
    [("a line in the log", "a line in the log"), (lambda: "line 3 of 4", "line 3 of 4"), ("", "the condition")],
)
def test_the_message_names_the_limit_what_was_missing_and_the_last_answer(what: str | Callable[[], object], said: str):
    with pytest.raises(NotInTime) as caught:
        eventually(list, what, clock=OwnTime())
    assert str(caught.value) == f"not within {WAIT_LIMIT_S:g} s: {said} (last: [])"


def test_the_event_loop_runs_between_two_calls_of_an_asynchronous_condition():
    async def scenario(loop: asyncio.AbstractEventLoop) -> None:
        happened: list[float] = []
        loop.call_later(30, lambda: happened.append(loop.time()))
        began_s = loop.time()
        assert await eventually_async(lambda: happened) == [began_s + 30]
        assert loop.time() - began_s <= 30.1

    in_virtual_time(scenario)

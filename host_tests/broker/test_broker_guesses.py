"""One name guessed from very many addresses: few guesses are checked, and its owner still gets in."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from umqtt_broker.access.guesses import Guesses
from umqtt_broker.access.password_check import PasswordChecker
from umqtt_broker.access.passwords import PasswordHash
from umqtt_broker.protocol.packets import ACCEPTED, BAD_USER_NAME_OR_PASSWORD, SERVER_UNAVAILABLE
from umqtt_testkit.virtual_time import VirtualLoop, run

pytestmark = pytest.mark.tier(0)

OWNER = "198.51.100.7"


def fresh(number: int) -> str:
    """Return an address that no other number has."""
    return f"203.0.{number // 250}.{number % 250}"


def guess_from_fresh_addresses(guesses: Guesses, count: int, now: float = 0.0) -> int:
    """Guess for ada, each time from another address. Returns how many guesses were checked."""
    checked = 0
    for number in range(count):
        if not guesses.must_wait(fresh(number), b"ada", now):
            guesses.wrong(fresh(number), b"ada", now)
            checked += 1
    return checked


def test_a_name_is_guessed_once_a_second_from_however_many_addresses() -> None:
    # Planted: a name at its limit delays only addresses that were wrong before.
    guesses = Guesses()
    assert guess_from_fresh_addresses(guesses, 600) == 60
    for second in range(1, 30):
        assert guess_from_fresh_addresses(guesses, 50, second) == 1
    assert not guesses.must_wait(fresh(0), b"eve", 0.0)


def test_only_the_latest_addresses_that_were_right_go_on_and_only_for_that_name() -> None:
    # Planted: the first addresses are kept; they count for all names.
    guesses = Guesses()
    for number in range(20):
        guesses.right(f"198.51.100.{number}", b"ada")
        guesses.right(f"198.51.100.{number}", b"ada")
    guess_from_fresh_addresses(guesses, 100)
    waits = [guesses.must_wait(f"198.51.100.{number}", b"ada", 0.0) for number in range(20)]
    assert waits == [True] * 12 + [False] * 8
    for number in range(70):
        guesses.wrong(fresh(number), b"eve", 0.0)
    assert guesses.must_wait("198.51.100.19", b"eve", 0.0)


def test_an_address_that_was_right_may_not_guess_without_end() -> None:
    # Planted: an address that was right has no limit.
    guesses = Guesses()
    guesses.right(OWNER, b"ada")
    for _ in range(6):
        guesses.wrong(OWNER, b"ada", 0.0)
    assert guesses.must_wait(OWNER, b"ada", 0.5)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff:1:2:3", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
        ("/run/broker.sock", "/run/broker.sock", True),
        ("/run/a:b", "/run/a:c", False),
    ],
)
def test_addresses_that_one_machine_can_choose_among_count_as_one(one: str, other: str, is_same: bool) -> None:
    # Planted: addresses are compared as they are; all that are mapped from IPv4 count as one.
    guesses = Guesses()
    for number in range(60):
        guesses.wrong(one, b"user %d" % number, 0.0)
    assert guesses.must_wait(other, b"ada", 0.0) == is_same
    guesses = Guesses()
    guesses.right(one, b"ada")
    guess_from_fresh_addresses(guesses, 100)
    assert guesses.must_wait(other, b"ada", 0.0) != is_same


def test_guesses_that_begin_together_are_as_few_and_the_owner_gets_in() -> None:
    # Planted: passwords that are being checked are not counted; addresses that were right are forgotten at a reload; a
    # password that was right before is not noted with its address.
    users = {b"ada": PasswordHash.make(b"right", 1)}

    async def scenario() -> None:
        checker = PasswordChecker(users)
        try:
            assert await answer(checker, b"right", "192.0.2.99") == ACCEPTED
            assert await answer(checker, b"right", OWNER) == ACCEPTED
            checker.replace(users)
            begun = [checker.check(b"ada", b"%d" % number, fresh(number)) for number in range(500)]
            results = [one if isinstance(one, int) else await one for one in begun]
            assert results == [BAD_USER_NAME_OR_PASSWORD] * 60 + [SERVER_UNAVAILABLE] * 440
            # One may be forgotten by now: another guess takes its place, for a second.
            await answer(checker, b"wrong", fresh(1000))
            assert await answer(checker, b"right", "192.0.2.98") == SERVER_UNAVAILABLE
            for known in ("192.0.2.99", OWNER):
                assert await answer(checker, b"right", known) == ACCEPTED
                # Remembered from now on: from everywhere.
                assert await answer(checker, b"right", "192.0.2.97") == ACCEPTED
                checker.replace(users)
        finally:
            checker.close()

    async def answer(checker: PasswordChecker, password: bytes, address: str) -> int:
        result = checker.check(b"ada", password, address)
        return result if isinstance(result, int) else await result

    asyncio.run(scenario())


class Way(NamedTuple):
    """A way to guess: after the owner logged in; after others used up the limit of the name; so many guesses at once;
    without waiting for an answer that needs a hash."""

    owner_is_in: bool = False
    name_is_full: bool = False
    at_once: int = 1
    leaves: bool = False


WAYS = {
    "one at a time": Way(),
    "at once": Way(at_once=20),
    "the owner is in": Way(owner_is_in=True),
    "at once while the owner is in": Way(owner_is_in=True, at_once=20),
    "no answer is waited for while the owner is in": Way(owner_is_in=True, leaves=True),
    "a name at its limit": Way(name_is_full=True),
    "a name at its limit whose owner is in": Way(owner_is_in=True, name_is_full=True),
    "a name at its limit whose owner is in, at once": Way(owner_is_in=True, name_is_full=True, at_once=20),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_address_finds_a_password_only_among_the_few_that_it_may_try(way: str) -> None:
    """Of 60 guesses in 30 s, as few as the limits allow are answered, whichever of them is the right one.

    Planted: the cache of right passwords is asked before the limits; guesses that begin together are all answered; a
    guess counts only when its answer is sent; a guess that a name's limit refuses, though the right one would pass,
    does not count for its address.
    """
    found = [place for place in range(60) if is_found(place, WAYS[way])]
    # Five that cost no wait, the sixth, and one after each wait of 1, 2, 4 and 8 s.
    assert len(found) <= 10, found
    assert found or WAYS[way].name_is_full, "no guess was answered at all"


def is_found(place: int, way: Way) -> bool:
    """Guess 60 passwords in 30 s from one address. Returns whether the right one, at this place, was accepted."""
    right = b"guess %d" % place
    users = {b"ada": PasswordHash.make(right, 1)}
    accepted: list[bytes] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        checker = PasswordChecker(users)

        def check(password: bytes, address: str) -> int | asyncio.Future[int]:
            return checker.check(b"ada", password, address)

        async def answer(result: int | asyncio.Future[int], leaves: bool = False) -> int:
            if not isinstance(result, int) and leaves:
                result.cancel()
                await asyncio.sleep(0)
                return SERVER_UNAVAILABLE
            return result if isinstance(result, int) else await result

        try:
            if way.owner_is_in:
                assert await answer(check(right, OWNER)) == ACCEPTED
            for number in range(60 if way.name_is_full else 0):
                await answer(check(b"wrong", fresh(number)))
            for first in range(0, 60, way.at_once):
                guesses = [b"guess %d" % number for number in range(first, first + way.at_once)]
                begun = [check(guess, "192.0.2.66") for guess in guesses]
                answers = [await answer(result, way.leaves) for result in begun]
                accepted.extend(guess for guess, code in zip(guesses, answers, strict=True) if code == ACCEPTED)
                loop.now += 0.5 * way.at_once
        finally:
            checker.close()

    run(scenario())
    return right in accepted

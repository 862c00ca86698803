"""Under a client_id_pattern with %u, the clients of two users never have the same identifier."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from umqtt_broker import ConfigError, FilePermission
from umqtt_broker.access.client_id_pattern import ClientIdPattern
from umqtt_broker.access.passwords import PasswordFile, PasswordHash

pytestmark = pytest.mark.tier(0)

TOKENS = ("%u", "%u", "*", "*", "?", "-", "a", "[!-]")
SHORT = ["".join(letters) for size in range(1, 6) for letters in itertools.product("ab-", repeat=size)]


def refusal(pattern: str, *usernames: str) -> str:
    """Return why a pattern is refused for these users; "" if it is not."""
    try:
        ClientIdPattern(pattern).check(name.encode() for name in usernames)
    except ConfigError as error:
        return str(error)
    return ""


def candidates(pattern: str, users: tuple[str, str]) -> list[str]:
    """Return identifiers that two users might share: all short ones, and those with one user's name in a * of the
    other's."""
    found = list(SHORT)
    plain = pattern.replace("[!-]", "a").replace("?", "a")
    names = [name for user in users for name in (user, user[1:], user[:-1], f"-{user}")]
    inserts = ["", "a", "-", *names, *(plain.replace("*", "").replace("%u", user) for user in users)]
    for user in users:
        parts = [part.replace("%u", user) for part in plain.split("*")]
        for chosen in itertools.product(inserts, repeat=min(len(parts) - 1, 3)):
            rest = [*chosen, *[""] * (len(parts) - 1 - len(chosen))]
            found.append("".join(itertools.chain.from_iterable(zip(parts, [*rest, ""], strict=True))))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_pattern_is_refused_exactly_when_two_users_can_have_the_same_identifier(seed: int) -> None:
    """Planted: only names of which one begins with the other are compared, also where * comes before %u; the rest of a
    pattern behind the shorter name is taken for different without a look."""
    chance = random.Random(seed)
    for _ in range(8):
        pattern = "".join(chance.choice(TOKENS) for _ in range(chance.randrange(1, 6)))
        if "%u" not in pattern:
            continue
        names = ["".join(chance.choice("ab-*") for _ in range(chance.randrange(1, 4))) for _ in range(2)]
        if names[0] == names[1]:
            continue
        users = (names[0], names[1])
        rule = ClientIdPattern(pattern)
        shared = [
            one for one in candidates(pattern, users) if all(rule.allows(one.encode(), user.encode()) for user in users)
        ]
        assert bool(refusal(pattern, *users)) == bool(shared), (seed, pattern, users, shared[:3])


@pytest.mark.parametrize(
    ("pattern", "named"),
    [("%u-*", "pump and pump-7"), ("%u*", "pump and pump-7"), ("*-%u", "7 and pump-7"), ("*%u*", " and "),
     ("[%u]", "outside"), ("%u", ""), ("%u:*", ""), ("x-%u", ""), ("%u?", ""), ("pump-*", ""), ("", "")],
)  # fmt: skip
def test_the_pair_is_named_at_the_start(tmp_path: Path, pattern: str, named: str) -> None:
    """Planted: the pattern is looked at without the users."""
    passwords = PasswordFile(tmp_path / "passwords")
    for name in (b"pump-7", b"7", b"valve", b"pump"):
        passwords.set(name, PasswordHash.make(b"secret", 1))
    passwords.write()
    if not named:
        FilePermission(str(passwords.path), client_id_pattern=pattern)
        return
    with pytest.raises(ConfigError, match="client_id_pattern .*" + named):
        FilePermission(str(passwords.path), client_id_pattern=pattern)


def test_a_user_that_is_added_is_checked_at_the_reload_and_so_are_those_of_the_acl(tmp_path: Path) -> None:
    passwords = PasswordFile(tmp_path / "passwords")
    passwords.set(b"pump", PasswordHash.make(b"secret", 1))
    passwords.write()
    rules = tmp_path / "acl"
    rules.write_text("user valve\ntopic read a\n")
    permission = FilePermission(str(passwords.path), str(rules), client_id_pattern="%u-*")
    passwords.set(b"pump-7", PasswordHash.make(b"secret", 1))
    passwords.write()
    with pytest.raises(ConfigError, match="users pump and pump-7"):
        permission.prepare_reload()
    rules.write_text("user valve\ntopic read a\nuser valve-2\ntopic read a\n")
    with pytest.raises(ConfigError, match="can have the same"):
        permission.prepare_reload()


def test_a_large_fleet_is_checked_without_comparing_all_pairs() -> None:
    """100,000 users, among them one whose name begins all others. Planted: each pair is compared."""
    names = ["pump", *(f"pump-{number}" for number in range(100_000))]
    assert refusal("%u:*", *names) == "" and "pump and pump-0" in refusal("%u-*", *names)
    assert refusal("*:%u", *(name[::-1] for name in names)) == ""

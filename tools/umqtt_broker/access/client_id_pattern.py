"""client_id_pattern: which identifiers the clients of a user may have, and whether two users can have the same one."""

import itertools
import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from glob import escape
from typing import NamedTuple

from ..errors import ConfigError

# A pattern's tokens: %u, *, ?, a set such as [0-9], or a single character.
_TOKEN = re.compile(r"(?P<user>%u)|(?P<many>\*)|(?P<any>\?)|(?P<set>\[!?\]?[^\]]*\])|(?P<char>.)", re.DOTALL)


class _Token(NamedTuple):
    """kind: a group of _TOKEN. text: as it stands in the pattern."""

    kind: str
    text: str


class ClientIdPattern:
    """A pattern of client identifiers: `*`, `?`, `[...]` as in file names, %u for the user name; "" for any."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._tokens = [_Token(found.lastgroup or "", found[0]) for found in _TOKEN.finditer(pattern)]

    def allows(self, client_id: bytes, username: bytes | None) -> bool:
        """Return True if a client of this user may have this identifier. username: None for a client without one."""
        pattern = self._pattern
        if not pattern:
            return True
        if "%u" in pattern:
            if username is None:
                return False
            pattern = pattern.replace("%u", escape(_text(username)))
        return re.match(translate(pattern), _text(client_id)) is not None

    def check(self, usernames: Iterable[bytes]) -> None:
        """Raise ConfigError if clients of two of these users can have the same identifier.

        Such a client could take over the session of the other user's. A pattern without %u does not keep users apart,
        and is not checked.
        """
        if "%u" not in self._pattern:
            return
        if any(token.kind == "set" and "%u" in token.text for token in self._tokens):
            raise ConfigError(f"client_id_pattern {self._pattern} has %u between [ and ] — write it outside")
        for one, other in self._meeting(sorted(map(_text, usernames))):
            raise ConfigError(
                f"client_id_pattern {self._pattern}: clients of the users {one} and {other} can have the same "
                "identifier, and with it take over each other's session — write %u, or %u:* (no user name in a "
                "password file has a colon)"
            )

    def _meeting(self, names: list[str]) -> Iterator[tuple[str, str]]:
        """Yield the pairs of users whose identifiers can be the same. names: sorted."""
        tokens = self._tokens
        if _comes_first(tokens, "many", "user"):
            if _comes_first(tokens[::-1], "many", "user"):
                # With * on both sides, the name of one user can stand in what * means for the other.
                yield from itertools.pairwise(names)
                return
            # The end of an identifier tells the user: the same the other way round.
            tokens, names = tokens[::-1], sorted(name[::-1] for name in names)
            turned = True
        else:
            turned = False
        # The identifiers of two users differ at the first character in which the names differ. So only a name that
        # begins with another one can meet it; sorted, it follows that one closely.
        behind = _text_behind_user(tokens)
        beginnings: list[str] = []
        for name in names:
            while beginnings and not name.startswith(beginnings[-1]):
                beginnings.pop()
            for shorter in beginnings:
                rest = name[len(shorter) :]
                # Most pairs differ here already.
                if not rest.startswith(behind) and not behind.startswith(rest):
                    continue
                if _meet(_for_user(tokens, shorter), _for_user(tokens, name)):
                    yield (shorter[::-1], name[::-1]) if turned else (shorter, name)
            beginnings.append(name)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _comes_first(tokens: list[_Token], kind: str, other: str) -> bool:
    return next(token.kind for token in tokens if token.kind in (kind, other)) == kind


def _text_behind_user(tokens: list[_Token]) -> str:
    """Return the text that surely follows the first %u, with a line end if nothing else can follow it."""
    at = next(at for at, token in enumerate(tokens) if token.kind == "user") + 1
    chars = list(itertools.takewhile(lambda token: token.kind == "char", tokens[at:]))
    return "".join(token.text for token in chars) + ("\n" if at + len(chars) == len(tokens) else "")


def _for_user(tokens: list[_Token], name: str) -> list[_Token]:
    """Return the tokens for one user."""
    letters = [_Token("char", char) for char in name]
    return [one for token in tokens for one in (letters if token.kind == "user" else [token])]


def _meet(one: list[_Token], other: list[_Token]) -> bool:
    """Return True if some text matches both patterns."""
    start = 0
    while start < min(len(one), len(other)) and "many" not in (one[start].kind, other[start].kind):
        if not _can_be_same(one[start], other[start]):
            return False
        start += 1
    # For each place in `one`, whether what follows it and what follows the current place in `other` can be the same.
    below = [False] * (len(one) + 1)
    for j in range(len(other), start - 1, -1):
        row = [False] * (len(one) + 1)
        for i in range(len(one), start - 1, -1):
            at_one, at_other = i < len(one), j < len(other)
            if (at_one and one[i].kind == "many") or (at_other and other[j].kind == "many"):
                # It stands for nothing more, or for one more character of the other text.
                row[i] = (at_one and row[i + 1]) or (at_other and below[i])
            elif at_one and at_other:
                row[i] = below[i + 1] and _can_be_same(one[i], other[j])
            else:
                row[i] = not at_one and not at_other
        below = row
    return below[start]


def _can_be_same(one: _Token, other: _Token) -> bool:
    """Return True if some character matches both tokens; of two sets this is assumed."""
    if "any" in (one.kind, other.kind) or one.kind == other.kind == "set":
        return True
    if one.kind == other.kind:
        return one.text == other.text
    char, chars = (one, other) if one.kind == "char" else (other, one)
    return re.match(translate(chars.text), char.text) is not None

"""Access control lists: what clients may publish and read, with the syntax and meaning of mosquitto's acl_file.

    topic read weather/#            # until the first `user`: for clients without a user name
    user ada
    topic readwrite home/#
    topic deny home/safe/#
    pattern write fleet/%c/telemetry

The order of lines matters only in one way: a `topic` line belongs to the `user` line above it. An access is decided in
two steps. First, by the section of the client's user name; for a client without a user name, by the lines before the
first `user`. A matching `deny` refuses; otherwise a matching grant allows. Second, if no line of the section matches,
by the patterns, in the same way, for every client: %c is its client identifier, %u its user name. What no line allows
is refused. No client may publish to topics that begin with $SYS; names that begin with $share are not topics.

Patterns do not apply to a client whose client identifier or user name contains + or #: only its section can allow
something. Unlike in mosquitto, the same holds for a name that contains /, if a pattern has a placeholder for that name:
the client `pump-7/cmd` could otherwise reach what the pattern fleet/%c means for `pump-7`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakSet, WeakValueDictionary

from ..errors import ConfigError
from ..protocol.packets import SUBSCRIPTION_FAILURE
from ..protocol.topic_filters import Effort, Levels, TooHard, intersection, is_covered, matches, split
from ..protocol.topics import MAX_LENGTH, MAX_REMEMBERED, has_wildcard, is_topic_filter, is_topic_name
from .permission import Rights

# The access that a rule grants, as bits; DENY refuses any access.
DENY = 0
READ = 1
WRITE = 2

_ACCESS = {b"read": READ, b"write": WRITE, b"readwrite": READ | WRITE, b"deny": DENY}
_PLACE = re.compile(rb"%[cu]")
_WILDCARD = re.compile(rb"[+#]")

# Decisions kept in the cache: for one client, and for all clients together. A full cache is emptied: a client that
# publishes to ever new topics slows the broker down only for itself, and does not fill the memory.
_MAX_ANSWERS = 1024
_MAX_ANSWERS_TOTAL = 262_144

# Steps that the check of one subscription may take: about 2 ms.
_EFFORT = 10_000


class Rule(NamedTuple):
    """One line of the file: an access and a topic filter, which contains %c or %u in a pattern."""

    access: int
    topic_filter: bytes


class Acl:
    """The rules of one file. They never change: a reload makes a new Acl with new rights."""

    def __init__(self, sections: dict[bytes | None, list[Rule]], patterns: list[Rule]) -> None:
        self._sections = {username: _compile(rules) for username, rules in sections.items()}
        self._patterns = patterns
        # Rights that depend on the user name alone are shared by all its clients.
        self._uses_client_id = any(b"%c" in rule.topic_filter for rule in patterns)
        self._shared: WeakValueDictionary[bytes | None, AclRights] = WeakValueDictionary()
        self._alive: WeakSet[AclRights] = WeakSet()
        self._answers = 0

    @property
    def usernames(self) -> set[bytes]:
        """The users that have rules of their own."""
        return {username for username in self._sections if username is not None}

    @property
    def names_users(self) -> bool:
        """True if some rule depends on the user name."""
        return any(username is not None for username in self._sections) or any(
            b"%u" in rule.topic_filter for rule in self._patterns
        )

    def reaches(self, mount: bytes) -> bool:
        """Tell whether some rule may allow something behind a mount point that ends with /."""
        below = split(mount + b"#")
        granted = [levels for rules in self._sections.values() for levels in rules.read + rules.write]
        # A placeholder stands for any name.
        granted += [
            tuple(b"+" if _PLACE.search(level) else level for level in split(rule.topic_filter))
            for rule in self._patterns
            if rule.access != DENY
        ]
        return any(intersection(below, levels) is not None for levels in granted)

    def rights(self, client_id: bytes, username: bytes | None) -> "AclRights":
        """Return the rights of a client. An empty user name counts as none, as in mosquitto."""
        username = username or None
        is_shared = not self._patterns or not (self._uses_client_id or _WILDCARD.search(client_id))
        rights = self._shared.get(username) if is_shared else None
        if rights is None:
            section = self._sections.get(username) or _NO_RULES
            rights = AclRights(self, section, client_id, username)
            self._alive.add(rights)
            if is_shared:
                self._shared[username] = rights
        return rights

    def substitute(self, client_id: bytes, username: bytes | None) -> list[Rule]:
        """Return the patterns with one client's names filled in; no rules if its names are dangerous."""
        if not self._patterns or _WILDCARD.search(client_id) or _WILDCARD.search(username or b""):
            return []
        names = {b"%c": client_id, b"%u": username}
        rules: list[Rule] = []
        for access, pattern in self._patterns:
            places = {names[place] for place in _PLACE.findall(pattern)}
            if any(b"/" in (name or b"") for name in places):
                return []
            # A pattern with %u says nothing about clients without a user name, not even as a deny.
            if None not in places:
                rules.append(Rule(access, _PLACE.sub(lambda place: names[place[0]] or b"", pattern)))
        return rules

    def remembered(self) -> bool:
        """Count one more cached decision. If there are too many, forget them all and return False."""
        self._answers += 1
        if self._answers < _MAX_ANSWERS_TOTAL:
            return True
        for rights in self._alive:
            rights.forget()
        self._answers = 0
        return False


class _Rules(NamedTuple):
    """Filters by the access of their rules, in the order of evaluation: deny first."""

    deny: tuple[Levels, ...]
    read: tuple[Levels, ...]
    write: tuple[Levels, ...]


_NO_RULES = _Rules((), (), ())


def _compile(rules: Iterable[Rule]) -> _Rules:
    rules = list(rules)
    return _Rules(
        *(
            tuple(dict.fromkeys(split(rule.topic_filter) for rule in rules if wanted(rule.access)))
            for wanted in (lambda access: access == DENY, lambda access: access & READ, lambda access: access & WRITE)
        )
    )


class AclRights(Rights):
    """The rights that an Acl gives a client."""

    __slots__ = ("__weakref__", "_acl", "_client_id", "_may_publish", "_may_read", "_patterns", "_section", "_username")

    def __init__(self, acl: Acl, section: _Rules, client_id: bytes, username: bytes | None) -> None:
        self._acl = acl
        self._section = section
        self._client_id = client_id
        self._username = username
        self._patterns: _Rules | None = None
        self._may_publish: dict[bytes, bool] = {}
        self._may_read: dict[bytes, bool] = {}

    def may_publish(self, topic_name: bytes) -> bool:
        """Return True if the client may publish to `topic_name`.

        Also True for an invalid topic name, which closes the connection later.
        """
        allowed = self._may_publish.get(topic_name)
        if allowed is None:
            if not is_topic_name(topic_name):
                return True
            allowed = not topic_name.startswith((b"$SYS", b"$share")) and self._decide(WRITE, topic_name)
            self._remember(self._may_publish, topic_name, allowed)
        return allowed

    def may_read(self, topic_name: bytes) -> bool:
        """Return True if the client may receive messages of `topic_name`."""
        allowed = self._may_read.get(topic_name)
        if allowed is None:
            allowed = not topic_name.startswith(b"$share") and self._decide(READ, topic_name)
            self._remember(self._may_read, topic_name, allowed)
        return allowed

    def grant(self, topic_filter: bytes, qos: int) -> int:
        """Return `qos`, or 0x80 if there is no topic name that the filter matches and the client may read.

        For a shared subscription, $share/GROUP/FILTER, only FILTER counts. A filter whose check takes too long is
        granted: may_read() decides about its messages anyway.
        """
        if topic_filter.startswith(b"$share/"):
            topic_filter = topic_filter.partition(b"/")[2].partition(b"/")[2]
            if not is_topic_filter(topic_filter):
                return SUBSCRIPTION_FAILURE
        elif topic_filter.startswith(b"$share"):
            return SUBSCRIPTION_FAILURE
        if not has_wildcard(topic_filter):
            return qos if self._decide(READ, topic_filter) else SUBSCRIPTION_FAILURE
        wanted, effort = split(topic_filter), Effort(_EFFORT)
        section, patterns = self._section, self._own_rules()
        try:
            readable = _some_escape(wanted, section.read, section.deny, effort) or _some_escape(
                wanted, patterns.read, section.deny + patterns.deny, effort
            )
        except TooHard:
            return qos
        return qos if readable else SUBSCRIPTION_FAILURE

    def forget(self) -> None:
        """Forget the cached decisions."""
        self._may_publish.clear()
        self._may_read.clear()

    def _decide(self, access: int, topic_name: bytes) -> bool:
        levels = split(topic_name)
        for rules in (self._section, self._own_rules()):
            if any(matches(denied, levels) for denied in rules.deny):
                return False
            if any(matches(allowed, levels) for allowed in (rules.read if access == READ else rules.write)):
                return True
        return False

    def _own_rules(self) -> _Rules:
        """Return the patterns' rules for this client, made at the first use, because many clients connect at once."""
        if self._patterns is None:
            self._patterns = _compile(self._acl.substitute(self._client_id, self._username))
        return self._patterns

    def _remember(self, answers: dict[bytes, bool], topic_name: bytes, allowed: bool) -> None:
        if len(topic_name) > MAX_REMEMBERED or not self._acl.remembered():
            return
        if len(answers) >= _MAX_ANSWERS:
            answers.clear()
        answers[topic_name] = allowed


def _some_escape(wanted: Levels, allowed: Iterable[Levels], denied: tuple[Levels, ...], effort: Effort) -> bool:
    """Tell whether some topic name is matched by `wanted` and one of `allowed`, but by none of `denied`."""
    for topic_filter in allowed:
        common = intersection(wanted, topic_filter)
        if common is not None and not is_covered(common, denied, effort):
            return True
    return False


def read_acl(path: str | Path) -> Acl:
    """Read an acl_file. Raises ConfigError that names the file and the line."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the acl_file ({error.strerror}) — check acl_file") from error
    return parse_acl(text, str(path))


def parse_acl(text: bytes, path: str) -> Acl:
    """Parse the text of an acl_file. Raises ConfigError that names `path` and the line."""
    sections: dict[bytes | None, list[Rule]] = {None: []}
    patterns: list[Rule] = []
    section = sections[None]
    for number, line in enumerate(text.split(b"\n"), 1):
        line = line.rstrip()
        if not line or line.startswith(b"#"):
            continue
        keyword, _, rest = line.lstrip(b" ").partition(b" ")
        rest = rest.strip()
        if keyword == b"user":
            if not rest:
                raise ConfigError(f"{path}:{number}: user without a name — write: user NAME")
            section = sections.setdefault(rest, [])
        elif keyword in (b"topic", b"pattern"):
            (section if keyword == b"topic" else patterns).append(_rule(rest, f"{path}:{number}"))
        else:
            shown = keyword.decode(errors="replace")
            raise ConfigError(f"{path}:{number}: unknown word {shown!r} — a line begins with user, topic, pattern or #")
    return Acl(sections, patterns)


def _rule(text: bytes, where: str) -> Rule:
    """Parse what follows `topic` or `pattern`: an access and a filter, or a filter alone. Raises ConfigError."""
    word, _, rest = text.partition(b" ")
    access = READ | WRITE
    topic_filter = text
    if rest:
        if word not in _ACCESS:
            shown = word.decode(errors="replace")
            raise ConfigError(
                f"{where}: unknown access {shown!r} — read, write, readwrite or deny, before a filter with a blank too"
            )
        access, topic_filter = _ACCESS[word], rest.strip()
    if not topic_filter:
        raise ConfigError(f"{where}: no topic filter — write: topic read some/topic/#")
    if len(topic_filter) > MAX_LENGTH or not is_topic_filter(topic_filter):
        shown = topic_filter.decode(errors="replace")
        raise ConfigError(f"{where}: {shown!r} is no topic filter — + and # fill a whole level, # only the last")
    return Rule(access, topic_filter)

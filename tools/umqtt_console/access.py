"""Who may see and do what: users with roles, sessions, and which requests are accepted at all.

Without a users file everybody at this computer may do everything, and the console listens on loopback alone. With one,
each line is `NAME:ROLE:HASH` (argon2id). A session is a cookie; a request that changes something must also carry the
session's token in a header, which a page of another site cannot know.
"""

import asyncio
import getpass
import hmac
import os
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from umqtt_page import HEADERS

from spark_ingest.durable import replace_file

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ROLES = ("read", "operate", "admin")
"""Each role may do what the ones before it may."""
TOKEN_HEADER = "X-Umqtt-Token"
COOKIE = "umqtt_session"
SHORTEST_PASSWORD = 10
_SESSION_S = 12 * 3600
_MOST_SESSIONS = 1000
# Hashing is made slow on purpose: two at once, and for a name that failed often a pause.
_HASHES_AT_ONCE = 2
_FREE_FAILURES = 5
_PAUSE_S = 30.0
_MOST_NAMES = 1000
_LONGEST_NAME = 64


class UsersWrong(Exception):
    """The users file cannot be used. The text says where, why, and what to do."""


class LoginRefused(Exception):
    """Name or password are wrong, or were too often."""


@dataclass(frozen=True)
class User:
    """Who asks. role: one of ROLES."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Return whether the user's role includes another."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass
class Session:
    """A login. token: what a request that changes something must carry; until: when it ends, monotonic seconds."""

    user: User
    token: str
    until: float


def read_users(path: Path) -> dict[str, tuple[str, str]]:
    """Return role and hash by name.

    :raises UsersWrong: the file cannot be read, others may read it, or a line is wrong.
    """
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsersWrong(f"{path} holds hashes of passwords and others may read it: chmod 600 {path}")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise UsersWrong(f"{path}: {error.strerror}; make it: umqtt console --users {path} --add-user NAME") from error
    except UnicodeDecodeError as error:
        raise UsersWrong(f"{path} is not UTF-8") from error
    found: dict[str, tuple[str, str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, role, hashed = (*line.split(":", 2), "", "")[:3]
        if not _is_name(name) or role not in ROLES or not hashed.startswith("$argon2id$"):
            raise UsersWrong(f"{path}: line {number} must be NAME:{'|'.join(ROLES)}:HASH; make it with --add-user")
        if name in found:
            raise UsersWrong(f"{path}: line {number}: {name} is listed twice")
        found[name] = role, hashed
    if not found:
        raise UsersWrong(f"{path} has no user: umqtt console --users {path} --add-user NAME")
    return found


def add_user(path: Path, name: str, role: str, password: str) -> None:
    """Add a user to the file, or replace the user's line.

    :raises UsersWrong: the name or the password cannot be, or the file is wrong.
    """
    if not _is_name(name):
        raise UsersWrong(f"a name is 1 to {_LONGEST_NAME} characters that print, without a colon")
    if len(password) < SHORTEST_PASSWORD:
        raise UsersWrong(f"the password has {len(password)} characters: give at least {SHORTEST_PASSWORD}")
    kept = [line for line in _lines(path) if line.partition(":")[0] != name]
    kept.append(f"{name}:{role}:{PasswordHasher().hash(password)}")
    old = os.umask(0o077)
    try:
        replace_file(path, ("\n".join(kept) + "\n").encode())
    except OSError as error:
        raise UsersWrong(f"{path}: {error.strerror}") from error
    finally:
        os.umask(old)


def ask_password(name: str) -> str:
    """Ask for a new password twice on the terminal.

    :raises UsersWrong: the two differ.
    """
    password = getpass.getpass(f"New password of {name}: ")
    if getpass.getpass("Again: ") != password:
        raise UsersWrong("the two passwords differ")
    return password


def _lines(path: Path) -> list[str]:
    try:
        read_users(path)
    except UsersWrong:
        if path.exists() and path.stat().st_size:
            raise
        return []
    return path.read_text("utf-8").splitlines()


def _is_name(name: str) -> bool:
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and ":" not in name and not name.startswith("#")


class Access:
    """Decides which requests are accepted, and who asks.

    :param users: the users file; None: whoever reaches the console may do everything.
    :param secure: it is served by TLS.
    :param hosts: values of the Host header that are accepted; None: any, for a console behind a name of its own.
    """

    def __init__(self, users: Path | None, hosts: frozenset[str] | None, *, secure: bool) -> None:
        self._path = users
        self._users = read_users(users) if users else {}
        self._read_at = users.stat().st_mtime_ns if users else 0
        self._hosts = hosts
        self._secure = secure
        self._hasher = PasswordHasher()
        # Checked for names that do not exist, so that these take as long.
        self._nobody = self._hasher.hash(secrets.token_hex(16)) if users else ""
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._local = Session(User(_local_name(), "admin"), secrets.token_urlsafe(32), float("inf"))

    @property
    def needs_login(self) -> bool:
        """Whether users log in."""
        return self._path is not None

    def session(self, request: web.Request) -> Session | None:
        """Return the session of a request."""
        if not self.needs_login:
            return self._local
        key = request.cookies.get(COOKIE, "")
        found = self._sessions.get(key)
        if found is None:
            return None
        if found.until < time.monotonic():
            del self._sessions[key]
            return None
        return found

    async def login(self, name: str, password: str) -> tuple[str, Session]:
        """Start a session; return its cookie.

        :raises LoginRefused: name or password are wrong, or were too often.
        """
        self._reread()
        failures, since = self._failures.get(name, (0, 0.0))
        left = since + _PAUSE_S - time.monotonic()
        if failures >= _FREE_FAILURES and left > 0:
            raise LoginRefused(f"too many wrong passwords for this name: try again in {left:.0f} s")
        role, hashed = self._users.get(name, ("", self._nobody))
        async with self._hashing:
            is_right = await asyncio.to_thread(self._verify, hashed, password)
        if not is_right or not role:
            self._failures[name] = failures + 1, time.monotonic()
            self._failures.move_to_end(name)
            while len(self._failures) > _MOST_NAMES:
                self._failures.popitem(last=False)
            raise LoginRefused("name or password are wrong")
        self._failures.pop(name, None)
        key = secrets.token_urlsafe(32)
        made = Session(User(name, role), secrets.token_urlsafe(32), time.monotonic() + _SESSION_S)
        self._sessions[key] = made
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return key, made

    def set_cookie(self, response: web.Response, key: str) -> None:
        """Give the browser the session's cookie; "" takes it away."""
        options = {"httponly": True, "samesite": "Strict", "path": "/", "secure": self._secure}
        response.set_cookie(COOKIE, key, max_age=_SESSION_S if key else 0, **options)

    def logout(self, request: web.Request) -> None:
        """End the session of a request."""
        self._sessions.pop(request.cookies.get(COOKIE, ""), None)

    def refusal(self, request: web.Request, role: str) -> tuple[int, str] | None:
        """Return status and reason if a request is refused. role: what it needs; "": nothing, as the page's files."""
        headers = request.headers
        if headers.getall("Host", []) != [request.host] or (
            self._hosts and urlsplit(f"//{request.host}").hostname not in self._hosts
        ):
            return 421, "this Host is not served here: use the address that umqtt console prints"
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
            return 403, "requests from pages of other origins are refused"
        if role and headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return 403, "requests from pages of other origins are refused"
        if not role:
            return None
        session = self.session(request)
        if session is None:
            return 401, "log in"
        if request.method not in ("GET", "HEAD"):
            given = headers.get(TOKEN_HEADER, "")
            if not hmac.compare_digest(given.encode(errors="replace"), session.token.encode()):
                return 403, f"the header {TOKEN_HEADER} is wrong or missing: GET /api/me has it"
        if not session.user.may(role):
            return 403, f"{session.user.name} has the role {session.user.role}, and this needs {role}"
        return None

    def protect(self, response: web.StreamResponse) -> None:
        """Give a response the headers that all have."""
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if self._secure:
            response.headers.setdefault("Strict-Transport-Security", "max-age=31536000")

    def _verify(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (VerificationError, InvalidHashError):
            return False

    def _reread(self) -> None:
        """Read the file again if it has changed; sessions of users that are gone or have another role end."""
        if self._path is None:
            return
        try:
            changed_at = self._path.stat().st_mtime_ns
            if changed_at != self._read_at:
                self._users, self._read_at = read_users(self._path), changed_at
        except (OSError, UsersWrong) as error:
            raise LoginRefused(f"nobody can log in: {error}") from error
        for key, session in list(self._sessions.items()):
            if self._users.get(session.user.name, ("",))[0] != session.user.role:
                del self._sessions[key]


def _local_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "local"

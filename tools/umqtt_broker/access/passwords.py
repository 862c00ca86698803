"""Passwords in the format of mosquitto_passwd: one user per line, `NAME:$7$ITERATIONS$SALT$HASH`.

$7$ is PBKDF2-HMAC-SHA512. $6$, which has no iterations, is one round of salted SHA-512; it is read, never written. Salt
and hash are in base64. Blank lines and lines that begin with # are comments, and are kept.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

# OWASP's recommendation for PBKDF2-HMAC-SHA512 and passwords chosen by people: about 0.1 s.
ITERATIONS_CHOSEN = 210_000
# For generate_password(): 120 random bits cannot be guessed, however cheap each guess is; and a fleet that reconnects
# at once is checked in a second.
ITERATIONS_RANDOM = 1_000

# Bytes. mosquitto before 2.1 reads no other size of salt.
_SALT_SIZE = 12
_HASH_SIZE = 64
_MAX_ITERATIONS = 100_000_000

# Bytes of the longest name and password that a CONNECT can carry.
_MAX_SIZE = 65535


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """The stored hash of a password. iterations: of PBKDF2; 0 for the salted SHA-512 of the older format, $6$."""

    iterations: int
    salt: bytes
    digest: bytes

    @classmethod
    def make(cls, password: bytes, iterations: int = ITERATIONS_CHOSEN) -> "PasswordHash":
        """Hash a password with a new salt. Takes about 0.5 µs for each iteration."""
        salt = os.urandom(_SALT_SIZE)
        return cls(iterations, salt, hashlib.pbkdf2_hmac("sha512", password, salt, iterations))

    @classmethod
    def parse(cls, text: bytes) -> "PasswordHash":
        """Parse what follows `NAME:` in a line. Raises ValueError that says what is wrong with it."""
        if text.startswith(b"SCRAM-"):
            raise ValueError("SCRAM is not supported any more — set a new password with: umqtt passwd")
        if not text.startswith(b"$"):
            raise ValueError("the password is not hashed — run: mosquitto_passwd -U FILE")
        parts = text.split(b"$")
        if parts[1] not in (b"6", b"7"):
            kind = parts[1].decode(errors="replace")
            raise ValueError(f"passwords hashed by {kind!r} are not supported — set a new one with: umqtt passwd")
        if len(parts) != (5 if parts[1] == b"7" else 4):
            raise ValueError("the hash is cut short or too long — set a new one with: umqtt passwd")
        iterations = 0
        if parts[1] == b"7":
            if not parts[2].isdigit() or not 1 <= int(parts[2]) <= _MAX_ITERATIONS:
                raise ValueError(f"iterations are not between 1 and {_MAX_ITERATIONS:,}")
            iterations = int(parts[2])
        try:
            salt, digest = (base64.b64decode(part, validate=True) for part in parts[-2:])
        except binascii.Error:
            raise ValueError("salt or hash is not base64 — set a new one with: umqtt passwd") from None
        if not salt or len(digest) != _HASH_SIZE:
            raise ValueError("salt or hash has the wrong size — set a new one with: umqtt passwd")
        return cls(iterations, salt, digest)

    def encode(self) -> bytes:
        """Return what follows `NAME:` in a line."""
        kind = b"$7$%d" % self.iterations if self.iterations else b"$6"
        return b"$".join((kind, base64.b64encode(self.salt), base64.b64encode(self.digest)))

    def verify(self, password: bytes) -> bool:
        """Return True if this is the password. Other threads run while it computes."""
        if self.iterations:
            digest = hashlib.pbkdf2_hmac("sha512", password, self.salt, self.iterations)
        else:
            digest = hashlib.sha512(password + self.salt).digest()
        return hmac.compare_digest(digest, self.digest)


def generate_password() -> str:
    """Return a new password of 120 random bits."""
    return secrets.token_urlsafe(15)


def check_username(username: bytes) -> None:
    """Raise ValueError if a password file cannot contain this user name."""
    if not username or len(username) > _MAX_SIZE:
        raise ValueError("a user name has 1 to 65,535 bytes")
    if username != username.strip() or username.startswith(b"#"):
        raise ValueError("a user name does not begin or end with a blank, or begin with #")
    if any(byte in b":\r\n\0" for byte in username):
        raise ValueError("a user name holds no colon and no line break")


def check_password(password: bytes) -> None:
    """Raise ValueError if no client could send this password, or mosquitto would read only a part of it."""
    if not password or len(password) > _MAX_SIZE:
        raise ValueError("a password has 1 to 65,535 bytes")
    if b"\0" in password:
        raise ValueError("a password holds no NUL")


class PasswordFile:
    """A password file. write() keeps its comments and the order of its lines.

    users: the hash of each user by name.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.users: dict[bytes, PasswordHash] = {}
        self._lines: list[bytes] = []
        self._line_of: dict[bytes, int] = {}

    @classmethod
    def read(cls, path: str | Path) -> "PasswordFile":
        """Read a file. Raises ConfigError that names the file and the line."""
        file = cls(path)
        try:
            file._lines = file.path.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot read the password file ({error.strerror}) — check password_file"
            ) from error
        if not file._lines[-1]:
            del file._lines[-1]
        for index, line in enumerate(file._lines):
            if line.strip() and not line.startswith(b"#"):
                file._read_line(index, line)
        return file

    def _read_line(self, index: int, line: bytes) -> None:
        where = f"{self.path}:{index + 1}"
        username, colon, text = line.partition(b":")
        username = username.strip()
        # Never show the line: it may contain the password by mistake.
        if not colon:
            raise ConfigError(f"{where}: no colon behind the user name — a line is NAME:HASH, made by umqtt passwd")
        shown = username.decode(errors="replace")
        try:
            check_username(username)
            stored = PasswordHash.parse(text.strip())
        except ValueError as error:
            raise ConfigError(f"{where}: user {shown!r}: {error}") from error
        if username in self.users:
            raise ConfigError(f"{where}: user {shown!r} is in line {self._line_of[username] + 1} too — remove one")
        self.users[username] = stored
        self._line_of[username] = index

    def set(self, username: bytes, stored: PasswordHash) -> None:
        """Add a user or change a password. Raises ValueError for an impossible user name."""
        check_username(username)
        line = username + b":" + stored.encode()
        index = self._line_of.get(username)
        if index is None:
            self._line_of[username] = len(self._lines)
            self._lines.append(line)
        else:
            self._lines[index] = line
        self.users[username] = stored

    def delete(self, username: bytes) -> None:
        """Remove a user. Raises KeyError if there is no user of that name."""
        del self.users[username]
        index = self._line_of.pop(username)
        del self._lines[index]
        for other, line in self._line_of.items():
            if line > index:
                self._line_of[other] = line - 1

    def write(self) -> None:
        """Replace the file atomically: a reader finds either the old or the new content. Raises OSError.

        The new file has the owner of the old one, and only the owner may read it.
        """
        # A symbolic link is kept: the file that it points to is replaced.
        target = self.path.resolve()
        text = b"".join(line + b"\n" for line in self._lines)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                if target.exists():
                    was = target.stat()
                    if (was.st_uid, was.st_gid) != (os.geteuid(), os.getegid()):
                        os.fchown(file.fileno(), was.st_uid, was.st_gid)
                os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

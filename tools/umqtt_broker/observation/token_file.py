"""The token of the HTTP API, in a file that only its owner can read."""

import hmac
import os
import secrets
import stat
from pathlib import Path

from ..errors import ConfigError
from ..settings.broker import MEMORY, BrokerConfig
from ..settings.redis_url import is_redis_url

# Characters. A patient attacker could guess a shorter token.
_SHORTEST = 16
_LONGEST = 4096


def token_path(config: BrokerConfig) -> Path:
    """Return the path of the token file: http_token_file, or beside the store. Raises ConfigError if neither exists.

    There is no place beside the store if it is in memory or in Redis.
    """
    if config.http_token_file:
        return Path(config.http_token_file)
    if config.store == MEMORY or is_redis_url(config.store):
        raise ConfigError(
            "HTTP needs a file for its token — name one with http_token_file, or keep the store on disk: it lies there"
        )
    return Path(config.store + ".token")


def is_usable(path: Path) -> bool:
    """Return True if `path` contains a token, False if there is no such file. Raises ConfigError for any other file."""
    try:
        return bool(_read(path))
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read http_token_file {path} ({_reason(error)}) — fix or remove it") from error


def read_or_create(path: Path) -> str:
    """Return the token in `path`. If there is no file, make it, with a token of 256 random bits. Raises ConfigError.

    A file that others could have read or written is refused: it must belong to this user, with mode 0600 or stricter.
    """
    if is_usable(path):
        return _read(path)
    token = secrets.token_urlsafe(32)
    try:
        # O_EXCL: never write to a link or file that someone has put there meanwhile.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(opened, "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        raise ConfigError(
            f"cannot make http_token_file {path} ({_reason(error)}) — name a file in a folder this user may write to"
        ) from error
    return token


def _read(path: Path) -> str:
    # O_NONBLOCK: a pipe that nobody writes to must not block the start.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"http_token_file {path} is not a file — name a file")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"http_token_file {path} is open to other users — chmod 600 it, or remove it for a new one"
            )
        if status.st_uid != os.geteuid():
            raise ConfigError(f"http_token_file {path} belongs to another user — remove it for a new one")
        token = file.read(_LONGEST).decode("ascii").strip()
    if len(token) < _SHORTEST or not token.isprintable() or " " in token:
        raise ConfigError(f"http_token_file {path} holds no token of {_SHORTEST} characters — remove it for a new one")
    return token


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else "not text"


def is_token(given: str, token: str) -> bool:
    """Return True if `given` is the token, in a time that does not depend on how many characters are right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())

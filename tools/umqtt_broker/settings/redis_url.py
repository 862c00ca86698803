"""The address of a store in Redis or Valkey: `redis://[USER@]HOST[:PORT][/DB][?OPTION=VALUE&…]`; rediss:// with TLS."""

import os
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigError

_SCHEMES = ("redis", "rediss")
_DEFAULT_PORT = 6379
_TLS_OPTIONS = ("cafile", "certfile", "keyfile")
_OPTIONS = ("password_file", *_TLS_OPTIONS, "wait")
PASSWORD_VARIABLE = "UMQTT_STORE_PASSWORD"


class RedisUrl(NamedTuple):
    """The parsed address of a store in Redis.

    database: the number of the database. tls: rediss://. password_file: the file with the password; "": the environment
    variable UMQTT_STORE_PASSWORD has it. cafile: PEM file of the authorities that sign the server's certificate; "":
    those that the system trusts. certfile, keyfile: PEM files of the broker's own certificate and its private key, for
    a server that asks for one. wait: how many replicas must have a batch before it counts as written.
    """

    host: str
    port: int
    database: int
    tls: bool
    username: str
    password_file: str
    cafile: str
    certfile: str
    keyfile: str
    wait: int

    @property
    def shown(self) -> str:
        """The address without options, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEMES[self.tls]}://{host}:{self.port}/{self.database}"

    def password(self) -> str | None:
        """Return the password, None if there is none. Raises ConfigError if the file cannot be read."""
        if not self.password_file:
            return os.environ.get(PASSWORD_VARIABLE)
        try:
            with open(self.password_file, encoding="utf-8") as file:
                return file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ConfigError(f"password_file {self.password_file} cannot be read ({reason})") from error


def is_redis_url(store: str) -> bool:
    """Return True if the setting of a store is an address in Redis and not a file."""
    return store.startswith(tuple(f"{scheme}://" for scheme in _SCHEMES))


def parse_redis_url(store: str) -> RedisUrl:
    """Parse an address. Raises ConfigError, which never shows a password."""
    try:
        parts = urlsplit(store)
        port = parts.port or _DEFAULT_PORT
        database = int(parts.path.strip("/") or 0)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else [])
        wait = int(options.get("wait", "0"))
    except ValueError as error:
        raise ConfigError("the store's address is not redis://HOST:PORT/DATABASE — correct it") from error
    if parts.password is not None:
        raise ConfigError(
            "a password in the store's address can be read by everyone on this machine — "
            f"put it in a file, ?password_file=FILE, or in the variable {PASSWORD_VARIABLE}"
        )
    if not parts.hostname or database < 0 or wait < 0 or parts.fragment:
        raise ConfigError("the store's address is not redis://HOST:PORT/DATABASE — correct it")
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise ConfigError(f"the store's address has no option {unknown[0]!r} — there are {', '.join(_OPTIONS)}")
    tls = parts.scheme == "rediss"
    if not tls and (needless := [name for name in _TLS_OPTIONS if options.get(name)]):
        raise ConfigError(f"the store's address has a {needless[0]}, but no TLS — begin it with rediss://")
    if bool(options.get("certfile")) != bool(options.get("keyfile")):
        raise ConfigError("certfile and keyfile of the store's address go together — name both")
    return RedisUrl(
        parts.hostname,
        port,
        database,
        tls,
        unquote(parts.username or ""),
        options.get("password_file", ""),
        options.get("cafile", ""),
        options.get("certfile", ""),
        options.get("keyfile", ""),
        wait,
    )

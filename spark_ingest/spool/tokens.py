"""The secrets of a spool server: one token for reading, another for deleting."""

import os
from pathlib import Path

from ..errors import UsageError

READ_VARIABLE = "UMQTT_SPOOL_TOKEN"
DELETE_VARIABLE = "UMQTT_SPOOL_DELETE_TOKEN"

_SHORTEST = 16


def read_token(path: Path | None, variable: str) -> str | None:
    """Read a token from the first line of `path`, or from the environment `variable` if `path` is None.

    Returns None if `path` is None and the variable is empty or not set.

    :raises UsageError: the file cannot be read, or the token is not 16 or more printable ASCII characters without
        spaces.
    """
    if path is None:
        source, token = variable, os.environ.get(variable, "").strip()
        if not token:
            return None
    else:
        source = str(path)
        try:
            token = path.read_bytes().split(b"\n", 1)[0].strip().decode("ascii", "replace")
        except OSError as error:
            raise UsageError(f"cannot read the token file {path}: {error.strerror or error}") from error
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"the token in {source} is not {_SHORTEST} or more ASCII characters without spaces: "
            "make one with `openssl rand -hex 32`"
        )
    return token

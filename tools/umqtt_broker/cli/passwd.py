"""umqtt passwd: manages the users of a broker's password file."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umqtt_cli.console import print_result, say
from umqtt_cli.errors import EXIT_USAGE, KitError

if TYPE_CHECKING:
    from umqtt_broker.access.passwords import PasswordFile, PasswordHash


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("name")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from the first line of stdin.")
@click.option("--generate", is_flag=True, help="Make a password and print it once; it is not stored.")
@click.option("--delete", is_flag=True, help="Remove the user.")
@click.option(
    "--iterations",
    type=click.IntRange(1, 100_000_000),
    help="Of PBKDF2; default: 210000, and 1000 for a generated password, which cannot be guessed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def passwd(
    file: Path,
    name: str,
    from_stdin: bool,
    generate: bool,
    delete: bool,
    iterations: int | None,
    as_json: bool,
) -> None:
    """Add the user NAME to a password file, or change the password.

    The password is asked for twice and never shown; it cannot be given on the command line, where others could see it.
    FILE has the format of mosquitto_passwd and is made if there is none. A running broker reads it again on SIGHUP.

    \b
    Example:
      umqtt passwd passwords pump-7 --generate
    """
    from umqtt_broker.access.passwords import check_username, generate_password
    from umqtt_broker.errors import ConfigError

    if from_stdin + generate + delete > 1:
        raise click.UsageError("--stdin, --generate and --delete exclude each other")
    username = name.encode()
    try:
        check_username(username)
    except ValueError as error:
        raise KitError(f"{name!r}: {error} — choose another name", EXIT_USAGE) from error
    password = b""
    hashed = None
    if not delete:
        password = generate_password().encode() if generate else _read_line() if from_stdin else _ask(name)
        hashed = _hash(password, iterations, is_random=generate)
    try:
        with _locked(file) as passwords:
            existed = username in passwords.users
            if hashed is not None:
                passwords.set(username, hashed)
            elif existed:
                passwords.delete(username)
            else:
                raise KitError(f"{file} has no user {name!r} — it was not deleted", EXIT_USAGE)
            passwords.write()
    except ConfigError as error:
        raise KitError(str(error), EXIT_USAGE) from error
    except OSError as error:
        raise KitError(f"cannot write {file} ({error.strerror}) — choose another file", EXIT_USAGE) from error
    done = "deleted" if delete else "changed" if existed else "added"
    if as_json:
        answer = {"file": str(file), "user": name, "done": done}
        click.echo(json.dumps(answer | ({"password": password.decode()} if generate else {})))
        return
    if generate:
        print_result(password.decode())
    say(f"{name} {done} — send SIGHUP to a running broker")


def _ask(name: str) -> bytes:
    """Ask for a password on the terminal, twice, and return it."""
    if not sys.stdin.isatty():
        raise KitError("there is no terminal to ask for a password on — use --stdin or --generate", EXIT_USAGE)
    password = getpass.getpass(f"Password for {name}: ")
    if getpass.getpass("Again: ") != password:
        raise KitError("the passwords differ — nothing was changed", EXIT_USAGE)
    return password.encode()


def _read_line() -> bytes:
    return sys.stdin.buffer.readline().rstrip(b"\r\n")


def _hash(password: bytes, iterations: int | None, *, is_random: bool) -> PasswordHash:
    from umqtt_broker.access.passwords import ITERATIONS_CHOSEN, ITERATIONS_RANDOM, PasswordHash, check_password

    try:
        check_password(password)
    except ValueError as error:
        raise KitError(f"{error} — nothing was changed", EXIT_USAGE) from error
    return PasswordHash.make(password, iterations or (ITERATIONS_RANDOM if is_random else ITERATIONS_CHOSEN))


@contextmanager
def _locked(file: Path) -> Iterator[PasswordFile]:
    """Yield the password file, empty if it does not exist, under a lock.

    The lock makes concurrent commands take turns, so that no change is lost. The folder is locked, not the file,
    because the file is replaced.
    """
    from umqtt_broker.access.passwords import PasswordFile

    folder = os.open(file.resolve().parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield PasswordFile.read(file) if file.exists() else PasswordFile(file)
    finally:
        os.close(folder)

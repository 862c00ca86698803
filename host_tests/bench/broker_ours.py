"""Configuration of our broker in the bench: permissions, limits, keep-alive and metrics are switched on."""

from __future__ import annotations

import functools
import secrets
from pathlib import Path

from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_testkit.ports import reserved_port

USER = "bench"


@functools.cache
def password() -> str:
    """Return the load generator's password: new in every run, never on a command line."""
    return secrets.token_hex(8)


def configuration(folder: Path, port: int, store: str | None = None) -> list[str]:
    """Write what the broker needs into `folder` and return its arguments.

    store: the folder of its store, or the URL of a Redis; None: nothing is kept.

    Every limit is set and none is reached: the cost of checking them is what is measured.
    """
    passwords = PasswordFile(folder / "passwords")
    passwords.set(USER.encode(), PasswordHash.make(password().encode()))
    passwords.write()
    rules = folder / "acl"
    rules.write_text(f"user {USER}\ntopic readwrite bench/#\ntopic deny bench/secret/#\npattern write fleet/%c/#\n")
    rules.chmod(0o600)
    settings = {
        "listener": f"{port} 127.0.0.1",
        "allow_anonymous": "false",
        "password_file": passwords.path,
        "acl_file": rules,
        "global_max_connections": 10_000,
        "max_queued_messages": 1_000_000,
        "max_queued_bytes": 1_000_000_000,
        "max_queued_messages_total": 10_000_000,
        "max_queued_bytes_total": 10_000_000_000,
        "max_packet_size": 1_000_000,
        "message_size_limit": 500_000,
        "max_receive_rate": 100_000_000,
        "max_keepalive": 300,
        "message_expiry": "1d",
        "persistent_client_expiration": "1d",
        "sys_interval": 10,
        "http_listener": f"{reserved_port()} 127.0.0.1",
        "http_token_file": folder / "token",
        "persistence": "true" if store else "false",
        "log_dest": "none",
    }
    if store:
        settings["persistence_location"] = store
    path = folder / "broker.conf"
    path.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    return ["-c", str(path)]

"""A paired broker with TLS and one user, `me`, whose password is PASSWORD."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kit_command import umqtt_here
from umqtt_testkit.paired_broker import paired_broker

PASSWORD = "correct horse"


@contextlib.contextmanager
def guarded_broker(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run it; yield its address and the certificate of its authority. Raises AssertionError if it does not start."""
    for arguments, given in (
        (("passwd", "passwords", "me", "--stdin", "--iterations", "10"), PASSWORD + "\n"),
        (("certs", "ca"), ""),
        (("certs", "broker", "127.0.0.1"), ""),
    ):
        done = umqtt_here(folder, *arguments, given=given)
        assert done.code == 0, done.stderr
    certs = folder / "certs"
    lines = (
        "listener 0 127.0.0.1", f"cafile {certs}/ca.pem", f"certfile {certs}/broker/cert.pem",
        f"keyfile {certs}/broker/key.pem", "allow_anonymous false", f"password_file {folder}/passwords",
    )  # fmt: skip
    configuration = folder / "broker.conf"
    configuration.write_text("\n".join(lines) + "\n")
    with paired_broker("-c", str(configuration)) as port:
        yield f"mqtts://127.0.0.1:{port}", certs / "ca.pem"

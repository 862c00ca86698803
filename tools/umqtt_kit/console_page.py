"""Starts the console (`umqtt_console`) with what the kit knows of brokers and commands."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from umqtt_broker.settings.broker import is_loopback_name
from umqtt_console.access import Access as Users
from umqtt_console.access import UsersWrong, add_user, ask_password
from umqtt_console.api import Parts
from umqtt_console.app import Console
from umqtt_console.broker_api import BrokerApi

from spark_ingest.cli.spools import read
from spark_ingest.location import Location
from umqtt_cli.console import emit, say
from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_kit.mqtt import Access, client_options, explain
from umqtt_kit.processes import module_command
from umqtt_robust import aio

_KEEP_ALIVE_S = 30
_RX_SIZE = 256 * 1024
_INBOX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Options:
    """The options of `umqtt console`. given: those of the command line and of umqtt.toml, by name."""

    tables: Location | None
    spool: Path | None
    broker_http: str | None
    broker_token: Path | None
    config: Path | None
    audit: Path
    listen: tuple[str, int]
    users: Path | None
    web_cert: Path | None
    web_key: Path | None
    access: Access
    given: Mapping[str, Any]


def add(users: Path | None, name: str, role: str) -> int:
    """Add a user to the file, with a password from UMQTT_CONSOLE_PASSWORD or the terminal. Raises KitError."""
    if users is None:
        raise KitError("--add-user needs the file: --users FILE", EXIT_USAGE)
    try:
        add_user(users, name, role, os.environ.get("UMQTT_CONSOLE_PASSWORD") or ask_password(name))
    except UsersWrong as error:
        raise KitError(str(error), EXIT_USAGE) from error
    say(f"{users}: {name} has the role {role}")
    return 0


def serve(options: Options) -> int:
    """Serve until SIGINT or SIGTERM. Raises KitError."""
    if options.tables is None:
        raise KitError("--tables is missing — give the folder of umqtt ingest", EXIT_USAGE)
    tls = _tls(options)
    _require_safe(options, tls is not None)
    try:
        users = Users(options.users, _hosts(options), secure=tls is not None)
    except UsersWrong as error:
        raise KitError(str(error), EXIT_USAGE) from error
    has_password = options.access.username is not None
    parts = Parts(
        options.tables,
        options.audit.absolute(),
        options.spool,
        _broker_api(options),
        version("umqtt-robust"),
        explain=_explainer(options.config),
        program=module_command("umqtt_cli"),
        broker=list(_broker_flags(options.given)),
        environment={"UMQTT_PASSWORD": options.access.password or ""} if has_password else {},
    )
    for one in options.access.each:
        parts.live.add(one.where, partial(_client, one), partial(explain, timeout_s=one.timeout_s))
    asyncio.run(_run(Console(parts, users), options, tls))
    return 0


async def _run(console: Console, options: Options, tls: ssl.SSLContext | None) -> None:
    host, port = options.listen
    try:
        runner, port = await console.serve(host, port, tls)
    except OSError as error:
        raise KitError(
            f"cannot listen on {host}:{port}: {error.strerror or error} — choose another --listen",
            EXIT_NETWORK,
        ) from error
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    name = f"[{host}]" if ":" in host else host
    emit(f"listening on {'https' if tls else 'http'}://{name}:{port}")
    await stopped.wait()
    await runner.cleanup()


def _broker_api(options: Options) -> BrokerApi | None:
    if (options.broker_http is None) != (options.broker_token is None):
        raise KitError("--broker-http and --broker-token go together — give both", EXIT_USAGE)
    if options.broker_http is None or options.broker_token is None:
        return None
    url = urlsplit(options.broker_http)
    # The token would cross the network in the clear.
    if url.scheme not in ("http", "https") or (url.scheme == "http" and not is_loopback_name(url.hostname or "")):
        raise KitError(f"--broker-http {options.broker_http}: give http:// on this computer, or https://", EXIT_USAGE)
    return BrokerApi(options.broker_http, options.broker_token)


def _explainer(config: Path | None) -> Callable[[str, bytes, int, bool], dict[str, Any]]:
    from spark_ingest.decoders.rules import Rules, load
    from spark_ingest.pipeline.run.explain import Explainer

    explainer = Explainer(Rules(False, read(lambda: load(config)) if config else ""))

    def explain(topic: str, payload: bytes, received_ms: int, retain: bool) -> dict[str, Any]:
        found = explainer.explain(topic, payload, received_ms, retain=retain)
        return found._asdict() | {"ignored": found.is_ignored}

    return explain


def _broker_flags(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options that name the broker, for commands that the console runs; a password is never among them.

    The client id is not: two clients with one id would end each other's links.
    """
    for name in ("broker", "username", "ca", "cert", "key", "mqtt_version"):
        value = given.get(name, ())
        for one in value if isinstance(value, tuple) else (value,):
            yield f"--{name.replace('_', '-')}={Path(one).absolute() if isinstance(one, Path) else one}"


def _require_safe(options: Options, has_tls: bool) -> None:
    """Raises KitError for an address that others reach, without users or TLS."""
    if is_loopback_name(options.listen[0]):
        return
    lacking = [name for name, there in (("--users", options.users), ("--web-cert and --web-key", has_tls)) if not there]
    if lacking:
        raise KitError(
            f"--listen {options.listen[0]}: others reach that address — give {' and '.join(lacking)}, or 127.0.0.1",
            EXIT_USAGE,
        )


def _hosts(options: Options) -> frozenset[str] | None:
    """Return the Host headers of a console on loopback; None for any, as a console for others may have any name."""
    if not is_loopback_name(options.listen[0]):
        return None
    return frozenset({"127.0.0.1", "localhost", "::1"})


def _tls(options: Options) -> ssl.SSLContext | None:
    if (options.web_cert is None) != (options.web_key is None):
        raise KitError("--web-cert and --web-key go together — give both", EXIT_USAGE)
    if options.web_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.web_cert, options.web_key)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or error
        raise KitError(f"{options.web_cert}: {why} — give a certificate and its key", EXIT_USAGE) from error
    return context


def _client(access: Access, **callbacks: Any) -> aio.Client:
    return aio.Client(
        access.client_id or f"umqtt-console-{secrets.token_hex(4)}",
        access.addresses,
        keep_alive=_KEEP_ALIVE_S,
        rx_size=_RX_SIZE,
        inbox_size=_INBOX_BYTES,
        connect_timeout=int(access.timeout_s * 1000),
        **callbacks,
        **client_options(access),
    )

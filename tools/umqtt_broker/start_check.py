"""Finds what would stop a start, without starting: nothing is created or changed.

The broker may be running meanwhile: ports and a store that are in use are not reported as problems.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from . import log
from .conf.build import Configuration
from .errors import BrokerError, ConfigError, PortInUse
from .log import LogConfig
from .observation import token_file
from .process import check_user
from .settings.broker import MEMORY, BrokerConfig, Listener
from .settings.redis_url import is_redis_url, parse_redis_url
from .store.check import check_openable
from .store.redis_backend import check_usable
from .transport.sockets import open_tcp


def problems_of(configuration: Configuration) -> list[str]:
    """Return the problems of a configuration that could be read, one line each."""
    config = configuration.broker
    checks: list[Callable[[], object]] = [
        lambda: configuration.user and check_user(configuration.user),
        lambda: configuration.pid_file and _check_file("pid_file", configuration.pid_file),
        lambda: _check_log(configuration.log),
        lambda: _check_ports(config.all_listeners()),
        lambda: config.store == MEMORY or _check_store(config.store),
        lambda: config.http_port and _check_http(config),
    ]
    return list(_failures(checks))


def _failures(checks: list[Callable[[], object]]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except BrokerError as error:
            yield str(error)


def _check_log(config: LogConfig) -> None:
    for kind, path in config.destinations:
        if kind == "file":
            _check_file("log_dest file", path)
        else:
            for handler in log.open_handlers(LogConfig(destinations=((kind, path),))):
                handler.close()


def _check_ports(listeners: tuple[Listener, ...]) -> None:
    """Bind each port for a moment. Raises ConfigError or BrokerError if an address or a port cannot be used.

    A port that another program uses is accepted.
    """
    opened: dict[int, Listener] = {}
    with contextlib.ExitStack() as sockets:
        for listener in listeners:
            if listener.path:
                _check_file("listener", listener.path)
                continue
            try:
                for one in open_tcp(listener):
                    sockets.enter_context(one)
            except PortInUse:
                if first := opened.get(listener.port):
                    raise ConfigError(
                        f"{listener.where}: port {listener.port} is that of the listener at {first.where} too"
                    ) from None
            else:
                opened[listener.port] = listener


def _check_store(path: str) -> None:
    if is_redis_url(path):
        check_usable(parse_redis_url(path))
        return
    _check_file("persistence_location", path)
    check_openable(path)


def _check_http(config: BrokerConfig) -> None:
    # Imported here: a broker that serves no HTTP needs no aiohttp.
    from .observation.server import check_loopback

    check_loopback(config.http_host)
    path = token_file.token_path(config)
    if not token_file.is_usable(path):
        _check_file("http_token_file", str(path))


def _check_file(key: str, path: str) -> None:
    """Raise ConfigError unless the file at `path` can be written, or created if there is none. key: for the message."""
    if os.path.isdir(path):
        raise ConfigError(f"{key} {path} is a folder — name a file in it")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ConfigError(f"{key} {path} cannot be written (No such file or directory) — make the folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ConfigError(f"{key} {path} cannot be written (Permission denied) — choose another")

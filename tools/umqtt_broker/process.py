"""The broker as a process: signals, the pid file, the user it runs as, and reloads of its settings."""

import asyncio
import contextlib
import logging
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Any

from . import log
from .broker import Broker
from .conf import Configuration, load
from .conf.lines import ConfigFileError
from .errors import BrokerError, ConfigError, LeaseLost
from .log import NOTICE
from .observation.token_file import token_path
from .routing import router
from .transport.open_files import make_room

EXIT_USAGE = 2
EXIT_STORE_FAILED = 1

_log = logging.getLogger(log.ROOT)


class Process:
    """The process of one broker, from start to end.

    path: its configuration file, "" if there is none. lenient: as in conf.load(), also at a reload.
    """

    def __init__(self, configuration: Configuration, path: str = "", *, lenient: bool = False) -> None:
        self._configuration = configuration
        self._path = path
        self._lenient = lenient
        self._has_pid_file = False

    async def run(self) -> int:
        """Serve until SIGINT or SIGTERM; SIGHUP reloads. Returns the exit code."""
        loop = asyncio.get_running_loop()
        stop, reload = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        make_room(self._configuration.broker.max_connections)
        is_patient = False
        exit_code = EXIT_USAGE
        try:
            while True:
                broker = Broker(self._configuration.broker)
                starting = asyncio.create_task(broker.start(self._when_bound, self._on_standby, is_patient=is_patient))
                if not await _until(stop, starting):
                    return 0
                try:
                    await starting
                except BrokerError as error:
                    if not isinstance(error, LeaseLost):
                        raise
                else:
                    if not await self._serve(broker, stop, reload):
                        break
                # Another broker has the store: wait until that one ends.
                is_patient = True
            exit_code = EXIT_STORE_FAILED
            _log.log(NOTICE, "stopping")
            await broker.stop()
        except BrokerError as error:
            print(error, file=sys.stderr)
            return exit_code
        finally:
            self._remove_pid_file()
        return 0

    async def _serve(self, broker: Broker, stop: asyncio.Event, reload: asyncio.Event) -> bool:
        """Serve until a signal stops the broker or its store is lost. Returns True if the store is lost."""
        for address in broker.addresses():
            print(f"listening on {address}", flush=True)
        server = broker.observation.server
        # With a configuration file, what is on standard error may be a log of JSON objects.
        if server is not None and (not self._path or sys.stderr.isatty()):
            # The link contains the token. If a file keeps it, show it only on the terminal that started the broker, and
            # never in a log; a token of this run is nowhere else.
            config = self._configuration.broker
            is_shown = config.http_token or sys.stderr.isatty()
            where = f"#token={server.token}" if is_shown else f", token in {token_path(config)}"
            print(f"live page: http://{server.name}/{where}", file=sys.stderr)
        # Log only after the `listening on` line, which must be the first on standard output even if the log goes there.
        self._warn(self._configuration.warnings)
        kind = "plain Python" if router.__file__.endswith(".py") else "compiled"
        _log.log(NOTICE, "running, %s, %s", kind, ", ".join(broker.addresses()))
        reloading = asyncio.create_task(self._reload_when_told(broker, reload))
        losing = asyncio.create_task(broker.store.lost())
        is_lost = await _until(stop, losing)
        reloading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reloading
        if is_lost:
            _log.error("%s — closing all connections; this broker is now the standby", await losing)
            await broker.abandon()
        return is_lost

    # Start and end

    def _on_standby(self, reason: str) -> None:
        print(f"standby: {reason}", flush=True)
        _log.log(NOTICE, "standby: does not listen, and takes over when that ends: %s", reason)

    def _when_bound(self) -> None:
        """Write the pid file, then give up root. Raises ConfigError."""
        path = self._configuration.pid_file
        if path:
            try:
                Path(path).write_text(f"{os.getpid()}\n")
            except OSError as error:
                raise ConfigError(f"pid_file {path} cannot be written ({error.strerror}) — choose another") from error
            self._has_pid_file = True
        if self._configuration.user:
            become_user(self._configuration.user)

    def _remove_pid_file(self) -> None:
        if not self._has_pid_file:
            return
        try:
            os.unlink(self._configuration.pid_file)
        except OSError as error:
            _log.warning("pid_file %s cannot be removed (%s)", self._configuration.pid_file, error.strerror)

    # Reload

    async def _reload_when_told(self, broker: Broker, told: asyncio.Event) -> None:
        while True:
            await told.wait()
            told.clear()
            try:
                # Awaited here, not in a separate task, so that a reload is cancelled when the broker stops.
                await self._reload(broker)
            except ConfigError as error:
                for problem in error.problems if isinstance(error, ConfigFileError) else [error]:
                    _log.error("%s", problem)
                _log.error("reload refused: all settings stay as they were")
            except Exception:  # noqa: BLE001 - a mistake of ours: one that cannot reload goes on serving
                _log.exception("reload failed: restart the broker to be sure of its settings")

    async def _reload(self, broker: Broker) -> None:
        if not self._path:
            broker.reload()
            _log.log(NOTICE, "reloaded")
            return
        # In a thread: files may be large and disks slow, and clients must not wait for them.
        new = await asyncio.to_thread(load, self._path, lenient=self._lenient)
        # Steps that can fail come first: either all of the new settings apply, or none.
        handlers = log.open_handlers(new.log)
        try:
            needs_restart = broker.reload(new.broker)
        except BaseException:
            for handler in handlers:
                handler.close()
            raise
        old, self._configuration = self._configuration, new
        # The process uses these settings only at its start: keep the old values.
        for name in ("pid_file", "user"):
            if getattr(new, name) != getattr(old, name):
                needs_restart.append(name)
                setattr(new, name, getattr(old, name))
        make_room(new.broker.max_connections)
        new.broker = old.broker
        log.put_in_force(new.log, handlers)
        self._warn(new.warnings)
        for name in needs_restart:
            _log.warning("%s: a change that takes effect at the next start", name)
        _log.log(NOTICE, "reloaded")

    def _warn(self, warnings: list[str]) -> None:
        for warning in warnings:
            _log.warning("%s", warning)


async def _until(stop: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait until a task is done or `stop` is set; then cancel the task. Returns True if the task was done."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([stopping, task], return_when=asyncio.FIRST_COMPLETED)
    is_done = task.done()
    stopping.cancel()
    if not is_done:
        task.cancel()
        await asyncio.wait([task])
    return is_done


def check_user(name: str) -> pwd.struct_passwd:
    """Return the account of a user. Raises ConfigError if there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(f"user {name}: there is no such user on this machine — create it, or name another") from None


def become_user(name: str) -> None:
    """Give up root permanently and become the user `name`. Does nothing if not started as root. Raises ConfigError."""
    if os.geteuid() != 0:
        return
    account = check_user(name)
    try:
        os.initgroups(name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    except OSError as error:
        raise ConfigError(f"user {name}: cannot become this user ({error.strerror})") from error

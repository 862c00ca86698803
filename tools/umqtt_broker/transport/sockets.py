"""Listening sockets: TCP on each address of a host, and Unix sockets."""

import errno
import os
import socket
import stat
from collections.abc import Sequence

from ..errors import BrokerError, ConfigError, PortInUse
from ..settings.broker import Listener

BACKLOG = 4096

_FAMILIES = {"": socket.AF_UNSPEC, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}
# How many ports are tried, for port 0, to find one that is free on every address of a listener.
_FREE_PORT_TRIES = 20


def open_tcp(listener: Listener) -> list[socket.socket]:
    """Return a listening socket for each address of the host, all with the same port.

    Raises ConfigError, PortInUse or BrokerError.
    """
    host = listener.host
    try:
        found = socket.getaddrinfo(
            host or None,
            listener.port,
            family=_FAMILIES[listener.socket_domain],
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except OSError as error:
        raise ConfigError(f"cannot find an address for host {host!r} ({error}) — use an IP address") from error
    # IPv4 first, so that the `listening on` line names an address that every client can use.
    addresses = sorted({(family, address[0]) for family, _, _, _, address in found}, key=lambda one: (one[0], one[1]))
    for attempt in range(_FREE_PORT_TRIES):
        try:
            return _open_all(listener, addresses)
        except PortInUse:
            # The port that was free on the first address is in use on another: try a new port.
            if listener.port or attempt == _FREE_PORT_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _open_all(listener: Listener, addresses: Sequence[tuple[int, str | int]]) -> list[socket.socket]:
    opened: list[socket.socket] = []
    port = listener.port
    try:
        for family, host in addresses:
            try:
                opened.append(_listen(family, str(host), port))
            except OSError as error:
                # A machine without IPv6 may still list IPv6 addresses; one usable address is enough.
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(addresses) > 1:
                    if (family, host) == addresses[-1] and not opened:
                        raise
                    continue
                raise
            port = opened[0].getsockname()[1]
    except BaseException as error:
        _close_all(opened)
        if not isinstance(error, OSError):
            raise
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(listener.host, port, listener.where) from error
        remedy = "choose another" if listener.where else "choose another with --host or -p"
        raise BrokerError(
            f"{_prefix(listener)}cannot listen on {listener.host or 'every address'} port {port} "
            f"({error.strerror}) — {remedy}"
        ) from error
    return opened


def _listen(family: int, host: str, port: int) -> socket.socket:
    # asyncio switches Nagle's algorithm off only where the protocol is named.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit this, which saves a system call for each.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def open_unix(listener: Listener) -> socket.socket:
    """Return a listening Unix socket; the file that a killed broker left is replaced. Raises BrokerError."""
    path = listener.path
    _remove_stale(listener)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # With this umask, the file never exists with wider permissions than `mode`.
        before = os.umask(0o777 & ~listener.mode)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise BrokerError(
            f"{_prefix(listener)}cannot listen on the Unix socket {path} ({error.strerror or error}) — "
            "choose another path"
        ) from error
    return listening


def _remove_stale(listener: Listener) -> None:
    path = listener.path
    try:
        if not stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode):
            raise BrokerError(f"{_prefix(listener)}{path} exists and is not a socket — choose another path")
    except FileNotFoundError:
        return
    except OSError as error:
        raise BrokerError(f"{_prefix(listener)}cannot look at {path} ({error.strerror})") from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise BrokerError(f"{_prefix(listener)}cannot tell whether {path} is in use ({error})") from error
    raise BrokerError(
        f"{_prefix(listener)}another program listens on {path} — choose another path, or stop that program"
    )


def identity_of(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, which identify it; None if there is no file."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _prefix(listener: Listener) -> str:
    return f"{listener.where}: " if listener.where else ""


def _close_all(sockets: list[socket.socket]) -> None:
    for one in sockets:
        one.close()

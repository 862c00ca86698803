"""Applies new settings to a running broker, and names those that need a restart."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from .access.permission import Permission
from .log import NOTICE
from .settings.broker import BrokerConfig, Listener
from .transport.listeners import BoundListener
from .transport.tls import make_context

_log = logging.getLogger(__name__)

# Settings that are read only at the start. Every other setting is read when it is needed.
_AT_START = frozenset({"host", "port", "store", "http_host", "http_port", "http_token_file"})
# Seconds until a permission that was replaced is closed.
_RETIRE_AFTER = 60.0
_LISTENER_AT_START = ("host", "port", "path", "protocol", "socket_domain", "mode", "mount_point")


def apply(
    config: BrokerConfig,
    new: BrokerConfig | None,
    bound_listeners: list[BoundListener],
    rights_changed: Callable[[], None],
) -> list[str]:
    """Apply the settings `new` to a running broker; with None, read the files of its settings again.

    config: the broker's settings, which are changed in place. bound_listeners: its listeners, in the order of `config`;
    those that are closed are removed from it. rights_changed: called when the settings are in force. Returns the names
    of settings that differ and need a restart.
    Raises ConfigError, and changes nothing, if the new settings are impossible.
    """
    if new is None:
        contexts = _contexts(bound_listeners, config.all_listeners())
        # All are read before the first is put in force: a mistake in one file changes no rules.
        for put_in_force in [permission.prepare_reload() for permission in permissions(config)]:
            put_in_force()
        needs_restart: list[str] = []
    else:
        new.validate()
        listeners, removed, added = _match(bound_listeners, new.all_listeners())
        contexts = _contexts(bound_listeners, listeners)
        before = list(permissions(config))
        needs_restart = [f"{_name(one)} (new)" for one in added]
        if added:
            # A removed one may be a new one at its old address: closed now, nobody could connect until the restart.
            needs_restart += [f"{_name(one.listener)} (removed)" for one in removed]
        needs_restart += _take_over(config, new)
        for bound_listener, listener in zip(bound_listeners, listeners, strict=True):
            needs_restart += _take_over_listener(bound_listener.listener, listener)
        if removed and not added:
            _close(removed, config, bound_listeners)
        for permission in set(before) - set(permissions(config)):
            # Password checks that have begun get time to end.
            asyncio.get_running_loop().call_later(_RETIRE_AFTER, permission.close)
    for bound_listener, context in contexts.items():
        tls = bound_listener.listener.tls
        if bound_listener.context is not None and context is not None and tls is not None:
            bound_listener.use(context, tls)
    rights_changed()
    return sorted(needs_restart)


def permissions(config: BrokerConfig) -> Iterator[Permission]:
    """Yield each permission of a configuration once."""
    seen: set[Permission] = set()
    for permission in (config.permission, *(listener.permission for listener in config.all_listeners())):
        if permission is not None and permission not in seen:
            seen.add(permission)
            yield permission


def _contexts(
    bound_listeners: Sequence[BoundListener], listeners: Sequence[Listener]
) -> dict[BoundListener, ssl.SSLContext | None]:
    """Return the new TLS context of each bound listener, None without TLS. listeners: their settings, in order."""
    return {
        bound_listener: None if listener.tls is None else make_context(listener.tls)
        for bound_listener, listener in zip(bound_listeners, listeners, strict=True)
    }


def _close(removed: Sequence[BoundListener], config: BrokerConfig, bound_listeners: list[BoundListener]) -> None:
    """Close listeners that the new settings do not have. Their connections stay."""
    for bound_listener in removed:
        bound_listener.close()
        bound_listeners.remove(bound_listener)
        _log.log(NOTICE, "%s is removed: closed; its clients stay connected", _name(bound_listener.listener))
    config.listeners = tuple(bound_listener.listener for bound_listener in bound_listeners)


def _match(
    bound_listeners: Sequence[BoundListener], listeners: Sequence[Listener]
) -> tuple[list[Listener], list[BoundListener], list[Listener]]:
    """Find the new settings of each bound listener by its address.

    Returns them, in the order of `bound_listeners` (the old settings for a listener that was removed), the listeners
    that were removed, and those that are new.
    """
    left = list(listeners)
    found: list[Listener] = []
    removed: list[BoundListener] = []
    for bound_listener in bound_listeners:
        old = bound_listener.listener
        same = next((one for one in left if (one.host, one.port, one.path) == (old.host, old.port, old.path)), None)
        if same is None:
            removed.append(bound_listener)
            found.append(old)
        else:
            left.remove(same)
            found.append(same)
    return found, removed, left


def _take_over(old: BrokerConfig, new: BrokerConfig) -> list[str]:
    needs_restart = []
    for one in fields(BrokerConfig):
        value = getattr(new, one.name)
        if one.name == "listeners" or getattr(old, one.name) == value:
            continue
        if one.name in _AT_START:
            needs_restart.append(one.name)
        else:
            setattr(old, one.name, value)
    return needs_restart


def _take_over_listener(old: Listener, new: Listener) -> list[str]:
    """Change the settings of a listener in place, because its connections refer to this object.

    Returns the names of settings that differ and need a restart.
    """
    if old is new:
        return []
    needs_restart = [f"{_name(old)}: {name}" for name in _LISTENER_AT_START if getattr(old, name) != getattr(new, name)]
    if (old.tls is None) != (new.tls is None):
        needs_restart.append(f"{_name(old)}: tls")
    for one in fields(Listener):
        if one.name in _LISTENER_AT_START or (one.name == "tls" and (old.tls is None) != (new.tls is None)):
            continue
        setattr(old, one.name, getattr(new, one.name))
    return needs_restart


def _name(listener: Listener) -> str:
    return f"listener {listener.path or listener.port}" + (f" {listener.host}" if listener.host else "")

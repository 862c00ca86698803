"""Applies new settings to a running broker, and names those that need a restart."""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

from .access.permission import Permission
from .settings.broker import BrokerConfig, Listener
from .transport.listeners import BoundListener
from .transport.tls import make_context

# Settings that are read only at the start. Every other setting is read when it is needed.
_AT_START = frozenset({"host", "port", "store", "http_host", "http_port", "http_token_file"})
# Seconds until a permission that was replaced is closed.
_RETIRE_AFTER = 60.0
_LISTENER_AT_START = ("host", "port", "path", "protocol", "socket_domain", "mode", "mount_point")


def apply(
    config: BrokerConfig,
    new: BrokerConfig | None,
    bound_listeners: Sequence[BoundListener],
    rights_changed: Callable[[], None],
) -> list[str]:
    """Apply the settings `new` to a running broker; with None, read the files of its settings again.

    config: the broker's settings, which are changed in place. bound_listeners: its listeners, in the order of `config`.
    rights_changed: called when the settings are in force. Returns the names of settings that differ and need a restart.
    Raises ConfigError, and changes nothing, if the new settings are impossible.
    """
    if new is None:
        contexts = _contexts(config.all_listeners())
        # All are read before the first is put in force: a mistake in one file changes no rules.
        for put_in_force in [permission.prepare_reload() for permission in permissions(config)]:
            put_in_force()
        needs_restart: list[str] = []
    else:
        new.validate()
        listeners, needs_restart = _match(bound_listeners, new.all_listeners())
        contexts = _contexts(listeners)
        retired = [one for one in permissions(config) if one not in set(permissions(new))]
        needs_restart += _take_over(config, new)
        for bound_listener, listener in zip(bound_listeners, listeners, strict=True):
            needs_restart += _take_over_listener(bound_listener.listener, listener)
        for permission in retired:
            # Password checks that have begun get time to end.
            asyncio.get_running_loop().call_later(_RETIRE_AFTER, permission.close)
    for bound_listener, context in zip(bound_listeners, contexts, strict=True):
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


def _contexts(listeners: Sequence[Listener]) -> list[ssl.SSLContext | None]:
    return [None if listener.tls is None else make_context(listener.tls) for listener in listeners]


def _match(bound_listeners: Sequence[BoundListener], listeners: Sequence[Listener]) -> tuple[list[Listener], list[str]]:
    """Find the new settings of each bound listener by its address.

    Returns them, in the order of `bound_listeners` (the old settings for a listener that was removed), and the names of
    listeners that were removed or are new, which needs a restart.
    """
    left = list(listeners)
    found: list[Listener] = []
    needs_restart: list[str] = []
    for bound_listener in bound_listeners:
        old = bound_listener.listener
        same = next((one for one in left if (one.host, one.port, one.path) == (old.host, old.port, old.path)), None)
        if same is None:
            needs_restart.append(f"{_name(old)} (removed)")
            found.append(old)
        else:
            left.remove(same)
            found.append(same)
    needs_restart += [f"{_name(one)} (new)" for one in left]
    return found, needs_restart


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

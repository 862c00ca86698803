"""Permission by the files that a configuration names (passwords, an ACL, a blacklist), and by a program's own rules."""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError
from ..protocol.connect import Connect
from ..protocol.packets import ACCEPTED, BAD_USER_NAME_OR_PASSWORD, IDENTIFIER_REJECTED, NOT_AUTHORIZED
from .acl import Acl, read_acl
from .blacklist import Blacklist
from .client_id_pattern import ClientIdPattern
from .password_check import PasswordChecker
from .passwords import PasswordFile
from .permission import Peer, Permission, Rights

_log = logging.getLogger(__name__)


class FilePermission(Permission):
    """Lets clients in by password or certificate, and gives them the rights of an ACL.

    password_file: see `passwords`. "" for none: only clients with a certificate are let in, and clients without
        credentials where that is allowed.
    acl_file: see `acl`. "" for none: every client that is let in may do everything.
    allow_anonymous: let clients in that show no credentials. A listener may allow it for its own clients.
    client_id_pattern: the pattern that client identifiers must match: `*`, `?`, `[...]` as in file names, %u for the
        user name. "%u:*" keeps the clients of one user from taking over the sessions of another; a pattern with %u
        that does not, for two users in the files, is refused. "" for any. A client without an identifier gets one from
        the broker, to which the pattern does not apply.
    blacklist_file: see `blacklist`; "" for none.

    Raises ConfigError, here and in prepare_reload(), that names the file and the line.
    """

    def __init__(
        self,
        password_file: str = "",
        acl_file: str = "",
        allow_anonymous: bool = False,
        *,
        client_id_pattern: str = "",
        blacklist_file: str = "",
    ) -> None:
        self._password_file = password_file
        self._acl_file = acl_file
        self._allow_anonymous = allow_anonymous
        self._client_id_pattern = ClientIdPattern(client_id_pattern)
        self._blacklist_file = blacklist_file
        self._acl: Acl | None = None
        self._blacklist = Blacklist()
        self._passwords = PasswordChecker({})
        self.reload()

    @property
    def proves_user_names(self) -> bool:
        """See Permission."""
        return bool(self._password_file)

    def prepare_reload(self) -> Callable[[], None]:
        """Read all files again; return a function that puts them in force. Raises ConfigError."""
        passwords = PasswordFile.read(self._password_file) if self._password_file else None
        acl = read_acl(self._acl_file) if self._acl_file else None
        blacklist = Blacklist.read(self._blacklist_file) if self._blacklist_file else Blacklist()
        self._client_id_pattern.check({*(passwords.users if passwords else ()), *(acl.usernames if acl else ())})

        def take_over() -> None:
            self._passwords.replace(passwords.users if passwords else {})
            self._acl = acl
            self._blacklist = blacklist

        if passwords and _is_open(passwords.path):
            _log.warning("%s can be read by other users — run: chmod 600 %s", passwords.path, passwords.path)
        if acl and acl.names_users and not passwords and self._allow_anonymous:
            _log.warning(
                "%s gives rights by user name, but without a password_file any client may claim any name",
                self._acl_file,
            )
        return take_over

    def connect(self, packet: Connect, peer: Peer) -> int | asyncio.Future[int]:
        """Check blacklist, client identifier and credentials, the cheapest check first.

        Returns the CONNACK return code, or a future of it while a password is being checked.
        """
        username = peer.username(packet)
        refused = self._refuse(packet, username, peer)
        if refused:
            return refused
        if peer.listener.use_identity_as_username:
            # The listener has verified the certificate.
            return NOT_AUTHORIZED if username is None else ACCEPTED
        if username is None or not self._password_file:
            # As in mosquitto: without a password file, a user name counts as none.
            may_enter = self._allow_anonymous or peer.listener.allow_anonymous
            return ACCEPTED if may_enter else NOT_AUTHORIZED
        if packet.password is None:
            return BAD_USER_NAME_OR_PASSWORD
        return self._passwords.check(username, packet.password, peer.address)

    def _refuse(self, packet: Connect, username: bytes | None, peer: Peer) -> int:
        """Return the return code that refuses a client whatever its credentials are, else ACCEPTED."""
        if self._blacklist.refuses(packet.client_id, username, peer.address):
            return NOT_AUTHORIZED
        if packet.client_id and not self._client_id_pattern.allows(packet.client_id, username):
            return IDENTIFIER_REJECTED
        return ACCEPTED

    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        """Return what the ACL allows; None without an ACL."""
        return None if self._acl is None else self._acl.rights(client_id, username)

    def reaches(self, mount: bytes) -> bool:
        """Tell whether the ACL, if there is one, may allow something behind a mount point that ends with /."""
        return self._acl is None or self._acl.reaches(mount)

    def close(self) -> None:
        """End the threads that check passwords."""
        self._passwords.close()


class PermissionHook(Permission):
    """The base class of a `permission_hook`: each method answers as the files do until it is overridden.

    files: the FilePermission that the other settings make.
    """

    def __init__(self, files: Permission) -> None:
        self.files = files

    @property
    def proves_user_names(self) -> bool:
        """See Permission: as the files do."""
        return self.files.proves_user_names

    def connect(self, packet: Connect, peer: Peer) -> int | asyncio.Future[int]:
        """Return the CONNACK return code, or a future of it."""
        return self.files.connect(packet, peer)

    def rights(self, client_id: bytes, username: bytes | None) -> Rights | None:
        """Return what a client may do; None for everything."""
        return self.files.rights(client_id, username)

    def prepare_reload(self) -> Callable[[], None]:
        """Read the files again; return a function that puts them in force."""
        return self.files.prepare_reload()

    def close(self) -> None:
        """End the threads that check passwords."""
        self.files.close()


def file_permission(
    password_file: str = "",
    acl_file: str = "",
    allow_anonymous: bool = False,
    *,
    client_id_pattern: str = "",
    blacklist_file: str = "",
    permission_hook: str = "",
) -> Permission:
    """Return a FilePermission; with `permission_hook`, MODULE:CLASS, an object of that class which wraps it.

    The other parameters are those of FilePermission. Raises ConfigError.
    """
    files = FilePermission(
        password_file,
        acl_file,
        allow_anonymous,
        client_id_pattern=client_id_pattern,
        blacklist_file=blacklist_file,
    )
    return load_hook(permission_hook, files) if permission_hook else files


def load_hook(name: str, files: Permission) -> Permission:
    """Import MODULE:CLASS, a PermissionHook, and return CLASS(files). Raises ConfigError."""
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"permission_hook {name!r} names no class — write MODULE:CLASS")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ConfigError(f"permission_hook {name}: {error} — is it installed, or its folder in PYTHONPATH?") from error
    except AttributeError as error:
        raise ConfigError(f"permission_hook {name}: {error} — check the name of the class") from error
    if not (isinstance(found, type) and issubclass(found, PermissionHook)):
        raise ConfigError(f"permission_hook {name} does not derive from umqtt_broker.PermissionHook — derive it")
    try:
        return found(files)
    except TypeError as error:
        raise ConfigError(
            f"permission_hook {name}: {error} — its __init__ takes the permission of the files"
        ) from error


def _is_open(path: Path) -> bool:
    return bool(os.stat(path).st_mode & 0o044)

"""Makes the settings of a broker from a configuration and the files that it names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..access.files import FilePermission, file_permission
from ..access.permission import Permission
from ..errors import ConfigError
from ..log import LogConfig
from ..settings.broker import BrokerConfig, Listener, Tls
from ..settings.redis_url import is_redis_url
from ..transport.tls import make_context, warnings_of
from .keys import KEYS
from .lines import Line, Problems
from .sections import ConfigSections, Section

_STORE_FILE = "umqtt-broker.db"
# The settings of scope "security" that make a Permission; the others are settings of the broker or of a listener.
_PERMISSION_SETTINGS = (
    "allow_anonymous",
    "password_file",
    "acl_file",
    "client_id_pattern",
    "blacklist_file",
    "permission_hook",
)


@dataclass(slots=True)
class Configuration:
    """All settings of a process. warnings: "FILE:LINE: …" for each setting that is unsafe or has no effect."""

    broker: BrokerConfig
    log: LogConfig = field(default_factory=LogConfig)
    pid_file: str = ""
    user: str = ""
    warnings: list[str] = field(default_factory=list)


def build(sections: ConfigSections, problems: Problems) -> Configuration:
    """Return the settings. Errors are noted in `problems`; then the result must not be used."""
    return _Builder(sections, problems).build()


class _Builder:
    def __init__(self, sections: ConfigSections, problems: Problems) -> None:
        self._sections = sections
        self._problems = problems
        # Without any listener in the configuration there is one on loopback, open to everyone on this machine.
        self._is_local_only = not sections.listeners and not sections.default.of("structure")

    def build(self) -> Configuration:
        everyone = self._sections.broker
        config = BrokerConfig(**everyone.of("broker"), **_identifiers(everyone.of("security")))
        listeners = self._listener_sections()
        if not self._sections.per_listener:
            config.permission = self._permission(everyone, *listeners)
        config.listeners = tuple(self._listener(section) for section in listeners)
        for section, listener in zip(listeners, config.listeners, strict=True):
            self._check_mount_point(section, listener, listener.permission or config.permission)
        self._set_store(config)
        if "http_listener" in everyone.of("structure"):
            config.http_port, host = everyone.of("structure")["http_listener"]
            config.http_host = host or config.http_host
        return Configuration(config, LogConfig(**everyone.of("log")), **everyone.of("process"))

    def _listener_sections(self) -> list[Section]:
        sections = self._sections
        if sections.listeners and not sections.default.of("structure"):
            return sections.listeners
        asked = sections.default.of("structure")
        # With `port` alone mosquitto listens on every address; with neither, on this machine only.
        host = asked.get("bind_address", "" if "port" in asked else "127.0.0.1")
        sections.default.of("listener").update(host=host, port=asked.get("port", 1883))
        return [sections.default, *sections.listeners]

    def _listener(self, section: Section) -> Listener:
        values = dict(section.of("listener"))
        if values.get("use_subject_as_username"):
            # The common name takes precedence over the subject if both are asked for.
            values["use_subject_as_username"] = not values.get("use_identity_as_username")
            values["use_identity_as_username"] = True
        security = section if self._sections.per_listener else self._sections.broker
        values.setdefault("allow_anonymous", self._allows_anonymous(security.of("security")))
        listener = Listener(
            **values,
            tls=self._tls(section),
            where="" if section.line is None else section.line.where,
        )
        if self._sections.per_listener:
            listener.permission = self._permission(section)
            for name, value in _identifiers(section.of("security")).items():
                if name not in values:
                    setattr(listener, name, value)
        if not section.broken and not security.broken:
            self._check_access(section, listener, security.of("security"))
        return listener

    def _check_access(self, section: Section, listener: Listener, security: Mapping[str, Any]) -> None:
        if listener.use_identity_as_username:
            if not section.of("tls").get("require_certificate"):
                line = section.lines.get("use_identity_as_username") or section.lines["use_subject_as_username"]
                self._problems.at(line, f"{line.key} needs require_certificate true — otherwise nobody has an identity")
            return
        line = section.first_line()
        if line is None or listener.allow_anonymous or any(map(security.get, ("password_file", "permission_hook"))):
            return
        self._problems.warn(
            line.file, line.number, "nobody can connect here — set password_file, or allow_anonymous true"
        )

    def _check_mount_point(self, section: Section, listener: Listener, permission: Permission) -> None:
        mount = listener.mount_point
        if not mount:
            return
        line = section.lines["mount_point"]
        if not mount.endswith(b"/"):
            text = f"mount_point {line.value} does not end with / — filters that begin with + or # match nothing here"
            self._problems.warn(line.file, line.number, text)
        elif isinstance(permission, FilePermission) and not permission.reaches(mount):
            text = f"acl_file allows nothing below mount_point {line.value} — write its topics as {line.value}TOPIC"
            self._problems.warn(line.file, line.number, text)

    def _tls(self, section: Section) -> Tls | None:
        if not section.of("tls") or "tls" in section.broken:
            return None
        tls = Tls(**section.of("tls"))
        lines = [line for name, line in section.lines.items() if KEYS[name].scope == "tls"]
        try:
            make_context(tls)
        except ConfigError as error:
            named = (line for line in lines if str(error).startswith(f"{line.key} "))
            self._problems.at(next(named, lines[0]), str(error))
        for text in warnings_of(tls):
            line = section.lines[text.partition(" ")[0]]
            self._problems.warn(line.file, line.number, text)
        if tls.crlfile and not tls.require_certificate:
            line = section.lines["crlfile"]
            self._problems.warn(line.file, line.number, "crlfile has no effect without require_certificate true")
        return tls

    def _permission(self, section: Section, *listeners: Section) -> Permission:
        """Return the permission of a section. listeners: those to which it applies, if the section is no listener."""
        security = section.of("security")
        asked = {name: value for name, value in security.items() if name in _PERMISSION_SETTINGS}
        # One permission serves all its listeners: it lets anonymous clients in only if each of them does. Those that
        # do although others do not have a flag of their own.
        asked["allow_anonymous"] = all(
            one.of("listener").get("allow_anonymous", self._allows_anonymous(security))
            for one in listeners or [section]
        )
        if "security" in section.broken or asked == {"allow_anonymous": True}:
            return Permission()
        try:
            return file_permission(**asked)
        except ConfigError as error:
            self._problems.at(_line_of(error, section), str(error))
            return Permission()

    def _allows_anonymous(self, security: Mapping[str, Any]) -> bool:
        # If passwords are configured, they are required, even on loopback.
        return bool(security.get("allow_anonymous", self._is_local_only and not security.get("password_file")))

    def _set_store(self, config: BrokerConfig) -> None:
        asked, lines = self._sections.broker.of("structure"), self._sections.broker.lines
        without_effect = {
            "autosave_interval": "what was acknowledged is on disk already",
            "autosave_on_changes": "what was acknowledged is on disk already",
        }
        if asked.get("persistence"):
            place = asked.get("persistence_location", "")
            if is_redis_url(place):
                config.store = place
                without_effect["persistence_file"] = "the store is no file"
            else:
                config.store = os.path.join(place, asked.get("persistence_file", _STORE_FILE))
        else:
            without_effect["persistence_location"] = without_effect["persistence_file"] = "write persistence true"
        for name, why in without_effect.items():
            if line := lines.get(name):
                self._problems.warn(line.file, line.number, f"{name} has no effect: {why}")


def _identifiers(security: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in security.items() if name not in _PERMISSION_SETTINGS}


def _line_of(error: ConfigError, section: Section) -> Line:
    """Return the line that an error of a permission is about: the one whose value the error names."""
    lines = [line for name, line in section.lines.items() if KEYS[name].scope == "security"]
    return next((line for line in lines if line.value in str(error)), lines[0])

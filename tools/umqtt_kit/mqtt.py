"""Connections to MQTT brokers for commands: blocking, without threads, on the device library.

    @broker_options
    def command(access: Access, …):
        with Links(access, on_message=take) as link:     # connected, or KitError (exit code 4) that says why not
            link.subscribe("fleet/+/log")                # acknowledged by the broker
            link.publish(topic, payload, qos=1)
            link.wait_for(lambda: not link.pending, 30)

A link that breaks once it was connected comes back by itself, and on_lost is called. The first connection is tried
only once: a user at the terminal would rather correct the address than wait.
"""

from __future__ import annotations

import functools
import os
import secrets
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_cli.escape import printable
from umqtt_cli.numbers import Finite

if TYPE_CHECKING:
    from umqtt_cli.properties import Properties
    from umqtt_robust import Client

QoS = Literal[0, 1, 2]
_POLL_MS = 200
_KEEP_ALIVE_S = 30
_GOODBYE_MS = 1000
_OUTBOX_SLOTS = 256
# A broker of MQTT 3.1.1 cannot refuse a PUBLISH, and some do not refuse a SUBSCRIBE either: they close the connection.
# This many lost links in a row are taken for a refusal.
_CLOSED_AT_SUBSCRIBE = 3
_RX_SIZE = 64 * 1024
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# Values of --mqtt-version, and the protocol levels that they mean.
_PROTOCOLS = {"3.1.1": 4, "5": 5}
_DEFAULT_VERSION = "3.1.1"
# Return codes of CONNACK in MQTT 3.1.1 (3.2.2.3), in words that name what to change.
_REFUSALS = {
    1: "it does not speak that version of MQTT — choose another one: -V, or use another broker",
    2: "it does not accept the client id — choose another one",
    3: "it is not available — look at its log",
    4: "user name or password are wrong — see --username and --password-file",
    5: "user name or password are wrong, or this user may not connect — see --username and --password-file",
}
# Reason codes of MQTT 5 (2.4) that mean the same.
_REFUSALS |= {0x84: _REFUSALS[1], 0x85: _REFUSALS[2], 0x88: _REFUSALS[3], 0x86: _REFUSALS[4], 0x87: _REFUSALS[5]}


@dataclass(frozen=True)
class Access:
    """How to reach a broker. repr() shows no secret.

    addresses: mqtt://host:port or mqtts://host:port, tried in turn; ca, cert, key: PEM; timeout_s: for each address;
    protocol: 4 for MQTT 3.1.1, or 5; client_id: "" for one of this process; others: further brokers of the fleet, each
    with devices of its own.
    """

    addresses: tuple[str, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    protocol: int = _PROTOCOLS[_DEFAULT_VERSION]
    client_id: str = ""
    others: tuple[Access, ...] = ()

    @property
    def each(self) -> tuple[Access, ...]:
        """This broker and the others, one Access each."""
        return (replace(self, others=()), *self.others)

    @property
    def where(self) -> str:
        """The addresses as one text for the user."""
        return ", ".join(address for access in self.each for address in access.addresses)


def broker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the click options for a broker and its credentials to a command, which gets them as `access`."""
    return broker_options_if(lambda options: True)(function)


def broker_options_if(
    wanted: Callable[[dict[str, Any]], object],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return broker_options for a command that may do without a broker.

    wanted(options): says whether it needs one, by its other options. If not, the command gets `access` None, and no
    password is asked for.
    """
    return lambda function: _with_broker_options(function, wanted)


def _with_broker_options(
    function: Callable[..., Any], wanted: Callable[[dict[str, Any]], object]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_access(
        *arguments: Any, broker: tuple[str, ...], username: str | None, password_file: Path | None, ca: Path | None,
        cert: Path | None, key: Path | None, connect_timeout: float, mqtt_version: str, client_id: str,
        **options: Any,
    ) -> Any:  # fmt: skip
        given = {
            "username": username, "password_file": password_file, "ca": ca, "cert": cert, "key": key,
            "mqtt_version": mqtt_version,
        }  # fmt: skip
        access = None
        if wanted(options):
            access = make_access(broker, **for_chosen_broker(given), timeout_s=connect_timeout, client_id=client_id)
        return function(*arguments, access=access, **options)

    for option in (
        click.option("-V", "--mqtt-version", type=click.Choice(list(_PROTOCOLS)), default=_DEFAULT_VERSION,
                     show_default=True, help="What is spoken with the broker."),
        click.option("--client-id", default="", metavar="ID",
                     help="For a broker that binds rights to it.  [default: one of this process]"),
        click.option("--connect-timeout", type=Finite(min=0.1), default=10.0, show_default=True,
                     metavar="SECONDS", help="How long to wait for the first connection."),
        click.option("--key", type=_FILE, help="Its private key."),
        click.option("--cert", type=_FILE, help="Certificate of this client, for a broker that asks for one."),
        click.option("--ca", type=_FILE,
                     help="Authority that signed the broker's certificate. [default: those trusted here]"),
        click.option("--password-file", type=_FILE, help="Its first line is the password. [default: UMQTT_PASSWORD]"),
        click.option("--username", envvar="UMQTT_USERNAME", metavar="NAME", help="User name at the broker."),
        click.option("--broker", envvar="UMQTT_BROKER", default=["mqtt://127.0.0.1:1883"], show_default=True,
                     metavar="URL", multiple=True,
                     help="mqtt://HOST:PORT or mqtts://HOST:PORT. Several share a fleet: each has devices of its own."),
    ):  # fmt: skip
        with_access = option(with_access)
    return with_access


def for_chosen_broker(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the current command for make_access() that apply to the broker that was chosen.

    What umqtt.toml says of its own broker does not apply to another one. And what the environment says is for a broker
    that the command line or the environment names: a file must not direct the user's password to its own broker.
    """
    context = click.get_current_context()
    only_in_file = context.get_parameter_source("broker") is ParameterSource.DEFAULT_MAP
    found: dict[str, Any] = {}
    for name, value in given.items():
        source = context.get_parameter_source(name)
        if source is ParameterSource.DEFAULT_MAP and not only_in_file:
            value = None
        elif source is ParameterSource.ENVIRONMENT and only_in_file:
            value = context.lookup_default(name)
        found[name] = value
    return {**found, "environment": {} if only_in_file else os.environ}


def make_access(
    brokers: Sequence[str], username: str | None = None, password_file: Path | None = None, ca: Path | None = None,
    cert: Path | None = None, key: Path | None = None, timeout_s: float = 10.0,
    mqtt_version: str | None = None, environment: Mapping[str, str] = os.environ, client_id: str = "",
) -> Access:  # fmt: skip
    """Return an Access for the user's options; the password comes from a file, UMQTT_PASSWORD or the terminal.

    environment: where UMQTT_PASSWORD is looked for. Raises KitError (exit code 2).
    """
    for broker in brokers:
        check_address(broker)
    if len(set(brokers)) < len(brokers):
        raise KitError("--broker names one broker twice — name each once", EXIT_USAGE)
    if (cert is None) != (key is None):
        raise KitError("--cert and --key go together — give both", EXIT_USAGE)
    password = _password(username, password_file, brokers[0], environment)
    contents = [_content(file) for file in (ca, cert, key)]
    if contents[0] is None and any(broker.startswith("mqtts:") for broker in brokers):
        contents[0] = _trusted_here()
    protocol = _PROTOCOLS[mqtt_version or _DEFAULT_VERSION]
    options = {"timeout_s": timeout_s, "protocol": protocol, "client_id": client_id}
    each = [Access((broker,), username, password, *contents, **options) for broker in brokers]
    return replace(each[0], others=tuple(each[1:]))


def check_address(broker: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a broker's address, which holds no user name. Raises KitError (exit code 2)."""
    from umqtt_robust.errors import InvalidArgument
    from umqtt_robust.servers import parse_url

    if "@" in broker:
        # The message does not repeat it, since it may hold a password.
        raise KitError(
            "--broker must hold no user name and no password — use --username and --password-file", EXIT_USAGE
        )
    problem = KitError(f"--broker {broker} is no broker's address — give mqtt://HOST or mqtts://HOST", EXIT_USAGE)
    try:
        scheme, host, port, _ = parse_url(broker)
    except InvalidArgument:
        raise problem from None
    if scheme not in ("mqtt", "mqtts"):
        raise problem
    return scheme, host, port


class Link:
    """A client that is connected within the context. Raises KitError (exit code 4) if it cannot connect.

    on_message(topic: str, payload: bytes, qos: int, retain: bool, properties: dict): called for each message before
    it is acknowledged. If it returns False, the message is not acknowledged, and comes again when the session is
    resumed. properties: those of MQTT 5. on_lost(text: str): called when an established link breaks, with its address
    and the reason. on_back(where: str): called when the link is there again. session: client id of a session that the
    broker keeps; without one the broker discards the session when the link ends.
    """

    def __init__(
        self,
        access: Access,
        *,
        on_message: Callable[[str, bytes, int, bool, dict[str, Any]], bool | None] | None = None,
        on_lost: Callable[[str], object] | None = None,
        on_back: Callable[[str], object] | None = None,
        session: str | None = None,
        rx_size: int = _RX_SIZE,
    ) -> None:
        self._access = access
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_back = on_back
        self._problem: BaseException | None = None
        self._untried = len(access.addresses)
        self._was_connected = False
        self._refused: list[str] = []
        self._lost_links = 0
        #: How many messages will never be delivered, and why the last of them will not.
        self.dropped = 0
        self.why_dropped = ""
        self._failed: Exception | None = None
        self.client = self._make(session, rx_size)
        self._others = sum(map(_other_addresses, access.addresses))

    def __enter__(self) -> Self:
        try:
            self._connect()
        except BaseException:
            self.close(0)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(_GOODBYE_MS if kind is None else 0)

    @property
    def pending(self) -> int:
        """Number of messages that the broker has not acknowledged, or that are not written yet."""
        return self.client.pending + self.client.waits()

    def subscribe(self, *filters: str, qos: QoS = 1) -> None:
        """Subscribe to topic filters. Raises KitError if the broker refuses one or does not answer."""
        from umqtt_robust.errors import MQTTError

        for topic_filter in filters:
            try:
                self.client.subscribe(topic_filter, qos=qos)
            except MQTTError as error:
                raise KitError(f"{topic_filter!r}: {error} — correct the topic filter", EXIT_USAGE) from error
        timeout_s, lost = self._access.timeout_s, self._lost_links

        def is_closed_again_and_again() -> bool:
            return self._lost_links - lost >= _CLOSED_AT_SUBSCRIBE

        answered = self.wait_for(
            lambda: bool(self._refused) or self.client.subscribed or is_closed_again_and_again(), timeout_s
        )
        if self._refused:
            raise KitError(
                f"{self._access.where} does not let this user read {', '.join(self._refused)} — "
                "see its permissions, or --username",
                EXIT_NETWORK,
            )
        if not self.client.subscribed and is_closed_again_and_again():
            raise KitError(
                f"{self._access.where} closes the connection at each SUBSCRIBE: it may not let this user read "
                f"{', '.join(filters)} — see its permissions and its log, or --username",
                EXIT_NETWORK,
            )
        if not answered:
            raise KitError(f"{self._access.where} did not answer within {timeout_s:g} s — see its log", EXIT_NETWORK)

    def publish(
        self, topic: str, payload: bytes, qos: QoS = 0, retain: bool = False, properties: Properties | None = None
    ) -> int:
        """Send a message, or queue it at QoS 1 and 2, after waiting for room. Return the packet id, 0 at QoS 0.

        Raises KitError: exit code 2 for an invalid topic name or property, 4 if no room comes.
        """
        from umqtt_robust.errors import InvalidArgument, OutboxFull

        deadline = time.monotonic() + max(self._access.timeout_s, _KEEP_ALIVE_S)
        while time.monotonic() < deadline:
            try:
                expires_in, found = (properties.expires_in_ms, properties.values) if properties else (None, None)
                packet_id = self.client.publish(topic, payload, qos, retain, expires_in, found)
                if packet_id is not None:
                    return packet_id
            except OutboxFull:
                pass  # wait until some of it is acknowledged
            except InvalidArgument as error:
                what = "the topic name or a property" if properties else "the topic name"
                raise KitError(f"{topic!r}: {error} — correct {what}", EXIT_USAGE) from error
            self.client.poll(_POLL_MS)
        raise KitError(f"{self._access.where} takes nothing any more — see its log", EXIT_NETWORK)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Drive the link until the condition holds (True) or the time is over (False); None waits for ever."""
        return wait_for([self], condition, timeout_s)

    def raise_failure(self) -> None:
        """Raise the exception that on_message has raised, if any."""
        if self._failed is not None:
            raise self._failed

    def close(self, quiesce_ms: int = _GOODBYE_MS) -> None:
        """Disconnect, after up to quiesce_ms for what was not sent. May be called again."""
        self._on_lost = self._on_back = self._on_message = self._failed = None
        if not self.client.closed:
            self.client.disconnect(quiesce_ms)
            self.wait_for(lambda: self.client.closed, quiesce_ms / 1000 + 1.0)

    def _make(self, session: str | None, rx_size: int) -> Client:
        from umqtt_robust import Client
        from umqtt_robust.errors import MQTTError
        from umqtt_robust.store import MemoryStore

        access = self._access
        for address in access.addresses:
            check_host(address)
        try:
            return Client(
                # Of two links with one client id, in containers with one process id for example, the broker ends one.
                session or access.client_id or f"umqtt-{secrets.token_hex(6)}",
                access.addresses,
                keep_alive=_KEEP_ALIVE_S,
                clean_session=session is None,
                store=MemoryStore(_OUTBOX_SLOTS),
                rx_size=rx_size,
                connect_timeout=int(access.timeout_s * 1000),
                # No random delay before the first connection: one computer is not a fleet that connects all at once.
                random=lambda limit: 0 if not self._was_connected else _random(limit),
                on_connect=self._connected,
                on_message=self._take,
                on_dead_letter=self._fail,
                on_dropped=self._drop,
                manual_ack=True,
                on_disconnect=self._lost,
                on_error=self._note,
                **client_options(access),
            )
        except MQTTError as error:
            line = f"{access.where}: {error} — correct the address, or --ca, --cert, --key"
            raise KitError(line, EXIT_USAGE) from error

    def _connect(self) -> None:
        timeout_s = self._access.timeout_s
        limit_s = timeout_s * (self._untried + self._others)
        self.wait_for(lambda: self.client.connected or not self._untried, limit_s)
        if not self.client.connected:
            problem = self._problem or TimeoutError()
            said = explain(problem, timeout_s) + _about_virtual_host(problem, self._access.username)
            raise KitError(f"{self._access.where}: {said}", EXIT_NETWORK) from problem

    def _connected(self, session_present: bool) -> None:
        if self._was_connected and self._on_back:
            self._on_back(self._access.where)
        self._was_connected = True

    def _lost(self, problem: BaseException) -> None:
        self._lost_links += 1
        self._tell_lost(problem)

    def _tell_lost(self, problem: BaseException) -> None:
        if self._on_lost:
            why = explain(problem, self._access.timeout_s).partition(" — ")[0]
            self._on_lost(f"{self._access.where}: {why}")

    def _note(self, problem: BaseException) -> None:
        from umqtt_robust.errors import Downgraded, Refused
        from umqtt_robust.malformed import Malformed

        if isinstance(problem, Downgraded):
            return  # see Client.downgraded
        if isinstance(problem, Malformed):
            how, topic = problem.args
            say(f"{self._access.where} sends a message that breaks MQTT: {how}: {printable(topic)}")
            return
        if isinstance(problem, Refused) and problem.args[0] == "subscribe":
            topic_filter = problem.args[1]
            self._refused.append(topic_filter.decode() if isinstance(topic_filter, bytes) else str(topic_filter))
        elif isinstance(problem, Refused) and problem.args[0] == "publish":
            self.why_dropped = f"the broker refuses it: {_reason(*problem.args[2:])}"
        elif not self._was_connected:
            self._problem = self._problem or problem
            if self._others and not isinstance(problem, Refused):
                self._others -= 1
            else:
                self._untried = max(self._untried - 1, 0)
        else:
            self._tell_lost(problem)

    def _take(self, topic: bytes, payload: bytes) -> None:
        # Read these first: on_message may make the client handle other messages.
        packet_id, qos, retain = self.client.packet_id, self.client.flags >> 1 & 3, bool(self.client.flags & 1)
        if self._on_message is None:
            return
        found = self.client.properties if self.client.mqtt5 else {}
        taken = self._on_message(topic.decode(errors="backslashreplace"), payload, qos, retain, found)
        if qos and taken is not False:
            self.client.acknowledge(packet_id)

    def _drop(self, packet_id: int, topic: bytes, payload: bytes, reason: int) -> None:
        from umqtt_robust.policy import EXPIRED, QUARANTINED, REFUSED, TOO_LARGE

        self.dropped += 1
        if reason != REFUSED:  # _note() is told the reason
            said = {
                EXPIRED: "it expired before it was sent",
                TOO_LARGE: "it is larger than the broker takes",
                QUARANTINED: "the broker ends each link at it: it may forbid the topic, the size or the QoS",
            }
            self.why_dropped = said.get(reason, f"reason {reason}")

    def _fail(self, topic: bytes, payload: bytes | None, error: Exception) -> None:
        # Keeps an exception of on_message, which the client does not let into its own loop; wait_for() raises it.
        self._failed = error


def wait_for(links: Sequence[Link], condition: Callable[[], bool], timeout_s: float | None) -> bool:
    """Drive links until the condition holds (True) or the time is over (False); None waits for ever."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    wait_ms = _tick(links)
    while not condition():
        for link in links:
            link.raise_failure()
        left_ms = _POLL_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
        if left_ms > 0:
            _await_bytes(links, max(1, min(wait_ms, _POLL_MS, left_ms)))
        # Also at the deadline: if this process was suspended, the answer has arrived but has not been read yet.
        wait_ms = _tick(links)
        if left_ms <= 0:
            return condition()
    return True


def _tick(links: Sequence[Link]) -> int:
    """Drive each client once; return the milliseconds until one of them must be driven again."""
    return min(link.client.tick() for link in links)


def _await_bytes(links: Sequence[Link], most_ms: int) -> None:
    """Wait until one of the clients can read or write, at most most_ms."""
    clients = [link.client for link in links]
    if len(clients) == 1:
        clients[0].poll(most_ms)
        return
    sockets = {client.socket: client.waits() for client in clients if client.socket is not None}
    select.select(list(sockets), [found for found, waits in sockets.items() if waits], [], most_ms / 1000)


def client_options(access: Access) -> dict[str, Any]:
    """Return the arguments of umqtt_robust.Client besides addresses.

    Raises MQTTError for an invalid certificate or key.
    """
    options: dict[str, Any] = {"protocol": access.protocol}
    if access.username is not None:
        options |= {"username": access.username, "password": access.password}
    if any(address.startswith("mqtts:") for address in access.addresses):
        from umqtt_robust.tls import TLS

        options["transports"] = {"mqtts": TLS(access.ca or b"", access.cert, access.key)}
    return options


def check_host(address: str) -> None:
    """Raise KitError (exit code 2) for a host name that DNS cannot have; the look-up would fail on its form."""
    try:
        (urlsplit(address).hostname or "").encode("idna")
    except ValueError:
        problem = "no computer can have that name: a part of it is empty, or longer than 63 bytes"
        raise KitError(f"{address}: {problem} — correct the address", EXIT_USAGE) from None


def _explain_alert(alert: str) -> str:
    """Return why the broker ends a TLS handshake [RFC 8446, 6.2], and what to do. alert: in OpenSSL's words."""
    words = alert.lower().replace("_", " ")
    if alert == "CERTIFICATE_REQUIRED":
        return "the broker asks for a certificate of this client — give --cert and --key"
    if "CERTIFICATE" in alert or alert == "UNKNOWN_CA":
        return f"the broker does not accept the certificate of this client ({words}) — give another: --cert and --key"
    return f"the broker ends the TLS handshake ({words}) — see its log"


def explain(problem: BaseException, timeout_s: float) -> str:
    """Return why there is no link, and what to do, in one line."""
    from umqtt_robust.errors import LinkLost, ProtocolError, Refused
    from umqtt_robust.large import MessageTooLarge
    from umqtt_robust.tls import CertificateRefused

    if isinstance(problem, Refused):
        what, code, *more = problem.args
        if what == "disconnect":
            return f"the broker ended the connection: {_reason(code, *more)} — see its log"
        return f"the broker refuses the connection: {_REFUSALS.get(code) or _reason(code, *more) + ' — see its log'}"
    if isinstance(problem, CertificateRefused):
        return f"its certificate is not trusted ({problem}) — give the one that signed it: --ca FILE"
    if isinstance(problem, ssl.SSLError) and "ALERT" in (problem.reason or ""):
        return _explain_alert(str(problem.reason).partition("ALERT_")[2])
    if isinstance(problem, ssl.SSLError):
        return f"TLS fails ({problem.reason or problem}) — is that a port for mqtts://?"
    if isinstance(problem, MessageTooLarge):
        return f"a message was too large and is left out: {problem.args[1]} bytes on {problem.args[0]!r}"
    if isinstance(problem, ProtocolError):
        return f"what answers there does not speak MQTT: {problem} — correct the port"
    if isinstance(problem, socket.gaierror):
        return "there is no computer of that name — correct the address"
    if isinstance(problem, ConnectionRefusedError):
        return "nothing listens there — is the broker running? Correct the address, or start one: umqtt broker"
    if isinstance(problem, TimeoutError) or problem.args == ("connect_timeout",):
        return f"no answer within {timeout_s:g} s — correct the address, look for a firewall, or see --connect-timeout"
    if isinstance(problem, ConnectionError) or problem.args == ("closed by the broker",):
        return "the connection was closed without an answer — is it the right port, and mqtt:// or mqtts://?"
    if isinstance(problem, OSError):
        return f"{problem.strerror or problem} — correct the address"
    if problem.args[:1] == ("id in use elsewhere, or topic forbidden?",):
        why = "this user may have no right to that topic, or another client uses its id"
        return f"it closes each connection at once: {why}"
    if isinstance(problem, LinkLost) and len(problem.args) == 2 and problem.args[0].startswith("leaving the session"):
        return f"{problem.args[0]} ({problem.args[1]}); what waits in it is lost"
    if isinstance(problem, LinkLost) and problem.args == ("ping_timeout",):
        return "the broker does not answer any more — see its log"
    return f"{problem} — see the broker's log"


def _about_virtual_host(problem: BaseException, username: str | None) -> str:
    """Return what else may be wrong if the broker refuses a user name with a colon, as RabbitMQ's may have."""
    from umqtt_robust.errors import Refused

    virtual_host, colon, _ = (username or "").rpartition(":")
    if not colon or not isinstance(problem, Refused):
        return ""
    return f"; for RabbitMQ, {printable(virtual_host)!r} must be a virtual host in which the user has permissions"


def _reason(code: int, *told: bytes) -> str:
    """Return a return code or reason code in words and as a number, with what else the broker says of it."""
    from umqtt_cli.reason_codes import describe

    return printable(describe(code, *told))


def _other_addresses(url: str) -> int:
    """Return how many addresses the host of a URL has beyond one. The client tries the next one at each attempt."""
    from umqtt_robust.servers import parse_url

    try:
        return len(socket.getaddrinfo(*parse_url(url)[1:3], type=socket.SOCK_STREAM)) - 1
    except OSError:
        return 0


def _password(username: str | None, file: Path | None, broker: str, environment: Mapping[str, str]) -> str | None:
    if file is not None:
        if username is None:
            raise KitError("--password-file without a user name — add --username NAME", EXIT_USAGE)
        try:
            if file.stat().st_mode & 0o077:
                raise KitError(f"{file} holds a password and others may read it — try: chmod 600 {file}", EXIT_USAGE)
            return file.read_bytes().partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")
        except OSError as error:
            raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error
        except UnicodeDecodeError as error:
            raise KitError(f"{file}: its password is no UTF-8 — save it as UTF-8", EXIT_USAGE) from error
    if username is None:
        return None
    password = environment.get("UMQTT_PASSWORD")
    if password is not None:
        return password
    if not sys.stdin.isatty():
        hint = "use --password-file or UMQTT_PASSWORD"
        if "UMQTT_PASSWORD" in os.environ:
            hint = f"UMQTT_PASSWORD is not for a broker that only umqtt.toml names: give --broker {broker} too"
        raise KitError(f"there is no password for {username} and no terminal to ask on — {hint}", EXIT_USAGE)
    import getpass

    return getpass.getpass(printable(f"Password of {username} at {broker}: "))


def _content(file: Path | None) -> bytes | None:
    try:
        return file.read_bytes() if file else None
    except OSError as error:
        raise KitError(f"{file}: {error.strerror} — give a file that can be read", EXIT_USAGE) from error


def _trusted_here() -> bytes:
    file = ssl.get_default_verify_paths().cafile
    if file is None or not Path(file).is_file():
        raise KitError("this computer has no list of certificate authorities — give one: --ca FILE", EXIT_USAGE)
    return Path(file).read_bytes()


def _random(limit: int) -> int:
    return int.from_bytes(os.urandom(4), "big") % limit

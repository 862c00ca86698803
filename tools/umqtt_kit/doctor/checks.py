"""Checks of one board, in the order in which a reading passes them.

What depends on a check that failed is left out.
"""

from __future__ import annotations

import contextlib
import datetime
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cryptography import x509
from umqtt_testkit.cloud_rules import sas_token

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, KitError
from umqtt_cli.escape import printable
from umqtt_kit.data import board_folders
from umqtt_kit.deploy.build import check_compatible
from umqtt_kit.deploy.plan import read_record
from umqtt_kit.deploy.tracebacks import readable
from umqtt_kit.device import Board, DeviceError, Info, Port, look, read_configuration
from umqtt_kit.device.guess import check_board, itself, missing_network
from umqtt_kit.device.trouble import HEAP_TOO_SMALL, LEAST_HEAP
from umqtt_kit.doctor import scripts
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.mqtt import Access, Link
from umqtt_kit.provision.write import about_dot
from umqtt_robust.errors import Refused
from umqtt_robust.servers import parse_url

OK, WARN, FAIL = "ok", "warn", "fail"

_NETWORKS = {"wifi": "Wi-Fi", "wired": "sockets, and no Wi-Fi"}
_LEAST_FLASH_FREE = 64 * 1024
# Two blocks: with less, littlefs writes nothing any more, and readings that cannot be sent are lost.
_FULL_BELOW = 8 * 1024
_CLOCK_OFF_S = 60
_JOIN_WITHIN_MS = 15_000
_CONNECT_WITHIN_S = 5
_WEAK_DBM = -80
_EXPIRES_SOON_DAYS = 30
_TOKEN_S = 600  # the firmware's lasts for an hour
_STARTS_WITHIN_S = 20.0
_STARTED_AFTER_MS = 60_000
_LOOK_AGAIN_S = 0.5
# Values of WLAN.status() of the ports, in words; a number that is not here is shown as it is.
_WIFI_STATUS = {
    200: "its beacons were lost",
    201: "it is not in range",
    202: "the password is wrong",
    203: "it refused the association",
    204: "the handshake took too long, often a wrong password",
    -3: "the password is wrong",
    -2: "it is not in range",
    -1: "the connection failed",
    1: "it did not answer in time",
    1001: "it did not answer in time",
}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    state: OK, WARN or FAIL; remedy: what to do; exit_code: what a failure means for the command; more: lines of a
    traceback.
    """

    name: str
    state: str
    text: str
    remedy: str = ""
    exit_code: int = EXIT_DEVICE
    more: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        more = {"more": list(self.more)} if self.more else {}
        return {"name": self.name, "state": self.state, "text": self.text, "remedy": self.remedy, **more}


def examine(port: Port, *, interrupt: bool = False) -> Iterator[Finding]:
    """Yield every finding as soon as it is known. interrupt: as in look().

    If the board goes away or fails at what it is asked, that is the last finding.
    """
    name = "port"
    try:
        for finding in _examine(port, interrupt):
            name = "board"
            yield finding
    except KitError as error:
        if isinstance(error, DeviceError) and "MemoryError" in error.error:
            name = "heap"
        text, _, remedy = str(error).partition(" — ")
        yield Finding(name, FAIL, text, remedy or "see what it says: umqtt logs", error.exit_code)


def _examine(port: Port, interrupt: bool) -> Iterator[Finding]:
    with look(port, interrupt=interrupt) as board:
        yield Finding("port", OK, f"{port.path} answers{', and its program goes on' if board.beside else ''}")
        info = board.info()
        yield _micropython(info)
        yield _network(info, port)
        yield _flash(info)
        yield _heap(info)
        yield _clock(board)
        yield from _application(board, info)
        yield from _starts(board)
        configuration = read_configuration(board)
        try:
            settings, secrets = configuration.checked()
        except ValueError as error:
            text = "there are none" if configuration.settings is None else str(error)
            yield Finding("settings", FAIL, text, "umqtt provision")
            return
        if wrong := itself(port, settings["brokers"]):
            yield Finding("settings", FAIL, *wrong)
            return
        yield Finding("settings", OK, f"brokers: {len(settings['brokers'])}, Wi-Fi networks: {len(settings['wifi'])}")
        if board.beside:
            yield from _as_it_runs(board, settings)
        else:
            yield from _tried(board, settings)
        device_id = settings["device_id"] or info.unique_id or "unknown"
        access = access_of_board(board, settings, secrets, device_id)
        is_running = board.beside
    if problem := about_dot(device_id):
        text, _, remedy = problem.partition(" — ")
        yield Finding("device id", WARN, text, remedy)
    if not is_running:
        yield _broker_from_here(access, device_id)
    yield from certificates(access)


def _network(info: Info, port: Port) -> Finding:
    missing = missing_network(info, port)
    if missing is not None:
        return Finding("network", FAIL, *missing)
    return Finding("network", OK, f"the image has {_NETWORKS[info.network]}")


def _micropython(info: Info) -> Finding:
    text = f"{info.version} on {info.machine}"
    try:
        check_compatible(info)
    except KitError as error:
        problem, _, remedy = str(error).partition(" — ")
        return Finding("micropython", FAIL, problem, remedy)
    return Finding("micropython", OK, text)


def _flash(info: Info) -> Finding:
    text = f"{info.flash_free // 1024:,} of {info.flash_size // 1024:,} KB free"
    if info.flash_free < _LEAST_FLASH_FREE:
        state = FAIL if info.flash_free < _FULL_BELOW else WARN
        return Finding("flash", state, text, "remove files that nobody needs: mpremote fs ls, mpremote fs rm")
    return Finding("flash", OK, text)


def _heap(info: Info) -> Finding:
    text = f"{info.heap_size // 1024:,} KB"
    if info.heap_size < LEAST_HEAP:
        return Finding("heap", WARN, text, HEAP_TOO_SMALL)
    return Finding("heap", OK, text)


def _clock(board: Board) -> Finding:
    seconds = board.eval(scripts.UNIX_TIME)
    off_s = abs(float(seconds) - time.time()) if isinstance(seconds, (int, float)) else float("inf")
    if off_s > _CLOCK_OFF_S:
        return Finding(
            "clock",
            WARN,
            "not set: readings carry no time of day, and TLS is refused, until NTP has answered",
            "set ntp_host: umqtt provision --set ntp_host=pool.ntp.org",
        )
    return Finding("clock", OK, f"within {off_s:.0f} s of this computer's")


def _application(board: Board, info: Info) -> Iterator[Finding]:
    record = read_record(board)
    if not info.has_main or record.version is None:
        text = "a program that no deployment put there" if info.has_main else "none"
        yield Finding("application", FAIL, text, "umqtt deploy")
        return
    if not record.complete:
        yield Finding("application", FAIL, "a deployment was interrupted", "repeat it: umqtt deploy")
        return
    there = board.hashes(record.files)
    changed = sorted(path for path, digest in record.files.items() if there[path] != digest)
    if changed:
        names = ", ".join(changed[:3])
        yield Finding("application", FAIL, f"{len(changed)} files are not what was deployed: {names}", "umqtt deploy")
        return
    try:
        if record.board in board_folders():
            check_board(record.board, info)
    except KitError as error:
        problem, _, remedy = str(error).partition(" — ")
        yield Finding("application", FAIL, f"its files are those of another board: {problem}", remedy)
        return
    yield Finding("application", OK, f"{info.app_version or record.version}, {len(record.files)} files as deployed")


def _starts(board: Board) -> Iterator[Finding]:
    """Yield a finding if the board's most recent start has failed: how many in a row, and the last traceback."""
    try:
        failures, safe, traceback = cast(Any, board.value(scripts.STARTS))
    except DeviceError as error:
        if "ImportError" not in error.error:  # that is an application that does not record its starts
            yield Finding("start", WARN, f"its records of starts cannot be read: {error.error}", "umqtt deploy")
        return
    if not failures:
        return
    text = f"{failures} starts in a row have failed{', and it is in safe mode' if safe else ''}"
    if not traceback:
        text += "; no traceback was kept, so the watchdog or a reset ended them"
        yield Finding("start", FAIL, text, "see what it says before: umqtt logs")
        return
    record = read_record(board)
    shown = readable(str(traceback), record.files, record.board or "")
    lines = [line for line in shown.splitlines() if line.strip()]
    remedy = HEAP_TOO_SMALL if "MemoryError" in lines[-1] else "correct that, then: umqtt deploy"
    yield Finding("start", FAIL, f"{text}: {lines[-1]}", remedy, more=tuple(lines))


def _tried(board: Board, settings: dict[str, Any]) -> Iterator[Finding]:
    """Try the sensors, Wi-Fi and brokers of a board whose program does not run."""
    for entry in settings["sensors"]:
        problem, _ = cast(Any, board.value(scripts.SENSOR.format(entry=entry, lent=[])))
        yield _sensor(entry, problem)
    if settings["wifi"]:
        finding = try_wifi(board, settings["wifi"])
        yield finding
        if finding.state == FAIL:
            return
    for address in settings["brokers"]:
        yield _broker_from_board(board, address)


def _as_it_runs(board: Board, settings: dict[str, Any]) -> Iterator[Finding]:
    """Check sensors, Wi-Fi and brokers of a running firmware, from its state and its log."""
    began = time.monotonic()
    while True:
        state = cast(Any, board.value(scripts.RUNNING))
        lines = [str(line).partition(" ")[2] for line in state["lines"]]
        # A firmware that has just started gets time for its first link, or for the reason why there is none.
        failed = any(line.startswith(("warning broker: ", "warning Wi-Fi: ")) for line in lines)
        if state["link"] or failed or time.monotonic() - began > _STARTS_WITHIN_S or state["up"] > _STARTED_AFTER_MS:
            break
        time.sleep(_LOOK_AGAIN_S)
    for entry in settings["sensors"]:
        label = f"sensor {entry.get('name') or entry['module']}: "
        said = _last(lines, label)
        yield _sensor(entry, None if said in (None, "answers again") else said)
    if settings["wifi"]:
        if not state["wifi"]:
            reason = _last(lines, "Wi-Fi: ") or f"not joined {state['up'] // 1000} s after its start"
            yield Finding("wifi", FAIL, reason, "correct name or password: umqtt provision", EXIT_NETWORK)
            return
        said = _last(lines, "Wi-Fi: ") or ""
        yield Finding("wifi", OK, said if said.startswith("joined ") else "joined")
    yield _outbox(state)
    if state["link"]:
        yield Finding("broker from the board", OK, "connected")
        return
    reason = _last(lines, "broker: ") or f"no link {state['up'] // 1000} s after its start"
    yield _no_link("broker from the board", reason)


def _no_link(name: str, reason: str) -> Finding:
    """Return the failure for a line of the board's log, which says what is wrong, a colon, and what to do."""
    text, _, remedy = reason.partition(": ")
    return Finding(name, FAIL, text, remedy or "see what it says: umqtt logs", EXIT_NETWORK)


def _outbox(state: dict[str, Any]) -> Finding:
    """Return what waits on the board, for how much there is room, and which topics its broker does not take."""
    aside: Sequence[bytes] = state["aside"]
    if not aside:
        more = ", and further readings in flash" if state["later"] else ""
        hours, years = state["room"]
        room = f"; {firmware_module('room').describe(hours, years)}" if hours is not None else ""
        return Finding("outbox", OK, f"{state['waiting']} messages wait{more}{room}")
    topics = ", ".join(sorted({printable(topic) for topic in aside})[:3])
    text = f"{len(aside)} messages are set aside, because the broker ends each link at them: {topics}"
    return Finding("outbox", WARN, text, "let it take them, then: umqtt outbox --send-on all", EXIT_NETWORK)


def _last(lines: list[str], label: str) -> str | None:
    """Return the newest line that begins with `label`, without its level and the label; None if there is none."""
    found = (line.partition(" ")[2] for line in reversed(lines))
    return next((text.removeprefix(label) for text in found if text.startswith(label)), None)


def _sensor(entry: dict[str, Any], problem: str | None) -> Finding:
    name = f"sensor {entry.get('name') or entry['module']}"
    if problem is None:
        return Finding(name, OK, "no failure")
    if "no module" in problem:
        remedy = "umqtt deploy --sensors FOLDER, or correct its name: umqtt provision"
    elif "TypeError" in problem:
        remedy = "correct what the settings give it: umqtt provision --set sensors=…"
    else:
        remedy = "look at its wires and its pins"
    return Finding(name, FAIL, problem, remedy)


def try_wifi(board: Board, names: list[str]) -> Finding:
    """Try whether a board whose program does not run joins one of these networks."""
    program = scripts.JOIN.format(names=names, attempt_ms=_JOIN_WITHIN_MS)
    try:
        joined, address, signal, failed = cast(Any, board.value(program, len(names) * (_JOIN_WITHIN_MS / 1000 + 5)))
        found = {} if joined is not None else dict(cast(Any, board.value(scripts.SCAN, 20.0)))
    except DeviceError as error:
        remedy = "a board without Wi-Fi must have none in its settings: umqtt provision"
        return Finding("wifi", FAIL, error.error, remedy, EXIT_NETWORK)
    if joined is not None:
        text = f"{joined}, address {address}"
        if isinstance(signal, int) and signal < _WEAK_DBM:
            return Finding("wifi", WARN, f"{text}, only {signal} dBm", "move the board or its aerial")
        return Finding("wifi", OK, text)
    reasons = "; ".join(f"{name}: {_WIFI_STATUS.get(status, status)}" for name, status in failed)
    seen = ", ".join(list(found)[:5]) or "none at all"
    return Finding(
        "wifi", FAIL, f"{reasons}; in range are: {seen}", "correct name or password: umqtt provision", EXIT_NETWORK
    )


def _broker_from_board(board: Board, address: str) -> Finding:
    _, host, port, _ = parse_url(address)
    name = f"{address} from the board"
    program = scripts.REACH.format(host=host, port=port, timeout_s=_CONNECT_WITHIN_S)
    # A name look-up alone may take half a minute on a board.
    problem = cast(Any, board.value(program, 60.0))
    if problem is None:
        return Finding(name, OK, "accepts the connection")
    step, error = problem
    if step == "name":
        return Finding(
            name, FAIL, f"{host}: no such name ({error})", "umqtt provision, or the network's DNS", EXIT_NETWORK
        )
    return Finding(name, FAIL, f"no connection ({error})", "is the broker running, and its port open?", EXIT_NETWORK)


def access_of_board(
    board: Board, settings: Mapping[str, Any], secrets: Mapping[str, Any], device_id: str
) -> Access:  # fmt: skip
    """Return how the board reaches its broker, by its settings, its secrets and the certificates on it."""
    tls = {name: board.get(path) for name, path in secrets.get("tls", {}).items()}
    mqtt = secrets.get("mqtt", {})
    username, password = mqtt.get("username"), mqtt.get("password")
    if username and settings["topics"]:
        username = username.replace("{device_id}", device_id)
    if key := mqtt.get("sas_key"):
        resource = f"{username.partition('/')[0]}/devices/{device_id}"
        password = sas_token(resource, key, int(time.time()) + _TOKEN_S)
    return Access(
        tuple(settings["brokers"]),
        username,
        password,
        tls.get("ca"),
        tls.get("cert"),
        tls.get("key"),
    )


def _broker_from_here(access: Access, device_id: str) -> Finding:
    """Log in as the board, which does not run: with its credentials and its client id, and its session is kept."""
    name = "broker from here"
    try:
        with Link(access, session=device_id):
            return Finding(name, OK, "accepts the board's credentials")
    except KitError as error:
        if isinstance(error.__cause__, Refused):
            return _no_link(name, firmware_module("reasons").of(error.__cause__).removeprefix("broker: "))
        # The board may reach what this computer does not.
        text, _, remedy = str(error).partition(" — ")
        return Finding(name, WARN, text, remedy)


def certificates(access: Access) -> Iterator[Finding]:
    """Yield when the first of the certificates of board and broker expires; nothing if there are none."""
    pems = [content for content in (access.ca, access.cert) if content and content.startswith(b"-----BEGIN")]
    for scheme, host, port, _ in map(parse_url, access.addresses):
        if scheme in ("mqtts", "wss"):
            # The check of the broker has told what else is wrong.
            with contextlib.suppress(OSError):
                pems.append(ssl.get_server_certificate((host, port), timeout=_CONNECT_WITHIN_S).encode())
    try:
        ends = [one.not_valid_after_utc for pem in pems for one in x509.load_pem_x509_certificates(pem)]
    except ValueError:
        yield Finding("certificates", WARN, "a file of the board holds none that can be read", "umqtt provision")
        return
    if ends:
        soon = min(ends) < datetime.datetime.now(datetime.UTC) + datetime.timedelta(_EXPIRES_SOON_DAYS)
        text = f"the first to expire is valid until {min(ends):%Y-%m-%d}"
        yield Finding(
            "certificates", WARN if soon else OK, text, "umqtt certs renew, then umqtt provision" if soon else ""
        )

"""Updates that boards are ordered to install during a proof: one that works, one that does not start, one unsigned."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from umqtt_kit.app_bundle import INIT, AppBundle
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy.build import build
from umqtt_kit.firmware_settings import firmware_module
from umqtt_kit.ota.release import Release, make_release

#: Versions of which no board may ever say that it runs them.
BROKEN, UNSIGNED = "9.1.0-broken", "9.2.0-unsigned"
_VERSIONS = ("9.0.0", BROKEN, UNSIGNED)


def version_of(draw: float) -> str:
    """Return the version that a fault with this draw orders."""
    return _VERSIONS[int(draw * len(_VERSIONS))]


class Updates:
    """The releases, on web servers within this context, and the owner's key of all boards.

    send(device_id, payload): publishes a command.
    """

    def __init__(self, send: Callable[[str, bytes], object]) -> None:
        self._send = send
        self._key = secrets.token_bytes(32)
        self._stack = contextlib.ExitStack()
        self._urls: dict[str, str] = {}
        self._sent = dict.fromkeys(_VERSIONS, 0)
        self._releases = dict(zip(_VERSIONS, _releases(), strict=True))

    @property
    def secrets(self) -> bytes:
        """The boards' secrets.json."""
        return json.dumps({"commands": {"key": self._key.hex()}}).encode()

    def __enter__(self) -> Self:
        for version, release in self._releases.items():
            serving = _served(release, lambda size, version=version: self._count(version, size))
            self._urls[version] = self._stack.enter_context(serving)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def order(self, device_id: str, draw: float) -> Callable[[], str | None]:
        """Order an update; return what says, later, which one it was and what was fetched of it."""
        version = version_of(draw)
        before = self._sent[version]
        args = {"url": self._urls[version], "sha256": self._releases[version].manifest, "version": version}
        command: dict[str, object] = {"id": os.urandom(6).hex(), "cmd": "update", "args": {**args, "downgrade": True}}
        if version == UNSIGNED:
            payload = json.dumps(command).encode()
        else:
            command["counter"] = time.time_ns() // 1_000_000
            payload = firmware_module("signed").sign(self._key, device_id, json.dumps(command).encode())
        self._send(device_id, payload)

        def seen() -> str | None:
            fetched = self._sent[version] - before
            return f"{version}, {fetched} bytes fetched" if fetched or version == UNSIGNED else None

        return seen

    def _count(self, version: str, size: int) -> None:
        self._sent[version] += size


@contextlib.contextmanager
def _served(release: Release, on_sent: Callable[[int], object]) -> Iterator[str]:
    """Serve a release on loopback within the context, whole or from an offset on; yield the URL of its folder."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30.0  # a board without power must not keep a thread for ever

        def do_GET(self) -> None:
            content = release.objects.get(self.path.lstrip("/"))
            if content is None:
                self.send_error(404)
                return
            asked = re.match(r"bytes=(\d+)-$", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content[start:])))
            self.end_headers()
            self.wfile.write(content[start:])
            on_sent(len(content) - start)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, name="web server of updates", daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()


def _releases() -> list[Release]:
    built = build(None, ())
    files = {path: content for path, content in built.files.items() if path != "/app/__init__.mpy"}
    source = AppBundle(firmware_folder()).sources[INIT]
    old = f"VERSION = '{built.version}'"
    assert source.count(old) == 1, "the firmware's version is written in another way"
    made = []
    for version in _VERSIONS:
        package = source.replace(old, f"VERSION = '{version}'")
        if version == BROKEN:
            package += "\nraise ValueError('a broken version')\n"
        made.append(make_release(version, {**files, "/app/__init__.py": package.encode()}))
    return made

"""A console in a thread, and a plain HTTP client for it."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from umqtt_console.access import COOKIE, TOKEN_HEADER, Access
from umqtt_console.api import Parts
from umqtt_console.app import Console
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_robust import aio

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Reply:
    """An HTTP answer. cookie: the session that it set, if any."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body
        self.cookie = self.headers.get("set-cookie", "").partition(";")[0].partition("=")[2]

    @property
    def json(self) -> Any:
        """The body, decoded as JSON."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The message of an error."""
        return self.json["error"]["message"]


class ServedConsole:
    """A console within the context. options: of Parts. broker: port of an MQTT broker."""

    def __init__(
        self, tables: Path, users: Path | None = None, broker: int | None = None, port: int = 0,
        broker_flags: Sequence[str] = (), **options: Any,
    ) -> None:  # fmt: skip
        options["broker"] = broker_flags
        self._make = partial(self._made, tables, users, broker, options)
        self._wanted = port
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def _made(self, tables: Path, users: Path | None, broker: int | None, options: dict[str, Any]) -> Console:
        options.setdefault("audit", tables / "audit.jsonl")
        parts = self.parts = Parts(tables, version="test", **options)
        if broker is not None:
            url = f"mqtt://127.0.0.1:{broker}"
            client = partial(aio.Client, "console-under-test", url, rx_size=65536, inbox_size=1 << 20)
            parts.live.add(url, client, str)
        return Console(parts, Access(users, LOOPBACK, secure=False))

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            runner, self.port = await self._make().serve("127.0.0.1", self._wanted, None)
        except BaseException as error:  # noqa: BLE001 - raised where the test waits
            self._failed = error
            self._ready.set()
            return
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(WAIT_LIMIT_S)
        if self._failed is not None:
            raise self._failed
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_LIMIT_S)

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request as it is given."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_LIMIT_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def get(self, path: str, cookie: str = "", **query: Any) -> Any:
        """Return the JSON of a GET that must succeed; what is no text or number is sent as JSON."""
        found = {name: value if isinstance(value, str | int) else json.dumps(value) for name, value in query.items()}
        reply = self.call("GET", f"/api/{path}?{urlencode(found)}", headers=_cookie(cookie))
        assert reply.status == 200, reply.body
        return reply.json

    def post(self, path: str, body: object, cookie: str = "") -> Reply:
        """Send a POST with the session's token."""
        token = self.get("me", cookie)["token"]
        return self.call("POST", f"/api/{path}", body, {TOKEN_HEADER: token, **_cookie(cookie)})

    def login(self, name: str, password: str) -> Reply:
        """Log in."""
        return self.call("POST", "/api/login", {"name": name, "password": password})


def _cookie(value: str) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={value}"} if value else {}


Serve = Callable[..., ServedConsole]

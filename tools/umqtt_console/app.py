"""The application: the guard before every request, the routes, the page's files, and the tasks that run beside them."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import umqtt_page
from aiohttp import web
from umqtt_broker.observation.routes import Route

from .access import Access
from .api import Api, Parts
from .broker_api import BrokerAway
from .routes import ROLE_OF, description
from .tables import TablesAway

_MOST_BODY = 256 * 1024
# The addresses of the page: each shows the same file, which draws the view of the address.
VIEWS = ("/", "/fleet", "/device", "/path", "/topics", "/explore", "/acts", "/crashes", "/broker")
_SCRIPTS = ("main.js", "fleet.js", "device.js", "path.js", "topics.js", "explore.js", "acts.js", "broker_view.js")
_PAGE = {**dict.fromkeys(_SCRIPTS, "text/javascript"), "console.css": "text/css", "icon.svg": "image/svg+xml"}


def error_response(status: int, message: str) -> web.Response:
    """Return an error as JSON, in the form that all errors of the API have."""
    return web.json_response({"error": {"status": status, "message": message}}, status=status)


class Console:
    """The whole application. Use `application` with an aiohttp runner, or `serve`."""

    def __init__(self, parts: Parts, access: Access) -> None:
        self._access = access
        self._api = Api(parts, access)
        self._live = parts.live
        self._roles: dict[tuple[str, str], str] = {}
        self.application = web.Application(middlewares=[self._guard()], client_max_size=_MOST_BODY)
        self._add_routes()
        self.application.cleanup_ctx.append(self._tasks)

    async def serve(self, host: str, port: int, tls: ssl.SSLContext | None) -> tuple[web.AppRunner, int]:
        """Listen; return the runner, whose cleanup() ends it, and the port. Raises OSError."""
        runner = web.AppRunner(self.application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls)
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        return runner, runner.addresses[0][1]

    def _add_routes(self) -> None:
        router = self.application.router
        for route, role in ROLE_OF:
            router.add_route(route.method, route.path, self._handler(route))
            self._roles[route.method, route.path] = role
        answer = description()

        async def openapi(request: web.Request) -> web.Response:
            del request
            return web.json_response(answer)

        async def health(request: web.Request) -> web.Response:
            del request
            return web.json_response({"status": "ok"})

        router.add_get("/api/openapi.json", openapi, allow_head=False)
        router.add_get("/api/events", self._api.events, allow_head=False)
        router.add_get("/healthz", health)
        self._roles |= {("GET", "/api/openapi.json"): "read", ("GET", "/api/events"): "read"}
        folder = files(__name__.rpartition(".")[0]) / "page"
        index = _static((folder / "index.html").read_bytes(), "text/html")
        for view in VIEWS:
            router.add_get(view, index)
        for name, kind in _PAGE.items():
            router.add_get(f"/{name}", _static((folder / name).read_bytes(), kind))
        for name, kind in umqtt_page.NAMES.items():
            router.add_get(f"/{name}", _static(umqtt_page.read(name), kind))

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        method = getattr(self._api, route.handler)

        async def handle(request: web.Request) -> web.StreamResponse:
            found = await method(request, route.query(request))
            return found if isinstance(found, web.StreamResponse) else web.json_response(found, dumps=_dumps)

        return handle

    def _guard(self) -> Any:
        @web.middleware
        async def guarded(request: web.Request, handler: Any) -> web.StreamResponse:
            # What is not listed needs a session all the same, also to learn that it does not exist.
            role = self._roles.get((request.method, request.path), "read" if request.path.startswith("/api/") else "")
            refused = self._access.refusal(request, role)
            response: web.StreamResponse
            if refused is not None:
                response = error_response(*refused)
            else:
                try:
                    response = await handler(request)
                except web.HTTPException as error:
                    response = error_response(error.status, error.text or error.reason)
                except UnicodeEncodeError:
                    response = error_response(400, "a text holds half of a surrogate pair, which is no character")
                except BrokerAway as error:
                    response = error_response(error.status if error.status in (400, 404, 409, 503) else 502, str(error))
                except TablesAway as error:
                    response = error_response(503, str(error))
            if not response.prepared:
                self._access.protect(response)
            return response

        return guarded

    async def _tasks(self, application: web.Application) -> Any:
        del application
        tasks = [asyncio.create_task(self._live.run()), asyncio.create_task(self._api.look_for_versions())]
        yield
        await self._api.operator.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _dumps(value: object) -> str:
    """Return JSON that a browser reads: a number that JSON has not becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def _static(content: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(request: web.Request) -> web.Response:
        del request
        return web.Response(body=content, content_type=kind, charset=None if kind == "image/svg+xml" else "utf-8")

    return serve

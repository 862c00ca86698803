"""Decides which requests the HTTP listener accepts, before any handler runs. Three checks:

Host: a page of another site that lets its own host name resolve to 127.0.0.1 (DNS rebinding) still sends that name in
the Host header, and is refused. Origin and Sec-Fetch-Site: requests from pages of other sites are refused. They could
not send the token anyway, since it is not a cookie; this is a second defence. Token: required for everything but the
page's files and the health checks.
"""

from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware
from umqtt_page import HEADERS

from .token_file import is_token

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# All reasons for which requests are refused.
REASONS = ("host", "origin", "token")


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an error as JSON, in the form that all errors of the API have."""
    return web.json_response({"error": {"status": status, "message": message}}, status=status, headers=headers)


class Guard:
    """Refuses requests. refused: how many, by reason.

    token: the secret that requests must send. hosts: the values of the Host header that this listener accepts.
    open_paths: the paths that need no token. standby: returns why the broker does not serve yet, "" if it serves; a
    standby answers requests that need the token with 503, except /metrics.
    """

    def __init__(
        self, token: str, hosts: frozenset[str], open_paths: frozenset[str], standby: Callable[[], str]
    ) -> None:
        self._token = token
        self._hosts = hosts
        self._origins = frozenset("http://" + host for host in hosts)
        self._open_paths = open_paths
        self._standby = standby
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))

    def middleware(self) -> Middleware:
        """Return the middleware. It also gives every response the same headers, and all errors the same form."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = self._refusal(request)
            if response is None:
                try:
                    response = await handler(request)
                except web.HTTPException as error:
                    response = _as_json(request, error)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    def _refusal(self, request: web.Request) -> web.Response | None:
        headers = request.headers
        if headers.getall("Host", []) != [request.host] or request.host.lower() not in self._hosts:
            return self._refuse("host", 421, "this Host is not served here — use http://127.0.0.1 and the port")
        needs_token = request.path not in self._open_paths
        origin = headers.get("Origin")
        foreign = origin is not None and origin not in self._origins
        # A link from another site to the page itself is harmless: the page's own requests then have its own origin.
        foreign = foreign or (needs_token and headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"))
        if foreign:
            return self._refuse("origin", 403, "requests from pages of other origins are refused")
        if needs_token:
            scheme, _, given = headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not is_token(given.strip(), self._token):
                return self._refuse(
                    "token",
                    401,
                    "wrong or missing token — send `Authorization: Bearer` with the line in http_token_file",
                    {"WWW-Authenticate": 'Bearer realm="umqtt broker"'},
                )
            if (reason := self._standby()) and request.path != "/metrics":
                return error_response(503, f"standby: {reason}")
        return None

    def _refuse(self, reason: str, status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
        self.refused[reason] += 1
        return error_response(status, message, headers)


def _as_json(request: web.Request, error: web.HTTPException) -> web.Response:
    messages = {413: "the body is too large"}
    if request.match_info.http_exception is not None:
        # The error comes from aiohttp's router, not from a handler with its own explanation.
        messages[404] = f"there is no {request.path} here — /api/openapi.json lists what there is"
        messages[405] = f"{request.path} does not take {request.method}"
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return error_response(error.status, messages.get(error.status, error.text or error.reason), headers)

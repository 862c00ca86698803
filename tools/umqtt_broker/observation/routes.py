"""The table of the HTTP API: paths, parameters and bodies.

The server's routes and the OpenAPI description are both made from this table, so they always agree.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiohttp import web

# Bytes that a request's body may have. Larger messages can be published over MQTT.
MAX_BODY = 1024 * 1024

Scalar = str | int | bool


class Parameter(NamedTuple):
    """One query parameter.

    default: gives its type too; None: the parameter must be given. choices: the allowed values, if not empty. lowest,
    highest: the limits of a number.
    """

    name: str
    meaning: str
    default: Scalar | None = None
    choices: tuple[str, ...] = ()
    lowest: int = 0
    highest: int = 0

    def parse(self, given: str) -> Scalar:
        """Return the value of `given`. Raises HTTPBadRequest."""
        if self.choices and given not in self.choices:
            raise web.HTTPBadRequest(text=f"{self.name}={given} is none of {', '.join(self.choices)}")
        if isinstance(self.default, int):
            if not (given.isascii() and given.isdecimal() and self.lowest <= int(given[:12]) <= self.highest):
                raise web.HTTPBadRequest(text=f"{self.name}={given} is not between {self.lowest} and {self.highest}")
            return int(given)
        return given


class Route(NamedTuple):
    """One HTTP method of one path.

    handler: name of the method of Api that serves it. answer, body: names of the schemas of the answer and of the
    request's body ("" for none). errors: HTTP statuses, with their reasons, beside those that every route has.
    """

    method: str
    path: str
    handler: str
    summary: str
    answer: str
    parameters: tuple[Parameter, ...] = ()
    body: str = ""
    errors: Mapping[int, str] = {}

    def query(self, request: web.Request) -> dict[str, Any]:
        """Return the value of each parameter. Raises HTTPBadRequest for unknown, repeated and bad ones."""
        known = {parameter.name: parameter for parameter in self.parameters}
        values: dict[str, Any] = {name: parameter.default for name, parameter in known.items()}
        for name, given in request.query.items():
            if name not in known:
                raise web.HTTPBadRequest(text=f"unknown parameter {name} — there are: {', '.join(known) or 'none'}")
            if len(request.query.getall(name)) > 1:
                raise web.HTTPBadRequest(text=f"parameter {name} is given more than once")
            values[name] = known[name].parse(given)
        for name, value in values.items():
            if value is None:
                raise web.HTTPBadRequest(text=f"parameter {name} is missing")
        return values


# A browser resolves the path segments `.` and `..`, however they are encoded; but client identifiers may be that.
_CLIENT_ID = Parameter(
    "client_id", "client identifier, used in place of the one in the path: for those a path cannot carry", ""
)
_MOUNT_POINT = Parameter("mount_point", "mount_point of its listener, where that has one", "")
_LIMIT = Parameter("limit", "entries a page", 100, lowest=1, highest=1000)
_UNKNOWN = {404: "no session has this client identifier"}
_NOT_SAFE = {503: "the store could not write it"}

ROUTES = (
    Route("GET", "/api/broker", "broker", "Everything about the broker as a whole", "Broker"),
    Route(
        "GET",
        "/api/history",
        "history",
        "Rates of the last minutes, one sample a second, oldest first",
        "History",
        (Parameter("samples", "samples at most", 300, lowest=1, highest=300),),
    ),
    Route(
        "GET",
        "/api/sessions",
        "sessions",
        "Sessions, a page at a time",
        "SessionPage",
        (
            Parameter("search", "part of the client identifier, user name or address; case does not matter", ""),
            Parameter("state", "which sessions", "all", ("all", "connected", "away", "slow")),
            Parameter(
                "sort",
                "by client_id from the first, else from the largest",
                "client_id",
                (
                    "client_id",
                    "queued",
                    "queued_bytes",
                    "in_flight",
                    "messages_received",
                    "messages_sent",
                    "connected_seconds",
                ),
            ),
            Parameter("after", "`next` of the page before; only with sort=client_id", ""),
            _LIMIT,
        ),
    ),
    Route(
        "GET",
        "/api/sessions/{client_id}",
        "session",
        "One session, its subscriptions and rates",
        "Session",
        (_CLIENT_ID, _MOUNT_POINT),
        errors=_UNKNOWN,
    ),
    Route(
        "DELETE",
        "/api/sessions/{client_id}",
        "forget",
        "Forget a session: its connection, subscriptions and queue",
        "Done",
        (_CLIENT_ID, _MOUNT_POINT),
        errors=_UNKNOWN | _NOT_SAFE,
    ),
    Route(
        "POST",
        "/api/sessions/{client_id}/kick",
        "kick",
        "Cut a client's connection; its will is published",
        "Done",
        (_CLIENT_ID, _MOUNT_POINT),
        errors=_UNKNOWN | {409: "the client is not connected"},
    ),
    Route(
        "GET",
        "/api/subscriptions",
        "subscriptions",
        "Who gets a message with this topic name",
        "SubscriberPage",
        (Parameter("topic", "topic name"), Parameter("after", "`next` of the page before", ""), _LIMIT),
    ),
    Route(
        "GET",
        "/api/shared",
        "shared",
        "Shared subscriptions, their members and what waits, a page at a time",
        "GroupPage",
        (Parameter("after", "`next` of the page before", ""), _LIMIT),
    ),
    Route(
        "GET",
        "/api/retained",
        "retained",
        "Retained messages by topic name, a page at a time",
        "RetainedPage",
        (
            Parameter("filter", "topic filter", "#"),
            Parameter("after", "`next` of the page before", ""),
            Parameter("max_payload", "bytes of each payload shown", 1024, lowest=0, highest=65536),
            _LIMIT,
        ),
    ),
    Route(
        "DELETE",
        "/api/retained",
        "clear_retained",
        "Remove retained messages, as an empty retained message does: subscribers get it too",
        "Cleared",
        (Parameter("filter", "topic filter"),),
        errors=_NOT_SAFE,
    ),
    Route(
        "POST",
        "/api/publish",
        "publish",
        "Publish a message; at QoS 1 and 2 the answer comes when it is safe",
        "Done",
        body="Publish",
        errors={403: "the topic is the broker's own"} | _NOT_SAFE,
    ),
)

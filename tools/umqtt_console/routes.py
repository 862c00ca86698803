"""The table of the HTTP API: paths, who may use them, parameters, and the fields of answers and bodies.

The server's routes and the OpenAPI description are both made from it. A handler is the method of that name of Api.
"""

from collections.abc import Mapping
from typing import Any

from umqtt_broker.observation.openapi import describe
from umqtt_broker.observation.routes import Parameter, Route

from .access import COOKIE

_TEXT, _INT, _NUMBER, _BOOL, _ANY = "string", "integer", "number", "boolean", "Any"
MOST = 10_000_000_000_000

# The type of each field, as in umqtt_broker/observation/openapi.py.
SCHEMAS: Mapping[str, Mapping[str, str]] = {
    "Me": {"name": "string?", "role": "string?", "token": "string?", "login": _BOOL, "version": _TEXT, "tables": _TEXT,
           "brokers": "BrokerLink[]", "parts": "boolean{}", "now": _INT},
    "Login": {"name": _TEXT, "password": _TEXT},
    "BrokerLink": {"where": _TEXT, "connected": _BOOL, "problem": _TEXT},
    "Done": {"done": _BOOL},
    "Fleet": {"totals": "integer{}", "facets": "Any{}", "metrics": "string[]"},
    "Page": {"columns": "string[]", "rows": "Any[]", "matched": _INT, "version": _INT},
    "Sparks": {"step_s": _INT, "lines": "Any{}"},
    "Device": {"device": "Any?", "boots": "Any[]", "gaps": "Any[]", "alerts": "Any[]", "texts": "Any[]",
               "statuses": "Any[]", "quarantine": "Any[]", "metrics": "string[]", "first": _INT, "last": _INT},
    "Series": {"x": "integer[]", "y": "number?[]", "low": "Any?", "high": "Any?", "from": _TEXT},
    "Logs": {"lines": "Any[]"},
    "Trace": {"steps": "Any[]"},
    "Crashes": {"crashes": "Any[]"},
    "Messages": {"messages": "Any[]"},
    "Path": {"stages": "Any[]", "traffic": "Any{}", "now": _INT},
    "Refused": {"reasons": "Any[]", "samples": "Any[]"},
    "Alerts": {"alerts": "Any[]"},
    "Level": {"prefix": _TEXT, "names": "Any[]", "connected": _BOOL},
    "Explained": {"explained": "Any?", "problem": _TEXT},
    "Query": {"sql": _TEXT, "form": _TEXT},
    "Result": {"head": "Any", "columns": "Any[]", "rows": "Any[]"},
    "Schema": {"tables": "Any[]"},
    "Acts": {"acts": "Any[]", "kinds": "string{}"},
    "Act": {"id": _TEXT, "who": _TEXT, "at": _INT, "kind": _TEXT, "command": _TEXT, "text": _TEXT, "state": _TEXT,
            "exit_code": "integer?", "ended": "integer?", "lines": "string[]"},
    "Order": {"kind": _TEXT, "args": "Any"},
    "Plan": {"command": _TEXT, "text": _TEXT, "file": _TEXT, "role": _TEXT},
    "Stop": {"id": _TEXT},
    "OfBroker": {},
}  # fmt: skip

_TOKEN = {"type": "apiKey", "in": "cookie", "name": COOKIE}
_LIMIT = Parameter("limit", "rows at most", 100, lowest=1, highest=1000)
_OFFSET = Parameter("offset", "rows before the first one", 0, lowest=0, highest=MOST)
_DEVICES = Parameter("devices", "ids as a JSON list of texts", "[]")
_METRICS = Parameter("metrics", "names of metrics as a JSON list of texts", "[]")
_DEVICE = Parameter("device", "id of the device")
# They are the broker's own: its API checks their values.
_SESSION = (Parameter("client_id", "client identifier"), Parameter("mount_point", "of its listener", ""))
_SESSIONS = (
    Parameter("search", "part of the client identifier, user name or address", ""),
    Parameter("state", "which sessions", "all", ("all", "connected", "away", "slow")),
    Parameter("sort", "as of the broker's own API", "client_id"),
    Parameter("after", "`next` of the page before", ""),
    Parameter("limit", "entries a page", 100, lowest=1, highest=1000),
)

READ: tuple[Route, ...] = (
    Route("GET", "/api/fleet", "fleet", "Totals, the values of each filter, and the metrics of the fleet", "Fleet"),
    Route(
        "GET", "/api/devices", "devices", "Devices: searched, filtered, sorted, a page at a time", "Page",
        (
            Parameter("search", "words that id, health, group, site or firmware hold", ""),
            Parameter("filter", 'values by column, as JSON: {"health": ["offline"], "group": ["pumps"]}', "{}"),
            Parameter("sort", "a column, m:METRIC, or empty for the worst health first", ""),
            Parameter("order", "which way", "up", ("up", "down")),
            _METRICS, _OFFSET, _LIMIT,
        ),
    ),
    Route("GET", "/api/sparks", "sparks", "Lines of metrics over the newest day of each device", "Sparks",
          (_DEVICES, _METRICS)),
    Route("GET", "/api/device", "device", "Everything that the tables say of one device", "Device", (_DEVICE,)),
    Route(
        "GET", "/api/series", "series", "A chart's line: a metric, delay or waiting", "Series",
        (
            _DEVICE, Parameter("name", "the metric; own:delay or own:waiting"),
            Parameter("start", "Unix milliseconds", 0, lowest=0, highest=MOST),
            Parameter("end", "Unix milliseconds", 0, lowest=0, highest=MOST),
        ),
    ),
    Route(
        "GET", "/api/logs", "logs", "The newest lines of a device's log", "Logs",
        (
            _DEVICE, Parameter("level", "only of this level", "", ("", "debug", "info", "warning", "error")),
            Parameter("before", "Unix milliseconds", MOST, lowest=0, highest=MOST),
        ),
    ),
    Route(
        "GET", "/api/trace", "trace", "Where one reading is: flash, broker, spool, bronze, silver", "Trace",
        (_DEVICE, Parameter("boot", "id of the boot"), Parameter("seq", "its number", 0, lowest=0, highest=MOST)),
    ),
    Route("GET", "/api/crashes", "crashes", "The crashes of the fleet, by cause", "Crashes"),
    Route("GET", "/api/newest", "newest", "The newest message of each topic that matches", "Messages",
          (Parameter("filter", "topic filter"),)),
    Route("GET", "/api/path", "path", "The parts of the data path, and the last hours of traffic", "Path"),
    Route("GET", "/api/refused", "refused", "Quarantine: how many messages for each reason, and the newest", "Refused"),
    Route("GET", "/api/alerts", "alerts", "The alerts of the fleet and their history", "Alerts"),
    Route("GET", "/api/topics", "topics", "The names of topics below a prefix, each with its newest message", "Level",
          (Parameter("prefix", "empty, or ending with /", ""), Parameter("search", "part of the topic", ""))),
    Route("GET", "/api/explain", "explain", "What the decoder rules make of the newest message of a topic", "Explained",
          (Parameter("topic", "topic name"),)),
    Route("GET", "/api/broker", "broker", "Figures of the broker: its own API says what they mean", "OfBroker"),
    Route("GET", "/api/broker/history", "broker", "Its rates of the last minutes", "OfBroker"),
    Route("GET", "/api/broker/sessions", "broker", "Its sessions, a page at a time", "OfBroker", _SESSIONS),
    Route("GET", "/api/broker/sessions/-", "broker", "One session", "OfBroker", _SESSION),
    Route("GET", "/api/schema", "schema", "The tables and their columns", "Schema"),
    Route("POST", "/api/query", "query", "The rows of one SQL statement that only reads; form: json, csv or parquet",
          "Result", body="Query", errors={422: "the statement is wrong, not allowed, or takes too long"}),
    Route("GET", "/api/acts", "acts", "The newest acts, and the role that each kind needs", "Acts"),
    Route("POST", "/api/acts/plan", "plan", "What an act would do, and its command; nothing is done", "Plan",
          body="Order"),
)  # fmt: skip
OPEN = (
    Route("GET", "/api/me", "me", "Who asks, what there is, and the token for requests that change something", "Me"),
    Route("POST", "/api/login", "login", "Start a session: the answer sets a cookie", "Me", body="Login"),
)
"""They need no session."""
OPERATE: tuple[Route, ...] = (
    Route("POST", "/api/broker/sessions/-/kick", "broker", "Cut a client's connection", "OfBroker", _SESSION),
    Route("DELETE", "/api/broker/sessions/-", "broker", "Forget a session and its queue", "OfBroker", _SESSION),
    Route("POST", "/api/acts", "begin", "Begin an act; some kinds need the role admin", "Act", body="Order",
          errors={422: "the act is not possible"}),
    Route("POST", "/api/acts/stop", "stop", "Stop a running act", "Act", body="Stop",
          errors={422: "it is not running"}),
)  # fmt: skip
ADMIN: tuple[Route, ...] = ()
LEAVE = (Route("POST", "/api/logout", "logout", "End the session", "Done"),)

ROLE_OF: tuple[tuple[Route, str], ...] = (
    *((route, "") for route in OPEN),
    *((route, "read") for route in (*READ, *LEAVE)),
    *((route, "operate") for route in OPERATE),
    *((route, "admin") for route in ADMIN),
)
"""Every route with the role that it needs; "" for none."""

PLAIN = {
    "/api/openapi.json": ("This description", "application/json", True),
    "/api/events": ("What has changed, as server-sent events; ?watch=FILTER for messages", "text/event-stream", True),
    "/healthz": ("200 while the process serves requests", "application/json", False),
}
"""Routes that are not in ROLE_OF: meaning, media type, and whether they need a session."""


def description() -> dict[str, Any]:
    """Return the description as an OpenAPI 3.0 document."""
    errors = {"Error": {"error": "ErrorBody"}, "ErrorBody": {"status": _INT, "message": _TEXT}}
    found = describe(
        "umqtt console",
        tuple(route for route, _ in ROLE_OF),
        PLAIN,
        {**SCHEMAS, **errors},
        _TOKEN,
    )
    # One handler serves several routes, and every operation needs a name of its own.
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            operation["operationId"] = f"{method}{path.removeprefix('/api').replace('/', '_')}"
    found["components"]["schemas"]["OfBroker"] = {"type": "object"}
    found["components"]["schemas"]["Any"] = {"description": "any JSON value"}
    for route, role in ROLE_OF:
        found["paths"][route.path][route.method.lower()]["x-role"] = role or "none"
    return found

"""The OpenAPI description of the HTTP API, made from the table of routes and the schemas below."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .readings import broker_version
from .routes import MAX_BODY, ROUTES, Parameter, Route

_TEXT, _INT, _NUMBER, _BOOL = "string", "integer", "number", "boolean"

# The type of each field. Suffixes: `?`: or null; `[]`: a list of them; `{}`: an object with such values by name.
SCHEMAS: Mapping[str, Mapping[str, str]] = {
    "Broker": {
        "version": _TEXT,
        "started_at": _NUMBER,
        "uptime_seconds": _INT,
        "listeners": "Listener[]",
        "store": "Store",
        "clients": "Clients",
        "messages": "Messages",
        "rates": "number{}",
        "subscriptions": _INT,
        "connections": "integer{}",
        "malformed": "integer{}",
        "http_refused": "integer{}",
    },
    "Listener": {"name": _TEXT, "protocol": _TEXT, "tls": _BOOL, "clients": _INT, "certificate_expires_at": "number?"},
    "Store": {"durable": _BOOL, "commits": _INT, "commit_failures": _INT},
    "Clients": {"connected": _INT, "away": _INT, "total": _INT, "maximum": _INT, "slow": _INT, "held_back": _INT},
    "Messages": {
        "received": _INT,
        "sent": _INT,
        "resent": _INT,
        "denied": _INT,
        "dropped": _INT,
        "dropped_by_reason": "integer{}",
        "queued": _INT,
        "queued_bytes": _INT,
        "in_flight": _INT,
        "retained": _INT,
    },
    "History": {"interval_seconds": _INT, "rates": "number[]{}"},
    "SessionRow": {
        "client_id": _TEXT,
        "mount_point": _TEXT,
        "connected": _BOOL,
        "clean_session": _BOOL,
        "username": "string?",
        "address": "string?",
        "listener": "string?",
        "connected_seconds": "number?",
        "keep_alive": "integer?",
        "slow": _BOOL,
        "held_back": _BOOL,
        "queued": _INT,
        "queued_bytes": _INT,
        "in_flight": _INT,
        "subscriptions": _INT,
        "messages_received": "integer?",
        "messages_sent": "integer?",
    },
    "SessionPage": {"sessions": "SessionRow[]", "matched": _INT, "next": "string?"},
    "Session": {
        "session": "SessionRow",
        "topic_filters": "TopicFilter[]",
        "received_per_second": "number?",
        "sent_per_second": "number?",
    },
    "TopicFilter": {"topic_filter": _TEXT, "qos": _INT},
    "SubscriberPage": {"subscribers": "Subscriber[]", "groups": "Group[]", "matched": _INT, "next": "string?"},
    "Subscriber": {
        "client_id": _TEXT,
        "mount_point": _TEXT,
        "connected": _BOOL,
        "qos": _INT,
        "may_read": _BOOL,
        "topic_filters": "string[]",
    },
    "GroupPage": {"groups": "Group[]", "matched": _INT, "next": "string?"},
    "Group": {
        "name": _TEXT,
        "mount_point": _TEXT,
        "qos": _INT,
        "queued": _INT,
        "queued_bytes": _INT,
        "in_flight": _INT,
        "members": "Member[]",
        "member_count": _INT,
    },
    "Member": {"client_id": _TEXT, "connected": _BOOL, "qos": _INT, "in_flight": _INT},
    "RetainedPage": {"retained": "Retained[]", "matched": _INT, "next": "string?"},
    "Retained": {
        "topic_name": _TEXT,
        "qos": _INT,
        "size": _INT,
        "payload": _TEXT,
        "encoding": _TEXT,
        "truncated": _BOOL,
    },
    "Cleared": {"removed": _INT},
    "Done": {"done": _BOOL},
    "Publish": {"topic": _TEXT, "payload": _TEXT, "encoding": _TEXT, "qos": _INT, "retain": _BOOL},
    "Error": {"error": "ErrorBody"},
    "ErrorBody": {"status": _INT, "message": _TEXT},
}

_EVERY_ERROR = {
    400: "a parameter or the body is wrong; the message says which",
    401: "the token is wrong or missing",
    403: "the request comes from a page of another origin",
    413: f"the body is larger than {MAX_BODY} bytes",
    421: "the Host header is not this listener's",
}


def _type(notation: str) -> dict[str, Any]:
    if notation.endswith("?"):
        return {**_type(notation[:-1]), "nullable": True}
    if notation.endswith("{}"):
        return {"type": "object", "additionalProperties": _type(notation[:-2])}
    if notation.endswith("[]"):
        return {"type": "array", "items": _type(notation[:-2])}
    return {"$ref": f"#/components/schemas/{notation}"} if notation[0].isupper() else {"type": notation}


def _schema(name: str, fields: Mapping[str, str]) -> dict[str, Any]:
    required = ["topic", "payload"] if name == "Publish" else list(fields)
    schema: dict[str, Any] = {
        "type": "object",
        "required": required,
        "properties": {field: _type(notation) for field, notation in fields.items()},
        "additionalProperties": False,
    }
    if name == "Publish":
        properties = schema["properties"]
        properties["encoding"] |= {"enum": ["utf-8", "base64"], "default": "utf-8"}
        properties["qos"] |= {"minimum": 0, "maximum": 2, "default": 0}
        properties["retain"] |= {"default": False}
    return schema


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if isinstance(parameter.default, int) else "string"}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.highest:
        schema |= {"minimum": parameter.lowest, "maximum": parameter.highest}
    if parameter.default not in (None, ""):
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.default is None,
        "description": parameter.meaning,
        "schema": schema,
    }


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": _type(schema)}}


def _operation(route: Route) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    errors = {**_EVERY_ERROR, **route.errors}
    operation: dict[str, Any] = {
        "operationId": route.handler,
        "summary": route.summary,
        "parameters": in_path + [_parameter(parameter) for parameter in route.parameters],
        "responses": {
            "200": {"description": route.summary, "content": _content(route.answer)},
            **{
                str(status): {"description": reason, "content": _content("Error")}
                for status, reason in sorted(errors.items())
            },
        },
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
    return operation


# Paths that are not in the table of routes, with their meaning, media type, and whether they need the token.
PLAIN = {
    "/api/openapi.json": ("This description", "application/json", True),
    "/metrics": ("Figures for Prometheus", "text/plain", True),
    "/healthz": ("200 while the process serves requests", "application/json", False),
    "/readyz": ("200 while clients can connect and the store takes writes, else 503", "application/json", False),
}


def _plain(meaning: str, media_type: str, needs_token: bool) -> dict[str, Any]:
    answer = {"description": meaning, "content": {media_type: {}}}
    return {"summary": meaning, "responses": {"200": answer}, "security": [{"token": []}] if needs_token else []}


TOKEN = {"type": "http", "scheme": "bearer"}


def describe(
    title: str = "umqtt broker",
    routes: Sequence[Route] = ROUTES,
    plain: Mapping[str, tuple[str, str, bool]] = PLAIN,
    schemas: Mapping[str, Mapping[str, str]] = SCHEMAS,
    token: Mapping[str, str] = TOKEN,
) -> dict[str, Any]:
    """Return the description as an OpenAPI 3.0 document. token: how a request shows that it may."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for path, one in plain.items():
        paths[path] = {"get": _plain(*one)}
    return {
        "openapi": "3.0.3",
        "info": {"title": title, "version": broker_version()},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": dict(token)},
            "schemas": {name: _schema(name, fields) for name, fields in schemas.items()},
        },
    }

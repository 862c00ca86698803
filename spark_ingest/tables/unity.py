"""Registers the Delta tables in Unity Catalog as external tables, by its REST API.

A table is registered once: engines then read Delta's log at its location. A table that is registered already is left
as it is, so that a run changes no permission and may be repeated.
"""

import json
import os
import re
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote

from ..errors import UsageError
from ..hosts import is_loopback, split_server
from ..location import Location, engine_url, same_place
from .upkeep import existing

TOKEN_VARIABLE = "UMQTT_UNITY_TOKEN"
_API = "/api/2.1/unity-catalog"
_TIMEOUT_S = 30.0
_MOST_BYTES = 4 << 20
"""An answer may be as long as this; the description of a table has some kilobytes."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,255}")
# A type's name in Delta's schema -> (type_name, type_text) in Unity.
_TYPES = {
    "boolean": ("BOOLEAN", "boolean"),
    "byte": ("BYTE", "tinyint"),
    "short": ("SHORT", "smallint"),
    "integer": ("INT", "int"),
    "long": ("LONG", "bigint"),
    "float": ("FLOAT", "float"),
    "double": ("DOUBLE", "double"),
    "date": ("DATE", "date"),
    "timestamp": ("TIMESTAMP", "timestamp"),
    "string": ("STRING", "string"),
    "binary": ("BINARY", "binary"),
}


def register(tables: Location, url: str, catalog: str, schema: str) -> dict[str, bool]:
    """Register every Delta table that Unity Catalog does not have; return by table name whether it is new there.

    The token is read from the environment's ``UMQTT_UNITY_TOKEN``; without it, requests carry none.

    :param url: ``https://HOST`` or ``https://HOST:PORT`` of the server; ``http://`` too without a token, or if HOST is
        this machine.
    :param catalog: the catalog, which must exist.
    :param schema: the schema in it, which is created if it is missing.
    :raises UsageError: there are no tables, `url` or a name is malformed, the server cannot be reached or refuses, or a
        table of that name is registered at another location.
    """
    for name in (catalog, schema):
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:40]!r} is no name of a catalog or schema: use letters, digits, _ and -")
    server = _Server(url, os.environ.get(TOKEN_VARIABLE, "").strip())
    found = {
        folder.rpartition("/")[2]: (table, engine_url(tables / folder))
        for folder, table in existing(tables)
    }
    if server.ask("GET", f"/schemas/{catalog}.{schema}") is None:
        asked = {"name": schema, "catalog_name": catalog}
        if server.ask("POST", "/schemas", asked) is None:
            raise UsageError(f"{url} has no catalog {catalog}: create it there")
    new = {}
    for name, (table, location) in found.items():
        full_name = f"{catalog}.{schema}.{name}"
        held = server.ask("GET", f"/tables/{quote(full_name)}")
        if held is not None and not same_place(str(held.get("storage_location")), location):
            raise UsageError(
                f"the table {full_name} was registered in another folder than {location}: drop it in the catalog"
            )
        new[name] = held is None
        if held is None:
            asked = {
                "name": name,
                "catalog_name": catalog,
                "schema_name": schema,
                "table_type": "EXTERNAL",
                "data_source_format": "DELTA",
                "storage_location": location,
                "columns": columns(json.loads(table.schema().to_json()), table.metadata().partition_columns),
            }
            if server.ask("POST", "/tables", asked) is None:
                raise UsageError(f"{url} has no schema {catalog}.{schema} any more: run it again")
    return new


def columns(schema: dict[str, Any], partition_by: list[str]) -> list[dict[str, Any]]:
    """Return Unity's description of the columns of a Delta schema.

    :param schema: the schema as in Delta's log: ``{"type": "struct", "fields": [...]}``.
    """
    described = []
    for position, field in enumerate(schema["fields"]):
        kind = field["type"]
        column = {
            "name": field["name"],
            "type_name": kind["type"].upper() if isinstance(kind, dict) else _TYPES[kind][0],
            "type_text": _text(kind),
            # Unity, Spark and Delta's log have the same JSON for a field.
            "type_json": json.dumps(field),
            "position": position,
            "nullable": field["nullable"],
        }
        if field["name"] in partition_by:
            column["partition_index"] = partition_by.index(field["name"])
        described.append(column)
    return described


def _text(kind: Any) -> str:
    """Return a type in SQL's notation, for instance ``map<string,double>``."""
    if isinstance(kind, str):
        return _TYPES[kind][1]
    if kind["type"] == "map":
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    fields = ",".join(f"{field['name']}:{_text(field['type'])}" for field in kind["fields"])
    return f"struct<{fields}>"


class _Server:
    def __init__(self, url: str, token: str) -> None:
        parts = split_server(url, ("http", "https"))
        if parts is None:
            raise UsageError(f"--unity is https://HOST or https://HOST:PORT, no more; a token is in {TOKEN_VARIABLE}")
        scheme, host, port = parts
        plain = scheme == "http"
        if not token.isascii() or not token.isprintable() or " " in token:
            raise UsageError(f"{TOKEN_VARIABLE} holds a character that no token has")
        if plain and token and not is_loopback(host):
            raise UsageError(f"{url} would show the token to the network: give https://, or unset {TOKEN_VARIABLE}")
        self._url = url
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # Redirections are not followed: the token is for this server.
        self._link = (
            HTTPConnection(host, port, timeout=_TIMEOUT_S)
            if plain
            else HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context())
        )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Send a request; return the object of the answer, or None for 404.

        :raises UsageError: there is no answer, or it is a refusal, an error, or no JSON object.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        try:
            self._link.request(method, _API + path, content, headers)
            answer = self._link.getresponse()
            raw = answer.read(_MOST_BYTES + 1)
        except (OSError, HTTPException) as error:
            said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot reach Unity Catalog at {self._url}: {said or 'it closed the link'}") from error
        try:
            found = json.loads(raw) if len(raw) <= _MOST_BYTES else None
        except ValueError:
            found = None
        if answer.status == 404 and isinstance(found, dict) and "error_code" in found:
            return None
        if answer.status == 200 and isinstance(found, dict):
            return found
        said = str(found.get("message", "")) if isinstance(found, dict) else ""
        line = next(iter(said.splitlines()), "")[:200] or f"it answered {answer.status}, and nothing that it documents"
        if answer.status in (401, 403):
            line += f"; put a token that may do it into {TOKEN_VARIABLE}"
        raise UsageError(f"Unity Catalog at {self._url} refused: {line}")

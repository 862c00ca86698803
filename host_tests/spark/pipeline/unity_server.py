"""A server that answers as the OpenAPI document of Unity Catalog 0.7 says, for schemas and tables.

It refuses a request that the document does not allow, and a location that is registered already, as that server does.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "dapi-secret-of-the-catalog"
_API = "/api/2.1/unity-catalog"
# Schema -> field -> its type, or the values of an enumeration; those with a star are required.
_SPECIFIED = {
    "CreateSchema": {"*name": str, "*catalog_name": str, "comment": str, "properties": dict, "storage_root": str},
    "CreateTable": {
        "*name": str,
        "*catalog_name": str,
        "*schema_name": str,
        "*table_type": ["EXTERNAL", "MANAGED"],
        "data_source_format": ["DELTA", "CSV", "JSON", "AVRO", "PARQUET", "ORC", "TEXT"],
        "*columns": list,
        "storage_location": str,
        "comment": str,
        "properties": dict,
    },
    "ColumnInfo": {
        "name": str,
        "type_text": str,
        "type_json": str,
        "type_name": [
            *["BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"],
            *["STRING", "BINARY", "DECIMAL", "INTERVAL", "ARRAY", "STRUCT", "MAP", "VARIANT", "CHAR", "NULL"],
        ],
        "type_precision": int,
        "type_scale": int,
        "type_interval_type": str,
        "position": int,
        "comment": str,
        "nullable": bool,
        "partition_index": int,
    },
}


class Refused(Exception):
    """The answer is an error: args are the status, the error's code and the message."""


class UnityServer:
    """The state of a server with the catalog ``main``.

    :ivar url: its address.
    :ivar tables: what was registered, by full name.
    :ivar requests: method and path of each request, in order.
    :ivar told: the answer to each request from now on, as status and body; None: that of a server.
    """

    def __init__(self) -> None:
        self.url = ""
        self.token: str | None = None
        self.schemas: set[str] = set()
        self.tables: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.told: tuple[int, bytes] | None = None

    def answer(self, method: str, path: str, body: Any) -> dict[str, Any]:
        kind, _, name = path.removeprefix(f"{_API}/").partition("/")
        match method, kind, name:
            case "POST", "schemas", "":
                _check("CreateSchema", body)
                full_name = f"{body['catalog_name']}.{body['name']}"
                if body["catalog_name"] != "main":
                    raise Refused(404, "CATALOG_NOT_FOUND", f"Catalog not found: {body['catalog_name']}")
                self.schemas.add(full_name)
                return body | {"full_name": full_name}
            case "GET", "schemas", "":
                names = [(full_name, *full_name.split(".")) for full_name in sorted(self.schemas)]
                return {"schemas": [{"full_name": full, "catalog_name": one, "name": two} for full, one, two in names]}
            case "GET", "schemas", name:
                if name not in self.schemas:
                    raise Refused(404, "SCHEMA_NOT_FOUND", f"Schema not found: {name}")
                return {"full_name": name}
            case "POST", "tables", "":
                return self._create(body)
            case "GET", "tables", "":
                return {"tables": list(self.tables.values())}
            case "GET", "tables", name:
                if name not in self.tables:
                    raise Refused(404, "TABLE_NOT_FOUND", f"Table not found: {name}")
                return self.tables[name]
        raise Refused(404, "NOT_FOUND", f"no {method} {path}")

    def _create(self, body: Any) -> dict[str, Any]:
        _check("CreateTable", body)
        for column in body["columns"]:
            _check("ColumnInfo", column)
        full_name = f"{body['catalog_name']}.{body['schema_name']}.{body['name']}"
        if f"{body['catalog_name']}.{body['schema_name']}" not in self.schemas:
            raise Refused(404, "SCHEMA_NOT_FOUND", f"Schema not found: {body['schema_name']}")
        if full_name in self.tables:
            raise Refused(400, "TABLE_ALREADY_EXISTS", f"Table already exists: {full_name}")
        if body["storage_location"] in [table["storage_location"] for table in self.tables.values()]:
            raise Refused(400, "INVALID_ARGUMENT", "the location is another table's")
        self.tables[full_name] = body | {"table_id": f"id of {full_name}", "created_at": 1, "updated_at": 1}
        return self.tables[full_name]


def _check(schema: str, body: Any) -> None:
    specified = _SPECIFIED[schema]
    if not isinstance(body, dict) or not {name[1:] for name in specified if name[0] == "*"} <= body.keys():
        raise Refused(400, "INVALID_ARGUMENT", f"{schema} lacks a field")
    for name, value in body.items():
        wanted = specified.get(name) or specified.get(f"*{name}")
        if wanted is None or (value not in wanted if isinstance(wanted, list) else type(value) is not wanted):
            raise Refused(400, "INVALID_ARGUMENT", f"{schema}.{name} is {value!r}")


@contextmanager
def unity_server() -> Iterator[UnityServer]:
    """Provide a server on a free port."""
    state = UnityServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            path = unquote(urlsplit(self.path).path)
            state.requests.append(f"{self.command} {path.removeprefix(_API)}")
            try:
                if state.told is None and state.token and self.headers["Authorization"] != f"Bearer {state.token}":
                    raise Refused(401, "UNAUTHENTICATED", "Invalid access token")
                status, content = state.told or (200, json.dumps(state.answer(self.command, path, body)).encode())
            except Refused as error:
                status, code, message = error.args
                content = json.dumps({"error_code": code, "message": message, "details": []}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that hangs up is no error here."""

    with Server(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()

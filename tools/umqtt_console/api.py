"""The handlers of the HTTP API, over all parts of the console."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from spark_ingest.location import Location, StorePath
from spark_ingest.spool.view import Spools
from spark_ingest.sql import FOLDERS
from spark_ingest.tables.schemas import SCHEMAS

from . import device as devices
from . import path as data_path
from .access import Access, LoginRefused, Session
from .acts import KINDS, ActRefused, Acts
from .broker_api import BrokerApi, BrokerAway
from .events import Hub, TooManyViewers, Viewer
from .explore import MOST_ROWS, Explorer, QueryRefused
from .fleet import Fleet
from .live import Live
from .tables import Tables, TablesAway

Answer = dict[str, Any]
_SYS = "$SYS/broker/"
_HEARTBEAT_S = 20.0
# A folder answers at once; each look at an object store is a request for every table.
_LOOK_EVERY_S, _LOOK_AT_STORE_EVERY_S = 1.0, 15.0
_MOST_NAMES = 200


@dataclass
class Parts:
    """What the console is made of.

    :ivar audit, program, broker, environment: of :class:`Acts`.
    :ivar spool: the folder of the collectors' spools, None if it is not here.
    :ivar explain: says what the decoder rules make of a message: topic, payload, received in milliseconds, retained.
    """

    tables: Location
    audit: Path
    spool: Path | None = None
    broker_api: BrokerApi | None = None
    version: str = ""
    explain: Callable[[str, bytes, int, bool], Answer] | None = None
    program: Sequence[str] = ()
    broker: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    hub: Hub = field(default_factory=Hub)
    live: Live = field(init=False)

    def __post_init__(self) -> None:
        self.live = Live(self.hub)


class Api:
    """The handlers, named in routes.py: each takes a request and its parameters, and returns the answer."""

    def __init__(self, parts: Parts, access: Access) -> None:
        self._parts = parts
        self._access = access
        self._tables = Tables(parts.tables)
        self._fleet = Fleet(self._tables)
        self._hub, self._live = parts.hub, parts.live
        self._explorer = Explorer(str(parts.tables))
        self.operator = Acts(parts.audit, parts.hub, parts.program, parts.broker, parts.environment)

    # Who asks

    async def me(self, request: web.Request, query: Answer) -> Answer:
        """Who asks, and what there is."""
        del query
        return self._about(self._access.session(request))

    def _about(self, session: Session | None) -> Answer:
        found: Answer = {"name": None, "role": None, "token": None, "tables": "", "brokers": [], "parts": {}}
        if session is not None:
            found = {
                "name": session.user.name,
                "role": session.user.role,
                "token": session.token,
                "tables": str(self._parts.tables),
                "brokers": self._live.states(),
                "parts": {
                    "spool": self._parts.spool is not None,
                    "broker": bool(self._live.brokers),
                    "rules": self._parts.explain is not None,
                    "broker_api": self._parts.broker_api is not None,
                },
            }
        return {
            **found,
            "login": self._access.needs_login,
            "version": self._parts.version if session else "",
            "now": time.time_ns() // 1_000_000,
        }

    async def login(self, request: web.Request, query: Answer) -> web.Response:
        """Start a session."""
        del query
        body = await read_body(request, {"name": str, "password": str})
        try:
            key, session = await self._access.login(body["name"], body["password"])
        except LoginRefused as error:
            raise web.HTTPForbidden(text=str(error)) from error
        response = web.json_response(self._about(session))
        self._access.set_cookie(response, key)
        return response

    async def logout(self, request: web.Request, query: Answer) -> web.Response:
        """End a session."""
        del query
        self._access.logout(request)
        response = web.json_response({"done": True})
        self._access.set_cookie(response, "")
        return response

    # The tables

    async def fleet(self, request: web.Request, query: Answer) -> Answer:
        """Totals, filters, metrics."""
        del request, query
        return await asyncio.to_thread(self._fleet.summary)

    async def devices(self, request: web.Request, query: Answer) -> Answer:
        """A page of devices."""
        del request
        chosen = _json(query, "filter")
        if not isinstance(chosen, dict) or not all(_is_texts(one) for one in chosen.values()):
            raise web.HTTPBadRequest(text='filter must be JSON such as {"health": ["offline"]}')
        return await asyncio.to_thread(
            partial(
                self._fleet.page, query["search"], chosen, query["sort"], down=query["order"] == "down",
                offset=query["offset"], limit=query["limit"], metrics=_texts(query, "metrics"),
            )
        )  # fmt: skip

    async def sparks(self, request: web.Request, query: Answer) -> Answer:
        """Lines for the page of devices that is shown."""
        del request
        return await asyncio.to_thread(self._fleet.sparks, _texts(query, "devices"), _texts(query, "metrics"))

    async def device(self, request: web.Request, query: Answer) -> Answer:
        """One device."""
        del request
        return await asyncio.to_thread(self._device, query["device"])

    def _device(self, name: str) -> Answer:
        row = self._fleet.find(name)
        first, last = devices.span(self._tables, name)
        return {"device": row, **devices.facts(self._tables, name), "first": first, "last": last}

    async def series(self, request: web.Request, query: Answer) -> Answer:
        """A line of a chart."""
        del request
        if query["end"] <= query["start"]:
            raise web.HTTPBadRequest(text="end must be after start")
        name = query["name"].removeprefix("own:")
        return await asyncio.to_thread(
            devices.series, self._tables, query["device"], name, query["start"], query["end"]
        )

    async def logs(self, request: web.Request, query: Answer) -> Answer:
        """Lines of a device's log."""
        del request
        args = (query["device"], query["level"], query["before"])
        return {"lines": await asyncio.to_thread(devices.logs, self._tables, *args)}

    async def crashes(self, request: web.Request, query: Answer) -> Answer:
        """The crashes of the fleet."""
        del request, query
        return {"crashes": await asyncio.to_thread(devices.crashes, self._tables)}

    async def trace(self, request: web.Request, query: Answer) -> Answer:
        """Where a reading is."""
        del request
        args = (query["device"], query["boot"], query["seq"])
        queued = None
        if self._parts.broker_api is not None:
            with suppress(BrokerAway):
                queued = await self._parts.broker_api.queued()
        return {"steps": await asyncio.to_thread(devices.trace, self._tables, self._spools, queued, *args)}

    @property
    def _spools(self) -> Spools | None:
        return Spools(self._parts.spool) if self._parts.spool else None

    async def path(self, request: web.Request, query: Answer) -> Answer:
        """The data path."""
        del request, query
        said = {
            one.topic.removeprefix(_SYS): one.payload.decode(errors="replace") for one in self._live.newest(_SYS + "#")
        }
        stages = await asyncio.to_thread(data_path.stages, self._tables, self._spools, self._live.states(), said)
        traffic = await asyncio.to_thread(data_path.traffic, self._tables)
        return {"stages": stages, "traffic": traffic, "now": time.time_ns() // 1_000_000}

    async def refused(self, request: web.Request, query: Answer) -> Answer:
        """Quarantine."""
        del request, query
        return await asyncio.to_thread(data_path.refused, self._tables)

    async def alerts(self, request: web.Request, query: Answer) -> Answer:
        """Alerts."""
        del request, query
        return {"alerts": await asyncio.to_thread(data_path.alerts, self._tables)}

    # SQL

    async def schema(self, request: web.Request, query: Answer) -> Answer:
        """Tables and columns."""
        del request, query
        tables = [
            {"name": name, "columns": [{"name": one.name, "type": str(one.type)} for one in SCHEMAS[folder]]}
            for name, folder in FOLDERS.items()
        ]
        return {"tables": tables}

    async def query(self, request: web.Request, query: Answer) -> web.StreamResponse:
        """Rows of a statement."""
        del query
        body = await read_body(request, {"sql": str, "form": str})
        form = body["form"]
        if form not in MOST_ROWS:
            raise web.HTTPBadRequest(text=f"form must be one of {', '.join(MOST_ROWS)}")
        try:
            async with self._explorer.run(body["sql"], form) as (head, stream):
                if form == "json":
                    return web.json_response({"head": head, **json.loads(await stream.read())})
                return await self._download(request, form, stream)
        except QueryRefused as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from error

    async def _download(self, request: web.Request, form: str, stream: asyncio.StreamReader) -> web.StreamResponse:
        kind = "text/csv; charset=utf-8" if form == "csv" else "application/vnd.apache.parquet"
        name = f'attachment; filename="query.{form}"'
        response = web.StreamResponse(headers={"Content-Type": kind, "Content-Disposition": name})
        self._access.protect(response)
        await response.prepare(request)
        while piece := await stream.read(1 << 16):
            await response.write(piece)
        return response

    # Acts

    async def acts(self, request: web.Request, query: Answer) -> Answer:
        """The newest acts."""
        del request, query
        return {"acts": self.operator.listed(), "kinds": {name: kind.role for name, kind in KINDS.items()}}

    async def plan(self, request: web.Request, query: Answer) -> Answer:
        """What an act would do."""
        del query
        body = await read_body(request, {"kind": str, "args": dict})
        with _refusing():
            planned, command = self.operator.plan(body["kind"], body["args"])
        role = KINDS[body["kind"]].role
        return {"command": command, "text": planned.text, "file": planned.file, "role": role}

    async def begin(self, request: web.Request, query: Answer) -> Answer:
        """Begin an act."""
        del query
        body = await read_body(request, {"kind": str, "args": dict})
        session = self._access.session(request)
        assert session is not None, "a request without a session was accepted"
        user = session.user
        with _refusing():
            self.operator.plan(body["kind"], body["args"])
            role = KINDS[body["kind"]].role
            if not user.may(role):
                raise web.HTTPForbidden(text=f"{user.name} has the role {user.role}, and this needs {role}")
            return self.operator.begin(user.name, body["kind"], body["args"]).as_dict()

    async def stop(self, request: web.Request, query: Answer) -> Answer:
        """Stop an act."""
        del query
        body = await read_body(request, {"id": str})
        with _refusing():
            return self.operator.stop(body["id"]).as_dict()

    # Live

    async def newest(self, request: web.Request, query: Answer) -> Answer:
        """The newest messages of some topics."""
        del request
        return {"messages": [one.as_dict() for one in self._live.newest(query["filter"])][-1000:]}

    async def broker(self, request: web.Request, query: Answer) -> Answer:
        """What the broker's own API answers; what changes something is written down first."""
        api = self._parts.broker_api
        if api is None:
            raise web.HTTPNotFound(text="the broker's API is not known: --broker-http and --broker-token")
        path = request.path if request.path == "/api/broker" else request.path.replace("/api/broker", "/api", 1)
        note = ""
        if request.method != "GET":
            session = self._access.session(request)
            assert session is not None, "a request without a session was accepted"
            does = "is kicked" if request.method == "POST" else "and its queue are forgotten"
            with _refusing():
                note = self.operator.note(session.user.name, "broker", query, f"{query['client_id']} {does}.")
        try:
            found = await api.ask(request.method, path, query)
        except BrokerAway as error:
            self.operator.noted(note, str(error))
            raise
        self.operator.noted(note)
        return found

    async def topics(self, request: web.Request, query: Answer) -> Answer:
        """A level of the tree of topics."""
        del request
        names = self._live.level(query["prefix"], query["search"].lower())
        connected = any(one.connected for one in self._live.brokers)
        return {"prefix": query["prefix"], "names": names, "connected": connected}

    async def explain(self, request: web.Request, query: Answer) -> Answer:
        """What the decoder rules make of a message."""
        del request
        found = next(iter(self._live.newest(query["topic"])), None)
        if found is None or self._parts.explain is None:
            return {"explained": None, "problem": "no message of this topic is known" if found is None else ""}
        if found.size > len(found.payload):
            return {"explained": None, "problem": f"only the first {len(found.payload):,} bytes of it are kept here"}
        args = (found.topic, found.payload, found.at, found.retained)
        return {"explained": await asyncio.to_thread(self._parts.explain, *args), "problem": ""}

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Send what changes until the viewer goes."""
        try:
            with self._hub.viewing(request.query.get("watch", "")) as viewer:
                return await self._stream(request, viewer)
        except TooManyViewers as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from error

    async def _stream(self, request: web.Request, viewer: Viewer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        self._access.protect(response)
        await response.prepare(request)
        with suppress(ConnectionError):
            await response.write(b"retry: 2000\n\nevent: hello\ndata: {}\n\n")
            while self._access.session(request) is not None:
                await response.write((await viewer.next(_HEARTBEAT_S)).encode(errors="replace"))
        return response

    # Beside the requests

    async def look_for_versions(self) -> None:
        """Tell viewers of each new version of the tables, and when these cannot be read."""
        told: object = None
        every_s = _LOOK_AT_STORE_EVERY_S if isinstance(self._parts.tables, StorePath) else _LOOK_EVERY_S
        while True:
            state: Answer
            try:
                state = {"versions": await asyncio.to_thread(self._tables.versions), "problem": ""}
            except TablesAway as error:
                state = {"versions": {}, "problem": str(error)}
            if state != told:
                told = state
                self._hub.tell("tables", state)
            await asyncio.sleep(every_s)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ActRefused as error:
        raise web.HTTPUnprocessableEntity(text=str(error)) from error


async def read_body(request: web.Request, fields: Mapping[str, type]) -> Answer:
    """Return the JSON object of a request. Raises HTTPBadRequest unless it has just these fields."""
    try:
        body = await request.json()
    except ValueError:
        raise web.HTTPBadRequest(text="the body is no JSON") from None
    if not isinstance(body, dict) or body.keys() - fields.keys():
        raise web.HTTPBadRequest(text=f"the body must be an object with {', '.join(fields)}")
    for name, kind in fields.items():
        if not isinstance(body.get(name), kind):
            raise web.HTTPBadRequest(text=f"{name} must be of type {kind.__name__}")
    return body


def _json(query: Answer, name: str) -> Any:
    try:
        return json.loads(query[name])
    except ValueError:
        raise web.HTTPBadRequest(text=f"{name} is no JSON") from None


def _texts(query: Answer, name: str) -> list[str]:
    found = _json(query, name)
    if not _is_texts(found):
        raise web.HTTPBadRequest(text=f"{name} must be a JSON list of at most {_MOST_NAMES} texts")
    return found


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MOST_NAMES and all(isinstance(one, str) for one in value)

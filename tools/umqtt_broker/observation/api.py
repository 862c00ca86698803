"""The handlers of the HTTP API: each takes a request and its parsed parameters, and returns the answer."""

import base64
import binascii
import json
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ..protocol.messages import RetainedMessage
from ..protocol.reason_codes import ReasonCode
from ..protocol.topic_filters import matches, split
from ..protocol.topics import is_too_deep, is_topic_filter, is_topic_name, is_utf8
from ..sessions.queue import MessageQueue
from ..sessions.session import Session
from ..sessions.shared_queue import SharedQueue
from . import readings
from .commit import StoreFailed, committed
from .guard import Guard
from .rates import ClientRates, History
from .readings import text
from .routes import Route
from .slices import slices, smallest
from .survey import Survey
from .view import BrokerView, ObservedBroker

Answer = dict[str, Any]

# Most subscriptions listed for one session; most payload bytes in one page of retained messages.
_MAX_FILTERS = 1000
_MAX_PAGE_BYTES = 4 * 1024 * 1024

# Most members listed for one shared subscription.
_MAX_MEMBERS = 100

_BODY_TYPES: dict[str, type] = {"topic": str, "payload": str, "encoding": str, "qos": int, "retain": bool}


class Api:
    """The handlers of all routes. started_at: when the broker started, in seconds since 1970."""

    def __init__(
        self,
        broker: ObservedBroker,
        view: BrokerView,
        survey: Survey,
        history: History,
        guard: Guard,
        started_at: float,
    ) -> None:
        self._broker = broker
        self._view = view
        self._survey = survey
        self._history = history
        self._guard = guard
        self._started_at = started_at
        self._client_rates = ClientRates()

    def handler(self, route: Route) -> Callable[[web.Request], Any]:
        """Return the aiohttp handler of a route."""
        method = getattr(self, route.handler)

        async def handle(request: web.Request) -> web.Response:
            try:
                return web.json_response(await method(request, route.query(request)))
            except StoreFailed as error:
                raise web.HTTPServiceUnavailable(text=str(error)) from error

        return handle

    # The broker as a whole

    async def broker(self, request: web.Request, query: Answer) -> Answer:
        """Sums, counters and rates."""
        del request, query
        view, stats = self._view, self._view.stats
        totals = await self._survey.update()
        return {
            "version": readings.broker_version(),
            "started_at": round(self._started_at, 3),
            "uptime_seconds": int(time.time() - self._started_at),
            "listeners": [
                {
                    "name": name,
                    "protocol": listener.protocol,
                    "tls": listener.tls is not None,
                    "clients": totals.by_listener[name],
                    "certificate_expires_at": expires_at,
                }
                for (name, listener), expires_at in zip(
                    readings.listeners(view), view.certificates_expire_at, strict=True
                )
            ],
            "store": {
                "durable": view.is_durable,
                "commits": stats.commits,
                "commit_failures": stats.commit_failures,
            },
            "clients": {
                "connected": totals.connected,
                "away": totals.away,
                "total": totals.connected + totals.away,
                "maximum": stats.connections_max,
                "slow": totals.slow,
                "held_back": totals.held_back,
            },
            "messages": {
                "received": stats.messages_in,
                "sent": stats.messages_out,
                "resent": stats.resent,
                "denied": stats.denied,
                "dropped": stats.dropped,
                "dropped_by_reason": readings.dropped_by_reason(stats),
                "queued": totals.queued,
                "queued_bytes": totals.queued_bytes,
                "in_flight": totals.in_flight,
                "retained": stats.retained,
            },
            "rates": self._history.rates(),
            "subscriptions": stats.subscriptions,
            "connections": {
                "open": stats.connections,
                "accepted": stats.connections_accepted,
                "refused": stats.connections_refused,
                "timed_out": stats.connect_timeouts + stats.keep_alive_timeouts,
                "takeovers": stats.takeovers,
                "publishers_held": stats.publishers_held,
                "rate_limited": stats.rate_limited,
            },
            "malformed": dict(stats.malformed),
            "http_refused": dict(self._guard.refused),
        }

    async def history(self, request: web.Request, query: Answer) -> Answer:
        """Rates of the last minutes."""
        del request
        return {"interval_seconds": 1, "rates": self._history.columns(query["samples"])}

    # Sessions

    async def sessions(self, request: web.Request, query: Answer) -> Answer:
        """One page of sessions."""
        del request
        by_name = query["sort"] == "client_id"
        if query["after"] and not by_name:
            raise web.HTTPBadRequest(text="after goes only with sort=client_id")
        after = query["after"].encode()
        selected = self._selector(query["state"], query["search"].casefold())
        key = _by_key if by_name else self._sort_key(query["sort"])
        found, matched = await smallest(
            self._view.sessions,
            query["limit"],
            key,
            lambda session: session.key > after and selected(session) if after else selected(session),
        )
        rows = [self._row(session) for session in found]
        more = by_name and matched > len(found)
        return {"sessions": rows, "matched": matched, "next": text(found[-1].key) if more else None}

    @property
    def _window(self) -> int:
        """The number of messages in flight at which a session's window is full; a reload may change it."""
        return self._broker.config.max_inflight_messages

    def _row(self, session: Session) -> Answer:
        return readings.session_row(session, self._window, self._broker.loop.time())

    def _selector(self, state: str, search: str) -> Callable[[Session], bool]:
        window = self._window

        def selected(session: Session) -> bool:
            connection = session.connection
            if state == "connected" and connection is None:
                return False
            if state == "away" and connection is not None:
                return False
            if state == "slow" and not readings.is_slow(session, window):
                return False
            if not search:
                return True
            return any(search in name.casefold() for name in readings.names(session))

        return selected

    def _sort_key(self, name: str) -> Callable[[Session], Any]:
        """Return a sort key: largest first, then by client identifier; rows without a value come last."""
        # Read once, so that all sessions are compared at the same time: other work of the loop runs in between.
        now = self._broker.loop.time()

        def key(session: Session) -> tuple[float, bytes]:
            return -readings.sort_value(session, name, now), session.key

        return key

    async def session(self, request: web.Request, query: Answer) -> Answer:
        """One session."""
        session = self._find(request, query)
        connection = session.connection
        received = sent = None
        if connection is not None:
            received, sent = self._client_rates.rates(
                session.key,
                connection.connected_at,
                self._broker.loop.time(),
                connection.messages_in,
                connection.messages_out,
            )
        topic_filters = list(session.subscriptions.items())[:_MAX_FILTERS]
        return {
            "session": self._row(session),
            "topic_filters": [{"topic_filter": text(name), "qos": qos} for name, qos in sorted(topic_filters)],
            "received_per_second": received,
            "sent_per_second": sent,
        }

    async def kick(self, request: web.Request, query: Answer) -> Answer:
        """Cut a connection."""
        session = self._find(request, query)
        if session.connection is None:
            raise web.HTTPConflict(text=f"client {text(session.client_id)} is not connected")
        session.connection.abort("disconnected by an administrator", ReasonCode.ADMINISTRATIVE_ACTION)
        self._broker.router.flush()
        return {"done": True}

    async def forget(self, request: web.Request, query: Answer) -> Answer:
        """Discard a session."""
        session = self._find(request, query)
        if session.connection is not None:
            session.connection.abort("its session was deleted by an administrator", ReasonCode.ADMINISTRATIVE_ACTION)
        # A clean session has ended with its connection.
        if self._view.session(session.client_id, session.mount) is session:
            self._broker.sessions.discard(session)
        self._broker.router.flush()
        await committed(self._broker.store)
        return {"done": True}

    def _find(self, request: web.Request, query: Answer) -> Session:
        client_id = query["client_id"] or request.match_info["client_id"]
        session = self._view.session(_encode(client_id), _encode(query["mount_point"]))
        if session is None:
            raise web.HTTPNotFound(text=f"there is no session of client {client_id}")
        return session

    # Topics

    async def subscriptions(self, request: web.Request, query: Answer) -> Answer:
        """The sessions and groups that get messages of a topic."""
        del request
        topic_name, after = query["topic"].encode(), query["after"].encode()
        if not is_topic_name(topic_name):
            raise web.HTTPBadRequest(text=f"topic={query['topic']} is not a topic name")
        everyone, levels = self._view.subscribers(topic_name), split(topic_name)
        found, matched = await smallest(
            [(session, qos) for session, qos in everyone if isinstance(session, Session)],
            query["limit"],
            lambda entry: entry[0].key,
            lambda entry: entry[0].key > after,
        )
        subscribers = []
        for session, qos in found:
            topic_filters = []
            async for part in slices(list(session.subscriptions)):
                topic_filters += [text(name) for name in part if matches(split(name), levels)]
            subscribers.append(
                {
                    "client_id": text(session.client_id),
                    "mount_point": text(session.mount),
                    "connected": session.connection is not None,
                    "qos": qos,
                    "may_read": readings.may_read(session, topic_name),
                    "topic_filters": sorted(topic_filters)[:_MAX_FILTERS],
                }
            )
        more = matched > len(found)
        # Groups come with the first page only, up to the limit of a page: a topic has few groups.
        groups = [] if after else [group for group, _ in everyone if isinstance(group, SharedQueue)]
        return {
            "subscribers": subscribers,
            "groups": [readings.group_row(group, _MAX_MEMBERS) for group in groups[: query["limit"]]],
            "matched": matched,
            "next": text(found[-1][0].key) if more else None,
        }

    async def shared(self, request: web.Request, query: Answer) -> Answer:
        """One page of shared subscriptions."""
        del request
        after = query["after"].encode()
        found, matched = await smallest(self._view.groups, query["limit"], _by_key, lambda group: group.key > after)
        return {
            "groups": [readings.group_row(group, _MAX_MEMBERS) for group in found],
            "matched": matched,
            "next": text(found[-1].key) if matched > len(found) else None,
        }

    async def retained(self, request: web.Request, query: Answer) -> Answer:
        """One page of retained messages."""
        del request
        after = query["after"].encode()
        found, matched = await smallest(
            self._view.find_retained(_topic_filter(query)),
            query["limit"],
            _topic_name,
            lambda message: message is not None and message.topic_name > after,
        )
        rows: list[Answer] = []
        size = 0
        for message in filter(None, found):
            shown = message.payload[: query["max_payload"]]
            size += len(shown)
            if rows and size > _MAX_PAGE_BYTES:
                break
            payload, encoding = _encode_payload(shown)
            rows.append(
                {
                    "topic_name": text(message.topic_name),
                    "qos": message.qos,
                    "size": len(message.payload),
                    "payload": payload,
                    "encoding": encoding,
                    "truncated": len(shown) < len(message.payload),
                }
            )
        more = matched > len(rows)
        return {"retained": rows, "matched": matched, "next": rows[-1]["topic_name"] if more else None}

    async def clear_retained(self, request: web.Request, query: Answer) -> Answer:
        """Remove retained messages."""
        del request
        topic_filter = _topic_filter(query)
        if topic_filter.startswith(b"$SYS"):
            raise web.HTTPForbidden(text="topics below $SYS are the broker's own")
        router = self._broker.router
        names: list[bytes] = []
        async for part in slices(self._view.find_retained(topic_filter)):
            names += [message.topic_name for message in part if message is not None]
        async for part in slices(names, 100):
            for topic_name in part:
                router.publish(topic_name, b"", 0, 1)
            router.flush()
        await committed(self._broker.store)
        return {"removed": len(names)}

    async def publish(self, request: web.Request, query: Answer) -> Answer:
        """Publish as a client would."""
        del query
        body = await _read_body(request)
        topic_name = body["topic"].encode("utf-8", "surrogatepass")
        if not is_topic_name(topic_name) or len(topic_name) > 65535:
            raise web.HTTPBadRequest(text="topic is not a topic name")
        if topic_name.startswith(b"$SYS/"):
            raise web.HTTPForbidden(text="topics below $SYS are the broker's own")
        router, config = self._broker.router, self._broker.config
        if is_too_deep(topic_name, config.max_topic_levels):
            raise web.HTTPBadRequest(text=f"topic has more levels than max_topic_levels {config.max_topic_levels}")
        payload, most = _decode_payload(body), config.max_payload_size
        if most and len(payload) > most:
            raise web.HTTPBadRequest(text=f"payload has {len(payload)} bytes, message_size_limit is {most}")
        router.publish(topic_name, payload, body["qos"], int(body["retain"] and config.retain_available))
        router.flush()
        if body["qos"] or body["retain"]:
            await committed(self._broker.store)
        return {"done": True}


def _by_key(session: MessageQueue) -> bytes:
    # The client identifier; behind a mount point, the mount point, a zero byte and the client identifier.
    return session.key


def _topic_name(message: RetainedMessage | None) -> bytes:
    return b"" if message is None else message.topic_name


def _encode(given: str) -> bytes:
    return given.encode("utf-8", "surrogateescape")


def _topic_filter(query: Answer) -> bytes:
    topic_filter = query["filter"].encode()
    if not is_topic_filter(topic_filter):
        raise web.HTTPBadRequest(text=f"filter={query['filter']} is not a topic filter")
    return topic_filter


async def _read_body(request: web.Request) -> Answer:
    """Return the fields of a publish, with defaults filled in. Raises HTTPBadRequest or HTTPUnsupportedMediaType."""
    # A form on a page of another site cannot send this type, so the browser must ask first (CORS), and is refused.
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body must be application/json")
    try:
        given = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text="the body is not JSON") from error
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text="the body is not a JSON object")
    for name, value in given.items():
        # type() instead of isinstance(): in Python a bool is an int, in JSON it is not.
        if name not in _BODY_TYPES or type(value) is not _BODY_TYPES[name]:
            shown = name[:100].encode(errors="backslashreplace").decode()  # JSON can say what UTF-8 cannot
            raise web.HTTPBadRequest(text=f"field {shown} is unknown or of a wrong type")
    for name in ("topic", "payload"):
        if name not in given:
            raise web.HTTPBadRequest(text=f"field {name} is missing")
    body = {"encoding": "utf-8", "qos": 0, "retain": False} | given
    if body["qos"] not in (0, 1, 2) or body["encoding"] not in ("utf-8", "base64"):
        raise web.HTTPBadRequest(text="qos must be 0, 1 or 2, and encoding utf-8 or base64")
    return body


def _decode_payload(body: Answer) -> bytes:
    try:
        if body["encoding"] == "base64":
            return base64.b64decode(body["payload"], validate=True)
        return body["payload"].encode()
    except (binascii.Error, UnicodeEncodeError, ValueError) as error:
        raise web.HTTPBadRequest(text=f"payload is not {body['encoding']}") from error


def _encode_payload(payload: bytes) -> tuple[str, str]:
    """Return a payload as text if it is UTF-8, else as base64; and the name of the encoding."""
    if is_utf8(payload):
        return payload.decode(), "utf-8"
    return base64.b64encode(payload).decode(), "base64"

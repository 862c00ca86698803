"""Shared by the tests of the broker's observation: a broker with its HTTP listener on, and a plain HTTP client."""

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from broker_peer import BrokerThread
from umqtt_broker import BrokerConfig
from umqtt_broker.observation.server import Server
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S

JSON = {"Content-Type": "application/json"}


class Reply(NamedTuple):
    """An HTTP answer: its status, its headers with names in lower case, and its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body, decoded as JSON."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Return the message of an error, which must have the shape that all errors have."""
        error = self.json["error"]
        assert set(self.json) == {"error"} and set(error) == {"status", "message"} and error["status"] == self.status
        assert error["message"] and "\n" not in error["message"]
        return error["message"]


class ObservedBroker(BrokerThread):
    """A broker with the HTTP listener on. token: the token that it accepts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.http_port = reserved_port()  # 0 switches it off
        self.token_file = folder / "token"
        settings.setdefault("http_token_file", str(self.token_file))
        super().__init__(BrokerConfig(port=0, http_port=self.http_port, **settings))

    def __enter__(self) -> "ObservedBroker":
        super().__enter__()
        self.token = Path(self.broker.config.http_token_file or f"{self.broker.config.store}.token").read_text().strip()
        return self

    @property
    def server(self) -> Server:
        """Return the HTTP listener itself."""
        server = self.broker.observation.server
        assert server is not None
        return server

    def request(
        self, method: str, path: str, body: object = None, *, headers: dict[str, str | None] | None = None
    ) -> Reply:
        """Send one request as a program with the token does.

        headers: these replace or, with None, remove its own.
        """
        sent: dict[str, str | None] = {
            "Host": f"127.0.0.1:{self.http_port}",
            "Authorization": f"Bearer {self.token}",
        }
        content = None
        if body is not None:
            sent |= JSON
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent |= headers or {}
        connection = HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_LIMIT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if content is not None:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, fields, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of a GET that must succeed."""
        reply = self.request("GET", path)
        assert reply.status == 200, reply
        return reply.json

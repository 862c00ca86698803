"""An S3 server: moto's, as a separate process, which can be told to give another answer or none at all.

It is not in the tests' process, because delta-rs keeps Python's lock while it waits for some answers.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterable
from subprocess import DEVNULL, PIPE, Popen
from typing import Any, Protocol

import pytest
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest import location

ACCESS_KEY, SECRET_KEY = "AKIAUMQTTTESTKEY0001", "secret/that+no/line=may/ever/show"
CLOSES, LOSES_COMMITS = 0, -1
_CONTROL = "/-/answer"


class Store(Protocol):
    """What :func:`use` needs of a store."""

    def environment(self) -> dict[str, str]: ...


class ObjectStore:
    """A server with the bucket ``readings``, whose content is lost when it ends.

    :ivar root: the URL of the bucket.
    """

    root = "s3://readings"

    def __enter__(self) -> ObjectStore:
        # The store is a part of others, as mosquitto is: `make prove-steady` delays the project's own processes only.
        environment = {name: value for name, value in os.environ.items() if name != "UMQTT_DELAYS"}
        command = [sys.executable, __file__]
        self._process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=environment)
        assert self._process.stdout is not None
        self.endpoint = self._process.stdout.readline().decode().strip()
        self._request("PUT", "/readings")
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=WAIT_LIMIT_S)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that delta-rs needs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def answer(self, status: int | None, body: str = "") -> None:
        """Give this answer to every request from now on; CLOSES: close the connection; None: serve normally.

        LOSES_COMMITS: do what a conditional write asks for, and close the connection instead of answering.
        """
        self._request("PUT", _CONTROL, json.dumps([status, body]).encode())

    def reader(self) -> dict[str, str]:
        """Return environment variables with a key that may read but not write.

        The restriction has an effect once :meth:`check_keys` is on.
        """
        import boto3

        iam = boto3.client(
            "iam",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        iam.create_user(UserName="reader")
        allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*", "s3:Head*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=policy)
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}

    def check_keys(self, on: bool) -> None:
        """Set whether requests with an unknown or insufficient key are refused."""
        self._request("POST", "/moto-api/reset-auth", b"0" if on else b"inf")

    def _request(self, method: str, path: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(self.endpoint + path, body, {"Content-Type": "text/plain"}, method=method)
        urllib.request.urlopen(request).close()


def use(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Make this process use the store."""
    for name, value in store.environment().items():
        patch.setenv(name, value)
    location._storage.cache_clear()


def _serve() -> None:
    from moto.server import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    # Moto finds the service of a request by itself too, but looks through its whole package for each one.
    services = {name: create_backend_app(name) for name in ("s3", "iam", "moto_api")}
    told: list[Any] = [None, ""]

    def moto(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        is_told = environ["PATH_INFO"].startswith("/moto-api/")
        is_iam = "/iam/" in environ.get("HTTP_AUTHORIZATION", "")
        return services["moto_api" if is_told else "iam" if is_iam else "s3"](environ, start_response)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _CONTROL:
            told[:] = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            start_response("200 OK", [("Content-Length", "0")])
            return []
        status, body = told
        if status is None:
            return moto(environ, start_response)
        if status == LOSES_COMMITS:
            answer = moto(environ, start_response)
            if "HTTP_IF_NONE_MATCH" not in environ:
                return answer
            list(answer)
        if status in (CLOSES, LOSES_COMMITS):
            environ["werkzeug.socket"].shutdown(2)
            return []
        start_response(f"{status} Told", [("Content-Length", str(len(body)))])
        return [body.encode()] if environ["REQUEST_METHOD"] != "HEAD" else []

    class Silent(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Silent)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve()

"""Fixtures of the transports' tests: certificates, brokers with TLS, and programs on both interpreters."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from programs import Program, command_of
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.ports import bound
from umqtt_testkit.waiting import WAIT_LIMIT_S

_SUBJECTS = {"broker": "localhost", "expired": "localhost", "stranger": "localhost", "client": "pump-7"}


@pytest.fixture(params=["cpython", "micropython"])
def interpreter(request: pytest.FixtureRequest) -> list[str]:
    """Return the command line of an interpreter that finds the library."""
    try:
        return command_of(request.param)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def program(interpreter: list[str]) -> Iterator[Callable[..., Program]]:
    """Provide program("talk.py", url=..., ...): it starts a program of the folder `programs`, ended with the test."""
    started: list[Program] = []

    def start(name: str, **config: object) -> Program:
        started.append(Program(interpreter, name, config))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Provide a port of 127.0.0.1 that refuses connections: bound, so that no process gets it, but not listening."""
    with bound("127.0.0.1") as reserved:
        yield reserved.getsockname()[1]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ca.pem, and a .pem and .key for broker, expired, client and stranger (of another CA);
    chain.pem and chained.key of a client whose certificate an intermediate authority has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificates: apt install openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=WAIT_LIMIT_S)

    def new_key(option: str, name: str, subject: str, *more: str) -> None:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl("req", option, *curve, "-keyout", f"{name}.key", "-subj", f"/CN={subject}", *more)

    for authority in ("ca", "other"):
        new_key("-x509", authority, f"test {authority}", "-out", f"{authority}.pem", "-days", "30")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    for name, subject in _SUBJECTS.items():
        new_key("-new", name, subject, "-out", f"{name}.csr")
        authority = "other" if name == "stranger" else "ca"
        signed_by = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        days = "-1" if name == "expired" else "10"
        openssl(
            "x509", "-req", "-in", f"{name}.csr", *signed_by, "-days", days, "-extfile", "names", "-out", f"{name}.pem"
        )
    # A client's certificate of an intermediate authority.
    (folder / "authority").write_text("basicConstraints=critical,CA:TRUE\n")
    for name, authority, extensions in (("middle", "ca", "authority"), ("chained", "middle", "names")):
        new_key("-new", name, name, "-out", f"{name}.csr")
        signed_by = ("-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-extfile", extensions, "-out", f"{name}.pem")
    (folder / "chain.pem").write_bytes((folder / "chained.pem").read_bytes() + (folder / "middle.pem").read_bytes())
    openssl("x509", "-in", "ca.pem", "-outform", "der", "-out", "ca.der")
    return folder


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Provide mosquitto("cafile ...", ...): it starts a broker on loopback with these lines and returns its port."""
    with ExitStack() as running:

        def start(*lines: str) -> int:
            return running.enter_context(Mosquitto(tmp_path, "allow_anonymous true", *lines)).port

        yield start

"""Every Python example of the README and of the client's pages prints what it says, on both interpreters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from umqtt_testkit.interpreter import MicroPythonMissing, micropython_command
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.paired_broker import paired_broker

import umqtt_robust
from examples import Example, examples, run

_ROOT = Path(__file__).resolve().parents[2]
_FILES = ("README.md", "docs/client.md", "docs/architecture.md", "docs/migrate.md")
_ALL = [(name, example) for name in _FILES for example in examples(_ROOT / name)]
# The front page's examples run against the project's own broker too.
_RUNNABLE = [
    pytest.param(name, each, broker, id=f"{name}: {each.heading}: {broker}")
    for name, each in _ALL
    for broker in (("mosquitto", "umqtt broker") if name == "README.md" else ("mosquitto",))
    if each.run
]
_CLIENT_GUIDE = _ROOT / "docs" / "client.md"
_AT_ONCE = 6
_RUNS = "test_an_example_runs_and_prints_what_it_says"


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, int, str, str], Future[str | None]]]:
    """Start each example; provide what is wrong with it, by file, line, broker and interpreter.

    Several run at once, each with its own broker, because they wait most of the time.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = {}
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.originalname == _RUNS and item.path == request.path:
                given = item.callspec.params
                folder = tmp_path_factory.mktemp("example")
                key = (given["name"], given["example"].line, given["broker"], given["interpreter"])
                found[key] = pool.submit(_outcome, given["example"], given["interpreter"], given["broker"], folder)
        yield found


def _outcome(example: Example, interpreter: str, broker: str, folder: Path) -> str | None:
    with ExitStack() as stack:
        if broker == "mosquitto":
            port = stack.enter_context(Mosquitto(folder, "allow_anonymous true")).port
        else:
            port = stack.enter_context(paired_broker())
        return run(example, micropython=interpreter == "micropython", broker_port=port, folder=folder)


@pytest.mark.parametrize("interpreter", ["cpython", "micropython"])
@pytest.mark.parametrize(("name", "example", "broker"), _RUNNABLE)
def test_an_example_runs_and_prints_what_it_says(name, example, broker, interpreter, outcomes):
    if interpreter == "micropython":
        try:
            micropython_command()
        except MicroPythonMissing as missing:
            pytest.skip(str(missing))
    wrong = outcomes[name, example.line, broker, interpreter].result()
    assert wrong is None, f"{name}:{example.line}: {wrong}"


@pytest.mark.parametrize(
    ("name", "example"), [pytest.param(name, each, id=f"{name}: {each.heading}") for name, each in _ALL if not each.run]
)
def test_an_example_that_cannot_run_here_is_python_at_least(name, example):
    compile(example.source, f"{name}:{example.line}", "exec")


@pytest.mark.parametrize(
    ("source", "expected", "told"),
    [
        ("print('first word')\n", ["last word"], "missing: ['last word']"),
        ("print('first word')\nraise ValueError('bad')\n", [], "ValueError"),
        ("raise ValueError('bad')\nprint('first word')\n", ["first word"], "ValueError"),
    ],
)
def test_an_example_that_is_wrong_is_found(source, expected, told, tmp_path):
    wrong = run(Example("", 1, True, source, expected), micropython=False, broker_port=1, folder=tmp_path)
    assert wrong is not None
    assert told in wrong


def test_the_guide_names_every_option_callback_and_counter_of_the_client():
    guide = _CLIENT_GUIDE.read_text()
    client = next(
        node
        for node in ast.parse((Path(umqtt_robust.__file__).parent / "client.pyi").read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Client"
    )
    init = next(node for node in client.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    for option in init.args.kwonlyargs:
        assert f"`{option.arg}" in guide, option.arg

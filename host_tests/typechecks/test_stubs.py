"""The .pyi stubs agree with the modules beside them."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import umqtt_robust
from umqtt_robust import client as client_module
from umqtt_robust.errors import InvalidArgument

_HERE = Path(__file__).resolve().parent
_LIBRARY = Path(umqtt_robust.__file__).resolve().parent


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """Return a copy of only the stubs: beside the modules, mypy would check those too, which have no types."""
    copy = tmp_path / "umqtt_robust"
    shutil.copytree(_LIBRARY, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return copy


def _stubtest(stubs: Path) -> subprocess.CompletedProcess[str]:
    allowlist = str(_HERE / "stubtest_allowlist.txt")
    return subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "umqtt_robust", "--concise", "--allowlist", allowlist],
        capture_output=True,
        text=True,
        cwd=stubs.parent,
        env={**os.environ, "MYPYPATH": str(stubs.parent), "PYTHONPATH": str(_LIBRARY.parent)},
        check=False,
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("client.pyi", "def poll(self, ms: int)", "def poll(self, seconds: int)", "Client.poll"),
        ("client.pyi", "    def connect(self) -> None: ...\n", "", "Client.connect"),
        ("policy.pyi", "DROP_NEWEST: Final = 2", "DROP_NEWEST: Final = 3", "DROP_NEWEST"),
        ("store.pyi", "slots: int = 32", "slots: int = 16", "MemoryStore.__init__"),
    ],
)
def test_a_stub_that_is_wrong_is_found(stubs, file, old, new, complaint):
    text = (stubs / file).read_text()
    assert old in text
    (stubs / file).write_text(text.replace(old, new))
    ended = _stubtest(stubs)
    assert ended.returncode == 1
    assert complaint in ended.stdout


def test_a_module_has_a_stub_or_is_the_librarys_own_business():
    allowed = [line for line in (_HERE / "stubtest_allowlist.txt").read_text().splitlines() if not line.startswith("#")]
    bare = [file.stem for file in _LIBRARY.glob("*.py") if not file.with_suffix(".pyi").exists()]
    assert [name for name in bare if not any(re.fullmatch(each, f"umqtt_robust.{name}") for each in allowed)] == []


def test_every_option_of_the_client_is_in_its_stub_with_its_default_and_as_an_attribute():
    # The client takes its options as **options, where stubtest cannot see them.
    classes = {
        node.name: node
        for name in ("client", "session")
        for node in ast.parse((_LIBRARY / f"{name}.pyi").read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    init = next(
        node for node in classes["Client"].body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    )
    found = {
        argument.arg: ast.literal_eval(default) if default is not None else inspect.Parameter.empty
        for argument, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
    }
    # client_module.Client sets all of them before it takes the first.
    client = client_module.Client("c", "mqtt://h")
    assert found == {name: ... if callable(value := getattr(client, name)) else value for name in found}
    for name in {*dir(client_module.Client), "teleport"} - set(found):
        if name == "teleport" or callable(getattr(client_module.Client, name)):
            with pytest.raises(InvalidArgument):
                client_module.Client("c", "mqtt://h", **{name: None})
    attributes = {
        node.target.id
        for each in classes.values()
        for node in each.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(found) <= attributes


def test_every_attribute_that_the_client_documents_is_in_its_stubs():
    text = client_module.Client.__doc__ or ""
    (counters,) = re.findall(r"^    Counters: (.*?)\.\n", text, re.DOTALL | re.MULTILINE)
    stubs = (_LIBRARY / "client.pyi").read_text() + (_LIBRARY / "session.pyi").read_text()
    attributes = re.findall(r"^    :ivar (\w+):", text, re.MULTILINE)
    assert {"connected", "closed", "subscribed", "pending", "in_flight", "socket", "packet_id"} <= set(attributes)
    for name in attributes:
        assert re.search(rf"^    (?:def )?{name}[:(]", stubs, re.MULTILINE), name
    for name in re.findall(r"[a-z_]+", re.sub(r"\(.*?\)", "", counters)):
        assert re.search(rf"^    {name}: int", stubs, re.MULTILINE), name

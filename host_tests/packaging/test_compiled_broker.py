"""The broker that UMQTT_MYPYC=1 compiles passes the tests that the plain one passes.

Compiled code checks types while it runs. It fails, where plain Python does not, if a call changes an attribute and the
type that mypyc concluded from a test before the call is no longer true.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.tier(3)

# All but the trace of a message, which sees no compiled function.
_TESTS = ("host_tests/broker", "--ignore", "host_tests/broker/test_broker_walk.py")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel with the compiled modules, unpacked as pip would install it."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        env=os.environ | {"UMQTT_MYPYC": "1"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    assert not wheel.name.endswith("-any.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_compiled_broker_passes_the_tests_of_the_plain_one(compiled: Path) -> None:
    # Its tests need short names of sockets, and a folder that other users may enter, so theirs is beside the one here.
    temporary = next(parent for parent in compiled.parents if parent.name.startswith("pytest-of-")).parent
    sys_path = os.pathsep.join(filter(None, [str(compiled), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": sys_path, "TMPDIR": str(temporary)}
    code = "from umqtt_broker import Broker; from umqtt_broker.routing import router; print(router.__file__)"
    loaded = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip().endswith(".so")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "4", "--dist", "loadfile", "--tiers", "0,1", *_TESTS],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]

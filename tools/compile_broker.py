"""The build hook that compiles the broker's fast path with mypyc, if UMQTT_MYPYC is 1: see docs/broker.md."""

import os
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What a PUBLISH and its acknowledgements pass through. clients/connection.py and clients/backpressure.py gained nothing
# measurable. In the first, a call changes attributes between two tests of them, which fails in compiled code.
MODULES = (
    *("protocol/packets", "protocol/packets5", "protocol/messages", "protocol/topics", "protocol/topic_filters"),
    *("core/clock", "core/context", "core/queue_limits"),
    *("sessions/entry", "sessions/queue", "sessions/session", "sessions/topic_aliases"),
    *("routing/publish_checks", "routing/router", "routing/routes5"),
    *("clients/acknowledgements", "clients/framing", "clients/packet_loop"),
)


class CompiledBroker(BuildHookInterface):
    """Adds the compiled modules to the wheel, beside their sources, which Python then leaves alone."""

    def dependencies(self) -> list[str]:
        """Return what only a build that compiles needs."""
        return ["mypy>=2.4", "setuptools"] if _is_asked_for() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, in a folder that is removed in finalize()."""
        if not _is_asked_for():
            return
        if version == "editable":
            raise ValueError("UMQTT_MYPYC=1 compiles a wheel — leave it out of an editable installation")
        self._folder = folder = Path(tempfile.mkdtemp(prefix="umqtt-mypyc-"))
        shutil.copytree(Path(self.root, "tools", "umqtt_broker"), folder / "umqtt_broker")
        _compile(folder)
        found = [*folder.glob("*.so"), *folder.glob("umqtt_broker/**/*.so")]
        build_data["force_include"].update({str(file): str(file.relative_to(folder)) for file in found})
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if _is_asked_for():
            shutil.rmtree(self._folder)


def _is_asked_for() -> bool:
    return os.environ.get("UMQTT_MYPYC") == "1"


def _compile(folder: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import setup

    with chdir(folder):
        files = [f"umqtt_broker/{name}.py" for name in MODULES]
        options = ["--ignore-missing-imports", "--follow-imports=silent", *files]
        modules: list[Any] = mypycify(options, debug_level="0", group_name="umqtt_broker")
        setup(name="umqtt-broker", packages=[], ext_modules=modules, script_args=["-q", "build_ext", "--inplace"])

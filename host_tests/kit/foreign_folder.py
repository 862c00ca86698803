"""A folder that may be a clone of somebody else's repository: a file for every module that a process could import."""

from __future__ import annotations

import sys
from pathlib import Path

# Modules that our processes import, besides those of the standard library.
_OTHERS = ("aiohttp", "click", "cryptography", "deltalake", "esptool", "mpremote", "numpy", "paho", "py4j", "pyarrow")
_OURS = ("spark_ingest", "umqtt_broker", "umqtt_cli", "umqtt_kit", "umqtt_robust", "umqtt_testkit")
_SITE = ("pyspark", "rich", "serial", "sitecustomize", "usercustomize")


class Foreign:
    """Such a folder. imported: the names of its modules that somebody imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "foreign"
        self.folder.mkdir()
        self._mark = folder / "imported"
        # Without any import: the modules that this could import are planted too.
        code = f"with open({str(self._mark)!r}, 'a') as mark:\n    print(__name__, file=mark)\nraise ImportError\n"
        for name in {*sys.stdlib_module_names, *_OTHERS, *_OURS, *_SITE}:
            (self.folder / f"{name}.py").write_text(code)

    @property
    def imported(self) -> set[str]:
        return set(self._mark.read_text().split()) if self._mark.exists() else set()

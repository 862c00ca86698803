# ruff: noqa: F821 - include(), package() and module() are MicroPython's
# What every board's manifest.py includes: the whole device library and the firmware, read from their folders.
#
# MicroPython's build runs this with its own functions (docs/reference/manifest.rst) in this folder.
import json
import os

with open("filesets.json") as _file:
    _host = json.load(_file)["host"]

package(
    "umqtt_robust",
    files=sorted(
        name for name in os.listdir("../umqtt_robust") if name.endswith(".py") and name[: -len(".py")] not in _host
    ),
    base_path="..",
    # Compiled like `umqtt deploy` does: without assertions and line numbers.
    opt=3,
)
for _name in ("app", "portal"):
    package(_name, base_path="../firmware", opt=2)
# A frozen boot.py and main.py run instead of files of that name in flash.
for _name in sorted(os.listdir("../firmware")):
    if _name.endswith(".py"):
        module(_name, base_path="../firmware", opt=2)

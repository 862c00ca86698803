"""The power-cut flash, inside real MicroPython; on CPython its sweeps are skipped with the reason."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

# Limit for all sweeps of the file, one after the other.
_HUNG_AFTER_S = 170

SOURCE = Path(__file__).with_name("portable_power_cut.py")


def test_the_power_cut_flash_keeps_its_laws_and_catches_planted_bugs(tmp_path: Path):
    shutil.copy(SOURCE, tmp_path / "test_power_cut_flash.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\numqtt_both = .\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-rs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=_HUNG_AFTER_S)
    names = re.findall(r"^def test_(\w+)", SOURCE.read_text(), re.MULTILINE)
    device = dict(re.findall(r"::test_(\w+)\[micropython\] (\w+)", done.stdout))
    assert done.returncode == 0, done.stdout + done.stderr
    if set(device.values()) != {"SKIPPED"}:  # all skipped: no MicroPython on this machine
        assert device == dict.fromkeys(names, "PASSED"), done.stdout
    assert "VfsLfs2 is in MicroPython only" in done.stdout

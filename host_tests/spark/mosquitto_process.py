"""The real mosquitto as a process."""

import shutil
import subprocess
from pathlib import Path

import pytest
from spark_helpers import until
from umqtt_testkit.ports import reserved_port


class Mosquitto:
    """A mosquitto with `lines` in its configuration, on loopback; it may be stopped and started again on its port."""

    def __init__(self, folder: Path, *lines: str) -> None:
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if program is None:
            pytest.skip("mosquitto is not installed: apt install mosquitto")
        self._config, self._log = folder / "mosquitto.conf", folder / "mosquitto.log"
        self._command = [program, "-c", str(self._config)]
        for _ in range(5):
            self.port = reserved_port()
            # As root it would become the user mosquitto, who may not read the files of a test.
            fixed = ("user root", f"listener {self.port} 127.0.0.1", "persistence false")
            self._config.write_text("\n".join((*fixed, *lines, "")))
            if self._runs():
                return
        pytest.fail(f"mosquitto did not start: {self._log.read_text()}")

    def start(self) -> None:
        """Start it again, and wait until it listens."""
        assert self._runs(), self._log.read_text()

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        self._child.terminate()
        self._child.wait(60)

    def _runs(self) -> bool:
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        # It says so itself: behind the port there may be somebody else's broker, who had it first.
        until(lambda: self._child.poll() is not None or b" running" in self._log.read_bytes(), "mosquitto runs")
        return self._child.poll() is None

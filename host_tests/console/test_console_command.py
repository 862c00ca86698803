"""The command itself: as docs/console.md shows it, with its port, its end, and what it says when it cannot start."""

import re
import shlex
import signal
import subprocess
import urllib.request
from pathlib import Path

from gold_tables import fleet
from umqtt_kit.processes import module_command
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import WAIT_LIMIT_S

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text()


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = module_command("umqtt_cli", "console", *arguments)
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_example_of_its_page_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    shown, line = re.findall(r"^```console\n\$ umqtt console (.*)\n(.*)\n```", PAGE, re.MULTILINE)[0]
    fleet(tmp_path / "tables", devices=3, days=0.1)
    # The broker of the example is nobody here, and 8090 may be somebody's: its absence is said on the page.
    arguments = [*shlex.split(shown.replace("192.168.1.2", "127.0.0.1:1")), "--listen", "127.0.0.1:0"]
    with start(tmp_path, *arguments) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert re.fullmatch(re.escape(line).replace("8090", r"\d+"), said.strip())
        address = said.split()[-1]
        with urllib.request.urlopen(f"{address}/api/fleet", timeout=WAIT_LIMIT_S) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_LIMIT_S) == 0
        assert process.stderr is not None and process.stderr.read() == ""


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    port = reserved_port()
    with start(tmp_path, "--tables", "tables", "--listen", f"127.0.0.1:{port}") as first:
        assert first.stdout is not None and first.stdout.readline()
        with start(tmp_path, "--tables", "tables", "--listen", f"127.0.0.1:{port}") as second:
            out, error = second.communicate(timeout=WAIT_LIMIT_S)
        assert second.returncode == 4 and out == "" and error.count("\n") == 1 and "choose another --listen" in error
        first.send_signal(signal.SIGINT)
        assert first.wait(WAIT_LIMIT_S) == 0

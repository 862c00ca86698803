"""The commands of docs/broker-shared.md print what the page says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from broker_peer import BrokerProcess
from umqtt_testkit.waiting import WAIT_LIMIT_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "broker-shared.md"


def test_the_page_of_shared_subscriptions_shows_what_its_commands_print(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with BrokerProcess(tmp_path / "broker.db") as broker:
        at_broker = ["--broker", f"mqtt://127.0.0.1:{broker.port}"]
        for part in block.split("$ umqtt ")[1:]:
            command, _, expected = part.partition("\n")
            done = subprocess.run(
                [sys.executable, "-m", "umqtt_cli", *shlex.split(command), *at_broker],
                capture_output=True,
                text=True,
                timeout=3 * WAIT_LIMIT_S,
                check=True,
            )
            assert done.stdout == expected, shlex.join(done.args)

"""As many connections as allowed may be open, and making room for them does not stop the others."""

import subprocess
import sys

import pytest

_PROGRAM = """
import re, resource, sys
from umqtt_broker.transport.open_files import make_room
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
make_room({connections})
room = re.search(r"FDSize:\\s*(\\d+)", open("/proc/self/status").read())
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], room[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how large its table is")
@pytest.mark.parametrize(
    ("soft", "hard", "connections", "limit", "room"),
    [
        (256, 4096, 1000, 1200, 1200),  # raised as far as the connections need
        (256, 512, 1000, 512, 512),  # raised to the hard limit
        (2048, 4096, 10, 2048, 200),  # never lowered
    ],
)
def test_the_limit_is_raised_and_the_table_grows_before_they_come(
    soft: int, hard: int, connections: int, limit: int, room: int
) -> None:
    program = _PROGRAM.format(soft=soft, hard=hard, connections=connections)
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    found = [int(number) for number in printed.split()]
    assert found[0] == limit and room <= found[1] < 4 * room

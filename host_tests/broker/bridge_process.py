"""A broker with bridges as a process that can be killed: bridge_process.py STORE BRIDGES PORT.

BRIDGES is a file with one `connection` section, as in mosquitto.conf, or with none. Its
restart_timeout is shortened, so that a test need not wait.
"""

import asyncio
import sys
from pathlib import Path

from umqtt_broker import Broker, BrokerConfig
from umqtt_broker.settings.bridge import parse_connection


async def _main(store: str, path: str, port: str) -> None:
    section = [
        (line.partition(" ")[0], line.partition(" ")[2], f"{path}:{number}")
        for number, line in enumerate(Path(path).read_text().splitlines(), 1)
    ]
    configs = [parse_connection(section)] if section else []
    for config in configs:
        config.restart_timeout = (0.02, 0.1)
    async with Broker(BrokerConfig(port=int(port), store=store, bridges=tuple(configs))) as broker:
        print(f"listening on {broker.host}:{broker.port}", flush=True)
        await asyncio.Event().wait()


asyncio.run(_main(*sys.argv[1:]))

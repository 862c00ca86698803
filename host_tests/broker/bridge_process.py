"""A broker with bridges as a process that can be killed: bridge_process.py STORE BRIDGES PORT.

BRIDGES is a file with one `connection` section as in mosquitto.conf, or with none. Its restart_timeout is shortened,
so that tests need not wait.
"""

import asyncio
import sys
from pathlib import Path

from bridge_parts import read_bridge
from umqtt_broker import Broker, BrokerConfig


async def _main(store: str, path: str, port: str) -> None:
    section = Path(path).read_text()
    configs = [read_bridge(section, path)] if section else []
    for config in configs:
        config.restart_timeout = (0.02, 0.1)
    async with Broker(BrokerConfig(port=int(port), store=store, bridges=tuple(configs))) as broker:
        print(f"listening on {broker.host}:{broker.port}", flush=True)
        await asyncio.Event().wait()


asyncio.run(_main(*sys.argv[1:]))

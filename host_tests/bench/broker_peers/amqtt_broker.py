"""The broker amqtt for the bench: python amqtt_broker.py PORT, with a Python that has its package."""

import asyncio
import logging
import sys

from amqtt.broker import Broker


async def main(port: int) -> None:
    """Serve until killed, without logging and without $SYS topics, so that only messages are measured."""
    logging.disable(logging.CRITICAL)
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 0}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.Event().wait()


asyncio.run(main(int(sys.argv[1])))

"""The broker as a process: `python -m umqtt_broker -p PORT [--host HOST] [--store PATH|:memory:]`.

Prints `listening on HOST:PORT` as its first line once it serves, and ends with 0 on SIGINT or SIGTERM with
everything committed. Exit code 2: the address, the store or an option is unusable; one line on standard error
says why.
"""

import argparse
import asyncio
import gc
import logging
import signal
import sys

from .broker import Broker
from .config import MEMORY, BrokerConfig
from .errors import BrokerError

_EXIT_USAGE = 2
_EXIT_STORE_FAILED = 1


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal comes. Returns the exit code."""
    config = _parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # The packet loop makes tuples that live for microseconds and no cycles: collecting after every 700 of
    # them, and looking through every module each time, is wasted.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    return asyncio.run(_serve(config))


def _parse(arguments: list[str] | None) -> BrokerConfig:
    defaults = BrokerConfig()
    parser = argparse.ArgumentParser(
        prog="umqtt_broker", description="MQTT 3.1.1 broker that loses nothing it acknowledged."
    )
    parser.add_argument(
        "-p",
        "--port",
        type=int,
        default=defaults.port,
        help="TCP port, 0 for a free one (default: %(default)s)",
    )
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--store",
        default=MEMORY,
        metavar="PATH",
        help="file that keeps persistent sessions and retained messages; %(default)s (the default) keeps them"
        " only while the broker runs",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="let anyone in who can reach the address; needed for an address other machines can reach",
    )
    parser.add_argument(
        "--max-inflight",
        type=int,
        default=defaults.max_inflight_messages,
        metavar="N",
        help="QoS 1 and 2 messages on the way to one client at a time (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    return BrokerConfig(
        host=options.host,
        port=options.port,
        store=options.store,
        allow_anonymous=options.allow_anonymous,
        max_inflight_messages=options.max_inflight,
    )


async def _serve(config: BrokerConfig) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(config)
    try:
        await broker.start()
    except BrokerError as error:
        print(error, file=sys.stderr)
        return _EXIT_USAGE
    print(f"listening on {broker.host}:{broker.port}", flush=True)
    await stop.wait()
    try:
        await broker.stop()
    except BrokerError as error:
        print(error, file=sys.stderr)
        return _EXIT_STORE_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())

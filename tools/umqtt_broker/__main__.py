"""The broker as a program: `python -m umqtt_broker -c FILE`, or `-p PORT [--host HOST] [--store PATH|:memory:]`.

Prints `listening on HOST:PORT` as its first line once it serves, one such line for each address, and ends with 0 on
SIGINT or SIGTERM with everything committed. SIGHUP reloads the configuration, permissions and certificates.
Exit code 2: the address, the store, an option or the configuration is unusable; a line on standard error for each
mistake says why.
"""

import argparse
import asyncio
import gc
import secrets
import sys
from typing import Any

from . import log
from .conf import Configuration, load
from .conf.lines import ConfigFileError
from .errors import BrokerError
from .log import LogConfig
from .process import EXIT_USAGE, Process
from .settings.broker import MEMORY, BrokerConfig
from .settings.redis_url import is_redis_url
from .start_check import problems_of
from .transport.event_loop import new_event_loop

# Fields of BrokerConfig that have an option, and its name.
_OPTIONS = {
    "port": "--port",
    "host": "--host",
    "store": "--store",
    "http_port": "--http",
    "allow_anonymous": "--allow-anonymous",
}


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal arrives. Returns the exit code."""
    options = _parse(arguments)
    try:
        with log.collect_warnings() as early:
            configuration = _configuration(options)
        configuration.warnings += early
        if options.test_config:
            return _report(configuration)
        log.start(configuration.log)
    except BrokerError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    # The packet loop creates short-lived tuples and no reference cycles: a collection after every 700 of them, which
    # also scans every module, is wasted work.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(Process(configuration, options.config or "", lenient=options.lenient).run())


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    defaults = BrokerConfig()
    parser = argparse.ArgumentParser(
        prog="umqtt_broker", description="MQTT 5 and 3.1.1 broker that loses nothing it acknowledged."
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration in mosquitto.conf's syntax")
    parser.add_argument(
        "--lenient", action="store_true", help="unsupported keys in FILE that restrict nothing are warnings"
    )
    parser.add_argument("--test-config", action="store_true", help="check FILE and everything it names, and end")
    parser.add_argument("-p", "--port", type=int, help=f"TCP port, 0 for a free one (default: {defaults.port})")
    parser.add_argument("--host", help=f"address to listen on (default: {defaults.host})")
    parser.add_argument(
        "--store",
        metavar="PATH",
        help="file that keeps persistent sessions and retained messages, or redis://HOST:PORT/DB, which several brokers"
        f" share; {MEMORY} (the default) keeps them only while the broker runs",
    )
    parser.add_argument(
        "--http",
        type=int,
        dest="http_port",
        metavar="PORT",
        help="serve metrics, the admin API and the live page on this port of 127.0.0.1",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        default=None,
        help="let anyone in who can reach the address; needed for an address other machines can reach",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="open the store also when part of it is lost or damaged; the loss is logged",
    )
    options = parser.parse_args(arguments)
    if options.config is None:
        if options.lenient or options.test_config:
            parser.error("--lenient and --test-config are about a configuration file — name it with -c FILE")
    elif _settings(options):
        parser.error(f"{_spoken(_settings(options))} cannot be combined with -c — set it in {options.config}")
    return options


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings given as options."""
    return {name: getattr(options, name) for name in _OPTIONS if getattr(options, name) is not None}


def _spoken(settings: dict[str, Any]) -> str:
    return " and ".join(_OPTIONS[name] for name in settings)


def _configuration(options: argparse.Namespace) -> Configuration:
    if options.config is not None:
        configuration = load(options.config, lenient=options.lenient)
        configuration.broker.accept_loss = options.accept_loss
        return configuration
    # Without a file no log was configured; errors are still shown.
    config = BrokerConfig(accept_loss=options.accept_loss, **_settings(options))
    if config.http_port and (config.store == MEMORY or is_redis_url(config.store)):
        # There is no place for a file beside the store, and no key for one on a command line.
        config.http_token = secrets.token_urlsafe(32)
    return Configuration(config, LogConfig(types=("error", "warning")))


def _report(configuration: Configuration) -> int:
    """Check what the configuration names, print warnings and the result. Returns 0. Raises ConfigFileError."""
    if problems := problems_of(configuration):
        raise ConfigFileError(problems)
    for warning in configuration.warnings:
        print(warning, file=sys.stderr)
    print("configuration is valid")
    return 0


if __name__ == "__main__":
    sys.exit(main())

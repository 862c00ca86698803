"""The command line of the collector: ``python -m spark_ingest.collector`` and ``umqtt collect`` are the same."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from umqtt_cli.clouds import CLOUDS
from umqtt_cli.escape import remark
from umqtt_cli.numbers import Bytes

from ..address import Address
from ..errors import IngestError, UsageError
from ..location import PathOption
from .config import DEFAULT_NAME, DEFAULT_TOPIC_FILTERS, CollectorConfig, load

_FOLDER = PathOption(file_okay=False)
_FILE = PathOption(dir_okay=False)
# Options that cannot be combined with --config, because its file gives them for each collector.
_OF_ONE = ("brokers", "names", "topics", "cloud", "username", "password_file", "ca", "cert", "key")
_SHARED = ("keep_alive", "segment_bytes", "group_bytes", "group_ms", "max_spool_bytes", "min_free_bytes",
           "longest_delay_s", "everything")  # fmt: skip


@click.command()
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="URL[,URL...]",
    help="Any MQTT 5 or 3.1.1 broker: mqtt://HOST[:PORT], or mqtts:// for TLS; several URLs, with commas between, are "
    "the nodes of one cluster. May be given several times, with a --name for each.",
)
@click.option("--spool", type=_FOLDER, help="Folder that what was received is kept in until Spark has read it.")
@click.option(
    "--name",
    "names",
    multiple=True,
    help="The session at the broker and its folder in the spool; one for each --broker.  [default: collector]",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="FILTER",
    help=f"Topic filter; may be given several times.  [default: {', '.join(DEFAULT_TOPIC_FILTERS)}]",
)
@click.option("--cloud", type=click.Choice(list(CLOUDS)), help="Topics, ALPN and limits of that cloud.")
@click.option("--everything", is_flag=True, default=None, help="Allow a filter that selects every topic, as # does.")
@click.option("--config", type=_FILE, help="TOML file with several collectors, instead of --broker.")
@click.option("--username", envvar="UMQTT_USERNAME", metavar="NAME", help="User name at the broker.")
@click.option("--password-file", type=_FILE, help="Its first line is the password. [default: UMQTT_PASSWORD]")
@click.option("--ca", type=_FILE, help="Authority that signed the broker's certificate. [default: those trusted here]")
@click.option("--cert", type=_FILE, help="Certificate of this collector, for a broker that asks for one.")
@click.option("--key", type=_FILE, help="Its private key.")
@click.option(
    "--max-spool-bytes",
    type=Bytes(),
    help="At this size the collector stops taking messages until Spark has read some: "
    "the broker keeps the messages. 20G, 500M …  [default: no limit]",
)
@click.option("--min-free-bytes", type=Bytes(), help="The same when the disk has less than this.  [default: 256M]")
@click.option("--group-bytes", type=Bytes(), help="A group is synced at this size.  [default: 1M]")
@click.option("--group-ms", type=float, help="How long a small group waits for more.  [default: 5]")
@click.option("--segment-bytes", type=Bytes(), help="A new file begins at this size.  [default: 32M]")
@click.option("--keep-alive", type=int, metavar="S", help="Seconds.  [default: 60]")
@click.option(
    "--longest-delay",
    "longest_delay_s",
    type=float,
    metavar="S",
    help="Longest wait between attempts to connect.  [default: 128]",
)
@click.option("--status", type=_FILE, help="File rewritten twice a second with counts.")
@click.option("--metrics", type=Address(), help="Metrics for Prometheus. Without HOST for this machine alone.")
@click.option("--log", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
              help="Lines of JSON on stderr, or of text; auto: text on a terminal.")  # fmt: skip
def collect(config: Path | None, status: Path | None, metrics: tuple[str, int] | None, log: str, **options: Any) -> int:
    """Receive telemetry, and keep it on the disk until Spark has it.

    Only what is safe there is acknowledged.

    Prints `subscribed NAME` once the broker has confirmed the subscription. Ctrl-C ends it in order.

    \b
    Example:
      umqtt collect --broker mqtt://127.0.0.1:1883 --spool spool
      umqtt collect --broker mqtts://n1,mqtts://n2 --name north --broker mqtts://south --name south --spool spool
      umqtt collect --config collect.toml --metrics 9464
    """
    given = {key: value for key, value in options.items() if value not in (None, ())}
    if config is None and ("brokers" not in given or "spool" not in given):
        missing = "--spool" if "brokers" in given else "--broker"
        raise click.UsageError(f"{missing} is missing: give --broker and --spool, or --config FILE")
    clash = [f"--{key.replace('_', '-').removesuffix('s')}" for key in _OF_ONE if key in given and key != "username"]
    if config is not None and clash:
        raise click.UsageError(f"{', '.join(clash)}: say that in the file of --config, for each collector")
    try:
        collectors = _of_file(config, given) if config is not None else _of_options(given)
        text = sys.stderr.isatty() if log == "auto" else log == "text"
        # Imported here to keep --help fast.
        from .process import ProcessConfig, run

        run(ProcessConfig(collectors, status, metrics, text))
    except IngestError as error:
        remark(f"collector: {error}")
        return error.exit_code
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m spark_ingest.collector`` and return the exit code."""
    try:
        return collect.main(args=argv, prog_name="python -m spark_ingest.collector", standalone_mode=False) or 0
    except click.ClickException as error:
        remark(f"collector: {error.format_message()}")
        return error.exit_code


def _of_options(given: dict[str, Any]) -> list[CollectorConfig]:
    topics = given.pop("topics", ())
    brokers, names = given.pop("brokers"), given.pop("names", (DEFAULT_NAME,))
    if len(brokers) != len(names):
        # Names are not generated: a changed order of the options, or another port, would then start a new session.
        raise UsageError(
            f"{len(brokers)} brokers and {len(names)} names: give --name for each --broker, in the same order; "
            "nodes of one cluster are one --broker, with commas between"
        )
    if len(set(names)) < len(names):
        raise UsageError("a --name is given twice: it is the folder of one collector")
    if len(set(brokers)) < len(brokers):
        raise UsageError("a --broker is given twice: each message would be collected twice")
    configs = [
        CollectorConfig(broker=broker, name=name, topic_filters=tuple(topics), **given)
        for broker, name in zip(brokers, names, strict=True)
    ]
    for config in configs:
        config.check()
    return configs


def _of_file(path: Path, given: dict[str, Any]) -> list[CollectorConfig]:
    shared = {key: given[key] for key in _SHARED if key in given}
    return load(path, spool=given.get("spool"), shared=shared)

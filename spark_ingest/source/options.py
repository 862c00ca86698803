"""Parses and checks the options of ``format("mqtt")`` for reading; docs/spark-source.md documents them.

An option has the name it has in Spark's Kafka source if the meaning is the same. Spark passes names in upper or lower
case, and values as text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from umqtt_robust.errors import InvalidArgument
from umqtt_robust.topics import check_topic_filter, matches

from ..errors import UsageError
from ..location import require_path, spool_folder
from ..spool.blocks import LATEST_MS
from ..spool.view import Spools
from .offsets import SpoolTree

OPTIONS = (
    "path",
    "topics",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "retentionHours",
)

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


class Options:
    """The options of one reader.

    The driver creates it, and executors get it pickled.

    :raises UsageError: an option is unknown, or a value is not valid.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        given = known_options(options, OPTIONS, "format mqtt")
        self.spools = _spools(given)
        self.starting_offsets = given.get("startingoffsets", "earliest")
        self.ending_offsets = given.get("endingoffsets")
        if self.ending_offsets == "earliest":
            raise UsageError("endingOffsets must be latest or an offset: nothing lies before earliest")
        self.starting_ms = _timestamp(given, "startingTimestamp")
        self.ending_ms = _timestamp(given, "endingTimestamp")
        if self.starting_ms and self.ending_ms and self.starting_ms >= self.ending_ms:
            raise UsageError("startingTimestamp is not before endingTimestamp: no message could be between them")
        self.min_rows = positive(given, "minOffsetsPerTrigger")
        self.longest_delay_s = duration(given, "maxTriggerDelay", "15m")
        self.max_rows = positive(given, "maxOffsetsPerTrigger")
        self.max_bytes = positive(given, "maxBytesPerTrigger")
        self.min_partitions = positive(given, "minPartitions")
        self.max_rows_of_partition = positive(given, "maxRecordsPerPartition")
        if self.min_rows and self.max_rows and self.min_rows > self.max_rows:
            raise UsageError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger: no micro-batch could have both")
        self.fail_on_data_loss = flag(given, "failOnDataLoss", default=True)
        self.include_headers = flag(given, "includeHeaders", default=False)
        self.retention_hours = _retention(given)
        self.wanted = _selection(given)

    def tree(self) -> SpoolTree:
        """Return the spools of ``path``."""
        return SpoolTree(
            self.spools,
            fail_on_data_loss=self.fail_on_data_loss,
            since_ms=self.starting_ms,
            until_ms=self.ending_ms,
        )


def _spools(given: Mapping[str, str]) -> Spools:
    if not given.get("path"):
        raise UsageError("format mqtt needs option path: the folder given to the collectors as --spool")
    return Spools(spool_folder(given["path"]).absolute())


def known_options(options: Mapping[str, str], names: Sequence[str], what: str) -> dict[str, str]:
    """Return the options by their names in lower case.

    :param names: the known options.
    :param what: the owner of the options, for the error message.
    :raises UsageError: an option is not among `names`.
    """
    given = {key.lower(): value for key, value in options.items()}
    if unknown := given.keys() - {name.lower() for name in names}:
        raise UsageError(f"{what} has no option {', '.join(sorted(unknown))}; it has {', '.join(names)}")
    return given


def file_option(given: Mapping[str, str], name: str) -> Path | None:
    """Return the file that an option names; None without the option.

    :raises UsageError: the value is no path.
    """
    if name.lower() not in given:
        return None
    try:
        require_path(given[name.lower()])
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    return Path(given[name.lower()])


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse an option whose value is true or false.

    :raises UsageError: the value is neither.
    """
    value = given.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise UsageError(f"{name} must be true or false, not {value[:50]}")
    return value == "true"


def positive(given: Mapping[str, str], name: str) -> int | None:
    """Parse an option whose value is a whole number from 1 to 2**63 - 1; None without the option.

    :raises UsageError: the value is not such a number.
    """
    value = given.get(name.lower())
    if value is None:
        return None
    if not re.fullmatch(r"0*[0-9]{1,19}", value) or not 1 <= int(value) < 1 << 63:
        raise UsageError(f"{name} must be a whole number from 1 to 2**63 - 1, not {value[:50]}")
    return int(value)


def _timestamp(given: Mapping[str, str], name: str) -> int | None:
    """Parse an option whose value is a time in Unix milliseconds; None without the option.

    :raises UsageError: the value is no number, or is later than the year 2261, as microseconds would be.
    """
    value = positive(given, name)
    if value is not None and value > LATEST_MS:
        raise UsageError(f"{name} must be in Unix milliseconds, up to {LATEST_MS}, not {value}")
    return value


def duration(given: Mapping[str, str], name: str, default: str) -> float:
    """Parse an option whose value is a time in Spark's notation (500ms, 30s, 15m, 1h, 1d); return seconds.

    :raises UsageError: the value is not such a time.
    """
    value = given.get(name.lower(), default)
    match = re.fullmatch(r"(\d{1,9})(ms|s|m|min|h|d)", value.strip())
    if match is None:
        raise UsageError(f"{name} must be a time such as 500ms, 30s, 15m or 1h, not {value}")
    return int(match[1]) * _SECONDS[match[2]]


def _selection(given: Mapping[str, str]) -> Callable[[str], bool] | None:
    """Return a function that tells by the topic whether a message becomes a row; None if every message does."""
    filters, pattern = given.get("topics"), given.get("subscribepattern")
    if filters is not None and pattern is not None:
        raise UsageError("topics and subscribePattern both say which topics are read: give one of them")
    if pattern is not None:
        if not pattern:
            raise UsageError("subscribePattern is empty: it would match no topic")
        try:
            return partial(_is_match, re.compile(pattern))
        except re.error as error:
            raise UsageError(f"subscribePattern {pattern!r} is not a regular expression: {error}") from error
    return None if filters is None else partial(_is_selected, _parse_filters(filters))


def _parse_filters(option: str) -> list[bytes]:
    """Return the topic filters of the option ``topics``, which are separated by commas.

    :raises UsageError: one of them is invalid.
    """
    filters: list[bytes] = []
    for text in option.split(","):
        try:
            filters.append(check_topic_filter(text.strip()))
        except InvalidArgument as error:
            raise UsageError(
                f"topics: {text.strip()!r} is not a topic filter: + stands for one whole level, # for all that follow"
            ) from error
    return filters


def _is_selected(filters: list[bytes], topic_name: str) -> bool:
    return any(matches(topic_filter, topic_name.encode()) for topic_filter in filters)


def _is_match(pattern: re.Pattern[str], topic_name: str) -> bool:
    return pattern.fullmatch(topic_name) is not None


def _retention(given: Mapping[str, str]) -> float | None:
    value = given.get("retentionhours")
    try:
        hours = None if value is None else float(value)
    except ValueError:
        hours = -1.0
    if hours is not None and not hours >= 0:
        raise UsageError(f"retentionHours must be a number from 0, not {value}")
    return hours

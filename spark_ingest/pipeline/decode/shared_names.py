"""Warn of rules under which two topics write the same metric of one device: they are two series, and become one."""

from collections.abc import Callable, Mapping

import pyarrow as pa

from umqtt_cli.escape import printable, remark

_MOST_WARNINGS = 100
_MOST_OF_A_DEVICE = 10
_warned: set[tuple[str, str, str]] = set()


def warn_of_shared_names(
    messages: pa.Table,
    rules: Mapping[int, str],
    records: list[tuple[int, tuple]],
    report: Callable[[str], None] = remark,
) -> None:
    """Report metrics that two topics of one device write in the same second; each pair of topics once.

    :param messages: the messages of a micro-batch.
    :param rules: the rule that read each message, by row.
    :param records: the row of each message that is a reading, and the first six fields of its record, or all.
    :param report: called with one line for a person.
    """
    topics = messages["topic"].combine_chunks().dictionary_encode()
    codes, names = topics.indices.to_pylist(), topics.dictionary.to_pylist()
    several = _with_several_topics(codes, records)
    if not several:
        return
    received = messages["received_ts"].cast(pa.timestamp("s", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    writers: dict[tuple[str, str, int], int] = {}
    for row, record in records:
        device_id, ts, metrics = record[0], record[3], record[5]
        if device_id not in several:
            continue
        second = received[row] if ts is None else ts // 1000
        for metric in metrics:
            first = writers.setdefault((device_id, metric, second), row)
            if codes[first] != codes[row]:
                several_rules = rules[first] != rules[row]
                _warn(names[codes[first]], names[codes[row]], device_id, metric, several_rules, report)


def _with_several_topics(codes: list[int], records: list[tuple[int, tuple]]) -> set[str]:
    """Return the devices with readings on more than one topic."""
    first: dict[str, int] = {}
    return {record[0] for row, record in records if first.setdefault(record[0], codes[row]) != codes[row]}


def _warn(
    one: str, other: str, device_id: str, metric: str, several_rules: bool, report: Callable[[str], None]
) -> None:
    pair = min(one, other), max(one, other), device_id
    if pair in _warned or len(_warned) >= _MOST_WARNINGS:
        return
    if sum(device == device_id for _, _, device in _warned) >= _MOST_OF_A_DEVICE:
        return
    _warned.add(pair)
    remedy = (
        "another name in the metrics of one of the two rules" if several_rules else "{metric}, + or series in the rule"
    )
    report(
        f"the topics {printable(one)} and {printable(other)} both write the metric {printable(metric)} of device "
        f"{printable(device_id)}: two series become one. {remedy} tells them apart"
    )

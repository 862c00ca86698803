"""Readings that the fast reader of a rule has read: columns, without an object per reading."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import UNSET

from ...decoders.rules import Match
from .record import metric_maps


class FastReadings(NamedTuple):
    """Readings that the fast reader of a rule has read, without an identity and texts.

    :ivar matches: the topics of the rule.
    :ivar rows: of the messages.
    :ivar of_topic: which of `matches` each message has.
    :ivar ts: Unix milliseconds.
    :ivar values: the metrics of all readings, UNSET where one is missing.
    """

    matches: list[Match]
    rows: np.ndarray
    of_topic: np.ndarray
    ts: list[int | None]
    values: list[float | None]

    def device_ids(self) -> pa.Array:
        """Return the device of each reading."""
        return pa.array([match.topic.device for match in self.matches], pa.string()).take(pa.array(self.of_topic))

    def metrics(self) -> pa.Array:
        """Return the metrics of each reading, as maps."""
        width = len(self.matches[0].metrics)
        names = pa.array([name for match in self.matches for name in match.metrics], pa.string())
        each = (self.of_topic[:, None] * width + np.arange(width)).ravel()
        values, lengths = self.values, np.full(len(self.rows), width)
        if UNSET in values:
            is_there = np.fromiter((value is not UNSET for value in values), bool, len(values))
            values = [value for value in values if value is not UNSET]
            each, lengths = each[is_there], is_there.reshape(-1, width).sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return metric_maps(offsets, names.take(pa.array(each)), values)

    def records(self) -> Iterator[tuple[int, tuple]]:
        """Yield the row of each reading, and the first six fields of its record."""
        width = len(self.matches[0].metrics)
        for i, (row, code) in enumerate(zip(self.rows.tolist(), self.of_topic.tolist(), strict=True)):
            match = self.matches[code]
            pairs = zip(match.metrics, self.values[i * width : (i + 1) * width], strict=True)
            metrics = {name: value for name, value in pairs if value is not UNSET}
            yield row, (match.topic.device, None, None, self.ts[i], None, metrics)

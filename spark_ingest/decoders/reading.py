"""The seam between payloads of any format and readings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class BadRecord(ValueError):
    """A payload is not what its topic promises; the message is the quarantine's reason."""


class Topic(NamedTuple):
    """The topic of a message, and what the rule's pattern found in it.

    :ivar device: the level at ``{device}``; None where the pattern has none.
    :ivar metric: the level at ``{metric}``, likewise.
    """

    name: str
    device: str | None = None
    metric: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What a payload says.

    :ivar metrics: name to number, or None. Any other value is refused alone, with a reason, and the reading stays.
    :ivar device_id: whose it is, where the topic's pattern has no ``{device}``; it is not looked at otherwise.
    :ivar boot: with `seq`, the reading's identity: a name for the series in which the device counts. None: the
        reading is known by its place in the spool, so what is sent twice is stored twice.
    :ivar seq: the reading's number in `boot`, from 0.
    :ivar ts: when it was taken, Unix milliseconds, or None.
    :ivar up: milliseconds since `boot` began, or None.
    :ivar extra: what else is worth keeping: name to anything that JSON can spell.
    """

    metrics: Mapping[str, object]
    device_id: str | None = None
    boot: str | None = None
    seq: int | None = None
    ts: int | None = None
    up: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


Decode = Callable[[Topic, Sequence[bytes]], Sequence[Reading | BadRecord]]
"""A decoder: given the payloads of a topic in the order in which they came, for each its reading or what is wrong.

What it raises sends the payload that it raised for to quarantine, with the exception as the reason.
"""


def each_payload(read: Callable[[Topic, bytes], Reading]) -> Decode:
    """A decoder from a function that reads one payload, and raises BadRecord for a bad one."""

    def decode(topic: Topic, payloads: Sequence[bytes]) -> list[Reading | BadRecord]:
        results: list[Reading | BadRecord] = []
        for payload in payloads:
            try:
                results.append(read(topic, payload))
            except BadRecord as error:
                results.append(error)
        return results

    return decode


def run(decode: Decode, topic: Topic, payloads: Sequence[bytes]) -> list[Reading | BadRecord]:
    """The results of a decoder, one for each payload, whatever it raises."""
    try:
        results = list(decode(topic, payloads))
        if not all(isinstance(one, Reading | BadRecord) for one in results):
            raise TypeError("what it returned is neither a Reading nor a BadRecord")
    except Exception as error:  # noqa: BLE001 - a decoder is anybody's code, and a payload must not stop the pipeline
        if len(payloads) > 1:
            return [run(decode, topic, [payload])[0] for payload in payloads]
        return [BadRecord(f"the decoder raised {type(error).__name__}: {error}")]
    if len(results) != len(payloads):
        wrong = BadRecord(f"the decoder returned {len(results)} results for {len(payloads)} payloads")
        return [wrong] * len(payloads)
    return results

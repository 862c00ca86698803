"""The interface of decoders: what they are given and what they return, whatever the payload's format."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar


class BadRecord(ValueError):
    """A payload cannot be read as its topic promises; the text of this error is stored in quarantine as the reason."""


class Topic(NamedTuple):
    """The topic of a message, and the levels that the rule's pattern names.

    :ivar device: the level at ``{device}``; None if the pattern has no ``{device}``.
    :ivar metric: the level at ``{metric}``; None if the pattern has no ``{metric}``.
    """

    name: str
    device: str | None = None
    metric: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of one payload.

    :ivar metrics: name to number or None. Any other value is refused with a reason; the rest of the reading is kept.
    :ivar device_id: the device's id, if the topic's pattern has no ``{device}``; ignored otherwise.
    :ivar boot: together with `seq`, the reading's identity: the name of the series in which the device counts. If
        None, the reading is identified by its place in the spool, so a reading that is sent twice is stored twice.
    :ivar seq: the reading's number in `boot`, from 0.
    :ivar ts: the time of the reading in Unix milliseconds, or None.
    :ivar up: milliseconds since `boot` began, or None.
    :ivar extra: other values to keep: name to any value that JSON can represent.
    """

    metrics: Mapping[str, object]
    device_id: str | None = None
    boot: str | None = None
    seq: int | None = None
    ts: int | None = None
    up: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


Decode = Callable[[Topic, Sequence[bytes]], Sequence[Reading | BadRecord]]
"""A decoder: takes the payloads of a topic in order of arrival; returns a Reading or a BadRecord for each payload.

If it raises, the payload at hand goes to quarantine with the exception as the reason.
"""

_Returned = TypeVar("_Returned")


def each_payload(read: Callable[[Topic, bytes], Reading]) -> Decode:
    """Make a decoder from a function that reads one payload and raises BadRecord for a bad one."""

    def decode(topic: Topic, payloads: Sequence[bytes]) -> list[Reading | BadRecord]:
        results: list[Reading | BadRecord] = []
        for payload in payloads:
            try:
                results.append(read(topic, payload))
            except BadRecord as error:
                results.append(error)
        return results

    return decode


def run(decode: Decode, name: str, topic: Topic, payloads: Sequence[bytes]) -> list[Reading | BadRecord]:
    """Run a decoder and return one result for each payload, whatever the decoder raises or returns.

    If a call with several payloads raises, each payload is decoded alone. A wrong number of results makes every
    result a BadRecord.

    :param name: the decoder's name, for the reasons.
    """

    def call() -> list[Reading | BadRecord]:
        results = list(decode(topic, payloads))
        if not all(isinstance(one, Reading | BadRecord) for one in results):
            raise TypeError("what it returned is neither a Reading nor a BadRecord")
        return results

    try:
        results = guarded(name, call)
    except BadRecord as error:
        if len(payloads) > 1:
            return [run(decode, name, topic, [payload])[0] for payload in payloads]
        return [error]
    if len(results) != len(payloads):
        wrong = BadRecord(f"the decoder {name} returned {len(results)} results for {len(payloads)} payloads")
        return [wrong] * len(payloads)
    return results


def guarded(name: str, call: Callable[[], _Returned]) -> _Returned:
    """Call what may run code of a decoder, and return what it returns.

    :param name: the decoder's name, for the reason.
    :raises BadRecord: `call` raised it, or anything else except KeyboardInterrupt: a decoder is anybody's code, also
        one that ends the program, and a payload must not stop the pipeline.
    """
    try:
        return call()
    except (BadRecord, KeyboardInterrupt):
        raise
    except BaseException as error:
        text = text_of(error)
        raise BadRecord(f"the decoder {name} raised {type(error).__name__}{text and f': {text}'}") from error


def text_of(error: BaseException) -> str:
    """Return the text of a decoder's exception; empty if its class, which may be the decoder's, cannot tell."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as in guarded()
        return ""

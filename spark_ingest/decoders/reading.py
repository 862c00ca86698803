"""The interface of decoders: what they are given and what they return, whatever the payload's format."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar


class BadRecord(ValueError):
    """A payload cannot be read as its topic promises; the text of this error is stored in quarantine as the reason."""


class Topic(NamedTuple):
    """The topic of a message, and the levels that the rule's pattern names.

    :ivar device: the levels at ``{device}``, joined with /; None if the pattern has none.
    :ivar metric: the levels at ``{metric}``, + and #, joined with /; None if the pattern has none, or # stands for no
        level. They tell the topic's series apart, so they belong to the names of its metrics.
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
    :ivar extra: texts and other values to keep: name to any value that JSON can represent.
    :ivar ago: if `ts` is None: how many milliseconds before its receipt the reading was taken.
    :ivar refused: what of the payload is not in the reading, each with its reason: the message is stored in quarantine
        too, so nothing is left out without a trace.
    """

    metrics: Mapping[str, object]
    device_id: str | None = None
    boot: str | None = None
    seq: int | None = None
    ts: int | None = None
    up: int | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    ago: int | None = None
    refused: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """A device is online or offline: a row of the table status, as from our firmware's status message.

    :ivar reason: why, as the device says it.
    :ivar device_id, boot, extra: as in :class:`Reading`.
    """

    online: bool
    reason: str | None = None
    device_id: str | None = None
    boot: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


Result = Reading | Status | BadRecord
Results = Result | list[Result]
"""What one payload contains. An empty list: it is in order, but contains no value."""

UNMATCHED = BadRecord("no rule that matches its topic reads such a payload: see `when`, `has` and `begins`")
"""The result for a payload that the rule does not read, but that a later rule of the same topic may read."""

Decode = Callable[[Topic, Sequence[bytes]], Sequence[Result | Iterable[Result]]]
"""A decoder: takes the payloads of a topic in order of arrival; returns what each of them contains: a Reading, a Status
or a BadRecord, or several of them, or none.

If it raises, the payload at hand goes to quarantine with the exception as the reason.
"""

_Returned = TypeVar("_Returned")


def each_payload(read: Callable[[Topic, bytes], Result | Iterable[Result]]) -> Decode:
    """Make a decoder from a function that reads one payload, and raises BadRecord for a bad one.

    The function may also return or yield several readings; those before a BadRecord that it raises are kept.
    """

    def decode(topic: Topic, payloads: Sequence[bytes]) -> list[Results]:
        results: list[Results] = []
        for payload in payloads:
            try:
                one = read(topic, payload)
            except BadRecord as error:
                one = error
            results.append(one if isinstance(one, Result) else _gathered(one))
        return results

    return decode


def _gathered(many: Iterable[Result]) -> list[Result]:
    found: list[Result] = []
    try:
        for one in many:
            found.append(one)
    except BadRecord as error:
        found.append(error)
    return found


def run(decode: Decode, name: str, topic: Topic, payloads: Sequence[bytes]) -> list[Results]:
    """Run a decoder and return what each payload contains, whatever the decoder raises or returns.

    If a call with several payloads raises, each payload is decoded alone. A wrong number of results makes every
    result a BadRecord.

    :param name: the decoder's name, for the reasons.
    """

    def call() -> list[Results]:
        return [one if isinstance(one, Result) else _several(one) for one in decode(topic, payloads)]

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


def _several(many: object) -> list[Result]:
    # A class is iterable by accident; so is text.
    if not isinstance(many, Iterable) or isinstance(many, str | bytes | Mapping):
        raise TypeError("what it returned is neither a Reading nor a BadRecord")
    found = list(many)
    if not all(isinstance(one, Result) for one in found):
        raise TypeError("what it returned holds what is neither a Reading nor a BadRecord")
    return found


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
        raise raised(name, error) from error


def raised(name: str, error: BaseException) -> BadRecord:
    """Return the reason that the decoder `name` raised `error`."""
    text = text_of(error)
    return BadRecord(f"the decoder {name} raised {type(error).__name__}{text and f': {text}'}")


def text_of(error: BaseException) -> str:
    """Return the text of a decoder's exception; empty if its class, which may be the decoder's, cannot tell."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - as in guarded()
        return ""

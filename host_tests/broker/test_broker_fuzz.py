"""Any bytes at all: the broker answers validly or closes, exactly when an independent decoder says so."""

from __future__ import annotations

import asyncio
import os

import hypothesis.strategies as st
import pytest
from broker_oracle import CLOSED, EITHER, OPEN, verdict
from broker_wire import SESSIONS, Wire
from hypothesis import Phase, given, settings
from test_broker_malformed import BROKEN, BROKEN_CONNECT, VALID
from umqtt_testkit import encoder

_FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))
# A failure in a full run is shrunk as far as possible, which takes minutes.
_PHASES = set(Phase) - (set() if _FULL else {Phase.shrink, Phase.explain})
_FUZZ = settings(max_examples=50_000 if _FULL else 200, derandomize=not _FULL, phases=_PHASES)

_ids = st.sampled_from((0, 1, 2, 3, 255, 256, 65535))
_names = st.sampled_from(
    (
        b"a",
        b"a/b",
        b"",
        b"a/+",
        b"#",
        b"a\0b",
        b"\xff",
        "ä".encode(),
        b"$own/x",
        b"$SYS/x",
        b"+",
        b"a/#/b",
        b"\xed\xa0\x80",
    )
)
_qos = st.integers(0, 3)
_publishes = st.builds(
    lambda name, payload, qos, packet_id, flags: encoder.publish(
        name, payload, qos, packet_id, retain=bool(flags & 1), dup=bool(flags & 2)
    ),
    _names,
    st.binary(max_size=150),
    _qos,
    _ids,
    st.integers(0, 3),
)
_subscribes = st.builds(
    lambda packet_id, requests: encoder.subscribe(packet_id, *requests),
    _ids,
    st.lists(st.tuples(_names, _qos), max_size=4),
)
_unsubscribes = st.builds(
    lambda packet_id, names: encoder.unsubscribe(packet_id, *names),
    _ids, st.lists(_names, max_size=3),
)  # fmt: skip
_acknowledgements = st.builds(encoder.acknowledgement, st.sampled_from((4, 5, 6, 7)), _ids)
_anything = st.builds(encoder.encode, st.integers(0, 255), st.binary(max_size=12))
_connects = st.builds(
    lambda client_id, clean, level, will: encoder.connect(client_id, clean_session=clean, level=level, will=will),
    st.sampled_from((b"a", b"b", b"", b"\xff")), st.booleans(), st.sampled_from((3, 4, 0x83, 0x84)),
    st.none() | st.tuples(_names, st.binary(max_size=9), _qos, st.booleans()),
)  # fmt: skip
_packets = st.one_of(
    _publishes,
    _subscribes,
    _unsubscribes,
    _acknowledgements,
    st.sampled_from((encoder.pingreq(), encoder.disconnect())),
    _anything,
)
_built = st.builds(lambda connect, rest: connect + b"".join(rest), _connects, st.lists(_packets, max_size=8))

_texts = st.sampled_from((b"", b"a", b"a/b", b"a/#", b"\xff", b"a\0", b"x" * 200))
_numbers = st.sampled_from((0, 1, 2, 10, 11, 255))


def _of_kind(kind: int | str) -> st.SearchStrategy[object]:
    if kind == "pair":
        return st.lists(st.tuples(_texts, _texts), max_size=2)
    return _texts if kind == "text" else _numbers


_properties = st.one_of(
    st.just(b"\0"),
    st.fixed_dictionaries({}, optional={name: _of_kind(kind) for name, (_, kind) in encoder.PROPERTIES.items()}).map(
        lambda values: encoder.properties(**values)
    ),
    st.sampled_from(sorted(encoder.PROPERTIES)).flatmap(
        lambda name: _of_kind(encoder.PROPERTIES[name][1]).map(lambda value: encoder.properties(**{name: value}))
    ),
    st.binary(max_size=6),
)
_connects5 = st.builds(
    lambda client_id, clean, properties, will, will_properties: encoder.connect(
        client_id, clean_session=clean, properties=properties, will=will, will_properties=will_properties
    ),
    st.sampled_from((b"a", b"b", b"", b"\xff")), st.booleans(), _properties,
    st.none() | st.tuples(_names, st.binary(max_size=9), _qos, st.booleans()), _properties,
)  # fmt: skip
_packets5 = st.one_of(
    st.builds(
        lambda name, payload, qos, packet_id, flags, properties: encoder.publish(
            name, payload, qos, packet_id, retain=bool(flags & 1), dup=bool(flags & 2), properties=properties
        ),
        _names, st.binary(max_size=150), _qos, _ids, st.integers(0, 3), _properties,
    ),
    st.builds(
        lambda packet_id, requests, properties: encoder.subscribe(packet_id, *requests, properties=properties),
        _ids, st.lists(st.tuples(_names | st.just(b"$share/g/a"), st.integers(0, 63)), max_size=4), _properties,
    ),
    st.builds(
        lambda packet_id, names, properties: encoder.unsubscribe(packet_id, *names, properties=properties),
        _ids, st.lists(_names, max_size=3), _properties,
    ),
    st.builds(encoder.acknowledgement, st.sampled_from((4, 5, 6, 7)), _ids, st.binary(max_size=2)),
    st.builds(lambda code, properties: encoder.disconnect(bytes((code,)) + properties), _numbers, _properties),
    st.builds(lambda code, properties: encoder.encode(0xF0, bytes((code,)) + properties), _numbers, _properties),
    st.sampled_from((encoder.pingreq(), encoder.disconnect(), b"\xf0\0")),
    _anything,
)  # fmt: skip
_built5 = st.builds(lambda connect, rest: connect + b"".join(rest), _connects5, st.lists(_packets5, max_size=8))


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """Draw a real session with bytes changed, left out or inserted."""
    stream = bytearray(draw(st.sampled_from(SESSIONS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(stream) - 1))
        how = draw(st.integers(0, 2))
        if how == 0:
            stream[at] = draw(st.integers(0, 255))
        elif how == 1 and len(stream) > 1:
            del stream[at]
        else:
            stream[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(stream)


def pieces_of(stream: bytes, sizes: list[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for size in sizes:
        if stream:
            pieces.append(stream[:size])
            stream = stream[size:]
    return [*pieces, stream] if stream else pieces


@_FUZZ
@given(st.lists(st.one_of(_built, _built5, _damaged(), st.binary(max_size=40)), min_size=1, max_size=4), st.data())
@pytest.mark.timeout(3600 if _FULL else 180)
def test_whatever_a_client_sends_the_broker_answers_validly_or_closes(
    streams: list[bytes], data: st.DataObject
) -> None:
    async def play() -> None:
        wire = await Wire.open()
        try:
            for stream in streams:
                sizes = data.draw(st.lists(st.integers(1, 60), max_size=12), "sizes of the pieces")
                wire.send(pieces_of(stream, sizes))
            wire.forget_everything()
        finally:
            await wire.close()

    asyncio.run(play())


@pytest.mark.timeout(3600 if _FULL else 180)
def test_every_byte_of_a_session_of_mqtt_5_may_be_another() -> None:
    """Planted: an alias of 7 that stands for nothing is accepted; reserved bits of subscription options are
    ignored.
    """
    packets = [encoder.encode(*packet) for packet in encoder.split_packets(SESSIONS[4])[0]]
    # Acknowledgements depend on what is in flight, and DISCONNECT ends it: without them the verdict is certain.
    quiet = b"".join(packet for packet in packets if packet[0] not in (0x40, 0x50, 0x70, 0xE0))
    assert verdict(quiet) == OPEN
    streams = [
        stream[:at] + bytes((value,)) + stream[at + 1 :]
        for stream in ((quiet, SESSIONS[4]) if _FULL else (quiet,))
        for at in range(len(stream))
        for value in (range(256) if _FULL else (0, 7, 0x40))
    ]

    async def play(some: list[bytes]) -> None:
        wire = await Wire.open()
        try:
            for stream in some:
                try:
                    wire.send([stream])
                except AssertionError as error:
                    raise AssertionError(f"{error}: {stream!r}") from error
            wire.forget_everything()
        finally:
            await wire.close()

    # State left by earlier streams makes each check slower.
    for first in range(0, len(streams), 100):
        asyncio.run(play(streams[first : first + 100]))


@pytest.mark.parametrize("name", [*BROKEN, *BROKEN_CONNECT])
def test_the_oracle_knows_what_is_broken(name: str) -> None:
    stream = encoder.connect(b"c") + BROKEN[name] if name in BROKEN else BROKEN_CONNECT[name]
    assert verdict(stream) in (CLOSED, EITHER)


def test_the_oracle_knows_what_is_not() -> None:
    for packet in VALID.values():
        assert verdict(encoder.connect(b"c") + packet) in (OPEN, EITHER)
    assert verdict(SESSIONS[1].replace(b"\x40\x02\0\x01", b"")) == OPEN
    assert verdict(SESSIONS[3]) == OPEN

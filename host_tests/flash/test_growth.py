"""The work for one message does not grow with the number of messages that wait: bytecodes counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from umqtt_testkit.portable import Clock

from umqtt_robust import Client, backlog, flash
from umqtt_robust.flash import FlashStore
from umqtt_robust.packets import DUP
from umqtt_robust.policy import DROP_OLDEST
from umqtt_robust.store import MAYBE_SENT, MemoryStore, Outbox

FEW, MANY = 200, 3000
# The dropping of what has expired or is gone is spread over many messages, so an average is compared.
_SAMPLE = 50
_MOST_GROWTH = 1.2


def _unreachable(host: str, port: int, path: str) -> None:
    raise OSError(113)


def _client(slots: int, **options: object) -> Client:
    transports = {"mqtt": _unreachable}
    return Client(b"c", "mqtt://h", store=MemoryStore(slots), ticks=Clock().ticks_ms, transports=transports, **options)


def _operations(function: Callable[[], object]) -> int:
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _ in range(_SAMPLE):
            function()
    finally:
        sys.settrace(before)
    return count


def _publish_with_a_limit_in_bytes(n: int, folder: Path) -> Callable[[], object]:
    client = _client(n + _SAMPLE, max_bytes=1 << 30)
    for _ in range(n):
        client.publish("t", b"x", 1)
    return lambda: client.publish("t", b"x", 1)


def _publish_that_expires(n: int, folder: Path) -> Callable[[], object]:
    client = _client(n + _SAMPLE)
    for _ in range(n):
        client.publish("t", b"x", 1, expires_in=86_400_000)
    return lambda: client.publish("t", b"x", 1, expires_in=86_400_000)


def _publish_that_drops_the_oldest(n: int, folder: Path) -> Callable[[], object]:
    client = _client(n, policy=DROP_OLDEST)
    for _ in range(n):
        client.publish("t", b"x", 1)
    return lambda: client.publish("t", b"x", 1)


def _acknowledgement_in_reverse_order(n: int, folder: Path) -> Callable[[], object]:
    client = _client(n, window=n)
    outbox = client.outbox
    ids = [client.publish("t", b"x", 1) for _ in range(n)]
    for packet_id in ids:
        outbox.next_unsent()
        outbox.head = outbox.next[outbox.head]
        client.in_flight += outbox.mark_in_flight(packet_id, 0, MAYBE_SENT | DUP)
    return lambda: client.handle_puback(ids.pop())


def _look_at_the_acknowledgement_timer(n: int, folder: Path) -> Callable[[], object]:
    client = _client(n)
    packet_id, *_ = [client.publish("t", b"x", 1) for _ in range(n)]
    client.outbox.head = client.outbox.next[client.outbox.head]
    client.outbox.mark_in_flight(packet_id, 0, MAYBE_SENT | DUP)
    return lambda: client.outbox.longest_wait(5)


def _inbound_message_at_qos_2(n: int, folder: Path) -> Callable[[], object]:
    store = FlashStore(str(folder / str(n)), n + _SAMPLE)
    store.restore()
    for packet_id in range(1, n + 1):
        store.inbound.put(packet_id, 4, b"t", b"x")
    ids = iter(range(n + 1, n + 1 + _SAMPLE))
    return lambda: store.inbound.put(next(ids), 4, b"t", b"x")


def _message_into_flash(n: int, folder: Path) -> Callable[[], object]:
    client = Client(b"c", "mqtt://h", store=FlashStore(str(folder / str(n)), n + _SAMPLE), ticks=Clock().ticks_ms,
                    transports={"mqtt": _unreachable})  # fmt: skip
    for _ in range(n):
        client.publish("t", b"x", 1)
    return lambda: client.publish("t", b"x", 1)


@pytest.mark.parametrize(
    "prepare",
    [_publish_with_a_limit_in_bytes, _publish_that_expires, _publish_that_drops_the_oldest,
     _acknowledgement_in_reverse_order, _look_at_the_acknowledgement_timer, _inbound_message_at_qos_2,
     _message_into_flash],
)  # fmt: skip
def test_the_work_for_a_message_does_not_grow_with_those_that_wait(prepare: Callable, tmp_path: Path, monkeypatch):
    """Planted: the bytes of all messages are summed up anew; the free place is searched from the first one."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # thousands of files: nothing here is about power cuts
    few, many = (_operations(prepare(n, tmp_path)) for n in (FEW, MANY))
    print(f"bytecodes a message: {few / _SAMPLE:.0f} with {FEW} waiting, {many / _SAMPLE:.0f} with {MANY}")
    assert many <= few * _MOST_GROWTH


def test_a_board_reads_each_message_a_few_times_until_a_long_backlog_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Planted: the list of the next messages is made anew for each part of the index; the folder is read twice."""
    waiting = 1000
    store = FlashStore(str(tmp_path), waiting)
    outbox = Outbox(store, 8)
    for number in range(waiting):
        outbox.put(number + 1, 2, b"t", b"x" * 90)
    reads = 0

    def counted(name: str, mode: str) -> object:
        nonlocal reads
        reads += mode == "rb"
        return open(name, mode)

    # As in the smallest heap, which has room for 64 messages in the index and for 128 in the list of the next ones.
    monkeypatch.setattr(backlog, "mem_free", lambda: 0)
    for module in (flash, backlog):
        monkeypatch.setattr(module, "open", counted, raising=False)
    outbox = Outbox(FlashStore(str(tmp_path), waiting, inbound=False), 8)
    assert reads <= 1.1 * waiting
    while packet_id := outbox.next_unsent():
        outbox.store.load(outbox.slot_of[packet_id])
        outbox.remove(packet_id)
    assert reads <= 6 * waiting

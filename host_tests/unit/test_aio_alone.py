"""The asyncio client without a network; host_tests/transports tests it with a broker."""

import asyncio
import errno
import socket

from umqtt_testkit import encoder
from umqtt_testkit.portable import WAIT_LIMIT_S, equal

from umqtt_robust import aio
from umqtt_robust.errors import InvalidArgument
from umqtt_robust.policy import QUARANTINED, REFUSED


def offline(**options):
    def refused(host, port, path):
        raise OSError(111)

    return aio.Client(b"c", "mqtt://h", transports={"mqtt": refused}, quiesce_ms=0, **options)


class Recorder(list):
    """The tasks that rest; before one is appended, `called` is called."""

    def __init__(self, called):
        super().__init__()
        self._called = called

    def append(self, task):
        self._called()
        super().append(task)


def test_no_wait_is_longer_than_a_board_can_count():
    # Planted: the client rests for 2**29 - 1 ms, and a board's asyncio takes it for earlier than what is overdue.
    waited = []
    rest = aio.rest

    async def short(tasks, ms):
        waited.append(ms)
        await rest(tasks, 0)

    async def main():
        async with on([Wire()]) as client:
            await until(lambda: client.connected and client.wait_ms > 3600000)
            await until(lambda: waited[-1] > 0)

    aio.rest = short
    try:
        asyncio.run(main())
    finally:
        aio.rest = rest
    assert 1000 < max(waited) <= 3600000, waited


def test_a_message_at_qos_0_that_is_given_up_before_there_is_a_link_is_counted():
    async def main():
        async with offline() as client:
            waiting = asyncio.create_task(client.publish("a", b"x"))
            await asyncio.sleep(0)  # publish() has begun
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                pass
        equal(client.discarded, 1)

    asyncio.run(main())


def test_entered_again_inside_it_is_an_error_and_afterwards_a_new_life():
    async def main():
        client = offline()
        for _ in range(2):
            async with client:
                assert not client.closed
                try:
                    async with client:
                        raise AssertionError("entered twice")
                except InvalidArgument as error:
                    equal(str(error), "already inside async with")
            assert client.closed

    asyncio.run(main())


def test_a_client_outlives_the_loop_that_ran_it():
    # Planted: it waits for what the first loop has made, and every wait raises RuntimeError on CPython.
    client = offline()

    async def main():
        async with client:
            before = client.discarded
            waiting = asyncio.create_task(client.publish("a", b"x"))
            await until(lambda: client.discarded > before)  # it is counted while publish() waits
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError:
                pass

    for _ in range(2):
        asyncio.run(main())
    equal(client.discarded, 2)


def test_a_message_that_the_broker_refuses_raises_its_reason_code():
    # Planted: Dropped says that it was refused, and nobody learns why.
    client = offline(protocol=5)

    def give(packet):
        client.receive(bytearray(packet), len(packet))

    async def main():
        client._running = True
        client.open(lambda buf, offset, size: size, "b")
        give(encoder.connack(False, 0, encoder.properties()))
        for i in range(2):
            waiting = asyncio.create_task(client.publish("t", b"x", 1))
            await asyncio.sleep(0)
            reason = bytes((0x87 + i,)) + encoder.properties(reason_string=b"no")
            give(encoder.acknowledgement(encoder.PUBACK, i + 1, reason))
            aio.wake(client._waiting)
            try:
                await waiting
                raise AssertionError("accepted")
            except aio.Dropped as error:
                equal(error.args[0], REFUSED)
                equal(error.args[1].args, ("publish", b"t", 0x87 + i, b"no"))

    asyncio.run(main())


class Wire:
    """A link that accepts the client, delivers `arrives` and then nothing."""

    def __init__(self, arrives=b""):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # always writable, never readable
        self._arrives = encoder.connack() + arrives
        self.is_broken = self.is_stalled = False
        self.written = 0

    def ready(self):
        return True

    def read(self, buf, at):
        piece = self._arrives[: len(buf) - at]
        self._arrives = self._arrives[len(piece) :]
        buf[at : at + len(piece)] = piece
        return len(piece) or None

    def write(self, buf, offset, size):
        if self.is_broken:
            raise OSError(errno.ECONNRESET)
        if self.is_stalled:
            self.is_stalled = False
            return None
        self.written += size
        return size

    def close(self):
        self.socket.close()


def on(wires, **options):
    """Return a client that gets these wires one after the other, and that time alone never wakes."""
    return aio.Client(b"c", "mqtt://h", keep_alive=0, quiesce_ms=0, random=lambda n: 0,
                      transports={"mqtt": lambda *place: wires.pop(0)}, **options)  # fmt: skip


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


class PickyWire(Wire):
    """A link of a broker that acknowledges messages at QoS 1, answers PINGREQ, and ends at what holds b"bad"."""

    def read(self, buf, at):
        if self.is_broken:
            return 0
        return Wire.read(self, buf, at)

    def write(self, buf, offset, size):
        sent = bytes(buf[offset : offset + size])
        while sent:
            packet, sent = sent[: sent[1] + 2], sent[sent[1] + 2 :]
            head = packet[0] & 0xF0
            if b"bad" in packet:
                self.is_broken = True
            elif head == 0xC0:
                self._arrives += b"\xd0\0"
            elif head == 0x30 and packet[0] & 6:
                k = 4 + packet[3]
                self._arrives += b"\x40\2" + packet[k : k + 2]
        return Wire.write(self, buf, offset, size) if not self.is_broken else size


def test_a_message_at_which_the_broker_ends_each_link_is_told_and_the_others_arrive():
    # Planted: publish() of the message that was set aside goes on waiting.
    rest = aio.rest

    async def short(tasks, ms):
        await rest(tasks, 5 if ms is None else min(ms, 5))  # nothing wakes it that this wire has to read

    async def main():
        async with on([PickyWire() for _ in range(9)], ack_timeout=500) as client:
            told = []

            async def publish(topic):
                try:
                    await client.publish(topic, b"x", 1)
                    told.append(topic)
                except aio.Dropped as error:
                    told.append((topic, error.args[0]))

            await asyncio.gather(*[publish(topic) for topic in ("a", "bad", "c", "d")])
            equal(sorted(map(str, told)), sorted(map(str, ["a", ("bad", QUARANTINED), "c", "d"])))
            assert client.reconnects <= 6, client.reconnects

    aio.rest = short
    try:
        asyncio.run(main())
    finally:
        aio.rest = rest


def test_a_malformed_message_is_handed_over_or_dropped_and_those_behind_it_arrive():
    # Planted: the loop never gets what comes behind it.
    topics = (b"a/+", b"", b"a/\xff", b"a/b")
    wire = Wire(b"".join([encoder.publish(topics[i], b"%d" % (i + 1), 1, i + 1) for i in range(4)]))
    found = []

    async def main():
        async with on([wire]) as client:
            async for message in client:
                found.append(message)
                if message[1] == b"4":
                    break
            equal((client.malformed, client.reconnects), (3, 0))

    asyncio.run(main())
    equal(found, [(b"a/+", b"1"), (b"a/b", b"4")])


def test_a_publish_that_finds_the_link_broken_gets_another_one_though_the_inbox_is_full():
    # Planted: only the keep-alive notices, half a minute later, because the socket is not read meanwhile.
    waiting = encoder.publish(b"in", bytes(200), 1, 1)
    first, second = wires = [Wire(waiting), Wire()]

    async def main():
        async with on(wires[:], inbox_size=100) as client:
            await until(lambda: client.inbox and client.wait_ms > 1000)
            first.is_broken = True
            await asyncio.wait_for(client.publish("t", b"x"), WAIT_LIMIT_S)
            assert client.socket is second.socket

    asyncio.run(main())


def test_what_the_link_has_not_taken_of_a_message_at_qos_0_is_sent_when_it_takes_more():
    # Planted: the rest waits for the next deadline.
    wire = Wire()

    async def main():
        async with on([wire]) as client:
            await until(lambda: client.connected and client.wait_ms > 1000)
            wire.is_stalled = True
            before = wire.written
            await client.publish("t", b"x")
            await asyncio.wait_for(until(lambda: wire.written > before), WAIT_LIMIT_S)

    asyncio.run(main())


def test_the_inbox_takes_one_message_more_than_it_has_room_for_and_all_come_in_order():
    # Planted: a read brings a dozen more; those of a session that the broker forgets are dropped if the heap is short.
    came = []
    wire = Wire(b"".join(encoder.publish(b"in", b"%d" % i, qos, i + 1) for i in range(9) for qos in (1, 0)))

    async def main():
        async with on([wire], inbox_size=150) as client:
            await until(lambda: client.inbox and client.wait_ms > 1000)
            equal(len(client.inbox), 3)
            async for _topic, payload in client:
                came.append(payload)
                assert len(client.inbox) <= 3
                if len(came) == 18:
                    break

    asyncio.run(asyncio.wait_for(main(), WAIT_LIMIT_S))
    equal(came, [b"%d" % i for i in range(9) for _ in (1, 0)])


def test_a_message_that_is_acknowledged_later_is_acknowledged_at_once():
    # Planted: the acknowledgement waits for the next deadline, and the broker keeps back what follows.
    ids = []
    wire = Wire(encoder.publish(b"in", b"x", 1, 7))

    async def main():
        async with on([wire]) as client:
            client.on("in", lambda topic, payload: ids.append(client.packet_id))
            await until(lambda: ids and client.wait_ms > 1000)
            before = wire.written
            assert client.acknowledge(ids[0])
            await asyncio.wait_for(until(lambda: wire.written > before), WAIT_LIMIT_S)

    asyncio.run(main())


def test_a_wait_that_finds_no_memory_does_not_end_the_client():
    # Planted: it ends the task that drives the client, and with it every call.
    failures = [MemoryError("planted")]

    def poor():
        if failures:
            raise failures.pop()

    async def main():
        client = offline()
        client._resting = Recorder(poor)
        async with client:
            while failures:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert client._running

    asyncio.run(main())


def test_a_wait_ends_when_it_is_woken_when_its_time_is_over_and_when_it_is_cancelled():
    # Planted: a task that was cancelled is woken again, or one that was woken stays among those that wait.
    tasks = []
    ended = []

    async def one(ms):
        try:
            await aio.rest(tasks, ms)
            ended.append(ms)
        except asyncio.CancelledError:
            ended.append(-ms)

    async def main():
        made = [asyncio.create_task(one(ms)) for ms in (70000, 80000, 90000, 1)]
        await until(lambda: ended)
        equal((ended, len(tasks)), ([1], 3))
        made[1].cancel()
        aio.wake(tasks)
        aio.wake(tasks)
        await until(lambda: len(ended) == 4)
        equal((sorted(ended), len(tasks)), ([-80000, 1, 70000, 90000], 0))
        aio.wake(tasks)
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), WAIT_LIMIT_S))

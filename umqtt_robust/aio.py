"""The client for asyncio.

    from umqtt_robust import aio

    async with aio.Client("pump-7", "mqtt://broker.example", clean_session=False) as client:
        await client.subscribe("fleet/pump-7/cmd", qos=1)
        await client.publish("fleet/pump-7/telemetry", b"21.4", qos=1)  # returns when the broker has it
        async for topic, payload in client:
            ...

The client waits only for the socket, for the next deadline and for the program. Every call can be cancelled. A message
that is already in the outbox is still delivered; one that waits for the link (QoS 0) or for room in the outbox is
dropped and counted in `discarded`. No received message is lost.
"""

import asyncio

from ._platform import collect, const, load
from .base_errors import LinkLost, MQTTError, OutboxFull
from .inbox import Inbox
from .session import checked

_GRANTED = const(0x20)  # of subscriptions.py
_LONGEST = const(3600000)  # ms of one wait

try:
    from asyncio import core  # MicroPython's

    async def rest(events, ms):
        event = asyncio.Event()
        events.append(event)
        # Not wait_for_ms(), which makes two tasks, and one more that it waits for.
        alarm = ms is not None and asyncio.create_task(_alarm(event, ms))
        try:
            await event.wait()
        finally:
            events.remove(event)
            if alarm:
                alarm.cancel()

    async def _alarm(event, ms):
        await asyncio.sleep_ms(ms)
        event.set()

    def wake(events):
        for event in events:
            event.set()

    async def _ready(sock, writing, events):
        yield (core._io_queue.queue_write if writing else core._io_queue.queue_read)(sock)
        wake(events)

    def watch(sock, writing, events):
        watches = [asyncio.create_task(_ready(sock, False, events))]
        if writing:
            watches.append(asyncio.create_task(_ready(sock, True, events)))
        return watches

except ImportError:
    from ._host import rest, wake, watch


class Dropped(MQTTError):
    """Raised by publish(): the message was dropped from the outbox; args[0]: the reason, a constant of policy.py.

    args[1], if the reason is REFUSED: the Refused error, with the broker's reason code.
    """


class Client(Inbox):
    """A umqtt_robust.Client that a task of its own drives inside `async with`; leaving the block sends DISCONNECT.

    Arguments, counters and callbacks are those of Client, but on_message, on_large, on_dropped and manual_ack are used
    by this class. inbox_size: see inbox.py. quiesce_ms: ms that the end of the block waits for the outbox to empty;
    after an exception it does not wait.

    A message from `async for` is acknowledged when the loop asks for the next one. A handler set with on() has to call
    acknowledge() itself. While more than inbox_size bytes wait for the loop, neither gets further messages.

    An exception from a callback ends the client, and `async with` raises it; calls that wait then raise LinkLost.
    `async for` raises MessageTooLarge in place of a message for which there is no memory.
    """

    def __init__(self, *arguments, **options):
        self._quiesce = options.pop("quiesce_ms", 2000)
        self._awaited = {}  # packet id: the arguments of Dropped, or None
        self._resting = []  # for rest(): of the task that drives this client
        self._waiting = []  # of the tasks that wait for what it does
        self._driver = self._failure = None
        self._running = False
        Inbox.__init__(self, *arguments, on_dropped=self._dropped, **options)

    async def __aenter__(self):
        if self._running:
            raise load("errors").InvalidArgument("already inside async with")
        self.connect()  # after an earlier `async with` too
        self._failure = None
        self._running = True
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, kind, error, trace):
        if not kind:
            self.release()  # a loop that ended is done with its last message
        self.disconnect(0 if kind else self._quiesce)
        wake(self._resting)
        await self._driver
        if self._failure:
            raise self._failure

    @property
    def awaited(self):
        requests = self.parts.get("request")
        # pending: a message at QoS 2 may have to wait for a PUBCOMP before it is sent (resume.py).
        return self.pending or self.subscriptions.requests or requests and requests.waiting

    async def _drive(self):
        try:
            while True:
                ms = self.tick()
                wake(self._waiting)
                if self.closed:
                    return
                watches = ()
                try:
                    if ms > 0 and self.socket and (self.waits() or not self.before_reading()):
                        watches = watch(self.socket, self.waits(), self._resting)
                    # Messages expire by the second, also while there is no link. A board's asyncio takes less than
                    # 2**29 ms from its earliest task to its latest.
                    await rest(self._resting, min(ms, 1000 if "limits" in self.parts else _LONGEST))
                except MemoryError:
                    await asyncio.sleep(0)  # needs no memory, and other tasks may free some
                finally:
                    for one in watches:
                        one.cancel()
        except Exception as error:  # noqa: BLE001 - from a callback: `async with` raises it
            self._failure = error
        finally:
            self._running = False
            self._drop()
            wake(self._waiting)

    async def _change(self):
        if not self._running:
            raise LinkLost("not inside async with")
        await rest(self._waiting, None)

    def _handle_publish(self, head, buf, j, end):
        # While the inbox is full, messages that were read already wait in the receive buffer. Returns False for one.
        if self._waiting_bytes > self.inbox_size and not self.awaited:
            return False
        return Inbox._handle_publish(self, head, buf, j, end)

    def _dropped(self, packet_id, topic, payload, reason):
        if packet_id in self._awaited:
            self._awaited[packet_id] = (reason, self.refused) if reason == 4 else (reason,)  # REFUSED

    async def publish(self, topic, payload, qos=0, retain=False, expires_in=None, properties=None):
        """Publishes a message. Returns when the broker has acknowledged it, or at QoS 0 when the link has taken it.

        Waits while there is no link, or no room in the outbox. Raises Dropped if the message expired or the broker
        refused it, OutboxFull if it can never fit, StoreError, InvalidArgument, and LinkLost if the client ends.
        """
        while True:
            try:
                packet_id = Inbox.publish(self, topic, payload, qos, retain, expires_in, properties)
                if packet_id is not None:
                    break
            except OutboxFull:
                if not self.pending:
                    raise
            if self.broken:
                wake(self._resting)  # while the inbox is full, nobody looks at the socket
            await self._change()
            self.discarded -= 1  # not dropped: it is tried again
        if packet_id or self.out.end:
            wake(self._resting)  # to send the rest
        if packet_id:
            self._awaited[packet_id] = None
            try:
                while self.is_pending(packet_id):
                    await self._change()
            finally:
                reason = self._awaited.pop(packet_id)
            if reason:
                raise Dropped(*reason)

    async def request(self, topic, payload, timeout_ms=10000, qos=1):
        """Sends a request with MQTT 5 (see request.py) and returns the payload of the answer.

        Raises asyncio.TimeoutError if no answer comes within timeout_ms, what request.Request.send() raises, and
        LinkLost if the client ends.
        """
        answers = []
        self.part("request").send(topic, payload, answers.append, timeout_ms, qos)
        wake(self._resting)
        while not answers:
            await self._change()
        if answers[0] is None:
            raise asyncio.TimeoutError
        return answers[0]

    def acknowledge(self, packet_id):
        """Acknowledges a message that a handler of on() got. Returns False if no message with that packet id waits."""
        wake(self._resting)  # to send it now
        return Inbox.acknowledge(self, packet_id)

    async def subscribe(self, topic_filter, qos=0):
        """Subscribes to a topic filter. Returns when the broker has granted it.

        Raises Refused, InvalidArgument and LinkLost.
        """
        load("backpressure")  # see inbox.py
        topic_filter = checked(topic_filter, "check_topic_filter")
        Inbox.subscribe(self, topic_filter, qos)
        await self._answered()
        filters = self.subscriptions.filters
        if not filters.get(topic_filter, 0) & _GRANTED:
            filters.pop(topic_filter, None)  # the caller is told, and may ask again
            raise self.subscriptions.refused or load("errors").Refused("subscribe", topic_filter)

    async def unsubscribe(self, topic_filter):
        """Ends a subscription. Returns when the broker has confirmed that. Raises InvalidArgument and LinkLost."""
        Inbox.unsubscribe(self, topic_filter)
        await self._answered()

    async def _answered(self):
        wake(self._resting)
        while not self.subscribed:
            await self._change()

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.release()
        wake(self._resting)
        while not self.inbox:
            await self._change()
        return self.take()


collect()

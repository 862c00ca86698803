"""The client for asyncio.

    from umqtt_robust import aio

    async with aio.Client("pump-7", "mqtt://broker.example", clean_session=False) as client:
        await client.subscribe("fleet/pump-7/cmd", qos=1)
        await client.publish("fleet/pump-7/telemetry", b"21.4", qos=1)  # the broker has it
        async for topic, payload in client:
            ...

It waits for the socket, for the next deadline and for the program, and for nothing else. Any of its calls can be
cancelled: a message in the outbox is delivered all the same, one that waits for the link (QoS 0) or for room there is
counted in `discarded`, and none that has arrived is lost.
"""

import asyncio

from ._platform import collect, const, load
from .base_errors import LinkLost, MQTTError, OutboxFull, Refused
from .inbox import Inbox
from .session import checked

_GRANTED = const(0x20)  # of subscriptions.py

try:
    from asyncio import core  # MicroPython's

    async def _ready(sock, writing, wake):
        yield (core._io_queue.queue_write if writing else core._io_queue.queue_read)(sock)
        wake.set()

    def watch(sock, writing, wake):
        watches = [asyncio.create_task(_ready(sock, False, wake))]
        if writing:
            watches.append(asyncio.create_task(_ready(sock, True, wake)))
        return watches

except ImportError:
    from ._host import watch


class Dropped(MQTTError):
    """A message left the outbox unsent; args[0]: why, as in policy.py."""


class Client(Inbox):
    """umqtt_robust.Client, driven by a task of its own inside `async with`; leaving it says DISCONNECT.

    Arguments, counters and callbacks are the Client's, and inbox_size is inbox.py's; on_message, on_large and
    on_dropped are taken. quiesce_ms: how long leaving without an exception waits for what is in the outbox. A message
    from `async for` is acknowledged when the loop asks for the next one; a handler set with on() acknowledges by
    itself; both stop while more than inbox_size waits for the loop. What a callback raises ends the client and comes
    out of `async with`; LinkLost out of what waits; MessageTooLarge out of the loop, in place of that message.
    """

    def __init__(self, *arguments, **options):
        self._quiesce = options.pop("quiesce_ms", 2000)
        self._awaited = {}  # packet id: why it was dropped, or None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._driver = self._failure = None
        self._running = False
        Inbox.__init__(self, *arguments, on_dropped=self._dropped, **options)

    async def __aenter__(self):
        if self._running:
            raise load("errors").InvalidArgument("already inside async with")
        self.connect()  # after an earlier `async with` too
        self._failure = None
        self._changed.clear()  # the end of an earlier one has set it
        self._running = True
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, kind, error, trace):
        self.disconnect(0 if kind else self._quiesce)
        self._wake.set()
        await self._driver
        if self._failure:
            raise self._failure

    @property
    def awaited(self):
        requests = self.parts.get("request")
        # pending: before a message at QoS 2 leaves, PUBCOMP may be waited for (resume.py).
        return self.pending or self.subscriptions.requests or requests and requests.waiting

    async def _drive(self):
        try:
            while True:
                self._wake.clear()
                ms = self.tick()
                if "policy" in self.parts:  # messages expire by the second, also while there is no link
                    ms = min(ms, 1000)
                self._changed.set()  # whoever waits looks again
                self._changed.clear()
                if self.closed:
                    return
                await self._rest(ms)
        except Exception as error:  # noqa: BLE001 - of a callback: it comes out of `async with`
            self._failure = error
        finally:
            self._running = False
            self._drop()
            self._changed.set()

    async def _rest(self, ms):
        if ms <= 0:
            return await asyncio.sleep(0)
        watches = ()
        try:
            if self.socket and (self.waits() or not self.pauses()):
                watches = watch(self.socket, self.waits(), self._wake)
            # An hour: a board's clock takes less than 2**29 ms, and its float makes that of the number below.
            await asyncio.wait_for(self._wake.wait(), min(ms, 3600000) / 1000)
        except asyncio.TimeoutError:
            pass
        except MemoryError:
            await asyncio.sleep(0)  # which needs none: other tasks may free some
        finally:
            for one in watches:
                one.cancel()

    async def _change(self):
        if not self._running:
            raise LinkLost("this client is not inside async with")
        await self._changed.wait()

    def _dropped(self, packet_id, topic, payload, reason):
        if packet_id in self._awaited:
            self._awaited[packet_id] = reason

    async def publish(self, topic, payload, qos=0, retain=False, expires_in=None, properties=None):
        """Publishes; returns when the message is acknowledged, at QoS 0 when the link has taken it.

        Waits while there is no link or no room. Raises Dropped when it expired or the broker refused it (args[0]: the
        reason, see policy.py), InvalidArgument and LinkLost.
        """
        while True:
            try:
                packet_id = Inbox.publish(self, topic, payload, qos, retain, expires_in, properties)
                if packet_id is not None:
                    break
            except OutboxFull:
                if not self.pending:
                    raise
            await self._change()
            self.discarded -= 1  # not yet
        if packet_id:
            self._awaited[packet_id] = None
            self._wake.set()
            try:
                while self.is_pending(packet_id):
                    await self._change()
            finally:
                reason = self._awaited.pop(packet_id)
            if reason is not None:
                raise Dropped(reason)

    async def request(self, topic, payload, timeout_ms=10000, qos=1):
        """Sends a request with MQTT 5 (see request.py) and returns the payload of the answer.

        Raises asyncio.TimeoutError when there is none in time, and what publish() raises at the call.
        """
        answers = []
        self.part("request").send(topic, payload, answers.append, timeout_ms, qos)
        self._wake.set()
        while not answers:
            await self._change()
        if answers[0] is None:
            raise asyncio.TimeoutError
        return answers[0]

    async def subscribe(self, topic_filter, qos=0):
        """Returns when the broker has agreed. Raises Refused, InvalidArgument and LinkLost."""
        topic_filter = checked(topic_filter, "check_topic_filter")
        Inbox.subscribe(self, topic_filter, qos)
        await self._answered()
        filters = self.subscriptions.filters
        if not filters.get(topic_filter, 0) & _GRANTED:
            filters.pop(topic_filter, None)  # the caller knows, and may ask again
            raise Refused("subscribe", topic_filter)

    async def unsubscribe(self, topic_filter):
        """Returns when the broker has confirmed. Raises InvalidArgument and LinkLost."""
        Inbox.unsubscribe(self, topic_filter)
        await self._answered()

    async def _answered(self):
        self._wake.set()
        while not self.subscribed:
            await self._change()

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.release()
        self._wake.set()
        while not self.inbox:
            await self._change()
        return self.take()


collect()

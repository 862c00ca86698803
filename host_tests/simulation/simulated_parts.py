"""The parts of a simulated world: devices with the real client, and a server with the real broker and its SQLite store.

Both get time, bytes and randomness from the world; whatever they do is told to its model.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from umqtt_broker import Broker, BrokerConfig, StoreError
from umqtt_broker.errors import BrokerError
from umqtt_broker.store.group_commit import GroupCommitStore
from umqtt_broker.store.lock import RUN_SIZE
from umqtt_broker.store.sqlite import SqliteBackend
from umqtt_testkit.simulation.clock import SECOND, Event, Loop, Process
from umqtt_testkit.simulation.disk import Disk, PowerCut, path
from umqtt_testkit.simulation.model import Message, family_of
from umqtt_testkit.simulation.network import Link

from umqtt_robust import Client, Will
from umqtt_robust.errors import MQTTError, OutboxFull
from umqtt_robust.flash import FlashStore
from umqtt_robust.resume import SessionPurged

if TYPE_CHECKING:
    from simulated_world import World

_TICK = 50  # µs that a tick of a client takes
_DRIFT = (1 << 30) - 20_000  # a clock of the clients wraps soon


class Device:
    """A client with its program: it publishes, answers commands, and loses its power.

    options: of Client. subscriptions: topic filter and QoS. flash: whether it has a FlashStore, else a MemoryStore.
    """

    def __init__(self, world: World, number: int, *, flash: bool, subscriptions: dict[str, int], will: int | None,
                 retains_will: bool, publishes: list[tuple[str, int, bool, float | None]], rate: float, slots: int,
                 **options: Any) -> None:  # fmt: skip
        self.world = world
        self.number = number
        self.random = Random(f"{world.scenario.seed} device {number}")
        self.disk: Disk | None = world.disks[number] if flash else None
        self.options = options
        self.publishes = publishes
        self.rate = rate
        self.slots = slots
        self.subscriptions = subscriptions
        clean = options.get("clean_session", False)
        groups = frozenset(family_of(name) for name in subscriptions if name.startswith("$share/"))
        self.party = world.model_party(f"device{number}", not clean, flash, groups)
        self.party.wanted = {family_of(name): qos for name, qos in subscriptions.items()}
        self.will_qos, self.retains_will = will, retains_will
        self.will: Message | None = None
        self.process = Process()
        self.client: Client | None = None
        self.link: Link | None = None
        self.offset = self.random.choice((0, _DRIFT))
        self.is_publishing = True
        self._next: Event | None = None
        self.boot()
        self._plan_publishing()

    # Life

    def boot(self) -> None:
        """Start the program."""
        self.process = Process()
        if self.disk is not None:
            self.disk.power_on()
        try:
            store = FlashStore(path(self.number), slots=self.slots) if self.disk is not None else None
            self.client = client = Client(
                self.party.name, "mqtt://broker", ticks=self._ticks, random=self.random.randrange,
                transports={"mqtt": self._make_link}, store=store, **self.options,
            )  # fmt: skip
            client.on_message = self._on_message
            client.on_connect = self._on_connect
            client.on_disconnect = self._on_disconnect
            client.on_error = self._on_error
            client.on_acknowledged = self._on_acknowledged
            client.send_disconnect = self._send_disconnect
            for topic_filter, qos in self.subscriptions.items():
                client.subscribe(topic_filter, qos)
        except PowerCut:
            self.cut_power()
            return
        self.wake()

    def cut_power(self, seconds: float | None = None) -> None:
        """Cut the power, and switch it on again after a while."""
        if self.client is None:
            return
        self.process.alive = False
        self.client = None
        if self.disk is not None:
            self.disk.is_off = True
        self.world.model.power_cut(self.party)
        self._lose_link()
        if self.party.keeps_session and not self.party.present:
            self.party.present = None
        if self.link is not None:
            # The other end is told nothing, or reset by the next packet that comes.
            self.link.is_closed = True
            self.link.cut(self.random.randrange(self.link.up.size + 1), 0, broker_knows=self.random.random() < 0.5)
            self.link = None
        seconds = self.random.choice((0.1, 1.0, 5.0)) if seconds is None else seconds
        self.world.clock.at(self.world.clock.now + seconds * SECOND, self.world.process, self.boot)

    def _ticks(self) -> int:
        return self.world.clock.now // 1000 + self.offset & 0x3FFFFFFF

    def wake(self) -> None:
        """Let the program continue now."""
        clock = self.world.clock
        due = clock.now + _TICK
        if self._next is not None and self._next[2] is not None:
            if self._next[0] <= due and self._next[4] is self.process:
                return
            self._next.cancel()
        self._next = clock.at(due, self.process, self._tick)

    def _tick(self) -> None:
        client = self.client
        self._next = None
        if client is None:
            return
        try:
            wait = client.tick()
        except PowerCut:
            self.cut_power()
            return
        if client.connected and client.subscribed and not self.party.granted and self.party.keeps_session:
            self.party.granted = dict(self.party.wanted)
        if self._next is None:
            clock = self.world.clock
            self._next = clock.at(clock.now + max(wait * 1000, _TICK), self.process, self._tick)

    def _make_link(self, host: str, port: int, place: str) -> Link:
        del host, port, place
        client = self.client
        assert client is not None
        if self.will_qos is not None and not client.purge:
            topic = f"will/{self.party.name}"
            self.will = self.world.model.publish(self.party, topic, self.will_qos, self.retains_will, is_will=True)
            client.will = Will(topic, b"%d" % self.will.number, self.will_qos, self.retains_will)
        self.link = self.world.link(self.wake, self.party.name)
        return self.link

    # Callbacks

    def _on_connect(self, session_present: bool) -> None:
        client = self.client
        if client is not None:  # None only while it is made
            self.world.model.connected(self.party, session_present)
            self.is_accepted = True

    is_accepted = False

    def _on_acknowledged(self, packet_id: int) -> None:
        is_removed = self.disk is None or not self.disk.is_full
        self.world.model.acknowledged(self.party, packet_id, is_removed=is_removed)

    def _lose_link(self) -> None:
        if self.will is not None:
            if self.is_accepted:
                self.world.model.promise(self.will)
            self.will = None
        self.is_accepted = False

    def _send_disconnect(self) -> None:
        self.will = None
        assert self.client is not None
        Client.send_disconnect(self.client)

    def _on_disconnect(self, error: Exception) -> None:
        del error
        self.party.losses += 1
        self._lose_link()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, SessionPurged) and self.party.present:  # before its first CONNACK there is nothing to lose
            self.world.model.diverge(f"{self.party.name} lost its half of the session")
        if not self.is_accepted:
            self.party.losses += 1
            self.will = None
            if self.party.keeps_session and not self.party.present:
                self.party.present = None  # the link may have carried CONNECT

    def _on_message(self, topic: bytes, payload: bytes) -> None:
        client = self.client
        assert client is not None
        name = topic.decode()
        if name.startswith("cmd/"):
            self.publish("re/" + self.party.name, 1, False, None)  # may find the outbox full: then it comes again
        world = self.world
        world.received += 1
        number = int(payload.split(b" ", 1)[0])
        now = world.clock.now / SECOND
        world.note(f"{self.number} {number} {client.flags} {world.clock.now}".encode())
        world.model.receive(self.party, number, name, bool(client.flags & 1), client.redelivered, now)

    # Publishing

    def _plan_publishing(self) -> None:
        clock = self.world.clock
        after = self.random.expovariate(self.rate) * SECOND
        clock.at(clock.now + after, self.world.process, self._publish_some)

    def _publish_some(self) -> None:
        if not self.is_publishing:
            return
        self._plan_publishing()
        for _ in range(self.random.choice((1, 2, 8, 30))):
            if self.client is None:
                return
            topic, qos, retain, expiry = self.random.choice(self.publishes)
            try:
                self.publish(topic.replace("#", str(self.number)), qos, retain, expiry)
            except OutboxFull:
                break
            except PowerCut:
                self.cut_power()
                return
        self.wake()

    def publish(self, topic: str, qos: int, retain: bool, expiry: float | None) -> None:
        """Publish the next message, and tell the model what becomes of it. Raises OutboxFull and PowerCut."""
        client, model = self.client, self.world.model
        assert client is not None
        # What is sent in time may be under way for long.
        deadline = None if expiry is None else self.world.clock.now / SECOND + expiry + self.world.longest_way
        message = model.publish(self.party, topic, qos, retain, expires=deadline)
        payload = b"%d %s" % (message.number, b"x" * self.random.choice((4, 20, 60, 150)))
        try:
            packet_id = client.publish(topic, payload, qos, retain, None if expiry is None else int(expiry * 1000))
        except MQTTError as error:
            model.refuse(message)
            self.world.refused += 1
            if isinstance(error, OutboxFull):
                raise
            return
        if qos and packet_id is None:
            model.diverge(f"{self.party.name}: publish() dropped message {message.number}")
        if packet_id:
            self.party.in_flight[packet_id] = message
        self.world.published += 1
        model.promise(message)


class Writer:
    """Runs the broker's transactions when virtual time has passed: see group_commit.Writer."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.pending: Callable[[], None] | None = None

    def submit(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Have a transaction run later."""
        found: list[tuple[Any, BaseException | None]] = []
        server = self._server

        def write() -> None:
            self.pending = None
            try:
                if server.disk_is_full:
                    server.full_seen += 1
                    raise StoreError("the disk is full")
                found.append((function(batch), None))
            except Exception as error:  # noqa: BLE001 - as a future does
                found.append((None, error))

        def result() -> Any:
            return found[0][0]

        def exception() -> BaseException | None:
            return found[0][1]

        future = SimpleNamespace(result=result, exception=exception)

        def add_done_callback(call: Callable[[Any], None]) -> None:
            def finish() -> None:
                write()
                call(future)

            world = server.world
            seconds = server.random.choice(server.commit_times)
            world.clock.at(world.clock.now + seconds * SECOND, server.process, finish)

        self.pending = write
        future.add_done_callback = add_done_callback
        return future

    def shutdown(self) -> None:
        """Nothing runs between events."""


class Server:
    """The broker's process and its disk."""

    def __init__(self, world: World, folder: Path, config: dict[str, Any], commit_times: tuple[float, ...]) -> None:
        self.world = world
        self.random = Random(f"{world.scenario.seed} server")
        self._folder = folder
        self._life = 0
        self.config = config
        self.commit_times = commit_times
        self.disk_is_full = False
        self.full_seen = 0
        self.is_stopping = False
        self.broker: Broker | None = None
        self.process = Process()
        self.loop = Loop(world.clock, self.process)
        self._listening: Any = None
        self.writer = Writer(self)
        self.messages = 0  # of earlier lives
        self.path.parent.mkdir()
        self._old: Path | None = None
        self.start()

    @property
    def path(self) -> Path:
        """The store."""
        return self._folder / str(self._life) / "broker.db"

    def start(self) -> str:
        """Start the broker. Returns why it does not start, "" if it does."""
        if self.broker is not None:
            return ""
        world = self.world
        self.process = Process()
        self.loop = loop = Loop(world.clock, self.process)
        asyncio._set_running_loop(loop)
        self.writer = Writer(self)
        store = GroupCommitStore(SqliteBackend(str(self.path)), lambda: self.writer)
        broker = Broker(
            BrokerConfig(store=str(self.path), sys_interval=0, **self.config),
            store=store, listen=self._listen, clock=lambda: 1_700_000_000 + world.clock.now / SECOND,
        )  # fmt: skip
        starting = broker.start()
        try:
            starting.send(None)
        except StopIteration:
            self.broker = broker
        except BrokerError as error:
            return str(error)
        else:
            raise AssertionError("the start of a broker waits for something")
        return ""

    def _listen(self, config: BrokerConfig, stats: object, refusals: object, new: Any, *more: object) -> list[Any]:
        listener = config.all_listeners()[0]

        async def serve() -> None:
            self._listening = lambda: new(listener)

        def close() -> None:
            self._listening = None

        sockets = [SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1883))]
        return [SimpleNamespace(listener=listener, sockets=sockets, serve=serve, close=close, largest_share=0)]

    def accept(self) -> Any:
        """Return the protocol of a new connection, None if nobody listens."""
        return self._listening() if self._listening is not None else None

    def kill(self, *, power: bool = False) -> None:
        """End the process between any two of its steps; with `power` the machine, which resets no connection."""
        broker = self.broker
        if broker is None or self.is_stopping:
            return
        if self.writer.pending is not None and self.random.random() < 0.5:
            self.writer.pending()  # the transaction is complete, and nobody has heard of it
        self._end(broker)
        for link in self.world.links:
            if link.other is not None:
                link.other.is_lost = True  # nobody is there to be told
                link.cut(0, self.random.randrange(link.down.size + 1), client_knows=not power, broker_knows=False)
        before = self.path
        self._life += 1
        shutil.copytree(before.parent, self.path.parent)
        broker.store._backend.close()  # SQLite would clean up the files: the next life has a copy
        if power and self._old is not None and (self._old / "broker.db.lock").exists():
            shutil.copy(self._old / "broker.db.lock", self.path.parent)  # it is not synced
        shutil.rmtree(before.parent)

    def _end(self, broker: Broker) -> None:
        self.loop.end()
        self.is_stopping = False
        self.broker = self._listening = None
        self.world.model.divergences += self.loop.mistakes
        self.world.model.broker_deaths += 1
        self.messages += broker.stats.messages_in + broker.stats.messages_out

    def stop(self) -> None:
        """Stop the broker as SIGTERM does, and wait for that."""
        broker = self.broker
        if broker is None or self.is_stopping:
            return
        self._listening = None
        self.is_stopping = True
        stopping = self.loop.create_task(broker.stop())

        def done(task: Any) -> None:
            self._end(broker)
            if task.exception() is not None and not isinstance(task.exception(), StoreError):
                self.world.model.diverge(f"stop: {task.exception()!r}")

        stopping.add_done_callback(done)

    def remember(self) -> None:
        """Keep a copy of the files: what may be on the disk later if writes are lost."""
        if self.broker is not None and not self.is_stopping:
            self._old = self._folder / "old"
            shutil.rmtree(self._old, ignore_errors=True)
            shutil.copytree(self.path.parent, self._old)

    def put_old_pages_back(self) -> None:
        """Kill the broker and start it on the files of an earlier time, except the lock file: it must refuse."""
        if self._old is None or self.broker is None or self.is_stopping:
            return
        self.kill()
        witness = (self.path.parent / "broker.db.lock").read_bytes()
        old = (self._old / "broker.db.lock").read_bytes()
        if witness == old or witness[:RUN_SIZE] != old[:RUN_SIZE]:  # commits are counted from the start of the broker
            return
        sound = self.path.parent
        self._life += 1
        shutil.copytree(self._old, self.path.parent)
        shutil.copy(sound / "broker.db.lock", self.path.parent)
        if not self.start():
            self.world.model.diverge("the broker did not notice that its store had lost commits")
            self.kill()
        else:
            self.world.seen["old pages refused"] += 1
        shutil.rmtree(self.path.parent)
        shutil.copytree(sound, self.path.parent)
        shutil.rmtree(sound)


class Mistakes(logging.Handler):
    """Collects what the broker logs as a mistake of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a record with a traceback."""
        if record.exc_info:
            self.found.append(f"the broker logged: {record.getMessage()}: {record.exc_info[1]!r}")

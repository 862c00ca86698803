"""One network connection: the callbacks of the event loop, CONNECT, output and the end.

`packet_loop` parses all packets of one read; then the results are written: all acknowledgements in one write, and one
write for each session that got messages.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from ..core.context import BrokerContext
from ..core.timers import Deadline, Deadlines
from ..core.turns import LONGEST, SLICE, Job, Turns
from ..errors import MalformedPacket
from ..log import RefusalLog
from ..protocol.connect import Connect, UnacceptableProtocol, decode_connect, decode_version5, is_version_5, refusal
from ..protocol.packets import (
    ACCEPTED,
    BAD_USER_NAME_OR_PASSWORD,
    RETURN_CODES,
    SERVER_UNAVAILABLE,
    UNACCEPTABLE_PROTOCOL_VERSION,
    encode_connack,
)
from ..protocol.packets5 import Connect5, encode_disconnect
from ..protocol.reason_codes import ReasonCode
from ..routing.publish_checks import publisher
from ..routing.router import MANY_DIRTY, Publish, Router
from ..sessions.session import Session
from ..settings.broker import Listener
from ..transport.peers import has_closed, peer_address
from . import connack5, packet_loop
from .backpressure import Backpressure
from .framing import fitting
from .registry import Sessions

# A client that sends but does not read its acknowledgements is not read from while more than this many times
# max_output_buffer waits for it.
_UNREAD_BUFFERS = 8

# Seconds that a closing connection has for its last packets before it is aborted.
_CLOSE_TIMEOUT = 5.0

_NO_ALIASES: dict[int, bytes] = {}
_NO_LIMITS = Connect5()
_REASON_CODES = frozenset(ReasonCode)

_log = logging.getLogger(__name__)


class ConnectionBroker(Protocol):
    """The parts of the broker that a connection uses, shared by all connections."""

    context: BrokerContext
    router: Router
    sessions: Sessions
    deadlines: Deadlines
    turns: Turns
    refusals: RefusalLog
    denials: RefusalLog
    loop: asyncio.AbstractEventLoop

    def admit(self, connection: "Connection") -> bool:
        """Count a new network connection. Returns False if there are too many."""
        ...

    def log_in(self, connection: "Connection") -> None:
        """Note that a connection's CONNECT is accepted."""
        ...

    def forget(self, connection: "Connection") -> None:
        """Remove a network connection that is gone."""


class Connection(asyncio.Protocol):
    """One network connection, from accept to close.

    session: None before CONNECT and after the end. peer: address of the client. protocol_level: 3 for MQTT 3.1, 4 for
    3.1.1, 5 for 5. connected_at, heard_at: when its CONNECT was accepted and when data last came, in the event loop's
    time. keep_alive: seconds, 0: none. messages_in, messages_out: PUBLISH packets received and sent. established: the
    CONNACK is written. congested: the peer reads too slowly for more output. client_limits: see Connect5.
    topic_aliases: the names behind the client's aliases, see handlers. closing: nothing more is read.
    awaiting_commit: how many lists of its packets wait for the store. backpressure: None as long as nothing limits how
    the client is read. publish: the function that passes its messages to the router. ending: why the connection ends,
    in the words of the log; "" for DISCONNECT. job: work of one packet that takes more than one turn, or None.
    """

    __slots__ = (
        "_broker",
        "_deadline",
        "_decision",
        "_disconnect",
        "_gone",
        "_held",
        "_is_alone",
        "_is_lost",
        "_latest",
        "_loop",
        "_needed",
        "_pending",
        "_recorded",
        "_rest",
        "_unread",
        "_until",
        "awaiting_commit",
        "backpressure",
        "client_limits",
        "closing",
        "congested",
        "connected_at",
        "context",
        "ending",
        "established",
        "heard_at",
        "job",
        "keep_alive",
        "listener",
        "messages_in",
        "messages_out",
        "peer",
        "protocol_level",
        "publish",
        "router",
        "session",
        "stats",
        "store",
        "topic_aliases",
        "transport",
    )

    def __init__(self, broker: ConnectionBroker, listener: Listener) -> None:
        self._broker = broker
        self.listener = listener
        self.context = broker.context
        self.stats = broker.context.stats
        self.store = broker.context.store
        self.router = broker.router
        self._loop = broker.loop
        # Parts of an incomplete packet. They are parsed only once, when `_needed` bytes are there: it may be large.
        self._pending: bytearray | None = None
        self._needed = 0
        # Data that was read and waits for the next turn; None if there is none.
        self._rest: list[bytes] | None = None
        # When this turn ends, in the event loop's time: if other connections wait, and if none waits.
        self._until = self._latest = 0.0
        self._is_alone: Callable[[], bool] | None = None
        self.job: Job | None = None
        # Acknowledgements that wait until the messages of their read are written to all subscribers.
        self._held: list[bytes] | None = None
        # True if the network connection is gone, and the data that it left is still being processed, in turns.
        self._is_lost = False
        # The store's count of recorded changes when this read began.
        self._recorded = 0
        self.heard_at = 0.0
        self._deadline: Deadline | None = None
        self._decision: asyncio.Future[int] | None = None
        # True while too much output is unread.
        self._unread = False
        self.session: Session | None = None
        self.publish: Publish = broker.router.publish_here
        self.awaiting_commit = 0
        self.backpressure: Backpressure | None = None
        self.keep_alive = 0
        self.connected_at = 0.0
        self.messages_in = 0
        self.messages_out = 0
        self.peer = ""
        self.ending = "closed by the client"
        self.protocol_level = 4
        # The DISCONNECT that a client of MQTT 5 gets as the last packet; b"" for none.
        self._disconnect = b""
        self.client_limits = _NO_LIMITS
        self.topic_aliases = _NO_ALIASES
        self.established = False
        self.congested = False
        self.closing = False
        # True once nothing more can be written.
        self._gone = False

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and give it time for its CONNECT."""
        self.transport = cast(asyncio.Transport, transport)
        self._is_alone = transport.get_extra_info("is_alone")
        self.peer = peer_address(transport)
        self.transport.set_write_buffer_limits(high=self.context.config.max_output_buffer)
        if not self._broker.admit(self):
            self.abort("too many connections")
            return
        self._deadline = self._broker.deadlines.after(self.context.config.connect_timeout, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection: keep or discard the session, and publish the will if there is one."""
        if exc is None and not self.closing:
            # The client has closed after its last packet: process what it sent, in turns like others.
            self._is_lost = self._gone = True
            self.begin_turn()
            self._take_last()
            if self._rest is not None:
                return
        self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        if isinstance(exc, OSError):
            self.ending = f"the network failed: {exc}"
        elif exc is not None:
            self.ending = f"the broker failed: {exc!r}"
        self.closing = self._gone = True
        self._stop_waiting()
        self.read_freely()
        self._broker.forget(self)

    def pause_writing(self) -> None:
        """Stop output: the buffer is full."""
        self.congested = True
        if self.session is not None:
            self.session.stop_output()

    def resume_writing(self) -> None:
        """Resume output: the buffer has drained."""
        self.congested = self._unread = False
        if self.closing:
            return
        self.update_reading()
        if self.session is not None and self.established:
            self.session.open_window()
            self.router.flush()

    def data_received(self, data: bytes) -> None:
        """Process every whole packet of one read, and keep the rest."""
        self.stats.bytes_in += len(data)
        # Part of a packet counts too: a large packet takes long on a slow link.
        self.heard_at = now = self._loop.time()
        if self._rest is not None:
            # Not every transport stops reading at once.
            self._rest.append(data)
            return
        self._until, self._latest = now + SLICE, now + LONGEST
        if self._pending is None and self.backpressure is not None:
            # The usual way through _receive() of a client whose rate is limited.
            self.backpressure.feed(data)
        else:
            self._receive(data)

    # Input

    def _receive(self, data: bytes) -> None:
        if self._pending is not None:
            self._pending += data
            if len(self._pending) < self._needed:
                return
            data = bytes(self._pending)
            self._pending = None
        if self.backpressure is not None:
            self.backpressure.feed(data)
            return
        self.process_packets(data)
        if self.backpressure is not None:
            # A packet of this read started the backpressure: the rest goes through it.
            self.feed_pending()

    def feed_pending(self) -> None:
        """Feed the kept data to the backpressure, if it has a whole packet."""
        backpressure = self.backpressure
        assert backpressure is not None
        if self._pending is None or len(self._pending) < self._needed:
            backpressure.feed(b"")
            return
        data = bytes(self._pending)
        self._pending = None
        backpressure.feed(data)

    # Turns

    def has_time(self) -> bool:
        """Return True if this turn may continue: its time is not over, or nobody else waits."""
        now = self._loop.time()
        if now >= self._until:
            if now >= self._latest or self._is_alone is None or not self._is_alone():
                return False
            self._until = now + SLICE
        return True

    def begin_turn(self) -> None:
        """Begin a new turn."""
        now = self._loop.time()
        self._until, self._latest = now + SLICE, now + LONGEST

    @property
    def is_waiting(self) -> bool:
        """True if data that was read waits for the next turn."""
        return self._rest is not None

    def wait_for_turn(self, rest: bytes) -> None:
        """Continue with `rest` after the others have had their turn."""
        if self._rest is None:
            self._rest = []
            self._broker.turns.wait(self)
            self.update_reading()
        self._rest.append(rest)

    def on_turn(self) -> None:
        """Continue for one slice."""
        if self._rest is None or self._held is not None:
            return
        rest, self._rest = b"".join(self._rest), None
        self.begin_turn()
        if self.job is not None and (self._is_lost or has_closed(self.transport)):
            # Nobody waits for its acknowledgement: the rest of it is left undone.
            self.job = None
        if self.job is not None:
            self.process_packets(b"")
        if self._rest is not None:
            # The job is not done.
            self._rest.append(rest)
            return
        if not self.closing:
            self._receive(rest)
        if self.backpressure is not None and self._rest is None and not self.closing:
            # What waits may continue, even if `rest` did not complete a packet.
            self.backpressure.feed(b"")
        if self._is_lost:
            self._take_last()
        if self._rest is None:
            if self._is_lost:
                self._end(None)
            else:
                self.update_reading()

    def _take_last(self) -> None:
        """Process the waiting packets of a connection that is gone, whatever the limits."""
        if self.backpressure is not None and self._rest is None and not self.closing:
            self.backpressure.take_all()

    def do_job(self, acknowledgements: list[bytes]) -> bool:
        """Continue with a job that may take more than one turn. Returns True when it is done."""
        job = self.job
        assert job is not None
        for _ in job.steps:
            if not self.has_time():
                return False
        self.job = None
        # The acknowledgement must also wait for what the job recorded in earlier turns.
        self._recorded = min(self._recorded, job.recorded)
        job.finish(acknowledgements)
        return True

    def process_packets(self, data: bytes) -> None:
        """Process packets, and write the answers and messages that they cause."""
        if self.closing:
            return
        context = self.context
        limits = context.limits
        if limits is not None:
            # Queues that the broker itself filled meanwhile (wills, $SYS) must not hold this client back.
            limits.hits.clear()
        self._recorded = self.store.recorded
        acknowledgements: list[bytes] = []
        is_open = True
        session_before, messages_before = self.session, self.messages_in
        try:
            is_open = packet_loop.process(self, data, acknowledgements)
        except MalformedPacket as error:
            self.stats.malformed[error.reason] += 1
            if session_before is None:
                self._log_refused(refusal(error.reason, data))
            if self.protocol_level == 5:
                if self.session is None:
                    acknowledgements.append(connack5.refused(self.client_limits, error.reason_code, error.reason))
                else:
                    self._disconnect = connack5.disconnect(self.client_limits, error.reason_code, error.reason)
            self.ending = f"malformed: {error.reason}"
            is_open = False
        session = self.session
        if session is not None and (session.queue or session.waiting_groups):
            session.pump()
        store = self.store
        is_published = self.messages_in != messages_before
        if is_open and is_published and (len(context.dirty) > MANY_DIRTY or self.router.is_late):
            self._flush_first(acknowledgements)
        elif acknowledgements:
            if store.recorded != self._recorded or self.awaiting_commit or store.is_shared:
                store.after_commit(self, acknowledgements)
            else:
                if context.dirty and (session is None or not session.dirty):
                    # Subscribers first, since they wait for the message; the publisher only gets its acknowledgement.
                    self.router.flush()
                self.write(acknowledgements)
        if context.dirty:
            self.router.flush()
        if not is_open:
            self.close()
            return
        if store.recorded != self._recorded:
            size = len(data) - (len(self._rest[-1]) if self._rest else 0)
            if store.took(size, store.recorded - self._recorded):
                self._apply_backpressure().wait_for_store(store)
        if limits is not None and limits.hits:
            self._apply_backpressure().wait_for_room(limits)

    def _flush_first(self, acknowledgements: list[bytes]) -> None:
        """Have the messages of this read written in slices before its acknowledgements and before the next packets."""
        self._held = acknowledgements
        if self._rest is None:
            self._rest = []
            self.update_reading()
        self.router.flush_in_slices(self)

    def flush(self) -> None:
        """Continue: all subscribers have the messages of the last read."""
        held, self._held = self._held, None
        if held and not self._gone:
            self.store.after_commit(self, held)
        self._broker.turns.wait(self)

    def keep_rest(self, data: bytes, needed: int) -> None:
        """Keep an incomplete packet until there are `needed` bytes."""
        if self._pending is None:
            self._pending = bytearray(data)
        else:
            self._pending += data
        self._needed = needed

    def count_in(self, messages: int) -> None:
        """Count the PUBLISH packets of a read."""
        self.messages_in += messages
        self.stats.messages_in += messages

    def count_out(self, messages: int) -> None:
        """Count messages that are about to be written."""
        self.messages_out += messages
        self.stats.messages_out += messages

    # Holding back

    def _apply_backpressure(self) -> Backpressure:
        """Pass what the client sends through a Backpressure from now on. Returns the Backpressure."""
        if self.backpressure is None:
            self.backpressure = Backpressure(self, self._loop)
        return self.backpressure

    def read_freely(self) -> None:
        """Hold nothing back any more."""
        self.backpressure = None

    @property
    def is_held_back(self) -> bool:
        """True if packets of the client wait: for room in a queue, their turn or the decision on its CONNECT."""
        backpressure = self.backpressure
        return backpressure is not None and bool(backpressure.paused or backpressure.waiting)

    @property
    def is_waited_for(self) -> bool:
        """True if the broker waits for acknowledgements of this client."""
        return self.session is not None and bool(self.session.in_flight or self.session.queued)

    def update_reading(self) -> None:
        """Start or stop reading from the socket, as the state requires."""
        if self.closing:
            return
        if self._unread or self._rest is not None or (self.backpressure is not None and self.backpressure.paused):
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # CONNECT

    def on_connect(self, packet: bytes, flags: int) -> Session | None:
        """Accept a client, refuse it, or hold it back until that is decided. Returns its session if accepted now.

        packet: the body of the CONNECT. flags: the low four bits of its first byte.
        """
        most = self.context.config.max_connect_properties_size
        version5 = None
        try:
            if is_version_5(packet):
                self.protocol_level = 5
                version5 = decode_version5(packet, most)
                self.client_limits = version5[0]
            connect = decode_connect(packet, flags, version5, most)
        except UnacceptableProtocol as error:
            self._log_refused(error.reason)
            self._refuse(UNACCEPTABLE_PROTOCOL_VERSION)
            return None
        return_code, connect = self._broker.sessions.identify(self, connect)
        if isinstance(return_code, int):
            self._answer(connect, return_code)
            return self.session
        self._decision = return_code
        self._apply_backpressure().decide(True)
        return_code.add_done_callback(lambda decision: self._on_decision(connect, decision))
        return None

    def _on_decision(self, connect: Connect, decision: asyncio.Future[int]) -> None:
        self._decision = None
        if self.closing or decision.cancelled():
            return
        error = decision.exception()
        if error is not None:
            _log.error("permission failed for a client at %s, refused: %r", self.peer, error)
        self._recorded = self.store.recorded
        self._answer(connect, SERVER_UNAVAILABLE if error is not None else decision.result())
        if self.backpressure is not None:
            self.backpressure.decide(False)
        self.router.flush()

    def _answer(self, connect: Connect, return_code: int) -> None:
        if return_code != ACCEPTED:
            self.stats.wrong_passwords += return_code == BAD_USER_NAME_OR_PASSWORD
            self.stats.told_to_wait += return_code == SERVER_UNAVAILABLE
            reason = RETURN_CODES.get(return_code)
            if reason is None:
                reason = ReasonCode(return_code).text if return_code in _REASON_CODES else f"return code {return_code}"
            self._log_refused(reason, connect.client_id)
            self._refuse(return_code)
            return
        if not self._broker.sessions.has_room(self, connect):
            self._log_refused("its user, or address, has too many sessions", connect.client_id)
            self._refuse(SERVER_UNAVAILABLE if connect.version5 is None else ReasonCode.QUOTA_EXCEEDED)
            return
        if connect.version5 is not None:
            self.topic_aliases = {}
        session_present = self._broker.sessions.connect(self, connect)
        self._broker.log_in(self)
        self.connected_at = self.heard_at = self._loop.time()
        self.protocol_level = connect.protocol_level
        self.keep_alive = connect.keep_alive
        config = self.context.config
        most = config.max_keep_alive
        if most and not 0 < self.keep_alive <= most:
            self.keep_alive = most
        if self._deadline is not None:
            self._deadline.cancel(self)
            self._deadline = None
        if self.keep_alive:
            self._deadline = self._broker.deadlines.at(self.connected_at + 1.5 * self.keep_alive, self)
        self.bind()
        if self.store.is_blocked:
            self._apply_backpressure().wait_for_store(self.store)
        if connect.version5 is None:
            connack = [encode_connack(ACCEPTED, session_present)]
        else:
            assert self.session is not None  # the client is accepted
            granted = self._broker.sessions.granted_session_expiry(self.session)
            connack = [connack5.accepted(connect, session_present, self.keep_alive, granted, config)]
            if 0 < connect.version5.max_packet_size < len(connack[0]):
                self.ending = "its Maximum Packet Size leaves no room for CONNACK"
                self.close()
                return
        if self.session is not None and self.session.store is None and not self.must_wait():
            self.release(connack)
        else:
            # The CONNACK waits until a session that was made or discarded is safe, and so is everything that was
            # recorded for the session through its previous connection.
            self.store.after_commit(self, connack)

    def bind(self) -> None:
        """Choose the publish function and the receive rate, after new rights of the client or new settings."""
        config = self.context.config
        if self.session is not None:
            self.publish = publisher(self.session, self.router, self.stats, config, self._log_denied)
        if config.max_receive_rate:
            self._apply_backpressure().limit_rate(config.max_receive_rate)
        elif self.backpressure is not None:
            self.backpressure.limit_rate(0)

    def _log_refused(self, reason: str, client_id: bytes | None = None) -> None:
        self._broker.refusals.refused(self._loop.time(), self.peer, reason, client_id)

    def _log_denied(self, topic_name: bytes) -> None:
        if self.session is not None:
            self._broker.denials.denied(self._loop.time(), self.peer, self.session.client_id, topic_name)

    def forget_will(self) -> None:
        """Discard the will after a DISCONNECT [MQTT-3.1.2-10]."""
        if self.session is not None:
            self._broker.sessions.forget_will(self.session)

    def set_session_expiry(self, seconds: int) -> None:
        """Set how long the session is kept, as given in DISCONNECT. Raises MalformedPacket."""
        if self.session is not None:
            self._broker.sessions.set_session_expiry(self.session, seconds)

    def _refuse(self, return_code: int) -> None:
        """Answer a CONNECT with a return code other than 0 and close [MQTT-3.2.2-5]."""
        self.stats.connections_refused += 1
        is_version5 = self.protocol_level == 5
        if is_version5:
            reference = self.context.config.server_reference
            self.write([connack5.refused(self.client_limits, return_code, server_reference=reference)])
        else:
            self.write([encode_connack(return_code)])
        self.close()

    # Output

    def must_wait(self) -> bool:
        """Return True if acknowledgements must wait for a commit.

        They must if this read recorded changes, if earlier packets wait, or if the store is shared by several brokers.
        """
        return self.store.recorded != self._recorded or self.awaiting_commit > 0 or self.store.is_shared

    def release(self, packets: list[bytes]) -> None:
        """Write packets that waited for a commit."""
        if self._gone:
            return
        self.write(packets)
        if self.closing:
            if not self.awaiting_commit:
                self._close_transport()
            return
        if not self.established:
            self.established = True
            if self.session is not None:
                self.session.go_online()

    def write(self, packets: list[bytes]) -> None:
        """Write packets in one piece, except those too large for the client [MQTT-3.1.2-24, -25 of MQTT 5]."""
        data = b"".join(packets)
        self.send(fitting(data, self.client_limits.max_packet_size) if self.client_limits.max_packet_size else data)

    def send(self, data: bytes) -> None:
        """Write whole packets."""
        if self._gone:
            return
        transport = self.transport
        self.stats.bytes_out += len(data)
        transport.write(data)
        if (
            self.congested
            and transport.get_write_buffer_size() > _UNREAD_BUFFERS * self.context.config.max_output_buffer
        ):
            self._unread = True
            self.update_reading()

    # The end

    def close(self) -> None:
        """Close after everything is sent, including packets that wait for a commit."""
        if self.closing:
            return
        self.closing = True
        self._stop_waiting()
        self._deadline = self._broker.deadlines.after(_CLOSE_TIMEOUT, self)
        self._broker.sessions.detach(self)
        if self._is_lost:
            self._broker.forget(self)
        elif not self.awaiting_commit:
            self._close_transport()

    def _close_transport(self) -> None:
        """Close the transport after the last packet."""
        if self._disconnect:
            self.write([self._disconnect])
        self._gone = True
        self.transport.close()

    def stop(self) -> None:
        """Close because the broker stops."""
        self.ending = "the broker stops"
        if self.protocol_level == 5 and self.session is not None:
            self._disconnect = encode_disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
        self.close()

    def send_away(self) -> None:
        """Close, and tell a client of MQTT 5 which server to use; do nothing to others."""
        if self.protocol_level == 5 and not self.closing:
            self.ending = "sent to another server"
            self._disconnect = connack5.send_away(self.client_limits, self.context.config.server_reference)
            self.close()

    def abort(self, ending: str, reason_code: int = 0) -> None:
        """Close at once, for a reason in the words of the log. A client of MQTT 5 is told the reason code if it can."""
        self.ending = ending
        if reason_code and self.protocol_level == 5 and self.established:
            self.write([encode_disconnect(reason_code)])
        self.closing = self._gone = True
        self._stop_waiting()
        self.transport.abort()
        self._broker.sessions.detach(self)
        if self._is_lost:
            self._broker.forget(self)

    def commit_failed(self) -> None:
        """Close without acknowledging: what the client waits for is not safe."""
        self.abort("a commit of the store failed", ReasonCode.UNSPECIFIED_ERROR)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel(self)
            self._deadline = None
        # The connection gets no further turn.
        self._rest = self.job = self._pending = None
        if self._decision is not None:
            self._decision.cancel()
        if self.backpressure is not None:
            self.backpressure.cancel()

    def on_deadline(self) -> None:
        """Handle a timeout: no CONNECT, no packet within the keep-alive, or a closing connection that stays open."""
        self._deadline = None
        if self.closing:
            self.transport.abort()
        elif self.session is None:
            self.stats.connect_timeouts += 1
            self.abort("no CONNECT in time")
        else:
            self._check_keep_alive()

    def _check_keep_alive(self) -> None:
        """Close after one and a half keep-alive times without a packet [MQTT-3.1.2-24]."""
        now = self._loop.time()
        if self._rest is not None or (self.backpressure is not None and self.backpressure.paused):
            self.heard_at = now  # the client is not silent: the broker does not read
        due = self.heard_at + 1.5 * self.keep_alive
        if now >= due:
            self.stats.keep_alive_timeouts += 1
            self.abort("keep-alive", ReasonCode.KEEP_ALIVE_TIMEOUT)
        else:
            self._deadline = self._broker.deadlines.at(due, self)

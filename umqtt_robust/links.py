"""Makes links, keeps them, makes new ones. Everything happens in tick(), which never waits."""

from ._platform import const, ticks_diff
from .base_errors import LinkLost, MQTTError
from .parts import load
from .session import Session
from .states import CLOSED, UP

_NEVER = const(0x1FFFFFFF)
_LONGEST = const(128000)  # ms between two attempts
_STABLE = const(10000)  # ms: a link that lasted this long was good
_BRIEF = const(3000)  # ms: a link that ended this soon after CONNACK was thrown off


class Links(Session):
    """The part of Client that has to do with transports and time."""

    reads = 8  # receive buffers that one tick may take

    def poll(self, ms):
        """Waits up to ms, but no longer than tick() allows, for something to arrive; then calls tick().

        Raises MQTTError inside a handler: nothing arrives while it runs, so it would wait for ever.
        """
        if self._busy:
            raise MQTTError("poll() inside a handler")
        left = min(ms, self._wait - ticks_diff(self.ticks() & 0x3FFFFFFF, self.now))
        if left > 0 and not self._broken:
            if self.transport:
                try:
                    self.transport.wait(left, self.waits())
                except OSError as error:
                    self._broken = error
            else:
                from time import sleep

                sleep(left / 1000)
        return self.tick()

    def waits(self):
        """True while the client waits for `socket` to take bytes, or to connect: what a selector has to know."""
        writing = self.transport and self.state == CLOSED or self.out.waits()
        transport_waits = getattr(self.transport, "waits", None)  # WebSocket may have to read before it can write
        return transport_waits(writing) if transport_waits else writing

    def tick(self):
        """Does what is to be done now and never waits. Returns ms after which it must be called again at the latest.

        Raises nothing for the network: what goes wrong there goes to on_disconnect and on_error.
        """
        if self._busy:  # called by a handler
            return 0
        self._busy = True
        self.advance()
        wait = _NEVER
        try:
            for timer in self.timers:
                wait = min(wait, timer())
            if self._slept:
                self._slept = False
                if self._closing_at is not None:
                    self._closing_at = self.now
                if self.transport:
                    raise LinkLost("slept for days")
            self._wait = self._tick()
        except BaseException as error:  # of a callback too: the link is out of step with what was read from it
            if self.state == UP and not isinstance(error, OSError):
                try:
                    self.out.flush()  # what is owed to the broker leaves first
                except OSError:
                    pass
            self._lost(error)
            if not isinstance(error, (OSError, MQTTError, MemoryError)):
                raise
        finally:
            self._busy = False
        if self._closing_at is not None:
            wait = min(wait, max(0, ticks_diff(self._closing_at, self.now))) if self.outbox.queue else 0
        self._wait = min(self._wait, wait)
        return self._wait

    def advance(self):
        """Sets `now`."""
        now = self.ticks() & 0x3FFFFFFF
        if ticks_diff(now, self.now) < 0:  # at least 2**29 ms
            self._slept = True
        self.now = self.out.now = now

    def _tick(self):
        if self._closing_at is not None:
            if not self.outbox.queue or ticks_diff(self._closing_at, self.now) <= 0:
                self._closing_at = None
                if self.connected:
                    self.say_goodbye()
                self._drop()
                self.closed = True
        if self.closed:
            return _NEVER
        if not self.transport:
            elapsed = ticks_diff(self.now, self._since)
            if 0 <= elapsed < self._until:  # below 0: days ago
                return self._until - elapsed
            factory, arguments = self.servers[self._server][:2]
            self._begin(self.connect_timeout)
            self.transport = factory(*arguments)
        if self.state == CLOSED:
            ready = self.transport.ready()
            self.socket = self.transport.socket  # another one at the next address of a name
            if ready:
                self._begin(self.connect_timeout)
                self.open(self.transport.write, self.connect_packet())
        if self.state != CLOSED:
            self._read()
        wait = self.work()
        if not self.connected:
            wait = self._until - ticks_diff(self.now, self._since)
            if not 0 < wait <= self._until:
                raise LinkLost("connect_timeout")
        return wait

    def connect_packet(self):
        """CONNECT after its fixed header, as the next link sends it."""
        return self.purge or self.connect_as_usual

    def _begin(self, until):
        # What begins now must be over, or done, in so many ms.
        self._since = self.now
        self._until = self._wait = until

    def _read(self):
        buf = self._rx
        end = self._rx_end
        for _ in range(self.reads):
            space = len(buf) - end
            n = self.transport.read(buf, end) if space else None
            if n == 0:
                raise LinkLost("closed by the broker")
            end += n or 0
            if not end:
                return
            used = self.receive(buf, end)
            if self.transport is None:  # a callback closed the link
                return
            end -= used
            if used and end:
                buf[:end] = buf[used : used + end]
            self._rx_end = end
            if not n or n < space:
                return

    def connected_as(self, session_present, return_code):
        """CONNACK has come."""
        if return_code:
            load("refused").connection(self, return_code)
        accepted = getattr(self.transport, "accepted", None)
        if accepted:
            accepted()
        name = self.servers[self._server][2]
        if self.purge:
            self.part("resume").purged(name)
        self.resume((session_present or self.assume_present) and self.part("resume").check(name))
        self.belong_to(self.taken_over or name, False)
        self.connected = True
        self._begin(0)
        if self.on_connect:
            self.on_connect(bool(session_present))

    def _lost(self, error):
        connected = self.connected
        lasted = ticks_diff(self.now, self._since)
        again = self.again
        self.again = None
        self._drop()
        if connected:
            self.reconnects += 1
            if not 0 <= lasted < _STABLE:
                self.limit = self._brief = 0
            self._brief = self._brief + 1 if lasted < _BRIEF else 0
            if self._brief == 3:
                self._brief = 0
                self.report(LinkLost("is this client id in use elsewhere?"))
        elif again is not True:
            self.tried += 1
            self.purge = None  # resume.py will ask for it again, where it is needed
            self._server = (self._server + 1) % len(self.servers)
            if self.tried < len(self.servers):
                again = True  # every server of the list is tried before the wait
        if again is True:
            again = 0
        else:
            self.tried = 0
            if again is None:
                again = self._back_off()
        self._begin(again)
        if not connected:
            self.report(error)
        elif self.on_disconnect:
            self.on_disconnect(error)

    def _back_off(self):
        # Full jitter: evenly between 0 and a limit, which is 1 s twice and then doubles. Even the first wait is random,
        # so that a restarted broker does not meet its whole fleet at once.
        limit = self.limit
        self.limit = min(limit * 2, _LONGEST) if limit else 1000
        return self.random((limit or 1000) + 1)

    def _drop(self):
        self.close()
        self.connected = False
        self._rx_end = 0
        transport = self.transport
        self.transport = self.socket = None
        if transport:
            transport.close()

    def say_goodbye(self):
        """Sends DISCONNECT, if the link takes it now."""
        try:
            self.out.put(0xE0, b"")
            self.out.flush()
        except OSError as error:
            self.report(error)

    def report(self, error):
        """Tells the program."""
        if self.on_error:
            self.on_error(error)

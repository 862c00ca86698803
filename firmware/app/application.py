"""The main loop, in which the parts of the application do their work."""

from gc import collect

from app.modules import once
from umqtt_robust.errors import StoreError

# The loop serves Wi-Fi and pending replies at least this often, whatever the interval of the readings.
_LONGEST_WAIT_MS = 1000
_WIFI_POLL_MS = 100
# So many passes in a row may lack memory. A board with a watchdog is restarted earlier: only a whole pass feeds it.
_MOST_SHORT = 50


class Application:
    """The main loop. Each part does a little in its step() and never waits; all waiting is in run().

    console: a poll object on the console's input, where a tool on the cable asks; or None.
    """

    def __init__(self, board, sleep_ms, console=None):
        self.board = board
        self._sleep_ms = sleep_ms
        self._console = console
        self._short = 0  # passes in a row that lacked memory
        self._error = None  # the last such error that was not reported

    def run(self):
        """Run until the store fails; return why (str). Any exception is a bug, never the state of the network."""
        board = self.board
        try:
            while True:
                wait_ms = self._pass()
                if self._console:
                    for _ in self._console.ipoll(0):
                        self._console = once("attend", "attend", board, self._console)
                        break
                if board.wifi.connected or board.client.connected:
                    board.client.poll(wait_ms)
                else:
                    # Without a network, attempts to connect would only lengthen the client's pauses between them.
                    self._sleep_ms(min(wait_ms, _WIFI_POLL_MS))
        except StoreError as error:
            return str(error)

    def _pass(self):
        # As step(). A part that finds no memory, in a full heap with a full outbox, does its work in the next pass.
        try:
            if self._error:
                error, self._error = self._error, None
                self.board.log.failed(error)
            wait_ms = self.step()
            self._short = 0
            return wait_ms
        except MemoryError as error:
            self._error = error
            self._short += 1
            if self._short > _MOST_SHORT:
                raise
        collect()
        return _WIFI_POLL_MS

    def step(self):
        """Do one pass; return the milliseconds until the next one is due."""
        board = self.board
        if board.loop_timer:
            board.loop_timer.start()
        for part in (board.gaps, board.health):
            if part.error:
                board.log.failed(RuntimeError(part.error))
        board.wifi.step(board.clock.uptime_ms())
        board.status.step(board.client)
        board.log.step()
        if board.crash_report and board.crash_report.step(board.client):
            board.crash_report = None
        board.commands.step()
        if board.gaps.aside:
            topics = board.gaps.aside
            board.gaps.aside = []
            once("aside", "handle", board, topics)
        client = board.client
        if board.unreported and client.connected and client.pending <= client.outbox.store.slots // 2:
            once("reported", "report", board)
        board.gaps.step(client, client.outbox.store.slots)
        wait_ms = _LONGEST_WAIT_MS
        for part in (board.update, board.ntp, board.telemetry, board.discovery, board.sleeper, board.trial):
            if part:
                wanted = part.step()
                if wanted is not None and wanted < wait_ms:
                    wait_ms = wanted
        if not board.room_told and board.telemetry and board.telemetry.seq:
            board.room_told = True  # also if it cannot be computed
            once("room", "tell", board)
        if board.restart.asked:
            from app.restart import step

            step(board)
        board.health.step()
        if board.loop_timer:
            board.loop_timer.stop()
        return wait_ms

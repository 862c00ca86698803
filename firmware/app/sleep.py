"""Deep sleep between readings, for a board on a battery: wake, measure, connect, deliver, announce it, sleep.

A wake is not a boot: the RTC's memory holds boot id, seq, uptime and time, with a checksum, while the board sleeps. An
rp2, whose RTC has no memory, writes them to a file when its sleep has ended, just before the reset. They are deleted
at the wake, so that a crash after it cannot use a seq twice. If they are lost (a power cut), the wake is a normal boot.
A reading that finds no network stays in flash and is sent with the next. The retained status says sleeping before the
link is closed, and the will is not published. A board that does not know the time stays awake some seconds longer for
it: earlier readings of the same boot get their time from the later ones, by their uptime.

Commands wait in the board's session at the broker and are received at each wake; work that takes longer (an
update, pause) keeps the board awake.
"""

import os
import sys
import time
from binascii import crc32
from struct import calcsize, pack, unpack

import startup

# Magic, boot count, random bits, seq, uptime in ms, Unix ms at boot (-1: not known).
_FORMAT = "<4sI8sIqq"
_MAGIC = b"umq1"
_LONGEST_AWAKE_MS = 30_000
# Time for messages that the broker may still send after it has everything of ours.
_QUIET_MS = 300
_CLOSE_MS = 1_000
# How long after its reading a board waits for the time: for two requests.
_FOR_THE_TIME_MS = 10_500
# Also in boot_choice.py.
_FILE = "/state/wake"
# Half of the shortest watchdog that the settings allow.
_LIGHT_SLEEP_MS = 500


class Wake:
    """What a sleep keeps: random_bits of the boot id; seq of the next reading; uptime_ms; unix_ms_at_boot or None."""

    def __init__(self, random_bits, seq, uptime_ms, unix_ms_at_boot):
        self.random_bits = random_bits
        self.seq = seq
        self.uptime_ms = uptime_ms
        self.unix_ms_at_boot = unix_ms_at_boot


class Sleeper:
    """The control of deep sleep. board: app.board.Board with all its parts; wake: what woken() returned."""

    def __init__(self, board, wake=None):
        self._board = board
        self._since = board.clock.uptime_ms()
        if wake:
            board.clock.resume(wake.uptime_ms + self._since, wake.unix_ms_at_boot)
            self._since = board.clock.uptime_ms()
            board.telemetry.resume()
            board.telemetry.seq = wake.seq
            # The retained status keeps saying sleeping during these few seconds.
            board.status.keep()
        self._first = board.telemetry.seq
        # One reading for each wake. If something keeps the board awake, the next one comes as if it had slept.
        board.telemetry.interval_ms = board.settings["sleep_s"] * 1000 + _LONGEST_AWAKE_MS + _CLOSE_MS
        self._received = -1
        self._quiet_since = 0
        self._said = 0
        self._closing_at = None

    def step(self):
        """Advance towards sleep; return the ms to wait, or None. The last pass of the loop never returns."""
        board = self._board
        client = board.client
        now = board.clock.uptime_ms()
        if self._closing_at is not None:
            if client.closed or now - self._closing_at > _CLOSE_MS:
                self._sleep()
            client.disconnect()
            return 10
        if board.telemetry.seq == self._first or self._must_stay():
            self._since = now
            return None
        if now - self._since > _LONGEST_AWAKE_MS:
            self._close(now)
        elif self._is_drained(now):
            if not self._said:
                self._said = board.status.say(client, False, "sleeping")
            else:
                self._close(now)
        return 50

    def _must_stay(self):
        board = self._board
        updating = board.update and board.update.busy
        on_trial = board.boots.on_trial or board.trial
        return updating or board.telemetry.paused or on_trial or board.restart.asked

    def _is_drained(self, now):
        # True if everything of ours is acknowledged and nothing has arrived for a while.
        client = self._board.client
        inbound = client.outbox.store.inbound
        open_ = not client.connected or not client.subscribed or client.pending or self._board.commands.busy
        open_ = open_ or self._board.telemetry.waits()
        for_the_time = self._board.ntp and self._board.clock.unix_ms() is None
        open_ = open_ or for_the_time and now - self._since < _FOR_THE_TIME_MS
        if open_ or client.received != self._received or inbound and inbound.ids():
            self._received = client.received
            self._quiet_since = now
            return False
        return self._said or now - self._quiet_since >= _QUIET_MS

    def _close(self, now):
        self._closing_at = now
        self._board.client.disconnect()

    def _sleep(self):
        board = self._board
        sleep_ms = board.settings["sleep_s"] * 1000
        board.log.step(last=True)
        board.wifi.off()
        try:
            # Sleep is intended and not a failure, even if no network could confirm the boot.
            board.boots.mark(startup.INTERRUPTED)
        except OSError:
            pass  # at worst it counts as a failure
        files = board.telemetry.waits() and board.telemetry.files
        if files and files[3]:
            # Otherwise a slow link would carry the same readings at each wake.
            try:
                name = "%s/%d" % (files[0], files[1])
                os.rename(name, "%s-%d" % (name, files[3]))  # overflow.find() reads it
            except OSError:
                pass  # they are sent twice
        uptime_ms, unix_ms_at_boot = board.clock.state()
        wake = Wake(board.identity.random_bits, board.telemetry.seq, uptime_ms + sleep_ms, unix_ms_at_boot)
        _deepsleep(sleep_ms, lambda: remember(board.identity.boot_count, wake))


def remember(count, wake):
    """Store what the next wake needs. If it cannot be written, the next wake is a boot."""
    unix_ms = -1 if wake.unix_ms_at_boot is None else wake.unix_ms_at_boot
    data = pack(_FORMAT, _MAGIC, count, wake.random_bits, wake.seq, wake.uptime_ms, unix_ms)
    _memory(data + pack("<I", crc32(data) & 0xFFFFFFFF))


def woken(count):
    """Return the Wake of boot `count` and erase it from where it was kept; None if it is not there."""
    data = _memory()
    if not data:
        return None
    _memory(b"")
    size = calcsize(_FORMAT)
    if len(data) != size + 4 or unpack("<I", data[size:])[0] != crc32(data[:size]) & 0xFFFFFFFF:
        return None
    magic, boot, random_bits, seq, uptime_ms, unix_ms = unpack(_FORMAT, data[:size])
    if magic != _MAGIC or boot != count:
        return None
    return Wake(random_bits, seq, uptime_ms, None if unix_ms < 0 else unix_ms)


def _memory(data=None):
    # Returns what is kept; with data, keeps that, b"" for nothing.
    try:
        from machine import RTC

        memory = RTC().memory
    except (ImportError, AttributeError):
        memory = _file
    return memory() if data is None else memory(data)


def _file(data=None):
    try:
        if data:
            with open(_FILE, "wb") as file:
                file.write(data)
        elif data is None:
            with open(_FILE, "rb") as file:
                return file.read()
        else:
            os.remove(_FILE)
    except OSError:
        pass  # the wake is a boot
    return b""


def _deepsleep(ms, keep):
    # keep() stores what the wake needs.
    if sys.platform == "rp2":
        from machine import reset

        _sleep_lightly(ms)
        keep()
        reset()
    else:
        from machine import deepsleep

        keep()
        deepsleep(ms)


def _sleep_lightly(ms):
    # rp2's own deepsleep() sleeps lightly and resets. This does the same, but feeds the watchdog: a watchdog reset in
    # a light sleep locks up an RP2040 until its power is cut (up to MicroPython 1.28). It also has no limit of
    # 4,294 s. Any interrupt ends a light sleep early.
    from machine import lightsleep

    slept = 0
    before = time.ticks_ms()
    while slept < ms:
        if startup.watchdog:
            startup.watchdog.feed()
        lightsleep(min(ms - slept, _LIGHT_SLEEP_MS))
        now = time.ticks_ms()
        slept += time.ticks_diff(now, before)
        before = now

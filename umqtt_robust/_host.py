"""CPython's side of _platform.py: not installed on boards."""

import io
import os
import select
import socket
import ssl
import time


def const(value):
    return value


def ticks_ms():
    return (time.monotonic_ns() // 1000000) & 0x3FFFFFFF


class Socket(socket.socket):
    """A socket with MicroPython's stream methods: None instead of an exception when nothing can be done now."""

    def readinto(self, buf):
        try:
            return self.recv_into(buf)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def write(self, buf, offset, size):
        try:
            return self.send(memoryview(buf)[offset : offset + size])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None


def poll():
    """select.poll with MicroPython's ipoll()."""
    poller = _Poll()
    return poller


class _Poll:
    def __init__(self):
        self._poll = select.poll()
        self.register = self._poll.register
        self.modify = self._poll.modify
        self.ipoll = self._poll.poll


def mkdir_durably(name):
    """os.mkdir() that is on the disk when it returns."""
    os.mkdir(name)
    _sync_folder(os.path.dirname(name))


def _sync_folder(name):
    descriptor = os.open(name or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class open_durably(io.FileIO):
    """open(name, mode) of a file that is on the disk, with its name, once flush() has returned."""

    def __init__(self, name, mode):
        self._new = mode == "wb" and not os.path.exists(name)
        io.FileIO.__init__(self, name, mode)

    def flush(self):
        if self.writable():
            os.fsync(self.fileno())
        if self._new:
            _sync_folder(os.path.dirname(self.name))
            self._new = False

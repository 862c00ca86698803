"""A network with a router of our own: real TCP of the kernel, over packets that are lost, late, queued or forgotten.

    with Network(loss=0.3, delay_ms=200, seed=7) as network:
        with network.inside("server"):
            ... start a server that listens on network.server ...
        with network.inside("device"):
            ... make connections to it ...
        network.change(loss=0.0, rate=1000)

Two network namespaces, device and server, each have a TUN device whose other end is a thread here. A socket, a thread
or a process belongs to the namespace in which it was made. Nothing of it is visible outside, and nothing is left
behind.

It needs Linux, the right to make network namespaces (root), /dev/net/tun and `ip` of iproute2. Where these are
missing, umqtt_testkit.proxy plays what a TCP relay can: cuts, delays and silence, but no loss, no small MTU, no full
queue and no NAT that forgets.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from random import Random
from typing import Literal, Self

Side = Literal["device", "server"]

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_TUNSETIFF, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000
_TCP, _SYN = 6, 2
_LONGEST_WAIT_S = 0.1


class NetworkMissing(Exception):
    """This machine cannot make such a network; str() says what is missing."""


@dataclass
class Faults:
    """The faults of a Network. They hold for both directions.

    loss: chance of a packet to be lost, 0 to 1; 1 is a black hole. delay_ms: of a round trip. reorder: chance of a
    packet to overtake those before it, 0 to 1; it needs delay_ms. rate: bytes a second; 0: no limit. queue: bytes that
    wait for the rate; what does not fit is dropped. mtu_hole: larger packets vanish without a word; 0: none.
    forget_after: seconds of silence after which the NAT forgets a connection; 0: never.
    """

    loss: float = 0.0
    delay_ms: float = 0.0
    reorder: float = 0.0
    rate: float = 0.0
    queue: int = 1 << 20
    mtu_hole: int = 0
    forget_after: float = 0.0


@dataclass
class Counts:
    """What a router has done with packets."""

    passed: int = 0
    lost: int = 0
    queue_full: int = 0
    too_large: int = 0
    forgotten: int = 0


class Network:
    """Two hosts with a router between them: `device` and `server` are their addresses. Arguments: those of Faults.

    seed: of the random faults. counts: Counts. Raises NetworkMissing.
    """

    device, server = "10.77.0.1", "10.77.0.2"

    def __init__(self, *, seed: int = 0, **faults: float) -> None:
        self.faults = Faults()
        self.counts = Counts()
        self.change(**faults)
        self._random = Random(seed)
        self._free_at = {"device": 0.0, "server": 0.0}  # when the line in that direction is free
        self._due: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._flows: dict[tuple[bytes, bytes], float] = {}
        if shutil.which("ip") is None:
            raise NetworkMissing("there is no `ip`: apt install iproute2")
        self._spaces: dict[str, int] = {}
        self._tuns: dict[str, int] = {}
        try:
            for side, address in (("device", self.device), ("server", self.server)):
                self._make(side, address)
        except (OSError, subprocess.CalledProcessError) as error:
            self._close_files()
            raise NetworkMissing(f"no network namespaces with a TUN device here: {error}") from error
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._route, name="router", daemon=True)
        self._thread.start()

    def change(self, **faults: float) -> None:
        """Change some faults; the others stay. Raises TypeError for a name that is none of Faults."""
        unknown = faults.keys() - {one.name for one in fields(Faults)}
        if unknown:
            raise TypeError(f"{', '.join(unknown)}: there are {', '.join(one.name for one in fields(Faults))}")
        for name, value in faults.items():
            setattr(self.faults, name, value)

    @contextmanager
    def inside(self, side: Side) -> Iterator[None]:
        """Put the calling thread into a namespace: its new sockets, threads and processes belong there."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(self._spaces[side])
            try:
                yield
            finally:
                _enter(before)
        finally:
            os.close(before)

    def close(self) -> None:
        """Stop the router; the namespaces end with the last socket in them."""
        if self._thread.is_alive():
            os.close(self._stop)
            self._thread.join()
            os.close(self._stopped)
            self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_files(self) -> None:
        for file in (*self._spaces.values(), *self._tuns.values()):
            os.close(file)

    def _make(self, side: str, address: str) -> None:
        failure: list[BaseException] = []

        def make() -> None:
            # In a thread of its own, which takes its namespace along when it ends.
            try:
                _call("unshare", _NEW_NETWORK)
                self._spaces[side] = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
                self._tuns[side] = tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", b"tun0", _TUN | _NO_HEADER))
                for command in ("link set lo up", f"addr add {address}/24 dev tun0", "link set tun0 up"):
                    subprocess.run(["ip", *command.split()], check=True, capture_output=True)
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                failure.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    # The router's thread

    def _route(self) -> None:
        sides = {self._tuns["device"]: "server", self._tuns["server"]: "device"}
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, tun, packet = heapq.heappop(self._due)
                try:
                    os.write(tun, packet)
                    self.counts.passed += 1
                except BlockingIOError:
                    self.counts.queue_full += 1
            wait = min(_LONGEST_WAIT_S, self._due[0][0] - now) if self._due else _LONGEST_WAIT_S
            ready, _, _ = select.select([*sides, self._stopped], [], [], wait)
            if self._stopped in ready:
                return
            for tun in ready:
                self._take(os.read(tun, 65536), sides[tun])

    def _take(self, packet: bytes, to: str) -> None:
        faults, now = self.faults, time.monotonic()
        if packet[0] >> 4 != 4:  # what IPv6 says of itself at the start
            return
        if self._random.random() < faults.loss:
            self.counts.lost += 1
        elif faults.mtu_hole and len(packet) > faults.mtu_hole:
            self.counts.too_large += 1
        elif not self._known(packet, to, now):
            self.counts.forgotten += 1
        else:
            at = now
            if faults.rate:
                free_at = max(now, self._free_at[to])
                if (free_at - now) * faults.rate + len(packet) > faults.queue:
                    self.counts.queue_full += 1
                    return
                at = self._free_at[to] = free_at + len(packet) / faults.rate
            if self._random.random() >= faults.reorder:
                at += faults.delay_ms / 2000
            self._number += 1
            heapq.heappush(self._due, (at, self._number, self._tuns[to], packet))

    def _known(self, packet: bytes, to: str, now: float) -> bool:
        # A NAT lets a TCP connection begin at the device, and forgets it when nothing passes for a while.
        if packet[9] != _TCP:
            return True
        start = (packet[0] & 15) * 4
        ports = packet[start : start + 2], packet[start + 2 : start + 4]
        flow = ports if to == "server" else (ports[1], ports[0])
        begins = to == "server" and packet[start + 13] & _SYN
        last = self._flows.get(flow)
        forget_after = self.faults.forget_after
        if not begins and forget_after and (last is None or now - last > forget_after):
            return False
        self._flows[flow] = now
        return True


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _enter(space: int) -> None:
    _call("setns", space, _NEW_NETWORK)

"""What wait_msg() and publish() of the drop-in call for each message fits MicroPython's stack: no call is allocated.

A call that is freed low in the heap makes every later allocation search through the garbage above it: with a heap of
1 MB, receiving then takes three times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from umqtt_kit.bundle import library_folder
from umqtt_kit.mpy_cross import compile_file

# VM_MAX_STATE_ON_STACK in py/objfun.c: a call that needs more words is allocated. Each level of try takes three.
_MOST_WORDS = 11
_WORDS_OF_TRY = 3
# Not here: packets(), a generator, whose memory stays. What they call is freed before anything low is.
_FOR_EACH_MESSAGE = {
    "simple": {
        *("wait_msg", "check_msg", "_receive", "_next", "_hand_over", "_hand_over_one", "before_reading"),
        *("publish", "_flush"),
    },
    "inbox": {"before_reading", "take", "release"},
    "session": {"put"},
    "packets": {"flush"},
}


class _Mpy:
    """Reads a .mpy file of bytecode: py/persistentcode.c, py/bc.h."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 4
        names, objects = self._number(), self._number()
        self._names = [self._name() for _ in range(names)]
        for _ in range(objects):
            self._skip_object()

    def words(self) -> Iterator[tuple[str, int]]:
        """Yield each function with the words that its call needs."""
        size = self._number()
        end = self._at + (size >> 3)
        yield self._function()
        self._at = end
        if size & 4:
            for _ in range(self._number()):
                yield from self.words()

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _number(self) -> int:
        value = 0
        while True:
            byte = self._byte()
            value = value << 7 | byte & 127
            if byte < 128:
                return value

    def _name(self) -> str:
        size = self._number()
        if size & 1:
            return ""  # a name in ROM
        start = self._at
        self._at += size // 2 + 1
        return self._content[start : self._at - 1].decode()

    def _skip_object(self) -> None:
        kind = self._byte()
        if kind > 4:  # not None, False, True or Ellipsis
            size = self._number()
            if kind == 10:  # a tuple
                for _ in range(size):
                    self._skip_object()
            else:
                self._at += size + (kind in (5, 6))  # str and bytes end with a zero

    def _function(self) -> tuple[str, int]:
        byte = self._byte()
        state, levels, n = byte >> 3 & 15, byte >> 2 & 1, 0
        while byte & 128:
            byte = self._byte()
            state |= (byte & 0x30) << 2 * n
            levels |= (byte & 2) << n
            n += 1
        while self._byte() & 128:  # the sizes of what follows
            pass
        return self._names[self._number()], state + 1 + _WORDS_OF_TRY * levels


@pytest.mark.parametrize("module", _FOR_EACH_MESSAGE)
def test_no_call_for_a_message_is_allocated(module: str, tmp_path: Path) -> None:
    """Planted: another local variable in _hand_over_one() or put(); a `try` in _receive() or publish()."""
    target = tmp_path / "x.mpy"
    compile_file(library_folder() / f"{module}.py", target)
    words = dict(_Mpy(target.read_bytes()).words())
    large = {name: words[name] for name in _FOR_EACH_MESSAGE[module] if words[name] > _MOST_WORDS}
    assert not large

"""The code of the setup portal: made by `umqtt provision --portal`, and after each use by the board.

The tools on a computer load this file by its path: it needs nothing else of the firmware.
"""

import os

# No letter and digit that look alike.
_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_GROUPS = 3
_GROUP_SIZE = 4
_MOST_WRONG = 10
_LONGEST_PAUSE_MS = 60_000


def new_code():
    """A code of 60 random bits as text, like K7QF-M2XA-9TRW: it is also the password of the portal's network."""
    letters = [_ALPHABET[byte & 31] for byte in os.urandom(_GROUPS * _GROUP_SIZE)]
    return "-".join(["".join(letters[i : i + _GROUP_SIZE]) for i in range(0, len(letters), _GROUP_SIZE)])


def is_code(code):
    """Whether code is what new_code() makes."""
    if not isinstance(code, str) or len(code) != _GROUPS * (_GROUP_SIZE + 1) - 1:
        return False
    letters = _letters(code)
    return len(letters) == _GROUPS * _GROUP_SIZE and not letters.strip(_ALPHABET)


def _letters(text):
    return text.replace("-", "").replace(" ", "").upper()


class Lock:
    """Opens with the code; each wrong one makes it wait twice as long. code: str.

    wrong: how many wrong codes were given; spent: that were as many as it takes.
    """

    def __init__(self, code):
        self._code = _letters(code)
        self._closed_until = 0
        self.wrong = 0
        self.spent = False

    def problem(self, given, now_ms):
        """None where given is the code, or a sentence for the page. While it waits, nothing is looked at."""
        if now_ms < self._closed_until:
            return "Wait %d s before the next code." % ((self._closed_until - now_ms + 999) // 1000)
        if _letters(given) == self._code:
            return None
        self.wrong += 1
        self.spent = self.wrong >= _MOST_WRONG
        pause_ms = min(1000 << self.wrong, _LONGEST_PAUSE_MS)
        self._closed_until = now_ms + pause_ms
        return "The code is wrong (%d of %d). Wait %d s." % (self.wrong, _MOST_WRONG, pause_ms // 1000)

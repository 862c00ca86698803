"""The code of the setup portal: made by `umqtt provision --portal`, and after each use by the board.

The tools on a computer load this file by its path, so it needs nothing else of the firmware.
"""

import os

# Without letters and digits that look alike.
_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_GROUPS = 3
_GROUP_SIZE = 4
_MOST_WRONG = 10
_LONGEST_PAUSE_MS = 60_000


def new_code():
    """Return a code of 60 random bits, like K7QF-M2XA-9TRW. It is also the password of the portal's network."""
    letters = [_ALPHABET[byte & 31] for byte in os.urandom(_GROUPS * _GROUP_SIZE)]
    return "-".join(["".join(letters[i : i + _GROUP_SIZE]) for i in range(0, len(letters), _GROUP_SIZE)])


def _letters(text):
    return text.replace("-", "").replace(" ", "").upper()


class Lock:
    """A check of codes that waits twice as long after each wrong one. code: str, the right one.

    wrong: number of wrong codes given; spent: True once these are as many as allowed.
    """

    def __init__(self, code):
        self._code = _letters(code)
        self._closed_until = 0
        self.wrong = 0
        self.spent = False

    def problem(self, given, now_ms):
        """Return None if given is the code, else a sentence for the page. During the wait, no code is checked."""
        if now_ms < self._closed_until:
            return "Wait %d s before the next code." % ((self._closed_until - now_ms + 999) // 1000)
        if _letters(given) == self._code:
            return None
        self.wrong += 1
        self.spent = self.wrong >= _MOST_WRONG
        pause_ms = min(1000 << self.wrong, _LONGEST_PAUSE_MS)
        self._closed_until = now_ms + pause_ms
        return "The code is wrong (%d of %d). Wait %d s." % (self.wrong, _MOST_WRONG, pause_ms // 1000)

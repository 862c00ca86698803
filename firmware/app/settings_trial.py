"""Settings and secrets that were changed over the air are on trial until a board that uses them has reached its broker.

settings.json.was beside settings.json holds the settings before, and secrets.json.was the secrets before a rotation:
settings_files.py keeps them there, and where one of them lies at a boot, this is loaded. They are also given back by
start.py where a board came no further than safe mode, and at once where the broker refuses the board.
"""

import os

from postmortem import keep_traceback

from app.health import CONFIRM_MS, TRIAL_MS
from app.settings_files import FILE, SECRETS, certificates, exchange, read, read_before

# In this order they are given back: a broker of the settings may need what is in the secrets.
WAS = (FILE + ".was", SECRETS + ".was")


class SettingsGivenBack(Exception):
    """Published after the next boot, as what ended this one."""


class Trial:
    """board: app.board.Board. step() is to be called in every pass of the loop."""

    def __init__(self, board):
        self._board = board
        self._begun = board.clock.uptime_ms()

    def step(self):
        """Accept the settings that deliver readings for a minute of health; give them back after TRIAL_MS without."""
        board = self._board
        health = board.health
        now = board.clock.uptime_ms()
        accepted = health.delivered and now - health.healthy_since >= CONFIRM_MS
        refused = board.log.refused_by_broker and not health.delivered
        if not accepted and not refused and now - self._begun < TRIAL_MS:
            return
        board.trial = None
        try:
            if accepted:
                accept(board.folder)
            elif give_back(board.folder, board.boots.count):
                board.restart()
        except OSError as error:
            # The next boot comes to an end of it.
            board.log.report("warning", "the trial of the settings is not ended: %r" % error)


def on_trial(folder):
    """The names in WAS that are there."""
    return [name for name in WAS if name in os.listdir(folder or "/")]


def accept(folder):
    """What is on trial stays. Raises OSError."""
    stale = certificates(read_before(folder, SECRETS))
    for name in on_trial(folder):
        os.remove(folder + "/" + name)
    _remove(folder, stale)


def give_back(folder, boot):
    """Put the settings and secrets before in place of those on trial, if there are any; returns whether there were.

    Raises OSError. Where the power fails between the two files, the trial of the second goes on at the next boot.
    """
    names = on_trial(folder)
    if not names:
        return False
    text = "what was changed over the air reached no broker: settings and secrets are as before again"
    keep_traceback(SettingsGivenBack(text), boot)
    stale = certificates(read(folder, SECRETS, {}))
    for name in names:
        exchange(folder + "/" + name, folder + "/" + name[:-4])
    _remove(folder, stale)
    return True


def _remove(folder, paths):
    # Those of them that are not in use: what was rotated out should not lie in flash.
    used = certificates(read(folder, SECRETS, {}))
    for path in paths:
        if path not in used:
            try:
                os.remove(folder + path)
            except OSError:
                pass  # it is not there

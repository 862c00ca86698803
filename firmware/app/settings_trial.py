"""Settings that were changed over the air are on trial until a board that runs them has reached its broker.

settings.json.was beside settings.json holds the settings before: settings_files.py keeps them there, and where they lie
at a boot, this is loaded. They are also given back by start.py where a board came no further than safe mode.
"""

import os

from postmortem import keep_traceback

from app.health import CONFIRM_MS, TRIAL_MS
from app.settings_files import FILE, exchange

WAS = FILE + ".was"


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
        if not accepted and now - self._begun < TRIAL_MS:
            return
        board.trial = None
        try:
            if accepted:
                os.remove(board.folder + "/" + WAS)
            elif give_back(board.folder, board.boots.count):
                board.restart()
        except OSError as error:
            # The next boot comes to an end of it.
            board.log.report("warning", "the trial of the settings is not ended: %r" % error)


def give_back(folder, boot):
    """Put the settings before in place of those on trial, all at once, if there are any; returns whether there were.

    Raises OSError.
    """
    try:
        os.stat(folder + "/" + WAS)
    except OSError:
        return False
    keep_traceback(SettingsGivenBack("the settings changed by set reached no broker, and are as before again"), boot)
    exchange(folder + "/" + WAS, folder + "/" + FILE)
    return True

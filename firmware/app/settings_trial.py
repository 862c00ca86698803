"""Keeps changed settings and secrets on trial until a board that uses them has reached its broker.

settings.json.was holds the settings before a change, and secrets.json.was the secrets before a rotation;
settings_files.py writes them, and if one of them exists at a boot, this module is loaded. They are also restored by
start.py if a board gets no further than safe mode, and at once if the broker refuses the board.
"""

import os

from postmortem import keep_traceback

from app.health import CONFIRM_MS, TRIAL_MS
from app.settings_files import FILE, SECRETS, certificates, exchange, read, read_before

# The order in which they are restored: a broker of the settings may need what is in the secrets.
WAS = (FILE + ".was", SECRETS + ".was")


class SettingsGivenBack(Exception):
    """Changed settings were undone. Published after the next boot, as what ended this one."""


class Trial:
    """The trial of what was changed. board: app.board.Board. Call step() in every pass of the loop."""

    def __init__(self, board):
        self._board = board
        self._begun = board.clock.uptime_ms()

    def step(self):
        """Accept settings that deliver readings in a minute of health; undo them after TRIAL_MS, or if refused."""
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
            # The next boot ends the trial.
            board.log.report("warning", "the trial of the settings is not ended: %r" % error)


def on_trial(folder):
    """Return the names in WAS that exist in folder."""
    return [name for name in WAS if name in os.listdir(folder or "/")]


def accept(folder):
    """Keep what is on trial, and end the trial. Raises OSError."""
    stale = certificates(read_before(folder, SECRETS))
    for name in on_trial(folder):
        os.remove(folder + "/" + name)
    _remove(folder, stale)


def give_back(folder, boot):
    """Restore the settings and secrets from before the trial; return True if anything was on trial.

    Raises OSError. If the power fails between the two files, the trial of the second goes on at the next boot.
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
    # Removes those that are not in use: what was rotated out should not stay in flash.
    used = certificates(read(folder, SECRETS, {}))
    for path in paths:
        if path not in used:
            try:
                os.remove(folder + path)
            except OSError:
                pass  # it does not exist

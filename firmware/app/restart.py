"""Restarts the board in an orderly way: announces it, gives the outbox some time to drain, then resets.

Loaded when the board is to restart (board.Restart).
"""

import startup

_SAY_MS = 3_000
_CLOSE_MS = 1_000


def step(board):
    """Do a little in every pass of the loop until the board resets."""
    restart, client = board.restart, board.client
    now = board.clock.uptime_ms()
    if restart.since is None:
        restart.since = now
        try:
            if board.boots.state() != startup.RETRY:
                # An intended restart does not count as a failure.
                board.boots.mark(startup.INTERRUPTED)
        except OSError:
            pass  # it may count as one failure: three in a row are needed
    waited = now - restart.since
    if not restart.said and client.connected:
        restart.said = board.status.say(client, False, "restarting") != 0
    if not client.connected or client.pending == 0 or waited >= _SAY_MS:
        if client.closed or waited >= _SAY_MS + _CLOSE_MS:
            (restart.reset or hardware_reset)()
        client.disconnect()


def hardware_reset():
    """Call machine.reset(), or end the program where there is none."""
    try:
        from machine import reset
    except ImportError:
        raise SystemExit
    reset()

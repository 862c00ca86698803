"""Publishes the settings of this board, retained, next to the topic of the desired ones.

    fleet/{device_id}/reported    {"boot": "17-…", "settings": {"interval_ms": 1000, …}}

They are published after every boot and after each change by a command, once settings were desired of the board.
"""

import json

from umqtt_robust.errors import OutboxFull


def report(board):
    """Publish the settings. If the outbox has no room, board.unreported stays True: call it again later."""
    payload = json.dumps({"boot": board.identity.boot, "settings": board.settings}).encode()
    try:
        board.client.publish(board.identity.topic("reported"), payload, qos=1, retain=True)
    except OutboxFull:
        return
    board.unreported = False

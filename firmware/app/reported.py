"""The settings of this board, retained beside those that are desired of it.

    fleet/{device_id}/reported    {"boot": "17-…", "settings": {"interval_ms": 1000, …}}

After every boot and whenever a command has changed them, on a board of which settings were ever desired.
"""

import json

from umqtt_robust.errors import OutboxFull


def report(board):
    """Publish them; without room in the outbox it is to be called again."""
    payload = json.dumps({"boot": board.identity.boot, "settings": board.settings}).encode()
    try:
        board.client.publish(board.identity.topic("reported"), payload, qos=1, retain=True)
    except OutboxFull:
        return
    board.unreported = False

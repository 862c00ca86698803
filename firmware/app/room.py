"""Computes for how long the flash keeps readings without a broker, and how long it lasts: also for the host's tools.

It also has what overflow.py seldom needs: the free blocks, and the topic of a record.
"""

import os
import sys

# Blocks that overflow.py leaves free, and that an outbox with 64 messages may take.
_NOT_FOR_READINGS = 32
_BLOCK = 4096
_HEAD_BYTES = 6  # of a reading
# Erases for 1000 readings that are acknowledged soon, by the bytes that the flash programs at once: host_tests/flash
# measures them (docs/flash.md). Each block stands 100,000 (the data sheets of the usual flashes).
ERASES_PER_1000 = {32: 91, 256: 125}
ENDURANCE = 100_000
_MS_PER_HOUR = 3_600_000
_HOURS_PER_YEAR = 8766


def free(folder):
    """Return the number of free blocks of flash.

    littlefs counts blocks that files share twice, so on a full flash it says less than 0, without the sign.
    """
    _, _, total, count = os.statvfs(folder)[:4]
    return count if 0 <= count <= total else 0


def room(free_blocks, program_size, reading_bytes, interval_ms, outbox):
    """Return (hours of readings that fit into the flash, years until it is worn out while a broker takes them).

    free_blocks: of the file system, without the outbox's; reading_bytes: what overflow.py keeps of a reading; outbox:
    the setting.
    """
    in_block = _BLOCK // (reading_bytes + _HEAD_BYTES)
    readings = outbox or max(0, free_blocks - _NOT_FOR_READINGS) * in_block
    hours_until_worn = ENDURANCE * free_blocks * 1000 / ERASES_PER_1000[program_size] * interval_ms / _MS_PER_HOUR
    return readings * interval_ms / _MS_PER_HOUR, hours_until_worn / _HOURS_PER_YEAR


def describe(hours, years):
    """Return what room() found, as text."""
    return "room for %.1f hours without a broker; the flash lasts %.1f years" % (hours, years)


def _shortened_bytes(record):
    # Returns about how many bytes overflow.py keeps of a JSON record: a comma for each number, the numbers of the
    # metrics, and 28 for seq, ts and up, which become longer. Those of id and boot are the same in all.
    count = digits = was_number = 0
    metrics = record.find(b'"m":')
    for i in range(len(record)):
        is_number = record[i] in b"+-.0123456789"
        count += is_number > was_number
        digits += is_number and i > metrics
        was_number = is_number
    return count + 28 + digits


def tell(board):
    """Say in log and status for how long the flash keeps the readings of this board."""
    telemetry = board.telemetry
    settings = board.settings
    record = telemetry.encode(board.clock.uptime_ms(), telemetry.metrics)
    reading_bytes = len(record)
    # CBOR has no digits: it is kept whole.
    if settings["encoding"] == "json":
        reading_bytes = _shortened_bytes(record)
    free_blocks = free(board.state_folder)
    program_size = 256 if sys.platform == "rp2" else 32
    hours, years = room(free_blocks, program_size, reading_bytes, telemetry.interval_ms, settings["outbox"])
    board.log.report("info", describe(hours, years))
    board.status.extra.update((("room_h", round(hours, 1)), ("flash_years", round(years, 1))))


def topic_of(own, record):
    """Return the topic of a record, by its device id, as in the outbox. own: the topic of this board's readings."""
    import json

    from app.modules import once

    found = json.loads(record) if record[:1] == b"{" else once("cbor", "ids", record)
    fleet, _, leaf = own.split(b"/")
    return b"%s/%s/%s" % (fleet, found["id"].encode(), leaf)

"""Keeps readings for which the outbox has no room, in flash: days without a broker. Loaded while some wait.

    /state/mqtt/later/N    readings in order, up to one block: length H, CRC-32 I, data. The lowest N is the oldest

The data of a file's first reading is its record. A later record that differs in numbers alone has _SHORT set in its
length, and only those numbers: with commas between all of them, nothing for one that is the same. So a block of flash
holds some 40 readings; the outbox, with a file for each message, puts 2.5 there. A reading is appended and the file is
closed, so littlefs copies the block: a power cut leaves the file with the reading or without it.

Once a reading waits here, the next ones follow it, and the outbox takes them in order (Telemetry). If the flash is
full, the oldest file is dropped, and its readings are noted as gaps. After a restart while a file is handed on, its
readings may be sent twice, with the same boot and seq. A board that sleeps meanwhile calls it N-T: T of its bytes are
done.
"""

import os
from binascii import crc32
from struct import pack, unpack

from app.modules import once
from umqtt_robust.errors import OutboxFull, StoreError

BLOCK = 4096
_EEXIST = 17
_ENOSPC = 28
LEAST_FREE = 16  # blocks of flash, for settings and commands
_SHORT = 0x8000
_HAND_ON = 16
# Places in Telemetry.files.
_FIRST, _END, _TAKEN = 1, 2, 3
_HEAD = "<HI"
_HEAD_BYTES = 6


def find(folder):
    """Return Telemetry.files: [folder, first file, the one after the last, bytes of the first that were handed on]."""
    first = end = taken = 0
    # No list of the names: there may be hundreds, and the heap is never as full as at a boot.
    try:
        for entry in os.ilistdir(folder):
            number, _, at = entry[0].partition("-")
            number = int(number)
            if at:
                taken = int(at)
            first = min(first, number) if end else number
            end = max(end, number + 1)
        if taken:
            os.rename("%s/%d-%d" % (folder, first, taken), "%s/%d" % (folder, first))
    except OSError:
        pass  # there is no such folder yet; or the flash fails, which the next use of it will tell
    return [folder, first, end, taken]


def keep(telemetry, record):
    """Store the record of a reading; if the flash is full, instead of the oldest ones.

    Raises OutboxFull if there is no room at all, and StoreError if the flash fails.
    """
    files = telemetry.files
    while True:
        try:
            data = None
            number = files[_END]
            if files[_FIRST] != number:
                data = _shortened(files, record)
            if data is None or os.stat(_name(files, number - 1))[6] + _HEAD_BYTES + len(data) > BLOCK:
                _prepare_file(telemetry)
                data = record
            else:
                number -= 1
            short = 0 if data is record else _SHORT
            # "wb": an attempt to make the file may have failed before.
            with open(_name(files, number), "wb" if number == files[_END] else "ab") as file:
                file.write(pack(_HEAD, len(data) | short, crc32(data)) + data)
                file.flush()  # on the unix port: fsync
            files[_END] = number + 1
            return
        except OSError as error:
            if error.errno != _ENOSPC:
                raise StoreError("cannot write %s: %s" % (files[0], error))
            if files[_FIRST] == files[_END]:
                raise OutboxFull(0)
            _drop_oldest(telemetry)


def _shortened(files, record):
    # Returns what the last file is to hold of a record; None if its first reading cannot be read.
    with open(_name(files, files[_END] - 1), "rb") as file:
        first = _read(file, 0)[0]
    if first is None:
        return None
    texts, numbers = _split(record)
    first_texts, first_numbers = _split(first)
    if texts != first_texts:
        return record
    return b",".join([b"" if new == old else new for new, old in zip(numbers, first_numbers)])


def _split(record):
    # Returns the parts of a record between its numbers, and the numbers. A record begins and ends with such a part.
    parts = ([], [])
    is_number = begin = 0
    for i in range(len(record)):
        if (record[i] in b"+-.0123456789") != is_number:
            parts[is_number].append(record[begin:i])
            begin = i
            is_number = 1 - is_number
    parts[is_number].append(record[begin:])
    if is_number:  # in CBOR
        parts[0].append(b"")
    return parts


def _read(file, at):
    # Returns (the record at a position, the position after it); (None, 0) if it is damaged.
    file.seek(at)
    head = file.read(_HEAD_BYTES)
    if len(head) == _HEAD_BYTES:
        length, crc = unpack(_HEAD, head)
        data = file.read(length & ~_SHORT)
        if len(data) == length & ~_SHORT and crc32(data) == crc:
            if length & _SHORT:
                texts, old = _split(_read(file, 0)[0])
                numbers = data.split(b",")
                data = b"".join([texts[i] + (numbers[i] or old[i]) for i in range(len(numbers))]) + texts[-1]
            return data, at + _HEAD_BYTES + (length & ~_SHORT)
    return None, 0


def _take(telemetry, use, finish=None):
    # Forgets the oldest reading after use(its record), and after finish() if it is the last one of its file.
    files = telemetry.files
    name = _name(files, files[_FIRST])
    try:
        with open(name, "rb") as file:
            record, then = _read(file, files[_TAKEN])
        size = os.stat(name)[6]
        if record is not None:
            use(record)
        elif size:  # damaged; a power cut before the first reading leaves an empty file
            telemetry.gaps.unreadable += 1
        files[_TAKEN] = then
        if not then or then == size:
            if finish:
                finish()
            os.remove(name)
            files[_FIRST] += 1
            files[_TAKEN] = 0
    except OSError as error:
        raise StoreError("cannot read %s: %s" % (name, error))


def hand_on(telemetry):
    """Publish the oldest readings, in order: not all of them, which might take longer than the watchdog waits."""
    client = telemetry.client
    for _ in range(_HAND_ON):
        # A small `outbox` may have been set since.
        if telemetry.waits() and 2 * client.pending < client.outbox.store.slots:
            _take(telemetry, lambda record: _publish(telemetry, record))


def _publish(telemetry, record):
    topic = telemetry.topic
    if b'"id":"%s"' % topic.split(b"/")[1] not in record:  # of CBOR, or of an earlier device id
        topic = once("room", "topic_of", topic, record)
    telemetry.publish(record, topic)


def _prepare_file(telemetry):
    files = telemetry.files
    if files[_FIRST] == files[_END]:
        try:
            os.mkdir(files[0])
        except OSError as error:
            if error.errno != _EEXIST:
                raise
    elif once("room", "free", files[0]) < LEAST_FREE:
        _drop_oldest(telemetry)


def _drop_oldest(telemetry):
    # Drops the oldest file. Its readings, 160 at most, are noted in one write: as many writes take seconds, which is
    # longer than a watchdog may wait.
    gaps = telemetry.gaps

    def note(record):
        telemetry.dropped += 1
        gaps.on_dropped(0, telemetry.topic, record, 0, False)

    number = telemetry.files[_FIRST]
    while telemetry.files[_FIRST] == number:
        _take(telemetry, note, gaps.write)


def _name(files, number):
    return "%s/%d" % (files[0], number)

"""Records dropped readings: the ranges of their seq, kept in flash until they are announced on the log topic.

    fleet/{device_id}/log   {"level":"warning","text":"3 readings dropped: …","boot":"17-…","dropped_seq":[[17,19]]}

boot is the boot id of the readings, which may be an earlier one. A reading that the full outbox drops is noted in
flash before the outbox deletes it, so a power cut leaves no gap unexplained; a power cut between announcing and
forgetting leads to a second announcement. The note is one small file, written once for each dropped reading, or once
for a whole file of them (overflow.py).
"""

import json
import os

from app.modules import once

# Further gaps of a boot are merged into its last one: announcing too much is better than forgetting some.
_MOST_GAPS = 8
_MOST_BOOTS = 4  # for a further boot, the oldest one is announced and forgotten
_TELEMETRY = b"/telemetry"
_LOG = b"/log"
_QUARANTINED = 5  # of umqtt_robust.policy


class Gaps:
    """The dropped readings. path: their file; boot: this boot's id; report(level, text, fields, always): of a log.

    unreadable: count of damaged messages of unknown content. error: None, or why the note is not in flash.
    """

    def __init__(self, path, boot, report):
        self._path = path
        self._boot = boot
        self._report = report
        self._gaps = {}
        self.unreadable = 0
        self.aside = []  # topics of messages that the client has set aside; see aside.py
        self.error = None
        # Called with the packet id and the topic of each dropped message that is not a reading.
        self.on_other = None
        try:
            with open(path) as file:
                self._gaps = json.load(file)
        except (OSError, ValueError):
            pass  # there were none; or FAT left half a file, and the gaps in it go unexplained

    def on_dropped(self, packet_id, topic, payload, reason, writes=True):
        """Note a dropped message, for the client. It publishes nothing, because it is called inside publish().

        writes: in flash too; without it, write() does that for several messages together.
        """
        if reason == _QUARANTINED:  # it is not lost
            self.aside.append(topic)
            return
        if not topic:
            self.unreadable += 1
            return
        try:
            record = json.loads(payload) if topic.endswith((_TELEMETRY, _LOG)) else {}
        except ValueError:
            record = once("cbor", "ids", payload)
        if "seq" in record and "boot" in record:
            self.add(record["boot"], record["seq"], writes=writes)
            return
        # A dropped announcement: its gaps are noted again.
        for first, last in record.get("dropped_seq", ()):
            self.add(record["boot"], first, last)
        if self.on_other:
            self.on_other(packet_id, topic)

    def add(self, boot, first, last=None, writes=True):
        """Note that the readings from seq `first` to `last` (default: only `first`) were dropped. writes: as above."""
        if boot not in self._gaps and len(self._gaps) == _MOST_BOOTS:
            # The oldest boot has the smallest count before the hyphen. Its note is lost if the outbox has no room now.
            oldest = min(self._gaps, key=lambda name: int(name.partition("-")[0]))
            self._tell(oldest)
            del self._gaps[oldest]
        add_to_gaps(self._gaps.setdefault(boot, []), first, first if last is None else last)
        if writes:
            self.write()

    def step(self, client, room):
        """Announce the gaps of one boot, once connected and while the outbox holds fewer than `room` messages."""
        if self.unreadable and client.connected:
            if self._report("error", "%d stored messages were damaged, and are lost" % self.unreadable):
                self.unreadable = 0
        if not self._gaps or not client.connected or client.pending >= room:
            return
        boot = list(self._gaps)[0]
        if self._tell(boot):
            del self._gaps[boot]
            self.write()

    def _tell(self, boot):
        gaps = self._gaps[boot]
        count = sum([last - first + 1 for first, last in gaps])
        text = "%d readings dropped: the outbox was full, or they expired" % count
        return self._report("warning", text, {"boot": boot, "dropped_seq": gaps}, True)

    def write(self):
        """Write the note into flash. If that fails, `error` says why."""
        try:
            if self._gaps:
                with open(self._path, "w") as file:
                    file.write(json.dumps(self._gaps))
            else:
                os.remove(self._path)
            self.error = None
        except (OSError, MemoryError) as error:
            self.error = "dropped readings are not noted in flash: %r" % error


def add_to_gaps(gaps, first, last):
    """Add the range first to last to gaps, a list of [first, last], and merge it with an adjacent one."""
    for gap in gaps:
        if gap[0] <= last + 1 and first <= gap[1] + 1:
            gap[0] = min(gap[0], first)
            gap[1] = max(gap[1], last)
            return
    if len(gaps) == _MOST_GAPS:
        gaps[-1][0] = min(gaps[-1][0], first)
        gaps[-1][1] = max(gaps[-1][1], last)
    else:
        gaps.append([first, last])

"""The state of gold: what it remembers per boot, per device and per minute, never per reading.

Everything here is a sum, minimum, maximum, first, last or union over the rows of silver and the tables beside it. So
the result does not depend on the order of the rows or their division into updates: it equals the result of a single
pass over all rows.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..durable import read_checked, replace_checked
from ..location import Location
from ..tables.schemas import GOODBYES
from ..tables.table import places
from .clock import AHEAD_US, uptimes
from .columns import NEVER, Columns, Counts, to_bin
from .dedup import SEPARATOR, Seen, boot_keys

MINUTE_US = 60_000_000
HOT_MINUTES = 60
"""Number of newest minutes for which devices and delays are still counted."""
DELAY = 0
SLEEPING = "sleeping"
"""The only one of GOODBYES after which the boot may go on: where the device's memory outlasts its sleep."""
SHOWN = ("mem_free", "rssi", "temp_c", "supply_v")
"""Metrics of the devices table; in the histogram, metric number 1 and up."""
SILVER_COLUMNS = [
    *("device_id", "boot", "seq", "ts", "up_ms", "clock_ok", "received_ts", "metrics", "payload_crc", "collector"),
    "retain",
]

DAY_US = 86_400_000_000
KEPT_US = 30 * DAY_US
"""How long an ended alert stays in gold/alerts, in microseconds; data that only older alerts need is dropped."""
MOST_SILENCES = 20
"""The largest number of silences of a device in gold/alerts; the newest ones are kept."""
MOST_RANGES = 10_000
"""The largest number of ranges of seq that are stored separately for a device, for each of two kinds.

The kinds are announced ranges and ranges that could not be read. If a device has more ranges of a kind, those of each
boot are stored as one, from their first seq to their last.
"""
GAP_US = 7 * DAY_US
"""How long a gap counts as a fault of the device after it was noticed, in microseconds; readings rarely come later."""
BIN_BITS, METRIC_BITS, DEVICE_BITS = 12, 3, 28
BIN_ZERO = 1 << (BIN_BITS - 1)
_FEW_TEXTS = 1000


Part = tuple[int, int, str, int | None]
"""A range of seq that silver lacks: first, last, the state of the gap, since."""
_OLD_GAPS = {"hash": np.uint64, **dict.fromkeys(("device", "missing", "dropped", "open_gaps"), np.int64)}
OLD_GAPS = np.dtype(list(_OLD_GAPS.items()))
"""The sums of a boot's gaps, with the hash of its name and the row of its device; see DEVICES_SCHEMA."""


class Refused(NamedTuple):
    """A summary of the rows of quarantine of one device in one day.

    :ivar first_us: when the first was received, Unix microseconds.
    :ivar last_us: when the last was received, Unix microseconds.
    :ivar last_place: the place of the last in its spool.
    :ivar reason: the reason of the last.
    :ivar total: number of rows.
    """

    first_us: int
    last_us: int
    last_place: int
    reason: str
    total: int

    def joined(self, other: "Refused") -> "Refused":
        """Return the summary of both; the order of the two does not matter."""
        last = max(self[1:4], other[1:4])
        return Refused(min(self.first_us, other.first_us), *last, self.total + other.total)


class State:
    """The state of gold; see the module. Times are in Unix microseconds, and minutes are counted from 1970-01-01.

    :param offline_us: silences longer than this are remembered, because they may be alerts.
    :ivar rules: the rules of alerts, as text, for recounting gold.
    :ivar newest_us: the newest received time of all rows.
    :ivar frozen_before: minutes before this one are settled: they are no longer counted here.
    :ivar late_minutes: settled minutes for which rows came since the last :meth:`freeze`.
    :ivar changed_boots: rows of `boots` that have changed since the owner of the state last cleared this set.
    :ivar goodbyes: when boots that are not in `boots` yet last said goodbye, by (device_id, boot, whether to sleep).
    :ivar archived: hashes of the boots that have left `boots`, in ascending order; see :mod:`gold_archive`.
    :ivar old_gaps: the sums of the gaps of those of these boots that have any.
    :ivar now_us: the time of counting. Later received times are replaced by it, as a collector's clock may be ahead.
    """

    def __init__(self, offline_us: int) -> None:
        self.offline_us = offline_us
        self.rules = ""
        self.now_us = -NEVER
        self.newest_us = NEVER
        self.frozen_before = NEVER
        self.late_minutes: set[int] = set()
        self.changed_boots: set[int] = set()
        self.texts: dict[str, int] = {}
        self._most_texts = _FEW_TEXTS
        status = {"status_us": NEVER, "status_position": NEVER, "online": -1, "status_reason": -1, "status_boot": -1}
        shown = {f"{name}_{what}": fill for name in SHOWN for what, fill in (("us", NEVER), ("seq", NEVER))}
        values = dict.fromkeys(SHOWN, np.nan)
        counts = dict.fromkeys(("duplicates", "quarantined", "announced_ranges", "unread_ranges"), 0)
        # What the boots add that have left: see gold_archive.
        old = {"old_boots": 0, "old_readings": 0, "old_ok": 0, "old_event_us": NEVER}
        self.devices = Columns({"first_us": -NEVER, "last_us": NEVER, **counts, **status, **shown, **values, **old})
        self.boots = Columns(
            {
                "device": 0,
                "first_us": -NEVER,
                "last_us": NEVER,
                "first_seq": -NEVER,
                "collector": -1,
                "began_us": NEVER,
                "readings": 0,
                "ok": 0,
                "ok_ts_us": NEVER,
                "anchor_seq": -NEVER,
                "anchor_us": 0,
                "mem_first_seq": -NEVER,
                "mem_first": np.nan,
                "mem_last_seq": NEVER,
                "mem_last": np.nan,
                "born_us": -NEVER,
                "born_position": -NEVER,
                "cause": -1,
                "reason": -1,
                "fw_us": NEVER,
                "fw_position": NEVER,
                "fw": -1,
                # The newest goodbyes: to sleep, and to end.
                "slept_us": NEVER,
                "ended_us": NEVER,
            }
        )
        self.collectors = Columns({"first_us": -NEVER})
        self.histogram = Counts()
        self.minutes: dict[int, np.ndarray] = {}
        self.minute_devices = np.empty(0, dtype=np.int64)
        self.minute_delays = Counts()
        self.seen = Seen()
        self.gap_since: dict[tuple[int, int], int] = {}
        self.silences: dict[int, list[tuple[int, int]]] = {}
        self.announced: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.unread: dict[tuple[str, str], list[tuple[int, int]]] = {}
        self.refused: dict[tuple[int, int], Refused] = {}
        self.goodbyes: dict[tuple[str, str, bool], int] = {}
        self.archived = np.empty(0, dtype=np.uint64)
        self.old_gaps = np.empty(0, dtype=OLD_GAPS)

    @property
    def last_event_us(self) -> np.ndarray:
        """When the newest reading of each boot was taken by a good clock; else when its last one was received."""
        return np.where(self.boots["ok_ts_us"] != NEVER, self.boots["ok_ts_us"], self.boots["last_us"])

    @property
    def unnumbered(self) -> np.ndarray:
        """Which rows of `boots` are not boots: they count readings that are identified by their place in a spool."""
        return self.boots["first_seq"] < 0

    def freeze(self) -> None:
        """Drop the minutes that are over; if rows still come for one, it is recounted from the tables."""
        self.late_minutes = set()
        bound = self.newest_us // MINUTE_US - HOT_MINUTES
        self.frozen_before = max(self.frozen_before, bound)
        self.minutes = {minute: counts for minute, counts in self.minutes.items() if minute >= bound}
        self.minute_devices = self.minute_devices[self.minute_devices >= bound << DEVICE_BITS]
        self.minute_delays.drop_below(bound << BIN_BITS)

    def forget_old(self) -> None:
        """Drop what only alerts that ended more than KEPT_US ago need, and texts that nothing refers to."""
        oldest = self.newest_us - KEPT_US
        silences = {device: [one for one in some if one[1] > oldest] for device, some in self.silences.items()}
        self.silences = {device: some for device, some in silences.items() if some}
        self.refused = {key: one for key, one in self.refused.items() if key[1] >= oldest // DAY_US}
        self.goodbyes = {key: us for key, us in self.goodbyes.items() if us > oldest}
        if len(self.texts) > self._most_texts:
            self._drop_texts()

    def _drop_texts(self) -> None:
        columns = [self.devices[name] for name in ("status_reason", "status_boot")]
        columns += [self.boots[name] for name in ("cause", "reason", "fw")]
        used = np.unique(np.concatenate(columns))
        used = used[used >= 0]
        new = np.full(len(self.texts) + 1, -1, dtype=np.int64)
        new[used] = np.arange(len(used))
        for column in columns:
            column[:] = new[column]
        texts = list(self.texts)
        self.texts = {texts[code]: number for number, code in enumerate(used.tolist())}
        # Wait until there are twice as many, so that this takes little of an update.
        self._most_texts = max(_FEW_TEXTS, 2 * len(self.texts))

    def take_readings(self, rows: pa.Table) -> None:
        """Count rows of silver: SILVER_COLUMNS."""
        if not rows.num_rows:
            return
        device, boot = self._device_rows(rows["device_id"]), self._boot_rows(rows)
        self.changed_boots.update(np.unique(boot).tolist())
        received, seq = self._received(rows), rows["seq"].to_numpy()
        ok = rows["clock_ok"].to_numpy()
        ts = _us(rows["ts"])
        has_up, up_us = uptimes(rows["up_ms"].combine_chunks())
        boots = self.boots
        boots["device"][boot] = device
        boots.add("readings", boot)
        boots.add("ok", boot, ok)
        boots.lower_to("first_us", boot, received)
        boots.raise_to("last_us", boot, received)
        # The boot began no later than this. Without an uptime, it may have begun at any time before.
        began = np.where(has_up, received - up_us, NEVER)
        head = {"collector": self.collectors.rows(rows["collector"].combine_chunks()), "began_us": began}
        boots.keep_last(boot, {"first_seq": seq}, head, first=True)
        boots.raise_to("ok_ts_us", boot[ok], ts[ok])
        anchor = np.flatnonzero(ok & has_up)
        boots.keep_last(boot[anchor], {"anchor_seq": seq[anchor]}, {"anchor_us": (ts - up_us)[anchor]}, first=True)
        self._take_gaps(rows, boot, seq, received)
        # A retained message may be as old as it likes; the broker sends it, not the device.
        live = ~rows["retain"].fill_null(False).to_numpy()
        self.newest_us = max(self.newest_us, int(received.max()))
        self._heard(device[live], received[live])
        delay_bins = to_bin((_us(rows["received_ts"]) - ts)[ok] / 1000) + BIN_ZERO
        self.histogram.add((device[ok] << METRIC_BITS | DELAY) << BIN_BITS | delay_bins)
        self._take_metrics(rows, device, boot, received, seq)
        minute = received // MINUTE_US
        hot = self._count_minutes(minute, 0, rows["payload_crc"].to_numpy() >> 32)
        pairs = np.unique(minute[hot] << DEVICE_BITS | device[hot])
        self.minute_devices = np.union1d(self.minute_devices, pairs)
        self.minute_delays.add(minute[ok & hot] << BIN_BITS | delay_bins[hot[ok]])

    def placed(self, rows: pa.Table) -> np.ndarray:
        """Return when readings were taken, in Unix microseconds, as far as is known now.

        This is ts if the clock was good; else the time computed from `up` and the boot's anchor, which is the reading
        with the lowest seq that has both a good clock and `up`; else the received time.
        """
        boot, received, ts = self._boot_rows(rows), _us(rows["received_ts"]), _us(rows["ts"])
        has_up, up_us = uptimes(rows["up_ms"].combine_chunks())
        anchored = has_up & (self.boots["anchor_seq"][boot] != -NEVER)
        derived = np.where(anchored, self.boots["anchor_us"][boot] + up_us, 0)
        derived = np.where(anchored & (derived <= received + AHEAD_US), derived, received)
        return np.where(rows["clock_ok"].to_numpy(), ts, derived)

    def take_duplicates(self, rows: pa.Table) -> None:
        """Count rows of the table duplicates."""
        if not rows.num_rows:
            return
        device, received = self._device_rows(rows["device_id"]), self._received(rows)
        self.devices.add("duplicates", device)
        self._heard(device, received)
        self._count_minutes(received // MINUTE_US, 1, rows["payload_crc"].to_numpy() >> 32)

    def take_quarantined(self, rows: pa.Table) -> None:
        """Count rows of the table quarantine."""
        if not rows.num_rows:
            return
        received = self._received(rows)
        self.newest_us = max(self.newest_us, int(received.max()))
        size = pc.call_function("binary_length", [rows["payload"]]).to_numpy()
        # If the message's reading was kept, its bytes are counted with the reading.
        kept = rows["kept"].fill_null(False).to_numpy()
        self._count_minutes(received // MINUTE_US, 2, np.where(kept, 0, size))
        owned = rows["device_id"].is_valid().to_numpy()
        if not owned.any():
            return
        rows, received = rows.filter(pa.array(owned)), received[owned]
        device = self._device_rows(rows["device_id"])
        self.devices.add("quarantined", device)
        self._heard(device, received)
        unread = np.flatnonzero(rows["seq"].is_valid().to_numpy() & ~kept[owned])
        seq = rows["seq"].fill_null(0).to_numpy()[unread]
        self._add_ranges("unread", rows.take(pa.array(unread)), device[unread], np.ones_like(seq), seq, seq)
        reasons = rows["reason"].to_pylist()
        columns = device.tolist(), received.tolist(), places(rows).tolist(), reasons
        for number, us, place, reason in zip(*columns, strict=True):
            key, one = (number, us // DAY_US), Refused(us, us, place, reason, 1)
            self.refused[key] = self.refused[key].joined(one) if key in self.refused else one

    def take_status(self, rows: pa.Table) -> None:
        """Count rows of the table status."""
        if not rows.num_rows:
            return
        device, received = self._device_rows(rows["device_id"]), self._received(rows)
        # Messages of one block share a received time; their places tell their order.
        position = places(rows)
        online = rows["online"].to_numpy(zero_copy_only=False).astype(bool)
        values = {"online": online.astype(np.int64)}
        for column, field in (("status_reason", "reason"), ("status_boot", "boot")):
            values[column] = self.codes_of(rows[field].to_pylist())
        self.devices.keep_last(device, {"status_us": received, "status_position": position}, values)
        self.newest_us = max(self.newest_us, int(received.max()))
        live = online & ~rows["retain"].to_numpy(zero_copy_only=False).astype(bool)
        self._heard(device[live], received[live])
        named = rows["boot"].is_valid().to_numpy()
        goodbye = pc.call_function("is_in", [rows["reason"]], pc.SetLookupOptions(pa.array(GOODBYES))).to_numpy()
        left = np.flatnonzero(~online & named & goodbye)
        names = (rows[name].take(pa.array(left)).to_pylist() for name in ("device_id", "boot", "reason"))
        for device_id, boot, reason, us in zip(*names, received[left].tolist(), strict=True):
            key = device_id, boot, reason == SLEEPING
            self.goodbyes[key] = max(us, self.goodbyes.get(key, NEVER))
        of_boot = np.flatnonzero(online & named)
        if not len(of_boot):
            return
        some = rows.take(pa.array(of_boot))
        boot = self._boot_rows(some)
        self.changed_boots.update(boot.tolist())
        self.boots["device"][boot] = device[of_boot]
        causes = [dict(extra or ()).get("cause") for extra in some["extra"].to_pylist()]
        born = {"cause": self.codes_of([_unquoted(cause) for cause in causes])}
        born["reason"] = self.codes_of(some["reason"].to_pylist())
        order = {"born_us": received[of_boot], "born_position": position[of_boot]}
        self.boots.keep_last(boot, order, born, first=True)
        order = {"fw_us": received[of_boot], "fw_position": position[of_boot]}
        self.boots.keep_last(boot, order, {"fw": self.codes_of(some["fw"].to_pylist())})

    def take_logs(self, rows: pa.Table) -> None:
        """Count rows of the table logs."""
        if not rows.num_rows:
            return
        device = self._device_rows(rows["device_id"])
        self._heard(device, self._received(rows))
        lists = rows["dropped_seq"].combine_chunks()
        counts = pc.call_function("list_value_length", [lists]).fill_null(0).to_numpy(zero_copy_only=False)
        some = np.flatnonzero(rows["boot"].is_valid().to_numpy() & (counts > 0))
        ranges = lists.take(pa.array(some)).flatten()
        first, last = (ranges.field(name).to_numpy() for name in ("first", "last"))
        self._add_ranges("announced", rows.take(pa.array(some)), device[some], counts[some], first, last)

    def assign_goodbyes(self) -> None:
        """Give the goodbyes to their boots, once all rows are taken; those of unknown boots wait."""
        waiting = {}
        for (device_id, boot, to_sleep), us in self.goodbyes.items():
            row = self.boots.index.get(device_id + SEPARATOR + boot)
            if row is None:
                waiting[device_id, boot, to_sleep] = us
            else:
                column = self.boots["slept_us" if to_sleep else "ended_us"]
                column[row] = max(column[row], us)
        self.goodbyes = waiting

    def text(self, codes: np.ndarray) -> pa.Array:
        """Return the texts of codes; null for -1."""
        names = pa.array([*self.texts, None], pa.string())
        return names.take(pa.array(np.where(codes < 0, len(self.texts), codes)))

    def _received(self, rows: pa.Table) -> np.ndarray:
        received = np.minimum(_us(rows["received_ts"]), self.now_us)
        self.collectors.lower_to("first_us", self.collectors.rows(rows["collector"].combine_chunks()), received)
        return received

    def _add_ranges(
        self, name: str, rows: pa.Table, device: np.ndarray, counts: np.ndarray, first: np.ndarray, last: np.ndarray
    ) -> None:
        """Add ranges of seq to `announced` or `unread`, as `name` says.

        :param rows: device_id and boot of messages.
        :param device: the row of each message's device.
        :param counts: how many ranges each message has, at least one.
        :param first, last: of the ranges of all messages, in their order.
        """
        if not len(counts):
            return
        held: dict[tuple[str, str], list[tuple[int, int]]] = getattr(self, name)
        total = self.devices[f"{name}_ranges"]
        within = total <= MOST_RANGES
        np.add.at(total, device, counts)
        # The sum of the counts decides, not the number of ranges that are left, so the order does not matter.
        over = total > MOST_RANGES
        exceeding = np.flatnonzero(over & within)
        if len(exceeding):
            ids = list(self.devices.index)
            names = {ids[row] for row in exceeding.tolist()}
            for key in [key for key in held if key[0] in names]:
                held[key] = as_one(held[key])
        ends = np.cumsum(counts)
        begins = ends - counts
        low, high = np.minimum.reduceat(first, begins), np.maximum.reduceat(last, begins)
        gathered: dict[tuple[str, str], tuple[bool, list[tuple[int, int]]]] = {}
        keys = zip(rows["device_id"].to_pylist(), rows["boot"].to_pylist(), strict=True)
        for i, (key, many) in enumerate(zip(keys, over[device].tolist(), strict=True)):
            mine = slice(begins[i], ends[i])
            new = (
                [(low[i].item(), high[i].item())]
                if many
                else zip(first[mine].tolist(), last[mine].tolist(), strict=True)
            )
            gathered.setdefault(key, (many, []))[1].extend(new)
        for key, (many, ranges) in gathered.items():
            joined = union(held.get(key, []) + ranges)
            held[key] = as_one(joined) if many else joined
            if (row := self.boots.index.get(SEPARATOR.join(key))) is not None:
                self.changed_boots.add(row)

    def _device_rows(self, device_id: pa.ChunkedArray) -> np.ndarray:
        return self.devices.rows(device_id.combine_chunks())

    def _boot_rows(self, rows: pa.Table) -> np.ndarray:
        return self.boots.rows(boot_keys(rows))

    def codes_of(self, texts: list[str | None]) -> np.ndarray:
        """Return the code of each text; -1 for None."""
        pool = self.texts
        codes = [-1 if text is None else pool.setdefault(text, len(pool)) for text in texts]
        return np.array(codes, dtype=np.int64)

    def _take_gaps(self, rows: pa.Table, boot: np.ndarray, seq: np.ndarray, received: np.ndarray) -> None:
        self.seen.take(rows.select(["device_id", "boot", "seq"]))
        # A new gap ends right below a reading of this update, whose received time becomes the gap's `since`. That
        # reading's predecessor is missing, so only readings that do not follow another one of this update count.
        order = np.lexsort((seq, boot))
        starts = np.append(True, (boot[order][1:] != boot[order][:-1]) | (seq[order][1:] != seq[order][:-1] + 1))
        keys = list(self.boots.index)
        for i in order[starts].tolist():
            device_id, name = keys[boot[i]].split(SEPARATOR)
            gaps, last = self.seen.gaps_of(device_id, name), int(seq[i]) - 1
            at = bisect_left(gaps, last)
            # Firsts and lasts alternate; a gap of a single seq contains it twice.
            if any(place % 2 and place < len(gaps) and gaps[place] == last for place in (at, at + 1)):
                self.gap_since[int(boot[i]), last] = int(received[i])

    def _heard(self, device: np.ndarray, received: np.ndarray) -> None:
        """Note signs of life, and silences between them longer than `offline_us`."""
        if not len(device):
            return
        self.newest_us = max(self.newest_us, int(received.max()))
        order = np.lexsort((received, device))
        dev, us = device[order], received[order]
        first, last = self.devices["first_us"][dev], self.devices["last_us"][dev]
        same = dev[1:] == dev[:-1]
        before = np.where(np.append(False, same), np.append(0, us[:-1]), NEVER)
        after = np.where(np.append(same, False), np.append(us[1:], 0), -NEVER)
        # A sign of life before the first or after the last known one may have a new silence beside it.
        earlier, later = us < first, us > last
        known = last != NEVER
        until = np.where(earlier & known, np.minimum(after, first), after)
        since = np.where(later & known, np.maximum(before, last), before)
        self._silent(dev, us, until, earlier & (until != -NEVER))
        self._silent(dev, since, us, later & known & (since != NEVER))
        # A sign of life in between may split a silence that was noted.
        within = ~earlier & ~later & np.isin(dev, list(self.silences))
        for number, at in zip(dev[within].tolist(), us[within].tolist(), strict=True):
            self._split_silence(number, at)
        self.devices.lower_to("first_us", device, received)
        self.devices.raise_to("last_us", device, received)

    def _silent(self, device: np.ndarray, since: np.ndarray, until: np.ndarray, which: np.ndarray) -> None:
        which = which & (until - since > self.offline_us)
        for number, *silence in zip(device[which].tolist(), since[which].tolist(), until[which].tolist(), strict=True):
            some = self.silences.setdefault(number, [])
            some.append((silence[0], silence[1]))
            # A late reading may still remove some of the newest ones, so twice as many are kept as are shown.
            if len(some) > 4 * MOST_SILENCES:
                self.silences[number] = newest_silences(some, 2 * MOST_SILENCES)

    def _split_silence(self, device: int, at: int) -> None:
        split = []
        for since, until in self.silences.get(device, ()):
            split += [(since, at), (at, until)] if since < at < until else [(since, until)]
        kept = [one for one in split if one[1] - one[0] > self.offline_us]
        if kept:
            self.silences[device] = kept
        else:
            self.silences.pop(device, None)

    def _take_metrics(
        self, rows: pa.Table, device: np.ndarray, boot: np.ndarray, received: np.ndarray, seq: np.ndarray
    ) -> None:
        parent, names, values = exploded(rows["metrics"])
        codes = names.dictionary_encode()
        known = codes.dictionary.to_pylist()
        code = codes.indices.to_numpy(zero_copy_only=False)
        for number, name in enumerate(SHOWN, 1):
            if name not in known:
                continue
            at = np.flatnonzero(code == known.index(name))
            row, value = parent[at], values[at]
            # Two boots in one block may share the time and the seq: then the larger value counts.
            order = {f"{name}_us": received[row], f"{name}_seq": seq[row], name: value}
            self.devices.keep_last(device[row], order, {})
            bins = to_bin(value) + BIN_ZERO
            self.histogram.add((device[row] << METRIC_BITS | number) << BIN_BITS | bins)
            if name == "mem_free":
                self.boots.keep_last(boot[row], {"mem_first_seq": seq[row]}, {"mem_first": value}, first=True)
                self.boots.keep_last(boot[row], {"mem_last_seq": seq[row]}, {"mem_last": value})

    def _count_minutes(self, minute: np.ndarray, kind: int, size: np.ndarray) -> np.ndarray:
        """Count rows and bytes per minute; return which rows lie in minutes that are not settled.

        :param minute: the minute of each row.
        :param kind: the count to increase: 0 readings, 1 duplicates, 2 quarantined.
        :param size: bytes of each row.
        """
        hot = minute >= self.frozen_before
        self.late_minutes.update(np.unique(minute[~hot]).tolist())
        distinct, place = np.unique(minute[hot], return_inverse=True)
        rows, total = np.bincount(place), np.bincount(place, size[hot])
        for i, one in enumerate(distinct.tolist()):
            counts = self.minutes.setdefault(one, np.zeros(4, dtype=np.int64))
            counts[kind] += rows[i]
            counts[3] += int(total[i])
        return hot


def exploded(metrics: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Return the entries of a column of maps that are not null: for each, its row number, its name and its value."""
    array = metrics.combine_chunks() if isinstance(metrics, pa.ChunkedArray) else metrics
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    offsets = array.offsets.to_numpy()
    parent = np.repeat(np.arange(len(array)), np.diff(offsets))
    values = array.items.slice(offsets[0], offsets[-1] - offsets[0])
    names = array.keys.slice(offsets[0], offsets[-1] - offsets[0])
    there = values.is_valid().to_numpy(zero_copy_only=False)
    names = names.filter(pa.array(there))
    return parent[there], names, values.drop_null().to_numpy(zero_copy_only=False)


def union(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the union of ranges as the fewest possible ranges, in ascending order."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def as_one(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(ranges[0][0], ranges[-1][1])]


def newest_silences(silences: list[tuple[int, int]], most: int = MOST_SILENCES) -> list[tuple[int, int]]:
    """Return the silences that ended last, at most `most`; oldest first."""
    return sorted(silences, key=lambda one: (one[1], one[0]))[-most:]


def _us(times: pa.ChunkedArray) -> np.ndarray:
    return times.cast(pa.int64()).combine_chunks().fill_null(NEVER).to_numpy(zero_copy_only=False)


def _unquoted(text: str | None) -> str | None:
    """Return the text in a JSON string without escapes, and other JSON unchanged."""
    return text[1:-1] if text and text.startswith('"') and "\\" not in text else text


_REFUSED = ("device", "day", *Refused._fields)


def save(state: State, path: Location, facts: dict[str, int]) -> None:
    """Write the state into the file `path`, durably and with a checksum.

    :param facts: numbers of the caller, saved with the state.
    """
    names, parts = [], []
    for name, table in tables_of(state, facts):
        names.append(name)
        parts.append(_packed(table).to_pybytes())
    whole = pa.table({"name": names, "table": pa.array(parts, pa.large_binary())})
    replace_checked(path, _packed(whole, "zstd").to_pybytes())


def _packed(table: pa.Table, compression: str | None = None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def tables_of(state: State, facts: dict[str, int]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the state as (name, table) pairs.

    :param facts: numbers of the caller, saved with the state.
    """
    own = {
        "offline_us": state.offline_us,
        "newest_us": state.newest_us,
        "frozen_before": state.frozen_before,
        **facts,
    }
    yield "facts", pa.table({"name": list(own), "value": pa.array(own.values(), pa.int64())})
    yield "rules", pa.table({"text": pa.array([state.rules], pa.string())})
    yield "texts", pa.table({"text": pa.array(list(state.texts), pa.string())})
    yield "late", pa.table({"minute": pa.array(sorted(state.late_minutes), pa.int64())})
    yield "devices", state.devices.to_table()
    yield "boots", state.boots.to_table()
    yield "histogram", state.histogram.to_table()
    yield "minute_delays", state.minute_delays.to_table()
    yield "minute_devices", pa.table({"key": pa.array(state.minute_devices)})
    rows = [(minute, *counts.tolist()) for minute, counts in state.minutes.items()]
    yield "minutes", _numbers(rows, ("minute", "readings", "duplicates", "quarantined", "bytes"))
    yield "seen", state.seen.to_table()
    yield "gap_since", _numbers([(*key, us) for key, us in state.gap_since.items()], ("boot", "last", "us"))
    rows = [(device, *one) for device, ranges in state.silences.items() for one in ranges]
    yield "silences", _numbers(rows, ("device", "since", "until"))
    names = pa.schema([("device_id", pa.string()), ("boot", pa.string()), ("first", pa.int64()), ("last", pa.int64())])
    for name in ("announced", "unread"):
        ranges = [(*key, *one) for key, many in getattr(state, name).items() for one in many]
        yield name, pa.table([pa.array(c, f.type) for c, f in zip(_columns(ranges, 4), names, strict=True)], names)
    yield "archived", pa.table({"hash": pa.array(state.archived)})
    yield "old_gaps", pa.table({name: pa.array(state.old_gaps[name].copy()) for name in _OLD_GAPS})
    yield "collectors", state.collectors.to_table()
    texts = ((name, pa.string()) for name in ("device_id", "boot"))
    names = pa.schema([*texts, ("to_sleep", pa.bool_()), ("us", pa.int64())])
    ends = _columns(sorted((*key, us) for key, us in state.goodbyes.items()), 4)
    yield "goodbyes", pa.table([pa.array(c, f.type) for c, f in zip(ends, names, strict=True)], names)
    days = [(*key, *one) for key, one in state.refused.items()]
    names = pa.schema([(name, pa.string() if name == "reason" else pa.int64()) for name in _REFUSED])
    yield "refused", pa.table([pa.array(c, f.type) for c, f in zip(_columns(days, 7), names, strict=True)], names)


def load(path: Location) -> tuple[State, dict[str, int]]:
    """Return the state and the facts that :func:`save` wrote. The facts include some of the state's own.

    :raises OSError: the file cannot be read.
    :raises FileDamaged: the file fails its checksum.
    """
    whole = pa.ipc.open_file(pa.py_buffer(read_checked(path))).read_all()
    parts = dict(zip(whole["name"].to_pylist(), whole["table"], strict=True))

    def read(name: str) -> pa.Table:
        return pa.ipc.open_file(parts[name].as_buffer()).read_all()

    facts = {row["name"]: row["value"] for row in read("facts").to_pylist()}
    state = State(facts["offline_us"])
    state.newest_us, state.frozen_before = facts["newest_us"], facts["frozen_before"]
    # A state of an older release has no rules.
    state.rules = read("rules")["text"][0].as_py() if "rules" in parts else ""
    state.late_minutes = set(read("late")["minute"].to_pylist())
    state.texts = {text: code for code, text in enumerate(read("texts")["text"].to_pylist())}
    state.devices.load(read("devices"))
    state.boots.load(read("boots"))
    state.histogram.load(read("histogram"))
    state.minute_delays.load(read("minute_delays"))
    state.minute_devices = read("minute_devices")["key"].to_numpy().copy()
    for row in read("minutes").to_pylist():
        minute, *counts = row.values()
        state.minutes[minute] = np.array(counts, dtype=np.int64)
    state.seen = Seen.from_table(read("seen"))
    state.gap_since = {(row["boot"], row["last"]): row["us"] for row in read("gap_since").to_pylist()}
    for row in read("silences").to_pylist():
        state.silences.setdefault(row["device"], []).append((row["since"], row["until"]))
    for name in ("announced", "unread"):
        for row in read(name).to_pylist():
            held = getattr(state, name).setdefault((row["device_id"], row["boot"]), [])
            held.append((row["first"], row["last"]))
    if "archived" in parts:  # an older release keeps all boots
        state.archived = read("archived")["hash"].to_numpy().copy()
        old = read("old_gaps")
        state.old_gaps = np.empty(old.num_rows, dtype=OLD_GAPS)
        for name in _OLD_GAPS:
            state.old_gaps[name] = old[name].to_numpy()
    state.collectors.load(read("collectors"))
    # An older release noted restarts only, and one before it no time.
    for row in read("goodbyes" if "goodbyes" in parts else "restarted").to_pylist():
        key = row["device_id"], row["boot"], row.get("to_sleep", False)
        state.goodbyes[key] = row.get("us", state.newest_us)
    for row in read("refused").to_pylist():
        device, day, *one = row.values()
        state.refused[device, day] = Refused(*one)
    if "quarantined" not in read("devices").column_names:  # an older release summed `refused` instead
        for (device, _day), one in state.refused.items():
            state.devices["quarantined"][device] += one.total
    return state, facts


def _columns(rows: list[tuple], width: int) -> list:
    return list(zip(*rows, strict=True)) if rows else [[]] * width


def _numbers(rows: list[tuple], names: tuple[str, ...]) -> pa.Table:
    return pa.table({n: pa.array(c, pa.int64()) for n, c in zip(names, _columns(rows, len(names)), strict=True)})

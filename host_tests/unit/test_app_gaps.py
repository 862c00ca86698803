"""A reading that is given up is explained, even over reboots and power cuts, and if the explanation is lost too."""

import json
import os

import _app_fakes as fakes
from app.cbor import encode
from app.gaps import Gaps, add_to_gaps
from app.telemetry import Telemetry
from umqtt_testkit.portable import Clock, Rng, equal, new_path

from umqtt_robust import Client
from umqtt_robust.policy import DROP_OLDEST, EXPIRED, FULL, UNREADABLE
from umqtt_robust.quarantine import packet_ids
from umqtt_robust.store import MemoryStore

_TELEMETRY = b"fleet/pump-7/telemetry"
_LOG = b"fleet/pump-7/log"
_BOOT = "17-9f3a2c5d8e1b4a70"
_BEFORE = "16-0000000000000000"


class _File:
    def __enter__(self):
        self.path = new_path("gaps")
        return self

    def __exit__(self, *_):
        pass

    def exists(self):
        try:
            os.stat(self.path)
        except OSError:
            return False
        return True

    def gaps(self, log=None):
        return Gaps(self.path, _BOOT, (log or fakes.Log()).report)


def _record(seq, boot=_BOOT):
    return b'{"v":1,"id":"pump-7","boot":"%s","seq":%d,"ts":null,"up":0,"m":{}}' % (boot.encode(), seq)


def _announced(log, boot=_BOOT):
    found = []
    for level, _, fields in log.records:
        if fields and fields["boot"] == boot:
            equal(level, "warning")
            for first, last in fields["dropped_seq"]:
                found.extend(range(first, last + 1))
    return found


def test_gaps_are_merged_and_never_forgotten():
    for seed in range(20):
        rng = Rng(seed, quiet=True)
        gaps = []
        dropped = set()
        for _ in range(60):
            first = rng.below(300)
            last = first + rng.below(3)
            add_to_gaps(gaps, first, last)
            dropped.update(range(first, last + 1))
        assert len(gaps) <= 8, gaps
        covered = set()
        for first, last in gaps:
            covered.update(range(first, last + 1))
        assert covered.issuperset(dropped), seed
    gaps = []
    for seq in (5, 6, 7, 10, 8):
        add_to_gaps(gaps, seq, seq)
    equal(gaps, [[5, 8], [10, 10]])


def test_what_the_client_drops_is_known_by_its_payload_also_from_an_earlier_boot():
    with _File() as file:
        log = fakes.Log()
        gaps = file.gaps(log)
        for seq in (3, 4, 5):
            gaps.on_dropped(1, _TELEMETRY, _record(seq, _BEFORE), FULL)
        gaps.on_dropped(2, _TELEMETRY, _record(0), EXPIRED)
        client = fakes.Client()
        for _ in range(3):
            gaps.step(client, 100)
        equal((_announced(log, _BEFORE), _announced(log)), ([3, 4, 5], [0]))
        equal(file.exists(), False)


def test_a_dropped_record_in_cbor_is_noted_too():
    # Planted: a record that is no JSON is taken for another message.
    many = {"m%d" % i: i for i in range(30)}
    many.update((("seq", 5), ("low", -70000), ("c", 21.37), ("half", 0.5), ("none", None), ("on", True)))
    with _File() as file:
        gaps = file.gaps()
        for seq in (0, 24, 300, 70000, 1 << 33):
            record = {"v": 1, "id": "pump-7", "boot": _BEFORE, "ts": None, "up": 1 << 40, "m": many, "seq": seq}
            gaps.on_dropped(1, _TELEMETRY, encode(record), FULL)
        equal(file.gaps()._gaps, {_BEFORE: [[0, 0], [24, 24], [300, 300], [70000, 70000], [1 << 33, 1 << 33]]})


def test_a_gap_is_in_flash_before_the_client_forgets_the_reading():
    with _File() as file:
        file.gaps().on_dropped(1, _TELEMETRY, _record(3), FULL)
        # The power fails here. The next boot reports the gap.
        log = fakes.Log()
        file.gaps(log).step(fakes.Client(), 100)
        equal(_announced(log), [3])


def test_a_gap_stays_in_flash_until_the_log_took_it():
    with _File() as file:
        log = fakes.Log()
        gaps = file.gaps(log)
        gaps.add(_BOOT, 3)
        client = fakes.Client(room=5)
        client.connected = False
        gaps.step(client, 5)
        client.connected = True
        client.pending = 5
        gaps.step(client, 5)
        equal(log.records, [])
        client.pending = 4
        log.full = True
        gaps.step(client, 5)
        assert file.exists()
        log.full = False
        gaps.step(client, 5)
        equal((_announced(log), file.exists()), ([3], False))


def test_an_announcement_that_is_dropped_itself_is_made_again():
    with _File() as file:
        log = fakes.Log()
        gaps = file.gaps(log)
        record = {"level": "warning", "text": "…", "boot": _BEFORE, "dropped_seq": [[3, 5], [9, 9]]}
        gaps.on_dropped(1, _LOG, json.dumps(record).encode(), FULL)
        gaps.step(fakes.Client(), 100)
        equal(_announced(log, _BEFORE), [3, 4, 5, 9])


def test_other_messages_are_passed_on_and_damaged_ones_reported():
    with _File() as file:
        log = fakes.Log()
        gaps = file.gaps(log)
        others = []
        gaps.on_other = lambda packet_id, topic: others.append((packet_id, topic))
        gaps.on_dropped(7, b"fleet/pump-7/reply", b'{"id": "1", "seq": 3, "boot": "x"}', FULL)
        gaps.on_dropped(8, _LOG, b"{", FULL)
        gaps.on_dropped(9, b"", b"", UNREADABLE)
        equal(others, [(7, b"fleet/pump-7/reply"), (8, _LOG)])
        gaps.step(fakes.Client(), 100)
        gaps.step(fakes.Client(), 100)
        equal(
            [(level, text) for level, text, _ in log.records],
            [("error", "1 stored messages were damaged, and are lost")],
        )


def test_gaps_of_many_boots_stay_bounded_and_the_oldest_is_told_first():
    with _File() as file:
        log = fakes.Log()
        gaps = file.gaps(log)
        for count in range(8, 20):
            gaps.add("%d-0" % count, 1)
        equal(sorted(gaps._gaps), ["16-0", "17-0", "18-0", "19-0"])
        equal([fields["boot"] for _, _, fields in log.records], ["%d-0" % count for count in range(8, 16)])


def test_a_flash_that_refuses_is_remembered_in_ram_and_said():
    log = fakes.Log()
    gaps = Gaps("/dev/null/gaps", _BOOT, log.report)
    gaps.add(_BOOT, 3)
    assert "not noted in flash" in gaps.error
    gaps.step(fakes.Client(), 100)
    equal(_announced(log), [3])


def test_a_torn_file_is_no_file():
    with _File() as file:
        with open(file.path, "w") as stream:
            stream.write('{"17-9f')
        equal(file.gaps()._gaps, {})


def test_with_a_real_outbox_every_reading_is_stored_or_explained():
    """The client itself drops messages: the oldest unsent ones, with others that are in the way."""
    for seed in range(10):
        rng = Rng(seed, quiet=True)
        with _File() as file:
            time = Clock()
            log = fakes.Log()
            options = {"store": MemoryStore(6), "policy": DROP_OLDEST, "ticks": time.ticks_ms}
            client = Client(b"pump-7", "mqtt://127.0.0.1:1", clean_session=False, **options)
            gaps = file.gaps(log)
            client.on_dropped = gaps.on_dropped
            ticks, clock = fakes.clock()
            part = Telemetry(client, fakes.identity(), clock, None, 100, log.report, gaps)
            for _ in range(40):
                part.step()
                ticks.advance(100)
                if rng.chance(20):
                    client.publish(_LOG, b'{"level": "warning", "text": "x"}', qos=1)
                if rng.chance(5):
                    # A reboot: only the file's content remains.
                    gaps = file.gaps(log)
                    client.on_dropped = gaps.on_dropped
                    part._gaps = gaps
            outbox = client.outbox
            kept = []
            for packet_id in packet_ids(outbox):
                topic, payload = outbox.store.load(outbox.slot_of[packet_id])
                if topic == _TELEMETRY:
                    kept.append(json.loads(payload)["seq"])
            gaps.step(fakes.Client(), 100)
            equal(sorted(kept + _announced(log)), list(range(part.seq)), "seed %d" % seed)

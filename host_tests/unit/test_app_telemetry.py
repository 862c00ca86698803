"""Every reading has its own seq; a dropped reading is recorded; no value is invented."""

import json
from binascii import hexlify

import _app_fakes as fakes
from app import telemetry
from app.cbor import encode
from app.telemetry import Telemetry
from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import StoreError

_TOPIC = b"fleet/pump-7/telemetry"


class _Sensors:
    """A stand-in for app.sensors.Sensors, with what Telemetry uses of it."""

    lead_ms = 0

    def __init__(self, metrics):
        self._metrics = metrics
        self.now = 0
        self.calls = []

    def start(self):
        self.calls.append(("start", self.now))

    def read(self):
        self.calls.append(("read", self.now))
        return dict(self._metrics)


class _Gaps:
    def __init__(self):
        self.noted = []

    def add(self, boot, seq):
        equal(boot, fakes.identity().boot)
        self.noted.append(seq)


def _build(client, sensors=None, interval_ms=100, system_ms=None):
    ticks, clock = fakes.clock(system_ms)
    log = fakes.Log()
    sensors = sensors or _Sensors({"mem_free": 104320})
    return ticks, log, Telemetry(client, fakes.identity(), clock, sensors, interval_ms, log.report, _Gaps())


def _records(client):
    return [json.loads(payload) for payload in client.payloads(_TOPIC)]


def test_a_record_has_exactly_the_fields_of_its_version():
    client = fakes.Client()
    ticks, _, part = _build(client, system_ms=lambda: 1795000000123)
    part.step()
    equal(
        _records(client),
        [
            {
                "v": 1,
                "id": "pump-7",
                "boot": "17-9f3a2c5d8e1b4a70",
                "seq": 0,
                "ts": 1795000000123,
                "up": 0,
                "m": {"mem_free": 104320},
            }
        ],
    )
    equal(client.published[0][2:], (1, False))


def test_ts_is_null_until_the_clock_is_known():
    client = fakes.Client()
    _, _, part = _build(client)
    part.step()
    equal(_records(client)[0]["ts"], None)


def test_a_device_id_is_escaped_once_and_for_all():
    client = fakes.Client()
    _, clock = fakes.clock()
    part = Telemetry(client, fakes.identity('a"b'), clock, (), 100, fakes.Log().report)
    part.step()
    equal(json.loads(client.published[0][1])["id"], 'a"b')


def test_seq_counts_from_0_without_a_gap_at_any_interval_and_any_loop():
    rng = Rng(7)
    client = fakes.Client(100000)
    ticks, _, part = _build(client)
    for _ in range(500):
        part.step()
        ticks.advance(rng.below(260))
    equal([record["seq"] for record in _records(client)], list(range(part.seq)))


def test_the_average_interval_is_kept_when_the_loop_is_late_by_less():
    client = fakes.Client(1000)
    ticks, _, part = _build(client)
    for _ in range(300):
        part.step()
        ticks.advance(70)
    # Each step is late by less than one interval, yet there is one reading in every 100 ms.
    assert 209 <= part.seq <= 211, part.seq


def test_a_loop_held_up_for_long_does_not_take_the_missed_readings_in_a_bunch():
    client = fakes.Client()
    ticks, _, part = _build(client)
    part.step()
    ticks.advance(1000000)
    equal(part.step(), 100)
    equal(part.seq, 2)


def test_every_reading_is_published_or_noted_as_a_gap():
    for seed in range(20):
        rng = Rng(seed)
        client = fakes.Client(room=5)
        ticks, _, part = _build(client)
        for _ in range(200):
            part.step()
            ticks.advance(100)
            if rng.chance(20):
                client.acknowledge()
        equal(sorted([record["seq"] for record in _records(client)] + part.gaps.noted), list(range(part.seq)))
        equal(part.published + part.dropped, part.seq)


def test_a_reading_that_the_flash_does_not_take_is_noted_and_the_error_passed_on():
    def broken(topic, payload, qos, expires_in):
        raise StoreError("cannot write")

    client = fakes.Client()
    client.publish = broken
    _, _, part = _build(client)
    raises(StoreError, part.step)
    equal((part.gaps.noted, part.seq, part.dropped), ([0], 1, 1))


def test_qos_and_expiry_are_those_asked_for():
    client = fakes.Client()
    ticks, _, part = _build(client)
    part.step()
    equal((client.published[0][2], client.expires_in), (1, None))
    part.qos, part.expires_s = 2, 90
    ticks.advance(100)
    part.step()
    equal((client.published[1][2], client.expires_in), (2, 90000))


def test_a_record_is_bounded_and_says_once_what_it_lacks():
    client = fakes.Client()
    metrics = {"metric_number_%03d" % number: number for number in range(200)}
    ticks, log, part = _build(client, _Sensors(metrics))
    for _ in range(3):
        part.step()
        ticks.advance(100)
    for payload in client.payloads(_TOPIC):
        assert 850 < len(payload) <= 900, len(payload)
        assert len(json.loads(payload)["m"]) > 30
    equal(len(log.records), 1)
    assert "at most 900 bytes" in log.records[0][1]


def test_a_metric_whose_name_alone_is_too_long_leaves_an_empty_reading():
    client = fakes.Client()
    ticks, log, part = _build(client, _Sensors({"x" * 900: 1}))
    part.step()
    equal(_records(client)[0]["m"], {})
    assert "after [] are left out" in log.records[0][1], log.records


def test_sensors_that_need_time_are_started_so_long_before_every_reading():
    client = fakes.Client()
    sensors = _Sensors({"temp_c": 1})
    sensors.lead_ms = 750
    ticks, _, part = _build(client, sensors, interval_ms=5000)
    now = 0
    while now < 20000:
        wait = part.step()
        sensors.now = now = now + max(1, wait)
        ticks.advance(max(1, wait))
    # The first reading after a boot waits for its first measurement; from then on the schedule is kept.
    equal(
        [(kind, at) for kind, at in sensors.calls if at < 12000],
        [("start", 0), ("read", 750), ("start", 4250), ("read", 5000), ("start", 9250), ("read", 10000)],
    )


def test_the_time_that_sensors_need_counts_from_when_all_have_been_started():
    sensors = _Sensors({"temp_c": 1})
    sensors.lead_ms = 750
    ticks, _, part = _build(fakes.Client(), sensors, interval_ms=5000)
    start = sensors.start

    def start_slowly():
        sensors.now += 40
        ticks.advance(40)
        start()

    sensors.start = start_slowly
    for _ in range(2000):
        part.step()
        sensors.now += 5
        ticks.advance(5)
    assert len(sensors.calls) >= 4, sensors.calls
    for place in range(0, len(sensors.calls) // 2 * 2, 2):
        (first, started), (second, read) = sensors.calls[place : place + 2]
        equal((first, second), ("start", "read"))
        assert read - started >= 750, sensors.calls


def test_an_interval_shorter_than_the_measurement_is_stretched_and_reads_only_what_was_measured():
    sensors = _Sensors({"temp_c": 1})
    sensors.lead_ms = 750
    ticks, _, part = _build(fakes.Client(), sensors, interval_ms=100)
    for _ in range(400):
        part.step()
        sensors.now += 10
        ticks.advance(10)
    kinds = [kind for kind, _ in sensors.calls]
    equal(kinds, ["start", "read"] * (len(kinds) // 2) + ["start"] * (len(kinds) % 2))
    assert 4 <= part.seq <= 6, part.seq


def test_cbor_is_what_the_rfc_says():
    """RFC 8949, appendix A. Planted: a length of 24 is encoded in one byte, or a float in too few bytes."""
    for value, encoded in (
        (0, "00"), (23, "17"), (24, "1818"), (255, "18ff"), (256, "190100"), (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"), (-1, "20"), (-100, "3863"), (-1000, "3903e7"),
        (100000.0, "fa47c35000"), (-0.5, "fabf000000"), (None, "f6"), (True, "f5"), (False, "f4"), ("", "60"),
        ("\u00fc", "62c3bc"), ({}, "a0"), ({"a": 1}, "a1616101"), ("a" * 24, "7818" + "61" * 24),
    ):  # fmt: skip
        equal(hexlify(encode(value)).decode(), encoded, repr(value))
    raises(OverflowError, encode, 1 << 64)


def _sizes(metrics):
    sizes = []
    for encoding in ("json", "cbor"):
        client = fakes.Client()
        _, clock = fakes.clock(lambda: 1795000000123)
        part = Telemetry(client, fakes.identity(), clock, _Sensors(metrics), 100, None, encoding=encoding)
        part.seq = 4211
        part.step()
        sizes.append(len(client.published[0][1]))
    return sizes


def test_the_table_of_bytes_in_the_docs_is_what_a_reading_takes():
    """docs/firmware.md. Planted: CBOR is not used although the settings ask for it."""
    four = {"temp_c": 21.5, "humidity": 48.25, "pressure_hpa": 1013.25, "mem_free": 104320}
    equal([_sizes({"temp_c": 21.5}), _sizes(four)], [[107, 77], [165, 123]])


def test_a_reading_that_is_too_large_in_cbor_loses_metrics_like_any_other():
    client, log = fakes.Client(), fakes.Log()
    _, clock = fakes.clock()
    many = _Sensors({"metric_%03d" % n: 1.5 for n in range(99)})
    part = Telemetry(client, fakes.identity(), clock, many, 100, log.report, encoding="cbor")
    part.step()
    assert 850 < len(client.published[0][1]) <= 900, len(client.published[0][1])


def test_the_hook_sees_exactly_what_publish_accepted():
    client = fakes.Client(room=3)
    ticks, _, part = _build(client)
    seen = []
    telemetry.on_published.append(seen.append)
    try:
        for _ in range(6):
            part.step()
            ticks.advance(100)
    finally:
        telemetry.on_published.pop()
    equal(seen, client.payloads(_TOPIC))
    equal(len(seen), 3)


def test_paused_takes_no_reading_and_resumes_at_once():
    client = fakes.Client()
    ticks, _, part = _build(client)
    part.step()
    part.paused = True
    ticks.advance(5000)
    equal(part.step(), None)
    equal(part.seq, 1)
    part.paused = False
    part.resume()
    part.step()
    equal(part.seq, 2)

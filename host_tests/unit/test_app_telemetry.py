"""Every reading has its own seq; a reading that was dropped is announced; no number is made up."""

import json

import _app_fakes as fakes
from app import telemetry
from app.telemetry import Telemetry, add_to_gaps, encode_metrics
from umqtt_testkit.portable import Rng, equal, raises

_TOPIC = b"fleet/pump-7/telemetry"


class _Sensor:
    def __init__(self, *readings):
        self._readings = list(readings)

    def read(self):
        reading = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading


def _build(client, sensors=(_Sensor({"mem_free": 104320}),), interval_ms=100, system_ms=None):
    ticks, clock = fakes.clock(system_ms)
    log = fakes.Log()
    return ticks, log, Telemetry(client, fakes.identity(), clock, sensors, interval_ms, log.report)


def _records(client):
    return [json.loads(payload) for payload in client.payloads(_TOPIC)]


def test_a_record_has_exactly_the_fields_of_its_version():
    client = fakes.Client()
    ticks, _, part = _build(client, system_ms=lambda: 1795000000123)
    part.step()
    equal(_records(client), [{
        "v": 1, "id": "pump-7", "boot": "17-9f3a2c5d8e1b4a70", "seq": 0, "ts": 1795000000123, "up": 0,
        "m": {"mem_free": 104320},
    }])
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
    # Late by less than one interval every time, yet one reading in every 100 ms.
    assert 209 <= part.seq <= 211, part.seq


def test_a_loop_held_up_for_long_does_not_take_the_missed_readings_in_a_bunch():
    client = fakes.Client()
    ticks, _, part = _build(client)
    part.step()
    ticks.advance(1000000)
    equal(part.step(), 100)
    equal(part.seq, 2)


def test_every_reading_is_published_or_announced_as_dropped():
    for seed in range(20):
        rng = Rng(seed)
        client = fakes.Client(room=5)
        ticks, log, part = _build(client)
        for _ in range(200):
            part.step()
            ticks.advance(100)
            if rng.chance(20):
                client.acknowledge()
            log.full = rng.chance(30)
        client.acknowledge()
        log.full = False
        part.paused = True
        part.step()
        published = {record["seq"] for record in _records(client)}
        announced = set()
        for _, _, fields in log.records:
            for first, last in fields["dropped_seq"]:
                announced.update(range(first, last + 1))
        equal(sorted(published | announced), list(range(part.seq)))
        equal(part.published + part.dropped, part.seq)


def test_gaps_beyond_the_limit_are_merged_and_never_forgotten():
    gaps = []
    dropped = list(range(0, 200, 3))
    for seq in dropped:
        add_to_gaps(gaps, seq)
    assert len(gaps) <= 8
    covered = set()
    for first, last in gaps:
        covered.update(range(first, last + 1))
    assert covered.issuperset(dropped)


def test_numbers_that_are_not_finite_become_null():
    infinity = float("inf")
    text = encode_metrics({"a": float("nan"), "b": infinity, "c": -infinity, "d": 1.5, "e": 3, "f": None})
    equal(json.loads(text), {"a": None, "b": None, "c": None, "d": 1.5, "e": 3, "f": None})


def test_a_metric_that_is_no_number_is_refused_by_name():
    assert "mode" in str(raises(TypeError, encode_metrics, {"mode": "auto"}))


def test_a_failing_sensor_is_reported_once_and_the_others_go_on():
    client = fakes.Client()
    broken = _Sensor(OSError(5), OSError(5), {"temp_c": 21.5}, OSError(5), OSError(5))
    ticks, log, part = _build(client, (broken, _Sensor({"mem_free": 1})))
    for _ in range(5):
        part.step()
        ticks.advance(100)
    equal([record["m"] for record in _records(client)],
          [{"mem_free": 1}] * 2 + [{"temp_c": 21.5, "mem_free": 1}] + [{"mem_free": 1}] * 2)
    equal(len(log.records), 2)


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

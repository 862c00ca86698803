"""What the broker's bench compares: cases, contenders, goals, and the rows that a comparison gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench_rows import LEAST_OF_OURS, LEAST_RATIO, MOST_OF_OURS, MOST_RATIO, Goal, Row

OURS, OURS_DURABLE, OURS_REDIS = "umqtt_broker", "umqtt_broker, store on disk", "umqtt_broker, store in Redis"
# The same broker, for the cases of MQTT 5; then four at the same time, each with the load of one.
OURS_311 = "umqtt_broker, MQTT 3.1.1"
OURS_COMPILED = "umqtt_broker, compiled"
SHARDS = "umqtt_broker, four shards"
SHARD_COUNT = 4
MOSQUITTO, MOSQUITTO_DELAY = "mosquitto", "mosquitto, set_tcp_nodelay false"
FLASHMQ, NATS, RUMQTTD = "flashmq", "nats-server", "rumqttd"
PEERS = (MOSQUITTO, MOSQUITTO_DELAY, FLASHMQ, NATS, RUMQTTD)

RATE, CPU = "msg/s", "CPU us/msg"
CONNECT_RATE, CONNECT_CPU, CONNECT_BYTES = "connects/s", "CPU us each", "bytes each"
QUEUED, DRAINED = "queued/s", "drained/s"
P50, P99 = "p50 us", "p99 us"
_LESS_IS_BETTER = {CPU, CONNECT_CPU, CONNECT_BYTES, P50, P99}
# MQTT 5 against MQTT 3.1.1 on the same broker.
_GOALS_5 = {
    **dict.fromkeys((RATE, CONNECT_RATE, QUEUED, DRAINED), Goal(0.9, LEAST_RATIO)),
    P50: Goal(1.1, MOST_RATIO),
}


@dataclass(frozen=True)
class Case:
    """One load on the brokers. mode, options: as the load generator takes them; the bench adds `seconds`.

    ours: which of our brokers runs. measures: the reported measures. goals: by peer name and measure; the peer ""
    stands for a figure of ours without a comparison. fresh: every run starts a new broker.
    """

    name: str
    mode: str
    options: Mapping[str, int]
    measures: tuple[str, ...] = (RATE, CPU)
    goals: Mapping[tuple[str, str], Goal] = field(default_factory=dict)
    ours: str = OURS
    peers: tuple[str, ...] = PEERS
    fresh: bool = False


def _throughput(name: str, least_rate: float, **options: int) -> Case:
    """Return a case of the table of throughputs. least_rate: the goal beside mosquitto."""
    return Case(name, "flow", options, goals={(MOSQUITTO, RATE): Goal(least_rate, LEAST_RATIO)})


def _version_5(case: Case) -> Case:
    """Return that case with MQTT 5, compared with ours at MQTT 3.1.1."""
    goals = {(OURS_311, measure): goal for measure, goal in _GOALS_5.items() if measure in case.measures}
    options = {**case.options, "level": 5}
    return replace(case, name=f"MQTT 5: {case.name}", options=options, goals=goals, peers=(OURS_311,))


def _compiled(case: Case) -> Case:
    """Return that case with the broker that mypyc compiled, compared with the plain one and the fastest peer."""
    goals = {(FLASHMQ, RATE): Goal(1.0, LEAST_RATIO)}
    return replace(
        case, name=f"compiled: {case.name}", measures=(RATE,), goals=goals, ours=OURS_COMPILED, peers=(FLASHMQ, OURS)
    )


_FAN_OUT = {"subscribers": 100, "flight": 40}
_MIX = {"publishers": 2, "mixed": 1, "wildcard": 1, "topics": 500, "size": 16, "largest": 256}

_CASES = (
    _throughput("QoS 0 64 B 1 to 1", 2.0, qos=0),
    _throughput("QoS 1 window 20", 1.3, qos=1, window=20),
    _throughput("QoS 1 window 100", 3.0, qos=1, window=100),
    _throughput("QoS 2 window 100", 3.5, qos=2, window=100),
    _throughput("1 to 100 QoS 0", 7.0, qos=0, **_FAN_OUT),
    _throughput("1 to 100 QoS 1", 3.0, qos=1, **_FAN_OUT),
    _throughput("100 to 1 QoS 1 wildcard", 1.7, qos=1, publishers=100, wildcard=1, window=20),
    # Fifty pairs that each wait for their PUBACK: every read of the broker brings one packet, and it is never idle.
    _throughput("one message per read QoS 1", 1.0, qos=1, publishers=50, subscribers=50, pairs=1, window=1),
    # Half of the messages at QoS 0, half at QoS 1: shows the cost of many topics and changing sizes.
    _throughput("mix of 1,000 topics, 16 to 256 B, QoS 0 and 1", 1.3, qos=1, **_MIX),
    Case(
        "2,000 connections",
        "connect",
        {"connections": 2000},
        (CONNECT_CPU, CONNECT_BYTES, CONNECT_RATE),
        {
            ("", CONNECT_BYTES): Goal(1536, MOST_OF_OURS),
            ("", CONNECT_RATE): Goal(15_000, LEAST_OF_OURS),
        },
        fresh=True,
    ),
    Case(
        "durable QoS 1 window 100",
        "flow",
        {"qos": 1, "window": 100, "persistent": 1},
        (RATE, CPU),
        {("", RATE): Goal(40_000, LEAST_OF_OURS)},
        ours=OURS_DURABLE,
        peers=(),
    ),
    Case(
        "QoS 1 window 100, store in Redis",
        "flow",
        {"qos": 1, "window": 100, "persistent": 1},
        (RATE, CPU),
        {(OURS_DURABLE, RATE): Goal(0.5, LEAST_RATIO)},
        ours=OURS_REDIS,
        peers=(OURS_DURABLE,),
    ),
    Case(
        "durable QoS 1, 100 publishers window 10",
        "flow",
        {"qos": 1, "window": 10, "publishers": 100, "persistent": 1},
        (RATE, CPU),
        {("", RATE): Goal(40_000, LEAST_OF_OURS)},
        ours=OURS_DURABLE,
        peers=(),
    ),
    Case(
        "10,000 offline messages",
        "offline",
        {"qos": 1, "messages": 10_000, "window": 1000, "patience": 3},
        (QUEUED, DRAINED),
        {(MOSQUITTO, QUEUED): Goal(2.0, LEAST_RATIO), (MOSQUITTO, DRAINED): Goal(1.5, LEAST_RATIO)},
    ),
    Case(
        "10,000 offline messages, ours durable",
        "offline",
        {"qos": 1, "messages": 10_000, "window": 1000, "patience": 3},
        (QUEUED, DRAINED),
        {(MOSQUITTO, QUEUED): Goal(2.0, LEAST_RATIO)},
        ours=OURS_DURABLE,
        peers=(MOSQUITTO, MOSQUITTO_DELAY),
    ),
    # Nobody takes them, so that every one is written.
    Case(
        "10,000 offline messages, store in Redis",
        "offline",
        {"qos": 1, "messages": 10_000, "window": 100, "patience": 3},
        (QUEUED, DRAINED),
        {(OURS_DURABLE, QUEUED): Goal(0.5, LEAST_RATIO)},
        ours=OURS_REDIS,
        peers=(OURS_DURABLE,),
    ),
    # What a message costs must not grow with the number of brokers. As fast as they can: at a given rate, where the
    # scheduler places a broker and its load changes what a message costs by half, also that of a single broker.
    Case(
        "four shards, QoS 1 window 100 each",
        "flow",
        {"qos": 1, "window": 100, "persistent": 1},
        (RATE, CPU),
        {(OURS_DURABLE, CPU): Goal(1.1, MOST_RATIO)},
        ours=SHARDS,
        peers=(OURS_DURABLE,),
    ),
    Case(
        "1,000 msg/s QoS 1",
        "flow",
        {"qos": 1, "rate": 1000},
        (P50, P99, CPU),
        {(MOSQUITTO, P50): Goal(1.5, MOST_RATIO), (MOSQUITTO, P99): Goal(4.0, MOST_RATIO)},
    ),
)
# One case for each thing that MQTT 5 adds work to: a packet, a delivery, a connection.
_BOTH_VERSIONS = ("QoS 1 window 100", "1 to 100 QoS 1", "2,000 connections")
CASES = (
    *_CASES,
    *(_compiled(case) for case in _CASES if case.ours == OURS and RATE in case.measures),
    *(_version_5(case) for case in _CASES if case.name in _BOTH_VERSIONS),
)


def figures(case: Case, result: Mapping[str, float]) -> dict[str, float]:
    """Return the measures of a case from what the load generator reported of one run."""
    counted, seconds = result["counted"], result["seconds"]
    each = {
        RATE: counted / seconds,
        CPU: result["cpu_us"] / max(counted, 1),
        P50: result.get("p50_us", 0),
        P99: result.get("p99_us", 0),
        CONNECT_CPU: result["cpu_us"] / max(counted, 1),
        CONNECT_BYTES: result.get("resident_bytes", 0) / max(counted, 1),
        CONNECT_RATE: counted / seconds,
        DRAINED: counted / seconds,
        QUEUED: counted / result.get("queue_seconds", seconds),
    }
    return {measure: each[measure] for measure in case.measures}


def faults(result: Mapping[str, float]) -> str:
    """Describe what was wrong with the deliveries of a run; "" if nothing was."""
    found = [f"{result[name]:,.0f} {name}" for name in ("missing", "repeated", "wrong") if result[name]]
    return ", ".join(found)


def rows(case: Case, medians: Mapping[str, Mapping[str, float]], peers: tuple[str, ...]) -> list[Row]:
    """Return the rows of a case. medians: by contender and measure. peers: those to show, even if they did not run."""
    found = []
    for measure in case.measures:
        ours = medians[case.ours][measure]
        name = f"{case.name}: {measure}"
        if ("", measure) in case.goals:
            found.append(Row(name, ours, goal=case.goals["", measure]))
        for peer in peers:
            if peer == MOSQUITTO_DELAY:
                continue  # mosquitto shows the better of the two
            figure = _figure_of(peer, measure, medians)
            found.append(Row(name, ours, figure, peer, case.goals.get((peer, measure))))
        if not any(row.case == name for row in found):
            found.append(Row(name, ours))
    return found


def _figure_of(peer: str, measure: str, medians: Mapping[str, Mapping[str, float]]) -> float | None:
    if peer != MOSQUITTO:
        return medians.get(peer, {}).get(measure)
    both = [medians[name][measure] for name in (MOSQUITTO, MOSQUITTO_DELAY) if name in medians]
    return (min if measure in _LESS_IS_BETTER else max)(both, default=None)

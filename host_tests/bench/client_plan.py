"""What the client's bench measures: scenarios, contenders, and the rows with the figure that each has to reach.

Several contenders run a scenario in turn, so that a ratio compares runs of the same minutes on the same machine. A
row compares one contender of ours with one peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench_rows import LEAST_RATIO, Goal, Row

# Payload of every message of the rates (bytes); most messages in flight; and the round trip of the slow link (ms).
PAYLOAD_BYTES = 64
WINDOW = 20
ROUND_TRIP_MS = 20.0


@dataclass(frozen=True)
class Contender:
    """A client and how it is run. program: a file in device/. peer: what it needs from --peers, None: nothing."""

    name: str
    program: str
    micropython: bool
    options: tuple[tuple[str, object], ...] = ()
    peer: str | None = None


OURS = Contender("ours", "ours.py", micropython=True)
OURS_CPYTHON = Contender("ours on CPython", "ours.py", micropython=False)
# Only its smallest heap is measured.
OURS_ASYNCIO = Contender("ours with asyncio", "ours_asyncio.py", micropython=True)
# The same program as for umqtt, with another import.
DROP_IN = Contender("drop-in", "umqtt_peer.py", micropython=True, options=(("module", "umqtt_robust.simple"),))
ALL_OURS = (OURS, OURS_CPYTHON, DROP_IN)


PAHO = Contender("paho-mqtt", "paho_peer.py", micropython=False)
# With an option that its users have to set on its socket themselves.
PAHO_NODELAY = Contender("paho-mqtt + TCP_NODELAY", "paho_peer.py", micropython=False, options=(("nodelay", True),))
SIMPLE = Contender("umqtt.simple", "umqtt_peer.py", True, (("module", "umqtt.simple"),), peer="umqtt/simple.py")
MQTT_AS = Contender("mqtt_as", "mqtt_as_peer.py", micropython=True, peer="mqtt_as.py")


@dataclass(frozen=True)
class Scenario:
    """One way to use a link. kind: publish or receive. slow: with a round trip of ROUND_TRIP_MS."""

    name: str
    kind: str
    qos: int
    slow: bool
    contenders: tuple[Contender, ...]


def _scenario(kind: str, qos: int, *others: Contender, slow: bool = False) -> Scenario:
    name = f"{kind} QoS {qos}, {'20 ms round trip' if slow else 'loopback'}"
    return Scenario(name, kind, qos, slow, (OURS, OURS_CPYTHON, PAHO, PAHO_NODELAY, *others))


SCENARIOS = (
    _scenario("publish", 1, MQTT_AS, SIMPLE, slow=True),
    _scenario("publish", 2, slow=True),
    _scenario("publish", 0, MQTT_AS, SIMPLE, DROP_IN),
    _scenario("publish", 1, MQTT_AS, SIMPLE),
    _scenario("publish", 2),
    _scenario("receive", 0, MQTT_AS, SIMPLE, DROP_IN),
    _scenario("receive", 1, MQTT_AS, SIMPLE),
)

# (scenario, our contender, peer): the least ratio ours / peer. Peers without an entry are shown without a goal.
GOALS = {
    ("publish QoS 1, 20 ms round trip", "ours", "physics"): 0.9,
    ("publish QoS 1, 20 ms round trip", "ours", "paho-mqtt"): 1.8,
    ("publish QoS 1, 20 ms round trip", "ours", "mqtt_as"): 7.0,
    ("publish QoS 1, 20 ms round trip", "ours", "umqtt.simple"): 55.0,
    ("publish QoS 2, 20 ms round trip", "ours", "physics"): 0.9,
    ("publish QoS 2, 20 ms round trip", "ours", "paho-mqtt"): 1.8,
    ("publish QoS 1, loopback", "ours", "paho-mqtt"): 3.0,
    ("publish QoS 2, loopback", "ours", "paho-mqtt"): 3.0,
    ("publish QoS 0, loopback", "ours", "umqtt.simple"): 1.3,
    ("publish QoS 0, loopback", "drop-in", "umqtt.simple"): 1.3,
    ("receive QoS 0, loopback", "ours", "umqtt.simple"): 1.0,
    ("receive QoS 1, loopback", "ours", "umqtt.simple"): 1.3,
    **{(scenario.name, OURS_CPYTHON.name, "paho-mqtt"): 2.0 for scenario in SCENARIOS},
}


def has_goal(scenario: Scenario, contender: Contender) -> bool:
    """Return True for our own contenders, and for peers that a goal names."""
    return contender in ALL_OURS or any((scenario.name, each.name, contender.name) in GOALS for each in ALL_OURS)


def rate_rows(
    scenario: Scenario, contenders: Sequence[Contender], medians: dict[str, float], physics: float | None
) -> list[Row]:
    """Return the rows of a scenario.

    contenders: those of the scenario to show. medians: messages/s of those that ran, by name. physics: the physical
    bound, if there is one.
    """
    rows = []
    for ours in ALL_OURS:
        if ours not in scenario.contenders:
            continue
        opponents: dict[str, float | None] = {}
        if physics is not None and ours is not DROP_IN:
            opponents["physics"] = physics
        for peer in contenders:
            if peer not in ALL_OURS and _compares(ours, peer):
                opponents[peer.name] = medians.get(peer.name)
        case = scenario.name if ours is OURS else f"{scenario.name} ({'drop-in' if ours is DROP_IN else 'CPython'})"
        for name, figure in opponents.items():
            least = GOALS.get((scenario.name, ours.name, name))
            goal = None if least is None else Goal(least, LEAST_RATIO)
            rows.append(Row(case, medians.get(ours.name), figure, name, goal, "messages/s"))
    return rows


def _compares(ours: Contender, peer: Contender) -> bool:
    """Return True if ours is compared with that peer."""
    if ours is DROP_IN:
        return peer.program == ours.program
    return ours.micropython or not peer.micropython

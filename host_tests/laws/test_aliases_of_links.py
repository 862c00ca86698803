"""With topic aliases of MQTT 5, both ways, all laws hold that hold without them.

The strict broker records each alias that its link does not know, and each repeated PUBLISH without a topic name.
There are two topics each way: two aliases are used again and again, and one changes its meaning all the time.
"""

from recorded import play, record
from test_cut_at_every_byte import everywhere, forgetful, lost_then_new, whole
from traffic import sweep
from umqtt_testkit.portable import equal
from world import Broker, Flash, World, every, with_mqtt5

HEAP = "4M"
TIMEOUT_S = 100


def _world(aliases=2, **options):
    return World([Broker(aliases=aliases)], connect_properties={"topic_alias_maximum": aliases}, **options)


def _no_cut_lets_an_alias_outlive_its_link():
    # Planted: forget() keeps the aliases.
    aliased = []

    def finish(world, traffic):
        whole(world, traffic)
        aliased.append(world.brokers[0].aliased)

    for step, make_world in ((3, _world), (6, lambda: _world(1)), (6, lambda: _world(flash=Flash())),
                             (6, lambda: _world(tx_size=64))):  # fmt: skip
        sweep(make_world, [[cut] for cut in everywhere(make_world, step)], finish)
    for way in range(2):
        assert sum([counts[way] for counts in aliased]) > 40, aliased


def _a_session_that_is_lost_takes_its_aliases_along():
    # Planted: forget() keeps the aliases.
    def make_world():
        world = forgetful()()
        world.brokers[0].aliases = 2
        world.options["connect_properties"] = {"topic_alias_maximum": 2}
        world.start()
        return world

    sweep(make_world, [[cut] for cut in everywhere(_world, 5)], lost_then_new)


def _every_split_of_a_session_with_aliases_gives_the_same_events():
    # Planted: large.py hands over a message that has only an alias under an empty topic name.
    recorded, events = record(2)
    total = sum([len(data) for _, data in recorded])
    equal(play(recorded, [], 2), events)
    equal([event[1] for event in events if event[0] == "large"], [b"down/large"] * 3)
    for at in every(total - 1, 4):
        equal(play(recorded, [at], 2), events, "split at %d" % at)


test_no_cut_lets_an_alias_outlive_its_link = with_mqtt5(_no_cut_lets_an_alias_outlive_its_link)
test_a_session_that_is_lost_takes_its_aliases_along = with_mqtt5(_a_session_that_is_lost_takes_its_aliases_along)
test_every_split_of_a_session_with_aliases_gives_the_same_events = with_mqtt5(
    _every_split_of_a_session_with_aliases_gives_the_same_events
)

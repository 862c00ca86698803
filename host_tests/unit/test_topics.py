"""Topic names and filters, MQTT 3.1.1 chapter 4.7."""

from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import InvalidArgument
from umqtt_robust.topics import check_topic_filter, check_topic_name, matches


def test_examples_of_the_specification():
    for topic_filter, topic, expected in (
        (b"sport/tennis/player1/#", b"sport/tennis/player1", True),
        (b"sport/tennis/player1/#", b"sport/tennis/player1/ranking", True),
        (b"sport/#", b"sport", True),
        (b"#", b"a/b/c", True),
        (b"sport/tennis/+", b"sport/tennis/player1", True),
        (b"sport/tennis/+", b"sport/tennis/player1/ranking", False),
        (b"sport/+", b"sport", False),
        (b"sport/+", b"sport/", True),
        (b"+/+", b"/finance", True),
        (b"/+", b"/finance", True),
        (b"+", b"/finance", False),
        (b"#", b"$SYS/uptime", False),
        (b"+/uptime", b"$SYS/uptime", False),
        (b"$SYS/#", b"$SYS/uptime", True),
        (b"a", b"A", False),
        (b"a/b", b"a", False),
        (b"a", b"a/b", False),
    ):
        equal(matches(topic_filter, topic), expected, (topic_filter, topic))


def _matches_slowly(wanted, levels):
    if not wanted:
        return not levels
    if wanted[0] == b"#":
        return True
    return bool(levels) and wanted[0] in (b"+", levels[0]) and _matches_slowly(wanted[1:], levels[1:])


def test_random_filters_agree_with_the_definition():
    rng = Rng(7)
    for _ in range(3000):
        levels = [rng.choice((b"", b"a", b"b", b"ab")) for _ in range(rng.between(1, 4))]
        wanted = [rng.choice((b"", b"a", b"b", b"ab", b"+")) for _ in range(rng.between(1, 4))]
        if rng.chance(30):
            wanted[-1] = b"#"
        topic_filter, topic = b"/".join(wanted), b"/".join(levels)
        equal(matches(topic_filter, topic), _matches_slowly(wanted, levels), (topic_filter, topic))


def test_what_may_not_be_a_topic_name():
    for topic in ("", b"", "a/+", b"#", b"a\0b", b"\xff", "x" * 65536, 7, None):
        raises(InvalidArgument, check_topic_name, topic)
    equal(check_topic_name("a/ä"), b"a/\xc3\xa4")
    equal(check_topic_name(b"x" * 65535), b"x" * 65535)


def test_what_may_not_be_a_topic_filter():
    for topic_filter in ("", "a#", "a/#/b", "a+", "+a/b", "##", b"a\0", b"\xc0", 1):
        raises(InvalidArgument, check_topic_filter, topic_filter)
    for topic_filter in (b"#", b"+", b"/", b"a/+/#", b"+/+", b"a//b"):
        equal(check_topic_filter(topic_filter), topic_filter)


def test_ill_formed_utf8_is_refused_on_every_interpreter():
    for text in (
        b"\xc0\xaf",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xc3",
    ):
        raises(InvalidArgument, check_topic_name, b"a" + text)
    for text in ("\u00e9\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff", "\u0001\u007f\u0080\u07ff"):
        equal(check_topic_name(text), text.encode())

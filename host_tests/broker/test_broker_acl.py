"""ACL files: the same answers as the real mosquitto; subscriptions are refused exactly if they can read nothing."""

import gc
import itertools
import os
import subprocess
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from client5 import Client5
from hypothesis import example, given, settings
from hypothesis import strategies as st
from umqtt_broker import ConfigError
from umqtt_broker.access import acl as acl_module
from umqtt_broker.access.acl import parse_acl, read_acl
from umqtt_broker.protocol.topic_filters import matches, split
from umqtt_broker.protocol.topics import is_topic_filter
from umqtt_testkit.mosquitto import Mosquitto, require_mosquitto
from umqtt_testkit.waiting import WAIT_LIMIT_S

pytestmark = pytest.mark.tier(0)

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))

LEVELS = (b"a", b"b", b"%c", b"%u", b"x%c", b"+")
# Every topic name of up to three of these levels, and names that begin with $.
TOPICS = [b"/".join(parts) for count in (1, 2) for parts in itertools.product((b"a", b"b", b"c", b"xa"), repeat=count)]
TOPICS += [b"a/b/c", b"b/b/b", b"a/xa/c", b"$SYS", b"$SYS/a", b"$SYSTEM/a", b"$x", b"$x/a", b"$x/b/c", b"/", b"a/"]
# Nobody but the broker may write to $SYS.
SENT = [topic for topic in TOPICS if not topic.startswith(b"$SYS")]

access = st.sampled_from([b"", b"read ", b"write ", b"readwrite ", b"deny "])
topic_filters = st.one_of(
    st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map(b"/".join),
    st.lists(st.sampled_from(LEVELS), max_size=2).map(lambda levels: b"/".join([*levels, b"#"])),
    st.sampled_from([b"$SYS/#", b"$x/#", b"$x/+/c", b"%c/#", b"/+", b"a/"]),
)
# Names or identifiers of a client, including dangerous ones. The slash has tests of its own, as we are stricter
# there.
names = st.sampled_from([b"a", b"b", b"c", b"+", b"#", b"a+", b"$SYS", b"$x"])


@st.composite
def acl_files(draw: st.DrawFn) -> bytes:
    rules = st.tuples(st.sampled_from([b"topic ", b"topic ", b"pattern "]), access, topic_filters)
    others = st.sampled_from([b"user a", b"user b", b"user  c ", b"# user b", b"", b"  topic   read  a/b  "])
    lines = draw(st.lists(st.one_of(rules.map(b"".join), rules.map(b"".join), others), min_size=1, max_size=12))
    return b"\n".join(lines) + b"\n"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Path]]:
    folder = tmp_path_factory.mktemp("acl")
    path = folder / "acl"
    path.write_bytes(b"topic #\n")
    with Mosquitto(folder, "allow_anonymous true", f"acl_file {path}") as mosquitto:
        yield mosquitto, path


# Publishes everything, to see who may read it.
ALL_RIGHTS = b"\nuser all\ntopic #\ntopic $x/#\n"


@pytest.mark.tier(1)
def test_every_publish_and_every_read_is_allowed_exactly_when_the_real_mosquitto_allows_it(judge) -> None:
    mosquitto, path = judge
    counts: Counter[str] = Counter()

    @settings(max_examples=3000 if FULL else 60)
    @given(acl_files(), st.lists(st.tuples(names, st.none() | names), min_size=1, max_size=3, unique=True))
    # The section decides before the patterns, whichever allows or denies.
    @example(b"topic a\ntopic deny b\npattern deny a\npattern b\n", [(b"c", None)])
    # A pattern for user names does not apply to clients without one.
    @example(b"pattern deny a/%u\npattern #\n", [(b"c", None), (b"c", b"b"), (b"c", b"")])
    @example(b"pattern /%u\npattern a/%u\n", [(b"c", None), (b"c", b"")])
    @example(b"topic a\nuser a\ntopic b\n", [(b"c", None), (b"c", b"")])
    def check(text: bytes, clients: list[tuple[bytes, bytes | None]]) -> None:
        path.write_bytes(text + ALL_RIGHTS)
        mosquitto.reload()
        acl = read_acl(path)
        for client_id, username in clients:
            rights = acl.rights(client_id, username)
            with (
                Client5(mosquitto.port, b"all", b"all") as everything,
                Client5(mosquitto.port, client_id, username) as client,
            ):
                taken = client.publish(TOPICS)
                assert {topic for topic in TOPICS if rights.may_publish(topic)} == taken, (client_id, username)
                client.subscribe(b"#", b"$x/#")
                assert everything.publish(SENT) == set(SENT)
                received = client.received()
                assert {topic for topic in SENT if rights.may_read(topic)} == received, (client_id, username)
                counts.update(taken=len(taken), refused=len(TOPICS) - len(taken), received=len(received))

    check()
    # A test in which everything is refused would prove little.
    assert min(counts[what] for what in ("taken", "refused", "received")) > 100, counts


@pytest.mark.tier(1)
@settings(max_examples=2000 if FULL else 100)
@given(acl_files(), names, st.none() | names, topic_filters)
@example(b"topic deny a/b\npattern a/+\n", b"c", None, b"a/#")
@example(b"topic deny a/#\npattern a/+\n", b"c", None, b"+/b")
@example(b"topic deny x\npattern deny a/#\npattern a/+\n", b"c", None, b"+/b")
@example(b"topic a/b\npattern deny a/#\n", b"c", None, b"a/+")
def test_a_subscription_is_refused_exactly_when_no_topic_it_matches_may_be_read(
    text: bytes, client_id: bytes, username: bytes | None, topic_filter: bytes
) -> None:
    rights = parse_acl(text, "acl").rights(client_id, username)
    wanted = split(topic_filter)
    # "other": a level that no rule names. Four levels are one more than any rule has.
    levels = {level for line in text.split() for level in line.split(b"/")} | {client_id, username or b"", b"other"}
    levels |= set(wanted) | {b"x" + client_id}
    levels = {level for level in levels if not set(level) & set(b"+#")}
    choices = [levels if level in (b"+", b"#") else {level} for level in wanted]
    lengths = range(len(wanted) - (wanted[-1] == b"#"), 5 if wanted[-1] == b"#" else len(wanted) + 1)
    readable = any(
        matches(wanted, name) and rights.may_read(b"/".join(name))
        for length in lengths
        for name in itertools.product(*(choices + [levels] * 4)[:length])
        if name and name != (b"",)
    )
    assert rights.grant(topic_filter, 1) == (1 if readable else 0x80)
    assert rights.grant(b"$share/group/" + topic_filter, 2) == (2 if readable else 0x80)


@pytest.mark.tier(1)
@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"topic", "no topic filter"),
        (b"topic  ", "no topic filter"),
        (b"pattern", "no topic filter"),
        (b"user", "user without a name"),
        (b"user  ", "user without a name"),
        (b"topic maybe a/b", "'maybe'"),
        (b"topic READ a/b", "'READ'"),
        (b"topic read a/#/b", "'a/#/b'"),
        (b"topic a+", "'a+'"),
        (b"pattern read %c+/a", "'%c+/a'"),
        (b"pattern read +%u/a", "'+%u/a'"),
        (b"allow a/b", "'allow'"),
        (b"  # not in the first column", "'#'"),
        (b"topic\tread a", "'topic\\tread'"),
    ],
)
def test_a_malformed_line_is_refused_by_file_and_line_as_mosquitto_refuses_it(
    tmp_path: Path, line: bytes, named: str
) -> None:
    path = tmp_path / "rules"
    path.write_bytes(b"# first\ntopic a\n" + line + b"\ntopic b\n")
    with pytest.raises(ConfigError) as caught:
        read_acl(path)
    assert str(caught.value).startswith(f"{path}:3: ") and named in str(caught.value)
    assert "—" in str(caught.value)
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener 0 {tmp_path}/socket\nuser root\nacl_file {path}\n")
    command = [require_mosquitto(), "-c", config]
    assert subprocess.run(command, capture_output=True, timeout=WAIT_LIMIT_S, check=False).returncode


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere: cannot read .*No such file"):
        read_acl(tmp_path / "nowhere")


def test_a_filter_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ConfigError, match="acl:1"):
        parse_acl(b"topic read a/\xff\n", "acl")


@pytest.mark.parametrize("dangerous", [b"#", b"+", b"a/+", b"pump-7/cmd", b"pump-7/#", b"/"])
def test_a_client_cannot_widen_its_rights_by_its_name(dangerous: bytes) -> None:
    acl = parse_acl(b"topic read open\nuser u\ntopic read open\npattern fleet/%c\npattern deny open/%c\n", "acl")
    for username in (None, b"u"):
        rights = acl.rights(dangerous, username)
        for topic in (b"fleet/pump-7", b"fleet/pump-7/cmd", b"fleet/a/b", b"fleet/" + dangerous, b"fleet//"):
            assert not rights.may_read(topic)
            assert not rights.may_publish(topic) or not is_topic_filter(topic) or set(topic) & set(b"+#")
        # What does not depend on the name stays allowed.
        assert rights.may_read(b"open")
    by_username = parse_acl(b"pattern fleet/%u/#\n", "acl")
    assert by_username.rights(b"id", b"pump-7").may_read(b"fleet/pump-7/cmd")
    assert not by_username.rights(b"id", dangerous).may_read(b"fleet/pump-7/cmd")
    # A slash in a name that no pattern uses does no harm.
    assert by_username.rights(b"site/pump-7", b"pump-7").may_read(b"fleet/pump-7/cmd")


def test_a_refused_name_does_not_escape_a_pattern_that_denies() -> None:
    acl = parse_acl(b"pattern deny secret/%c\npattern read #\n", "acl")
    assert not acl.rights(b"pump", None).may_read(b"secret/pump")
    assert not acl.rights(b"pump/7", None).may_read(b"secret/pump/7")


def test_what_is_no_topic_name_is_left_to_the_router() -> None:
    """Otherwise a client without rights could break the protocol and stay connected [MQTT-3.3.2-2]."""
    rights = parse_acl(b"", "acl").rights(b"c", None)
    assert not rights.may_publish(b"a")
    for name in (b"a/#", b"+", b"", b"\xff"):
        assert rights.may_publish(name)


def test_shared_subscriptions_without_a_filter_are_refused() -> None:
    rights = parse_acl(b"topic #\ntopic $share/#\n", "acl").rights(b"c", None)
    for topic_filter in (b"$share", b"$share/", b"$share/g", b"$share/g/", b"$shared/a"):
        assert rights.grant(topic_filter, 0) == 0x80
    assert rights.grant(b"$share/g/a/+", 0) == 0


def test_clients_of_one_user_share_their_rights_unless_a_pattern_tells_them_apart() -> None:
    shared = parse_acl(b"user u\ntopic a\npattern read b/%u\n", "acl")
    one = shared.rights(b"1", b"u")
    assert shared.rights(b"2", b"u") is one
    assert shared.rights(b"2", b"v") is not one and shared.rights(b"#", b"u") is not one
    apart = parse_acl(b"pattern read b/%c\n", "acl")
    assert apart.rights(b"1", b"u") is not apart.rights(b"2", b"u")


def test_ever_new_topics_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_module, "_MAX_ANSWERS", 50)
    monkeypatch.setattr(acl_module, "_MAX_ANSWERS_TOTAL", 200)
    acl = parse_acl(b"topic a/#\npattern b/%c\n", "acl")
    clients = [acl.rights(b"%d" % number, None) for number in range(10)]
    alone = parse_acl(b"topic a/#\n", "acl").rights(b"c", None)

    def ask(beginning: int, count: int) -> None:
        for number, rights in itertools.product(range(beginning, beginning + count), (*clients, alone)):
            # Long enough to be visible in the memory, and short enough to be remembered.
            name = (b"a/%0100d" if number % 2 else b"c/%0100d") % number
            assert rights.may_publish(name) == rights.may_read(name) == bool(number % 2)

    def memory() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        ask(0, 100)
        before = memory()
        ask(100, 400)
        # Only a few of 8,800 new answers of at least 150 bytes stay in memory.
        assert memory() - before < 200 * 400
        for rights in clients:
            for number in range(20):
                assert rights.may_read(b"a/%d/" % number + bytes(60_000))
        assert memory() - before < 200 * 400, "names that long are not remembered"
    finally:
        tracemalloc.stop()


def test_a_subscription_that_would_take_too_long_to_judge_is_granted_and_each_message_judged() -> None:
    wide = b"/".join([b"+"] * 30)
    lines = [b"topic read " + wide]
    for one, two in itertools.combinations(range(30), 2):
        for names in (b"aa", b"ab", b"ba", b"bb"):
            levels = [b"+"] * 30
            levels[one], levels[two] = names[:1], names[1:]
            lines.append(b"topic deny " + b"/".join(levels))
    rights = parse_acl(b"\n".join(lines), "acl").rights(b"c", None)
    hard = b"/".join([b"+"] * 15 + [b"a"] * 15)
    assert rights.grant(b"/".join([b"a"] * 30), 1) == 0x80
    assert rights.grant(hard, 1) in (1, 0x80)
    assert not rights.may_read(b"/".join([b"a"] * 30))
    assert rights.may_read(b"/".join([b"c"] * 30))

"""Subscriptions, retained messages and sessions have bounds, and no client takes the share of another."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_peer import BrokerThread, Peer
from hypothesis import example, given
from hypothesis import strategies as st
from peer5 import Peer5
from umqtt_broker import BrokerConfig
from umqtt_broker.access.files import FilePermission
from umqtt_broker.access.passwords import PasswordFile, PasswordHash
from umqtt_broker.protocol.messages import RetainedMessage
from umqtt_broker.protocol.reason_codes import ReasonCode
from umqtt_broker.routing import room
from umqtt_broker.routing.retained import RetainedMessages
from umqtt_testkit import encoder
from umqtt_testkit.encoder import UNSUBACK

pytestmark = pytest.mark.tier(0)

SHARE, OF_CLIENT, ALL = 2_000, 10_000, 16_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the bounds small."""
    monkeypatch.setattr(room, "SHARE", SHARE)
    for kind in ("SUBSCRIPTIONS", "RETAINED"):
        monkeypatch.setattr(room, f"MAX_{kind}_SIZE", ALL)
        monkeypatch.setattr(room, f"MAX_{kind}_SIZE_OF_CLIENT", OF_CLIENT)


def fill(try_one: Callable[[int], bool]) -> int:
    """Return how many of try_one(0), try_one(1), … succeed until one does not."""
    number = 0
    while try_one(number):
        number += 1
    return number


@pytest.mark.tier(1)
def test_a_client_that_subscribes_to_all_there_is_room_for_leaves_each_other_its_share(
    broker: BrokerThread, peer: Callable[..., Peer], peer5: Callable[..., Peer5]
) -> None:
    """Planted: the bound of all is asked alone; the size of a subscription that ends is not subtracted."""
    size = room.size_of(b"a/00")
    greedy, second, third = peer(b"greedy"), peer5(b"second"), peer(b"third")
    assert fill(lambda number: greedy.subscribe(b"a/%02d" % number, 1) < 0x80) == OF_CLIENT // size
    assert greedy.subscribe(b"a/00", 0) == 0, "a new QoS takes no room"

    def subscribe5(number: int) -> bool:
        (code,) = second.subscribe5((b"b/%02d" % number, 1))
        assert code in (1, ReasonCode.QUOTA_EXCEEDED)
        return code == 1

    assert fill(subscribe5) == ALL // size - OF_CLIENT // size
    assert fill(lambda number: third.subscribe(b"c/%02d" % number, 1) < 0x80) == SHARE // size
    greedy.send(encoder.unsubscribe(99, b"a/00"))
    greedy.expect(UNSUBACK, 99)
    for one in (greedy, second, third):
        one.disconnect()
    broker.wait_until(lambda: not broker.broker.router.room.subscriptions_size)


@pytest.mark.tier(1)
def test_a_client_that_retains_all_there_is_room_for_leaves_each_other_its_share(
    broker: BrokerThread, peer: Callable[..., Peer]
) -> None:
    """Planted: whoever publishes, the bound of all counts; what is refused is not delivered either."""
    greedy, second, third, reader = peer(b"greedy"), peer(b"second"), peer(b"third"), peer(b"reader")
    reader.subscribe(b"#", 0)
    counts = []
    for client, name in ((greedy, b"a"), (second, b"b"), (third, b"c")):

        def retain(number: int, client: Peer = client, name: bytes = name) -> bool:
            refused = broker.stats.retained_refused
            client.publish(b"%s/%02d" % (name, number), b"x" * 100, 1, retain=True)
            assert reader.receive_message().payload == b"x" * 100
            return broker.stats.retained_refused == refused

        counts.append(fill(retain))
    assert counts[0] > counts[1] > counts[2] > SHARE // 400
    assert broker.stats.retained == sum(counts) and broker.stats.retained_refused == 3
    # What has become too large does not leave the old value, which a new subscriber would take for the last one.
    greedy.publish(b"a/00", b"y" * OF_CLIENT, 1, retain=True)
    assert broker.stats.retained == sum(counts) - 1 and broker.stats.retained_refused == 4
    greedy.publish(b"a/01", b"y", 1, retain=True)
    assert broker.stats.retained_refused == 4, "what takes less room has it"


@pytest.mark.tier(1)
def test_what_clients_retained_before_a_restart_still_counts(tmp_path: Path) -> None:
    """Planted: recovered messages have no size."""
    path = str(tmp_path / "broker.db")
    sizes = []
    for _ in range(2):
        config = BrokerConfig(port=0, store=path, sys_interval=0)
        with BrokerThread(config) as broker, Peer(broker.port) as client:
            client.connect(b"client", clean_session=False)
            client.subscribe(b"a/b", 1)
            client.publish(b"a", b"x", 1, retain=True)
            sizes.append((broker.broker.router.room.subscriptions_size, broker.broker.router.retained.size))
    assert sizes[0] == sizes[1] and all(sizes[0])


def _keep(broker: BrokerThread, address: str, client_id: bytes, **options: Any) -> int:
    """Connect a client whose session is kept, from an address; return the code of its CONNACK."""
    with (
        socket.create_connection(("127.0.0.1", broker.port), source_address=(address, 0)) as link,
        Peer(connected=link) as client,
    ):
        client.send(encoder.connect(client_id, clean_session=False, **options))
        return client.receive().body[1]


@pytest.mark.tier(1)
def test_an_owner_that_leaves_all_sessions_there_is_room_for_leaves_each_other_its_share(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: discarded sessions still count; names that nobody has proved count; recovered sessions do not."""
    for name, value in {"MAX_SESSIONS": 8, "MAX_SESSIONS_OF_OWNER": 5, "SESSIONS_SHARE": 2}.items():
        monkeypatch.setattr(room, name, value)

    def many(broker: BrokerThread, address: str, **options: Any) -> int:
        """Return how many sessions of that name an address, or a user, can have."""
        name = f"{address}-{options.get('user_name')}-%d"
        return fill(lambda number: _keep(broker, address, (name % number).encode(), **options) == 0)

    config = BrokerConfig(port=0, store=str(tmp_path / "broker.db"), sys_interval=0)
    greedy, second, third = "127.0.0.2", "127.0.0.3", "127.0.0.4"
    with BrokerThread(config) as broker:
        assert [many(broker, one) for one in (greedy, second, third)] == [5, 3, 2]
        assert many(broker, third, user_name=b"other") == 0
        assert _keep(broker, greedy, b"127.0.0.2-None-0") == 0, "it has its session"
        assert _keep(broker, greedy, b"one", level=5, properties=b"\5\x11\0\0\0\5") == ReasonCode.QUOTA_EXCEEDED
        for number in range(5):
            with Peer(broker.port) as client:
                client.connect(b"127.0.0.2-None-%d" % number, clean_session=True)
                client.disconnect()
        broker.wait_until(lambda: broker.broker.router.room.sessions == 5)
        assert many(broker, greedy) == 3
    with BrokerThread(config) as broker:
        assert broker.broker.router.room.sessions == 8
        assert many(broker, second) == 3 + 2
    passwords = PasswordFile(str(tmp_path / "passwords"))
    for user in (b"greedy", b"other"):
        passwords.set(user, PasswordHash.make(b"secret", 1))
    passwords.write()
    broker = start_broker(permission=FilePermission(passwords.path))
    logins = [{"user_name": user, "password": b"secret"} for user in (b"greedy", b"other")]
    assert [many(broker, greedy, **login) for login in logins] == [5, 3]


_NAMES = st.lists(st.sampled_from([b"a", b"bb", b""]), min_size=1, max_size=4).map(b"/".join)


@example([(b"a", b"1"), (b"a/a", b"2"), (b"a/a", None)])
@example([(b"a/a", b"1"), (b"a/a/a", b"2"), (b"a/a", None), (b"a/a/a", None)])
@given(st.lists(st.tuples(_NAMES, st.one_of(st.none(), st.binary(min_size=1, max_size=5)))))
def test_the_size_of_retained_messages_is_that_of_those_that_are_left(
    changes: list[tuple[bytes, bytes | None]],
) -> None:
    """Planted: a level that loses all below it keeps the size of a node."""
    messages, left = RetainedMessages(), {}
    for topic_name, payload in changes:
        if payload is None:
            messages.remove(topic_name)
            left.pop(topic_name, None)
        else:
            left[topic_name] = payload
            messages.put(RetainedMessage(topic_name, payload, 0))
    fresh = RetainedMessages()
    for topic_name, payload in left.items():
        fresh.put(RetainedMessage(topic_name, payload, 0))
    assert messages.size == fresh.size and (left or messages.size == 0)

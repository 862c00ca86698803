"""A store in Redis: another broker takes it over, and the previous one acknowledges nothing any more.

UMQTT_FULL_SWEEPS=1 lets everything fail, with several seeds; `make prove-broker` does so with new ones.
"""

import os
from collections.abc import Callable
from pathlib import Path

import failover_law
import pytest
from broker_peer import Peer, StartBroker, StartRedis
from umqtt_broker.errors import LeaseLost
from umqtt_broker.settings.redis_url import parse_redis_url
from umqtt_broker.store import redis_backend, redis_rows
from umqtt_broker.store.change_batch import Batch, Page
from umqtt_broker.store.redis_backend import RedisBackend
from umqtt_testkit import encoder
from umqtt_testkit.proxy import FaultProxy
from umqtt_testkit.redis_server import RedisServer

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


@pytest.mark.parametrize("seed", range(9) if FULL else [1])
def test_everything_acknowledged_survives_whatever_fails_in_order_and_at_qos_2_once(tmp_path: Path, seed: int) -> None:
    faults, engine = failover_law.plan(seed) if FULL else (["kill redis", "stop active"], "redis")
    tally = failover_law.run(tmp_path, faults, seed, engine=engine)
    assert tally.failures == [], f"seed {seed}: {faults} with {engine}"
    assert tally.messages > 500


@pytest.mark.skipif(not FULL, reason="the sample is of good brokers")
@pytest.mark.parametrize("mistake", failover_law.MISTAKES)
@pytest.mark.tier(3)  # a control
def test_the_count_catches_brokers_that(tmp_path: Path, mistake: str) -> None:
    program, faults = failover_law.MISTAKES[mistake]
    for seed in range(1, 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        if failover_law.run(folder, faults, seed, program).failures:
            return
    pytest.fail("no law was seen broken")


# A broker that has lost the store


def take_over(redis: RedisServer) -> None:
    """Do what another broker does when the lease has ended."""
    assert redis.command("HINCRBY", redis_rows.STORE.decode(), "epoch", "1") == ":2\r\n"


def without_effect(peer: Peer) -> bytes:
    """Return a message that nobody wants, so that nothing of it is recorded."""
    return encoder.publish(b"nobody/wants", b"this", 1, 7)


def retained(peer: Peer) -> bytes:
    return encoder.publish(b"state", b"on", 1, 7, retain=True)


def subscription(peer: Peer) -> bytes:
    return encoder.subscribe(7, (b"#", 1))


def ping(peer: Peer) -> bytes:
    return encoder.pingreq()


@pytest.mark.parametrize("packet", [without_effect, retained, subscription, ping])
def test_a_broker_that_was_taken_over_from_answers_nothing(
    start_redis: StartRedis, start_broker: StartBroker, packet: Callable[[Peer], bytes]
) -> None:
    """Planted: GroupCommitStore._confirm_lease() does nothing; redis_scripts.BATCH does not check the lease."""
    redis = start_redis()
    broker = start_broker(store=redis.url)
    with Peer(broker.port) as peer:
        peer.connect(b"p")
        take_over(redis)
        peer.send(packet(peer))
        reason = broker.wait_until(lambda: broker.broker.store.failure)
        assert "taken over" in reason
        peer.assert_silent()


def test_nobody_is_let_in_by_a_broker_that_was_taken_over_from(
    start_redis: StartRedis, start_broker: StartBroker
) -> None:
    """Planted: Connection._answer() sends the CONNACK at once if nothing was recorded."""
    redis = start_redis()
    broker = start_broker(store=redis.url)
    take_over(redis)
    with Peer(broker.port) as peer:
        peer.send(encoder.connect(b"p"))
        broker.wait_until(lambda: broker.broker.store.failure)
        peer.assert_silent()


def test_a_batch_is_sent_again_when_the_answer_to_it_was_lost_and_counts_once(start_redis: StartRedis) -> None:
    """Planted: BATCH takes a known batch for one after lost ones, or adds a number to the row."""
    with FaultProxy(("127.0.0.1", start_redis().port)) as proxy:
        backend = RedisBackend(parse_redis_url(f"redis://127.0.0.1:{proxy.port}/0"))
        assert backend.acquire() == ""
        backend.open()
        (connection,) = proxy.connections
        connection.cut_after(1, "down")
        batch = Batch()
        batch.deliveries = [(1, 5, 9, 2, 0, 1, 0, b"t", b"x", 0)]
        batch.released = [(1, 1, 5)]
        backend.write(batch)
        assert connection.closed
        after = Batch()
        after.pages = [Page(1, 0, 10, lambda rows: None)]
        ((row,),) = backend.write(after)
        assert (row.position, row.packet_id, row.released) == (5, 9, 1)
        backend.close()


def test_an_answer_that_is_read_when_the_lease_may_have_ended_counts_as_none(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: RedisBackend._execute() checks the clock only after an error."""
    backend = RedisBackend(parse_redis_url(start_redis().url))
    assert backend.acquire() == ""
    monkeypatch.setattr(redis_backend, "_PATIENCE", 0)
    with pytest.raises(LeaseLost, match="when the lease may have ended"):
        backend.write(Batch())
    backend.close()


def test_a_redis_that_has_lost_batches_is_noticed(start_redis: StartRedis, start_broker: StartBroker) -> None:
    """Planted: BATCH does not compare the number of the last batch."""
    redis = start_redis()
    broker = start_broker(store=redis.url)
    with Peer(broker.port) as peer:
        peer.connect(b"p", clean_session=False)
        redis.command("HSET", redis_rows.STORE.decode(), "batch", "0")
        peer.send(encoder.publish(b"t", b"x", 1, 7, retain=True))
        assert "has lost its last" in broker.wait_until(lambda: broker.broker.store.failure)
        peer.assert_silent()

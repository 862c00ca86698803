"""The broker's reports on a Redis that it cannot use, and on an invalid address: one line with the next step."""

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from broker_certificates import Pki
from broker_peer import Peer, StartBroker, StartRedis
from configured_broker import ConfiguredBroker
from cryptography.hazmat.primitives import serialization
from umqtt_broker.errors import ConfigError, LeaseLost, StoreError
from umqtt_broker.settings.redis_url import parse_redis_url
from umqtt_broker.store import redis_backend
from umqtt_broker.store.base import Owner
from umqtt_broker.store.change_batch import Batch
from umqtt_broker.store.redis_backend import RedisBackend
from umqtt_testkit import encoder
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.redis_server import RedisServer
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

# Runs a test with both engines.
ENGINES = pytest.mark.parametrize("start_redis", ["redis", "valkey"], indirect=True)

PROGRAM = (sys.executable, "-m", "umqtt_broker")


@pytest.mark.tier(0)
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h:port/0", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h/first", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h/-1", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h/0?wait=-1", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h/0?wait", "is not redis://HOST:PORT/DATABASE"),
        ("redis://h/0#x", "is not redis://HOST:PORT/DATABASE"),
        ("redis://:secret@h/0", "put it in a file"),
        ("redis://h/0?pasword_file=x", "no option 'pasword_file'"),
        ("redis://h/0?cafile=ca.pem", "begin it with rediss://"),
        ("redis://h/0?certfile=c&keyfile=k", "begin it with rediss://"),
        ("rediss://h/0?keyfile=k", "name both"),
    ],
)
def test_an_address_that_is_none_is_refused_in_a_line_that_shows_no_password(address: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_redis_url(address)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.tier(0)
def test_an_address_has_its_parts() -> None:
    url = parse_redis_url("rediss://umqtt@[::1]:7000/3?password_file=/p&cafile=/c&certfile=/d&keyfile=/k&wait=1")
    assert url == ("::1", 7000, 3, True, "umqtt", "/p", "/c", "/d", "/k", 1)
    assert url.shown == "rediss://[::1]:7000/3"


def refusal(url: str) -> str:
    """Return the broker's message about a store."""
    backend = RedisBackend(parse_redis_url(url))
    with pytest.raises(StoreError) as refused:
        backend.acquire()
    backend.close()
    return str(refused.value)


@ENGINES
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"appendonly": "no"}, "set appendonly yes there"),
        ({"appendfsync": "everysec"}, "set appendfsync always there"),
        ({"no_appendfsync_on_rewrite": "yes"}, "set no-appendfsync-on-rewrite no there"),
        ({"maxmemory_policy": "allkeys-lru"}, "set maxmemory-policy noeviction there"),
        ({"replicaof": "127.0.0.1 1"}, "is a replica, which takes no writes — name the primary"),
        ({"cluster_enabled": "yes"}, "name a Redis that stands alone"),
    ],
)
def test_a_redis_that_could_lose_what_was_acknowledged_is_refused(
    start_redis: StartRedis, options: dict[str, str], said: str
) -> None:
    """Planted: a setting is missing from _SETTINGS."""
    assert said in refusal(start_redis(**options).url)


@ENGINES
def test_a_redis_that_cannot_be_used_is_refused(start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "see that Redis runs there" in refusal(f"redis://127.0.0.1:{reserved_port()}/0")
    redis = start_redis()
    redis.command("SET", "theirs", "1")
    assert "has data of another program — name another database" in refusal(redis.url)
    redis.command("FLUSHALL")
    redis.command("HSET", "umqtt:store", "version", "2")
    assert "has version 2, this broker knows 1 — use the umqtt that made it" in refusal(redis.url)
    redis.command("CONFIG", "SET", "requirepass", "right")
    assert "refuses the password — correct" in refusal(redis.url)
    monkeypatch.setenv("UMQTT_STORE_PASSWORD", "wrong")
    assert "refuses the password — correct" in refusal(redis.url)
    assert "password_file /none cannot be read" in refusal(redis.url + "?password_file=/none")


# TLS


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def tls_redis(tmp_path_factory: pytest.TempPathFactory, pki: Pki) -> Iterator[int]:
    """Provide a Redis that asks for a certificate; return the port on which it speaks TLS."""
    port = reserved_port()
    options = {
        "bind": "127.0.0.1 127.0.0.2",
        "tls_port": str(port),
        "tls_cert_file": pki.path("broker.pem"),
        "tls_key_file": pki.path("broker.key"),
        "tls_ca_cert_file": pki.path("ca.pem"),
    }
    with RedisServer(tmp_path_factory.mktemp("redis"), **options):
        yield port


def tls_url(pki: Pki, port: int, cafile: str, certificate: str, host: str = "localhost") -> str:
    """Return an address; cafile and certificate are names in `pki`, "" for none."""
    options = [f"cafile={pki.path(cafile)}.pem"] if cafile else []
    if certificate:
        options.append(f"certfile={pki.path(certificate)}.pem&keyfile={pki.path(certificate)}.key")
    return f"rediss://{host}:{port}/0?{'&'.join(options)}"


def test_a_broker_keeps_its_store_in_a_redis_with_tls_that_knows_it_by_its_certificate(
    start_broker: StartBroker, pki: Pki, tls_redis: int
) -> None:
    """Planted: RedisBackend._connect() connects without TLS; a context without the certificate."""
    broker = start_broker(store=tls_url(pki, tls_redis, "ca", "good"))
    with Peer(broker.port) as peer:
        peer.connect(b"p", clean_session=False)
        peer.send(encoder.publish(b"t", b"x", 1, 7, retain=True))
        peer.expect(encoder.PUBACK, 7)


@pytest.mark.parametrize(
    ("cafile", "certificate", "host", "said"),
    [
        ("ca", "", "localhost", "name certfile and keyfile"),
        ("ca", "stranger", "localhost", "name certfile and keyfile"),
        ("ca", "good", "127.0.0.2", "correct the cafile, or the name of the host"),
        ("other", "good", "localhost", "correct the cafile, or the name of the host"),
        ("", "good", "localhost", "correct the cafile, or the name of the host"),
        ("none", "good", "localhost", "none.pem (No such file"),
        ("ca", "locked", "localhost", "is encrypted — remove its passphrase"),
    ],
)
def test_a_redis_with_tls_that_is_not_trusted_or_does_not_trust_is_refused(
    pki: Pki, tls_redis: int, cafile: str, certificate: str, host: str, said: str
) -> None:
    """Planted: a context that checks no host name; OpenSSL asks for the passphrase on the terminal."""
    lock(pki, "locked")
    line = refusal(tls_url(pki, tls_redis, cafile, certificate, host))
    assert said in line and "\n" not in line


def test_whom_the_system_trusts_does_not_count_beside_a_cafile(
    pki: Pki, tls_redis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: redis-py's context, which adds the cafile to the authorities that the system trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", pki.path("ca.pem"))
    assert "is not trusted" in refusal(tls_url(pki, tls_redis, "other", "good"))
    trusting = RedisBackend(parse_redis_url(tls_url(pki, tls_redis, "", "good")))
    trusting.check()


def test_the_other_kind_of_port_is_named(start_redis: StartRedis, pki: Pki, tls_redis: int) -> None:
    assert "answers with TLS" in refusal(tls_url(pki, start_redis().port, "ca", ""))
    assert "answers without TLS" in refusal(f"redis://localhost:{tls_redis}/0")


def lock(pki: Pki, name: str) -> None:
    """Make a certificate whose key has a passphrase."""
    pki.authority.sign(name)
    path = pki.folder / f"{name}.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )


def test_the_password_comes_from_a_file_or_from_the_environment(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # However long this takes, the first one's lease lasts.
    monkeypatch.setattr(redis_backend, "LEASE_MS", int(1000 * WAIT_LIMIT_S))
    redis = start_redis(requirepass="right")
    (tmp_path / "password").write_text("right\n")
    named = RedisBackend(parse_redis_url(f"{redis.url}?password_file={tmp_path}/password"))
    assert named.acquire() == ""
    monkeypatch.setenv("UMQTT_STORE_PASSWORD", "right")
    other = RedisBackend(parse_redis_url(redis.url))
    assert "is held by" in other.acquire()
    named.close()
    assert other.acquire() == ""
    other.close()


def test_a_batch_that_a_replica_must_have_counts_when_it_has_it(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: RedisBackend._execute() does not wait for replicas."""
    primary = start_redis()
    replica = start_redis(replicaof=f"127.0.0.1 {primary.port}")
    eventually(lambda: "master_link_status:up" in replica.command("INFO", "replication"))
    backend = RedisBackend(parse_redis_url(primary.url + "?wait=1"))
    assert backend.acquire() == ""
    batch = Batch()
    batch.inbound[1, 7] = True
    backend.write(batch)
    replica.stop()
    monkeypatch.setattr(redis_backend, "_PATIENCE", 0)
    monkeypatch.setattr(redis_backend, "_CONNECT_TIMEOUT", 0.01)
    with pytest.raises(LeaseLost, match="only 0 of 1 replicas have the last batch"):
        backend.write(batch)
    backend.close()


def test_a_start_reads_what_was_written_whatever_the_sizes_of_sessions(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: _recover() takes the first part for a whole queue; _scan() does so for a hash."""
    monkeypatch.setattr(redis_backend, "_SLICE", 8)
    monkeypatch.setattr(redis_backend, "_MANY", 4)
    monkeypatch.setattr(redis_backend, "_FEW", 2)
    # So that small hashes and sets are read in parts too.
    redis = start_redis(hash_max_listpack_entries="2", set_max_intset_entries="2")
    sizes = dict(enumerate([0, 1, 2, 3, 9, 10, 11, 40], 1))
    backend = RedisBackend(parse_redis_url(redis.url))
    assert backend.acquire() == ""
    batch = Batch()
    for session, size in sizes.items():
        batch.sessions[session] = (b"client-%d" % session, Owner(b"user", 5, 60))
        for number in range(1, size + 1):
            batch.deliveries.append((session, number, number, 2, 0, 1, 0, b"t", b"x" * number, 0))
            batch.subscriptions[session, b"t/%d" % number] = (1, number)
            batch.retained_pending[session, b"t/%d" % number] = bool(number % 2)
            batch.inbound[session, number] = True
        batch.released += [(1000 + session, session, number) for number in (size - 1, size) if number > 0]
    backend.write(batch)
    sessions = backend.open().recovered.sessions
    assert [session.number for session in sessions] == list(sizes)
    for session, size in zip(sessions, sizes.values(), strict=True):
        numbers = range(1, size + 1)
        assert (session.queued, session.last_position) == (size, size)
        assert sorted(position for position, _ in session.released) == list(numbers[-2:])
        assert session.queued_bytes == sum(numbers[:-2])
        assert sorted(session.subscriptions) == sorted((b"t/%d" % number, 1, number) for number in numbers)
        assert set(session.retained_pending) == {b"t/%d" % number for number in numbers if number % 2}
        assert session.inbound == set(numbers)
        assert (session.username, session.protocol_level, session.session_expiry) == (b"user", 5, 60)
    backend.close()


@pytest.mark.parametrize(
    "command",
    [
        "HDEL umqtt:owners 1",
        "HSET umqtt:owners 1 x",
        "HSET umqtt:sessions x y",
        "HSET umqtt:sent 1 x",
        "HSET umqtt:away 1 x",
        "HSET umqtt:subscriptions:1 t x",
        "SADD umqtt:inbound:1 x",
        "ZADD umqtt:queue:1 1 short",
        "HSET umqtt:retained t x",
        "HSET umqtt:wills c x",
        "DEL umqtt:inbound:1 SET umqtt:inbound:1 x",
    ],
)
def test_a_store_that_somebody_has_garbled_is_refused_in_a_line(start_redis: StartRedis, command: str) -> None:
    """Planted: RedisBackend.open() lets KeyError and ValueError through: a traceback, and no broker."""
    redis = start_redis()
    backend = RedisBackend(parse_redis_url(redis.url))
    assert backend.acquire() == ""
    batch = Batch()
    batch.sessions[1] = (b"client", Owner())
    batch.inbound[1, 7] = True
    backend.write(batch)
    backend.open()
    first, _, second = command.partition(" SET ")
    redis.command(*first.split())
    if second:
        redis.command("SET", *second.split())
    with pytest.raises(StoreError, match="garbled — restore a backup of Redis") as refused:
        backend.open()
    assert "\n" not in str(refused.value)
    backend.close()


def test_a_fleet_is_read_in_few_scripts(start_redis: StartRedis) -> None:
    """Planted: _MANY of 1. Then 10,000 sessions take 40,000 round trips, longer than the failover itself."""
    redis = start_redis()
    backend = RedisBackend(parse_redis_url(redis.url))
    assert backend.acquire() == ""
    batch = Batch()
    for session in range(1, 401):
        batch.sessions[session] = (b"client-%d" % session, Owner())
        batch.subscriptions[session, b"t"] = (1, 0)
        batch.inbound[session, 7] = True
    backend.write(batch)
    before = scripts_of(redis)
    assert len(backend.open().recovered.sessions) == 400
    assert scripts_of(redis) - before < 20
    backend.close()


def scripts_of(redis: RedisServer) -> int:
    """Return the number of scripts that have run."""
    found = re.search(r"cmdstat_evalsha:calls=(\d+)", redis.command("INFO", "commandstats"))
    assert found is not None
    return int(found[1])


def test_a_program_ends_with_a_line_or_waits_as_standby(start_redis: StartRedis, tmp_path: Path) -> None:
    """Planted: Process.run() ends if another broker has the store."""
    redis = start_redis()
    refused = subprocess.run(
        [*PROGRAM, "--store", "redis://:secret@h/0"], capture_output=True, text=True, timeout=WAIT_LIMIT_S, check=False
    )
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "secret" not in refused.stderr
    text = f"listener 0 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {redis.url}\n"
    with (
        ConfiguredBroker(tmp_path / "broker.conf", text) as active,
        program("-p", "0", "--store", redis.url) as (standby, first_line),
    ):
        assert first_line.startswith(f"standby: store {redis.url} is held by ")
        assert first_line.endswith(f":{active.process.pid}\n")
        assert active.stop() == 0
        assert standby.stdout is not None and standby.stdout.readline().startswith("listening on ")
        standby.terminate()
        assert standby.wait(WAIT_LIMIT_S) == 0


def test_a_standby_shows_who_has_the_store_and_ends_when_told(
    start_redis: StartRedis, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Planted: Guard lets requests through to a standby."""
    redis, port = start_redis(), reserved_port()
    start_broker(store=redis.url)
    conf, token = tmp_path / "broker.conf", tmp_path / "token"
    conf.write_text(
        f"listener 0 127.0.0.1\nallow_anonymous true\nhttp_listener {port}\nhttp_token_file {token}\n"
        f"persistence true\npersistence_location {redis.url}\n"
    )
    with program("-c", str(conf)) as (standby, first_line):
        reason = first_line.rstrip()
        assert reason.startswith("standby: ")
        for path in ("/readyz", "/api/v1/broker"):
            status, text = ask(port, path, token.read_text().strip())
            assert (status, json.loads(text)["error"]["message"]) == (503, reason)
        status, text = ask(port, "/metrics", token.read_text().strip())
        assert status == 200 and "umqtt_broker_standby 1.0" in text
        standby.terminate()
        assert standby.wait(WAIT_LIMIT_S) == 0


@contextmanager
def program(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the broker as a program; yield it with its first line, and end it."""
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def ask(port: int, path: str, token: str) -> tuple[int, str]:
    """Return status and body of a request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_LIMIT_S)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    try:
        return response.status, response.read().decode()
    finally:
        connection.close()

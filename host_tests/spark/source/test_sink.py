"""Laws of the sink's task, without Spark: each row at least once, within the window, and clear refusals."""

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pyarrow as pa
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql.types import ArrayType, MapType, StringType, StructType
from umqtt_broker.cli.authority import Authority
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.peer import Link, ScriptedPeer
from umqtt_testkit.waiting import eventually
from umqtt_testkit.wire import Packet, Type

from spark_ingest.errors import BrokerRefused, IngestError, PublishFailed, UsageError
from spark_ingest.source.rows import HEADERS_ARROW_SCHEMA
from spark_ingest.source.sink import SinkOptions, _Publisher, publish_rows

ROWS = StructType().add("topic", "string").add("payload", "binary").add("qos", "integer").add("retain", "boolean")
HEADED = StructType().add("topic", "string").add("payload", "binary")
HEADED = HEADED.add("headers", ArrayType(StructType().add("key", "string").add("value", "binary")))
WRONG_HEADERS = StructType().add("payload", "binary").add("headers", MapType(StringType(), StringType()))
TEXTS = StructType().add("topic", "string").add("payload", "string")


def options(url: str, schema: StructType = ROWS, **more: object) -> SinkOptions:
    return SinkOptions({"broker": url, **{name: str(value) for name, value in more.items()}}, schema)


def batches(rows: list[tuple], size: int = 10) -> Iterator[pa.RecordBatch]:
    names = ["topic", "payload", "qos", "retain"]
    for start in range(0, len(rows), size):
        columns = zip(*rows[start : start + size], strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(list(column)) for column in columns], names[: len(rows[0])])


def numbered(count: int, qos: int = 1) -> list[tuple]:
    return [("out", b"%d" % i, qos, False) for i in range(count)]


def publishes(link: Link) -> Iterator[Packet]:
    """Yield the PUBLISH packets of a link, until DISCONNECT or its end."""
    while (packet := link.receive()) is not None and packet.type is not Type.DISCONNECT:
        if packet.type is Type.PUBLISH:
            yield packet
        else:
            link.answer(packet)


@pytest.mark.parametrize("seed", range(60 if os.environ.get("UMQTT_FULL_SWEEPS") else 6))
def test_a_task_ends_when_the_broker_has_acknowledged_every_row_whatever_links_break(seed, monkeypatch):
    """Planted: a task that disconnects once everything is sent; one that does not wait for the last
    acknowledgement.
    """
    monkeypatch.setattr(_Publisher, "_random", lambda *_: 0)
    rng = random.Random(seed)
    cuts = [rng.randint(0, 19) for _ in range(2)]  # so that rows are left for the third link
    acknowledged: set[bytes] = set()
    rows = numbered(40, qos=rng.choice((1, 2)))

    def script(peer: ScriptedPeer) -> None:
        for cut in (*cuts, len(rows) * 2):
            link = peer.accept()
            link.accept_session()
            for packet in publishes(link):
                if not cut:
                    break
                cut -= 1
                acknowledged.add(packet.payload)
                link.answer(packet)
            if not cut:
                link.reset()

    with ScriptedPeer() as peer:
        peer.run(script)
        publish_rows(batches(rows), options(peer.url, window=rng.choice((1, 7, 100))))
        assert acknowledged == {row[1] for row in rows}, f"seed {seed}"


def test_no_more_rows_are_taken_than_the_window_has_room_for():
    """Planted: three windows of messages in the client's outbox."""
    window, taken, acknowledged = 5, 0, 0

    def script(peer: ScriptedPeer) -> None:
        nonlocal acknowledged
        link = peer.accept()
        link.accept_session()
        waiting: list[Packet] = []
        for packet in publishes(link):
            waiting.append(packet)
            if len(waiting) == window:
                for one in waiting:
                    acknowledged += 1
                    link.answer(one)
                waiting.clear()

    def one_by_one() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in batches(numbered(6 * window), 1):
            taken += 1
            assert taken - acknowledged <= window + 1
            yield batch

    with ScriptedPeer() as peer:
        peer.run(script)
        publish_rows(one_by_one(), options(peer.url, window=window))


def test_nothing_connects_for_a_partition_without_rows():
    publish_rows([], options("mqtt://127.0.0.1:1"))
    publish_rows([pa.RecordBatch.from_pylist([], pa.schema([("topic", pa.string())]))], options("mqtt://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((None, b"x"), "topic is null"),
        (("a", None), "payload is null"),
        (("a/#", b"x"), "topic is empty or has a wildcard"),
        (("", b"x"), "topic is empty or has a wildcard"),
        (("a\0b", b"x"), "NUL"),
        (("a" * 65536, b"x"), "too long"),
        (("a", b"x", 3), "qos"),
    ],
)
def test_a_row_that_is_no_message_stops_the_task_and_is_named(row, reason):
    """Planted: a row that is skipped."""
    with ScriptedPeer() as peer, pytest.raises(PublishFailed, match=rf"row 3 of a partition.*{reason}"):
        publish_rows(batches([("a", b"x", 1)[: len(row)]] * 2 + [row], 1), options(peer.url))


@pytest.mark.parametrize(
    ("given", "schema", "reason"),
    [
        ({"broker": None}, ROWS, "needs option broker"),
        ({"broker": "127.0.0.1"}, ROWS, "is not a broker's address"),
        ({"broker": "mqtt://u:secret@x"}, ROWS, "must not hold credentials"),
        ({"brokr": "mqtt://x"}, ROWS, "has no option brokr; it has broker, topic"),
        ({"path": "spool"}, ROWS, "has no option path"),
        ({"window": "0"}, ROWS, "window must be a whole number from 1"),
        ({"window": "10001"}, ROWS, "window must be a whole number from 1 to 10000"),
        ({"timeout": "soon"}, ROWS, "timeout must be a time such as"),
        ({"username": "u", "passwordFile": "none"}, ROWS, "cannot read the password file none"),
        ({"caFile": "ca.pem"}, ROWS, "use mqtts://"),
        ({}, StructType().add("topic", "string"), "no column payload"),
        ({}, StructType().add("payload", "binary"), "no column topic: add one, or give option topic"),
        ({}, StructType().add("topic", "binary").add("payload", "binary"), "column topic must be string, not binary"),
        ({}, StructType().add("topic", "string").add("payload", "long"), "payload must be binary or string"),
        ({}, WRONG_HEADERS, "column headers must be array<struct<key:string,value:binary>>, not map<string,string>"),
        ({}, StructType().add("retian", "boolean").add("payload", "binary"), "does not publish retian: select topic"),
    ],
)
def test_options_and_columns_that_cannot_work_are_refused_before_anything_is_published(given, schema, reason):
    named = {"broker": "mqtt://127.0.0.1:1", **given}
    with pytest.raises(UsageError, match=reason) as refused:
        SinkOptions({name: value for name, value in named.items() if value is not None}, schema)
    assert "secret" not in str(refused.value)


def test_a_broker_that_refuses_ends_the_task_at_once_and_the_password_is_in_no_text(tmp_path):
    """Planted: a sink that keeps trying; a password in the message."""
    (tmp_path / "password").write_text("this-must-not-be-seen\n")
    with ScriptedPeer() as peer:
        given = options(peer.url, username="u", passwordFile=tmp_path / "password")

        def script(peer: ScriptedPeer) -> None:
            assert peer.accept().accept_session(return_code=5).password == b"this-must-not-be-seen"

        peer.run(script)
        with pytest.raises(BrokerRefused, match="refused the sink: not authorized") as refused:
            publish_rows(batches(numbered(3)), given)
    assert refused.value.return_code == 5
    assert "this-must-not" not in str(refused.value) + repr(given)


def test_a_broker_that_acknowledges_nothing_ends_the_task_after_the_timeout_with_the_reason():
    with ScriptedPeer() as peer:
        peer.refuse()
        with pytest.raises(PublishFailed, match=r"acknowledged nothing for 0\.001 s: .*refused"):
            publish_rows(batches(numbered(3)), options(peer.url, timeout="1ms"))


def test_columns_arrive_as_they_are_over_tls_with_a_client_certificate_and_a_stranger_gets_nothing(tmp_path):
    """An executor has no files: what the driver has read arrives pickled. Planted: files that the task opens."""
    ours, strangers = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    for authority in (ours, strangers):
        authority.create("test")
    ours.issue_broker(["127.0.0.1"])
    ours.issue_device("sink")
    at_broker, mine = ours.folder / "broker", ours.folder / "devices" / "sink"
    lines = (
        f"cafile {ours.folder}/ca.pem\ncertfile {at_broker}/cert.pem\nkeyfile {at_broker}/key.pem",
        "require_certificate true\nuse_identity_as_username true",
    )
    got: list[tuple] = []
    with Mosquitto(tmp_path, *lines) as broker:
        url = f"mqtts://127.0.0.1:{broker.port}"
        given = options(url, caFile=ours.folder / "ca.pem", certFile=mine / "cert.pem", keyFile=mine / "key.pem")
        stranger = options(url, caFile=strangers.folder / "ca.pem")
        texts = options(
            url, TEXTS, topic="all", caFile=ours.folder / "ca.pem", certFile=mine / "cert.pem", keyFile=mine / "key.pem"
        )
        reader = paho.Client(CallbackAPIVersion.VERSION2, "reader")
        reader.tls_set(str(ours.folder / "ca.pem"), str(mine / "cert.pem"), str(mine / "key.pem"))
        reader.on_message = lambda _client, _data, m: got.append((m.topic, m.payload, m.qos, m.retain))
        reader.on_connect = lambda client, *_: client.subscribe("#", 2)
        subscribed: list[object] = []
        reader.on_subscribe = lambda *_: subscribed.append(True)
        reader.connect("127.0.0.1", broker.port)
        reader.loop_start()
        eventually(lambda: subscribed, "the subscription")
        for file in (ours.folder / "ca.pem", mine / "cert.pem", mine / "key.pem"):
            file.rename(file.with_suffix(".moved"))
        rows = [
            ("a", b"\x00\xff", 1, False),
            ("b", b"", 2, True),
            ("c", b"x" * 70_000, 0, None),
            ("d", b"1", None, None),
        ]
        publish_rows(batches(rows), pickle.loads(pickle.dumps(given)))
        publish_rows(batches([("ignored", "ü")]), texts)
        with pytest.raises(PublishFailed, match="shows a certificate that is not trusted"):
            publish_rows(batches(rows), stranger)
        eventually(lambda: len(got) >= 5, lambda: f"five messages: {got}")
        reader.disconnect()
        reader.loop_stop()
    assert sorted(got) == [
        ("a", b"\x00\xff", 1, False),
        ("all", "ü".encode(), 1, False),
        ("b", b"", 2, False),
        ("c", b"x" * 70_000, 0, False),
        ("d", b"1", 1, False),
    ]


def headed(*rows: tuple[str, bytes, list | None]) -> list[pa.RecordBatch]:
    schema = pa.schema(
        {"topic": pa.string(), "payload": pa.binary(), "headers": HEADERS_ARROW_SCHEMA.field("headers").type}
    )
    names = ("topic", "payload", "headers")
    return [pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)]


def test_headers_are_published_as_user_properties_in_their_order(tmp_path):
    """Planted: a dictionary of headers, which keeps one of each key."""
    pairs = [("site", b"north"), ("site", b"south"), ("", b""), ("ü", b"v")]
    many = [(f"key {i}", b"v" * 100) for i in range(500)]
    got: list[tuple] = []
    subscribed: list[object] = []
    with Mosquitto(tmp_path, "allow_anonymous true") as broker:
        reader = paho.Client(CallbackAPIVersion.VERSION2, "reader", protocol=paho.MQTTv5)
        reader.on_message = lambda _client, _data, m: got.append(
            (m.topic, m.payload, [(key, value.encode()) for key, value in getattr(m.properties, "UserProperty", [])])
        )
        reader.on_connect = lambda client, *_: client.subscribe("#", 1)
        reader.on_subscribe = lambda *_: subscribed.append(True)
        reader.connect("127.0.0.1", broker.port)
        reader.loop_start()
        eventually(lambda: subscribed, "the subscription")
        rows = [("a", b"1", pairs), ("b", b"2", None), ("c", b"3", []), ("d", b"4", many)]
        publish_rows(headed(*rows), options(f"mqtt://127.0.0.1:{broker.port}", HEADED))
        eventually(lambda: len(got) >= 4, lambda: f"four messages: {got}")
        reader.disconnect()
        reader.loop_stop()
    assert got == [(topic, payload, headers or []) for topic, payload, headers in rows]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("k", None)], "a header, its key or its value is null"),
        ([(None, b"v")], "a header, its key or its value is null"),
        ([None], "a header, its key or its value is null"),
        ([("k", b"\xff")], "bad property user_property"),
        ([("k\0", b"v")], "bad property user_property"),
        ([("k", b"v" * 65536)], "bad property user_property"),
        ([("k", b"v" * 60_000)] * 2, "larger than the broker takes"),
    ],
)
def test_a_header_that_mqtt_does_not_allow_stops_the_task_and_its_row_is_named(headers, reason):
    """Planted: a header that is left out."""
    with ScriptedPeer() as peer, pytest.raises(PublishFailed, match=f"row 2 of a partition.*{reason}"):
        publish_rows(headed(("a", b"x", [("k", b"v")]), ("a", b"x", headers)), options(peer.url, HEADED))


@pytest.mark.parametrize("answer", [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00"], ids=["3.1.1", "MQTT 5"])
def test_a_broker_without_mqtt_5_ends_a_task_with_headers_at_once_and_says_why(answer):
    """Planted: protocol="auto" and no error, which publishes the rows without their headers."""
    with ScriptedPeer() as peer:
        peer.run(lambda peer: peer.accept().send(answer))
        with pytest.raises(BrokerRefused, match="does not speak MQTT 5, which the column headers needs: leave the col"):
            publish_rows(headed(("a", b"x", None)), options(peer.url, HEADED))


def test_a_message_that_a_broker_of_mqtt_5_refuses_fails_the_task(tmp_path):
    """The client drops it, so it counts as done. Planted: a sink that looks at refused connections alone."""
    (tmp_path / "acl").write_text("topic readwrite allowed/#\n")
    limits = (f"acl_file {tmp_path / 'acl'}", "max_packet_size 2000")
    with Mosquitto(tmp_path, "allow_anonymous true", *limits) as broker:
        given = options(f"mqtt://127.0.0.1:{broker.port}", HEADED)
        with pytest.raises(PublishFailed, match="refused a message to secret: not authorized"):
            publish_rows(headed(("allowed/a", b"x", None), ("secret", b"x", [("k", b"v")])), given)
        # The first row is in the outbox before the broker has said how much it takes.
        with pytest.raises(PublishFailed, match="takes no message as large as one to allowed/b, whose payload has 5 b"):
            publish_rows(headed(("allowed/b", b"large", [("k", b"v" * 3000)])), given)
        publish_rows(headed(("allowed/a", b"x", [("k", b"v")])), given)


def test_certificates_that_only_executors_could_complete_are_refused(tmp_path):
    authority = Authority(tmp_path / "ca")
    authority.create("test")
    authority.issue_device("sink")
    mine: Path = authority.folder / "devices" / "sink"
    with pytest.raises(IngestError, match="certFile needs caFile too"):
        options("mqtts://127.0.0.1:1", certFile=mine / "cert.pem", keyFile=mine / "key.pem")

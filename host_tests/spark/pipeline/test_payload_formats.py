"""SenML, line protocol, Cayenne LPP, CBOR and Protobuf as other programs write them."""

import base64
import json

import cbor2
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from spark_helpers import RECEIVED_MS
from test_decoders import rules, sent
from test_series import decoder
from test_systems import messages_of

from spark_ingest.pipeline.decode.messages import part

SENML = decoder(topic="s/{device}", format="senml")
INFLUX = decoder(topic="i/{device}", format="influx")
CAYENNE = decoder(topic="c/{device}", format="cayenne")
AT = 1_790_000_000


def found(folder, rule: str, topic: str, payload: object) -> tuple[list[dict], list[str]]:
    parts = part(
        sent((topic, payload if isinstance(payload, bytes | str) else json.dumps(payload))), rules(folder, rule)
    )
    rows = [
        {
            "device": row["device_id"],
            "ts": None if row["ts"] is None else round(row["ts"].timestamp() * 1000),
            "metrics": dict(row["metrics"]),
            "texts": {name: json.loads(text) for name, text in row["extra"]},
        }
        for row in (*parts.readings.to_pylist(), *parts.unnumbered.to_pylist())
    ]
    return rows, parts.quarantined["reason"].to_pylist()


def in_cbor(pack: list[dict]) -> bytes:
    """Return a pack in CBOR, with the labels of RFC 8428, section 6."""
    labels = {"bver": -1, "bn": -2, "bt": -3, "bu": -4, "bv": -5, "bs": -6, "n": 0, "u": 1, "v": 2, "vs": 3, "vb": 4}
    labels |= {"s": 5, "t": 6, "ut": 7, "vd": 8}
    return cbor2.dumps([{labels[name]: value for name, value in one.items()} for one in pack])


@pytest.mark.parametrize("written", [json.dumps, in_cbor], ids=["JSON", "CBOR"])
@pytest.mark.parametrize(
    ("pack", "rows"),
    [
        ([{"n": "t", "u": "Cel", "v": 23.5, "t": AT}], [(AT * 1000, {"t": 23.5}, {"t unit": "Cel"})]),
        (
            [
                {"bn": "urn:dev:1:", "bt": AT, "bu": "A", "n": "i", "v": 1.5},
                {"n": "i", "t": 2.5, "v": 2},
                {"n": "u", "v": 3},
            ],
            [
                (AT * 1000, {"urn:dev:1:i": 1.5, "urn:dev:1:u": 3}, {"urn:dev:1:i unit": "A", "urn:dev:1:u unit": "A"}),
                (AT * 1000 + 2500, {"urn:dev:1:i": 2}, {"urn:dev:1:i unit": "A"}),
            ],
        ),
        ([{"n": "on", "vb": True}, {"n": "x", "vs": "open"}], [(RECEIVED_MS, {"on": 1}, {"x": "open"})]),
        ([{"n": "t", "v": 1, "t": -5}], [(RECEIVED_MS - 5000, {"t": 1}, {})]),
        ([{"bv": 20, "bs": 100, "n": "e", "v": 1, "s": 5}], [(RECEIVED_MS, {"e": 21, "e sum": 105}, {})]),
        ([{"n": "e", "s": 5}], [(RECEIVED_MS, {"e sum": 5}, {})]),
        ([{"bn": "a:", "n": "t", "v": 1}, {"bn": "b:", "n": "t", "v": 2}], [(RECEIVED_MS, {"a:t": 1, "b:t": 2}, {})]),
        ([{"bn": "a"}, {"n": "1", "v": 2**53 + 1}], [(RECEIVED_MS, {"a1": 2.0**53}, {"a1": 2**53 + 1})]),
    ],
    ids=str,
)
def test_senml(tmp_path, written, pack, rows):
    """Planted: a relative time is a date in 1970; base fields count only for their own record."""
    got, refused = found(tmp_path, SENML, "s/d", written(pack))
    assert [(row["ts"], row["metrics"], row["texts"]) for row in got] == rows and not refused


def test_senml_with_the_base_name_as_the_device_and_data(tmp_path):
    rule = decoder(topic="s", format="senml", device="bn")
    pack = [{"bn": "dev1", "n": "t", "v": 1}, {"n": "d", "vd": "aGk"}, {"bn": "dev2", "v": 2}]
    got, refused = found(tmp_path, rule, "s", pack)
    assert [(row["device"], row["metrics"], row["texts"]) for row in got] == [
        ("dev1", {"t": 1}, {"d": "aGk"}),
        ("dev2", {"value": 2}, {}),
    ]
    got, _ = found(tmp_path, rule, "s", in_cbor([{"bn": "x", "n": "d", "vd": b"\xff\x00"}]))
    assert got[0]["texts"] == {"d": "ff00"} and not refused


@pytest.mark.parametrize(
    ("pack", "reason"),
    [
        ('{"n":"t"}', "not a SenML pack"),
        ("[5]", "not a SenML pack"),
        ('[{"n":"t","v":1,"x_":2}]', "a SenML field that must be understood, and is not known: 'x_'"),
        ('[{"bver":11,"n":"t","v":1}]', "SenML of version 11"),
        ('[{"n":5,"v":1}]', "the SenML field n is no text: 5"),
        ('[{"n":"t","v":1,"t":"x"}]', "the SenML field t is no number"),
        ('[{"v":1}]', "without a name"),
        ('[{"n":"t","v":"x"}]', ""),
        ('[{"n":"t","v":1},{"n":"t","v":2}]', "metric 't' has several values of one time: 2"),
    ],
)
def test_senml_that_breaks_a_rule_says_which(tmp_path, pack, reason):
    _, refused = found(tmp_path, SENML, "s/d", pack)
    assert "".join(refused).startswith(reason) or reason in "".join(refused)


@pytest.mark.parametrize(
    ("payload", "rows"),
    [
        ("m f=1.5", [(None, {"m//f": 1.5}, {})]),
        (
            f'm,k=v f=1i,g=t,h="x=y, \\"z" {AT}000000123',
            [(AT * 1000, {"m/k=v/f": 1, "m/k=v/g": 1}, {"m/k=v/h": 'x=y, "z'})],
        ),
        (
            f"# c\nm f=1 {AT}500000000\r\n\nm f=2 {AT}600000000",
            [(AT * 1000 + 500, {"m//f": 1}, {}), (AT * 1000 + 600, {"m//f": 2}, {})],
        ),
        ("m,a=1 f=1\nm,a=2 f=2", [(None, {"m/a=1/f": 1}, {}), (None, {"m/a=2/f": 2}, {})]),
        ('m f="a\nb"', [(None, {}, {"m//f": "a\nb"})]),
        (
            "m\\ a,t\\,x=1 f=9007199254740993i",
            [(None, {"m a/t\\,x=1/f": 2.0**53}, {"m a/t\\,x=1/f": 2**53 + 1})],
        ),
    ],
    ids=str,
)
def test_line_protocol(tmp_path, payload, rows):
    got, refused = found(tmp_path, INFLUX, "i/d", payload)
    assert [(row["ts"], row["metrics"], row["texts"]) for row in got] == rows and not refused


def test_a_line_that_is_none_and_a_field_that_is_there_twice_cost_only_themselves(tmp_path):
    """Planted: the parser's choice, the first of two fields of one name, is taken without a word."""
    got, refused = found(tmp_path, INFLUX, "i/d", "m f=1\nnot a line\nm f=1,f=2\nm f=3i")
    assert [row["metrics"] for row in got] == [{"m//f": 1}, {"m//f": 3}]
    (why,) = refused
    assert why.startswith("not line protocol") and why.endswith("(and 1 more)")


def test_cayenne_lpp(tmp_path):
    """The first values are the examples of its documentation."""
    payload = bytes.fromhex(
        "03670110 05 67 00ff 0167ffd7 06 71 04d2fb2e0000 01880 6765ff2960a0003e8 02000 1".replace(" ", "")
    )
    got, refused = found(tmp_path, CAYENNE, "c/d", payload)
    assert (
        got[0]["metrics"]
        == {
            "temperature_3": 27.2,
            "temperature_5": 25.5,
            "temperature_1": -4.1,
            "accelerometer_6.x": 1.234,
            "accelerometer_6.y": -1.234,
            "accelerometer_6.z": 0,
            "gps_1.latitude": 42.3519,
            "gps_1.longitude": -87.9094,
            "gps_1.altitude": 10,
            "digital_in_2": 1,
        }
        and not refused
    )
    rule = decoder(topic="c/{device}", format="cayenne", field="a.data", time="at")
    message = {"a": {"data": base64.b64encode(payload[:4]).decode()}, "at": AT, "x": 5}
    got, _ = found(tmp_path, rule, "c/d", message)
    assert got == [{"device": "d", "ts": AT * 1000, "metrics": {"temperature_3": 27.2}, "texts": {}}]
    for bad, reason in (
        (b"\1\xf0\0", "no type at byte 1"),
        (payload[:3], "temperature_3 is cut off"),
        (payload[:4] * 2, "twice"),
    ):
        assert reason in found(tmp_path, CAYENNE, "c/d", bad)[1][0]
    assert "is not base64" in found(tmp_path, rule, "c/d", {"a": {"data": "%"}})[1][0]


def test_cbor_with_times_numbers_as_keys_and_big_numbers(tmp_path):
    """Planted: a tag makes the whole payload unreadable; a number as a key does."""
    rule = decoder(topic="c/{device}", format="cbor", time="0")
    content = {0: cbor2.CBORTag(1, AT + 0.5), 1: 21.5, "n": 2**70, "in": {2: -(2**64) - 1}}
    got, refused = found(tmp_path, rule, "c/d", cbor2.dumps(cbor2.CBORTag(55799, content)))
    assert got == [
        {
            "device": "d",
            "ts": AT * 1000 + 500,
            "metrics": {"1": 21.5, "n": 2.0**70, "in.2": -(2.0**64)},
            "texts": {"in.2": -(2**64) - 1},
        }
    ]
    assert not refused
    mapped = decoder(topic="c/{device}", format="cbor", metrics={"t": "1", "f": "f"}, time="at")
    tagged = {1: 5, "f": cbor2.CBORTag(4, [-2, 2150]), "at": cbor2.CBORTag(0, "2026-09-21T14:13:20Z")}
    got, refused = found(tmp_path, mapped, "c/d", cbor2.dumps(tagged))
    assert (got[0]["metrics"], got[0]["ts"], refused) == ({"t": 5, "f": 21.5}, AT * 1000, [])
    assert "it has tags" in found(tmp_path, rule, "c/d", cbor2.dumps({"a": cbor2.CBORTag(35, "(")}))[1][0]


def test_numbers_that_collide_as_keys_do_not_stop_the_pipeline(tmp_path):
    """A payload of 64 KiB or more must have texts for keys: numbers can be chosen to have one hash."""
    content = cbor2.dumps({i * ((1 << 61) - 1): 0 for i in range(1, 9000)})
    assert "not CBOR" in found(tmp_path, decoder(topic="c/{device}", format="cbor"), "c/d", content)[1][0]


# What chirpstack-api 4.20 writes for the uplink that is the first in systems/chirpstack.toml.
UPLINK = bytes.fromhex(
    "0a0178120b08a0ccaad806108094ef3a1a183a0470756d7042103031303230333034303530363037303822083030653565303037400252010"
    "15a5f0a180a0b74656d706572617475726512091100000000000000000a1a0a046368616e12122a100a0e0a0161120911000000000000f83f"
    "0a0b0a05616c61726d120208000a0e0a04646f6f7212061a046f70656e0a0a0a046c65616b12022000620f0a02616230c7ffffffffffffffff"
    "01"
)


def test_protobufs_own_types_are_what_they_stand_for(tmp_path):
    """Planted: the time of an uplink is no time; `object.fields.temperature.number_value` is the name of a metric."""
    file = descriptor_pb2.FileDescriptorProto(name="i.proto", package="integration", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/struct.proto"])
    event, heard = file.message_type.add(name="UplinkEvent"), file.message_type.add(name="RxInfo")
    for message, number, name, kind in (
        (event, 2, "time", ".google.protobuf.Timestamp"),
        (event, 4, "dev_addr", "TYPE_STRING"),
        (event, 5, "f_cnt", "TYPE_UINT32"),
        (event, 8, "f_port", "TYPE_UINT32"),
        (event, 11, "object", ".google.protobuf.Struct"),
        (event, 12, "rx_info", ".integration.RxInfo"),
        (heard, 6, "rssi", "TYPE_INT32"),
    ):
        label = "LABEL_REPEATED" if name == "rx_info" else "LABEL_OPTIONAL"
        if kind.startswith("."):
            message.field.add(name=name, number=number, type="TYPE_MESSAGE", type_name=kind, label=label)
        else:
            message.field.add(name=name, number=number, type=kind, label=label)
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb)
        for one in (timestamp_pb2, struct_pb2)
    ]
    (tmp_path / "i.desc").write_bytes(descriptor_pb2.FileDescriptorSet(file=[*files, file]).SerializeToString())
    rule = decoder(
        topic="application/{any}/device/{device}/event/up",
        format="protobuf",
        descriptor="i.desc",
        message="integration.UplinkEvent",
        at="object",
        metrics={"uplink/fPort": "f_port", "uplink/rssi": "rx_info.0.rssi"},
        time="time",
        boot="dev_addr",
        seq="f_cnt",
    )
    (expected,) = messages_of("chirpstack")[0]["rows"]
    (row,), refused = found(tmp_path, rule, "application/a1/device/0102030405060708/event/up", UPLINK)
    assert row == {name: expected[name] for name in ("device", "ts", "metrics", "texts")} and not refused

"""Laws of the collector: nothing acknowledged before it is durable, nothing lost by any kind of stop."""

import json
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest
from spark_helpers import Process, collector_process, in_version_5, publish_packet, record, status
from test_spool import payloads_in
from umqtt_testkit import encoder
from umqtt_testkit.waiting import eventually

from spark_ingest.collector import collector as collector_module
from spark_ingest.collector import connection as connection_module
from spark_ingest.collector.collector import Collector, CollectorConfig
from spark_ingest.collector.command import main
from spark_ingest.durable import read_checked, replace_checked
from spark_ingest.spool.writer import Spool
from umqtt_cli.durable import sync_data

CONNACK, CONNACK_PRESENT = b"\x20\x02\x00\x00", b"\x20\x02\x01\x00"
SUBACK = b"\x90\x03\x00\x01\x01"
MESSAGES = [("fleet/pump/telemetry", record("pump", "1-a", seq)) for seq in range(300)]


@pytest.fixture(params=[5, 4], ids=["MQTT 5", "MQTT 3.1.1"])
def newest(request, monkeypatch) -> None:
    """Set the newest version that the collector supports: the laws hold for both."""
    monkeypatch.setattr(collector_module, "_NEWEST", request.param)


class ScriptedLink:
    """A transport that plays a broker from a script of MQTT 3.1.1, a chunk a tick; it logs the packets that are sent.

    If the collector speaks MQTT 5, so does the broker. Its answers to requests have their packet ids.
    """

    scripts: list[list[bytes]]
    log: list[tuple[str, bytes]]
    when_done = staticmethod(lambda: None)

    def __init__(self, *_arguments: object) -> None:
        self._chunks = list(self.scripts.pop(0))
        self._given = False
        self._level = 0
        self._requests: list[bytes] = []
        self._ended = False
        # Always readable: a wait for it ends at once.
        self.socket, self._other = socket.socketpair()
        self._other.send(b"x")
        self.log.append(("connect", b""))

    def ready(self) -> bool:
        return True

    def write(self, buf: bytes | bytearray, offset: int, size: int) -> int:
        for first, body in encoder.split_packets(bytes(buf[offset : offset + size]))[0]:
            self.send(encoder.encode(first, body))
        return size

    def send(self, packet: bytes) -> None:
        kind = packet[0] >> 4
        if kind == encoder.CONNECT:
            self._level = packet[8]
        elif kind in (encoder.SUBSCRIBE, encoder.UNSUBSCRIBE):
            self._requests.append(packet[2:4])
        elif kind == encoder.PINGREQ:  # not logged: the client asks before it sends again at what a link ended
            self._chunks.insert(0, encoder.pingresp())
            return
        self._ended = kind == encoder.DISCONNECT
        self.log.append(("send", packet))

    def read(self, buf: bytearray, offset: int) -> int | None:
        if self._ended:
            return 0
        if not self._chunks and not self.scripts:
            self.when_done()
        begins, self._given = not self._given, False
        if begins and self._chunks:
            if self._chunks[0][0] >> 4 in (encoder.SUBACK, encoder.UNSUBACK) and not self._requests:
                return None
            self._given = True
            chunk = self._chunks.pop(0)
            chunk = in_version_5(chunk) if self._level == 5 else chunk
            if chunk[0] >> 4 in (encoder.SUBACK, encoder.UNSUBACK):
                chunk = chunk[:2] + self._requests.pop(0) + chunk[4:]
            buf[offset : offset + len(chunk)] = chunk
            return len(chunk)
        if begins and self.scripts:
            raise ConnectionResetError("the end of this connection's script")
        return None

    def wait(self, _ms: int, _writing: bool) -> None:
        pass

    def close(self) -> None:
        self.log.append(("close", b""))
        self.socket.close()
        self._other.close()


def play(monkeypatch, folder: Path, scripts: list[list[bytes]], **options) -> tuple[Collector, list[tuple[str, bytes]]]:
    """Run a collector against scripted connections; return the collector and the log, syncs included."""
    log: list[tuple[str, bytes]] = []

    def sync(fd: int) -> None:
        sync_data(fd)
        if os.fstat(fd).st_size and not os.path.samestat(os.fstat(fd), (folder / "north" / "pos").stat()):
            log.append(("sync", b""))

    options = {"topic_filters": ("fleet/+/telemetry",), "longest_delay_s": 0.001, **options}
    config = CollectorConfig("mqtt://127.0.0.1:1", folder, "north", **options)
    monkeypatch.setattr(connection_module, "transports", lambda _: {"mqtt": ScriptedLink})
    with Spool(folder / "north", sync=sync) as spool:
        subscribed: list[None] = []
        one = Collector(config, spool, on_subscribed=lambda: subscribed.append(None), report=lambda *_: None)
        log.clear()
        ScriptedLink.scripts, ScriptedLink.log, ScriptedLink.when_done = list(scripts), log, staticmethod(one.stop)
        one.run()
    log.append(("subscribed", b"x" * len(subscribed)))
    return one, log


@pytest.mark.usefixtures("newest")
def test_a_puback_is_queued_only_after_the_sync_of_its_group(monkeypatch, tmp_path):
    groups = [b"".join(publish_packet("fleet/a/telemetry", b"x", 10 * g + i) for i in (1, 2)) for g in range(3)]
    _, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK, *groups]])
    steps = ["puback" if data[:1] == b"\x40" else what for what, data in log if what == "sync" or data[:1] == b"\x40"]
    assert steps == ["sync", "puback", "puback"] * 3, log


@pytest.mark.usefixtures("newest")
def test_a_session_that_is_present_is_not_subscribed_again(monkeypatch, tmp_path):
    first, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]
    again, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0xE0]
    assert log[-1] == ("subscribed", b"x"), "said all the same"
    assert (first.counters.sessions_lost, again.counters.sessions_lost) == (0, 0)


@pytest.mark.usefixtures("newest")
def test_changed_topic_filters_are_subscribed_and_dropped_ones_unsubscribed(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    script = [CONNACK_PRESENT, b"\xb0\x02\x00\x02", SUBACK]
    _, log = play(monkeypatch, tmp_path, [script], topic_filters=("fleet/+/log",))
    sent = [data for what, data in log if what == "send"]
    assert [data[0] for data in sent] == [0x10, 0xA2, 0x82, 0xE0]
    assert b"fleet/+/telemetry" in sent[1] and b"fleet/+/log" in sent[2]


CUT = [
    pytest.param([[]], id="before CONNACK"),
    pytest.param([[CONNACK]], id="before SUBACK"),
    pytest.param([[], [], [CONNACK]], id="several times"),
]


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("cut", CUT)
def test_a_link_that_was_lost_before_the_subscription_does_not_pass_for_one_that_has_it(monkeypatch, tmp_path, cut):
    """The broker forgot the session and created a new one at that CONNECT: present, but without a subscription."""
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    _, log = play(monkeypatch, tmp_path, [*cut, [CONNACK_PRESENT, SUBACK]])
    assert [data[0] for what, data in log if what == "send"][-3:] == [0x10, 0x82, 0xE0]
    _, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0xE0], "it is known again"


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("cut", CUT)
def test_nor_does_it_when_the_collector_was_killed_meanwhile(monkeypatch, tmp_path, cut):
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    for script in cut:
        # Without another script, it is stopped where this one ends.
        play(monkeypatch, tmp_path, [script])
    _, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT, SUBACK]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]


@pytest.mark.usefixtures("newest")
def test_a_change_of_filters_that_was_cut_short_and_taken_back_is_made_whole(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    play(monkeypatch, tmp_path, [[CONNACK_PRESENT, b"\xb0\x02\x00\x02"]], topic_filters=("fleet/+/log",))
    _, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT, SUBACK]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]


@pytest.mark.usefixtures("newest")
def test_a_session_that_another_broker_has_is_subscribed_there(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    path = tmp_path / "north" / "subscription.json"
    replace_checked(path, bytes(read_checked(path)).replace(b"127.0.0.1", b"old.example"))
    _, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT, SUBACK]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]


@pytest.mark.usefixtures("newest")
def test_a_record_of_the_subscription_with_a_flipped_bit_is_not_believed(monkeypatch, tmp_path):
    """Planted: a record without a checksum, in which another filter can become the wanted one."""
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]], topic_filters=("fleet/k/telemetry",))
    path = tmp_path / "north" / "subscription.json"
    path.write_bytes(path.read_bytes().replace(b"fleet/k/", b"fleet/+/"))
    _, log = play(monkeypatch, tmp_path, [[CONNACK_PRESENT, SUBACK]])
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]


@pytest.mark.usefixtures("newest")
def test_a_session_that_the_broker_forgot_raises_an_alarm_and_is_subscribed_anew(monkeypatch, tmp_path):
    play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    again, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    assert again.counters.sessions_lost == 1
    assert [data[0] for what, data in log if what == "send"] == [0x10, 0x82, 0xE0]


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("nonsense", [b"\x00\x00", b"HTTP/1.1 400 Bad Request", publish_packet("t", b"", 0)])
def test_a_malformed_stream_closes_the_connection_is_counted_and_tried_again(monkeypatch, tmp_path, nonsense):
    good = publish_packet("t", b"kept", 5)
    scripts = [[CONNACK, SUBACK, nonsense], [CONNACK_PRESENT, good]]
    one, log = play(monkeypatch, tmp_path, scripts)
    assert one.counters.malformed_streams == 1
    assert [what for what, _ in log if what in ("connect", "close")] == ["connect", "close"] * 2
    assert payloads_in(tmp_path / "north") == [b"kept"]


@pytest.mark.usefixtures("newest")
def test_a_subscribe_has_at_most_8_filters(monkeypatch, tmp_path):
    # AWS IoT refuses more. Planted: all filters in one packet.
    filters = [f"site/{number}/+" for number in range(20)]
    script = [CONNACK, *([SUBACK] * len(filters))]
    one, log = play(monkeypatch, tmp_path, [script], topic_filters=tuple(filters))
    packets = [data for what, data in log if what == "send" and data[0] == 0x82]
    assert [packet.count(b"site/") for packet in packets] == [1] * len(filters)
    assert (one.counters.refusals, log[-1]) == (0, ("subscribed", b"x"))


POISONED = {
    "at QoS 2, as aedes sends stored messages": publish_packet("fleet/a/telemetry", b"odd", 5, qos=2),
    "with a wildcard, as RabbitMQ sends a *": publish_packet("fleet/+/telemetry", b"odd", 5),
    "no UTF-8": encoder.publish(b"fleet/\xff", b"odd", 1, 5),
    "without a topic": encoder.publish(b"", b"odd", 1, 5),
    "DUP at QoS 0": publish_packet("t", b"odd", 5, qos=0, dup=True),
}


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize("what", POISONED)
def test_a_message_that_the_broker_should_not_have_sent_holds_up_nothing(monkeypatch, tmp_path, what):
    """It would come again on each link, and with it all behind it. Planted: it counts as malformed."""
    group = publish_packet("t", b"before", 4) + POISONED[what] + publish_packet("t", b"after", 6)
    one, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK, group, b"\x62\x02\x00\x05"]])
    assert payloads_in(tmp_path / "north") == [b"before", b"odd", b"after"]
    assert (one.counters.malformed_streams, one.counters.connects) == (0, 1)
    acks = [data for what, data in log if what == "send" and data[0] in (0x40, 0x50, 0x70)]
    received = {4: b"\x50\x02\x00\x05", 0: b""}.get(POISONED[what][0] & 6, b"\x40\x02\x00\x05")
    assert b"".join(acks).startswith(b"\x40\x02\x00\x04" + received + b"\x40\x02\x00\x06")


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(
    ("script", "line"),
    [
        ([b"\x20\x02\x00\x05"], "not authorized"),
        ([CONNACK, b"\x90\x03\x00\x01\x80"], "refused the subscription to fleet/+/telemetry"),
        ([CONNACK, b"\x90\x03\x00\x01\x00"], "only QoS 0"),
    ],
)
def test_a_refusal_is_reported_with_its_reason_and_tried_again(monkeypatch, tmp_path, script, line):
    one, _ = play(monkeypatch, tmp_path, [script, [CONNACK, SUBACK]])
    assert one.counters.refusals == 1
    assert line in (one.counters.last_error or "")


@pytest.mark.usefixtures("newest")
def test_a_link_that_is_closed_at_subscribe_is_told_with_what_it_asked_for(monkeypatch, tmp_path):
    # Planted: _link_ended() leaves it at "the broker closed the connection", as for any other link.
    one, _ = play(monkeypatch, tmp_path, [[CONNACK], [CONNACK, SUBACK]])
    assert "at SUBSCRIBE: may this user read" in (one.counters.last_error or "")


@pytest.mark.usefixtures("newest")
@pytest.mark.parametrize(("username", "hint"), [("site:north", "'site' must be a virtual host"), ("north", "")])
def test_a_refused_user_of_a_virtual_host_is_told_that_it_may_be_another(monkeypatch, tmp_path, username, hint):
    monkeypatch.setenv("UMQTT_PASSWORD", "x")
    one, _ = play(monkeypatch, tmp_path, [[b"\x20\x02\x00\x04"], [CONNACK, SUBACK]], username=username)
    error = one.counters.last_error or ""
    assert hint in error and ("virtual host" in error) == bool(hint)


def test_everything_published_is_in_the_spool_once_after_sigterm_and_a_restart_gets_nothing_again(
    broker, publish, tmp_path
):
    state = tmp_path / "status.json"
    with collector_process(broker, tmp_path / "spool", "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES)
        eventually(lambda: status(state)["messages"] == len(MESSAGES), "all messages in the spool")
        code, out, err = one.terminate()
        assert (code, out) == (0, "")
        assert [json.loads(line)["event"] for line in err.splitlines()] == ["subscribed", "stopped"]
    assert status(state)["connected"] is False
    assert Counter(payloads_in(tmp_path / "spool" / "north")) == Counter(payload for _, payload in MESSAGES)
    publish(MESSAGES[:5])  # While the collector is away, the broker keeps them.
    with collector_process(broker, tmp_path / "spool", "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        eventually(lambda: status(state)["messages"] == 5, "what was published meanwhile")
        assert one.terminate()[0] == 0
    assert len(payloads_in(tmp_path / "spool" / "north")) == len(MESSAGES) + 5


def test_killed_between_sync_and_puback_the_messages_are_durable_and_come_again(broker, publish, tmp_path):
    arguments = ["--broker", f"mqtt://127.0.0.1:{broker}", "--spool", tmp_path, "--name", "north"]
    dying = Path(__file__).with_name("collector_dies.py")
    with Process([sys.executable, dying, 2, *arguments]) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES[:10])
        eventually(lambda: payloads_in(tmp_path / "north"), "the first group")
        publish(MESSAGES[10:])
        assert one.finish()[0] == -signal.SIGKILL
    kept = Counter(payloads_in(tmp_path / "north"))
    assert kept and max(kept.values()) == 1
    state = tmp_path / "status.json"
    with collector_process(broker, tmp_path, "north", "--status", state) as one:
        one.wait_for_line("subscribed north")
        eventually(lambda: set(payloads_in(tmp_path / "north")) == {payload for _, payload in MESSAGES}, "none lost")
        # The spool may have had them all before: the broker sends again what was not acknowledged.
        eventually(
            lambda: max(Counter(payloads_in(tmp_path / "north")).values()) == 2, "the unacknowledged group again"
        )
        assert one.terminate()[0] == 0
    assert max(Counter(payloads_in(tmp_path / "north")).values()) == 2, "twice, and not more often"
    assert status(state)["redelivered"] > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--broker", "http://x"], "give mqtt://HOST:PORT"),
        (["--broker", "mqtt://user:secret@x"], "must not hold credentials"),
        (["--broker", "mqtt://x:99999"], "give mqtt://HOST:PORT"),
        (["--name", "a/b"], "is not a plain name"),
        (["--name", ".."], "is not a plain name"),
        (["--spool", "/dev/null/spool"], "choose another --spool"),
        (["--keep-alive", "70000"], "0..65535"),
    ],
)
def test_wrong_use_is_one_line_that_names_the_next_step_and_exit_code_2(tmp_path, capsys, arguments, line):
    usual = {"--broker": "mqtt://127.0.0.1:1", "--spool": str(tmp_path), "--name": "north"}
    given = usual | {arguments[0]: arguments[1]}
    assert main([part for option in given.items() for part in option]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err and "secret" not in err

"""The collector speaks MQTT 5 where the broker can, and 3.1.1 elsewhere; the session is the same."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from spark_helpers import Process, in_version_5, publish_packet, status
from test_collector import CONNACK, CONNACK_PRESENT, MESSAGES, SUBACK, ScriptedLink, play
from test_spool import payloads_in
from umqtt_testkit import encoder
from umqtt_testkit.waiting import eventually

pytestmark = pytest.mark.tier(1)


def levels(log: list[tuple[str, bytes]]) -> list[int]:
    """Return the protocol levels of the CONNECT packets."""
    return [data[8] for what, data in log if what == "send" and data[0] == 0x10]


def test_the_connect_of_mqtt_5_keeps_the_session_and_says_how_much_may_be_on_the_way(monkeypatch, tmp_path):
    # Planted: no session expiry, with which the session would end with the link.
    _, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK]])
    connect = next(data for what, data in log if what == "send")
    flags = connect[9]
    properties, _ = encoder.parse_properties(connect, 12)
    assert not flags & 2
    assert properties == {"session_expiry_interval": 0xFFFFFFFF, "receive_maximum": 10_000}


ANSWERS = {
    "return code 1": b"\x20\x02\x00\x01",
    "reason code 0x84": b"\x20\x03\x00\x84\x00",
    "the end of the link": b"",
    "garbage": b"HTTP/1.1 400 Bad Request",
    "an answer of MQTT 3.1.1": b"\x20\x02\x00\x00",
}


class OldBroker(ScriptedLink):
    """Answers a CONNECT of MQTT 5 as its `answer` says, and plays the script after one of 3.1.1."""

    answer = b""

    def send(self, packet: bytes) -> None:
        if packet[0] == 0x10 and packet[8] == 5:
            self.scripts.insert(0, self._chunks)
            self._chunks = [self.answer] if self.answer else []
        super().send(packet)
        self._level = 4


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_broker_that_knows_3_1_1_alone_is_collected_from(monkeypatch, tmp_path, answer):
    """Planted: the version is never lowered; the newer one is never tried again."""
    monkeypatch.setattr("test_collector.ScriptedLink", OldBroker)
    OldBroker.answer = ANSWERS[answer]
    message = publish_packet("fleet/a/telemetry", b"kept", 5)
    # The second link is lost; the third finds the session.
    one, log = play(monkeypatch, tmp_path, [[CONNACK, SUBACK, message], [CONNACK_PRESENT]])
    assert levels(log) == [5, 4, 5, 4]
    assert payloads_in(tmp_path / "north") == [b"kept"]
    assert one.counters.refusals == 0
    if answer == "the end of the link":
        assert (one.counters.last_error or "").endswith("; trying MQTT 3.1.1")
    subscribed = [data for what, data in log if what == "send" and data[0] == 0x82]
    # A CONNECT refused for its version has not touched the session, which is known to be intact.
    assert len(subscribed) == (1 if answer.startswith("re") else 2)


def test_another_refusal_is_none_of_the_version_and_says_why(monkeypatch, tmp_path):
    # Planted: the broker's own words left out.
    refused = encoder.encode(
        0x20, b"\0\x87" + encoder.properties(reason_string=b"not you", user_property=[(b"a", b"b")])
    )
    monkeypatch.setattr(ScriptedLink, "send", _as_it_is(ScriptedLink.send))
    one, log = play(monkeypatch, tmp_path, [[refused], [in_version_5(CONNACK), in_version_5(SUBACK)]])
    assert levels(log) == [5, 5]
    assert one.counters.refusals == 1
    assert "not authorized: not you (0x87)" in (one.counters.last_error or "")


def _as_it_is(send):
    """Return a `send` for a script that is written in MQTT 5 already."""

    def sent(self, packet: bytes) -> None:
        send(self, packet)
        self._level = 4

    return sent


def test_what_the_broker_says_of_its_end_counts(monkeypatch, tmp_path):
    # Planted: DISCONNECT is handled before the messages that came with it.
    said = encoder.properties(server_keep_alive=7, session_expiry_interval=3600, assigned_client_identifier=b"x")
    connack = encoder.encode(0x20, b"\0\0" + said + bytes(0))
    message = encoder.publish(b"t", b"kept", 1, 5, properties=encoder.properties(message_expiry_interval=9))
    end = encoder.disconnect(b"\x8b" + encoder.properties(reason_string=b"for the night"))
    monkeypatch.setattr(ScriptedLink, "send", _as_it_is(ScriptedLink.send))
    scripts = [[connack, in_version_5(SUBACK), message + end], [in_version_5(CONNACK_PRESENT)]]
    one, log = play(monkeypatch, tmp_path, scripts)
    assert payloads_in(tmp_path / "north") == [b"kept"]
    assert ("send", b"\x40\x02\x00\x05") in log
    assert one.counters.lost_links == 1
    assert "server shutting down: for the night (0x8b)" in (one.counters.last_error or "")


def test_a_session_that_the_broker_keeps_for_a_while_only_is_reported(monkeypatch, tmp_path):
    connack = encoder.encode(0x20, b"\0\0" + encoder.properties(session_expiry_interval=3600))
    monkeypatch.setattr(ScriptedLink, "send", _as_it_is(ScriptedLink.send))
    one, _ = play(monkeypatch, tmp_path, [[connack, in_version_5(SUBACK)]])
    assert "for 3600 s" in (one.counters.last_error or "")


_OLDER = """
import runpy, sys
from spark_ingest.collector import collector
collector._NEWEST = 4
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("versions", [(4, 5), (5, 4)], ids=["up", "down"])
def test_a_change_of_version_loses_nothing_and_subscribes_nothing_anew(broker, publish, tmp_path, versions):
    """Killed before an acknowledgement with one version, it continues with the other, including what is queued.

    Planted: clean start with MQTT 5; a session expiry of 0.
    """
    dying = Path(__file__).with_name("collector_dies.py")
    arguments = ["--broker", f"mqtt://127.0.0.1:{broker}", "--spool", tmp_path, "--name", "north"]
    older = [sys.executable, "-c", _OLDER]
    with Process([*(older if versions[0] == 4 else older[:1]), dying, 2, *arguments]) as one:
        one.wait_for_line("subscribed north")
        publish(MESSAGES[:10])
        eventually(lambda: payloads_in(tmp_path / "north"), "the first group")
        publish(MESSAGES[10:100])
        assert one.finish()[0] == -signal.SIGKILL
    publish(MESSAGES[100:])
    state = tmp_path / "status.json"
    again = [*(older if versions[1] == 4 else older[:1]), dying, 1_000_000, *arguments, "--status", state]
    with Process(again) as one:
        one.wait_for_line("subscribed north")
        eventually(lambda: set(payloads_in(tmp_path / "north")) == {payload for _, payload in MESSAGES}, "none lost")
        assert one.terminate()[0] == 0
    assert status(state)["sessions_lost"] == 0
    assert max(Counter(payloads_in(tmp_path / "north")).values()) <= 2

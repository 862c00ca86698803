"""ws:// and wss:// work with an independent server, on both interpreters."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from umqtt_testkit.proxy import FaultProxy
from web_relay import WebRelay


@pytest.mark.parametrize("size", [16, 130, 900])
def test_messages_pass_unchanged_through_fragments_and_pings(program, mosquitto, size: int) -> None:
    with WebRelay(mosquitto()) as relay:
        url = f"ws://127.0.0.1:{relay.port}/mqtt"
        events = program("talk.py", url=url, count=40, size=size).finish()
        assert [event["event"] for event in events] == ["connected", "done"]
    assert relay.pongs > 0
    assert relay.closed_with == [1000]


def test_over_tls(program, mosquitto, certificates: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
    with WebRelay(mosquitto(), context, fragment=300) as relay:
        url = f"wss://localhost:{relay.port}/mqtt"
        events = program("talk.py", url=url, tls={"ca": str(certificates / "ca.pem")}, count=40).finish()
        assert events[-1]["event"] == "done"
        events = program("talk.py", url=url, tls={"ca": str(certificates / "other.pem")}).finish()
        assert events[0]["type"] == "CertificateRefused"


def test_one_byte_at_a_time(program, mosquitto) -> None:
    with WebRelay(mosquitto(), pings=False) as relay, FaultProxy(("127.0.0.1", relay.port)) as proxy:
        proxy.dribble(True, interval_ms=0.1)
        events = program("talk.py", url=f"ws://127.0.0.1:{proxy.port}/", count=3, connect_timeout=60000).finish()
        assert [event["event"] for event in events] == ["connected", "done"]


def test_what_is_no_websocket_server_is_named(program, mosquitto, closed_port: int) -> None:
    events = program("talk.py", url=f"ws://127.0.0.1:{closed_port}/mqtt").finish()
    assert events[0]["type"] == "OSError" or events[0]["type"] == "ConnectionRefusedError"
    events = program("talk.py", url=f"ws://127.0.0.1:{mosquitto()}/mqtt").finish()
    assert events[0]["type"] in ("UpgradeRefused", "OSError", "ConnectionResetError"), events


@pytest.mark.parametrize("direction", ["up", "down"])
def test_cut_during_the_handshake(program, mosquitto, direction) -> None:
    cuts = range(0, 180, 23)
    with WebRelay(mosquitto(), pings=False) as relay, FaultProxy(("127.0.0.1", relay.port)) as proxy:
        for at in cuts:
            proxy.cut_next(at, direction)
        events = program("talk.py", url=f"ws://127.0.0.1:{proxy.port}/mqtt", errors=1000).finish()
    assert events[-1]["event"] == "done"
    assert len([event for event in events if event["event"] == "error"]) == len(cuts)

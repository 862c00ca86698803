"""What a bridge sends to the remote broker after a restart in the middle of a handshake, packet by packet."""

import socket
from pathlib import Path

import pytest
from bridge_parts import BridgedBroker, bridge_config
from broker_peer import Packet, Peer
from umqtt_testkit import encoder
from umqtt_testkit.encoder import PUBCOMP, PUBLISH, PUBREC, PUBREL
from umqtt_testkit.waiting import WAIT_LIMIT_S

CONNECT, PINGREQ = 1, 12


class Remote(Peer):
    """The remote broker's end of one link. Close it after the bridge's end, which would otherwise connect again."""

    def __init__(self, server: socket.socket, session_present: bool) -> None:
        server.settimeout(WAIT_LIMIT_S)
        super().__init__(connected=server.accept()[0])
        connect = self.receive()
        assert connect.kind == CONNECT and connect.body[:7] == b"\0\4MQTT\x84", "a bridge says that it is one"
        assert not connect.body[7] & 2, "clean_session"
        self.send(encoder.connack(session_present))

    def receive(self) -> Packet:
        """Return the next packet, except the one in which the bridge identifies itself."""
        packet = super().receive()
        if packet.topic_name == b"$bridge/bridge/origin":
            packet = super().receive()
        return packet


def test_after_a_restart_each_message_goes_on_where_it_was_under_its_packet_identifier(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = bridge_config(port, "a out 2", notifications=False, attempt_unsubscribe=False)
        store = str(tmp_path / "broker.db")
        with BridgedBroker(config, store=store) as broker, Peer(broker.port) as near:
            remote = Remote(server, False)
            near.connect(b"near")
            for number in range(3):
                near.publish(b"a", b"%d" % number, 2)
            sent = [remote.expect(PUBLISH) for _ in range(3)]
            assert [(packet.payload, packet.dup) for packet in sent] == [(b"0", False), (b"1", False), (b"2", False)]
            remote.send(encoder.acknowledgement(PUBREC, sent[0].packet_id))
            remote.expect(PUBREL, sent[0].packet_id)
        remote.close()
        with BridgedBroker(config, store=store) as broker, Remote(server, True) as remote:
            remote.expect(PUBREL, sent[0].packet_id)
            for packet in sent[1:]:
                again = remote.expect(PUBLISH, packet.packet_id)
                assert (again.payload, again.dup) == (packet.payload, True)
            remote.send(encoder.acknowledgement(PUBCOMP, sent[0].packet_id))
            for packet in sent[1:]:
                remote.send(encoder.acknowledgement(PUBREC, packet.packet_id))
                remote.expect(PUBREL, packet.packet_id)
                remote.send(encoder.acknowledgement(PUBCOMP, packet.packet_id))
            session = broker.view.session(config.local_client_id)
            broker.wait_until(lambda: not session.in_flight and not session.queued)


@pytest.mark.parametrize("resent", [True, False], ids=["PUBLISH again", "PUBREL"])
def test_an_identifier_at_qos_2_that_came_before_a_restart_is_known_after_it_and_freed_by_its_pubrel(
    tmp_path: Path, resent: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = bridge_config(port, "a out 1", "b in 2", notifications=False, attempt_unsubscribe=False)
        store = str(tmp_path / "broker.db")
        with BridgedBroker(config, store=store):
            remote = Remote(server, False)
            subscribe = remote.receive()
            remote.send(encoder.suback(subscribe.packet_id, 2))
            remote.send(encoder.publish(b"b", b"first", 2, 7))
            remote.expect(PUBREC, 7)
        remote.close()
        with BridgedBroker(config, store=store) as broker, Remote(server, True) as remote, Peer(broker.port) as near:
            near.connect(b"near")
            near.subscribe(b"b", 2)
            remote.send(encoder.suback(remote.receive().packet_id, 2))
            if resent:
                remote.send(encoder.publish(b"b", b"first", 2, 7, dup=True))
                remote.expect(PUBREC, 7)
            remote.send(encoder.acknowledgement(PUBREL, 7))
            remote.expect(PUBCOMP, 7)
            assert not broker.view.session(config.local_client_id).inbound
            remote.send(encoder.publish(b"b", b"second", 2, 7))
            remote.expect(PUBREC, 7)
            assert near.receive_message().payload == b"second"

"""Who may connect, publish and subscribe. The broker asks; a program or a configuration answers."""

from .packets import ACCEPTED, Connect


class Permission:
    """Allows everything. Derive from it and override what must be decided.

    Each method runs in the event loop and must return at once.
    """

    # False spares the packet loop a call for every message; set it in a class that overrides may_publish.
    checks_publish = False

    def connect(self, packet: Connect, peer: str) -> int:
        """Return the CONNACK return code for a CONNECT from the address `peer`: 0 lets it in, 4 or 5 not."""
        del packet, peer
        return ACCEPTED

    def may_publish(self, client_id: bytes, topic_name: bytes) -> bool:
        """Say whether a client may publish to `topic_name`. If not: acknowledged and counted, not routed."""
        del client_id, topic_name
        return True

    def grant(self, client_id: bytes, topic_filter: bytes, qos: int) -> int:
        """Return the QoS granted to a subscription, or 0x80 to deny it [MQTT-3.9.3-2]."""
        del client_id, topic_filter
        return qos

"""Manual acknowledgement, in any order; PUBACKs are still sent in the order of arrival [MQTT-4.6.0-2]."""

from .packets import PUBACK


class ManualAck:
    """The messages that the program has not acknowledged."""

    def __init__(self, session):
        self._session = session
        self._open = []  # packet ids at QoS 1 in the order of arrival; negative: acknowledged

    def forget(self, session):
        """Forgets all messages: the broker sends unacknowledged ones again on the next link."""
        self._open = []

    def hold(self, packet_id):
        """Records a message at QoS 1 that is handed to the program."""
        self._open.append(packet_id)

    def let_go(self, packet_id):
        """Forgets a message that will be handed over again later."""
        if packet_id in self._open:
            self._open.remove(packet_id)

    def holds(self):
        """Whether the program has messages that it has not acknowledged."""
        return bool(self._open)

    def acknowledge(self, packet_id):
        """See Client.acknowledge()."""
        if packet_id not in self._open:
            return "qos2" in self._session.parts and self._session.part("qos2").acknowledge(packet_id)
        self._open[self._open.index(packet_id)] = -packet_id
        self.pump()
        return True

    def pump(self):
        """Sends the PUBACKs whose turn it is. Returns False if there is no room for all of them."""
        held = self._open
        out = self._session.out
        while held and held[0] < 0 and out.has_room():
            out.put_ack(PUBACK, -held.pop(0))
        return not (held and held[0] < 0)


part = ManualAck  # what Session.part() makes

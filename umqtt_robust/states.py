"""Every transition of the protocol, as literal tables; the docs' state diagrams are drawn from them. That of an
inbound message at QoS 2 lies in qos2.py, so that only boards that need it carry it.

States are named after what they wait for, so the name says who moves next. A pair that is not in a table breaks the
protocol.
"""

# The link, as the client sees it; state | first byte of the packet that arrived: next state.
CLOSED = 0
AWAIT_CONNACK = 1
UP = 2

LINK = {
    AWAIT_CONNACK | 0x20: UP,  # the first packet from the server is CONNACK [MQTT-3.2.0-1]
    UP | 0x30: UP,  # PUBLISH
    UP | 0x40: UP,  # PUBACK
    UP | 0x50: UP,  # PUBREC
    UP | 0x60: UP,  # PUBREL
    UP | 0x70: UP,  # PUBCOMP
    UP | 0x90: UP,  # SUBACK
    UP | 0xB0: UP,  # UNSUBACK
    UP | 0xD0: UP,  # PINGRESP
}

# An outbound message at QoS 1 (4.3.2) or 2 (4.3.3), as it stands in its flags; packet << 8 | state: next state.
DONE = 0
AWAIT_PUBACK = 0x02
AWAIT_PUBREC = 0x04
AWAIT_PUBCOMP = 0x44

OUTBOUND = {
    0x4000 | AWAIT_PUBACK: DONE,
    0x5000 | AWAIT_PUBREC: AWAIT_PUBCOMP,
    0x5000 | AWAIT_PUBCOMP: AWAIT_PUBCOMP,  # PUBREC again: PUBREL again
    0x7000 | AWAIT_PUBCOMP: DONE,
}

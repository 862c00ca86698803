"""Every transition of the protocol, as literal tables; the docs' state diagrams are drawn from them.

A key is a state plus the first byte of the packet that arrived (its low four bits cleared); the value is the next
state. States are named after what they wait for, so the name says who moves next. A pair that is not in a table breaks
the protocol.
"""

# The link, as the client sees it.
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

# An outbound message: QoS 1 (4.3.2) begins at AWAIT_PUBACK, QoS 2 (4.3.3) at AWAIT_PUBREC.
DONE = 0
AWAIT_PUBACK = 1
AWAIT_PUBREC = 2
AWAIT_PUBCOMP = 3

OUTBOUND = {
    AWAIT_PUBACK | 0x40: DONE,
    AWAIT_PUBREC | 0x50: AWAIT_PUBCOMP,
    AWAIT_PUBCOMP | 0x50: AWAIT_PUBCOMP,  # PUBREC again: PUBREL again
    AWAIT_PUBCOMP | 0x70: DONE,
}

# An inbound QoS 2 message (4.3.3): stored at its PUBLISH, handed over at its PUBREL.
UNKNOWN = 0
AWAIT_PUBREL = 1

INBOUND = {
    UNKNOWN | 0x30: AWAIT_PUBREL,
    AWAIT_PUBREL | 0x30: AWAIT_PUBREL,  # the same message again: PUBREC again
    AWAIT_PUBREL | 0x60: UNKNOWN,
    UNKNOWN | 0x60: UNKNOWN,  # a PUBREL whose PUBCOMP was lost: PUBCOMP again
}

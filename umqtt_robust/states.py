"""Every transition of the protocol, as literal tables. docs/states.md is drawn from them.

States are named after what they wait for, so the name says who moves next. What is in no table breaks the protocol
[MQTT-4.8.0-1].
"""

from .packets import CONNACK, DISCONNECT, PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK, UNSUBACK

# The link: (state << 8 | first byte of the packet): next state. Of PUBLISH the first byte without its flags.
CLOSED = 0
AWAIT_CONNACK = 1
UP = 2

LINK = {
    AWAIT_CONNACK << 8 | CONNACK: UP,  # the first packet of a broker [MQTT-3.2.0-1]
    UP << 8 | PUBLISH: UP,
    UP << 8 | PUBACK: UP,
    UP << 8 | PUBREC: UP,
    UP << 8 | PUBREL: UP,
    UP << 8 | PUBCOMP: UP,
    UP << 8 | SUBACK: UP,
    UP << 8 | UNSUBACK: UP,
    UP << 8 | PINGRESP: UP,
}

# What MQTT 5 adds: the broker says why it closes the link.
LINK_5 = {UP << 8 | DISCONNECT: CLOSED}

# A message to the broker: (state << 8 | acknowledgement): next state. A state is the bits that STATE selects of
# the message's flags in the outbox and in the store: its QoS, and whether PUBREC came.
DONE = 0x00
AWAIT_PUBACK = 0x02
AWAIT_PUBREC = 0x04
AWAIT_PUBCOMP = 0x44
STATE = 0x46

OUTBOUND = {
    AWAIT_PUBACK << 8 | PUBACK: DONE,
    AWAIT_PUBREC << 8 | PUBACK: DONE,  # of a broker that takes QoS 2 for QoS 1
    AWAIT_PUBREC << 8 | PUBREC: AWAIT_PUBCOMP,
    AWAIT_PUBCOMP << 8 | PUBREC: AWAIT_PUBCOMP,  # PUBREC again: PUBREL again
    AWAIT_PUBCOMP << 8 | PUBCOMP: DONE,
}

# A message from the broker at QoS 2: (state << 8 | packet): next state. It is stored at PUBLISH, handed over at PUBREL.
UNKNOWN = 0
AWAIT_PUBREL = 1

INBOUND = {
    UNKNOWN << 8 | PUBLISH: AWAIT_PUBREL,
    AWAIT_PUBREL << 8 | PUBLISH: AWAIT_PUBREL,  # the same message again: PUBREC again
    AWAIT_PUBREL << 8 | PUBREL: UNKNOWN,
    UNKNOWN << 8 | PUBREL: UNKNOWN,  # PUBCOMP was lost: PUBCOMP again
}

# Inbound flow control (backpressure.py): values of Session.handover_limit that are no number of messages.
WAIT = -1  # new messages wait behind others
BLOCKED = -2  # a handler has just found the outbox full: its message is to be put back
SKIPPING = -3  # a message was left for the next link, so all that come after it are

# Keep-alive: values of Session.ping, 0 where nothing is awaited.
PING_DUE = 1
PING_SENT = 2  # awaits PINGRESP, or any other packet

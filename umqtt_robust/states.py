"""Every transition of the protocol, as literal tables; the docs' state diagrams are drawn from them. Those of QoS 2 lie
in qos2.py, so that only boards that need it carry them.

States are named after what they wait for, so the name says who moves next. A pair that is not in a table breaks the
protocol.
"""

# The link, as the client sees it.
CLOSED = 0
AWAIT_CONNACK = 1
UP = 2

# What may come, by the type of the packet, which is the upper half of its first byte: its remaining length << 2 | the
# state that it may come in, ANY << 2 where the length varies; NEVER: nothing. Every packet leads to UP.
ANY = 63
NEVER = 3
LINK = (
    b"\x03\x03"
    b"\x09"  # 2 CONNACK: the first packet from the server [MQTT-3.2.0-1]
    b"\xfe"  # 3 PUBLISH
    b"\x0a"  # 4 PUBACK
    b"\x0a"  # 5 PUBREC
    b"\x0a"  # 6 PUBREL
    b"\x0a"  # 7 PUBCOMP
    b"\x03"
    b"\x0e"  # 9 SUBACK
    b"\x03"
    b"\x0a"  # 11 UNSUBACK
    b"\x03"
    b"\x02"  # 13 PINGRESP
    b"\x03\x03"
)

# An outbound message at QoS 1 (4.3.2), as it stands in its flags. PUBACK is all that it waits for.
DONE = 0
AWAIT_PUBACK = 0x02

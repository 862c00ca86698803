"""WebSocket as a transport.

Why not the package websockets? Its sans-I/O ServerProtocol (17.4, with its C extension) was measured in place of
`frames`, on CPython 3.11, medians of 5 in alternation. The first three lines are the broker's CPU time for a delivered
message of 64 bytes at QoS 0:

                                        frames     websockets
200 messages in each frame              0.84 us    0.78 us
one message in each frame               1.55 us    2.65 us (1.7 times)
one frame in each read                  16.0 us    18.2 us (1.14 times)
memory of a connection beyond TCP's     2.2 KB     6.8 KB
CPU time of a connection                0.12 ms    0.18 ms

Of the other packages, the time to decode a frame of 87 bytes that comes alone, and to encode one: frames 1.5 us and
0.2 us, websockets 3.8 us and 1.1 us, aiohttp 7.2 us and 1.7 us, wsproto 12 us and 3 us.

`frames` is used because most clients send one packet in each frame. Also, the package websockets collects a whole frame
before it passes it on, which would need another limit for clients that have not sent CONNECT; it accepts lengths that
are not encoded in the shortest form; and it answers every PING of a client that reads nothing.
"""

"""What boards say, live: what `umqtt logs` does, without its options and its output.

entries   a line that a board has said, and an event of its connection
lines     bytes into lines
serial    the lines of boards on cables; a board that resets or is unplugged is waited for
published the lines that devices publish, from the broker
"""

"""What boards say, live: the work behind `umqtt logs`, without its options and output.

entries   a line that a board has said, and an event of its connection
lines     splits bytes into lines
serial    the lines of boards on cables; waits for a board that resets or is unplugged
published the lines that devices publish, from the broker
"""

"""The whole chain on one machine: virtual boards and simulated devices, broker, collector, Spark, and the count.

plan      what is asked for, and the folder that one run leaves behind
parts     the processes of the chain
boards    the virtual boards: real MicroPython that runs the firmware
control   the demo's own link to the broker: who is online, and commands to the boards
run       the sequence, from the first process to the last
count     compares the readings made with the rows stored
view      what is shown during the run and at its end
"""

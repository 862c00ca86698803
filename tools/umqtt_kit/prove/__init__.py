"""One adversary for the whole chain: `umqtt prove` breaks boards, network, broker, collector and Spark by a seed.

    faults.py     which faults there are, and which of them a seed plans, and when
    adversary.py  carries the plan out on the running chain, and writes what happened into the history
    brokers.py    the brokers that it runs with, and what those of other makers cannot do
    machines.py   the machines below the parts, whose clocks and disks fail
    updates.py    updates that boards are ordered to install
    damage.py     flips bits
    check.py      compares what the devices made with what the tables hold; it needs the run's folder alone
    evidence.py   what the tables say besides: the order of readings, and alerts

The chain itself is that of `umqtt demo`, whose outage is a plan of one fault.
"""

"""Test kit for MQTT devices: everything here runs on a host, against the real parts.

For tests:
    portable     helpers for tests that run on CPython and on MicroPython: raises, Rng, Clock, skip
    flash        a power-cut NOR flash under a real littlefs, for sweeps over every flash operation
    waiting      how tests wait: eventually(), eventually_async() and the one limit, WAIT_LIMIT_S
    virtual_time an asyncio event loop whose clock advances only when nothing is left to do
    simulation   virtual time, network, disks and a model of MQTT, for many programs in one process
    peer, wire   a scripted MQTT peer that plays a broker byte for byte, and its strict decoder
    encoder      encodes MQTT packets, also malformed ones, on CPython and on MicroPython
    proxy        a TCP proxy with faults: cut, blackhole, stall, refuse, delay, dribble, split
    network      a router between two network namespaces: loss, delay, rate, MTU holes, NAT that forgets
    ports        reserved ports: nobody listens on them and no other program is given them
    mosquitto    the real mosquitto as a process, and the paths of its programs
    redis_server the real redis-server as a process
    paired_broker  the broker of this project as a process
    cloud_broker, cloud_rules  brokers with the documented rules of clouds
    machine      the machine below a process: clocks that are wrong, disks that lose what was not synced
    board        virtual boards: real MicroPython with its own littlefs flash, driven by plain mpremote
    plugin       the pytest plugin: runs folders of tests on both interpreters, offers the fixtures
    interpreter  finds the real MicroPython of this machine
    devices      sensors and signals connected to a virtual board
    registry     finds virtual boards by name
    strace       the system calls of a program, in order

Internal modules: both (the two-interpreter collector), relay (of proxy), board_life, models, interrupt, console and
switchboard (of board), flash_device and flash_copy (of flash), launch (starts MicroPython), and _device, whose files
run inside MicroPython and are never imported on the host.

Modules here may import umqtt_robust and pytest, but nothing of the tests. MicroPython imports this file too (for
`portable`, `encoder` and `flash`), so it imports nothing.
"""

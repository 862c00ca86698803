"""Test kit for MQTT devices: everything here runs on a host, against the real parts.

For tests:
    portable     helpers for tests that run on CPython and on MicroPython: raises, Rng, Clock, skip
    flash        a power-cut NOR flash under a real littlefs, for sweeps over every flash operation
    waiting      how tests wait: eventually(), eventually_async() and the one limit, WAIT_LIMIT_S
    virtual_time an asyncio event loop whose time passes when nothing is left to do
    peer, wire   a scripted MQTT peer that says byte for byte what a broker does, and its strict decoder
    encoder      encodes MQTT packets, also wrong ones, on CPython and on MicroPython
    proxy        a TCP proxy with faults: cut, blackhole, stall, refuse, delay, dribble, split
    ports        ports that nobody listens on and nobody else gets
    mosquitto    the real mosquitto as a process, and where its programs are
    redis_server the real redis-server as a process
    board        virtual boards: real MicroPython with its own littlefs flash, driven by plain mpremote
    plugin       the pytest plugin: runs folders of tests on both interpreters, offers the fixtures
    interpreter  finds the real MicroPython of this machine

Behind them: both (the two-interpreter collector), relay (of proxy), board_life, interrupt, console and switchboard (of
board), launch (starts MicroPython), and _device, whose files run inside MicroPython and are imported by nothing on the
host.

May be imported here: umqtt_robust, pytest, and nothing of the tests. MicroPython imports this file too (for `portable`,
`encoder` and `flash`), so it imports nothing.
"""

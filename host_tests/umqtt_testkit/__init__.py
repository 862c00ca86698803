"""Test kit for MQTT devices: everything here runs on a host, against the real parts.

    portable    helpers for tests that run on CPython and on MicroPython (the only module here that both
    import) plugin      the pytest plugin: runs a folder's tests on both interpreters, offers the fixtures
    interpreter finds the real MicroPython of this machine peer        a scripted MQTT peer: says byte for
    byte what a broker does, and when proxy       a TCP proxy with faults: cut, stall, blackhole, refuse,
    delay, dribble, split board       virtual boards: real MicroPython with its own littlefs flash, driven by
    plain mpremote flash       a power-cut NOR flash under VfsLfs2, for sweeps over every flash operation
    _device     files that run inside MicroPython; nothing on the host imports them

This file is imported by MicroPython too (for `umqtt_testkit.portable`), so it imports nothing.
"""

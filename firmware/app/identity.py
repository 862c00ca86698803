"""Identifies where a reading comes from: the device id, and the boot id COUNT-RANDOM.

startup.py increments COUNT in flash once a boot, durably before the first reading. RANDOM is 64 new random
bits at every boot, so that a flash that was erased, cloned or restored from a backup never repeats an identity
already used.
"""

import binascii
import os

_RANDOM_BYTES = 8


class Identity:
    """The identity of this boot. device_id: str; boot: str, COUNT-RANDOM; boot_count: int."""

    def __init__(self, device_id, boot_count, random_bits=None):
        self.device_id = device_id
        self.boot_count = boot_count
        self.random_bits = random_bits or os.urandom(_RANDOM_BYTES)
        self.boot = "%d-%s" % (boot_count, binascii.hexlify(self.random_bits).decode())

    def topic(self, leaf):
        """Return the topic name fleet/{device_id}/{leaf} as bytes."""
        return ("fleet/%s/%s" % (self.device_id, leaf)).encode()

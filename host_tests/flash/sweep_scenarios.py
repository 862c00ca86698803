"""Scenarios of a device whose power is cut: fixed ones, and random ones from a seed.

Each is a function of (device, reboot): reboot() restarts the device and returns the new one.
"""

from umqtt_testkit.portable import Rng

from umqtt_robust.policy import DROP_OLDEST


def both_ways(device, reboot):
    """Send at QoS 1 and 2, receive at QoS 2, and acknowledge one by one."""
    device.connect()
    for number in range(4):
        device.publish(b"reading %d" % number, 1 + number % 2)
        device.command(b"command %d" % number)
        device.tick()
    device.settle()


def in_flight(device, reboot):
    """Have several messages in flight at once, then acknowledge all."""
    device.connect()
    for number in range(6):
        device.publish(b"reading %d" % number, 1 + number // 2 % 2)
    for number in range(3):
        device.command(b"command %d" % number)
    device.settle()


def offline_then_reboot(device, reboot):
    """Queue messages without a link, over a reboot."""
    device.offline()
    for number in range(4):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device = reboot()
    device.publish(b"after the reboot", 2)
    device.settle()


def reboots(device, reboot):
    """Reboot after each step, with a command under way."""
    for number in range(4):
        device.connect()
        device.publish(b"reading %d" % number, 2 - number % 2)
        device.command(b"command %d" % number)
        device = reboot()
    device.settle()


def fill_and_drop_oldest(device, reboot):
    """Publish more than the slots hold; the oldest unsent messages are dropped."""
    device.client.policy = DROP_OLDEST
    device.connect()
    device.publish(b"before", 2)
    device.offline()
    for number in range(10):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device.online()
    device.settle()


def fill_and_refuse(device, reboot):
    """Publish more than the slots hold; the newest messages are refused."""
    device.offline()
    for number in range(10):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device.settle()


def wrap_packet_ids(device, reboot):
    """Let packet ids wrap at 65535, with a reboot there."""
    device.client._last_id = 65532
    device.connect()
    for number in range(5):
        device.publish(b"reading %d" % number, 2 - number % 2)
    device = reboot()
    for number in range(5, 8):
        device.publish(b"reading %d" % number, 2 - number % 2)
    device.settle()


def large(device, reboot):
    """Publish messages of several chunks, and of more than the chunks allow."""
    device.connect()
    for number, size in ((0, 300), (1, 90), (2, 1500), (3, 119)):
        device.publish(b"%d" % number + b"x" * size, 1 + number % 2)
        device.tick()
    device.command(b"c" * 200)
    device.settle()


def large_again(device, reboot):
    """Publish large messages of one size in one slot, where chunks of the previous one remain."""
    device.connect()
    for number in range(3):
        device.publish(b"%d" % number * 600, 1 + number % 2)
        device.settle()


def stalled(device, reboot):
    """Acknowledge nothing for a while; then the link is given up and everything is sent again."""
    device.connect()
    device.publish(b"before", 1)
    device.stall()
    device.publish(b"after", 2)
    device.stall()
    device.settle()


def broker_forgets(device, reboot):
    """Lose the broker's session while messages are under way both ways."""
    device.connect()
    for number in range(3):
        device.publish(b"reading %d" % number, 2)
        device.command(b"command %d" % number)
    device.tick()
    device.broker_forgets()
    device = reboot()
    device.connect()
    for number in range(3):
        device.command(b"new command %d" % number)
    device.settle()


FIXED = (
    both_ways, in_flight, offline_then_reboot, reboots, fill_and_drop_oldest, fill_and_refuse, wrap_packet_ids, large,
    large_again, stalled, broker_forgets,
)  # fmt: skip


def random_scenario(seed, steps=14):
    """Return a random mixture of all operations, the same for the same seed."""

    def scenario(device, reboot):
        rng = Rng(seed, quiet=True)
        online = False
        broker = device.ledger.broker
        broker.late = rng.chance(50)
        if not broker.late:  # a late broker accepts messages in the order of its PUBRECs, which hold_recs reverses
            broker.hold_recs = rng.choice((0, 2))
        if rng.chance(20):
            device.client._last_id = 65535 - rng.below(6)
        if rng.chance(30):
            device.client.policy = DROP_OLDEST
        for number in range(steps):
            chance = rng.below(100)
            if chance < 45:
                size = rng.choice((0, 0, 0, 40, 100, 250))
                device.publish(b"r%d " % number + b"x" * size, rng.between(1, 2))
            elif chance < 60:
                device.command(b"c%d " % number + b"y" * rng.choice((0, 0, 150)))
            elif chance < 80:
                if not online:
                    device.online()
                    online = True
                device.tick()
            elif chance < 88:
                device.offline()
                online = False
            elif chance < 90 and online:
                device.stall()
            elif chance < 95:
                device = reboot()
                online = False
            else:
                device.settle()
                online = True
        device.settle()

    return scenario

"""What the device does while its power is cut: fixed scenarios, and random ones from a seed.

Each is a function of (device, reboot): reboot() returns the next life of the device.
"""

from umqtt_testkit.portable import Rng

from umqtt_robust.policy import DROP_OLDEST


def both_ways(device, reboot):
    """QoS 1 and 2 out and QoS 2 in, acknowledged one by one."""
    device.connect()
    for number in range(4):
        device.publish(b"reading %d" % number, 1 + number % 2)
        device.command(b"command %d" % number)
        device.tick()
    device.settle()


def in_flight(device, reboot):
    """Several at once, then all acknowledgements."""
    device.connect()
    for number in range(6):
        device.publish(b"reading %d" % number, 1 + number // 2 % 2)
    for number in range(3):
        device.command(b"command %d" % number)
    device.settle()


def offline_then_reboot(device, reboot):
    """Queued while there is no link, over a reboot."""
    device.offline()
    for number in range(4):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device = reboot()
    device.publish(b"after the reboot", 2)
    device.settle()


def reboots(device, reboot):
    """A reboot after each step, with a command under way."""
    for number in range(4):
        device.connect()
        device.publish(b"reading %d" % number, 2 - number % 2)
        device.command(b"command %d" % number)
        device = reboot()
    device.settle()


def fill_and_drop_oldest(device, reboot):
    """More than the slots hold; the oldest unsent ones go."""
    device.client.policy = DROP_OLDEST
    device.connect()
    device.publish(b"before", 2)
    device.offline()
    for number in range(10):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device.online()
    device.settle()


def fill_and_refuse(device, reboot):
    """More than the slots hold; the newest are refused."""
    device.offline()
    for number in range(10):
        device.publish(b"reading %d" % number, 1 + number % 2)
    device.settle()


def wrap_packet_ids(device, reboot):
    """Packet ids go past 65535, with a reboot there."""
    device.client._last_id = 65532
    device.connect()
    for number in range(5):
        device.publish(b"reading %d" % number, 2 - number % 2)
    device = reboot()
    for number in range(5, 8):
        device.publish(b"reading %d" % number, 2 - number % 2)
    device.settle()


def large(device, reboot):
    """Messages of several chunks, and of more than the chunks allow."""
    device.connect()
    for number, size in ((0, 300), (1, 90), (2, 1500), (3, 119)):
        device.publish(b"%d" % number + b"x" * size, 1 + number % 2)
        device.tick()
    device.command(b"c" * 200)
    device.settle()


def large_again(device, reboot):
    """Large messages of one size in one slot, where the chunks of the last one still lie."""
    device.connect()
    for number in range(3):
        device.publish(b"%d" % number * 600, 1 + number % 2)
        device.settle()


def stalled(device, reboot):
    """The broker acknowledges nothing for a while, then the link is given up and all goes again."""
    device.connect()
    device.publish(b"before", 1)
    device.stall()
    device.publish(b"after", 2)
    device.stall()
    device.settle()


def broker_forgets(device, reboot):
    """The broker loses the session while messages are under way both ways."""
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
    """A mixture of everything, the same for the same seed."""

    def scenario(device, reboot):
        rng = Rng(seed, quiet=True)
        online = False
        broker = device.ledger.broker
        broker.late = rng.chance(50)
        if not broker.late:  # otherwise the order of its PUBRECs would be that of the messages
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

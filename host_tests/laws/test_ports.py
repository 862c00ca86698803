"""The same connection tests on the sockets of every port: unix, esp32, rp2, and lwIP that says -1."""

from socket_shim import PORTS, Shim
from timing import run_until
from traffic import Traffic, length_of_a_session, sweep
from umqtt_testkit.portable import equal
from world import Broker, Flash, every

HEAP = "4M"
TIMEOUT_S = 100


def on_every_port(test):
    for port in PORTS:
        with Shim(port) as make_world:
            try:
                test(make_world, port)
            except BaseException:
                print("port", port.name)
                raise


def whole(world, traffic):
    traffic.check()
    traffic.check_down()
    assert world.net.open_sockets() <= 1


def test_a_session_cut_at_every_byte():
    # Planted: close() raises the error that lwIP reports for a broken socket.
    def test(make_world, port):
        up, down, _ = length_of_a_session(make_world)
        cuts = [[{"cut_up": at}] for at in every(up, 3)] + [[{"cut_down": at}] for at in every(down, 3)]
        sweep(make_world, cuts, whole)
        sweep(lambda: make_world(tx_size=48, rx_size=64), [[{"piece": 2}], [{"cut_up": 77, "piece": 5}]], whole)

    on_every_port(test)


def test_a_power_cut_at_every_byte():
    # Planted: messages sent before a restart are sent again without DUP.
    def test(make_world, port):
        sweep(
            lambda: make_world(flash=Flash()),
            [[{"cut_up": at, "power": True}] for at in every(190, 11)],
            lambda world, traffic: traffic.check(),
        )

    on_every_port(test)


def connected(make_world, **options):
    options.setdefault("keep_alive", 10)
    world = make_world(**options)
    assert world.run(lambda: world.client.connected)
    return world


def test_fin_and_rst_are_noticed_at_the_next_tick():
    # Planted: read() takes an error for nothing to read.
    def test(make_world, port):
        for fin in (True, False):
            for publishing in (False, True):
                world = connected(make_world)
                if fin:
                    world.wire.fin = True
                    world.brokers[0].answer = False
                else:
                    world.wire.break_now()
                if publishing:
                    world.client.publish(b"up/0", b"x", 1)
                world.client.tick()
                assert not world.client.connected, (fin, publishing)
                world.brokers[0].answer = True
                assert world.run(lambda world=world: world.client.connected and not world.client.pending)
                assert len(world.taken()) >= publishing
                equal(world.net.open_sockets(), 1)

    on_every_port(test)


def test_a_blackhole_is_found_within_keep_alive():
    # Planted: the wait for PINGRESP begins when the link has taken PINGREQ.
    def test(make_world, port):
        for attribute in ("mute", "full"):
            for publishing in (False, True):
                world = connected(make_world)
                setattr(world.wire, attribute, True)
                if publishing:
                    world.client.publish(b"up/0", b"x", 1)
                wait = run_until(world, lambda world=world: not world.client.connected, 10000)
                assert 9990 <= wait <= 10000, wait

    on_every_port(test)


def test_the_next_address_of_a_name_is_tried():
    # Planted: an address that fails at once ends the attempt.
    def test(make_world, port):
        for first in ("refused", "unreachable", "no such family"):
            world = make_world()
            world.net.addresses = [first, first, "ok"]
            assert world.run(lambda world=world: world.client.connected, 2000), first
            equal(world.of_kind("error"), [])
            equal(world.net.open_sockets(), 1)

    on_every_port(test)


def test_an_address_without_a_connack_is_followed_by_the_next_one():
    # Planted: an address is good once it accepts the connection, or the order of the next look-up begins at its front.
    def test(make_world, port):
        for addresses in (
            ["mute", "ok"],
            ["closes", "ok"],
            ["silent", "ok"],
            ["closes", "refused", "mute", "unreachable", "ok"],
            ["ok", "mute", "closes"],
        ):
            bad = [one for one in addresses if one in ("mute", "closes", "silent")]
            for turns in (0, 1) if len(bad) == 1 else (0,):
                world = make_world(clean_session=True)
                net = world.net
                net.addresses = addresses[:]
                if addresses[0] == "ok":
                    assert world.run(lambda world=world: world.client.connected)
                    # The good one fails once, and the name is looked up.
                    world.unreachable = True
                    world.wire.break_now()
                    assert world.run(lambda world=world: world.of_kind("error"), 60000)
                    world.unreachable = False
                    world.events.clear()
                net.turns = turns
                tried = len(net.sockets)
                assert world.run(lambda world=world: world.client.connected, 120000), (addresses, turns)
                assert len(world.of_kind("error")) <= len(bad), (addresses, turns)
                # From now on it is the first.
                sockets = len(net.sockets)
                assert sockets - tried <= len(addresses)
                world.wire.break_now()
                world.settle()
                assert world.run(lambda world=world: world.client.connected, 60000)
                equal(len(net.sockets), sockets + 1)
                equal(net.open_sockets(), 1)

    on_every_port(test)


def test_every_failure_to_connect_is_reported_and_tried_again_and_leaves_no_socket():
    # Planted: the socket of an address that failed stays open.
    def test(make_world, port):
        for how in ("refused", "unreachable", "silent"):
            world = make_world()
            world.net.addresses = [how]
            for n in range(1, 5):
                errors = len(world.of_kind("error"))
                assert world.run(lambda world=world, n=errors: len(world.of_kind("error")) > n, 60000), how
                equal(world.net.open_sockets(), 0, how)
                equal(len(world.net.sockets), n, how)
            assert isinstance(world.of_kind("error")[0], OSError) or how == "silent"
            world.net.addresses = ["ok"]
            assert world.run(lambda world=world: world.client.connected)

    on_every_port(test)


def test_a_name_is_not_looked_up_while_its_address_is_good():
    # Planted: every attempt looks up the name; a failed look-up is repeated at once.
    def test(make_world, port):
        world = make_world()
        net = world.net
        assert world.run(lambda: world.client.connected)
        for _ in range(3):
            world.wire.break_now()
            world.settle()
            assert world.run(lambda: world.client.connected)
        equal(net.lookups, 1)
        # The network is gone, and a look-up may block: it must not happen at every attempt.
        world.unreachable = True
        net.lookup_error = OSError(-2)
        world.wire.break_now()
        attempts = []
        errors = len(world.of_kind("error"))
        while len(attempts) < 8:
            assert world.run(lambda n=len(attempts): len(world.of_kind("error")) > errors + n, 300000)
            attempts.append(net.lookups)
        equal(attempts, [1, 2, 2, 3, 3, 4, 4, 5])
        world.unreachable = False
        assert world.run(lambda: world.client.connected, 300000)

    on_every_port(test)


def test_a_broker_that_has_moved_is_found():
    # Planted: an address counts as good if it accepts a connection, even if the broker there refuses the client.
    def test(make_world, port):
        for code in (0, 5):  # the old address is dead, or belongs to somebody else's broker
            world = make_world([Broker("a")])
            net = world.net
            assert world.run(lambda world=world: world.client.connected)
            old = world.brokers[0]
            old.return_code = code
            old.down = not code
            world.brokers[0] = new = Broker("a")
            world.wire.break_now()
            world.settle()
            assert world.run(lambda new=new: new.connects, 600000), (code, world.events[-5:])
            equal(net.lookups, 2)
            assert world.run(lambda world=world: world.client.connected)
            world.wire.break_now()
            world.settle()
            assert world.run(lambda world=world: world.client.connected)
            equal((net.lookups, len(new.connects)), (2, 2))

    on_every_port(test)


def test_a_name_that_cannot_be_looked_up_is_an_error_like_others():
    # Planted: a name without an address is an IndexError.
    def test(make_world, port):
        for error in (OSError("Name or service not known"), OSError(-2), OSError(-202), OSError(port.ETIMEDOUT)):
            world = make_world()
            world.net.lookup_error = error
            assert world.run(lambda world=world: len(world.of_kind("error")) == 3, 60000)
            equal(world.of_kind("error"), [error] * 3)
            world.net.lookup_error = None
            assert world.run(lambda world=world: world.client.connected)
        world = make_world()
        world.net.addresses = []  # some ports find no address without raising an error
        assert world.run(lambda: len(world.of_kind("error")) == 2, 60000)
        assert isinstance(world.of_kind("error")[0], OSError)

    on_every_port(test)


def test_poll_drives_the_client_and_raises_nothing():
    # Planted: tick() stays marked as running after an error of the network.
    def test(make_world, port):
        world = make_world(keep_alive=10)
        client = world.client
        for turn in range(400):
            if turn == 100:
                world.wire.break_now()
            if turn == 200:
                client.publish(b"up/0", b"x", 2)
            left = client.tick()
            if left and client.transport is None:
                world.clock.advance(left)
            elif left > 1000:
                world.clock.advance(1000)
            client.wait_ms = min(client.wait_ms, 1000) if client.transport else 0
            client.poll(1000)
        assert client.connected and not client.pending
        equal(len(world.wires), 2)

    on_every_port(test)


def test_disconnect_closes_the_socket():
    # Planted: a link that is dropped leaves its socket open.
    def test(make_world, port):
        for state in ("connected", "connecting", "broken"):
            world = connected(make_world)
            if state != "connected":
                world.wire.break_now()
            if state == "connecting":
                world.net.addresses = ["silent"]
                world.run(lambda world=world: len(world.net.sockets) == 2, 5000)
            world.client.disconnect()
            assert world.run(lambda world=world: world.client.closed, 5000), state
            equal(world.net.open_sockets(), 0)
            equal(world.client.socket, None)

    on_every_port(test)


def test_failover_when_a_broker_is_gone():
    # Planted: the same broker is tried again and again.
    def test(make_world, port):
        world = make_world([Broker("a"), Broker("b")])
        traffic = Traffic(world)
        assert world.run(lambda: world.client.connected)
        world.brokers[0].down = True
        world.wire.break_now()
        traffic.run()
        traffic.check(exactly_once=False)
        equal(world.wire.broker.name, "b")

    on_every_port(test)

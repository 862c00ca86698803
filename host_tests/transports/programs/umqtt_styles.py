# Programs for umqtt.simple and umqtt.robust, one a style, with these or with what replaces them: reads JSON {"package",
# "server", "port", "only"} and prints what each style was given and what it caught.
import json
import select
import sys
import time
from array import array

config = json.loads(sys.stdin.readline())
server, port = config["server"], config["port"]
package = __import__(config["package"] + ".robust")
MQTTClient = __import__(config["package"] + ".simple").simple.MQTTClient
got = []
clients = []


def plain(value):
    return value.decode() if isinstance(value, (bytes, bytearray)) else value


def heard(topic, msg):
    got.append([plain(topic), plain(msg), type(topic).__name__ + " " + type(msg).__name__])


def made(name, kind=MQTTClient, **options):
    client = kind(name, server, port, **options)
    client.set_callback(heard)
    clients.append(client)
    return client


def here(name, **options):
    client = made(name, **options)
    got.append(int(client.connect()))
    return client


def tried(call, *arguments):
    try:
        got.append(call(*arguments))
    except OSError:
        got.append("OSError")
    except Exception as error:  # noqa: BLE001 - what it is is the result
        got.append(type(error).__name__)


def until(client, count, call="check_msg"):
    """Call check_msg() in a loop until so many messages came, as programs do."""
    for _ in range(2000):
        if sum([isinstance(one, list) for one in got]) >= count:
            return
        getattr(client, call)()
        time.sleep(0.005)


def publish_and_leave():
    c = here("a")
    got.append(c.publish("styles/1", "hello"))
    got.append(c.disconnect())


def bytes_everywhere():
    c = here(b"b")
    got.append(c.publish(b"styles/2", b"\x01\x02"))


def qos_1():
    c = here("c")
    got.append(c.publish("styles/3", "sure", False, 1))
    got.append(c.publish(b"styles/3", b"sure too", qos=1))


def retained():
    c = here("d")
    got.append(c.publish("styles/4", "kept", True))
    got.append(c.publish("styles/4", "kept too", retain=True, qos=1))
    c.subscribe("styles/4")
    got.append(c.wait_msg())
    c.publish("styles/4", "", True, 1)


def a_bytearray_and_an_array():
    c = here("e")
    c.publish("styles/5", bytearray(b"xyz"))
    c.publish("styles/5", array("B", b"xyz"))
    c.publish("styles/5", memoryview(b"xyz"))


def odd_arguments():
    c = MQTTClient(b"ao", server.encode(), str(port), keepalive=False)
    got.append(int(c.connect()))
    c.publish("styles/38", "abc", False, False)
    c.disconnect()


def json_of_a_sensor():
    c = here("f", keepalive=60)
    for i in range(5):
        c.publish("styles/6", json.dumps({"t": i}))


def an_empty_payload():
    c = here("g")
    c.publish("styles/7", "")
    c.publish("styles/7", b"", False, 1)


def a_large_payload():
    c = here("h")
    c.publish("styles/8", b"l" * 2500, False, 1)
    c.publish("styles/8", "m" * 200)


def a_large_message_comes():
    c = here("al")
    c.subscribe("styles/36", 1)
    c.publish("styles/36", b"l" * 2000, False, 1)
    until(c, 1)
    got[1][1] = len(got[1][1])


def qos_1_is_in_what_wait_msg_returns():
    c = here("am")
    c.subscribe("styles/37", 1)
    other = here("an")
    other.publish("styles/37", "x", False, 1)
    got.append(c.wait_msg())


def subscribe_and_wait():
    c = here("i")
    got.append(c.subscribe("styles/9"))
    c.publish("styles/9", "back")
    got.append(c.wait_msg())


def subscribe_at_qos_1():
    c = here("j")
    got.append(c.subscribe(b"styles/10", qos=1))
    c.publish("styles/10", "back")
    got.append(c.wait_msg())
    got.append(c.check_msg())


def several_topics_and_wildcards():
    c = here("k")
    c.subscribe("styles/11/+/cmd")
    c.subscribe(b"styles/11/all/#")
    for topic in ("x/cmd", "all/y/z", "none", "all"):
        c.publish("styles/11/" + topic, topic)
    until(c, 3)


def check_msg_with_nothing_there():
    c = here("l")
    c.subscribe("styles/12")
    got.append(c.check_msg())
    got.append(c.check_msg())


def a_loop_of_check_msg():
    c = here("m")
    c.subscribe("styles/13")
    for i in range(6):
        c.publish("styles/13", str(i))
    until(c, 6)


def select_on_the_socket():
    c = here("n")
    c.subscribe("styles/14")
    poller = select.poll()
    poller.register(c.sock, select.POLLIN)
    got.append(len(poller.poll(0)))
    for i in range(3):
        c.publish("styles/14", str(i))
        got.append(len(poller.poll(10_000)))
        c.check_msg()


def ping_and_its_answer():
    c = here("o", keepalive=30)
    got.append(c.ping())
    got.append(c.wait_msg())


def a_will():
    c = made("p", keepalive=30)
    got.append(c.set_last_will("styles/16", "gone"))
    c.connect()
    c.sock.close()


def a_will_that_is_kept():
    c = made("q", keepalive=30)
    c.set_last_will(b"styles/17", b"offline", retain=True, qos=1)
    c.connect()
    c.publish("styles/17", "online", True, 1)
    c.sock.close()


def a_will_set_as_attributes():
    c = made("r", keepalive=30)
    c.lw_topic, c.lw_msg, c.lw_qos = "styles/18", "gone", 0
    c.connect()
    c.sock.close()


def no_will_after_disconnect():
    c = made("s", keepalive=30)
    c.set_last_will("styles/19", "gone")
    c.connect()


def user_and_password():
    c = here("t", user="u", password="p")
    c.publish("styles/20", "x")
    c.disconnect()
    c = here(b"t", user=b"u", password=b"p", keepalive=10)


def a_session_that_is_kept():
    c = made("u")
    got.append(int(c.connect(clean_session=True)))
    c.disconnect()
    got.append(int(c.connect(clean_session=False)))
    c.subscribe("styles/21", qos=1)
    c.disconnect()
    other = here("u2")
    other.publish("styles/21", "while away", False, 1)
    other.disconnect()
    got.append(int(c.connect(False)))
    until(c, 1)
    c.disconnect()
    got.append(int(c.connect(False)))  # it was acknowledged
    got.append(c.check_msg())
    c.disconnect()
    c.connect(True)


def connect_again():
    c = here("v")
    c.publish("styles/22", "1", False, 1)
    got.append(int(c.connect()))
    c.publish("styles/22", "2", False, 1)


def publish_after_disconnect():
    c = here("w")
    c.disconnect()
    tried(c.publish, "styles/23", "x")
    tried(c.ping)


def nobody_listens():
    tried(MQTTClient("x", server, config["closed"]).connect)


def a_handler_that_closes_and_connects():
    c = here("y")
    c.sock.close()
    try:
        c.publish("styles/25", "lost", False, 1)
    except OSError:
        c.sock.close()
        got.append("OSError")
    c.connect()
    c.publish("styles/25", "again", False, 1)


def the_callback_answers():
    c = here("z")

    def answer(topic, msg):
        heard(topic, msg)
        if msg == b"ask":
            c.publish("styles/26/reply", b"answer")

    c.set_callback(answer)
    c.subscribe(b"styles/26/#")
    c.publish("styles/26/ask", "ask")
    until(c, 2)


def the_callback_during_publish():
    c = here("ac")
    c.subscribe("styles/28")
    c.publish("styles/28", "first", False, 1)  # it comes before PUBACK or after it
    c.publish("styles/28", "second", False, 1)
    until(c, 2)


def subscribe_without_a_callback():
    c = MQTTClient("ad", server, port)
    c.connect()
    tried(c.subscribe, "styles/29")


def modes_of_the_socket():
    c = here("ae")
    c.subscribe("styles/30")
    for count, change in ((2, lambda: c.sock.settimeout(0.5)), (4, lambda: c.sock.setblocking(True))):
        for call in (c.check_msg, lambda: c.publish("styles/30", "x"), c.wait_msg):
            change()
            got.append(call())
        change()
        c.publish("styles/30", "y", qos=1)
        until(c, count)
        for call in (c.ping, c.wait_msg, c.check_msg):
            change()
            got.append(call())


def a_subclass_that_logs():
    class Logged(MQTTClient):
        def publish(self, topic, msg, retain=False, qos=0):
            got.append("publish")
            return super().publish(topic, msg, retain, qos)

        def wait_msg(self):
            got.append("wait")
            return super().wait_msg()

    c = made("ag", Logged)
    c.connect()
    c.subscribe("styles/32")
    del got[:]
    c.publish("styles/32", "x")
    got.append(c.check_msg() or c.wait_msg())
    while "wait" in got:
        got.remove("wait")


def unsubscribe():
    c = here("ah")
    c.subscribe("styles/33")
    got.append(c.unsubscribe("styles/33"))
    c.publish("styles/33", "x", False, 1)
    got.append(c.check_msg())


class Robust(package.robust.MQTTClient):
    DELAY = 0


def robust_publishes_over_a_lost_link():
    c = made("ai", Robust)
    c.connect()
    c.publish("styles/34", "1", False, 1)
    c.sock.close()
    c.publish("styles/34", "2", False, 1)
    got.append(c.publish("styles/34", "3"))


def robust_waits_over_a_lost_link():
    c = made("aj", Robust)
    c.connect(clean_session=True)
    c.connect(clean_session=False)
    c.subscribe("styles/35", 1)
    other = made("aj")  # the broker ends the link of the first client of this name
    other.connect(clean_session=False)
    other.publish("styles/35/other", "x", False, 1)
    other.disconnect()
    sender = here("ak")
    sender.publish("styles/35", "x", False, 1)
    until(c, 1)
    sender.disconnect()
    c.disconnect()
    c.connect(True)


STYLES = [
    publish_and_leave, bytes_everywhere, odd_arguments, qos_1, retained, a_bytearray_and_an_array, json_of_a_sensor,
    an_empty_payload, a_large_payload, a_large_message_comes, qos_1_is_in_what_wait_msg_returns, subscribe_and_wait,
    subscribe_at_qos_1, several_topics_and_wildcards, check_msg_with_nothing_there, a_loop_of_check_msg,
    select_on_the_socket, ping_and_its_answer, a_will, a_will_that_is_kept, a_will_set_as_attributes,
    no_will_after_disconnect, user_and_password, a_session_that_is_kept, connect_again, publish_after_disconnect,
    nobody_listens, a_handler_that_closes_and_connects, the_callback_answers,
    the_callback_during_publish, subscribe_without_a_callback, modes_of_the_socket,
    a_subclass_that_logs, unsubscribe, robust_publishes_over_a_lost_link, robust_waits_over_a_lost_link,
]  # fmt: skip

for style in STYLES:
    del got[:]
    del clients[:]
    try:
        style()
    except Exception as error:  # noqa: BLE001
        got.append("ended by " + type(error).__name__ + ": " + str(error))
    print(json.dumps({"event": "style", "name": style.__name__, "got": got}))
    for client in clients:
        tried(client.disconnect)
end = MQTTClient("end", server, port)
end.connect()
end.publish("styles/end", "", False, 1)
end.disconnect()
print(json.dumps({"event": "done"}))

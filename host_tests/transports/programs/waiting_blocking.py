# See waiting_round.py: "front" is simple or robust.
from time import sleep

from waiting_round import INBOX, OUT, PUBLISHES, Round, callback, clean, config, qos

from umqtt_robust.errors import MQTTError

module = __import__("umqtt_robust." + config["front"], None, None, ("x",))


def handler(topic, payload):
    # At QoS 2 it is called once even if the link is lost, so the program makes the new link here.
    if PUBLISHES is not None and qos < 2:
        client.publish(OUT, payload[:8], qos=PUBLISHES)
    turn = current.take(payload)
    if PUBLISHES is not None and qos == 2:
        until_done(client.publish, OUT, payload[:8], False, PUBLISHES)
    if callback == "sleeps":
        sleep(0.001)
    elif turn and callback == "unsubscribes":
        client.unsubscribe(INBOX)
    elif turn and callback == "disconnects":
        client.disconnect()


def core():
    # The bundle gives this attribute of the client another name.
    for name in dir(client):
        if hasattr(getattr(client, name), "discarded"):
            return getattr(client, name)


def until_done(call, *arguments):
    global connected
    while True:
        try:
            if not connected:
                client.connect(clean)
                connected = True
            return call(*arguments)
        except OSError:
            connected = False


def subscribe():
    while True:
        try:
            return until_done(lambda: client.subscribe(INBOX, qos))
        except ValueError:  # raised by the handler of messages that come before the answer
            pass


current = Round()
connected = False
client = module.MQTTClient(config["name"], "127.0.0.1", config["port"], keepalive=60)
client.set_callback(handler)
while True:
    subscribe()
    inner = core()
    current.begin(inner)
    while current.goes_on(inner):
        try:
            until_done(bool)  # connected
            client.wait_msg()
        except OSError:
            connected = False  # and the round may be over: a callback that needed the link had the last message
        except ValueError:
            pass
        except MQTTError as error:
            current.refuse(error)
    current.result(inner)

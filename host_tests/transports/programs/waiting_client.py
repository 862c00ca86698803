# See waiting_round.py: umqtt_robust.Client.
from time import sleep

from waiting_round import INBOX, OUT, PUBLISHES, Round, callback, clean, config, qos, store

from umqtt_robust import Client


def handler(topic, payload):
    if PUBLISHES is not None:
        client.publish(OUT, payload[:8], PUBLISHES)
    turn = current.take(payload, client.redelivered)
    if callback == "sleeps":
        sleep(0.001)
    elif turn and callback == "unsubscribes":
        client.unsubscribe(INBOX)
    elif turn and callback == "disconnects":
        client.disconnect()


current = Round()
url = "mqtt://127.0.0.1:%d" % config["port"]
client = Client(config["name"], url, clean_session=clean, store=store(), random=lambda n: 0)
client.on(INBOX, handler)


def drive():
    if client.closed:
        client.connect()
    client.poll(1000)


while True:
    client.subscribe(INBOX, qos)
    while not (client.connected and client.subscribed):
        drive()
    current.begin(client)
    while current.goes_on(client) or client.pending or client.closed:
        drive()
    current.result(client)

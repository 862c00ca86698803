"""paho-mqtt under the bench, on CPython, with its own network thread (loop_start). argv as in ours.py."""

import json
import os
import socket
import sys
import threading
import time

from paho.mqtt.client import CallbackAPIVersion, Client

given = json.loads(sys.argv[1])
TOPIC = f"bench/{os.getpid()}"


def say(**values):
    print(json.dumps(values), flush=True)


def connected():
    client = Client(CallbackAPIVersion.VERSION2, client_id=f"bench-paho-{os.getpid()}")
    client.max_inflight_messages_set(given.get("window", 20))
    if given.get("nodelay"):
        client.on_socket_open = lambda _client, _data, sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    up = threading.Event()
    client.on_connect = lambda *_: up.set()
    client.connect("127.0.0.1", given["port"])
    client.loop_start()
    up.wait(10)
    return client


def publish():
    client = connected()
    qos = given["qos"]
    payload = bytes(given["size"])
    room = threading.Semaphore(32)  # as many as the other client's outbox takes
    client.on_publish = lambda *_: room.release()
    sent = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < given["seconds"]:
        room.acquire()
        client.publish(TOPIC, payload, qos)
        sent += 1
    if not qos:
        client.publish(TOPIC, payload, 1).wait_for_publish(30)
    else:
        for _ in range(32):
            room.acquire()
    say(rate=sent / (time.perf_counter() - begin))


def receive():
    client = connected()
    got = 0
    first = threading.Event()

    def handler(_client, _data, _message):
        nonlocal got
        got += 1
        if got == given["first"]:
            first.set()

    client.on_message = handler
    client.subscribe(f"bench/{given['qos']}/0/{given['size']}", given["qos"])
    first.wait(10)
    begin, before = time.perf_counter(), got
    time.sleep(given["seconds"])
    say(rate=(got - before) / (time.perf_counter() - begin))
    os._exit(0)  # its thread would go on reading


globals()[sys.argv[2]]()

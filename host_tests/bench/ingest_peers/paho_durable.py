"""Peer: paho with manual acknowledgement; messages are appended to a file and acknowledged after its fdatasync.

    paho_durable.py PORT CLIENT_ID TOPIC_FILTER FILE COUNT

prints `subscribed`, then a JSON object {messages, seconds} for everything after the first message, and ends.
Messages that wait together share one fdatasync, up to a limit: the best that this client can be made to do.
COUNT 0: only subscribe.
"""

import json
import os
import select
import sys
import time

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

_GROUP = 2000


def main() -> None:
    port, client_id, topic_filter, path, count = sys.argv[1:]
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False, manual_ack=True)
    group: list[paho.MQTTMessage] = []
    subscribed = []
    begin = 0.0

    def on_message(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        nonlocal begin
        begin = begin or time.monotonic()
        group.append(message)

    client.on_message = on_message

    def on_connect(client: paho.Client, _data: object, flags: paho.ConnectFlags, *_: object) -> None:
        if flags.session_present:
            subscribed.append(True)
        else:
            client.subscribe(topic_filter, 1)

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: subscribed.append(True)
    client.connect("127.0.0.1", int(port))
    while not subscribed:
        client.loop_read()
        client.loop_write()
    print("subscribed", flush=True)
    received, wanted = 0, int(count)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    while received < wanted:
        connection = client.socket()
        assert connection is not None
        timeout = 1.0
        while len(group) < _GROUP and select.select([connection], [], [], timeout)[0]:
            client.loop_read()
            timeout = 0.0
        if not group:
            client.loop_misc()
            continue
        os.write(file, b"".join(message.payload + b"\n" for message in group))
        os.fdatasync(file)
        for message in group:
            client.ack(message.mid, message.qos)
        while client.want_write():
            client.loop_write()
        received += len(group)
        group.clear()
    if wanted:
        seconds = time.monotonic() - begin
        print(json.dumps({"messages": received, "seconds": seconds}), flush=True)
    client.disconnect()


main()

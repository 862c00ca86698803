"""SCRAM-SHA-256 with MQTT 5: device and broker prove to each other that they know the password. Neither sends it.

For a broker of this project, `umqtt passwd FILE pump-7 --scram --generate` makes such a password; see
docs/permission.md. The client has to compute all iterations: 4,096 for a generated password. A false broker could ask
for fewer, and then try passwords quickly on the proof. So fewer are refused, and fewer than before.
"""

import hashlib
import os
from binascii import a2b_base64, b2a_base64, hexlify

from umqtt_robust import Client
from umqtt_robust.errors import LinkLost

BROKER = "mqtt://broker.example"
DEVICE = "pump-7"
PASSWORD = "secret"
LEAST_ITERATIONS = 4096  # RFC 7677, 4
MOST_ITERATIONS = 1_000_000  # a hostile broker could ask for more than a board can ever do
least = [LEAST_ITERATIONS]


def sha256(data):
    return hashlib.sha256(data).digest()


def hmac(key, data):
    key = (sha256(key) if len(key) > 64 else key) + bytes(64)
    inner = sha256(bytes([byte ^ 0x36 for byte in key[:64]]) + data)
    return sha256(bytes([byte ^ 0x5C for byte in key[:64]]) + inner)


def xor(one, other):
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).to_bytes(32, "big")


def salt_password(salt, iterations):
    result = block = hmac(PASSWORD.encode(), salt + b"\0\0\0\1")
    for _ in range(iterations - 1):
        block = hmac(PASSWORD.encode(), block)
        result = xor(result, block)
    return result


def exchange():
    """The client's side of RFC 5802; see part("enhanced_auth") in docs/client.md."""
    nonce = hexlify(os.urandom(12))
    first = b"n=" + DEVICE.replace("=", "=3D").replace(",", "=2C").encode() + b",r=" + nonce
    challenge = yield b"n,," + first
    try:
        both_nonces, salt, iterations = [field[2:] for field in challenge.split(b",")]
        salt = a2b_base64(salt)
        iterations = int(iterations)
    except ValueError:
        raise LinkLost("the challenge is none of SCRAM")
    if not both_nonces.startswith(nonce):
        raise LinkLost("the challenge is not for this client")
    if not least[0] <= iterations <= MOST_ITERATIONS:
        raise LinkLost("the challenge has too few or too many iterations")
    salted = salt_password(salt, iterations)
    key = hmac(salted, b"Client Key")
    last = b"c=biws,r=" + both_nonces
    signed = first + b"," + challenge + b"," + last
    proof = xor(key, hmac(sha256(key), signed))
    answer = yield last + b",p=" + b2a_base64(proof)[:-1]
    if answer != b"v=" + b2a_base64(hmac(hmac(salted, b"Server Key"), signed))[:-1]:
        raise LinkLost("the broker does not know the password")
    least[0] = iterations


client = Client(DEVICE, BROKER, protocol=5)
client.on_error = client.on_disconnect = lambda error: print("mqtt:", error)
authentication = client.part("enhanced_auth")
authentication.use("SCRAM-SHA-256", exchange)
client.publish("pumps/" + DEVICE + "/telemetry", '{"pressure_bar":2.1}', qos=1)
while client.pending:
    client.poll(1000)
print("delivered to a broker that knows the password")
authentication.reauthenticate()  # on the same connection; a program may do this every day
while authentication.running:
    client.poll(1000)
print("authenticated again")

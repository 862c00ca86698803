"""Signs commands and their replies, and seals secrets, with the key that a board shares with its owner: HMAC-SHA-256.

    {"id": "7", "cmd": "reboot", "args": {}, "counter": 1795000000123,"mac":"64 hexadecimal digits"}

mac is the last member, and covers the device id and every byte before it (RFC 2104). The broker sees the command and
can hold it back, but can neither change nor forge one, nor the reply to one that was carried out. No port of
MicroPython lets a program verify Ed25519 or ECDSA (docs/hardware.md), so the key is secret at both ends, and each board
has its own.

The tools on a computer load this file by its path, so it needs nothing else of the firmware.
"""

import hashlib
from binascii import hexlify

# Settings that need no signature: the owner can always change them back.
_OPEN_SETTINGS = ("home_assistant", "interval_ms", "log_level", "telemetry_qos")
# Each reading is kept in flash; readings more frequent than at the default interval would wear it out.
_SHORTEST_OPEN_INTERVAL_MS = 1000
_BLOCK = 64
_MARK = b',"mac":"'
_MAC_SIZE = 64
_TAIL_SIZE = len(_MARK) + _MAC_SIZE + 2
NONCE_SIZE = 16
# What is signed, so that one cannot be taken for the other.
COMMAND, REPLY = b"umqtt command\n", b"umqtt reply\n"
# The largest number that every port's integers and every JSON reader hold exactly.
MOST_COUNTER = (1 << 53) - 1


def needs_signature(name, args):
    """Return True if a command can take a board, its outputs or readings away from its owner. name: str; args: dict."""
    if name == "set":
        settings = args.get("settings")
        changes = settings.items() if isinstance(settings, dict) else ((args.get("key"), args.get("value")),)
        return bool([key for key, value in changes if key not in _OPEN_SETTINGS or _is_fast(key, value)])
    if name == "outbox":
        return "drop" in args or "export" in args
    return name in ("output", "reboot", "rotate", "update")


def _is_fast(key, value):
    # Other types are refused by the check of all settings.
    return key == "interval_ms" and isinstance(value, (int, float)) and value < _SHORTEST_OPEN_INTERVAL_MS


def hmac(key, data):
    """Return the HMAC-SHA-256 of data, 32 bytes. key: bytes, at most 64; data: bytes."""
    key = key + bytes(_BLOCK - len(key))
    inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in key]))
    inner.update(data)
    outer = hashlib.sha256(bytes([byte ^ 0x5C for byte in key]))
    outer.update(inner.digest())
    return outer.digest()


def sign(key, device_id, text, what=COMMAND):
    """Return a signed payload. key: bytes; device_id: str; text: bytes, a JSON object; a command has its counter."""
    text = text[:-1]
    return text + _MARK + _mac(key, device_id, text, what) + b'"}'


def is_signed(payload):
    """Return True if a payload ends with a mac, right or wrong. payload: bytes."""
    return payload[-_TAIL_SIZE : len(_MARK) - _TAIL_SIZE] == _MARK and payload[-2:] == b'"}'


def verify(key, device_id, payload, what=COMMAND):
    """Return True if a payload was signed for, or by, this device with this key."""
    right = _mac(key, device_id, payload[:-_TAIL_SIZE], what)
    given = payload[len(_MARK) - _TAIL_SIZE : -2]
    # Takes the same time for any difference.
    different = len(right) ^ len(given)
    for i in range(min(len(right), len(given))):
        different |= right[i] ^ given[i]
    return not different


def seal(key, nonce, data):
    """Return data encrypted, or decrypted again: XOR with the HMACs of the nonce and the offset of each 32 bytes.

    nonce: NONCE_SIZE random bytes, never used twice. Sealing hides data; only a signature authenticates it.
    """
    out = bytearray(data)
    for start in range(0, len(out), 32):
        pad = hmac(key, b"umqtt secret\n" + nonce + start.to_bytes(4, "big"))
        for i in range(start, min(start + 32, len(out))):
            out[i] ^= pad[i - start]
    return bytes(out)


def _mac(key, device_id, text, what):
    return hexlify(hmac(key, what + device_id.encode() + b"\n" + text))

"""A client of SCRAM-SHA-256 for tests, written from RFC 5802 alone and independent of the broker's code."""

from __future__ import annotations

import base64
import hashlib
import hmac


def _hmac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).digest()


class ScramClient:
    """One exchange. user_name: as written in the message, with = and , as =3D and =2C.

    header: what the last message repeats of the beginning of the first, in base64.
    """

    def __init__(
        self, user_name: bytes, password: bytes, nonce: bytes = b"rOprNGfwEbeRWgbNEkqO", header: bytes = b"biws"
    ) -> None:
        self._header = header
        self._bare = b"n=" + user_name + b",r=" + nonce
        self._password = password
        self.first = b"n,," + self._bare
        self._expected = b""

    def last(self, challenge: bytes) -> bytes:
        """Return the client's last message."""
        nonce, salt, iterations = (part[2:] for part in challenge.split(b","))
        salted = hashlib.pbkdf2_hmac("sha256", self._password, base64.b64decode(salt), int(iterations))
        key = _hmac(salted, b"Client Key")
        without_proof = b"c=" + self._header + b",r=" + nonce
        message = self._bare + b"," + challenge + b"," + without_proof
        signature = _hmac(hashlib.sha256(key).digest(), message)
        proof = (int.from_bytes(key, "big") ^ int.from_bytes(signature, "big")).to_bytes(32, "big")
        self._expected = b"v=" + base64.b64encode(_hmac(_hmac(salted, b"Server Key"), message))
        return without_proof + b",p=" + base64.b64encode(proof)

    def is_server(self, answer: bytes) -> bool:
        """Return whether the server too knows the password's keys."""
        return answer == self._expected

"""SCRAM-SHA-256 (RFC 5802, RFC 7677): a client proves that it knows a password and never sends it.

The stored form of a password is that of RFC 5803: SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY. A password that
a client sends in its CONNECT can be checked against it too.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..protocol.reason_codes import ReasonCode
from .guesses import Guesses

METHOD = b"SCRAM-SHA-256"

# OWASP's recommendation for PBKDF2-HMAC-SHA256 and passwords chosen by people; the client computes the iterations.
SCRAM_ITERATIONS_CHOSEN = 600_000
# For generate_password(): the minimum of RFC 7677.
SCRAM_ITERATIONS_RANDOM = 4096

_SALT_SIZE = 16
_KEY_SIZE = 32
_MAX_ITERATIONS = 100_000_000


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """The stored form of a password; neither the password nor a client's proof can be derived from it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def make(cls, password: bytes, iterations: int = SCRAM_ITERATIONS_CHOSEN) -> "ScramKeys":
        """Hash a password with a new salt. Takes about 0.3 µs for each iteration."""
        salt = os.urandom(_SALT_SIZE)
        client_key, server_key = _keys(password, salt, iterations)
        return cls(iterations, salt, hashlib.sha256(client_key).digest(), server_key)

    @classmethod
    def parse(cls, text: bytes) -> "ScramKeys":
        """Parse what encode() returns. Raises ValueError that says what is wrong with it."""
        parts = [part.split(b":") for part in text.split(b"$")]
        if [len(part) for part in parts] != [1, 2, 2]:
            raise ValueError("the hash is cut short or too long — set a new one with: umqtt passwd")
        _, (iterations, salt), keys = parts
        if not iterations.isdigit() or not 1 <= int(iterations) <= _MAX_ITERATIONS:
            raise ValueError(f"iterations are not between 1 and {_MAX_ITERATIONS:,}")
        try:
            decoded, stored_key, server_key = (base64.b64decode(part, validate=True) for part in (salt, *keys))
        except binascii.Error:
            raise ValueError("salt or key is not base64 — set a new one with: umqtt passwd") from None
        if not decoded or len(stored_key) != _KEY_SIZE or len(server_key) != _KEY_SIZE:
            raise ValueError("salt or key has the wrong size — set a new one with: umqtt passwd")
        return cls(int(iterations), decoded, stored_key, server_key)

    def encode(self) -> bytes:
        """Return what follows `NAME:` in a password file."""
        salt, stored_key, server_key = map(base64.b64encode, (self.salt, self.stored_key, self.server_key))
        return b"%b$%d:%b$%b:%b" % (METHOD, self.iterations, salt, stored_key, server_key)

    def verify(self, password: bytes) -> bool:
        """Return True if this is the password. Other threads run while it computes."""
        client_key, _ = _keys(password, self.salt, self.iterations)
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self.stored_key)


def decoy(user_name: bytes, known: Sequence[ScramKeys]) -> ScramKeys:
    """Return keys for a user that does not exist: always the same for a name, and no password matches them."""
    number = int.from_bytes(hmac.digest(known[0].server_key, user_name, "sha256"), "big")
    like = known[number % len(known)]
    made = hmac.digest(like.server_key, user_name, "sha512")
    return ScramKeys(like.iterations, made[: len(like.salt)], made[-_KEY_SIZE:], made[-_KEY_SIZE:])


class ScramExchange:
    """The server's side of one exchange: two steps, for the client's first and its final message. See Exchange.

    find: returns the keys of a user name, or a decoy for an unknown one; None if no user has keys any more. check:
    returns the reason code of the other checks of a user name. guesses: limits the wrong proofs of `address`. nonce:
    the server's, for tests; "" for a random one.
    """

    def __init__(
        self,
        find: Callable[[bytes], ScramKeys | None],
        check: Callable[[bytes], int],
        guesses: Guesses,
        address: str,
        nonce: str = "",
    ) -> None:
        self.user_name = b""
        self._find = find
        self._check = check
        self._guesses = guesses
        self._address = address
        self._nonce = nonce or secrets.token_urlsafe(18)
        # The client's first message without its header, that header in base64, and the server's answer.
        self._first = self._header = self._challenge = b""
        self._keys: ScramKeys | None = None

    def step(self, data: bytes, now: float) -> tuple[int, bytes]:
        """See Exchange."""
        try:
            if self._keys is None:
                return self._begin(data)
            return self._finish(self._keys, data, now)
        except ValueError:
            return ReasonCode.NOT_AUTHORIZED, b""

    def _begin(self, data: bytes) -> tuple[int, bytes]:
        """Answer gs2-header client-first-message-bare (RFC 5802, 7). Raises ValueError."""
        binding, authorized, first = data.split(b",", 2)
        # Channel binding, and acting for another user, are not supported.
        if binding not in (b"n", b"y") or authorized:
            raise ValueError("channel binding, or another identity")
        name, nonce, *_ = first.split(b",")
        if not name.startswith(b"n=") or not nonce.startswith(b"r=") or len(nonce) < 3:
            raise ValueError("not a first message")
        self.user_name = name[2:].replace(b"=2C", b",").replace(b"=3D", b"=")
        code = self._check(self.user_name)
        if code != ReasonCode.SUCCESS:
            return code, b""
        keys = self._keys = self._find(self.user_name)
        if keys is None:
            raise ValueError("the files have been read again")
        self._first, self._header = first, base64.b64encode(data[: len(data) - len(first)])
        salt = base64.b64encode(keys.salt)
        self._challenge = b"%b%b,s=%b,i=%d" % (nonce, self._nonce.encode(), salt, keys.iterations)
        return ReasonCode.CONTINUE_AUTHENTICATION, self._challenge

    def _finish(self, keys: ScramKeys, data: bytes, now: float) -> tuple[int, bytes]:
        """Answer client-final-message. Raises ValueError."""
        # Checked here and not in _begin(), because many exchanges may have begun before the first wrong proof.
        if self._guesses.must_wait(self._address, self.user_name, now):
            return ReasonCode.SERVER_UNAVAILABLE, b""
        without_proof, found, proof = data.rpartition(b",p=")
        if not found or without_proof.split(b",")[:2] != [b"c=" + self._header, self._challenge.partition(b",")[0]]:
            raise ValueError("not the last message of this exchange")
        message = b",".join((self._first, self._challenge, without_proof))
        signature = hmac.digest(keys.stored_key, message, "sha256")
        decoded = base64.b64decode(proof, validate=True)
        if len(decoded) != _KEY_SIZE:
            raise ValueError("not a proof")
        client_key = bytes(one ^ other for one, other in zip(decoded, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored_key)
        # The files may have been read again meanwhile.
        if not is_right or self._find(self.user_name) != keys:
            self._guesses.wrong(self._address, self.user_name, now)
            return ReasonCode.NOT_AUTHORIZED, b""
        self._guesses.right(self._address, self.user_name)
        return ReasonCode.SUCCESS, b"v=" + base64.b64encode(hmac.digest(keys.server_key, message, "sha256"))


def _keys(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return the client's key and the server's."""
    salted = hashlib.pbkdf2_hmac("sha256", normalize(password), salt, iterations)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def normalize(password: bytes) -> bytes:
    """Return a password as both sides hash it: in SASLprep's normal form, without its check of characters."""
    try:
        return unicodedata.normalize("NFKC", password.decode()).encode()
    except UnicodeDecodeError:
        return password

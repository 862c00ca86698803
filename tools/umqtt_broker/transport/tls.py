"""TLS of listeners: makes contexts from their settings, and reads the name in a client's certificate."""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import time
from asyncio import sslproto
from contextvars import ContextVar
from typing import Any

from ..errors import ConfigError
from ..settings.broker import Listener, Tls

_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
# RFC 2253 gives these attributes short names; the others keep their long ones.
_SHORT_NAMES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
    "streetAddress": "STREET",
}

# Seconds before its end in which a certificate is warned of: 30 days.
EXPIRES_SOON = 30 * 86_400

# asyncio reads into a buffer of 256 KB for each connection. OpenSSL returns one record at a time, of 16 KB at most
# (RFC 8446, 5.1). With a buffer of that size, a client takes 40 KB of memory instead of 285 KB.
sslproto.SSLProtocol.max_size = 16 * 1024


# The socket of the handshake that runs in this context.
handshake_socket: ContextVar[socket.socket] = ContextVar("handshake_socket")


class _Handshake(ssl.SSLObject):
    """Sends the alert of a handshake that fails [RFC 8446, 6.2]: asyncio closes the socket without it."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            with contextlib.suppress(OSError):  # the client has gone, or takes no more bytes
                handshake_socket.get().send(self.outgoing.read())
            raise


class _Context(ssl.SSLContext):
    sslobject_class = _Handshake

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        handshake = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(handshake, _Handshake)
        handshake.outgoing = outgoing
        return handshake


_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "UNSUPPORTED_PROTOCOL": "its version of TLS is below tls_version",
    "NO_SHARED_CIPHER": "none of its ciphers is allowed",
}


def reason_of(error: ssl.SSLError) -> str:
    """Return why a handshake failed, for the log: what is wrong with the client's certificate, or OpenSSL's reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid ({error.verify_message})"
    reason = error.reason or "broken off"
    return _REASONS.get(reason, reason.lower().replace("_", " "))


def make_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context of a listener; reads the files anew. Raises ConfigError, which names the wrong file."""
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.tls_version]
    # A renegotiation costs the server a handshake and the client nothing.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.ciphers:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"ciphers {tls.ciphers!r}: OpenSSL knows none of them — see: openssl ciphers") from error
    _load_identity(context, tls)
    # Always, even if no client certificate is required: certificates missing from the chain in certfile are sent from
    # these files.
    _load_authorities(context, tls)
    if tls.require_certificate:
        if not tls.cafile and not tls.capath:
            raise ConfigError("require_certificate needs cafile or capath: who signs the certificates of clients")
        _load_revoked(context, tls)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_identity(context: ssl.SSLContext, tls: Tls) -> None:
    if not tls.certfile or not tls.keyfile:
        raise ConfigError("TLS needs both certfile and keyfile")
    _check_readable("certfile", tls.certfile)
    _check_readable("keyfile", tls.keyfile)

    def refuse_to_ask() -> str:
        # Otherwise OpenSSL would ask on the terminal, also where there is none.
        raise ConfigError(f"keyfile {tls.keyfile} is encrypted — remove its passphrase: openssl pkey -in KEY -out NEW")

    try:
        context.load_cert_chain(tls.certfile, tls.keyfile, password=refuse_to_ask)
    except ssl.SSLError as error:
        why = "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else "not PEM"
        raise ConfigError(f"certfile {tls.certfile} and keyfile {tls.keyfile} cannot be used: {why}") from error


def _load_authorities(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.capath and not os.path.isdir(tls.capath):
        raise ConfigError(f"capath {tls.capath} is not a folder")
    if tls.cafile:
        _load_trusted(context, "cafile", tls.cafile)
    if tls.capath:
        context.load_verify_locations(capath=tls.capath)


def _load_revoked(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.crlfile:
        _load_trusted(context, "crlfile", tls.crlfile)
        if not context.cert_store_stats()["crl"]:
            raise ConfigError(f"crlfile {tls.crlfile} has no revocation list — make one: openssl ca -gencrl")
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _load_trusted(context: ssl.SSLContext, key: str, path: str) -> None:
    _check_readable(key, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{key} {path} is not PEM") from error


def _check_readable(key: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read ({error.strerror})") from error


def warnings_of(tls: Tls) -> list[str]:
    """Return warnings about settings that work but are unsafe, or will not work for long."""
    found = []
    with contextlib.suppress(OSError):  # make_context() reports this error
        mode = os.stat(tls.keyfile).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
            found.append(f"keyfile {tls.keyfile} can be read by others — chmod 600 {tls.keyfile}")
    with contextlib.suppress(OSError, ValueError):  # OpenSSL reads some certificates that `cryptography` does not
        expires = expires_at(tls)
        if expires < time.time() + EXPIRES_SOON:
            day = time.strftime("%Y-%m-%d", time.gmtime(expires))
            found.append(f"certfile {tls.certfile} expires on {day} — renew it, as with: umqtt certs renew broker")
    return found


def expires_at(tls: Tls) -> float:
    """Return when the certificate expires, in seconds since 1970. Raises OSError or ValueError."""
    # Imported here: a broker without TLS does not need it.
    from cryptography import x509

    with open(tls.certfile, "rb") as file:
        return x509.load_pem_x509_certificate(file.read()).not_valid_after_utc.timestamp()


def identity_of(transport: asyncio.BaseTransport, listener: Listener) -> str | None:
    """Return the name in the client's verified certificate: its common name, or its whole subject.

    None without a certificate, or if the listener does not use the name as user name.
    """
    if not listener.use_identity_as_username:
        return None
    certificate = transport.get_extra_info("peercert")
    if not certificate:
        return None
    # The most specific attribute comes last in a certificate, and first in text.
    names = [name for group in reversed(certificate.get("subject", ())) for name in group]
    if listener.use_subject_as_username:
        return ",".join(f"{_SHORT_NAMES.get(name, name)}={_escape(value)}" for name, value in names) or None
    return next((value for name, value in names if name == "commonName"), None)


def _escape(value: str) -> str:
    """Escape as RFC 2253, 2.4, asks: a comma inside a name must not look like the next name."""
    escaped = "".join(f"\\{char}" if char in ',+"\\<>;' else char for char in value)
    if escaped[:1] in ("#", " "):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if len(value) > 1 and value.endswith(" ") else escaped

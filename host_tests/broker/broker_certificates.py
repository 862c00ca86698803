"""Certificates for tests, by an authority and by a stranger, valid or revoked; and what a client is answered."""

import datetime
import socket
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from umqtt_broker import Tls
from umqtt_testkit import encoder
from umqtt_testkit.waiting import WAIT_LIMIT_S

_NOW = datetime.datetime.now(datetime.UTC)
_DAY = datetime.timedelta(days=1)

CONNACK = b"\x20\x02\x00\x00"


class Authority:
    """An authority that signs certificates into a folder: NAME.pem and NAME.key, its own as ca.pem.

    issuer: the authority that signs this one.
    """

    def __init__(self, folder: Path, name: str = "ca", issuer: "Authority | None" = None) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")])
        issuer = issuer or self
        certificate = (
            issuer._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(issuer._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        name: str,
        subject: Sequence[tuple[x509.ObjectIdentifier, str]] = ((NameOID.COMMON_NAME, "localhost"),),
        *,
        days: int = 90,
    ) -> x509.Certificate:
        """Make NAME.pem and NAME.key; days < 0: expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = (self._builder(attributes, key.public_key(), days).add_extension(names, critical=False)).sign(
            self._key, hashes.SHA256()
        )
        (self.folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        path = self.folder / f"{name}.key"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        path.chmod(0o600)
        return certificate

    def revoke(self, *certificates: x509.Certificate) -> Path:
        """Write crl.pem with these certificates."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(_NOW - _DAY).next_update(_NOW + 10 * _DAY)
        for certificate in certificates:
            revoked = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number)
            builder = builder.add_revoked_certificate(revoked.revocation_date(_NOW - _DAY).build())
        path = self.folder / "crl.pem"
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int = 90) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - 20 * _DAY)
            .not_valid_after(_NOW + days * _DAY)
        )


class Pki:
    """The certificates of a test run. serial_of: signed certificates, which may be revoked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.authority.sign("broker")
        self.good = self.authority.sign("good", ((NameOID.COUNTRY_NAME, "CH"), (NameOID.COMMON_NAME, "pump-7")))
        self.bad = self.authority.sign("bad", ((NameOID.COMMON_NAME, "thief"),))
        self.authority.sign("expired", ((NameOID.COMMON_NAME, "old"),), days=-1)
        self.authority.revoke(self.bad)
        Authority(folder, "other").sign("stranger", ((NameOID.COMMON_NAME, "stranger"),))

    def tls(self, **settings: object) -> Tls:
        """Return a listener's TLS settings."""
        return Tls(certfile=self.path("broker.pem"), keyfile=self.path("broker.key"), **settings)

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.folder / name)

    def context(self, certificate: str = "") -> ssl.SSLContext:
        """Return a client's context, with a certificate if one is named."""
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        if certificate:
            context.load_cert_chain(self.path(f"{certificate}.pem"), self.path(f"{certificate}.key"))
        return context


def answer(port: int, context: ssl.SSLContext | None = None, packet: bytes = encoder.connect(b"p")) -> bytes:
    """Connect, send a packet and return what comes back; b"" if the broker closed."""
    with socket.create_connection(("127.0.0.1", port), WAIT_LIMIT_S) as plain:
        link = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        with link:
            link.sendall(packet)
            return receive(link)


def receive(link: socket.socket) -> bytes:
    """Return the broker's first packet, in however many pieces it comes; b"" if the broker closed."""
    data = b""
    while len(data) < len(CONNACK) and (more := link.recv(len(CONNACK) - len(data))):
        data += more
    return data

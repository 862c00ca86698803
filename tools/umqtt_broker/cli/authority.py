"""A private certificate authority in a folder, for one fleet: its broker, its boards, and revoked certificates.

    ca.pem, ca.der          the authority's certificate, which boards trust
    ca.key                  its private key: anyone who has it can make certificates for boards
    crl.pem                 revoked certificates, which the broker reads as crlfile
    issued.jsonl            every certificate ever issued, as one JSON object per line
    broker/cert.pem, key.pem
    devices/NAME/cert.pem, key.pem, and cert.der, key.der, ca.der for ports of MicroPython that read no PEM

Keys use the curve P-256, which boards compute quickly. Only their owner can read files with private keys.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from umqtt_cli.durable import replace_file
from umqtt_cli.errors import EXIT_USAGE, KitError
from umqtt_cli.strict_json import loads

BROKER = "broker"
DEVICE = "device"

CA_DAYS = 7300
BROKER_DAYS = 825
DEVICE_DAYS = 3650

# Longest common name, in bytes (RFC 5280).
_LONGEST_NAME = 64
# A device's name is also a folder, a user name at the broker and a level of topics, so it must be free of characters
# with a meaning there.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The permissions of files with private keys, and of all others: the broker may run as another user.
_SECRET, _PUBLIC = 0o600, 0o644
# How far the clock of the side that checks a certificate may be behind.
_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Issued:
    """A certificate that was issued.

    serial: hexadecimal; kind: BROKER or DEVICE; name: the common name; hosts: names and addresses that a broker's
    certificate is for; expires: ISO 8601, UTC.
    """

    serial: str
    kind: str
    name: str
    hosts: list[str]
    expires: str

    @classmethod
    def parse(cls, values: Any) -> Issued:
        """Return the certificate that an object of issued.jsonl describes. Raises ValueError or TypeError."""
        issued = cls(**values)
        texts = (issued.serial, issued.kind, issued.name, issued.expires)
        if not isinstance(issued.hosts, list) or not all(isinstance(text, str) for text in (*texts, *issued.hosts)):
            raise ValueError("its values are not those of a certificate")
        int(issued.serial, 16)
        issued.days_left()
        return issued

    def days_left(self) -> int:
        """Return whole days until it expires; negative afterwards."""
        return (datetime.datetime.fromisoformat(self.expires) - _now()).days


class Authority:
    """The authority in one folder. Every method that changes something holds the folder's lock meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = folder / "issued.jsonl"

    # Making

    def create(self, name: str, days: int = CA_DAYS, *, force: bool = False) -> None:
        """Make the authority. Raises KitError if there is one, since a new one makes all that it issued worthless.

        force: replace it all the same.
        """
        if not name.isprintable() or not 0 < len(name.encode()) <= _LONGEST_NAME:
            raise KitError(f"--name {name!r}: an authority's name has 1 to {_LONGEST_NAME} bytes — choose another",
                           EXIT_USAGE)  # fmt: skip
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise KitError(
                f"cannot make {self.folder} ({error.strerror}) — choose another with --dir", EXIT_USAGE
            ) from error
        with self._lock():
            if (self.folder / "ca.key").exists() and not force:
                raise KitError(
                    f"{self.folder}/ca.key exists — with --force a new authority replaces it, and every broker and "
                    "device needs new certificates",
                    EXIT_USAGE,
                )
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            certificate = (
                _builder(subject, subject, key.public_key(), _now() + datetime.timedelta(days))
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_key_usage(signs_certificates=True), critical=True)
                .sign(key, hashes.SHA256())
            )
            replace_file(self.folder / "ca.key", _pem(key), mode=_SECRET)
            replace_file(self.folder / "ca.pem", certificate.public_bytes(Encoding.PEM), mode=_PUBLIC)
            replace_file(self.folder / "ca.der", certificate.public_bytes(Encoding.DER), mode=_PUBLIC)
            replace_file(self._index, b"", mode=_PUBLIC)
            self._write_crl([], 1)

    def issue_broker(self, hosts: Sequence[str], days: int = BROKER_DAYS, *, force: bool = False) -> Issued:
        """Make the broker's certificate for the names and addresses that clients reach it by. Raises KitError."""
        with self._lock():
            return self._issue(BROKER, BROKER, list(hosts), days, force)

    def issue_device(self, name: str, days: int = DEVICE_DAYS, *, force: bool = False) -> Issued:
        """Make the certificate of a device; its name becomes the user name at the broker. Raises KitError."""
        if not _NAME.fullmatch(name) or name == BROKER:
            raise KitError(
                f"{name!r} cannot be a device's name — use letters, digits, '.', '_', '-', at most 64; not 'broker'",
                EXIT_USAGE,
            )
        with self._lock():
            return self._issue(DEVICE, name, [], days, force)

    def renew(self, name: str, days: int | None = None) -> Issued:
        """Replace the certificate and key of a device, or of "broker". Raises KitError.

        The old ones stay valid until they expire.
        """
        with self._lock():
            old = [issued for issued in self._read_index() if issued.name == name]
            if not old:
                raise KitError(f"{self.folder} has issued nothing to {name!r} — see: umqtt certs ls", EXIT_USAGE)
            if self._revoked(old[-1]):
                raise KitError(f"{name!r} is revoked — make new ones with: umqtt certs device --force", EXIT_USAGE)
            return self._issue(
                old[-1].kind, name, old[-1].hosts, days or (BROKER_DAYS if name == BROKER else DEVICE_DAYS), True
            )

    def _issue(self, kind: str, name: str, hosts: list[str], days: int, force: bool) -> Issued:
        ca, ca_key = self._load()
        self._read_index()  # raises KitError: nothing is added to a record that could not be read again
        folder = self.folder / "devices" / name if kind == DEVICE else self.folder / BROKER
        if (folder / "key.pem").exists() and not force:
            raise KitError(f"{folder}/key.pem exists — replace it with --force", EXIT_USAGE)
        key = ec.generate_private_key(ec.SECP256R1())
        # No certificate outlives the authority's.
        expires = min(_now() + datetime.timedelta(days), ca.not_valid_after_utc)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = ExtendedKeyUsageOID.SERVER_AUTH if kind == BROKER else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(subject, ca.subject, key.public_key(), expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
                critical=False,
            )
        )
        if kind == BROKER:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_host, hosts))), critical=False)
        certificate = builder.sign(ca_key, hashes.SHA256())
        issued = Issued(f"{certificate.serial_number:x}", kind, name, hosts, expires.isoformat())
        # The record comes first: a certificate that is not in it could never be revoked.
        replace_file(self._index, self._index.read_bytes() + json.dumps(asdict(issued)).encode() + b"\n", mode=_PUBLIC)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "key.pem", _pem(key), mode=_SECRET)
        replace_file(folder / "cert.pem", certificate.public_bytes(Encoding.PEM), mode=_PUBLIC)
        if kind == DEVICE:
            der = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
            replace_file(folder / "key.der", der, mode=_SECRET)
            replace_file(folder / "cert.der", certificate.public_bytes(Encoding.DER), mode=_PUBLIC)
            replace_file(folder / "ca.der", ca.public_bytes(Encoding.DER), mode=_PUBLIC)
        return issued

    # Revoking

    def revoke(self, name: str) -> int:
        """Revoke every certificate that a device ever got; return how many were still valid.

        Raises KitError if there are none, or the name is the broker's: boards read no list of revoked brokers.
        """
        with self._lock():
            found = [issued for issued in self._read_index() if issued.name == name and issued.kind == DEVICE]
            if not found:
                raise KitError(f"{self.folder} has no device {name!r} — see: umqtt certs ls", EXIT_USAGE)
            crl = self._read_crl()
            revoked = list(crl)
            known = {entry.serial_number for entry in revoked}
            new = [issued for issued in found if int(issued.serial, 16) not in known]
            for issued in new:
                revoked.append(
                    x509.RevokedCertificateBuilder()
                    .serial_number(int(issued.serial, 16))
                    .revocation_date(_now())
                    .build()
                )
            self._write_crl(revoked, _number(crl) + 1)
            return len([issued for issued in new if issued.days_left() >= 0])

    def _revoked(self, issued: Issued) -> bool:
        return self._read_crl().get_revoked_certificate_by_serial_number(int(issued.serial, 16)) is not None

    def _write_crl(self, revoked: Sequence[x509.RevokedCertificate], number: int) -> None:
        ca, ca_key = self._load()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(ca.subject)
            .last_update(_now() - _SKEW)
            # An outdated list makes OpenSSL refuse everybody; this one changes only when someone is revoked.
            .next_update(ca.not_valid_after_utc)
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )
        for entry in revoked:
            builder = builder.add_revoked_certificate(entry)
        crl = builder.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM)
        replace_file(self.folder / "crl.pem", crl, mode=_PUBLIC)

    # Looking

    def newest(self) -> list[tuple[Issued, bool]]:
        """Return the newest certificate of every name and whether it is revoked, first the one that expires first."""
        newest = {issued.name: issued for issued in self._read_index()}
        revoked = {entry.serial_number for entry in self._read_crl()}
        found = sorted(newest.values(), key=lambda issued: (issued.expires, issued.name))
        return [(issued, int(issued.serial, 16) in revoked) for issued in found]

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        self._require()
        with self._content("ca.pem") as content:
            ca = x509.load_pem_x509_certificate(content)
        with self._content("ca.key") as content:
            key = load_pem_private_key(content, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != ca.public_key():
            raise KitError(f"{self.folder}/ca.key is not the key of ca.pem — restore both from a backup", EXIT_USAGE)
        return ca, key

    def _read_index(self) -> list[Issued]:
        self._require()
        issued: list[Issued] = []
        with self._content(self._index.name) as content:
            lines = content.decode().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                issued.append(Issued.parse(loads(line)))
            except (ValueError, TypeError) as error:
                raise KitError(f"{self._index}:{number}: {error} — restore it from a backup", EXIT_USAGE) from error
        return issued

    def _read_crl(self) -> x509.CertificateRevocationList:
        with self._content("crl.pem") as content:
            crl = x509.load_pem_x509_crl(content)
            _number(crl)
        return crl

    @contextmanager
    def _content(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file of the authority. Raises KitError if it is missing or cannot be parsed."""
        path = self.folder / name
        try:
            yield path.read_bytes()
        except OSError as error:
            raise KitError(f"{path}: {error.strerror} — restore it from a backup", EXIT_USAGE) from error
        except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
            # TypeError: a key with a passphrase.
            raise KitError(f"{path} is not what umqtt certs made — restore it from a backup", EXIT_USAGE) from error

    def _require(self) -> None:
        if not (self.folder / "ca.key").exists():
            raise KitError(f"{self.folder} holds no authority — make one with: umqtt certs ca", EXIT_USAGE)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            folder = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise KitError(f"{self.folder}: {error.strerror} — make it with: umqtt certs ca", EXIT_USAGE) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        except OSError as error:
            where = error.filename or self.folder
            raise KitError(f"{where}: {error.strerror} — is it yours, and is there room?", EXIT_USAGE) from error
        finally:
            os.close(folder)


def _number(crl: x509.CertificateRevocationList) -> int:
    return crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, expires: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass  # not an address, so a host name
    labels = host.removeprefix("*.").split(".")
    if not all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label) for label in labels):
        raise KitError(f"{host!r} is no host name or IP address — write it as clients do, without a port", EXIT_USAGE)
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

"""The TLS transport without a network: what it refuses, and how it handles a partial write."""

from umqtt_testkit.portable import equal, raises

import umqtt_robust.tls
from umqtt_robust.errors import InvalidArgument, LinkLost
from umqtt_robust.tls import TLS, CertificateRefused, ClockNotSet


def test_without_certificates_there_is_no_transport():
    for arguments in (
        (None,),
        (b"",),
        ("",),
        (b"no certificate",),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",),
        (b"-----BEGIN CERTIFICATE-----",),
        ("/no/such/file.pem",),
        (7,),
    ):
        raises(InvalidArgument, TLS, *arguments)


def test_pem_is_taken_apart_into_its_certificates():
    pem = b"of CA 1\n-----BEGIN CERTIFICATE-----\nAQID\nBA==\n-----END CERTIFICATE-----\nof CA 2\n"
    pem += b"-----BEGIN CERTIFICATE-----\r\nBQ==\r\n-----END CERTIFICATE-----\r\n"
    equal(umqtt_robust.tls._der(pem), [b"\1\2\3\4", b"\5"])
    equal(umqtt_robust.tls._der(b"\x30\x03\2\1\0"), [b"\x30\x03\2\1\0"])


def test_the_clock_decides_before_anything_is_opened():
    # Planted: only the years 1970 and 2000 count as a clock that was never set; an rp2 starts in 2021.
    gmtime = umqtt_robust.tls.gmtime
    try:
        for year in (1970, 2000, 2021, 2025):
            umqtt_robust.tls.gmtime = lambda year=year: (year, 12, 31, 23, 59, 59, 0, 1)
            error = raises(ClockNotSet, umqtt_robust.tls._Secure, None, "a", "127.0.0.1", 1)
            assert str(year) in str(error), error
    finally:
        umqtt_robust.tls.gmtime = gmtime
    assert issubclass(ClockNotSet, LinkLost) and issubclass(CertificateRefused, LinkLost)


class FakeSocket:
    """A socket whose writes return the values of `takes` in turn: a number of bytes, None, or an error."""

    def __init__(self, *takes):
        self.takes = list(takes)
        self.offered = []
        self.closed = False

    def write(self, buf, offset, size):
        self.offered.append(bytes(buf[offset : offset + size]))
        return self._next()

    def readinto(self, buf):
        return self._next()

    def close(self):
        self.closed = True

    def _next(self):
        one = self.takes.pop(0)
        if isinstance(one, Exception):
            raise one
        return one


def link_over(fake):
    class Link(umqtt_robust.tls._Secure):
        def __init__(self):
            self.socket = fake
            self._owed = 0
            self._ended = False

    return Link()


def test_a_write_that_went_in_part_goes_on_with_the_same_bytes_only():
    fake = FakeSocket(None, 4, None, 6, 12)
    link = link_over(fake)
    data = b"0123456789and more, later"
    equal(link.write(data, 0, 10), None)
    equal(link.write(data, 0, 25), 4)
    equal(link.write(data, 4, 21), None)
    equal(link.write(data, 4, 21), 6)
    equal(link.write(data, 10, 15), 12)
    equal(fake.offered, [b"0123456789", b"0123456789", b"456789", b"456789", b"and more, later"])


def test_the_end_stays_the_end():
    link = link_over(FakeSocket(None, 3, 0, None, None))
    buf = bytearray(8)
    equal([link.read(buf, 0) for _ in range(5)], [None, 3, 0, 0, 0])


def test_both_sockets_are_closed():
    link = link_over(FakeSocket())
    link._plain = plain = FakeSocket()
    wrapped = link.socket
    link.close()
    equal((wrapped.closed, plain.closed, link.socket), (True, True, None))


def test_errors_of_the_ports_become_two_kinds():
    for error, kind in (
        (ValueError("\nThe certificate has expired\n"), CertificateRefused),
        (OSError(-0x2700, "MBEDTLS_ERR_X509_CERT_VERIFY_FAILED"), CertificateRefused),
        (OSError(-0x7280), OSError),
        (OSError(104), OSError),
    ):
        caught = raises(kind, link_over(FakeSocket(error)).write, b"x", 0, 1)
        equal(type(caught), kind)
        equal(type(raises(kind, link_over(FakeSocket(error)).read, bytearray(1), 0)), kind)
    equal(str(raises(CertificateRefused, link_over(FakeSocket(ValueError("\nno\n"))).write, b"x", 0, 1)), "no")

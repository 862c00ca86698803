from collections.abc import Callable
from ssl import SSLContext

from .errors import LinkLost
from .transport import Transport

class ClockNotSet(LinkLost): ...
class CertificateRefused(LinkLost): ...

# Each of ca, cert and key: the path of a file, or its content; ca also an SSLContext that has them.
def TLS(
    ca: str | bytes | SSLContext,
    cert: str | bytes | None = None,
    key: str | bytes | None = None,
    server_name: str | None = None,
) -> Callable[[str, int, str], Transport]: ...

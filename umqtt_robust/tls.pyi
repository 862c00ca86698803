from collections.abc import Callable

from .errors import LinkLost
from .transport import Transport

class ClockNotSet(LinkLost): ...
class CertificateRefused(LinkLost): ...

# Each of ca, cert and key: the path of a file, or its content.
def TLS(
    ca: str | bytes,
    cert: str | bytes | None = None,
    key: str | bytes | None = None,
    server_name: str | None = None,
) -> Callable[[str, int, str], Transport]: ...

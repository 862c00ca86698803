from collections.abc import Callable

from .errors import LinkLost
from .transport import Transport

class UpgradeRefused(LinkLost): ...

# secure: for wss://, makes the transport below, in place of TCP
def WebSocket(
    secure: Callable[[str, int, str], Transport] | None = None,
) -> Callable[[str, int, str], Transport]: ...

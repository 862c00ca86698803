from collections.abc import Callable

from .errors import LinkLost
from .transport import Transport

class UpgradeRefused(LinkLost): ...

# secure: over what it makes instead of TCP, for wss://
def WebSocket(
    secure: Callable[[str, int, str], Transport] | None = None,
) -> Callable[[str, int, str], Transport]: ...

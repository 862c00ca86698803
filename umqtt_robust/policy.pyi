from typing import Final

from .session import Session

# Client(policy=...)
REJECT: Final = 0
DROP_OLDEST: Final = 1
DROP_NEWEST: Final = 2

# The last argument of Client.on_dropped.
FULL: Final = 0
EXPIRED: Final = 1
UNREADABLE: Final = 2

class Part:
    def __init__(self, session: Session) -> None: ...
    def forget(self, session: bool) -> None: ...
    def pump(self) -> bool: ...
    def tick(self) -> int: ...
    def make_room(self, packet_id: int, topic: bytes, payload: bytes, expires_in: int | None) -> int: ...

from collections.abc import Callable

from .session import Session

class Request:
    topic: str | bytes
    def __init__(self, session: Session) -> None: ...
    def send(
        self,
        topic: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        on_answer: Callable[[bytes | None], object],
        timeout_ms: int = 10000,
        qos: int = 1,
    ) -> None: ...

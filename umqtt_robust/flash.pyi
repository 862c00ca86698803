from collections.abc import Callable, Iterable

from .store import InboundStore

class FlashStore:
    session: str | None
    inbound: InboundStore | None
    slots: int
    index: int
    more: int
    last_id: int
    torn: int
    on_progress: Callable[[], object] | None
    def __init__(
        self,
        path: str,
        slots: int = 32,
        chunk: int = 120,
        index: int | None = None,
        on_progress: Callable[[], object] | None = None,
        inbound: bool = True,
    ) -> None: ...
    def restore(self, more: bool = False) -> Iterable[tuple[int, int, int, int, int]]: ...
    def put(
        self, slot: int | None, packet_id: int, flags: int, topic: bytes, payload: bytes, lifetime: int = 0
    ) -> None: ...
    def load(self, slot: int) -> tuple[bytes, bytes]: ...
    def change(self, slot: int, flags: int, rank: int) -> None: ...
    def tombstone(self, slot: int) -> None: ...

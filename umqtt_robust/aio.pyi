from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from .errors import MQTTError
from .inbox import Inbox

class Dropped(MQTTError): ...

class Client(Inbox):
    # arguments, options: those of umqtt_robust.Client; on_message, on_large, on_dropped and manual_ack are used here
    def __init__(self, *arguments: Any, quiesce_ms: int = 2000, inbox_size: int = 4096, **options: Any) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    # The calls of Client, to be awaited.
    async def publish(  # type: ignore[override]
        self,
        topic: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        qos: int = 0,
        retain: bool = False,
        expires_in: int | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None: ...
    async def request(
        self,
        topic: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        timeout_ms: int = 10000,
        qos: int = 1,
    ) -> bytes: ...
    async def subscribe(self, topic_filter: str | bytes, qos: int = 0) -> None: ...  # type: ignore[override]
    async def unsubscribe(self, topic_filter: str | bytes) -> None: ...  # type: ignore[override]
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> tuple[bytes, bytes]: ...

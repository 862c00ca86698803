from typing import Any

from .client import Client

class Inbox(Client):
    # [topic, payload, packet id or 0: nothing to acknowledge, flags of its PUBLISH, properties], and an error to raise
    inbox: list[list[Any]]
    inbox_size: int
    # Of the message that take() returned last.
    retained: bool
    # arguments, options: those of Client; on_message, on_large and manual_ack are used by this class
    def __init__(self, *arguments: Any, inbox_size: int = 4096, **options: Any) -> None: ...
    def take(self) -> tuple[bytes, bytes]: ...
    def release(self) -> None: ...

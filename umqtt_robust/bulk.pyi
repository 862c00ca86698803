from typing import Any

from .client import Client

class Group:
    packets: bytes
    level: int
    count: int
    redelivered: int
    link: int
    acks: bytes
    def __init__(self, link: int) -> None: ...

def scan(data: bytes, level: int) -> tuple[int, int, int, bytes, bytes | None]: ...

class BulkClient(Client):
    group_bytes: int
    longest_delay: int
    links: int
    # whether MQTT 3.1.1 is tried next, with protocol="auto"
    may_be_old: bool
    # the protocol level of this link, or of the next one
    level: int
    # arguments, options: those of Client
    def __init__(
        self, *arguments: Any, group_bytes: int = 1048576, longest_delay: int = 128000, **options: Any
    ) -> None: ...
    def take(self) -> Group | None: ...
    def waiting(self) -> int: ...
    def acknowledge_group(self, group: Group) -> bool: ...
    # wake: what select.poll() takes
    def poll(self, ms: int, wake: Any = None) -> int: ...
    def finish(self, ms: int) -> bool: ...

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from .errors import MQTTError
from .session import Session, _Handler, _LargeHandler, _Properties, _RawHandler, _Will
from .store import Store
from .transport import Transport

# factory(host, port, path)
_Factory = Callable[[str, int, str], Transport]

def Will(
    topic: str | bytes,
    payload: str | bytes | bytearray | memoryview,
    qos: Literal[0, 1, 2] = 0,
    retain: bool = False,
    properties: _Properties | None = None,
) -> _Will: ...

class Client(Session):
    connect_timeout: int
    rx_size: int
    transports: Mapping[str, _Factory] | None
    allow_plain: bool
    random: Callable[[int], int]
    on_disconnect: Callable[[MQTTError | OSError | MemoryError], object] | None

    closed: bool
    reconnects: int
    socket: Any
    transport: Transport | None

    def __init__(
        self,
        client_id: str | bytes,
        servers: str | Iterable[str] | Mapping[str, str | Iterable[str]],
        keep_alive: int = 60,
        clean_session: bool = True,
        store: Store | None = None,
        will: _Will | None = None,
        username: str | bytes | None = None,
        password: str | bytes | None = None,
        *,
        window: int = 8,
        ack_timeout: int = 30000,
        connect_timeout: int = 15000,
        ping_after: int = 0,
        ping_timeout: int = 0,
        rx_size: int = 1024,
        tx_size: int = 1024,
        policy: int = 0,
        max_bytes: int | None = None,
        queue_qos0: bool = False,
        manual_ack: bool = False,
        transports: Mapping[str, _Factory] | None = None,
        allow_plain: bool = False,
        allow_mqtt31: bool = False,
        handler_retries: int = 0,
        keep_broker_queue: bool | None = None,
        protocol: Literal[4, 5, "auto"] = 4,
        connect_properties: _Properties | None = None,
        ticks: Callable[[], int] = ...,
        random: Callable[[int], int] = ...,
        on_connect: Callable[[bool], object] | None = None,
        on_disconnect: Callable[[MQTTError | OSError | MemoryError], object] | None = None,
        on_message: _Handler | None = None,
        on_raw: _RawHandler | None = None,
        on_large: _LargeHandler | None = None,
        on_acknowledged: Callable[[int], object] | None = None,
        on_dropped: Callable[[int, bytes, bytes, int], object] | None = None,
        on_error: Callable[[MQTTError | OSError | MemoryError], object] | None = None,
        on_dead_letter: Callable[[bytes, bytes | None, Exception], object] | None = None,
    ) -> None: ...
    def is_pending(self, packet_id: int) -> bool: ...
    def acknowledge(self, packet_id: int) -> bool: ...
    def connect(self) -> None: ...
    def disconnect(self, quiesce_ms: int = 0) -> None: ...
    def poll(self, ms: int) -> int: ...
    def tick(self) -> int: ...
    def waits(self) -> bool: ...

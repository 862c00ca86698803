from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from .errors import MQTTError
from .late import LateStore
from .mqtt5 import Mqtt5
from .quarantine import Quarantine
from .request import Request
from .store import Store

# handler(topic, payload)
_Handler = Callable[[bytes, bytes], object]
# on_raw(buf, topic_start, topic_end, payload_start, payload_end); buf belongs to the client
_RawHandler = Callable[[bytearray | bytes, int, int, int, int], object]
# on_large(topic, offset, size, chunk); chunk is valid until the handler returns
_LargeHandler = Callable[[bytes, int, int, memoryview], object]

# Properties of MQTT 5, by their names: see mqtt5.py.
_Properties = Mapping[str, Any]

# What Client(will=...) takes, as Will() returns it.
_Will = tuple[int, bytes, _Properties | None]

# write(buf, offset, size) returns how many bytes it took, 0 or None if it takes none now
_Write = Callable[[bytes | bytearray, int, int], int | None]

class Session:
    # Options; times are ms, sizes bytes.
    window: int
    ack_timeout: int
    ping_after: int
    ping_timeout: int
    tx_size: int
    policy: int
    max_bytes: int | None
    queue_qos0: bool
    manual_ack: bool
    allow_mqtt31: bool
    keep_broker_queue: bool | None
    protocol: int | str
    connect_properties: _Properties | None
    handler_retries: int
    clean_session: bool
    ticks: Callable[[], int]
    # on_connect(session_present)
    on_connect: Callable[[bool], object] | None
    on_message: _Handler | None
    on_raw: _RawHandler | None
    on_large: _LargeHandler | None
    # on_acknowledged(packet_id)
    on_acknowledged: Callable[[int], object] | None
    # on_dropped(packet_id, topic, payload, reason): policy.FULL, EXPIRED, UNREADABLE, TOO_LARGE, REFUSED
    # or QUARANTINED
    on_dropped: Callable[[int, bytes, bytes, int], object] | None
    on_error: Callable[[MQTTError | OSError | MemoryError], object] | None
    # on_dead_letter(topic, payload, error); payload is None for a message that came in pieces
    on_dead_letter: Callable[[bytes, bytes | None, Exception], object] | None

    # Counters.
    sent: int
    received: int
    discarded: int
    unhandled: int
    dead_letters: int
    unexpected: int
    downgraded: int
    too_large: int
    quarantined: int
    malformed: int

    # Of the message at hand, while a handler runs.
    packet_id: int
    flags: int
    redelivered: bool
    # Properties of MQTT 5: of the message at hand, and of the last CONNACK.
    properties: dict[str, Any]
    connack_properties: dict[str, Any]
    # Not None while the link speaks MQTT 5.
    mqtt5: Any

    connected: bool
    pending: int
    in_flight: int
    subscribed: bool

    # Attributes that only modules of the library use are left out, as are the modules without a stub.
    outbox: Any

    # options: those of Client that do not concern its links, by keyword
    def __init__(
        self,
        client_id: str | bytes,
        keep_alive: int = 60,
        clean_session: bool = True,
        store: Store | None = None,
        will: _Will | None = None,
        username: str | bytes | None = None,
        password: str | bytes | None = None,
        **options: Any,
    ) -> None: ...
    # The link, which the caller makes, drives and ends.
    def open(self, write: _Write, broker: str = "", accepted: Callable[[], object] | None = None) -> None: ...
    def advance(self) -> None: ...
    def receive(self, buf: bytearray, n: int) -> int: ...
    def work(self) -> int: ...
    def close(self) -> None: ...
    def send_disconnect(self) -> None: ...
    def publish(
        self,
        topic: str | bytes,
        payload: bytes | str | bytearray | memoryview,
        qos: int = 0,
        retain: bool = False,
        expires_in: int | None = None,
        properties: _Properties | None = None,
    ) -> int | None: ...
    def on(self, topic_filter: str | bytes, handler: _Handler | None) -> None: ...
    def subscribe(self, topic_filter: str | bytes, qos: int = 0) -> None: ...
    def unsubscribe(self, topic_filter: str | bytes) -> None: ...
    # the parts that programs use
    @overload
    def part(self, name: Literal["late"]) -> LateStore: ...
    @overload
    def part(self, name: Literal["mqtt5"]) -> Mqtt5: ...
    @overload
    def part(self, name: Literal["quarantine"]) -> Quarantine: ...
    @overload
    def part(self, name: Literal["request"]) -> Request: ...
    @overload
    def part(self, name: str) -> Any: ...
    def keep_alive(self) -> int: ...

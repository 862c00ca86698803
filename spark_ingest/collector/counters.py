"""The counters of a collector, by their keys in status, log and metrics; docs/collector.md explains each."""

from dataclasses import dataclass


@dataclass
class Counters:
    """The counters of one collector."""

    connected: bool = False
    subscribed: bool = False
    waiting: str | None = None
    messages: int = 0
    bytes: int = 0
    groups: int = 0
    append_seconds: float = 0.0
    redelivered: int = 0
    last_message_ms: int | None = None
    connects: int = 0
    lost_links: int = 0
    malformed_streams: int = 0
    refusals: int = 0
    sessions_lost: int = 0
    takeovers: int = 0
    spool_errors: int = 0
    pauses: int = 0
    last_error: str | None = None

"""``writeStream.format("mqtt")`` and ``write.format("mqtt")``: rows to a broker, at least once.

A task publishes the rows of its partition over a connection of its own, by the project's client. At most ``window``
messages are unacknowledged at a time, and the task ends when the broker has acknowledged every message at QoS 1 and 2.
So Spark commits no micro-batch before that. What a task that died has published is published again.

The driver reads the password and the key; executors get them with their tasks. They are in no text that Spark shows.
"""

import random
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from umqtt_robust import Client
from umqtt_robust.errors import InvalidArgument, Refused
from umqtt_robust.store import MemoryStore
from umqtt_robust.tls import TLS, CertificateRefused

from ..collector.access import Access
from ..collector.wire import CONNACK_REFUSALS
from ..errors import BrokerRefused, PublishFailed, UsageError
from .options import duration, file_option, known_options, positive

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_OPTIONS = (
    "broker",
    "topic",
    "username",
    "passwordFile",
    "caFile",
    "certFile",
    "keyFile",
    "window",
    "timeout",
)
_WHOLE = ("tinyint", "smallint", "int", "bigint")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": _WHOLE,
    "retain": ("boolean",),
}
"""Column to the types that it may have, as Spark spells them."""

_LARGEST_WINDOW = 10_000
_BUFFER_BYTES = 64 << 10
_POLL_MS = 1000
_CLOSE_MS = 10_000
# CONNACK's return codes that another attempt may not meet.
_TEMPORARY = frozenset((3,))


class SinkOptions:
    """The options of one writer, checked on the driver, with what their files hold.

    :param schema: of the rows.
    :raises UsageError: an unknown option, a value or a column that does not fit, or a file that cannot be read.
    """

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        # Spark hands its own on.
        options = {name: value for name, value in options.items() if name.lower() != "checkpointlocation"}
        given = known_options(options, SINK_OPTIONS, "the sink of format mqtt")
        if "broker" not in given:
            raise UsageError("the sink of format mqtt needs option broker: mqtt://HOST:PORT or mqtts://HOST:PORT")
        password_file, ca, cert, key = (
            file_option(given, name) for name in ("passwordFile", "caFile", "certFile", "keyFile")
        )
        access = Access(given["broker"], given.get("username"), password_file, ca, cert, key)
        access.check()
        if cert and not ca:
            raise UsageError("certFile needs caFile too: the certificate of the authority that signed the broker's")
        self.urls = tuple(url.strip() for url in access.url.split(","))
        self.username, self.password = access.username, access.password()
        self.ca, self.cert, self.key = _content(ca), _content(cert), _content(key)
        self.window = positive(given, "window") or 100
        if self.window > _LARGEST_WINDOW:
            raise UsageError(f"window must be a whole number from 1 to {_LARGEST_WINDOW}, not {self.window}")
        self.timeout_s = duration(given, "timeout", "2m")
        self.topic = given.get("topic")
        _check_columns(schema, has_topic=self.topic is not None)

    def transports(self) -> dict[str, Any] | None:
        """The client's; without ``caFile`` the authorities that the executor's machine trusts count."""
        if not self.urls[0].startswith("mqtts:"):
            return None
        return {"mqtts": TLS(self.ca or ssl.create_default_context(), self.cert, self.key)}


def _content(path: Path | None) -> bytes | None:
    # Access.check() has read it.
    return None if path is None else path.read_bytes()


def _check_columns(schema: "StructType", *, has_topic: bool) -> None:
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    if unknown := found.keys() - COLUMNS.keys():
        raise UsageError(f"format mqtt does not publish {', '.join(sorted(unknown))}: select {', '.join(COLUMNS)}")
    for name, kind in found.items():
        if kind not in COLUMNS[name]:
            raise UsageError(f"column {name} must be {' or '.join(COLUMNS[name])}, not {kind}")
    if "payload" not in found:
        raise UsageError("there is no column payload to publish")
    if "topic" not in found and not has_topic:
        raise UsageError("there is no column topic: add one, or give option topic for all rows")


class MqttWriter(DataSourceArrowWriter):
    """``df.write.format("mqtt").mode("append")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return publish_rows(iterator, self._options)


class MqttStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("mqtt")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return publish_rows(iterator, self._options)


def publish_rows(batches: Iterable["pa.RecordBatch"], options: SinkOptions) -> WriterCommitMessage:
    """Publish the rows of a partition; returns when the broker has acknowledged them. Nothing connects without rows.

    :raises BrokerRefused: the broker does not let the sink in.
    :raises PublishFailed: a row is no message of MQTT, or nothing was acknowledged for `timeout_s`.
    """
    publisher = None
    for number, row in enumerate(_rows(batches, options.window), 1):
        publisher = publisher or _Publisher(options)
        try:
            publisher.publish(**row)
        except InvalidArgument as error:
            raise PublishFailed(f"row {number} of a partition cannot be published: {error}") from None
    if publisher is not None:
        publisher.finish()
    return WriterCommitMessage()


def _rows(batches: Iterable["pa.RecordBatch"], at_once: int) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for start in range(0, batch.num_rows, at_once):
            yield from batch.slice(start, at_once).to_pylist()


class _Publisher:
    """A connection, and what is on its way over it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._refused: BrokerRefused | PublishFailed | None = None
        self._trouble = "it did not answer"
        self._draws = 0
        self._client = Client(
            # No longer than what every broker must accept [MQTT-3.1.3-5].
            "umqtt-sink-" + secrets.token_hex(6),
            options.urls,
            store=MemoryStore(options.window),
            username=options.username,
            password=options.password,
            window=options.window,
            tx_size=_BUFFER_BYTES,
            queue_qos0=True,
            transports=options.transports(),
            random=self._random,
            on_error=self._on_error,
            on_disconnect=self._on_error,
        )

    def publish(self, payload: bytes | str | None, topic: str | None = None, qos: int | None = None,
                retain: bool | None = None) -> None:  # fmt: skip
        """Hand a row to the client, once there is room for it.

        :raises InvalidArgument: it is no message of MQTT; the others as of :func:`publish_rows`.
        """
        topic = self._options.topic or topic
        if topic is None or payload is None:
            raise InvalidArgument(f"{'topic' if topic is None else 'payload'} is null")
        self._wait(self._options.window - 1)
        self._client.publish(topic, payload, 1 if qos is None else qos, retain is True)

    def finish(self) -> None:
        """Wait until everything is acknowledged, and take leave."""
        self._wait(0)
        # Nobody acknowledges what is at QoS 0: the link takes it first.
        while self._client.connected and self._client.waits():
            self._client.poll(_POLL_MS)
        self._client.disconnect(_CLOSE_MS)
        while not self._client.closed:
            self._client.poll(_POLL_MS)

    def _wait(self, pending: int) -> None:
        """Drive the client until at most so many messages are in its outbox."""
        moved_at = time.monotonic()
        while (before := self._client.pending) > pending:
            self._client.poll(_POLL_MS)
            if self._refused is not None:
                raise self._refused
            if self._client.pending < before:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > self._options.timeout_s:
                raise PublishFailed(
                    f"the broker {self._options.urls[0]} acknowledged nothing for {self._options.timeout_s:g} s: "
                    f"{self._trouble}. The rows are published again when the query is started again"
                )

    def _random(self, end: int) -> int:
        # The client spreads the first attempts of a fleet after a power cut; a micro-batch need not wait.
        self._draws += 1
        return 0 if self._draws == 1 else random.randrange(end)

    def _on_error(self, error: Exception) -> None:
        url = self._options.urls[0]
        if isinstance(error, CertificateRefused):
            self._refused = PublishFailed(f"{url} shows a certificate that is not trusted: {error}; see caFile")
        elif isinstance(error, Refused) and error.args[1] not in _TEMPORARY:
            why = CONNACK_REFUSALS.get(error.args[1], f"return code {error.args[1]}")
            self._refused = BrokerRefused(f"{url} refused the sink: {why}", error.args[1])
        self._trouble = str(error) or type(error).__name__

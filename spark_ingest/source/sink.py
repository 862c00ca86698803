"""The sink ``writeStream.format("mqtt")`` and ``write.format("mqtt")``: publishes rows to a broker, at least once.

Each task publishes the rows of its partition over its own connection, with the client of this project. At most
``window`` messages are unacknowledged at a time. A task ends when the broker has acknowledged every message of QoS 1
and 2, so Spark commits no micro-batch before that. If a task fails, its rows are published again.

It speaks MQTT 3.1.1, or, if there is a column ``headers``, MQTT 5, which alone can carry them.

The driver reads the password and the key, and executors get them with their tasks. They never appear in text that
Spark shows.
"""

import random
import secrets
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from umqtt_cli.reason_codes import CONNACK_REFUSALS, PASSING, REASONS, UNSUPPORTED_VERSION
from umqtt_robust import Client
from umqtt_robust.errors import InvalidArgument, Refused
from umqtt_robust.policy import TOO_LARGE
from umqtt_robust.store import MemoryStore
from umqtt_robust.tls import TLS, CertificateRefused

from ..collector.access import Access
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
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The types that each column may have, as Spark spells them."""

_LARGEST_WINDOW = 10_000
_BUFFER_BYTES = 64 << 10
_POLL_MS = 1000
_CLOSE_MS = 10_000
# Codes of a broker that does not speak MQTT 5: that of MQTT 3.1.1, and that of MQTT 5.
_WRONG_VERSION = (1, UNSUPPORTED_VERSION)
# Reason code of a PUBACK after which the client sends the message again on another link.
_QUOTA_EXCEEDED = 0x97


class SinkOptions:
    """The options of one writer, checked on the driver, with the content of their files.

    :param schema: the schema of the rows.
    :raises UsageError: an option is unknown, a value or a column is not valid, or a file cannot be read.
    """

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        # Spark passes its own option checkpointLocation to the sink too.
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
        self.has_headers = "headers" in schema.fieldNames()
        _check_columns(schema, has_topic=self.topic is not None)

    def transports(self) -> dict[str, Any] | None:
        """Return the ``transports`` argument for the client; None without TLS.

        Without ``caFile``, the authorities that the executor's machine trusts are used.
        """
        if not self.urls[0].startswith("mqtts:"):
            return None
        return {"mqtts": TLS(self.ca or ssl.create_default_context(), self.cert, self.key)}


def _content(path: Path | None) -> bytes | None:
    # Access.check() has already checked that it is readable.
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
    """The writer of ``df.write.format("mqtt").mode("append")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return publish_rows(iterator, self._options)


class MqttStreamWriter(DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("mqtt")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> WriterCommitMessage:
        return publish_rows(iterator, self._options)


def publish_rows(batches: Iterable["pa.RecordBatch"], options: SinkOptions) -> WriterCommitMessage:
    """Publish the rows of a partition and return when the broker has acknowledged them; without rows, do not connect.

    :raises BrokerRefused: the broker refused the connection.
    :raises PublishFailed: a row is not a valid MQTT message, the broker's certificate is not trusted, or nothing was
        acknowledged for `timeout_s`.
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
    """A connection to the broker, with the messages that are not acknowledged yet."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._refused: BrokerRefused | PublishFailed | None = None
        self._trouble = "it did not answer"
        self._draws = 0
        self._client = Client(
            # 23 characters, which every broker must accept [MQTT-3.1.3-5].
            "umqtt-sink-" + secrets.token_hex(6),
            options.urls,
            store=MemoryStore(options.window),
            username=options.username,
            password=options.password,
            window=options.window,
            tx_size=_BUFFER_BYTES,
            queue_qos0=True,
            transports=options.transports(),
            protocol=5 if options.has_headers else 4,
            random=self._random,
            on_error=self._on_error,
            on_disconnect=self._on_error,
            on_dropped=self._on_dropped,
        )

    def publish(self, payload: bytes | str | None, topic: str | None = None, qos: int | None = None,
                retain: bool | None = None, headers: list[dict[str, Any]] | None = None) -> None:  # fmt: skip
        """Pass a row to the client once its window has room.

        :raises InvalidArgument: the row is not a valid MQTT message.
        :raises BrokerRefused, PublishFailed: as :func:`publish_rows`.
        """
        topic = self._options.topic or topic
        if topic is None or payload is None:
            raise InvalidArgument(f"{'topic' if topic is None else 'payload'} is null")
        self._wait(self._options.window - 1)
        properties = {"user_property": _user_properties(headers)} if headers else None
        self._client.publish(topic, payload, 1 if qos is None else qos, retain is True, properties=properties)

    def finish(self) -> None:
        """Wait until everything is acknowledged, then disconnect."""
        self._wait(0)
        # Messages of QoS 0 are not acknowledged: wait until they are sent.
        while self._client.connected and self._client.waits():
            self._client.poll(_POLL_MS)
        self._client.disconnect(_CLOSE_MS)
        while not self._client.closed:
            self._client.poll(_POLL_MS)

    def _wait(self, pending: int) -> None:
        """Run the client until at most `pending` messages are in its outbox.

        :raises BrokerRefused, PublishFailed: as :func:`publish_rows`.
        """
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
        # The client delays its first attempt at random, for fleets after a power cut; a micro-batch need not wait.
        self._draws += 1
        return 0 if self._draws == 1 else random.randrange(end)

    def _on_error(self, error: Exception) -> None:
        url = self._options.urls[0]
        self._trouble = str(error) or type(error).__name__
        if isinstance(error, CertificateRefused):
            self._refused = PublishFailed(f"{url} shows a certificate that is not trusted: {error}; see caFile")
        elif isinstance(error, Refused) and error.args[0] == "connect" and error.args[1] not in PASSING:
            code = error.args[1]
            why = CONNACK_REFUSALS.get(code) or REASONS.get(code, f"return code {code}")
            if code in _WRONG_VERSION and self._options.has_headers:
                why = "it does not speak MQTT 5, which the column headers needs: leave the column out"
            self._refused = BrokerRefused(f"{url} refused the sink: {why}", code)
        elif isinstance(error, Refused) and error.args[0] == "publish" and error.args[2] != _QUOTA_EXCEEDED:
            why = REASONS.get(error.args[2], f"reason code {error.args[2]}")
            self._refused = PublishFailed(f"{url} refused a message to {error.args[1].decode()}: {why}")

    def _on_dropped(self, _packet_id: int, topic: bytes, payload: bytes, reason: int) -> None:
        # A message that the broker refused was reported to _on_error, with the reason.
        if reason == TOO_LARGE:
            self._refused = PublishFailed(
                f"{self._options.urls[0]} takes no message as large as one to {topic.decode()}, "
                f"whose payload has {len(payload)} bytes"
            )


def _user_properties(headers: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    """Return the user properties of a row's headers.

    :raises InvalidArgument: a header, its key or its value is null. The client checks that both are valid text.
    """
    if any(header is None or None in header.values() for header in headers):
        raise InvalidArgument("a header, its key or its value is null")
    return [(header["key"], header["value"]) for header in headers]

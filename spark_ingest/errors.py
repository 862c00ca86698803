"""Errors of the ingester: ``str(error)`` is one line that says what is wrong, where, and what to do next.

::

    IngestError              exit_code 1
    ├── UsageError           exit_code 2   an option or a folder that cannot work as given
    │   └── SpoolInUse                     another collector holds the spool
    ├── MissingDependency    exit_code 6   something this machine lacks (Java)
    ├── SpoolDamaged                       durable bytes of a spool fail their checksum, or are gone
    ├── SpoolWriteFailed                   the disk refused an append or a sync; nothing was acknowledged
    ├── SpoolUnreachable exit_code 4   a collector that serves spools did not answer, or refused
    ├── TablesWriteFailed                  the disk refused a table or the checkpoint; the spool has it all
    ├── TablesTaken                        another pipeline has taken over tables on an object store
    ├── FileDamaged                        a file of the checkpoint's or of gold's state fails its checksum
    ├── SparkEnded                         Spark's Java process was killed, or ended by itself
    ├── DataLoss                           an offset names messages that the spool no longer holds
    ├── BrokerRefused        exit_code 4   CONNACK or SUBACK said no
    ├── PublishFailed        exit_code 4   the sink has a row that is no message, or gets no acknowledgement
    └── MalformedStream      exit_code 4   the broker sent bytes that are not MQTT
"""


class IngestError(Exception):
    """Base of the tree above."""

    exit_code = 1


class UsageError(IngestError):
    """An option or a folder that cannot work as given."""

    exit_code = 2


class SpoolInUse(UsageError):
    """Another collector holds the lock of the spool."""


class MissingDependency(IngestError):
    """Something is not installed on this machine."""

    exit_code = 6


class SpoolDamaged(IngestError):
    """Bytes below the durable position fail their checksum or are missing: messages may be lost."""


class SpoolWriteFailed(IngestError):
    """An append or a sync failed. What it held was not acknowledged, so the broker still has it."""


class SpoolUnreachable(IngestError):
    """A collector that serves spools could not be reached, refused, or sent what it must not.

    :ivar refused: it answered and said no (token, version); trying again would not help.
    """

    exit_code = 4

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class TablesWriteFailed(IngestError):
    """A table or the checkpoint could not be written. Nothing is lost: the spool has it, and the next start goes on."""


class TablesTaken(IngestError):
    """Another pipeline, or a command, has taken over the tables. Nothing is lost: the spool has what this one read."""


class SparkEnded(IngestError):
    """Spark's Java process has ended under a running query. The next start goes on."""


class FileDamaged(IngestError):
    """A file of state fails its checksum. What it held is made again from the tables."""


class DataLoss(IngestError):
    """An offset names messages that the spool no longer holds."""


class BrokerRefused(IngestError):
    """The broker refused the connection or a subscription.

    :ivar return_code: CONNACK's return code, or SUBACK's from 0x80 on; of MQTT 5 their reason code.
    """

    exit_code = 4

    def __init__(self, message: str, return_code: int) -> None:
        super().__init__(message)
        self.return_code = return_code


class PublishFailed(IngestError):
    """A row of the sink cannot be published, or the broker acknowledges nothing. The micro-batch is not committed."""

    exit_code = 4


class MalformedStream(IngestError):
    """The broker sent bytes that are not MQTT; the connection cannot be used any further."""

    exit_code = 4

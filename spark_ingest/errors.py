"""The errors of the ingester. ``str(error)`` is one line that says what is wrong, where, and what to do next.

::

    IngestError              exit_code 1
    ├── UsageError           exit_code 2   an option or a folder that cannot work as given
    │   └── SpoolInUse                     another collector has the spool open
    ├── MissingDependency    exit_code 6   something is not installed on this machine (Java, a Python package)
    ├── SpoolDamaged                       durable bytes of a spool fail their checksum, or are gone
    ├── SpoolWriteFailed                   writing to the spool failed; nothing was acknowledged
    ├── TablesWriteFailed                  writing a table or the checkpoint failed; the spool has all the data
    │   └── StoreAway                      the object store of the tables did not answer, and may come back
    ├── TablesTaken                        another pipeline has taken over tables on an object store
    ├── FileDamaged                        a file of the checkpoint or of gold's state fails its checksum
    ├── SparkEnded                         Spark's Java process was killed or ended by itself
    ├── DataLoss                           an offset names messages that the spool no longer holds
    ├── BrokerRefused        exit_code 4   CONNACK or SUBACK refused the connection or a subscription
    └── PublishFailed        exit_code 4   a row of the sink is not a valid message, or is not acknowledged
"""


from umqtt_cli.errors import KitError


class IngestError(KitError):
    """The base class of all errors of the ingester."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(message, self.exit_code)


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
    """An append or a sync failed. Its messages were not acknowledged, so the broker still has them."""


class TablesWriteFailed(IngestError):
    """A table or the checkpoint could not be written. Nothing is lost: the spool has the data for the next start."""


class StoreAway(TablesWriteFailed):
    """The object store of the tables did not answer. The same micro-batch can be written when it does."""


class TablesTaken(IngestError):
    """Another pipeline or a command has taken over the tables. Nothing is lost: the spool still has the data."""


class SparkEnded(IngestError):
    """Spark's Java process has ended during a query. The next start continues the query."""


class FileDamaged(IngestError):
    """A file of state fails its checksum. Its content is rebuilt from the tables."""


class DataLoss(IngestError):
    """An offset names messages that the spool no longer holds."""


class BrokerRefused(IngestError):
    """The broker refused the connection or a subscription.

    :ivar return_code: the return code of CONNACK or SUBACK; with MQTT 5, the reason code.
    """

    exit_code = 4

    def __init__(self, message: str, return_code: int) -> None:
        super().__init__(message)
        self.return_code = return_code


class PublishFailed(IngestError):
    """A row of the sink cannot be published, or is not acknowledged. The micro-batch is not committed."""

    exit_code = 4

"""A job of your own between deduplication and the table silver: add columns, correct values, leave rows out.

Name this file in ingest.toml::

    transform = "my_job.py"

and start ``umqtt ingest --config ingest.toml``. `transform` gets the new readings of each micro-batch as a DataFrame
with the columns of silver (docs/ingest.md#tables), each reading once. What it returns is written. Rules:

- Return every column of silver, with its type. New columns are added to the table; older rows read as null there.
- A row that you leave out is not written, but counts as seen: bronze still has its message.
- Micro-batches can be repeated after a failure, so the result must depend on the rows alone: no random numbers, no
  "now".
- ``umqtt tables rebuild --config ingest.toml`` applies the job to all messages of bronze again, after you have
  changed it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# A freezer of this site reports -127 while its probe is unplugged.
UNPLUGGED_C = -127.0


def transform(readings: DataFrame) -> DataFrame:
    return with_site(with_fahrenheit(without_test_devices(readings)))


def without_test_devices(readings: DataFrame) -> DataFrame:
    """Leave out the boards on the bench."""
    return readings.where(~F.col("device_id").startswith("test-"))


def with_fahrenheit(readings: DataFrame) -> DataFrame:
    """Add a column that is computed from a metric; null where the reading has none, or the probe is unplugged."""
    celsius = F.col("metrics")["temp_c"]
    return readings.withColumn("temp_f", F.when(celsius != UNPLUGGED_C, celsius * 1.8 + 32))


def with_site(readings: DataFrame) -> DataFrame:
    """Add the site, which is the first part of the device's name: "north-pump-7" is in "north"."""
    return readings.withColumn("site", F.split("device_id", "-")[0])

"""Two tables of a declarative pipeline: the readings as they arrive, and the daily means of each metric."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SILVER = f"{os.environ['UMQTT_LAKE']}/silver"

spark = SparkSession.active()
# Not in the function, where Spark allows no look at the files.
COLUMNS = spark.read.parquet(SILVER).schema


@dp.table
def readings() -> DataFrame:
    """Read each file of silver once: a run appends what was written since the run before."""
    return spark.readStream.schema(COLUMNS).parquet(SILVER).select("device_id", "seq", "event_ts", "metrics")


@dp.materialized_view
def daily() -> DataFrame:
    """One row for each device, day and metric, computed anew in each run."""
    one = spark.read.table("readings").select("device_id", F.to_date("event_ts").alias("day"), F.explode("metrics"))
    return one.groupBy("device_id", "day", F.col("key").alias("metric")).agg(
        F.count("value").alias("n"), F.mean("value").alias("mean")
    )

"""Spark query: which devices lost readings or delivered them late, by SQL over the tables of `umqtt ingest`.

    pip install 'umqtt-robust[spark]'
    python spark_query.py

docs/sql.md has more queries, and the same ones for DuckDB, polars and pandas.
"""

from pyspark.sql import SparkSession

from spark_ingest.sql import spark_views

TABLES = "tables"

LOST_AND_LATE = """
    WITH lost AS (SELECT device_id, sum(missing) AS readings FROM gaps WHERE open GROUP BY device_id),
    late AS (
        SELECT device_id, count(*) AS readings
        FROM silver
        WHERE clock_ok AND received_ts - event_ts > INTERVAL '10' MINUTE
        GROUP BY device_id
    )
    SELECT d.device_id, d.health, coalesce(lost.readings, 0) AS lost, coalesce(late.readings, 0) AS late
    FROM devices d
    LEFT JOIN lost ON lost.device_id = d.device_id
    LEFT JOIN late ON late.device_id = d.device_id
    ORDER BY lost DESC, late DESC, device_id
"""

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark_views(spark, TABLES)
for row in spark.sql(LOST_AND_LATE).collect():
    print(f"{row.device_id}: {row.health}, {row.lost} lost, {row.late} late")

"""Spark's Java that ends while it starts is told in one line, and the pipeline starts again, as after any end of it."""

import pytest
from pyspark.errors import PySparkRuntimeError

from spark_ingest.errors import SparkEnded, UsageError
from spark_ingest.pipeline.run.session import start_session


@pytest.mark.parametrize(("settings", "told"), [(None, SparkEnded), ({"spark.ui.enabled": "false"}, UsageError)])
def test_java_that_ends_while_spark_starts_is_one_line(monkeypatch, tmp_path, settings, told):
    def killed(*_):
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", killed)
    with pytest.raises(told, match="Java gateway process exited") as found:
        start_session(tmp_path, settings=settings)
    assert "\n" not in str(found.value)

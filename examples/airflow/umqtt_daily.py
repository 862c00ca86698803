"""An Airflow DAG: once an hour, load the collectors' spool into tables, build a daily table, delete old files.

If you need readings at once rather than every hour, run `umqtt ingest` as a service instead.
Airflow and dbt each need an environment of their own; put `umqtt` and `dbt` on the workers' PATH.
"""

from datetime import UTC, datetime, timedelta
from shlex import quote

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

SPOOL = "/srv/umqtt/spool"
TABLES = "/srv/umqtt/tables"
CHECKPOINT = "/srv/umqtt/checkpoint"
DBT = "/srv/umqtt/dbt"

with DAG(
    dag_id="umqtt_daily",
    schedule=timedelta(hours=1),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # Only one pipeline may write the tables at a time. What this run does not read, the next one does.
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
):
    tables = f"--tables {quote(TABLES)}"
    ingest = BashOperator(
        task_id="ingest",
        bash_command=f"umqtt ingest --once --spool {quote(SPOOL)} {tables} --checkpoint {quote(CHECKPOINT)}",
    )
    daily = BashOperator(
        task_id="daily",
        bash_command=f"dbt build --project-dir {quote(DBT)} --profiles-dir {quote(DBT)}",
        env={"UMQTT_TABLES": TABLES, "FLEET_DUCKDB": f"{DBT}/fleet.duckdb"},
        append_env=True,
    )
    vacuum = BashOperator(task_id="vacuum", bash_command=f"umqtt tables vacuum {tables}")

    ingest >> daily >> vacuum

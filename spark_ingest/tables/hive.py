"""Registers the Delta tables in a Hive metastore, as Spark's ``CREATE TABLE ... USING delta LOCATION ...`` does.

A table is registered once: Spark, Trino and Presto then read Delta's log at its location, which also has the columns. A
table that is registered already is left as it is, so a run may be repeated.
"""

import time

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    Database,
    FieldSchema,
    GetTableRequest,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from ..errors import UsageError
from ..hosts import split_server
from ..location import Location, engine_url, same_place
from .upkeep import existing

_PORT = 9083
_TIMEOUT_MS = 30_000
# The name under which Spark, Trino and Presto look for the kind of a table and for its location.
_PROVIDER = "spark.sql.sources.provider"
_PATH = "path"


def register(tables: Location, url: str, database: str) -> dict[str, bool]:
    """Register every Delta table that the metastore does not have; return by table name whether it is new there.

    :param url: ``thrift://HOST`` or ``thrift://HOST:PORT`` of the metastore.
    :param database: the database in it, which is created if it is missing.
    :raises UsageError: there are no tables, `url` is malformed, the metastore cannot be reached or refuses, or a table
        of that name is registered at another location.
    """
    parts = split_server(url, ("thrift",))
    if parts is None:
        raise UsageError("--hive is thrift://HOST or thrift://HOST:PORT of a Hive metastore")
    _, host, port = parts
    found = {folder.rpartition("/")[2]: engine_url(tables / folder) for folder, _ in existing(tables)}
    socket = TSocket(host, port or _PORT)
    socket.setTimeout(_TIMEOUT_MS)
    transport = TBufferedTransport(socket)
    try:
        transport.open()
        metastore = Client(TBinaryProtocol(transport))
        try:
            metastore.get_database(database)
        except NoSuchObjectException:
            metastore.create_database(Database(name=database, parameters={}))
        return {name: _registered(metastore, database, name, location) for name, location in found.items()}
    except (TException, OSError) as error:
        said = getattr(error, "message", None) or str(error) or type(error).__name__
        raise UsageError(f"the Hive metastore at {url} refused: {said.splitlines()[0][:200]}") from error
    finally:
        transport.close()


def _registered(metastore: Client, database: str, name: str, location: str) -> bool:
    try:
        held = metastore.get_table_req(GetTableRequest(dbName=database, tblName=name)).table
    except NoSuchObjectException:
        metastore.create_table(_table(database, name, location))
        return True
    place = held.sd.serdeInfo.parameters.get(_PATH) or held.sd.location
    if held.parameters.get(_PROVIDER, "").lower() != "delta" or not same_place(place, location):
        raise UsageError(
            f"the table {database}.{name} is another than the Delta table {location}: drop it in the metastore"
        )
    return False


def _table(database: str, name: str, location: str) -> Table:
    return Table(
        tableName=name,
        dbName=database,
        createTime=int(time.time()),
        # The metastore removes no file of an external table. Without EXTERNAL it takes the table for its own.
        tableType="EXTERNAL_TABLE",
        parameters={"EXTERNAL": "TRUE", _PROVIDER: "delta"},
        partitionKeys=[],
        sd=StorageDescriptor(
            # What Spark writes for a table whose columns are not the metastore's business.
            cols=[FieldSchema("col", "array<string>", "from deserializer")],
            location=location,
            inputFormat="org.apache.hadoop.mapred.SequenceFileInputFormat",
            outputFormat="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
            serdeInfo=SerDeInfo(
                serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                parameters={_PATH: location, "serialization.format": "1"},
            ),
            parameters={},
        ),
    )

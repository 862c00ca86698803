"""Peer: the obvious first version: paho's callback parses the reading, and every 50,000 become a Parquet file.

    paho_parquet.py PORT TOPIC_FILTER FOLDER COUNT

prints `subscribed`, then a JSON object {written, at (Unix seconds)} once all of them are in files. It neither syncs
nor deduplicates.
"""

import json
import sys
import time
from pathlib import Path

import paho.mqtt.client as paho
import pyarrow as pa
import pyarrow.parquet as pq
from paho.mqtt.enums import CallbackAPIVersion

_FILE_ROWS = 50_000
_COLUMNS = ("device_id", "boot", "seq", "ts", "up_ms", "metrics")
_SCHEMA = pa.schema(
    [
        ("device_id", pa.string()),
        ("boot", pa.string()),
        ("seq", pa.int64()),
        ("ts", pa.timestamp("ms", tz="UTC")),
        ("up_ms", pa.int64()),
        ("metrics", pa.map_(pa.string(), pa.float64())),
    ]
)


def main() -> None:
    port, topic_filter, folder, count = sys.argv[1:]
    client = paho.Client(CallbackAPIVersion.VERSION2, "paho-parquet")
    rows: list[tuple[object, ...]] = []
    written, wanted = 0, int(count)

    def write() -> None:
        nonlocal written
        table = pa.table(dict(zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)), schema=_SCHEMA)
        pq.write_table(table, Path(folder) / f"{written}.parquet")
        written += len(rows)
        rows.clear()

    def on_message(client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        record = json.loads(message.payload)
        rows.append(
            (record["id"], record["boot"], record["seq"], record["ts"], record["up"], list(record["m"].items()))
        )
        if len(rows) == _FILE_ROWS or written + len(rows) == wanted:
            write()
            if written == wanted:
                print(json.dumps({"written": written, "at": time.time()}), flush=True)
                client.disconnect()

    client.on_message = on_message
    client.on_connect = lambda client, *_: client.subscribe(topic_filter, 1)
    client.on_subscribe = lambda *_: print("subscribed", flush=True)
    client.connect("127.0.0.1", port=int(port))
    client.loop_forever()


main()

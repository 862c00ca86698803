"""Peer: mq-bridge, a bridge written in Rust, from MQTT to Parquet files that are synced before they are acknowledged.

    mq_bridge_parquet.py PORT TOPIC_FILTER FOLDER COUNT

prints `subscribed`, then a JSON object {files, at (Unix seconds)} once COUNT messages are in files. It parses the JSON
of a reading; it does not deduplicate, and two kills of it doubled 269 to 468 of 60,000 messages.
"""

import json
import sys
import time
from pathlib import Path

import mq_bridge
import paho.mqtt.client as paho
import pyarrow.parquet as pq
from paho.mqtt.enums import CallbackAPIVersion

_CLIENT = "mq-bridge"
_POLL_S = 0.02


def main() -> None:
    port, topic_filter, folder, count = sys.argv[1:]
    subscribe(int(port), topic_filter)
    route = mq_bridge.Route.from_config(
        {
            "input": {
                "mqtt": {
                    "url": f"tcp://127.0.0.1:{port}",
                    "topic": topic_filter,
                    "client_id": _CLIENT,
                    "clean_session": False,
                    "protocol": "v3",
                    "qos": 1,
                    "delayed_ack": True,
                    "max_inflight": 20_000,
                    "queue_capacity": 20_000,
                }
            },
            "output": {"object_store": {"url": f"file://{folder}", "format": "parquet", "fsync": "batch"}},
            "batch_size": 10_000,
        }
    )
    route.start()
    print("subscribed", flush=True)
    rows: dict[Path, int] = {}
    while sum(rows.values()) < int(count):
        time.sleep(_POLL_S)
        for path in Path(folder).rglob("*.parquet"):
            if path not in rows:
                rows[path] = pq.ParquetFile(path).metadata.num_rows
    print(json.dumps({"files": len(rows), "at": max(path.stat().st_mtime for path in rows)}), flush=True)
    route.stop()


def subscribe(port: int, topic_filter: str) -> None:
    """Make the session that mq-bridge takes over: it does not tell when it is subscribed."""
    client = paho.Client(CallbackAPIVersion.VERSION2, _CLIENT, clean_session=False)
    client.on_connect = lambda client, *_: client.subscribe(topic_filter, 1)
    client.on_subscribe = lambda client, *_: client.disconnect()
    client.connect("127.0.0.1", port=port)
    client.loop_forever()


main()

"""A subscriber built on paho: what it receives is evidence independent of this library."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable

import paho.mqtt.client as paho
from umqtt_kit.ground_truth import ReadingId
from umqtt_testkit.waiting import WAIT_LIMIT_S


class Subscriber:
    """A subscriber with its parsed messages in order of arrival; each property returns a snapshot, as more arrive.

    records: telemetry; received: how often each reading came; others: (leaf of the topic, payload) of all other
    messages.
    """

    def __init__(self, port: int) -> None:
        self._records: list[dict] = []
        self._others: list[tuple[str, dict]] = []
        self.changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "subscriber-of-the-test")
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._client.subscribe([(f"fleet/+/{leaf}", 1) for leaf in ("telemetry", "status", "reply", "log")])
        assert self._subscribed.wait(WAIT_LIMIT_S)

    @property
    def records(self) -> list[dict]:
        with self.changed:
            return list(self._records)

    @property
    def received(self) -> Counter[ReadingId]:
        return Counter(ReadingId(record["id"], record["boot"], record["seq"]) for record in self.records)

    @property
    def others(self) -> list[tuple[str, dict]]:
        with self.changed:
            return list(self._others)

    def payloads(self, leaf: str) -> list[dict]:
        """Return the messages of the topics fleet/{device_id}/{leaf}."""
        return [payload for one, payload in self.others if one == leaf]

    def publish(self, topic: str, payload: bytes | str) -> None:
        self._client.publish(topic, payload, qos=1).wait_for_publish(WAIT_LIMIT_S)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition, checked at every message, holds; return whether it does."""
        with self.changed:
            return self.changed.wait_for(condition, WAIT_LIMIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client, _userdata, message) -> None:
        record = json.loads(message.payload)
        leaf = message.topic.rpartition("/")[2]
        with self.changed:
            if leaf != "telemetry":
                self._others.append((leaf, record))
            else:
                self._records.append(record)
            self.changed.notify_all()

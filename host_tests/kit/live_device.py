"""A device played with paho: it answers each command as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from umqtt_testkit.waiting import WAIT_LIMIT_S


class PlayedDevice:
    """A device that answers commands over a persistent QoS 2 subscription.

    answer(command) returns the replies to publish. until(n) waits for n commands and returns those received, in
    order.
    """

    def __init__(self, port: int, device_id: str, answer: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> None:
        self._commands: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._port, self._id, self._answer = port, device_id, answer
        self._subscribed = threading.Event()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=device_id, clean_session=False)
        self._client.on_connect = lambda client, *_: client.subscribe(f"fleet/{device_id}/cmd", 2)
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._take
        self.wake()

    def wake(self) -> None:
        self._subscribed.clear()
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._subscribed.wait(WAIT_LIMIT_S)

    def sleep(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def until(self, count: int) -> list[dict[str, Any]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._commands) >= count, WAIT_LIMIT_S), self._commands
            return list(self._commands)

    def say(self, leaf: str, record: dict[str, Any], retain: bool = False) -> None:
        self._client.publish(f"fleet/{self._id}/{leaf}", json.dumps(record), 1, retain).wait_for_publish(WAIT_LIMIT_S)

    def _take(self, client: paho.Client, user_data: object, message: paho.MQTTMessage) -> None:
        command = json.loads(message.payload)
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()
        for reply in self._answer(command):
            client.publish(f"fleet/{self._id}/reply", json.dumps(reply), 1)

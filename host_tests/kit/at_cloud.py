"""The files of a board that was provisioned for a cloud of the test kit."""

from __future__ import annotations

import json

from umqtt_kit.device import Configuration
from umqtt_kit.provision.cloud import apply
from umqtt_kit.provision.values import Change, target
from umqtt_testkit.cloud_broker import CloudBroker

DEVICE = "pump-7"


def provisioned(name: str, cloud: CloudBroker, port: int, **settings: object) -> dict[str, bytes]:
    """Return the files of a board that `umqtt provision --cloud NAME` has written."""
    login = {"aws": {}, "thingsboard": {"password": cloud.secret}, "azure": {"password": cloud.secret}}.get(
        name, {"username": cloud.user, "password": cloud.secret}
    )
    change = apply(name, Change({"device_id": DEVICE, "brokers": [f"mqtt://127.0.0.1:{port}"]} | settings, mqtt=login))
    if name == "azure":  # the hub has another name than this computer
        change.mqtt["username"] = change.mqtt["username"].replace("127.0.0.1", cloud.user)
    wanted = target(Configuration(None, None), change)
    return {
        "/settings.json": json.dumps(wanted.settings).encode(),
        "/secrets.json": json.dumps(wanted.secrets).encode(),
    }

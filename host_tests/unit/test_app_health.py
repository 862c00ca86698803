"""The status is sent once per connection; a traceback is kept until the broker has it."""

import json
import os

import _app_fakes as fakes
from app.crash import CrashReport, last_crash
from app.log import Log
from app.status import Status
from postmortem import format_traceback, keep_traceback, pause_after
from umqtt_testkit.portable import equal, new_path

_STATUS = b"fleet/pump-7/status"
_LOG = b"fleet/pump-7/log"


def _path():
    return new_path("traceback")


def _log(client):
    return Log(client, fakes.identity(), fakes.clock()[1], write=lambda line: None)


def _caught():
    try:
        {}["pressure"]
    except KeyError as error:
        return error


def test_online_is_said_retained_once_for_every_connect():
    client = fakes.Client()
    status = Status(fakes.identity(), "0.1.0")
    for connected in (False, True, True, False, True, True):
        client.connected = connected
        status.step(client)
    equal([(qos, retain) for _, _, qos, retain in client.published], [(1, True)] * 2)
    equal(
        [json.loads(payload) for payload in client.payloads(_STATUS)],
        [
            {"online": True, "boot": "17-9f3a2c5d8e1b4a70", "fw": "0.1.0", "reason": "boot"},
            {"online": True, "boot": "17-9f3a2c5d8e1b4a70", "fw": "0.1.0", "reason": "reconnected"},
        ],
    )


def test_online_is_said_later_when_the_outbox_is_full():
    client = fakes.Client(room=0)
    status = Status(fakes.identity(), "0.1.0")
    status.step(client)
    client.room = 1
    status.step(client)
    equal(len(client.payloads(_STATUS)), 1)


def test_a_traceback_names_the_error():
    text = format_traceback(_caught())
    assert "Traceback" in text and "KeyError" in text and "pressure" in text, text


def test_a_traceback_is_published_after_the_next_boot_and_kept_until_acknowledged():
    path = _path()
    told = path + ".old"
    keep_traceback(_caught(), 16, path, told)
    client = fakes.Client()
    client.connected = False
    report = CrashReport(_log(client).report, path, told)
    report.step(client)
    equal(client.published, [])
    client.connected = True
    report.step(client)
    report.step(client)
    os.stat(path)
    record = json.loads(client.payloads(_LOG)[0])
    equal((record["level"], record["crash"]["n"], record["crash"]["boot"]), ("error", 1, 16))
    assert "KeyError" in record["text"] and "Traceback" in record["crash"]["traceback"]
    client.acknowledge()
    report.step(client)
    report.step(client)
    equal(len(client.published), 1)
    # Nothing is reported twice; a query still shows it, and the next crash continues the count.
    CrashReport(_log(client).report, path, told).step(client)
    equal(len(client.published), 1)
    equal(last_crash(path, told)["n"], 1)
    keep_traceback(_caught(), 17, path, told)
    crash = last_crash(path, told)
    equal((crash["n"], crash["boot"]), (2, 17))
    os.remove(path)
    os.remove(told)


def test_without_a_crash_nothing_is_published():
    client = fakes.Client()
    CrashReport(_log(client).report, _path(), _path()).step(client)
    equal(client.published, [])


def test_the_pause_before_a_restart_doubles_with_each_failure_up_to_eleven_minutes():
    """Planted: the pause is the same after every failure; so many failures overflow."""
    equal([pause_after(failures) for failures in (0, 1, 2, 5, 6, 7, 100, 65535)], [10, 20, 40, 320, 640, 640, 640, 640])

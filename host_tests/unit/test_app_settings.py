"""settings.json and secrets.json: every mistake is one line that names file and key, and no secret."""

from app.settings import SettingsError, check_secrets, check_settings
from umqtt_testkit.portable import equal, raises

_GOOD = {"brokers": ["mqtt://127.0.0.1:1883"]}


def _with(**changes):
    values = dict(_GOOD)
    values.update(changes)
    return values


def test_a_list_of_brokers_is_enough():
    settings = check_settings(_GOOD)
    equal(settings["interval_ms"], 1000)
    equal(settings["keep_alive"], 60)
    equal(settings["device_id"], None)
    equal(settings["wifi"], [])


def test_every_bad_value_names_its_key():
    for key, values in (
        ("device_id", (1, "", "a/b", "a+b", "a#", "a b", "x" * 65, "é")),
        ("brokers", ([], "mqtt://a", [1], ["http://a"], ["mqtt://"], ["mqtt://a:0"], ["mqtt://a:65536"],
                     ["mqtt://a:"], ["mqtt://a:b"], ["mqtt://a/b"], ["mqtt://u:p@a"])),
        ("interval_ms", (0, 9, -1, 86400001, 1.5, "1000", None, True)),
        ("keep_alive", (-1, 65536, 1.5, "60", None, False)),
        ("outbox", (0, -1, 10001, 2.5, "64", None, True)),
        ("wifi", ("net", [1], [""], ["x" * 33])),
    ):
        for value in values:
            error = raises(SettingsError, check_settings, _with(**{key: value}))
            equal((error.file, error.key), ("settings.json", key), repr(value))
            assert "\n" not in str(error) and str(error).startswith("settings.json: %s: " % key), str(error)


def test_an_unknown_key_is_refused_by_name():
    error = raises(SettingsError, check_settings, _with(intervall_ms=5))
    equal(error.key, "intervall_ms")
    assert "interval_ms" in str(error)


def test_what_is_no_object_is_refused():
    for values in ([], "x", None, 3):
        raises(SettingsError, check_settings, values)
        raises(SettingsError, check_secrets, values)


def test_addresses_that_work_are_accepted():
    addresses = ["mqtt://a", "mqtts://a.example:8883", "mqtt://192.168.1.2:1", "mqtt://[::1]:1883", "mqtt://[::1]"]
    equal(check_settings(_with(brokers=addresses))["brokers"], addresses)


def test_no_error_repeats_a_secret():
    for values in (
        {"mqtt": {"password": "hunter2"}},
        {"mqtt": {"username": ["hunter2"]}},
        {"wifi": {"net": ["hunter2"]}},
        {"wifi": "hunter2"},
    ):
        error = raises(SettingsError, check_secrets, values)
        assert "hunter2" not in str(error), str(error)
    error = raises(SettingsError, check_settings, _with(brokers=["mqtt://user:hunter2@host"]))
    assert "hunter2" not in str(error), str(error)


def test_secrets_may_be_empty():
    equal(check_secrets({}), {"wifi": {}, "mqtt": {}})

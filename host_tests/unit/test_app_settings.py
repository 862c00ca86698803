"""Every mistake in settings.json or secrets.json gives one line that names file and key, and no secret."""

import json
import os

from app import settings, settings_files
from app.settings import SettingsError, check_secrets, check_settings, check_together
from umqtt_testkit.portable import equal, new_path, raises

_GOOD = {"brokers": ["mqtt://127.0.0.1:1883"]}


def _with(**changes):
    values = dict(_GOOD)
    values.update(changes)
    return values


class _Folder:
    """A new folder with these files, given as text."""

    def __init__(self, **files):
        self.path = new_path("settings")
        os.mkdir(self.path)
        for name, text in files.items():
            self.write(name + ".json", text)

    def write(self, name, text):
        with open(self.path + "/" + name, "w") as file:
            file.write(text)

    def read(self, name="settings.json"):
        with open(self.path + "/" + name) as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_list_of_brokers_is_enough_and_all_else_has_its_default():
    filled = check_settings(_GOOD)
    equal(sorted(filled), sorted(settings.DEFAULTS))
    for key in filled:
        if key != "brokers":
            equal(filled[key], settings.DEFAULTS[key], key)


def test_every_bad_value_names_its_key():
    sensor = {"module": "dht22", "pin": 4}
    for key, values in (
        ("device_id", (1, "", "a/b", "a+b", "a#", "a b", "x" * 65, "é")),
        (
            "brokers",
            (
                [],
                "mqtt://a",
                [1],
                ["http://a"],
                ["mqtt://"],
                ["mqtt://a..example"],
                ["mqtt://" + 64 * "a" + ".example"],
                ["mqtt://" + 64 * "abc."],
                ["mqtt://a:0"],
                ["mqtt://a:65536"],
                ["mqtt://a:"],
                ["mqtt://a:b"],
                ["mqtt://a:²"],
                ["mqtt://a:٣"],
                ["mqtt://ä"],
                ["mqtt://a\x00"],
                ["mqtt://a/b"],
                ["mqtt://u:p@a"],
                ["mqtts://a", "mqtt://b"],
            ),
        ),
        ("cluster", ("", 1, True, ["a"], "x" * 65)),
        ("interval_ms", (0, 9, -1, 86400001, 1.5, "1000", None, True)),
        ("keep_alive", (-1, 65536, 1.5, "60", None, False)),
        ("outbox", (0, -1, 10001, 2.5, "64", True)),
        ("telemetry_qos", (0, 3, "1", None, True, 1.0)),
        ("expires_s", (-1, 31536001, 0.5, None, False)),
        ("encoding", ("", "CBOR", None, 1, ["cbor"])),
        ("wifi", ("net", [1], [""], ["x" * 33])),
        ("country", (None, "de", "D", "DEU", 49, "D1", "Ä", "ÄÖ")),
        ("hostname", ("", "-a", "a-", "a_b", "a.b", "x" * 33, 5)),
        (
            "static_ip",
            (
                "192.168.1.50", [], ["192.168.1.50"] * 3, 5, {}, [1, 2, 3, 4],
                ["192.168.1", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.256", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.050", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.5²", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.50", "255.255.0.255", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.50", "255.255.255.255", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.50", "192.168.1.1", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.0", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.255", "255.255.255.0", "192.168.1.1", "192.168.1.1"],
                ["192.168.1.50", "255.255.255.0", "192.168.2.1", "192.168.1.1"],
                ["192.168.1.50", "255.255.255.0", "192.168.1.50", "192.168.1.1"],
            ),
        ),
        ("power_save", (0, 1, None, "yes")),
        ("ntp_host", (5, "a:b", "a:0", "a:²", "a\nb", ":123", "a b", "http://a")),
        ("log_level", ("verbose", None, 3, [])),
        (
            "sensors",
            (
                {},
                ["dht22"],
                [{}],
                [{"module": 3}],
                [{"module": ""}],
                [{"module": "../x"}],
                [{"module": "1x"}],
                [{"module": "dht22", "name": 4}],
                [{"module": "dht22", "name": "a b"}],
                [sensor, sensor],
                [{"module": "a", "name": str(n)} for n in range(17)],
                [{"module": "a", "x": float("inf")}],
                [{"module": "a", "x": [{"y": float("nan")}]}],
                [{"module": "a", "x": {"y": -float("inf")}}],
            ),
        ),
        ("watchdog_ms", (-1, 999, 3600001, None, True)),
        ("sleep_s", (-1, 604801, 1.5, None)),
        ("home_assistant", (0, "on", None)),
        ("update_url", (1, "", "ftp://a", "https://u:p@a")),
        ("unsigned_commands", (1, "yes", None)),
        ("board", (1, "", "../x", "a b")),
    ):
        for value in values:
            error = raises(SettingsError, check_settings, _with(**{key: value}))
            equal((error.file, error.key), ("settings.json", key), repr(value))
            assert "\n" not in str(error) and str(error).startswith("settings.json: %s: " % key), str(error)


def test_every_key_has_values_that_are_accepted():
    good = {
        "device_id": (None, "pump-7", "a.b:c_d"), "interval_ms": (10, 86400000), "keep_alive": (0, 65535),
        "brokers": (["mqtt://a"], ["mqtt://a.example."], ["mqtt://" + 63 * "a" + ".example"],
                    ["mqtts://a.example:8883", "mqtts://b"], ["mqtt://[::1]:1883", "mqtt://[::1]"],
                    ["mqtt://192.168.1.2:1"]),
        "cluster": (None, "site"),
        "topics": (None, "site/{device_id}/{leaf}"), "per_minute": (0,),
        "outbox": (1, 10000), "telemetry_qos": (1, 2), "expires_s": (0, 31536000), "encoding": ("json", "cbor"),
        "wifi": ([], ["é" * 16]),
        "static_ip": (None, ["192.168.1.50", "255.255.255.0", "192.168.1.1", "1.1.1.1"],
                      ["10.0.255.255", "255.0.0.0", "10.0.0.1", "10.0.0.1"]),
        "country": ("", "DE"), "hostname": (None, "pump-7", "x" * 32), "power_save": (True, False),
        "ntp_host": (None, "", "pool.ntp.org", "192.168.1.2", "127.0.0.1:12345"), "log_level": settings.LEVELS,
        "sensors": ([], [{"module": "dht22", "pin": 4, "name": "cellar"}, {"module": "dht22", "pin": 5}],
                    [{"module": "a", "x": [1.5, None, True, {"y": "inf"}]}]),
        "watchdog_ms": (0, 1000, 3600000), "sleep_s": (0, 604800), "home_assistant": (True, False),
        "update_url": (None, "https://updates.example/pumps/"), "board": (None, "ESP32_GENERIC_S3"),
        "unsigned_commands": (True, False),
    }  # fmt: skip
    equal(sorted(good), sorted(settings.DEFAULTS))
    for key, values in good.items():
        for value in values:
            equal(check_settings(_with(**{key: value}))[key], value)


def test_home_assistant_is_not_promised_readings_that_it_cannot_read():
    error = raises(SettingsError, check_settings, _with(encoding="cbor", home_assistant=True))
    equal((error.key, error.problem), ("encoding", "must be json: Home Assistant reads no CBOR"))


def test_an_unknown_key_is_refused_and_the_nearest_known_one_named():
    for wrong, right in (
        ("intervall_ms", "interval_ms"),
        ("broker", "brokers"),
        ("keepalive", "keep_alive"),
        ("timezone_of_the_moon", "known are board, brokers"),
    ):
        error = raises(SettingsError, check_settings, _with(**{wrong: 5}))
        equal(error.key, wrong)
        assert right in str(error), str(error)
    assert "username" in str(raises(SettingsError, check_secrets, {"mqtt": {"user": "x"}}))


def test_what_is_no_object_is_refused():
    for values in ([], "x", None, 3):
        raises(SettingsError, check_settings, values)
        raises(SettingsError, check_secrets, values)


def test_no_error_repeats_a_secret():
    for values in (
        {"mqtt": {"password": "hunter2"}},
        {"mqtt": {"username": ["hunter2"]}},
        {"wifi": {"net": ["hunter2"]}},
        {"wifi": {"net": "hunter2"}},
        {"wifi": "hunter2"},
        {"tls": {"ca": "hunter2"}},
        {"commands": {"key": "hunter2"}},
    ):
        error = raises(SettingsError, check_secrets, values)
        assert "hunter2" not in str(error), str(error)
    error = raises(SettingsError, check_settings, _with(brokers=["mqtt://user:hunter2@host"]))
    assert "hunter2" not in str(error), str(error)
    with _Folder(settings=json.dumps(_GOOD), secrets='{"wifi": {"net": hunter2}}') as folder:
        assert "hunter2" not in str(raises(SettingsError, settings_files.load, folder.path))


def test_secrets_may_be_empty_and_tls_goes_together():
    equal(check_secrets({}), {"wifi": {}, "mqtt": {}, "tls": {}, "commands": {}})
    tls = {"ca": "/ca.pem", "cert": "/c.pem", "key": "/k.pem"}
    equal(check_secrets({"tls": tls})["tls"], tls)
    for missing, given in (("key", ("ca", "cert")), ("cert", ("ca", "key")), ("ca", ("cert", "key"))):
        error = raises(SettingsError, check_secrets, {"tls": {key: tls[key] for key in given}})
        equal(error.key, "tls." + missing)
    for password in ("", "x" * 8, "x" * 64):
        check_secrets({"wifi": {"net": password}})


def test_an_mqtts_broker_needs_a_certificate_authority():
    values = check_settings(_with(brokers=["mqtts://a"]))
    equal(raises(SettingsError, check_together, values, check_secrets({})).key, "tls.ca")
    check_together(values, check_secrets({"tls": {"ca": "/ca.pem"}}))


def test_the_files_are_read_and_settings_json_may_not_be_missing():
    with _Folder() as folder:
        equal(raises(SettingsError, settings_files.load, folder.path).file, "settings.json")
    with _Folder(settings=json.dumps(_GOOD)) as folder:
        equal(settings_files.load(folder.path)[0]["outbox"], None)
    with _Folder(settings="{") as folder:
        assert "not JSON" in str(raises(SettingsError, settings_files.load, folder.path))


def test_one_key_is_changed_and_the_others_stay_as_they_were_written():
    with _Folder(settings=json.dumps(_with(keep_alive=30))) as folder:
        equal(settings_files.change(folder.path, {"interval_ms": 5000})["interval_ms"], 5000)
        equal(json.loads(folder.read()), _with(keep_alive=30, interval_ms=5000))
        equal(settings_files.change(folder.path, {"keep_alive": None})["keep_alive"], 60)
        equal(json.loads(folder.read()), _with(interval_ms=5000))
        # keep_alive takes effect at the next boot, and is on trial there: see test_app_settings_trial.py.
        equal(sorted(os.listdir(folder.path)), ["settings.json", "settings.json.was"])
        equal(json.loads(folder.read("settings.json.was")), _with(keep_alive=30, interval_ms=5000))


def test_a_bad_change_leaves_the_file_alone():
    before = json.dumps(_GOOD)
    with _Folder(settings=before) as folder:
        for key, value in (
            ("interval_ms", 1),
            ("intervall_ms", 5000),
            ("intervall_ms", None),
            ("brokers", None),
            ("brokers", ["mqtts://a"]),
        ):
            error = raises(SettingsError, settings_files.change, folder.path, {key: value})
            assert error.key in (key, "tls.ca"), str(error)
            equal(folder.read(), before)


def test_what_cannot_be_read_back_does_not_replace_what_could():
    before = json.dumps(_GOOD)
    with _Folder(settings=before) as folder:
        whole = json.dumps

        class Torn:
            dumps = staticmethod(lambda values: whole(values)[:-9])
            loads = staticmethod(json.loads)

        settings_files.json = Torn
        try:
            raises(SettingsError, settings_files.change, folder.path, {"interval_ms": 5000})
        finally:
            settings_files.json = json
        equal(folder.read(), before)


def test_what_is_not_utf_8_is_named():
    with _Folder() as folder:
        with open(folder.path + "/settings.json", "wb") as file:
            file.write(b'{"brokers": ["\xff"]}')
        equal(str(raises(SettingsError, settings_files.load, folder.path)), "settings.json: is not JSON")


def test_a_cut_between_remove_and_rename_on_fat_loses_nothing():
    with _Folder() as folder:
        folder.write("settings.json.new", json.dumps(_GOOD))
        equal(settings_files.load(folder.path)[0]["brokers"], _GOOD["brokers"])

"""Configuration files: every key with right and wrong values, and mosquitto's judgement of the same files."""

import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conf_examples import (
    MOSQUITTO_2_1,
    NAME_FILES,
    OPEN,
    RIGHT,
    TEXTS,
    WRONG,
    first,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from umqtt_broker.access.passwords import PasswordHash
from umqtt_broker.access.permission import Peer as AccessPeer
from umqtt_broker.access.permission import Permission
from umqtt_broker.conf import load, values
from umqtt_broker.conf.keys import FIXED, KEYS
from umqtt_broker.conf.lines import ConfigFileError
from umqtt_broker.errors import ConfigError
from umqtt_broker.protocol.connect import Connect
from umqtt_broker.protocol.packets import ACCEPTED
from umqtt_broker.settings.broker import BrokerConfig, Listener
from umqtt_testkit.mosquitto import require_mosquitto
from umqtt_testkit.waiting import eventually

pytestmark = pytest.mark.tier(0)

Write = Callable[..., Path]

FULL = bool(os.environ.get("UMQTT_FULL_SWEEPS"))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Provide write(text, name), which makes a configuration file."""

    def make(text: str, name: str = "broker.conf") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return make


def problems(path: Path, *, lenient: bool = False) -> list[str]:
    """Load a file that is wrong; return its errors."""
    with pytest.raises(ConfigFileError) as caught:
        load(str(path), lenient=lenient)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def errors_of(path: Path, *, lenient: bool = False) -> list[str]:
    """Load a file; return its errors, if there are any."""
    try:
        load(str(path), lenient=lenient)
    except ConfigFileError as error:
        return error.problems
    return []


def test_every_key_has_a_right_example_and_a_wrong_one() -> None:
    assert RIGHT.keys() | NAME_FILES == KEYS.keys() and not RIGHT.keys() & NAME_FILES
    assert WRONG.keys() | TEXTS == KEYS.keys() and not WRONG.keys() & TEXTS


@pytest.mark.parametrize("key", [key for key, examples in RIGHT.items() if examples])
def test_each_key_sets_what_it_says(write: Write, key: str) -> None:
    for text, get, expected in RIGHT[key]:
        assert get(load(str(write(text + "\n")))) == expected, text


@pytest.mark.parametrize("key", WRONG)
def test_each_wrong_value_is_one_line_that_names_file_line_key_and_what_is_right(write: Write, key: str) -> None:
    for value in [*WRONG[key], ""]:
        above = "" if key in ("listener", "per_listener_settings", "allow_anonymous") else OPEN
        path = write(f"# a comment\n{above}{key} {value}\n")
        number = 2 + above.count("\n")
        found = problems(path)
        assert len(found) == 1 and found[0].startswith(f"{path}:{number}: "), (value, found)
        assert "\n" not in found[0] and " — " in found[0], found
        if "Unix socket" not in found[0]:
            assert f"{key} {'cannot be' if value else 'has no value'}" in found[0], found


def test_all_errors_of_a_file_are_reported_and_nothing_else(write: Write) -> None:
    path = write(
        "listner 1\nmax_keepalive 5\nlistener 1883\nmax_connections 0\ncertfile /nowhere\nkeyfile /nowhere\nbogus\n"
    )
    assert [problem.split(":")[1] for problem in problems(path)] == ["1", "2", "4", "7", "5"]


def test_an_unknown_key_gets_the_nearest_known_one_and_may_restrict(write: Write) -> None:
    """What an unknown key restricts is unknown too: also with --lenient it is an error."""
    path = write("max_inflight_message 5\nxyzzy 1\n")
    found = [
        f"{path}:1: unknown key 'max_inflight_message' — did you mean max_inflight_messages?",
        f"{path}:2: unknown key 'xyzzy' — docs/broker.md has all keys",
    ]
    assert problems(path) == problems(path, lenient=True) == found


@pytest.mark.parametrize("outcome", MOSQUITTO_2_1)
def test_every_key_of_mosquitto_is_read_refused_or_restricts_nothing(
    write: Write, tmp_path: Path, outcome: str
) -> None:
    """Planted: accept_protocol_versions is unknown and lenient; global_max_clients is lenient."""
    for name in ("acl", "passwords"):
        write("", name)
    for key, _, value in (word.partition("=") for word in MOSQUITTO_2_1[outcome].split()):
        above = "" if key in ("listener", "per_listener_settings") else OPEN
        path = write(f"{above}{key} {value.format(tmp_path) or 1}\n")
        where = f"{path}:{above.count(chr(10)) + 1}: {key} "
        found = errors_of(path)
        assert not [line for line in found if "unknown key" in line], key
        is_unsupported = any(line.startswith(where) and "is not supported" in line for line in found)
        assert is_unsupported == (outcome != "read"), (key, found)
        if outcome == "ignored":
            assert load(str(path), lenient=True).warnings == found, key
        else:
            assert errors_of(path, lenient=True) == found, key


@pytest.mark.parametrize(("text", "opens"), [("false", [False, True]), ("true", [True, True])])
def test_a_listener_has_its_own_answer_to_anonymous_clients(write: Write, text: str, opens: list[bool]) -> None:
    """Planted: allow_anonymous of all listeners is used for all."""
    path = write(f"allow_anonymous true\nlistener 1884\nlistener_allow_anonymous {text}\nlistener 1885\n")
    config = load(str(path)).broker
    assert [is_let_in(config, listener) for listener in config.listeners] == opens
    path = write("listener 1884\nlistener_allow_anonymous true\nlistener 1885\n")
    config = load(str(path)).broker
    assert [is_let_in(config, listener) for listener in config.listeners] == [True, False]


def is_let_in(config: BrokerConfig, listener: Listener) -> bool:
    """Return True if a client without credentials is let in."""
    packet = Connect(4, True, 0, b"", None, None, None)
    permission = listener.permission or config.permission
    return permission.connect(packet, AccessPeer("192.0.2.1", None, listener)) == ACCEPTED


@pytest.mark.parametrize("per_listener", [False, True])
def test_the_acl_and_password_plugins_of_mosquitto_are_read(write: Write, per_listener: bool) -> None:
    """Planted: the option of a plugin is ignored."""
    acl, passwords = (
        write("topic read a/#\n", "acl"),
        write(f"ann:{PasswordHash.make(b'secret').encode().decode()}\n", "passwords"),
    )
    passwords.chmod(0o600)
    path = write(
        f"per_listener_settings {str(per_listener).lower()}\nlistener 1883\n"
        f"plugin /usr/lib/mosquitto_acl_file.so\nplugin_opt_acl_file {acl}\n"
        f"plugin /usr/lib/x86/mosquitto_password_file.so\nplugin_opt_password_file {passwords}\n"
    )
    config = load(str(path)).broker
    permission = config.listeners[0].permission or config.permission
    rights = permission.rights(b"c", None)
    assert rights is not None and rights.may_read(b"a/b") and not rights.may_publish(b"a/b")
    assert not is_let_in(config, config.listeners[0])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plugin /usr/lib/mosquitto_dynamic_security.so", "plugin is not supported — use permission_hook"),
        (
            "plugin mosquitto_acl_file.so",
            "plugin mosquitto_acl_file.so has no plugin_opt_acl_file — write: acl_file FILE",
        ),
        ("plugin_opt_acl_file /a", "plugin_opt_acl_file is not supported — use permission_hook"),
        ("plugin_load a mosquitto_acl_file.so", "plugin_load is not supported — write plugin in place of plugin_use"),
        ("plugin_use a", "plugin_use is not supported — write plugin in its place"),
        ("auth_opt_host a", "auth_opt_host is not supported — use permission_hook"),
        ("retained_persistence true", "retained_persistence is not supported — use persistence"),
        ("maximum_qos 1", "maximum_qos 1 is not supported — it is the old name of max_qos"),
        ("max_qos nonsense", "max_qos cannot be 'nonsense' — it is a number from 0 to 2"),
    ],
)
def test_what_may_restrict_is_an_error_with_the_remedy(write: Write, text: str, found: str) -> None:
    path = write(f"listener 1883\n{text}\n")
    (error,) = problems(path, lenient=True)
    assert error.startswith(f"{path}:2: {found}")


def test_a_plugin_keeps_no_option_for_the_next_listener(write: Write) -> None:
    """Planted: the option below the next listener is that listener's, and the plugin's own has no ACL."""
    path = write(
        "per_listener_settings true\nlistener 1883 127.0.0.1\nplugin mosquitto_acl_file.so\n"
        f"listener 1884 127.0.0.1\nplugin_opt_acl_file {write('', 'acl')}\n"
    )
    assert problems(path, lenient=True)[0].startswith(
        f"{path}:3: plugin mosquitto_acl_file.so has no plugin_opt_acl_file"
    )


def test_a_global_plugin_with_settings_per_listener_is_written_below_each(write: Write) -> None:
    path = write("per_listener_settings true\nglobal_plugin mosquitto_acl_file.so\nlistener 1883\n")
    assert problems(path) == [
        f"{path}:2: global_plugin is not supported here — write acl_file FILE below each listener"
    ]


@pytest.mark.parametrize("key", FIXED)
def test_the_value_that_describes_this_broker_is_accepted(write: Write, key: str) -> None:
    """Planted: a fixed key whose value is not checked."""
    only = FIXED[key][1]
    assert load(str(write(f"{key} {str(only).lower()}"))).warnings == []


def test_no_message_shows_a_secret(write: Write) -> None:
    path = write(
        "remote_password hunter2\nremote_pasword hunter2\nbridge_psk hunter2\npsk_file hunter2\n"
        "auth_opt_pass hunter2\n"
        "connection a\naddress x\nremote_passwort hunter2\n"
        "topic # hunter9\nremote_password hunter2\nremote_password hunter2\n"
    )
    with pytest.raises(ConfigFileError) as caught:
        load(str(path))
    assert "hunter2" not in str(caught.value) and "hunter2" not in repr(caught.value)


def test_of_a_key_said_twice_the_last_counts_and_a_warning_names_both_lines(write: Write) -> None:
    """Planted: the first value counts; a key in two listeners is taken for one given twice."""
    path = write(
        "sys_interval 5\nsys_interval 6\n"
        "listener 1\nmax_connections 1\nallow_anonymous false\n"
        "listener 2\nmax_connections 2\nmax_connections 3\nallow_anonymous true\n"
    )
    configuration = load(str(path))
    for_all = "for all listeners; with per_listener_settings true each has its own"
    assert configuration.warnings == [
        f"{path}:2: sys_interval is already set at {path}:1 — this line takes effect",
        f"{path}:8: max_connections is already set at {path}:7 — this line takes effect",
        f"{path}:9: allow_anonymous is already set at {path}:5 — this line takes effect, {for_all}",
    ]
    listeners = configuration.broker.listeners
    assert configuration.broker.sys_interval == 6
    assert [(one.max_connections, one.allow_anonymous) for one in listeners] == [(1, True), (3, True)]
    path.write_text("per_listener_settings true\n" + path.read_text().replace("sys_interval 5\n", ""))
    configuration = load(str(path))
    assert [one.allow_anonymous for one in configuration.broker.listeners] == [False, True]
    assert not [warning for warning in configuration.warnings if "allow_anonymous is said" in warning]


def test_every_yes_or_no_is_said_in_the_same_words(write: Write) -> None:
    """Planted: one key has a parser of its own."""
    flags = [key.name for key in KEYS.values() if key.parse is values.boolean and key.name != "per_listener_settings"]
    assert len(flags) > 10
    before = OPEN
    for key in flags:
        for word in ("yes", "True", "on", "2"):
            path = write(f"{before}{key} {word}\n")
            number = before.count("\n") + 1
            assert f"{path}:{number}: {key} cannot be {word!r} — it is true or false" in problems(path)
        for word in ("true", "false", "1", "0"):
            path = write(f"{before}{key} {word}\n")
            try:
                load(str(path))
            except ConfigFileError as error:
                # Related keys may be missing; the word itself is right.
                assert f"{key} cannot be" not in str(error)


def test_files_are_included_in_mosquittos_order(write: Write, tmp_path: Path) -> None:
    for name in ("b.conf", "A.conf", "01.conf", "a.conf", "B.conf", "00.conf", "ignored.txt"):
        write(f"clientid_prefixes {name[:-5]}\n", f"conf.d/{name}")
    path = write(f"clientid_prefixes first\ninclude_dir {tmp_path}/conf.d\nclientid_prefixes last\n")
    found = load(str(path)).broker.client_id_prefixes
    assert found == (b"first", b"00", b"01", b"A", b"a", b"B", b"b", b"last")


def test_an_error_in_an_included_file_names_that_file(write: Write, tmp_path: Path) -> None:
    included = write("\nbogus 1\n", "conf.d/x.conf")
    nested = write("include_dir /tmp\n", "conf.d/y.conf")
    path = write(f"include_dir {tmp_path}/conf.d\ninclude_dir {tmp_path}/missing\n")
    assert [problem.split(": ")[0] for problem in problems(path)] == [f"{nested}:1", f"{path}:2", f"{included}:2"]


def test_the_main_file_is_never_included_again(write: Write, tmp_path: Path) -> None:
    path = write(f"include_dir {tmp_path}\n")
    (found,) = problems(path)
    assert found.startswith(f"{path}:1: ") and "main file" in found


def test_a_file_that_is_missing_or_no_text_is_one_line(write: Write, tmp_path: Path) -> None:
    (found,) = problems(tmp_path / "missing.conf")
    assert (
        found
        == f"{tmp_path}/missing.conf cannot be read (No such file or directory) — give a configuration file with -c"
    )
    path = tmp_path / "binary.conf"
    path.write_bytes(b"port 1883\n\xff\xfe\n")
    assert problems(path)[0] == f"{path}:2: not UTF-8 text"


def test_comments_blank_lines_tabs_and_line_ends_of_windows_are_understood(write: Write) -> None:
    text = "# comment\r\n\r\n   \t\n\tsys_interval\t  5 \r\nauto_id_prefix a # b\r\n"
    configuration = load(str(write(text)))
    # As in mosquitto, only a whole line is a comment: after a value, # belongs to the value.
    assert configuration.broker.sys_interval == 5 and configuration.broker.auto_id_prefix == b"a # b"


@pytest.mark.parametrize("line", ["\v", "\f", "\u2028", "\v1"])
def test_other_white_space_is_no_blank(write: Write, line: str) -> None:
    """Planted: a line of it has no key, which ends the start in a traceback."""
    assert ":1: " in problems(write(f"{line}\n"))[0]


def test_without_a_listener_only_this_machine_is_served(write: Write) -> None:
    configuration = load(str(write("max_connections 5\n")))
    (listener,) = configuration.broker.listeners
    assert (listener.host, listener.port, listener.max_connections) == ("127.0.0.1", 1883, 5)
    assert listener.allow_anonymous and type(configuration.broker.permission) is Permission


def test_who_names_passwords_wants_them_asked_for_on_loopback_too(write: Write) -> None:
    passwords = write("", "passwords")
    for text, expected in (("", False), ("allow_anonymous true\n", True)):
        configuration = load(str(write(f"password_file {passwords}\n{text}")))
        assert first(configuration).allow_anonymous is expected
        assert type(configuration.broker.permission) is not Permission


def test_settings_above_the_first_listener_never_open_one_more(write: Write) -> None:
    path = write("max_connections 5\nlistener 1884 127.0.0.1\n")
    (found,) = problems(path)
    assert found.startswith(f"{path}:1: max_connections stands above the first listener")
    path = write("allow_anonymous true\nmax_connections 5\nport 1885\nlistener 1884 127.0.0.1\n")
    assert [(one.port, one.max_connections) for one in load(str(path)).broker.listeners] == [(1885, 5), (1884, None)]


def test_a_listener_that_nobody_may_use_is_warned_of(write: Write) -> None:
    path = write("listener 1883\n")
    assert load(str(path)).warnings == [
        f"{path}:1: nobody can connect here — set password_file, or allow_anonymous true"
    ]


@pytest.mark.parametrize(
    ("rules", "is_warned"),
    [
        ("topic read weather/#", True),
        ("topic deny site/#\npattern write fleet/%c/x", True),
        ("topic read weather/#\nuser ada\ntopic read site/weather/#", False),
        ("pattern write +/%c/x", False),
        ("pattern write %u/x", False),
        ("topic read #", False),
    ],
)
def test_access_rules_that_reach_nothing_below_a_mount_point_are_warned_of(
    write: Write, rules: str, is_warned: bool
) -> None:
    acl = write(f"{rules}\n", "acl")
    path = write(f"acl_file {acl}\n{OPEN}listener 1884 127.0.0.1\nmount_point site/\n")
    said = f"{path}:5: acl_file allows nothing below mount_point site/ — write its topics as site/TOPIC"
    assert load(str(path)).warnings == ([said] if is_warned else [])


def test_a_mount_point_that_is_no_whole_level_is_warned_of(write: Write) -> None:
    path = write(f"{OPEN}mount_point site\n")
    assert load(str(path)).warnings == [
        f"{path}:3: mount_point site does not end with / — filters that begin with + or # match nothing here"
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_timeout": 0},
        {"http_port": 65536},
        {"listeners": (Listener(mount_point=b"a/#"),)},
        {"listeners": (Listener(mount_point=b"$share/g/"),)},
        {"listeners": (Listener(mount_point=b"a" * 65535),)},
    ],
)
def test_a_setting_that_a_program_gives_is_checked_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)) if "listeners" not in wrong else "mount_point"):
        BrokerConfig(**wrong).validate()


def test_security_settings_are_global_unless_said_otherwise(write: Write) -> None:
    path = write("listener 1883\nlistener 1884\nallow_anonymous true\n")
    assert [one.allow_anonymous for one in load(str(path)).broker.listeners] == [True, True]
    path = write("per_listener_settings true\nlistener 1883\nlistener 1884\nallow_anonymous true\n")
    listeners = load(str(path)).broker.listeners
    assert [one.allow_anonymous for one in listeners] == [False, True]
    assert type(listeners[0].permission) is not Permission and type(listeners[1].permission) is Permission


def test_per_listener_settings_below_what_it_changes_is_an_error(write: Write) -> None:
    path = write("allow_anonymous true\nper_listener_settings true\nlistener 1883\n")
    (found,) = problems(path)
    assert found.startswith(f"{path}:2: ") and f"({path}:1)" in found


def test_an_empty_file_is_the_default_broker(write: Write) -> None:
    configured, default = load(str(write(""))).broker, BrokerConfig()
    for name in BrokerConfig.__slots__:
        if name not in ("listeners", "permission"):
            assert getattr(configured, name) == getattr(default, name), name


LINES = st.lists(
    st.tuples(
        st.sampled_from([*sorted(set(KEYS) - {"include_dir", "permission_hook"}), "connection", "topic", "x", "#", ""]),
        st.one_of(st.sampled_from(["true", "0", "1", "-1", "/nowhere", "a b", "$"]), st.text(max_size=12)),
    ),
    max_size=12,
)


@settings(max_examples=300 if FULL else 30)
@given(LINES)
@example([("acl_file", "\0"), ("keyfile", "\0")])
def test_whatever_a_file_holds_it_is_a_configuration_or_has_numbered_errors(tmp_path_factory: Any, lines: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_text("\n".join(f"{key} {value}" for key, value in lines), "utf-8", "replace")
    try:
        load(str(path))
    except ConfigFileError as error:
        assert error.problems and all(problem.startswith(str(path)) for problem in error.problems)
        assert all("\n" not in problem for problem in error.problems)


# mosquitto and this broker read the same files


def mosquitto_accepts(path: Path, address: Path) -> bool:
    """Start mosquitto on a file and return whether it begins to listen."""
    command = [require_mosquitto(), "-c", str(path)]

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.connect(str(address))
            return True
        return False

    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # It may be told to log nothing: only a connection shows that it listens.
        eventually(lambda: process.poll() is not None or listens())
        return process.returncode is None
    finally:
        process.kill()
        process.wait()


# Without a listener mosquitto would take port 1883 of this machine: each file listens on its own socket.
SAME = [
    "allow_anonymous true",
    "allow_anonymous 1",
    "allow_anonymous yes",
    "allow_anonymous",
    "max_inflight_messages 20",
    "max_inflight_messages 0",
    "max_queued_messages 0",
    "max_packet_size 19",
    "max_packet_size 20",
    "max_keepalive 9",
    "max_keepalive 10",
    "max_keepalive 65535",
    "max_keepalive 65536",
    "message_size_limit 100",
    "message_size_limit -1",
    "persistent_client_expiration 2d",
    "persistent_client_expiration 2x",
    "persistent_client_expiration 2",
    "queue_qos0_messages true",
    "retain_available maybe",
    "sys_interval 0",
    "sys_interval -1",
    "log_type all",
    "log_type nonsense",
    "log_dest none",
    "log_dest nonsense",
    "protocol mqtt",
    "protocol nonsense",
    "max_connections 5",
    "max_connections -1",
    "mount_point site/",
    "mount_point site/#",
    "set_tcp_nodelay true",
    "nonsense 1",
    "clientid_prefixes a",
    "auto_id_prefix a",
    "autosave_interval 5",
    "connection_messages false",
    "log_timestamp_format %H",
    "password_file /dev/null/file",
    "acl_file /dev/null/file",
    "require_certificate nonsense",
    "socket_domain ipv4",
    "socket_domain ipv5",
    "per_listener_settings false",
    "# comment",
    "include_dir /dev/null/folder",
    "sys_interval 5\nsys_interval 6",
    "allow_anonymous true\nallow_anonymous false",
]


# This broker refuses what mosquitto reads as something else than it says.
STRICTER = ["max_inflight_messages -1", "tls_version nonsense", "max_connections 0"]


def accepted_by(path: Path) -> bool:
    try:
        load(str(path))
    except ConfigFileError:
        return False
    return True


@pytest.mark.tier(1)
def test_mosquitto_accepts_and_refuses_the_same_files(write: Write, tmp_path: Path) -> None:
    address = tmp_path / "socket"
    differ = []
    for text in [*SAME, *STRICTER]:
        # Started as root, mosquitto would become a user who may not create the socket; others keep their user.
        path = write(f"user root\nlistener 0 {address}\n{text}\n")
        if mosquitto_accepts(path, address) != accepted_by(path):
            differ.append(text)
        address.unlink(missing_ok=True)
    assert differ == STRICTER


def test_the_table_of_keys_in_the_documentation_is_the_parsers() -> None:
    from umqtt_broker.conf.keys import table

    text = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    assert table() in text, "write the output of `python -m umqtt_broker.conf.keys` into docs/broker.md"


def test_defaults_in_the_table_are_those_of_the_broker() -> None:
    words = {"true": True, "false": False, "": "", "no limit": 0, "never": 0}
    config = BrokerConfig()
    checked = 0
    for key in KEYS.values():
        if key.scope == "broker" and key.default not in ("beside the store",):
            value = getattr(config, key.attribute)
            value = int(value) if isinstance(value, float) else value
            expected = words.get(key.default, key.default)
            assert str(value) == str(expected) or (value in ((), b"") and expected == ""), key.name
            checked += 1
    assert checked > 20

"""The `connection` section of mosquitto.conf: its meaning, and that every error is reported with file and line."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from bridge_parts import read_bridge
from umqtt_broker.bridge.topic_map import TopicMap
from umqtt_broker.conf.lines import ConfigFileError
from umqtt_broker.errors import ConfigError
from umqtt_broker.settings.bridge import BridgeConfig, TopicRule, check_bridges
from umqtt_broker.transport.tls import make_bridge_context

pytestmark = pytest.mark.tier(0)


def read(text: str) -> BridgeConfig:
    return read_bridge(text, "b.conf")


def test_a_section_says_what_mosquittos_manual_says(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wordpass\n")
    config = read(
        f"""
connection up
addresses a.example [::1]:1884 b.example:8883
topic sensors/# out 1
topic # both 2 here/ there/
topic cmd in
topic "" in 0 here/x there/x
clientid me
username user
remote_password_file {secret}
cleansession true
keepalive_interval 30
restart_timeout 2 20
try_private false
notifications false
round_robin true
start_type automatic
bridge_protocol_version mqttv31
"""
    )
    assert config.addresses == (("a.example", 1883), ("::1", 1884), ("b.example", 8883))
    assert config.topics == (
        TopicRule(b"sensors/#", "out", 1),
        TopicRule(b"#", "both", 2, b"here/", b"there/"),
        TopicRule(b"cmd", "in"),
        TopicRule(b"", "in", 0, b"here/x", b"there/x"),
    )
    assert (config.remote_client_id, config.local_client_id) == (b"me", b"local.me")
    assert (config.remote_username, config.remote_password) == (b"user", b"wordpass")
    assert (config.clean_session, config.keep_alive, config.restart_timeout) == (True, 30, (2, 20))
    assert (config.try_private, config.notifications, config.round_robin, config.protocol_level) == (
        False,
        False,
        True,
        3,
    )
    assert "wordpass" not in repr(config)


def test_what_is_not_said_is_what_mosquitto_takes() -> None:
    config = read("connection up\naddress h\ntopic a")
    name = f"up.{socket.gethostname()}".encode()
    assert (config.remote_client_id, config.local_client_id) == (name, b"local." + name)
    assert config.notification_topic == b"$SYS/broker/connection/" + name + b"/state"
    assert config.topics == (TopicRule(b"a", "out", 0, b"", b""),)
    assert not config.clean_session and config.try_private and config.notifications and not config.insecure
    assert (config.keep_alive, config.restart_timeout, config.protocol_level) == (60, (5, 30), 4)
    assert make_bridge_context(config) is None


WRONG = [
    ("topic a sideways", "3: topic: direction sideways"),
    ("topic a out 3", "3: topic: QoS 3"),
    ("topic a/#/b", "3: topic: a/#/b is no topic filter"),
    ("topic a out 0 l+/ r/", "3: topic: prefix l+/"),
    ('topic "" out 0 l ""', "3: topic: an empty pattern"),
    ("topic a out 0 l/ r/ more", "3: topic: more is one word too many"),
    ("start_type lazy", "3: start_type cannot be 'lazy' — it is automatic"),
    ("start_type once", "3: start_type cannot be 'once' — it is automatic"),
    ("bridge_protocol_version 5", "3: bridge_protocol_version cannot be '5' — it is mqttv311, mqttv31 or mqttv50"),
    ("bridge_tls_version tlsv1", "3: bridge_tls_version cannot be 'tlsv1' — it is tlsv1.2 or tlsv1.3; older"),
    ("keepalive_interval 4", "3: keepalive_interval cannot be '4' — it is a number from 5 to 65535"),
    ("restart_timeout 30 5", "3: restart_timeout: the longest wait, 5"),
    ("try_private yes", "3: try_private cannot be 'yes' — it is true or false"),
    ("address ::1", "3: address: ::1: an IPv6 address is written [ADDRESS]:PORT"),
    ("bridge_psk 00", "3: bridge_psk is not supported"),
    ("remote_password_file /nowhere", "3: remote_password_file: cannot read /nowhere"),
    ("cleansession", "3: cleansession has no value — write it behind the key"),
    ("remote_password x", "1: bridge up has a remote_password without a remote_username"),
    ("bridge_certfile x", "1: bridge up: bridge_certfile and bridge_keyfile go together"),
    ("bridge_insecure true", "1: bridge up has settings of TLS, but no bridge_cafile"),
]


@pytest.mark.parametrize(("line", "problem"), WRONG, ids=[line for line, _ in WRONG])
def test_every_mistake_is_named_with_file_and_line(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(f"connection up\naddress h\n{line}\ntopic z")
    assert f"b.conf:{problem}" in str(caught.value)


def test_a_section_without_an_address_or_a_topic_is_refused() -> None:
    for text, missing in (("connection up\ntopic a", "no address"), ("connection up\naddress h", "no topic")):
        with pytest.raises(ConfigError, match=missing):
            read(text)
    with pytest.raises(ConfigError, match="IPv6"):
        read("connection up\naddress ::1\ntopic a")


def test_all_mistakes_of_a_section_are_reported_at_once() -> None:
    with pytest.raises(ConfigFileError) as caught:
        read("connection up\ntopic a b\nkeepalive_interval x")
    assert [problem.split(" ")[0] for problem in caught.value.problems] == ["b.conf:2:", "b.conf:3:"]


def test_bridges_that_cannot_be_told_apart_are_refused() -> None:
    one = read("connection up\naddress h\ntopic a")
    with pytest.raises(ConfigError, match="two connections up"):
        check_bridges([one, one])
    other = read("connection other\naddress h\ntopic a\nlocal_clientid " + one.local_client_id.decode())
    with pytest.raises(ConfigError, match="same local_clientid"):
        check_bridges([one, other])


@pytest.mark.tier(1)
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_verifies_the_name_unless_told_and_the_chain_always(tmp_path: Path) -> None:
    """Planted: OpenSSL asks for a key's passphrase on the terminal."""
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=ca"
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "ca.pem")]
    subprocess.run(request.split() + files, check=True, capture_output=True)
    text = f"connection up\naddress h:8883\ntopic a\nbridge_cafile {tmp_path / 'ca.pem'}\n"
    context = make_bridge_context(read(text))
    assert context is not None and context.check_hostname and context.verify_mode == 2
    context = make_bridge_context(read(text + "bridge_insecure true"))
    assert context is not None and not context.check_hostname and context.verify_mode == 2
    with pytest.raises(ConfigError, match="nowhere"):
        make_bridge_context(read("connection up\naddress h\ntopic a\nbridge_cafile /nowhere"))
    locked = f"bridge_certfile {tmp_path / 'ca.pem'}\nbridge_keyfile {tmp_path / 'locked.pem'}\n"
    lock = ["openssl", "pkey", "-aes128", "-passout", "pass:secret", "-in", str(tmp_path / "key.pem")]
    subprocess.run([*lock, "-out", str(tmp_path / "locked.pem")], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"bridge up: keyfile .* is encrypted — remove its passphrase"):
        make_bridge_context(read(text + locked))


def test_the_example_of_the_documentation_is_a_configuration(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "broker-bridge.md").read_text().split("```")[1]
    (tmp_path / "password").write_text("secret")
    config = read(
        "\n".join(line for line in text.splitlines() if line).replace(
            "/etc/umqtt/headquarters.password", str(tmp_path / "password")
        )
    )
    assert config.addresses[1] == ("standby.example.com", 8883) and config.remote_password == b"secret"
    outward = TopicMap(config.topics, outward=True)
    assert outward.find(b"fleet/pump-7/telemetry") == b"plant-7/fleet/pump-7/telemetry"
    assert TopicMap(config.topics, outward=False).find(b"plant-7/fleet/pump-7/cmd") == b"fleet/pump-7/cmd"
    assert outward.find(b"alarms") == b"alarms"

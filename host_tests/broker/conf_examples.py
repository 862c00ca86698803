"""Right and wrong examples of every key of a configuration file."""

from collections.abc import Callable
from typing import Any

from umqtt_broker.conf import Configuration

# A listener for everyone: the lines that a key needs above it, unless it is about who may connect.
OPEN = "listener 1883 127.0.0.1\nallow_anonymous true\n"


def first(configuration: Configuration) -> Any:
    """Return the first listener."""
    return configuration.broker.listeners[0]


# {key: lines that use it, and what they set}.
RIGHT: dict[str, list[tuple[str, Callable[[Configuration], Any], Any]]] = {
    "listener": [
        (
            f"{OPEN}listener 0",
            lambda c: [(one.host, one.port) for one in c.broker.listeners],
            [("127.0.0.1", 1883), ("", 0)],
        ),
        (
            "listener 0 /tmp/broker.sock\nallow_anonymous true",
            lambda c: (first(c).path, first(c).port),
            ("/tmp/broker.sock", 0),
        ),
        ("listener 1884 ::1\nallow_anonymous true", lambda c: first(c).host, "::1"),
        ("listener\t1884 \t::1\nallow_anonymous\ttrue", lambda c: (first(c).host, first(c).port), ("::1", 1884)),
    ],
    "port": [("allow_anonymous true\nport 1884", lambda c: (first(c).host, first(c).port), ("", 1884))],
    "bind_address": [
        ("allow_anonymous true\nbind_address 127.0.0.2", lambda c: (first(c).host, first(c).port), ("127.0.0.2", 1883))
    ],
    "protocol": [(f"{OPEN}protocol websockets", lambda c: first(c).protocol, "websockets")],
    "socket_domain": [(f"{OPEN}socket_domain ipv4", lambda c: first(c).socket_domain, "ipv4")],
    "socket_mode": [(f"{OPEN}socket_mode 660", lambda c: first(c).mode, 0o660)],
    "max_connections": [
        (f"{OPEN}max_connections 7", lambda c: first(c).max_connections, 7),
        (f"{OPEN}max_connections -1", lambda c: first(c).max_connections, None),
    ],
    "mount_point": [(f"{OPEN}mount_point site/", lambda c: first(c).mount_point, b"site/")],
    "websockets_origin": [
        (
            f"{OPEN}websockets_origin https://a.example\nwebsockets_origin https://b.example",
            lambda c: first(c).origins,
            ("https://a.example", "https://b.example"),
        )
    ],
    "listener_allow_anonymous": [
        ("listener 1883 127.0.0.1\nlistener_allow_anonymous true", lambda c: first(c).allow_anonymous, True),
        (f"{OPEN}listener_allow_anonymous false", lambda c: first(c).allow_anonymous, False),
    ],
    "listener_auto_id_prefix": [
        (f"{OPEN}listener_auto_id_prefix b-", lambda c: first(c).auto_id_prefix, b"b-"),
        (
            f"per_listener_settings true\n{OPEN}auto_id_prefix a-\nlistener_auto_id_prefix b-",
            lambda c: first(c).auto_id_prefix,
            b"b-",
        ),
    ],
    "per_listener_settings": [
        (
            (
                "per_listener_settings true\nlistener 1883 127.0.0.1\nallow_anonymous true\n"
                "listener 1884 127.0.0.1\nallow_anonymous true\nallow_zero_length_clientid false"
            ),
            lambda c: [one.allow_zero_length_client_id for one in c.broker.listeners],
            [None, False],
        )
    ],
    "allow_anonymous": [
        ("", lambda c: first(c).allow_anonymous, True),
        ("listener 1883 127.0.0.1", lambda c: first(c).allow_anonymous, False),
        ("allow_anonymous 1\nlistener 1883", lambda c: first(c).allow_anonymous, True),
    ],
    "allow_zero_length_clientid": [
        ("allow_zero_length_clientid false", lambda c: c.broker.allow_zero_length_client_id, False)
    ],
    "auto_id_prefix": [("auto_id_prefix board-", lambda c: c.broker.auto_id_prefix, b"board-")],
    "clientid_prefixes": [
        ("clientid_prefixes a-\nclientid_prefixes b-", lambda c: c.broker.client_id_prefixes, (b"a-", b"b-"))
    ],
    "max_inflight_messages": [
        ("max_inflight_messages 20", lambda c: c.broker.max_inflight_messages, 20),
        ("max_inflight_messages 0", lambda c: c.broker.max_inflight_messages, 65534),
    ],
    "max_queued_messages": [("max_queued_messages 5", lambda c: c.broker.max_queued_messages, 5)],
    "max_queued_bytes": [("max_queued_bytes 5", lambda c: c.broker.max_queued_bytes, 5)],
    "max_queued_messages_total": [("max_queued_messages_total 5", lambda c: c.broker.max_queued_messages_total, 5)],
    "max_queued_bytes_total": [("max_queued_bytes_total 5", lambda c: c.broker.max_queued_bytes_total, 5)],
    "at_queue_limit": [("at_queue_limit drop", lambda c: c.broker.at_queue_limit, "drop")],
    "max_queued_in_memory": [("max_queued_in_memory 5", lambda c: c.broker.max_queued_in_memory, 5)],
    "queue_qos0_messages": [("queue_qos0_messages true", lambda c: c.broker.queue_qos0_messages, True)],
    "message_expiry": [("message_expiry 30s", lambda c: c.broker.message_expiry, 30)],
    "persistent_client_expiration": [
        (f"persistent_client_expiration {text}", lambda c: c.broker.session_expiry, seconds)
        for text, seconds in (("1h", 3600), ("2d", 172800), ("3w", 1814400), ("4m", 10368000), ("5y", 157680000))
    ],
    "retain_available": [("retain_available false", lambda c: c.broker.retain_available, False)],
    "server_reference": [("server_reference b.example:1883", lambda c: c.broker.server_reference, "b.example:1883")],
    "global_max_connections": [
        ("global_max_connections 5", lambda c: c.broker.max_connections, 5),
        ("global_max_connections -1", lambda c: c.broker.max_connections, 1 << 20),
    ],
    "max_packet_size": [("max_packet_size 20", lambda c: c.broker.max_packet_size, 20)],
    "max_properties_size": [("max_properties_size 5000", lambda c: c.broker.max_properties_size, 5000)],
    "max_connect_properties_size": [
        ("max_connect_properties_size 2000", lambda c: c.broker.max_connect_properties_size, 2000)
    ],
    "max_topic_levels": [("max_topic_levels 7", lambda c: c.broker.max_topic_levels, 7)],
    "max_shared_subscriptions": [("max_shared_subscriptions 7", lambda c: c.broker.max_shared_subscriptions, 7)],
    "message_size_limit": [("message_size_limit 100", lambda c: c.broker.max_payload_size, 100)],
    "max_receive_rate": [("max_receive_rate 100", lambda c: c.broker.max_receive_rate, 100)],
    "max_keepalive": [("max_keepalive 60", lambda c: c.broker.max_keep_alive, 60)],
    "max_output_buffer": [("max_output_buffer 65536", lambda c: c.broker.max_output_buffer, 65536)],
    "connect_timeout": [("connect_timeout 3", lambda c: c.broker.connect_timeout, 3)],
    "persistence": [
        ("persistence true", lambda c: c.broker.store, "umqtt-broker.db"),
        ("persistence false", lambda c: c.broker.store, ":memory:"),
    ],
    "persistence_location": [
        ("persistence true\npersistence_location /var/lib/b/", lambda c: c.broker.store, "/var/lib/b/umqtt-broker.db")
    ],
    "persistence_file": [
        ("persistence true\npersistence_location /a\npersistence_file b.db", lambda c: c.broker.store, "/a/b.db")
    ],
    "autosave_interval": [("autosave_interval 30", lambda c: "no effect" in c.warnings[0], True)],
    "autosave_on_changes": [("autosave_on_changes true", lambda c: "no effect" in c.warnings[0], True)],
    "sys_interval": [("sys_interval 0", lambda c: c.broker.sys_interval, 0)],
    "http_listener": [
        ("http_listener 8080", lambda c: (c.broker.http_host, c.broker.http_port), ("127.0.0.1", 8080)),
        ("http_listener 8080 ::1", lambda c: (c.broker.http_host, c.broker.http_port), ("::1", 8080)),
    ],
    "http_token_file": [("http_token_file /t", lambda c: c.broker.http_token_file, "/t")],
    "log_dest": [
        (
            "log_dest stdout\nlog_dest file\t/var/log/a b.log",
            lambda c: c.log.destinations,
            (("stdout", ""), ("file", "/var/log/a b.log")),
        ),
    ],
    "log_type": [("log_type error\nlog_type subscribe", lambda c: c.log.types, ("error", "subscribe"))],
    "log_format": [("log_format json", lambda c: c.log.format, "json")],
    "log_timestamp": [("log_timestamp false", lambda c: c.log.timestamp, False)],
    "log_timestamp_format": [("log_timestamp_format %H:%M", lambda c: c.log.timestamp_format, "%H:%M")],
    "connection_messages": [("connection_messages false", lambda c: c.log.connection_messages, False)],
    "pid_file": [("pid_file /run/b.pid", lambda c: c.pid_file, "/run/b.pid")],
    "user": [("user nobody", lambda c: c.user, "nobody")],
    "include_dir": [],  # test_files_are_included_in_mosquittos_order
}

# Keys that name files; the tests of listeners and of permissions create those.
NAME_FILES = {
    "certfile",
    "keyfile",
    "cafile",
    "capath",
    "crlfile",
    "require_certificate",
    "tls_version",
    "ciphers",
    "use_identity_as_username",
    "use_subject_as_username",
    "password_file",
    "acl_file",
    "client_id_pattern",
    "blacklist_file",
    "permission_hook",
}

WRONG: dict[str, list[str]] = {
    "listener": ["x", "65536", "-1", "1883 a b", "1883 a\tb", "0x10", "1883 /tmp/socket"],
    "port": ["x", "-1", "65536", "1.5"],
    "protocol": ["mqttt", "http"],
    "socket_domain": ["ipv5", "IPv4"],
    "socket_mode": ["888", "rw", "10000"],
    "max_connections": ["0", "-2", "many"],
    "mount_point": ["a/#", "+/", "$share/g/", "$sha"],
    "require_certificate": ["yes", "TRUE"],
    "tls_version": ["tlsv1.1", "tlsv1", "ssl3", "1.2"],
    "use_identity_as_username": ["on"],
    "use_subject_as_username": ["2"],
    "per_listener_settings": ["ture"],
    "allow_anonymous": ["yes", "tru", "True"],
    "listener_allow_anonymous": ["yes"],
    "allow_zero_length_clientid": ["no"],
    "max_inflight_messages": ["-1", "65535", "1_000", "२०", "1e3", "9" * 30],
    "max_queued_messages": ["-1", "all"],
    "max_queued_bytes": ["-1", "1k"],
    "max_queued_messages_total": ["-5"],
    "max_queued_bytes_total": ["-5"],
    "at_queue_limit": ["wait"],
    "max_queued_in_memory": ["0"],
    "queue_qos0_messages": ["0.0"],
    "message_expiry": ["30", "0s", "s", "-1d"],
    "persistent_client_expiration": ["3", "3x", "d", "0d", "1.5d", "-1h", "1 h"],
    "retain_available": ["2"],
    "global_max_connections": ["0", "-2"],
    "max_packet_size": ["19", "268435461", "0"],
    "max_properties_size": ["1023", "268435456"],
    "max_connect_properties_size": ["1023", "268435456"],
    "max_topic_levels": ["0", "65535"],
    "max_shared_subscriptions": ["0", "-1"],
    "message_size_limit": ["-1", "268435456"],
    "max_receive_rate": ["-1"],
    "max_keepalive": ["9", "0", "65536"],
    "max_output_buffer": ["1"],
    "connect_timeout": ["0", "4000"],
    "persistence": ["sometimes"],
    "autosave_interval": ["-1"],
    "autosave_on_changes": ["x"],
    "sys_interval": ["-1", "ten"],
    "http_listener": ["http", "70000"],
    "log_dest": ["file", "topic", "stderr now", "dlt"],
    "log_type": ["verbose", "warn"],
    "log_format": ["xml"],
    "log_timestamp": ["iso"],
    "connection_messages": ["all"],
}
# Any text is valid, or is checked only when the file that it names is read.
TEXTS = {
    "bind_address",
    "websockets_origin",
    "certfile",
    "keyfile",
    "cafile",
    "capath",
    "crlfile",
    "ciphers",
    "password_file",
    "acl_file",
    "client_id_pattern",
    "blacklist_file",
    "permission_hook",
    "auto_id_prefix",
    "listener_auto_id_prefix",
    "clientid_prefixes",
    "server_reference",
    "persistence_location",
    "persistence_file",
    "http_token_file",
    "log_timestamp_format",
    "pid_file",
    "user",
    "include_dir",
}

# Every key of mosquitto.conf(5) of mosquitto 2.1.2, KEY=VALUE or KEY for the value 1: a value that is not the default,
# and that restricts where the key can restrict. {} is the test's folder. What this broker makes of the key, ignored
# meaning with --lenient.
MOSQUITTO_2_1 = {
    "read": """
    allow_zero_length_clientid auto_id_prefix autosave_interval autosave_on_changes clientid_prefixes
    connection_messages global_max_connections log_dest log_timestamp log_timestamp_format log_type
    max_inflight_messages max_keepalive max_packet_size max_queued_bytes max_queued_messages message_size_limit
    per_listener_settings persistence persistence_file persistence_location persistent_client_expiration
    pid_file queue_qos0_messages retain_available sys_interval user bind_address max_connections mount_point
    port protocol socket_domain websockets_origin cafile capath certfile ciphers crlfile keyfile
    require_certificate tls_version use_identity_as_username use_subject_as_username acl_file={}/acl
    allow_anonymous=true include_dir={}/none password_file={}/passwords listener=1884
    listener_allow_anonymous=false
    """,
    "ignored": """
    log_facility retain_expiry_interval http_dir packet_buffer_size websockets_headers_size websockets_log_level
    dhparamfile tls_keyform allow_duplicate_messages=true enable_control_api=true set_tcp_nodelay=false
    upgrade_outgoing_qos=true max_topic_alias_broker=5 disable_client_cert_date_checks=true
    """,
    "refused": """
    plugin_opt_x max_qos ciphers_tls1.3 tls_engine tls_engine_kpass_sha1 psk_hint
    auth_plugin_deny_special_chars=true check_retain_source=true global_max_clients=100
    global_plugin={}/mosquitto_dynamic_security.so max_inflight_bytes=1000 memory_limit=1000
    plugin={}/mosquitto_dynamic_security.so psk_file={}/psk accept_protocol_versions=5 bind_interface=lo
    enable_proxy_protocol=2 max_topic_alias=5 proxy_protocol_v2_require_tls=true use_username_as_clientid=true
    """,
    "refused bridges": """
    address addresses bridge_attempt_unsubscribe bridge_outgoing_retain bridge_protocol_version cleansession
    connection keepalive_interval local_clientid notifications notifications_local_only notification_topic
    remote_clientid remote_password remote_username restart_timeout round_robin start_type topic try_private
    bridge_cafile bridge_capath bridge_certfile bridge_insecure bridge_keyfile bridge_tls_version
    bridge_bind_address bridge_max_packet_size bridge_max_topic_alias bridge_receive_maximum
    bridge_session_expiry_interval bridge_tcp_keepalive bridge_tcp_user_timeout local_cleansession idle_timeout
    local_password local_username threshold bridge_reload_type bridge_alpn bridge_identity bridge_psk
    bridge_require_ocsp bridge_tls_use_os_certs bridge_ciphers bridge_ciphers_tls1.3
    """,
}

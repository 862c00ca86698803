"""Every key of a configuration file: what it sets, its default in words, and what it means.

docs/broker.md has the same table; `python -m umqtt_broker.conf.keys` prints it.
"""

from typing import Any, Literal, NamedTuple

from . import values

Scope = Literal["structure", "broker", "listener", "security", "tls", "process", "log"]


class Key(NamedTuple):
    """One key of a configuration file.

    scope: what the key applies to. "listener" and "tls": the listener above it, or the default listener. "security":
    with per_listener_settings the listener above it, else all listeners. Other scopes: the whole broker.
    attribute: the setting that it sets; "" for keys that the reader itself handles. parse: makes the value from the
    text. default, meaning: for the table in the documentation. repeats: each line adds a value.
    """

    name: str
    scope: Scope
    attribute: str
    parse: values.Parser
    default: str
    meaning: str
    repeats: bool = False


_number = values.integer(0)
_KEYS = (
    # Listeners
    Key("listener", "structure", "", values.port_and_address, "127.0.0.1, port 1883",
        "Begins a listener: port, and an IP address, host name or path of a Unix socket behind it; without an "
        "address all of this machine's. The keys of a listener follow it", True),
    Key("port", "structure", "", values.port, "1883",
        "Port of the default listener, the one without a `listener` line"),
    Key("bind_address", "structure", "", values.text, "127.0.0.1", "Address of the default listener"),
    Key("protocol", "listener", "protocol", values.choice("mqtt", "websockets"), "mqtt",
        "`mqtt`, or `websockets` for MQTT over WebSocket"),
    Key("socket_domain", "listener", "socket_domain", values.choice("ipv4", "ipv6"), "both",
        "Only addresses of this kind"),
    Key("socket_mode", "listener", "mode", values.octal, "600", "Permission bits of a Unix socket's file"),
    Key("max_connections", "listener", "max_connections", values.connections, "-1",
        "Connections of this listener at once; -1: no limit of its own"),
    Key("mount_point", "listener", "mount_point", values.mount_point, "",
        "Prefix of every topic of this listener's clients, which access rules include; ends with `/`"),
    Key("websockets_origin", "listener", "origins", values.text, "see meaning",
        "Whose web pages may connect, as `https://example.org`. Without it: on a loopback address pages of this "
        "machine, elsewhere all", True),
    Key("listener_allow_anonymous", "listener", "allow_anonymous", values.boolean, "allow_anonymous",
        "Let clients without credentials in on this listener"),
    Key("listener_auto_id_prefix", "listener", "auto_id_prefix", values.encoded, "auto_id_prefix",
        "How the identifiers begin that this listener gives to clients without one"),
    # TLS
    Key("certfile", "tls", "certfile", values.text, "",
        "The broker's certificate and its chain, PEM. Switches TLS on"),
    Key("keyfile", "tls", "keyfile", values.text, "", "Its private key, PEM, without a passphrase"),
    Key("cafile", "tls", "cafile", values.text, "",
        "Authorities that sign clients' certificates, PEM; also any that certfile lacks of the broker's own chain"),
    Key("capath", "tls", "capath", values.text, "", "The same as a folder made by `openssl rehash`"),
    Key("crlfile", "tls", "crlfile", values.text, "", "Certificates of clients that were revoked, PEM"),
    Key("require_certificate", "tls", "require_certificate", values.boolean, "false",
        "Refuse clients without a valid certificate"),
    Key("tls_version", "tls", "tls_version", values.tls_version, "tlsv1.2", "Lowest version: `tlsv1.2` or `tlsv1.3`"),
    Key("ciphers", "tls", "ciphers", values.text, "OpenSSL's",
        "What TLS 1.2 may use, as `openssl ciphers` prints it"),
    Key("use_identity_as_username", "listener", "use_identity_as_username", values.boolean, "false",
        "The common name of the client's certificate is its user name"),
    Key("use_subject_as_username", "listener", "use_subject_as_username", values.boolean, "false",
        "The whole subject of the client's certificate is its user name: `CN=pump-7,OU=fleet`. use_identity_as_username"
        " takes precedence"),
    # Permissions
    Key("per_listener_settings", "structure", "", values.boolean, "false",
        "true: the keys of this group apply to the listener above them, not to all listeners. Must come before them"),
    Key("allow_anonymous", "security", "allow_anonymous", values.boolean, "see meaning",
        "Let clients without credentials in. true where no listener, password_file or port is set, else false"),
    Key("password_file", "security", "password_file", values.text, "",
        "User names and passwords, as mosquitto_passwd writes them"),
    Key("acl_file", "security", "acl_file", values.text, "",
        "Who may read and write which topics, in mosquitto's syntax"),
    Key("client_id_pattern", "security", "client_id_pattern", values.text, "",
        "What client identifiers must look like: `*`, `?`, and `%u` for the user name"),
    Key("blacklist_file", "security", "blacklist_file", values.text, "",
        "Client identifiers, user names and addresses that are refused"),
    Key("permission_hook", "security", "permission_hook", values.text, "", "`module:Class` in Python that decides"),
    Key("allow_zero_length_clientid", "security", "allow_zero_length_client_id", values.boolean, "true",
        "Give a client without an identifier one"),
    Key("auto_id_prefix", "security", "auto_id_prefix", values.encoded, "auto-", "How such an identifier begins"),
    Key("clientid_prefixes", "broker", "client_id_prefixes", values.encoded, "",
        "How client identifiers must begin", True),
    # Sessions and messages
    Key("max_inflight_messages", "broker", "max_inflight_messages", values.integer(0, 65534, zero=65534), "1000",
        "QoS 1 and 2 messages on the way to one client; 0: as many as there are packet identifiers"),
    Key("max_queued_messages", "broker", "max_queued_messages", _number, "0",
        "Messages that wait for one session; 0: no limit"),
    Key("max_queued_bytes", "broker", "max_queued_bytes", _number, "256000000",
        "Bytes of payload that wait for one session; 0: no limit"),
    Key("max_queued_messages_total", "broker", "max_queued_messages_total", _number, "0",
        "Messages that wait for all sessions; 0: no limit"),
    Key("max_queued_bytes_total", "broker", "max_queued_bytes_total", _number, "0", "The same in bytes"),
    Key("at_queue_limit", "broker", "at_queue_limit", values.choice("slow", "drop"), "slow",
        "At such a limit: `slow` down the publishers, or `drop` and count the message"),
    Key("max_queued_in_memory", "broker", "max_queued_in_memory", values.integer(1), "10000",
        "Messages of one session in memory; the rest of its queue is only on disk"),
    Key("queue_qos0_messages", "broker", "queue_qos0_messages", values.boolean, "false",
        "QoS 0 messages wait for sessions that are away"),
    Key("message_expiry", "broker", "message_expiry", values.duration, "never",
        "How old a message may become: `30s`, `2d`. An older one is not sent: it is dropped and counted when its turn"
        " comes, or when its room is needed. For a client that is away, its turn comes when the client returns"),
    Key("persistent_client_expiration", "broker", "session_expiry", values.duration, "never",
        "When the session of a client that stays away is forgotten: `1h`, `2d`, `3w`, `4m`, `5y`"),
    Key("retain_available", "broker", "retain_available", values.boolean, "true",
        "false: the retain flag is ignored; clients of MQTT 5 that set it are disconnected"),
    Key("server_reference", "broker", "server_reference", values.text, "",
        "Send clients of MQTT 5 to this server, `HOST:PORT`: new ones, and at a reload those that are connected."
        " Clients of MQTT 3.1.1 are served"),
    # Limits
    Key("global_max_connections", "broker", "max_connections", values.all_connections, "100000",
        "Connections of all listeners at once; -1: no limit but that of open files. The limit of open files is raised"
        " for them as far as the system allows. If there are more, a client that is not logged in"
        " [gives way](#before-it-is-logged-in)"),
    Key("max_packet_size", "broker", "max_packet_size", values.integer(20, 268435460), "16777216",
        "Bytes; a client that sends a larger packet is disconnected"),
    Key("max_properties_size", "broker", "max_properties_size", values.integer(1024, 268435455), "131072",
        "Bytes of the properties in a packet of MQTT 5, each counted with 64 more, which makes at most 1,899; a client"
        " that sends more is disconnected"),
    Key("max_connect_properties_size", "broker", "max_connect_properties_size", values.integer(1024, 268435455),
        "16384", "The same for CONNECT, and for the will in a CONNECT"),
    Key("max_topic_levels", "broker", "max_topic_levels", values.integer(1, 65534), "200",
        "Levels of a topic name or filter below its first, as mosquitto limits them; a client that names more is"
        " disconnected"),
    Key("max_shared_subscriptions", "broker", "max_shared_subscriptions", values.integer(1), "1000",
        "Shared subscriptions of one client, each of which gets its own copy of a message; one more is refused with"
        " 0x97"),
    Key("message_size_limit", "broker", "max_payload_size", values.integer(0, 268435455), "0",
        "Bytes of payload and properties, also of a will; a larger message is acknowledged, counted and not routed;"
        " 0: no limit"),
    Key("max_receive_rate", "broker", "max_receive_rate", _number, "0",
        "Messages a second taken from one client; 0: no limit"),
    Key("max_keepalive", "broker", "max_keep_alive", values.integer(10, 65535), "no limit",
        "Seconds; clients that ask for more are watched as if they had asked for this"),
    Key("max_output_buffer", "broker", "max_output_buffer", values.integer(1024), "1048576",
        "Bytes a client may leave unread before it counts as slow"),
    Key("connect_timeout", "broker", "connect_timeout", values.integer(1, 3600), "10",
        "Seconds for TLS, and then for CONNECT with the request of a WebSocket before it"),
    # The store
    Key("persistence", "structure", "", values.boolean, "false",
        "Keep sessions, their messages and retained messages on disk: committed before they are acknowledged"),
    Key("persistence_location", "structure", "", values.text, "current folder",
        "Folder of the store; or `redis://…`: [a store that a standby takes over](broker-store.md#a-standby)"),
    Key("persistence_file", "structure", "", values.text, "umqtt-broker.db",
        "File of the store. Not mosquitto's: the formats differ"),
    Key("autosave_interval", "structure", "", _number, "",
        "Accepted without effect: everything is on disk at once"),
    Key("autosave_on_changes", "structure", "", values.boolean, "", "Accepted without effect, for the same reason"),
    # Observation
    Key("sys_interval", "broker", "sys_interval", _number, "10",
        "Seconds between two publications of `$SYS`; 0: none"),
    Key("http_listener", "structure", "", values.port_and_address, "off",
        "Port, and address if not 127.0.0.1, of metrics, admin API and web page"),
    Key("http_token_file", "broker", "http_token_file", values.text, "beside the store",
        "File with the token that requests must show"),
    Key("log_dest", "log", "destinations", values.log_destination, "stderr",
        "`stderr`, `stdout`, `syslog`, `none`, or `file PATH`", True),
    Key("log_type", "log", "types", values.log_type, "error, warning, notice, information",
        "What is logged: these, `subscribe`, `unsubscribe`, `debug`, `all`, `none`", True),
    Key("log_format", "log", "format", values.choice("text", "json"), "text", "`json`: an object a line"),
    Key("log_timestamp", "log", "timestamp", values.boolean, "true", "Lines of text begin with the time"),
    Key("log_timestamp_format", "log", "timestamp_format", values.text, "ISO 8601", "A format of strftime"),
    Key("connection_messages", "log", "connection_messages", values.boolean, "true",
        "Log who connects and disconnects"),
    # The process
    Key("pid_file", "process", "pid_file", values.text, "", "File with the process id while the broker runs"),
    Key("user", "process", "user", values.text, "",
        "Started as root, the broker becomes this user as soon as its ports are bound"),
    Key("include_dir", "structure", "", values.text, "",
        "Read every `*.conf` of this folder here; in the main file only", True),
)  # fmt: skip

KEYS = {key.name: key for key in _KEYS}

# Keys for which this broker supports only one of mosquitto's values: that value, and why there is no other.
FIXED: dict[str, tuple[values.Parser, Any, str]] = {
    "check_retain_source": (values.boolean, False,
        "a retained message is not taken back with its publisher's rights; remove it with an empty one"),
    "disable_client_cert_date_checks": (values.boolean, False,
        "a certificate is valid only between its dates; renew it"),
    "enable_control_api": (values.boolean, False, "use http_listener"),
    "global_max_clients": (values.integer(-1), -1,
        "use global_max_connections, and persistent_client_expiration for sessions of clients that stay away"),
    "max_inflight_bytes": (values.integer(0), 0,
        "use max_inflight_messages; what a client leaves unread is limited by max_output_buffer"),
    "max_qos": (values.integer(0, 2), 2,
        "this broker has no such limit, of which MQTT 3.1.1 cannot tell a client; limit what clients send instead"),
    "max_topic_alias": (values.integer(0, 65535), 10, "the limit is always 10, the default of mosquitto"),
    "maximum_qos": (values.integer(0, 2), 2, "it is the old name of max_qos"),
    "proxy_protocol_v2_require_tls": (values.boolean, False, "it belongs to enable_proxy_protocol"),
    "set_tcp_nodelay": (values.boolean, True, "small packets leave at once; remove the line"),
    "upgrade_outgoing_qos": (values.boolean, False,
        "a message goes at the lower of its QoS and the subscription's [MQTT-3.8.4-6]; publish at the higher QoS"),
}  # fmt: skip

_PLUGIN = "use permission_hook"
_BRIDGE = "run a bridge beside this broker: docs/migrate.md#bridges"
# Keys of mosquitto that this broker does not support: what to do instead.
UNSUPPORTED = {
    "accept_protocol_versions": "every listener speaks MQTT 5, 3.1.1 and 3.1; remove the line if all may connect",
    "allow_duplicate_messages": "overlapping subscriptions deliver once; remove the line",
    "auth_plugin_deny_special_chars": _PLUGIN,
    "bind_interface": "give the interface's address with listener",
    "ciphers_tls1.3": "the default suites of TLS 1.3 are all safe; remove the line",
    "dhparamfile": "elliptic curves are used; remove the line",
    "enable_proxy_protocol": "let the proxy send TCP as it is; the log then shows the proxy's address",
    "http_dir": "serve files with a web server",
    "log_facility": "remove the line",
    "max_topic_alias_broker": "the limit is the client's Topic Alias Maximum; remove the line",
    "memory_limit": "use max_queued_bytes_total",
    "packet_buffer_size": "remove the line",
    "plugin_load": "write plugin in place of plugin_use, or use permission_hook",
    "plugin_use": "write plugin in its place, or use permission_hook",
    "psk_file": "Python's TLS has no pre-shared keys for servers before 3.13; use certfile, keyfile and cafile",
    "psk_hint": "it belongs to psk_file; use certfile, keyfile and cafile",
    "retain_expiry_interval": "a retained message that has expired is never delivered; remove the line",
    "retained_persistence": "use persistence",
    "retry_interval": "messages are sent again only after a reconnection [MQTT-4.4.0-1]; remove the line",
    "tls_engine": "use keyfile",
    "tls_engine_kpass_sha1": "use keyfile",
    "tls_keyform": "use a keyfile in PEM",
    "use_username_as_clientid": "use client_id_pattern %u",
    "websockets_headers_size": "requests may have 8192 bytes; remove the line",
    "websockets_log_level": "use log_type debug",
}
UNSUPPORTED |= dict.fromkeys(
    (
        *("address", "addresses", "cleansession", "clientid", "connection", "idle_timeout", "keepalive_interval"),
        *("notification_topic", "notifications", "notifications_local_only", "password", "restart_timeout"),
        *("round_robin", "start_type", "threshold", "topic", "try_private", "username"),
    ),
    _BRIDGE,
)
UNSUPPORTED_PREFIXES = {
    "auth_opt_": _PLUGIN,
    "bridge_": _BRIDGE,
    "local_": _BRIDGE,
    "plugin_opt_": _PLUGIN,
    "remote_": _BRIDGE,
}

# The plugins of mosquitto 2.1 that do what a key of this broker does: {name of the plugin's file: that key}. The option
# `plugin_opt_KEY` below the plugin has the value.
PLUGIN_KEYS = ("plugin", "global_plugin", "auth_plugin")
PLUGINS = {"mosquitto_acl_file": "acl_file", "mosquitto_password_file": "password_file"}

# The keys of FIXED and UNSUPPORTED that --lenient ignores with a warning. None of them restricts who connects, what a
# client may do or how much it may use. Every other key, and an unknown one, stays an error: ignoring it could leave
# the broker open.
LENIENT = frozenset({
    "allow_duplicate_messages",
    "dhparamfile",
    "disable_client_cert_date_checks",
    "enable_control_api",
    "http_dir",
    "log_facility",
    "max_topic_alias_broker",
    "packet_buffer_size",
    "retain_expiry_interval",
    "retry_interval",
    "set_tcp_nodelay",
    "tls_keyform",
    "upgrade_outgoing_qos",
    "websockets_headers_size",
    "websockets_log_level",
})  # fmt: skip


def table() -> str:
    """Return the table of keys in Markdown."""
    rows = [f"| `{key.name}` | {key.default} | {key.meaning} |" for key in KEYS.values()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


if __name__ == "__main__":
    print(table())

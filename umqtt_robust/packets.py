"""Packets in their rarer forms, as bytes without the fixed header: MQTT 3.1.1, chapter 3."""


def string(text):
    """A string with its length before it (1.5.3), or any binary field of CONNECT."""
    return bytes((len(text) >> 8, len(text) & 255)) + text


def connect(client_id, keep_alive, clean_session, will=None, username=None, password=None, level=4, purge=False):
    """CONNECT (3.1). keep_alive: seconds. level: 4 for MQTT 3.1.1, 3 for MQTT 3.1.

    will: None, or what Will() returns. purge: only to make the broker forget. The rest is bytes or None.
    """
    if purge:
        clean_session = True
        will = None
    flags = 2 if clean_session else 0
    payload = string(client_id)
    if will:
        topic, message, qos, retain = will
        flags |= 4 | qos << 3 | (32 if retain else 0)
        payload += string(topic) + string(message)
    if username is not None:
        flags |= 128
        payload += string(username)
        if password is not None:  # never without a user name [MQTT-3.1.2-22]
            flags |= 64
            payload += string(password)
    name = b"\0\4MQTT" if level == 4 else b"\0\6MQIsdp"
    return name + bytes((level, flags, keep_alive >> 8, keep_alive & 255)) + payload


def publish(topic, packet_id, payload):
    """PUBLISH (3.3) with a topic name that does not fit into the send buffer. packet_id: 0: none."""
    if packet_id:
        return string(topic) + bytes((packet_id >> 8, packet_id & 255)) + payload
    return string(topic) + payload

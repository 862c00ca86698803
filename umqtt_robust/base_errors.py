"""The errors that every client needs. Programs import them from errors.py, which describes all errors."""


class MQTTError(Exception):
    """Base of all errors of this library."""


class OutboxFull(MQTTError):
    pass


class LinkLost(MQTTError):
    pass


class ProtocolError(LinkLost):
    pass

"""The errors that the smallest client needs; errors.py has the tree of all, and is where programs import them from."""


class MQTTError(Exception):
    """Base of all errors of this library."""


class OutboxFull(MQTTError):
    pass


class LinkLost(MQTTError):
    pass


class ProtocolError(LinkLost):
    pass


class Refused(LinkLost):
    pass

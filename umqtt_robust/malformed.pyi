from .errors import MQTTError

# args: how the message breaks the standard, its topic name
class Malformed(MQTTError): ...

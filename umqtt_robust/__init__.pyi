from .client import Client as Client
from .client import Will as Will
from .errors import MQTTError as MQTTError

__all__ = ["Client", "MQTTError", "Will"]

from .client import Client

class ServerReference:
    def __init__(self, client: Client) -> None: ...

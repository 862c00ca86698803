from .session import Session

class TopicAliases:
    most: int
    max_bytes: int
    def __init__(self, session: Session) -> None: ...

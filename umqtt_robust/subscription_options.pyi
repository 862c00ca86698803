from .session import Session

class SubscriptionOptions:
    def __init__(self, session: Session) -> None: ...
    def set(
        self,
        topic_filter: str | bytes,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None: ...

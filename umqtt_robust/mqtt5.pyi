from .session import Session

class Mqtt5:
    most_aliases: int
    max_alias_bytes: int
    def __init__(self, session: Session) -> None: ...
    def set_options(
        self,
        topic_filter: str | bytes,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int = 0,
    ) -> None: ...

class Group:
    packets: bytes
    level: int
    count: int
    redelivered: int
    link: int
    acks: bytes
    def __init__(self, link: int) -> None: ...

def scan(data: bytes, level: int) -> tuple[int, int, int, bytes, bytes | None]: ...

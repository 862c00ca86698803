from typing import Final

# Client(policy=...)
REJECT: Final = 0
DROP_OLDEST: Final = 1
DROP_NEWEST: Final = 2

# The last argument of Client.on_dropped.
FULL: Final = 0
EXPIRED: Final = 1
UNREADABLE: Final = 2
TOO_LARGE: Final = 3
REFUSED: Final = 4
QUARANTINED: Final = 5

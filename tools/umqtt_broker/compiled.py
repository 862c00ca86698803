"""What mypyc must know about a class when it compiles the broker. In plain Python it means nothing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_):
        """Return a decorator that changes nothing."""
        return lambda decorated: decorated


__all__ = ["mypyc_attr"]

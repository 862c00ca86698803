"""Server-sent events: what has changed is told once, and goes to every viewer."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_VIEWERS = 500
_MOST_WAITING = 500


class TooManyViewers(Exception):
    """No further viewer can be served."""


class Viewer:
    """One open page. What it has not been sent yet is kept by key: a newer value replaces the older one.

    :ivar watch: the topic filter that it shows, "" for none.
    """

    def __init__(self, watch: str) -> None:
        self.watch = watch
        self._waiting: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._has_some = asyncio.Event()

    def put(self, kind: str, key: str, data: str) -> None:
        """Keep an event. Of too many, the oldest go: the page asks for everything anew when it is told of a gap."""
        self._waiting[f"{kind}\0{key}"] = kind, data
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        self._has_some.set()

    async def next(self, within_s: float) -> str:
        """Return the events that wait, as text of the stream; a comment if none comes in time."""
        try:
            await asyncio.wait_for(self._has_some.wait(), within_s)
        except TimeoutError:
            return ": still here\n\n"
        self._has_some.clear()
        waiting, self._waiting = self._waiting, OrderedDict()
        return "".join(f"event: {kind}\ndata: {data}\n\n" for kind, data in waiting.values())


class Hub:
    """All viewers."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()

    @contextmanager
    def viewing(self, watch: str) -> Iterator[Viewer]:
        """Have a viewer within the context.

        :raises TooManyViewers: there are too many.
        """
        if len(self.viewers) >= _MOST_VIEWERS:
            raise TooManyViewers(f"{_MOST_VIEWERS} pages are open: close some")
        viewer = Viewer(watch)
        self.viewers.add(viewer)
        try:
            yield viewer
        finally:
            self.viewers.discard(viewer)

    def tell(self, kind: str, data: object, key: str = "") -> None:
        """Tell every viewer. key: a later event of the same kind and key replaces one that was not sent yet."""
        text = json.dumps(data)
        for viewer in self.viewers:
            viewer.put(kind, key, text)

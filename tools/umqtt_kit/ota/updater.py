"""The conversation with a device that is updated: the command, its reply, and the pieces of files that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umqtt_kit.errors import EXIT_NETWORK, KitError
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import Release
from umqtt_kit.remote import NoReply, Remote

_LARGEST_PIECE = 4096


class Updater(Remote):
    """A Remote that also answers `update/want` with pieces of a release."""

    def __init__(self, access: Access, device_id: str) -> None:
        super().__init__(access, device_id, {"update/want": self._take_want})
        self._release: Release | None = None
        self._on_sent: Callable[[int], object] = lambda size: None

    def serve(self, release: Release, on_sent: Callable[[int], object]) -> None:
        """Answer what the device asks for from now on. on_sent: called with the bytes of each piece."""
        self._release, self._on_sent = release, on_sent

    def update(self, args: Mapping[str, Any], timeout_s: float, command: str = "update") -> dict[str, Any]:
        """Have the device update itself; returns {"slot", "version"} once the new version is confirmed.

        command: "rotate" for new secrets; then it returns {"rotated"}.

        Raises KitError: 4 when that has not happened in time, which the device does not mind; 5 when it failed.
        """
        try:
            return dict(self.result(command, args, timeout_s))
        except NoReply as silence:
            raise KitError(
                f"{self.device_id} did not finish the {command} within {timeout_s:g} s ({silence.reason}); it goes on "
                "by itself — look again later with umqtt cmd ping, or give a longer --timeout",
                EXIT_NETWORK,
            ) from silence

    def _take_want(self, payload: bytes) -> None:
        # Whatever else comes on this topic is for another release, and its owner answers.
        words = payload.decode("ascii", "replace").split()
        content = self._release.objects.get(words[0]) if self._release and len(words) == 3 else None
        if content is None or not (words[1].isdigit() and words[2].isdigit()):
            return
        offset, size = int(words[1]), min(int(words[2]), _LARGEST_PIECE)
        piece = content[offset : offset + size]
        head = f"{words[0]} {offset} {len(content)}\n".encode()
        # Not waited for: what finds no room the device asks for again.
        self.link.offer(self.topic("update/data"), head + piece)
        self._on_sent(len(piece))

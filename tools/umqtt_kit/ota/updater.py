"""The conversation with a device that is updated: the command, its reply, and the pieces of files it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from umqtt_cli.errors import EXIT_NETWORK, KitError
from umqtt_kit.device_commands import NoReply, Remote
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import Release

_LARGEST_PIECE = 4096


class Updater(Remote):
    """A Remote that also answers `update/want` with pieces of a release."""

    def __init__(self, access: Access, device_id: str) -> None:
        super().__init__(access, device_id, {"update/want": self._take_want})
        self._release: Release | None = None
        self._on_sent: Callable[[int], object] = lambda size: None

    def serve(self, release: Release, on_sent: Callable[[int], object]) -> None:
        """From now on send the device the pieces that it asks for. on_sent: called with the bytes of each piece."""
        self._release, self._on_sent = release, on_sent

    def update(self, args: Mapping[str, Any], timeout_s: float, command: str = "update") -> dict[str, Any]:
        """Make the device update itself; return {"slot", "version"} once the new version is confirmed.

        command: "rotate" for new secrets; then {"rotated"} is returned. Raises KitError: exit code 4 if it does not
        finish in time, although the device goes on by itself; 5 if it failed.
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
        # A request for an object of another release is answered by that release's own sender.
        words = payload.decode("ascii", "replace").split()
        content = self._release.objects.get(words[0]) if self._release and len(words) == 3 else None
        if content is None or not (words[1].isdigit() and words[2].isdigit()):
            return
        offset, size = int(words[1]), min(int(words[2]), _LARGEST_PIECE)
        piece = content[offset : offset + size]
        head = f"{words[0]} {offset} {len(content)}\n".encode()
        # Not waited for: if there is no room, the device asks again.
        self.link.offer(self.topic("update/data"), head + piece)
        self._on_sent(len(piece))

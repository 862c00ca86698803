"""A release in a folder or an object store: each file, and the manifest, under the SHA-256 that devices ask for."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from umqtt_cli.errors import EXIT_MISSING, EXIT_NETWORK, EXIT_USAGE, KitError
from umqtt_kit.ota.release import Release

if TYPE_CHECKING:
    from spark_ingest.location import Location

_URL = re.compile(r"https?://[A-Za-z0-9._-]+(?::(\d{1,5}))?(?:/[!-~]*)?")
_ANSWER_S = 20.0


def export(releases: Iterable[Release], place: Location) -> int:
    """Write the objects of these releases to a place, and return how many there are. Raises KitError (exit code 6).

    A manifest is written after the files that it names, so that whoever finds it finds them too.
    """
    from spark_ingest.durable import replace_file
    from spark_ingest.location import reason

    objects: dict[str, bytes] = {}
    for release in releases:
        objects.update(release.objects)  # where the manifest is the last
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in objects.items():
            replace_file(place / name, content)
    except OSError as error:
        raise KitError(f"--export {place}: {reason(error)} — correct that, and run it again", EXIT_MISSING) from error
    return len(objects)


@dataclass(frozen=True)
class Store:
    """An HTTP(S) server or object store to which releases were exported, and from which devices fetch them.

    url: its folder; ca: PEM of an authority that this computer trusts besides its own, as the devices trust theirs.
    Raises KitError (exit code 2) if the URL is none that a device can use.
    """

    url: str
    ca: bytes | None = field(default=None, repr=False)
    _checked: set[str] = field(default_factory=set, repr=False)
    _checking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        # A device appends the name of the object, follows no redirection and sends no password.
        found = _URL.fullmatch(self.url)
        if found is None or int(found[1] or 80) > 65535 or set(self.url) & set("?#@"):
            raise KitError(
                "--url must be the address of a folder, such as https://releases.example.org/pumps/, without password "
                "and query — correct it", EXIT_USAGE,
            )  # fmt: skip

    def folder_with(self, release: Release) -> str:
        """Return the folder's URL with a slash at its end, if the release is there. Raises KitError."""
        folder = self.url.rstrip("/") + "/"
        with self._checking:
            if release.manifest not in self._checked:
                self._check(folder, release)
                self._checked.add(release.manifest)
        return folder

    def _check(self, folder: str, release: Release) -> None:
        # Before any device is told: else each would find out by itself, after three tries.
        handler = urllib.request.HTTPSHandler(context=self._tls())
        opener = urllib.request.build_opener(handler, _NoRedirection)
        missing = [name for name, content in release.objects.items() if _get(opener, folder + name, content) != content]
        if missing:
            raise KitError(
                f"{folder} lacks {len(missing)} of the {len(release.objects)} files of {release.version}, as it is "
                "built here — umqtt ota --export, with the same --version and --sensors, writes them",
                EXIT_NETWORK,
            )

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        try:
            if self.ca is not None:
                context.load_verify_locations(cadata=self.ca.decode("ascii", "replace"))
        except ssl.SSLError as error:
            raise KitError("--ca holds no certificate — give the ca.pem of umqtt certs ca", EXIT_USAGE) from error
        return context


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _get(opener: urllib.request.OpenerDirector, url: str, content: bytes) -> bytes | None:
    """Return what is there, at most a byte more than `content`; None if nothing is there. Raises KitError."""
    try:
        with opener.open(url, timeout=_ANSWER_S) as answer:
            return bytes(answer.read(len(content) + 1))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (403, 404):  # 403: how S3 answers if the list of names is private too
            return None
        what = f"the server answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        what = str(getattr(error, "reason", error))
    raise KitError(f"cannot read {url}: {what} — correct --url, or what the server allows to everybody", EXIT_NETWORK)

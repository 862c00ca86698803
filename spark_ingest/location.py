"""Where tables lie: in a folder, or below a prefix of an object store, which has the part of Path's methods they need.

Delta tables are the same in both. So are the few files beside them (gold's state, the journal of alerts, marks): on an
object store each is an object, and replacing an object is atomic and durable there.

Credentials, region and endpoint come from the environment, as delta-rs reads it (``AWS_ACCESS_KEY_ID``,
``AWS_PROFILE``, ``AWS_ENDPOINT_URL``, …): no command line, file or message of ours holds them.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import UsageError

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs
    from deltalake import DeltaTable

SCHEMES = ("s3", "gs", "az")
OPTIONS = {
    # AWS_PROFILE, files and roles also for another endpoint than AWS's.
    "AWS_FORCE_CREDENTIAL_LOAD": "true",
    # A pipeline that waits for its store begins again after that.
    "max_retries": "4",
    "retry_timeout": "30s",
    "connect_timeout": "5s",
}
"""Of delta-rs, beside what the environment says."""

_URL = re.compile(rf"({'|'.join(SCHEMES)})://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._=-]*[A-Za-z0-9_=-])*/?")
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_REASONS = {
    "<Code>NoSuchBucket<": "there is no such bucket: make it",
    "<Code>InvalidAccessKeyId<": f"the store does not know the access key: {_CREDENTIALS}",
    "<Code>SignatureDoesNotMatch<": f"the secret key does not go with the access key: {_CREDENTIALS}",
    "<Code>ExpiredToken<": f"the credentials have expired: {_CREDENTIALS}",
    "Missing AccessKeyId": f"there are no credentials: {_CREDENTIALS}",
    "Missing SecretAccessKey": f"there are no credentials: {_CREDENTIALS}",
    "no credentials found in chain": f"there are no credentials: {_CREDENTIALS}",
    "loading credentials": f"there are no credentials: {_CREDENTIALS}",
    "169.254.169.254": f"there are no credentials: {_CREDENTIALS}",
    "<Code>AccessDenied<": "the store does not allow it with these credentials",
    "403 Forbidden": "the store does not allow it with these credentials",
    "401 Unauthorized": "the store does not allow it with these credentials",
    "redirect without LOCATION": "the bucket is in another region: set AWS_REGION",
    "<Code>AuthorizationHeaderMalformed<": "the bucket is in another region: set AWS_REGION",
    "URL scheme is not allowed": "its endpoint is plain http: set AWS_ALLOW_HTTP=true where the network is safe",
}
"""What a store's error has in it, which no URL of tables has, and what that means to a person; it does not pass."""
_PASSING = {
    "error sending request": "the store does not answer",
    "operation timed out": "the store does not answer",
    "error decoding response body": "the store broke off its answer",
    "503 Service Unavailable": "the store is too busy",
    "429 Too Many Requests": "the store is too busy",
    "500 Internal Server Error": "the store has an error of its own",
    "502 Bad Gateway": "the store does not answer",
    "504 Gateway Timeout": "the store does not answer",
}
"""Likewise, of what may pass."""
_STATUS = re.compile(r"\s([345]\d\d) [A-Z]")
_FROM_A_STORE = re.compile(
    r"Generic \w+ error|Error performing \w+ http|necessary privileges|loading credentials|no credentials found"
)


class StorePath:
    """A place in an object store, as ``s3://BUCKET/PREFIX``. Methods are those of Path, and raise OSError likewise."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        scheme, _, rest = self._url.partition("://")
        bucket, _, self._key = rest.partition("/")
        self._root = f"{scheme}://{bucket}"

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"StorePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorePath) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __truediv__(self, name: str) -> "StorePath":
        return StorePath(f"{self._url}/{name}")

    @property
    def name(self) -> str:
        return self._url.rpartition("/")[2]

    def absolute(self) -> "StorePath":
        return self

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a prefix is there as soon as something lies below it."""

    def read_bytes(self) -> bytes:
        import pyarrow as pa

        return pa.PythonFile(_handler(self._root).open_input_file(self._key), "r").read()

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Write the object, whole or not at all."""
        stream = _handler(self._root).open_output_stream(self._key, None)
        stream.write(bytes(data))
        stream.close()

    def exists(self) -> bool:
        return self.size() is not None

    def size(self) -> int | None:
        """Bytes of the object; None when there is none."""
        (info,) = self.filesystem().get_file_info([self._key])
        return info.size if info.is_file else None

    def is_dir(self) -> bool:
        return next(self.files(), None) is not None

    def iterdir(self) -> Iterator["StorePath"]:
        for name in sorted({relative.partition("/")[0] for relative, _ in self.files()}):
            yield self / name

    def files(self) -> Iterator[tuple[str, int]]:
        """Every object below: name relative to this, and bytes."""
        import pyarrow.fs as pa_fs

        wanted = pa_fs.FileSelector(self._key, allow_not_found=True, recursive=True)
        for info in self.filesystem().get_file_info(wanted):
            if info.is_file:
                yield info.path.removeprefix(f"{self._key}/"), info.size

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object; one that is not there is no error."""
        _handler(self._root).delete_file(self._key)

    def filesystem(self) -> "pa_fs.FileSystem":
        """The bucket, for pyarrow."""
        import pyarrow.fs as pa_fs
        from deltalake.fs import DeltaStorageHandler

        return pa_fs.PyFileSystem(DeltaStorageHandler(self._root, OPTIONS))

    @property
    def key(self) -> str:
        """The object's name in :meth:`filesystem`."""
        return self._key


Location = Path | StorePath
"""Where tables lie."""


def located(text: str | Location) -> Location:
    """A folder, or an object store's URL.

    :raises UsageError: it is a URL of another kind, or cannot be one. It is not shown: a URL may hold a password.
    """
    if not isinstance(text, str):
        return text
    scheme, found, rest = text.partition("://")
    if not found:
        return Path(text)
    if "@" in rest or "?" in rest:
        raise UsageError(f"credentials and options do not belong into a URL of tables: {_CREDENTIALS}")
    if not _URL.fullmatch(text):
        raise UsageError(
            f"{scheme[:20]!r} does not begin a URL that tables can have: give a folder, or one of "
            f"{', '.join(f'{one}://BUCKET/PREFIX' for one in SCHEMES)} with letters, digits and . _ = - in it"
        )
    # Read when delta-rs is imported, which would print pages of its own beside the line that says what is wrong.
    os.environ.setdefault("RUST_LOG", "error")
    return StorePath(text)


class TablesOption(click.ParamType):
    """A folder of tables, or an object store's URL.

    :param exists: whether a folder must be there.
    """

    name = "DIR|URL"

    def __init__(self, *, exists: bool = False) -> None:
        self._folder = click.Path(exists=exists, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        """The location; fails with one line for people."""
        try:
            found = located(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return found if isinstance(found, StorePath) else self._folder.convert(found, param, ctx)


def open_table(table: Location, version: int | None = None) -> "DeltaTable":
    """The Delta table there.

    :raises DeltaError, OSError: there is none, or it cannot be read.
    """
    from deltalake import DeltaTable

    return DeltaTable(str(table), version=version, storage_options=storage_options(table))


def is_table(table: Location) -> bool:
    """Whether a Delta table is there. :raises OSError: nobody can say."""
    from deltalake import DeltaTable

    return DeltaTable.is_deltatable(str(table), storage_options=storage_options(table))


def storage_options(table: Location) -> dict[str, str] | None:
    """The options with which delta-rs opens it."""
    return OPTIONS if isinstance(table, StorePath) else None


def remove_tree(folder: Location) -> None:
    """Remove what lies below, if anything does."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name, _ in list(folder.files()):
        (folder / name).unlink()


def reason(error: BaseException) -> str:
    """What is wrong, in a few words for a person; nothing of a request or of what it was signed with."""
    said = getattr(error, "strerror", None)
    text = str(error)
    if said or not _FROM_A_STORE.search(text):
        return said or next(iter(text.strip().splitlines()), type(error).__name__)
    known = next((meaning for sign, meaning in (_REASONS | _PASSING).items() if sign in text), None)
    status = _STATUS.search(text)
    return known or (f"the store answered {status[1]}" if status else "the store could not do it")


def may_pass(error: BaseException) -> bool:
    """Whether an error of a table is its store's, and may be over in a while."""
    text = str(error)
    return any(sign in text for sign in _PASSING) and not any(sign in text for sign in _REASONS)


@lru_cache
def _handler(root: str) -> Any:
    # Not pyarrow's wrapper: of delta-rs 1.6 that writes nothing.
    from deltalake._internal import DeltaFileSystemHandler

    return DeltaFileSystemHandler(root, OPTIONS)

"""The location of tables: a folder, or a prefix in an object store, with those methods of Path that are needed.

Delta tables are the same in both. So are the few files beside them (gold's state, the journal of alerts, marks): in
an object store each file is an object, and replacing an object is atomic and durable.

delta-rs reads credentials, region and endpoint from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_PROFILE``,
``AWS_ENDPOINT_URL``, …). They are never part of our command lines, files or messages.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from .errors import UsageError

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs
    from deltalake import DeltaTable
    from deltalake.fs import DeltaStorageHandler

SCHEMES = ("s3", "gs", "az")
OPTIONS = {
    # Use AWS_PROFILE, credential files and roles also with an endpoint that is not AWS's.
    "AWS_FORCE_CREDENTIAL_LOAD": "true",
    # When these retries fail, the pipeline itself tries again.
    "max_retries": "4",
    "retry_timeout": "30s",
    "connect_timeout": "5s",
}
"""Options for delta-rs, in addition to those from the environment."""

_URL = re.compile(rf"({'|'.join(SCHEMES)})://[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._=-]*[A-Za-z0-9_=-])*/?")
# As Spark writes a folder's URL, file:/FOLDER, and as others do.
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(/.*)", re.DOTALL)
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
_OTHER_CREDENTIALS = {
    "Generic MicrosoftAzure error": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "Generic GCS error": "set GOOGLE_APPLICATION_CREDENTIALS",
}
"""What to set instead of _CREDENTIALS, by text in the error."""
_REASONS = {
    "<Code>NoSuchBucket<": "there is no such bucket: make it",
    "<Code>ContainerNotFound<": "there is no such container: make it",
    "Account must be specified": "the account is not known: set AZURE_STORAGE_ACCOUNT_NAME",
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
    "URL scheme is not allowed": "its endpoint is plain http: set AWS_ALLOW_HTTP or AZURE_ALLOW_HTTP to true where the "
    "network is safe",
}
"""Maps text in a store's error to a message for the user, for lasting faults; no table's URL contains such text."""
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
"""The same for faults that may pass."""
_STATUS = re.compile(r"\s([345]\d\d) [A-Z]")
_FROM_A_STORE = re.compile(
    r"Generic \w+ error|Error performing \w+ http|necessary privileges|loading credentials|no credentials found"
)


class StorePath:
    """A place in an object store, such as ``s3://BUCKET/PREFIX``. Its methods are those of Path and raise OSError."""

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
        """Do nothing: a prefix exists as soon as an object is below it."""

    def read_bytes(self) -> bytes:
        with self.filesystem().open_input_file(self._key) as file:
            return file.read()

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Write the object, completely or not at all."""
        import pyarrow as pa

        # delta-rs 1.6 takes bytes only, and pyarrow gives it something else, except when it empties a buffer.
        stream = pa.BufferedOutputStream(_storage(self._root).open_output_stream(self._key), len(data) + 1)
        stream.write(data)
        stream.close()

    def exists(self) -> bool:
        return self.size() is not None

    def size(self) -> int | None:
        """Return the size of the object in bytes; None if it does not exist."""
        (info,) = self.filesystem().get_file_info([self._key])
        return info.size if info.is_file else None

    def is_dir(self) -> bool:
        return next(self.files(), None) is not None

    def iterdir(self) -> Iterator["StorePath"]:
        for name in sorted({relative.partition("/")[0] for relative, _ in self.files()}):
            yield self / name

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the name, relative to this place, and the size in bytes of every object below it."""
        import pyarrow.fs as pa_fs

        wanted = pa_fs.FileSelector(self._key, allow_not_found=True, recursive=True)
        for info in self.filesystem().get_file_info(wanted):
            if info.is_file:
                yield info.path.removeprefix(f"{self._key}/"), info.size

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Remove the object; it is no error if it does not exist."""
        _storage(self._root).delete_file(self._key)

    def filesystem(self) -> "pa_fs.FileSystem":
        """Return the bucket as a file system for pyarrow."""
        import pyarrow.fs as pa_fs

        return pa_fs.PyFileSystem(_storage(self._root))

    @property
    def key(self) -> str:
        """The object's name in :meth:`filesystem`."""
        return self._key


Location = Path | StorePath
"""The location of tables."""


def located(text: str | Location) -> Location:
    """Convert text to a location: a folder, also as ``file:///FOLDER``, or a URL of an object store.

    :raises UsageError: the text is no path, another kind of URL, or a malformed one. The message does not show a URL,
        because it may contain a password.
    """
    if not isinstance(text, str):
        return text
    require_path(text)
    if folder := _FILE_URL.fullmatch(text):
        path = unquote(folder[1])
        require_path(path)
        return Path(path)
    scheme, found, rest = text.partition("://")
    if not found:
        return Path(text)
    if "@" in rest or "?" in rest:
        raise UsageError(f"credentials and options do not belong in the URL of an object store: {_CREDENTIALS}")
    if not _URL.fullmatch(text):
        raise UsageError(
            f"{scheme[:20]!r} does not begin the URL of an object store: give a folder, or one of "
            f"{', '.join(f'{one}://BUCKET/PREFIX' for one in SCHEMES)} with letters, digits and . _ = - in it"
        )
    # delta-rs reads this when it is imported. By default it would print long logs besides our one line of error.
    os.environ.setdefault("RUST_LOG", "error")
    return StorePath(text)


def spool_folder(text: str) -> Path:
    """Return the folder of spools that a path or a ``file:`` URL names.

    :raises UsageError: it is no path, or a URL of an object store.
    """
    folder = located(text)
    if isinstance(folder, StorePath):
        raise UsageError(f"a spool is in a folder, not in {folder}: run the collector where Spark sees its --spool")
    return folder


def require_path(text: str) -> None:
    """Check that text can be the path of a file or folder.

    :raises UsageError: it is empty, or holds U+0000.
    """
    if not text:
        # Path("") is the current folder; text from an unset variable of the shell must not mean that.
        raise UsageError("the path is empty, as a variable of the shell that is not set; the current folder is .")
    if "\0" in text:
        raise UsageError(f"{text!r} holds a character that no path has")


class PathOption(click.Path):
    """click's Path as a :class:`Path`, which also refuses an empty path, and one with U+0000.

    :param options: as of click's Path.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail with an error message of one line."""
        try:
            require_path(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx)


class TablesOption(click.ParamType):
    """The option type of a folder of tables or a URL of an object store.

    :param exists: whether a folder must exist.
    """

    name = "DIR|URL"

    def __init__(self, *, exists: bool = False) -> None:
        self._folder = PathOption(exists=exists, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        """Convert the text to a location, or fail with an error message of one line."""
        try:
            found = located(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return found if isinstance(found, StorePath) else self._folder.convert(found, param, ctx)


def open_table(table: Location, version: int | None = None) -> "DeltaTable":
    """Open the Delta table at a location, at its newest version or at `version`.

    :raises DeltaError, OSError: there is no table, or it cannot be read.
    """
    from deltalake import DeltaTable

    return DeltaTable(str(table), version=version, storage_options=storage_options(table))


def is_table(table: Location) -> bool:
    """Return whether there is a Delta table at a location.

    :raises OSError: the location cannot be read.
    """
    from deltalake import DeltaTable

    return DeltaTable.is_deltatable(str(table), storage_options=storage_options(table))


def storage_options(table: Location) -> dict[str, str] | None:
    """Return the storage options with which delta-rs opens a table; None for a folder."""
    return OPTIONS if isinstance(table, StorePath) else None


def remove_tree(folder: Location) -> None:
    """Remove the location with everything below it; it is no error if nothing exists."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name, _ in list(folder.files()):
        (folder / name).unlink()


def reason(error: BaseException) -> str:
    """Return a short description of an error, without any part of a request or of its signature."""
    said = getattr(error, "strerror", None)
    text = str(error)
    if said or not _FROM_A_STORE.search(text):
        return said or next(iter(text.strip().splitlines()), type(error).__name__)
    known = next((meaning for sign, meaning in (_REASONS | _PASSING).items() if sign in text), "")
    for sign, credentials in _OTHER_CREDENTIALS.items():
        known = known.replace(_CREDENTIALS, credentials) if sign in text else known
    status = _STATUS.search(text)
    return known or (f"the store answered {status[1]}" if status else "the store could not do it")


def may_pass(error: BaseException) -> bool:
    """Return whether an error is one of the object store that may go away by itself."""
    text = str(error)
    return any(sign in text for sign in _PASSING) and not any(sign in text for sign in _REASONS)


@lru_cache
def _storage(root: str) -> "DeltaStorageHandler":
    from deltalake.fs import DeltaStorageHandler

    return DeltaStorageHandler(root, OPTIONS)

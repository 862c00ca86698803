"""umqtt ota --export and --url: a release in a folder that any web server serves, and what may be wrong with it."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit_command import umqtt_here
from release_web import https, serving
from umqtt_kit.ota.release import make_release
from umqtt_kit.ota.store import Store, export

from umqtt_cli.errors import EXIT_NETWORK, EXIT_USAGE, KitError

_OLD = make_release("0.1.0", {"/app/a.mpy": b"a" * 1000, "/lib/b.mpy": b"b"})
_NEW = make_release("0.2.0", {"/app/a.mpy": b"A" * 1000, "/lib/b.mpy": b"b"})


class Server:
    """A web server of a folder. answers: a status for each path that does not get its file; asked: the paths."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, int] = {}
        self.asked: list[str] = []
        server = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *arguments: object) -> None:
                super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

            def do_GET(self) -> None:
                server.asked.append(self.path)
                if self.path not in server.answers:
                    super().do_GET()
                    return
                self.send_response(server.answers[self.path])
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    server = Server(tmp_path / "www")
    yield server
    server.close()


def _folder(store: Store, release=_NEW) -> str:
    return store.folder_with(release)


def test_each_object_lies_under_its_hash_and_releases_share_a_folder(tmp_path: Path, server: Server):
    place = tmp_path / "www" / "pumps"
    assert export([_OLD, _NEW], place) == 5
    for file in place.iterdir():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
    store = Store(f"{server.url}/pumps")
    assert _folder(store, _OLD) == _folder(store) == f"{server.url}/pumps/"


def test_a_release_is_looked_for_once_however_many_devices_fetch_it(tmp_path: Path, server: Server):
    """Planted: the release is looked for again for each device."""
    export([_NEW], tmp_path / "www")
    store = Store(server.url)
    assert _folder(store) == _folder(store)
    assert sorted(server.asked) == sorted(f"/{name}" for name in _NEW.objects)


@pytest.mark.parametrize("name", list(_NEW.objects))
@pytest.mark.parametrize("what", ["missing", "empty", "another of its size"])
def test_an_object_that_is_missing_or_another_is_told_before_a_device_is(
    tmp_path: Path, server: Server, name: str, what: str
):
    """Planted: only the manifest is looked for; only the size is compared."""
    export([_NEW], tmp_path / "www")
    file = tmp_path / "www" / name
    file.unlink()
    if what != "missing":
        file.write_bytes(b"" if what == "empty" else b"?" * len(_NEW.objects[name]))
    with pytest.raises(KitError, match=r"lacks 1 of the 3 files of 0\.2\.0.*umqtt ota --export") as caught:
        _folder(Store(server.url))
    assert caught.value.exit_code == EXIT_NETWORK


def test_an_object_that_only_begins_like_ours_is_another(tmp_path: Path, server: Server):
    """Planted: no more is read than ours has."""
    export([_NEW], tmp_path / "www")
    with (tmp_path / "www" / _NEW.manifest).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(KitError, match="lacks 1 of"):
        _folder(Store(server.url))


@pytest.mark.parametrize(("status", "what"), [(301, "answers 301"), (500, "answers 500"), (401, "answers 401")])
def test_what_no_device_could_use_is_told(tmp_path: Path, server: Server, status: int, what: str):
    """Planted: a redirection is followed, which a device does not do."""
    export([_NEW], tmp_path / "www")
    (tmp_path / "www" / "elsewhere").write_bytes(_NEW.objects[_NEW.manifest])
    server.answers[f"/{_NEW.manifest}"] = status
    with pytest.raises(KitError, match=what) as caught:
        _folder(Store(server.url))
    assert caught.value.exit_code == EXIT_NETWORK


def test_a_store_that_is_not_there_is_told(server: Server):
    server.close()
    with pytest.raises(KitError, match="Connection refused"):
        _folder(Store(server.url))


def test_over_https_the_authority_of_the_devices_is_trusted(tmp_path: Path):
    """Planted: --ca is not used."""
    for words in (("ca",), ("broker", "127.0.0.1")):
        done = umqtt_here(tmp_path, "certs", *words)
        assert done.code == 0, done.stderr
    certs = tmp_path / "certs"
    with serving(_NEW, https(certs / "broker" / "cert.pem", certs / "broker" / "key.pem")) as url:
        assert _folder(Store(url, (certs / "ca.pem").read_bytes())) == url
        with pytest.raises(KitError, match="certificate verify failed"):
            _folder(Store(url))
        with pytest.raises(KitError, match="--ca holds no certificate"):
            _folder(Store(url, b"none"))


@pytest.mark.parametrize(
    "url",
    ["", "ftp://a/", "http://", "http://a:99999/", "http://me:secret@a/", "https://a/b?sig=secret", "http://a/b c"],
)
def test_a_url_that_no_device_could_use_is_refused_and_not_shown(url: str):
    with pytest.raises(KitError, match="--url") as caught:
        Store(url)
    assert caught.value.exit_code == EXIT_USAGE and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["pump-7", "--export", "there"], "--export sends nothing"),
        (["--fleet", "*", "--export", "there"], "--export sends nothing"),
        (["--export", "there", "--url", "http://a/"], "--export sends nothing"),
        (["--export", "file"], "file"),
        (["--export", "file/below"], "--export file/below"),
        (["--export", "ftp://there"], "object store"),
        (["--export", "there", "--version", "a b"], "--version"),
        (["pump-7", "--url", "a"], "--url"),
    ],
)
def test_bad_usage_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str):
    (tmp_path / "file").write_text("")
    if "--export" in arguments:
        monkeypatch.setenv("UMQTT_USERNAME", "me")  # no broker is used, so no password is asked for
    ended = umqtt_here(tmp_path, "ota", *arguments)
    assert ended.code != 0 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and named in ended.stderr

"""An update reaches a running board over the air, through `umqtt ota`; one that fails is rolled back.

With UMQTT_FULL_SWEEPS=1 more kinds of failure are tried.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from impatient import builds_impatient
from kit_command import Ended, umqtt_here
from object_store import ObjectStore, use
from owner import own
from paho_subscriber import Subscriber
from release_web import serving
from umqtt_kit.app_bundle import INIT, AppBundle
from umqtt_kit.data import firmware_folder
from umqtt_kit.deploy import build as build_module
from umqtt_kit.deploy.build import build
from umqtt_kit.keys import Keys
from umqtt_kit.mpy_cross import compile_file
from umqtt_kit.mqtt import Access
from umqtt_kit.ota.release import Release, make_release
from umqtt_kit.ota.updater import Updater
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import EXIT_DEVICE, EXIT_NETWORK, KitError

_ID = "pump-7"
_OLD = "0.0.9"
_NEW = re.findall(r'^VERSION = "(.+)"', (firmware_folder() / "app/__init__.py").read_text(), re.MULTILINE)[0]
_MORE_SIZE = 4000


@cache
def _files() -> dict[str, bytes]:
    return dict(build("UNIX", ()).files)


def _compiled(folder: Path, name: str, source: str) -> bytes:
    path = folder / name
    path.write_text(source)
    compile_file(path, path.with_suffix(".mpy"))
    return path.with_suffix(".mpy").read_bytes()


def _package(version: str) -> str:
    """Return the source of app/__init__ as it is deployed, with another version in it."""
    source = AppBundle(build_module.firmware_folder()).sources[INIT]
    assert source.count(f"VERSION = '{_NEW}'") == 1
    return source.replace(f"VERSION = '{_NEW}'", f"VERSION = '{version}'")


@pytest.fixture(scope="module", autouse=True)
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from builds_impatient(tmp_path_factory.mktemp("firmware"), _NEW)


@contextmanager
def _running(
    tmp_path: Path, broker: int, monkeypatch: pytest.MonkeyPatch, model: str = "UNIX", heap: str = "256K"
) -> Iterator[VirtualBoard]:
    try:
        board = VirtualBoard(tmp_path / "flash.img", board=model, heap=heap)
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))
    settings = {
        "device_id": _ID,
        "brokers": [f"mqtt://127.0.0.1:{broker}"],
        "interval_ms": 200,
        "ntp_host": "",
        "board": model,
    }
    files: dict[str, bytes | Path] = dict(_files() if model == "UNIX" else build(model, ()).files)
    with board:
        board.install(
            {
                **files,
                "/app/__init__.mpy": _compiled(tmp_path, "__init__.py", _package(_OLD)),
                "/settings.json": json.dumps(settings).encode(),
                "/secrets.json": json.dumps(own(_ID, tmp_path, monkeypatch)).encode(),
            }
        )
        board.start()
        yield board


@pytest.fixture
def board(tmp_path: Path, broker: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualBoard]:
    with _running(tmp_path, broker, monkeypatch) as board:
        yield board


def _ota(broker: int, *arguments: str) -> Ended:
    return umqtt_here(Path.cwd(), "ota", _ID, "--broker", f"mqtt://127.0.0.1:{broker}", *arguments)


def _updater(broker: int) -> Updater:
    return Updater(Access((f"mqtt://127.0.0.1:{broker}",)), _ID)


def _status(subscriber: Subscriber) -> dict:
    return subscriber.payloads("status")[-1]


def test_a_version_comes_through_the_broker_and_goes_again(board: VirtualBoard, broker: int, subscriber: Subscriber):
    """Planted: confirming a version forgets the previous one; the same version is tried once more."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    ended = _ota(broker, "--json")
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "device": _ID, "before": _OLD, "already": False, "slot": "a", "version": _NEW
    }  # fmt: skip
    assert subscriber.wait_for(lambda: "trial" not in _status(subscriber) and _status(subscriber)["fw"] == _NEW)
    same = _ota(broker)
    assert (same.code, same.stdout) == (0, f"{_ID} runs {_NEW} already; nothing was changed\n")
    ended = _ota(broker, "--rollback")
    assert ended.code == 0, ended.stderr
    assert ended.stdout == f"{_ID} runs {_OLD} in slot base, confirmed\n"
    # Only once: the version it came from was left on purpose.
    again = _ota(broker, "--rollback")
    assert again.code == EXIT_DEVICE and "no version before this one" in again.stderr, again.stderr
    # Nothing was lost meanwhile: each boot counted from 0 without a gap.
    received = subscriber.received
    for boot in {one.boot for one in received}:
        seqs = sorted(one.seq for one in received if one.boot == boot)
        assert seqs == list(range(len(seqs)))


def test_a_flash_without_room_for_three_versions_takes_one_update_after_another(
    tmp_path: Path, broker: int, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
):
    """A Pico W's flash holds the version of the cable and one more. Planted: the base version is not run first."""
    with _running(tmp_path, broker, monkeypatch, "RPI_PICO_W") as board:
        assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
        for version in ("0.3.1", "0.3.2", "0.3.3"):
            ended = _ota(broker, "--version", version)
            assert (ended.code, ended.stdout) == (0, f"{_ID} runs {version} in slot a, confirmed\n"), ended.stderr
        assert board.lives == 6  # in between, each later update ran the base version


def test_a_version_comes_from_an_object_store(
    board: VirtualBoard, broker: int, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
):
    """Planted: what is missing is told to the board all the same; only boards with TLS have a release there; an update
    over plain HTTP is refused although update_url is not set."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    with ObjectStore() as store:
        use(store, monkeypatch)
        folder = f"{store.endpoint}/readings/pumps"
        before = _ota(broker, "--url", folder)
        assert before.code == EXIT_NETWORK and "umqtt ota --export" in before.stderr, before.stderr
        ended = umqtt_here(Path.cwd(), "ota", "--export", "s3://readings/pumps", "--json")
        assert ended.code == 0, ended.stderr
        exported = json.loads(ended.stdout)
        assert (exported["version"], len(exported["manifests"])) == (_NEW, 8)
        assert _status(subscriber)["slot"] == "base"  # the command that failed told it nothing
        ended = _ota(broker, "--url", folder)
        assert ended.code == 0, ended.stderr
        assert ended.stdout == f"{_ID} runs {_NEW} in slot a, confirmed\n"


def test_a_power_cut_in_the_middle_only_delays_it(
    board: VirtualBoard, broker: int, subscriber: Subscriber, tmp_path: Path
):
    """Planted: a file that is already complete in the new slot is fetched again."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    more = {
        f"/app/more_{n}.mpy": _compiled(tmp_path, f"more_{n}.py", f"TEXT = '{n}{'x' * _MORE_SIZE}'") for n in range(6)
    }
    release = make_release(_NEW, {**_files(), **more})
    sent, cuts = 0, [5 * _MORE_SIZE, 9 * _MORE_SIZE]

    def on_sent(size: int) -> None:
        nonlocal sent
        sent += size
        if cuts and sent > cuts[0]:
            cuts.pop(0)
            board.kill()
            board.start()

    with _updater(broker) as updater:
        updater.serve(release, on_sent)
        args = {"mqtt": True, "sha256": release.manifest, "version": _NEW}
        assert updater.update(args, WAIT_LIMIT_S) == {"slot": "a", "version": _NEW}
    assert not cuts
    # The files that the board did not have, and twice more the file that was being written.
    had = {content for path, content in _files().items() if path != "/app/__init__.mpy"}
    new = [len(each) for each in release.objects.values() if each not in had]
    assert sent <= sum(new) + 2 * max(new)


def test_a_version_that_crashes_later_is_left_from_safe_mode(
    board: VirtualBoard, broker: int, subscriber: Subscriber, tmp_path: Path
):
    """Planted: the version that runs, in safe mode the base version, counts as the one to leave."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    crash = "import json\nif json.load(open('/settings.json')).get('log_level') == 'debug': raise ValueError('later')\n"
    package = _compiled(tmp_path, "__init__.py", f"{_package(_NEW)}\n{crash}")
    release = make_release(_NEW, {**_files(), "/app/__init__.mpy": package})
    with _updater(broker) as updater:
        updater.serve(release, lambda size: None)
        updater.update({"mqtt": True, "sha256": release.manifest, "version": _NEW}, WAIT_LIMIT_S)
        updater.result("set", {"key": "log_level", "value": "debug"}, WAIT_LIMIT_S)
    board.kill()
    board.start()
    assert subscriber.wait_for(lambda: _status(subscriber)["reason"] == "safe mode")
    ended = _ota(broker, "--rollback")
    assert (ended.code, ended.stdout) == (0, f"{_ID} runs {_OLD} in slot base, confirmed\n"), ended.stderr
    again = _ota(broker, "--rollback")
    assert again.code == EXIT_DEVICE and "no version before this one" in again.stderr, again.stderr


def _bad_release(folder: Path, files: dict[str, str]) -> Release:
    changed = {f"/app/{name}.mpy": _compiled(folder, f"{name}.py", source) for name, source in files.items()}
    return make_release("0.2.0", {**_files(), **changed})


_BAD = {
    "crashes": "raise ValueError('a bad version')",
    "hangs": "import machine\nmachine.WDT(timeout=300)\nwhile True: pass",
    "resets": "import machine\nmachine.reset()",
}


@pytest.mark.parametrize("way", list(_BAD) if os.environ.get("UMQTT_FULL_SWEEPS") else list(_BAD)[:1])
def test_a_version_that_fails_is_started_once_and_given_up(
    board: VirtualBoard, broker: int, subscriber: Subscriber, tmp_path: Path, way: str
):
    """Planted: a start on trial is not counted."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    release = _bad_release(tmp_path, {"application": _BAD[way]})
    with _updater(broker) as updater, serving(release) as url:
        args = {"url": url, "sha256": release.manifest, "version": "0.2.0"}
        with pytest.raises(KitError, match="rolled back: a was started and not confirmed") as failed:
            updater.update(args, WAIT_LIMIT_S)
    assert failed.value.exit_code == EXIT_DEVICE
    assert subscriber.wait_for(lambda: _status(subscriber)["online"] and "rolled_back" in _status(subscriber))
    status = _status(subscriber)
    assert (status["fw"], status["slot"], status["rolled_back"]) == (_OLD, "base", "a")
    if way == "crashes":
        assert subscriber.wait_for(lambda: any("a bad version" in one["text"] for one in subscriber.payloads("log")))


def test_who_has_no_key_updates_nothing(board: VirtualBoard, broker: int, subscriber: Subscriber, monkeypatch):
    """Planted: a board accepts unsigned updates, or an older version."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    older = _ota(broker, "--version", "0.0.1")
    assert older.code == EXIT_DEVICE and "is older than" in older.stderr, older.stderr
    monkeypatch.setenv("UMQTT_KEYS", "/nowhere.json")
    for arguments in ((), ("--rollback",)):
        ended = _ota(broker, *arguments)
        assert ended.code == EXIT_DEVICE and "must be signed" in ended.stderr, ended.stderr
    assert board.lives == 1


def test_key_and_password_are_rotated_over_the_air_and_what_fails_goes_back(
    board: VirtualBoard, broker: int, subscriber: Subscriber, tmp_path: Path
):
    """Planted: the command stores the new key before the board has it; the broker can read the new secrets."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    where = ("--broker", f"mqtt://127.0.0.1:{broker}")
    before = Keys().read()[_ID]["key"]
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, *where)
    assert (ended.code, ended.stdout) == (0, f"{_ID} uses its new key\n"), ended.stderr
    after = Keys().read()[_ID]
    assert after["key"] != before and "other" not in after
    # The broker there accepts any client: this shows that the file arrives, sealed.
    new = tmp_path / "new.json"
    new.write_text(json.dumps({"mqtt": {"username": "pump", "password": "very secret"}}))
    new.chmod(0o600)
    ended = umqtt_here(Path.cwd(), "keys", "rotate", _ID, "--from", str(new), *where)
    assert (ended.code, ended.stdout) == (0, f"{_ID} uses mqtt\n"), ended.stderr
    board.stop()
    secrets = json.loads(board.read("/secrets.json"))
    assert secrets["mqtt"] == {"username": "pump", "password": "very secret"}
    assert secrets["commands"]["key"] == after["key"]
    there = board.files()
    assert not [name for name in there if name.endswith((".was", ".new", "rotation"))]
    as_installed = {path for path, content in _files().items() if there.get(path) == len(content)}
    for path in there.keys() - as_installed:
        assert path == "/secrets.json" or b"very secret" not in board.read(path), path


def test_a_rotation_that_was_broken_off_is_ended_with_the_key_that_the_board_has(
    board: VirtualBoard, broker: int, subscriber: Subscriber
):
    """Planted: a wrong signature ends it although there is another key."""
    assert subscriber.wait_for(lambda: len(subscriber.records) > 2)
    has = Keys().read()[_ID]["key"]
    Keys().offer(_ID)
    Keys().swap(_ID)
    ended = umqtt_here(Path.cwd(), "cmd", _ID, "reboot", "--broker", f"mqtt://127.0.0.1:{broker}")
    assert ended.code == 0, ended.stderr
    assert Keys().read()[_ID]["key"] == has


def test_a_device_that_is_not_there_is_exit_code_4(broker: int, monkeypatch: pytest.MonkeyPatch):
    """Planted: a device that does not answer gives exit code 1."""
    monkeypatch.setattr("umqtt_kit.ota.order._ANSWER_S", 0.3)
    from click.testing import CliRunner
    from umqtt_kit.commands.ota import ota

    result = CliRunner().invoke(ota, ["nobody", "--broker", f"mqtt://127.0.0.1:{broker}"])
    assert isinstance(result.exception, KitError)
    assert result.exception.exit_code == EXIT_NETWORK
    assert "nobody did not answer" in str(result.exception)

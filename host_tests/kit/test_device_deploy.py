"""umqtt deploy sends what changed, removes what is gone, and may be interrupted anywhere."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from at_cloud import provisioned
from broker_here import broker_here
from cable import Cable, broker, deployed
from kit_command import umqtt_here
from live_logs import following
from umqtt_broker.cli.authority import Authority
from umqtt_kit.deploy.apply import apply
from umqtt_kit.deploy.build import Build, check_compatible
from umqtt_kit.deploy.build import build as build_files
from umqtt_kit.deploy.filesets import library_modules, optional_modules
from umqtt_kit.deploy.plan import RECORD, make_plan, read_record
from umqtt_kit.device import Board
from umqtt_kit.device import board as board_module
from umqtt_testkit.board import VirtualBoard
from umqtt_testkit.cloud_broker import CloudBroker
from umqtt_testkit.interpreter import MicroPythonMissing
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.ports import bound
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError

SEED = 21
_PROMPT = ">>> "


def small_set(version: str, *names: str) -> Build:
    """Return a firmware of a few files that prints the version of each file, so that a mixture shows."""
    files = {f"/app/{name}.py": f"version = {version!r}\n".encode() + b"#" * 900 for name in names}
    files["/zone.py"] = f"version = {version!r}\n".encode()  # in alphabetical order it would be sent after main.py
    imports = "import zone\n" + "".join(f"from app import {name}\n" for name in names)
    shown = " + ' ' + ".join(f"{name}.version" for name in ("zone", *names))
    files["/boot.py"] = f"# boot of {version}\n".encode()
    files["/main.py"] = f"{imports}print('runs', {version!r}, {shown})\n".encode()
    return Build(version, "UNIX", (), dict(sorted(files.items())))


OLD, NEW = small_set("1", "a", "b", "gone"), small_set("2", "a", "b", "fresh")
RUNS_OLD, RUNS_NEW = "runs 1 1 1 1 1", "runs 2 2 2 2 2"


def deploy_set(port: str, build: Build, *, replace_files: bool = False) -> list[str]:
    """Deploy a build; return the paths that were sent."""
    with Board(port, restart=False) as board:
        plan = make_plan(board, read_record(board), build, replace=replace_files)
        apply(board, plan)
        return list(plan.send)


@pytest.fixture
def virtual(tmp_path: Path) -> Iterator[VirtualBoard]:
    try:
        with VirtualBoard(tmp_path / "flash.img") as board:
            board.start()
            yield board
    except MicroPythonMissing as missing:
        pytest.skip(str(missing))


def said_after_power_cycle(virtual: VirtualBoard) -> str:
    """Return what the board prints from being switched on to the prompt."""
    virtual.kill()
    before = len(virtual.output)
    virtual.start()
    virtual.wait_for(_PROMPT)
    return virtual.output[before:]


def test_only_what_changed_is_sent_and_what_is_gone_is_removed(virtual: VirtualBoard):
    virtual.stop()
    virtual.install({"state/boot-a": b"kept", "settings.json": b"{}", "ota/current": b"a", "ota/a/app/x.py": b"old"})
    virtual.start()
    assert deploy_set(virtual.port, OLD) == list(OLD.files)
    assert deploy_set(virtual.port, OLD) == []
    changed = replace(OLD, files={**OLD.files, "/app/a.py": b"version = 'x'\n"})
    assert deploy_set(virtual.port, changed) == ["/app/a.py"]
    sent = deploy_set(virtual.port, NEW)
    assert sent == ["/app/a.py", "/app/b.py", "/app/fresh.py", "/boot.py", "/main.py", "/zone.py"]
    with Board(virtual.port) as board:
        listed = {path for path, size in board.list_files().items() if size >= 0}
        assert listed == {*NEW.files, RECORD, "/state/boot-a", "/settings.json"}
        record = read_record(board)
        assert record.complete and record.files == {
            path: hashlib.sha256(content).hexdigest() for path, content in NEW.files.items()
        }
        # Damage by something other than a deployment is found by hashing, whatever the record says.
        board.put("/app/b.py", b"version = 'damaged'")
    assert deploy_set(virtual.port, NEW) == ["/app/b.py"]
    assert RUNS_NEW in said_after_power_cycle(virtual)


def test_interrupted_anywhere_the_board_runs_old_or_new_or_nothing_and_is_deployed_to_again(
    virtual: VirtualBoard, monkeypatch: pytest.MonkeyPatch
):
    class Interrupted(BaseException):
        pass

    print("seed", SEED)
    chance = random.Random(SEED)
    longest_stride = 1 if os.environ.get("UMQTT_FULL_SWEEPS") else 8
    calls, limit = 0, 0
    execute = Board.exec

    def cut(self: Board, *arguments, **options) -> str:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise Interrupted
        return execute(self, *arguments, **options)

    deploy_set(virtual.port, OLD)
    seen: set[str] = set()
    ended = False
    while not ended:
        limit, calls = limit + chance.randint(1, longest_stride), 0
        with monkeypatch.context() as patch:
            patch.setattr(Board, "exec", cut)
            try:
                deploy_set(virtual.port, NEW)
                ended = True
            except Interrupted:
                pass
        said = said_after_power_cycle(virtual)
        state = "old" if RUNS_OLD in said else "new" if RUNS_NEW in said else "nothing"
        assert "runs" not in said or state != "nothing", f"a mixture after {limit} steps: {said}"
        assert "Traceback" not in said, f"after {limit} steps: {said}"
        seen.add(state)
        if ended:
            break
        # Continuing with NEW (every other time) and going back to OLD each remove the other version's leftover file.
        for build, left_over in ((NEW, "/app/gone.py"), (OLD, "/app/fresh.py"))[limit % 2 :]:
            with Board(virtual.port, restart=False) as board:
                apply(board, make_plan(board, read_record(board), build, replace=False))
                assert left_over not in board.list_files(), f"after {limit} steps"
    print(limit, "steps")
    assert limit > 15
    assert seen == {"old", "nothing", "new"}


def test_the_power_cut_at_any_moment_is_no_different(virtual: VirtualBoard, monkeypatch: pytest.MonkeyPatch):
    print("seed", SEED)
    chance = random.Random(SEED)
    execute = Board.exec
    deploy_set(virtual.port, OLD)
    began = time.monotonic()
    deploy_set(virtual.port, NEW)
    takes_s = time.monotonic() - began
    for _ in range(5):
        deploy_set(virtual.port, OLD)
        cut_after_s = chance.uniform(0, takes_s)
        with monkeypatch.context() as patch:
            # Nothing answers any more; finding that out does not need ten seconds.
            patch.setattr(Board, "exec", lambda self, source, timeout_s=0.5: execute(self, source, min(timeout_s, 0.5)))
            patch.setattr(board_module, "_ATTEMPTS_WITHIN_S", (0.5,))
            power = threading.Timer(cut_after_s, virtual.kill)
            power.start()
            with contextlib.suppress(KitError):
                deploy_set(virtual.port, NEW)
            power.join()
        said = said_after_power_cycle(virtual)
        whole = RUNS_NEW in said or RUNS_OLD in said
        assert whole or ("runs" not in said and "Traceback" not in said), f"cut after {cut_after_s} s: {said}"
        deploy_set(virtual.port, NEW)
        assert RUNS_NEW in said_after_power_cycle(virtual)


def test_a_killed_command_is_simply_run_again(cable: Cable):
    with cable.board("bench") as virtual:
        command = [sys.executable, "-m", "umqtt_cli", "deploy", "--no-wait"]
        with subprocess.Popen(command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            # Sending has begun when the board reports its raw REPL and executes the first write.
            virtual.wait_for("raw REPL", WAIT_LIMIT_S)
            virtual.wait_for("False", WAIT_LIMIT_S)  # the answer to whether any file exists: none
            process.send_signal(signal.SIGKILL)
        answer = cable.umqtt("deploy", "--no-wait", "--json")
        assert answer.code == 0, answer.stderr
        assert answer.json["changed"]
        again = cable.umqtt("deploy", "--no-wait", "--json").json
        assert (again["changed"], again["send"], again["remove"]) == (False, {}, [])


def test_the_watchdog_of_the_board_does_not_bite_while_the_firmware_is_compiled(
    cable: Cable, monkeypatch: pytest.MonkeyPatch
):
    """Planted: deploy without Board.fed()."""
    fed, execute = threading.Semaphore(0), Board.exec

    def noted(self: Board, source: str, *arguments, **options) -> str:
        done = execute(self, source, *arguments, **options)
        if source == "_u_feed()":
            fed.release()
        return done

    def slowly(*_: object, **__: object) -> Build:
        # Three feedings, a second apart: longer than the watchdog's timeout.
        assert all(fed.acquire(timeout=WAIT_LIMIT_S) for _ in range(3))
        return OLD

    monkeypatch.setattr(Board, "exec", noted)
    monkeypatch.setattr("umqtt_kit.deploy.build.build", slowly)
    settings = {"brokers": ["mqtt://127.0.0.1:1"], "watchdog_ms": 2000}
    with cable.board("bench", files={"settings.json": json.dumps(settings).encode()}) as virtual:
        answer = cable.umqtt("deploy", "--no-wait")
        assert answer.code == 0, answer.stderr
        virtual.wait_for(RUNS_OLD)


def test_programs_and_modules_of_others_are_refused_and_replaced_only_when_told(virtual: VirtualBoard):
    with Board(virtual.port, restart=False) as board:
        board.put("/boot.py", b"# a fresh board's boot.py\n#import esp\n\n")
        board.put("/main.py", b"print('mine')")
        board.put("/app/lib.py", b"version = 'mine'")
    compiled = Build("3", "UNIX", (), {"/app/lib.mpy": b"M\x06", "/boot.py": b"# ours", "/main.py": b"print('ours')"})
    with pytest.raises(KitError, match=r"/main\.py on .* overwritten; /app/lib\.py .* --replace") as caught:
        deploy_set(virtual.port, compiled)
    assert caught.value.exit_code == 5
    with Board(virtual.port, restart=False) as board:
        assert board.get("/main.py") == b"print('mine')"
        assert RECORD not in board.list_files()
    assert deploy_set(virtual.port, compiled, replace_files=True) == list(compiled.files)
    with Board(virtual.port, restart=False) as board:
        assert board.get("/app/lib.py") is None
        # Each of them alone is a reason.
        for path in (RECORD, "/main.py"):
            board.remove([path])
        board.put("/app/lib.py", b"version = 'mine'")
    with pytest.raises(KitError, match=r"/app/lib\.py would be used instead"):
        deploy_set(virtual.port, compiled)
    with Board(virtual.port, restart=False) as board:
        board.remove(["/app/lib.py"])
        board.put("/main.py", b"print('mine')")
    with pytest.raises(KitError, match=r"/main\.py on the board would be overwritten, and"):
        deploy_set(virtual.port, compiled)


def test_a_main_py_that_was_edited_on_the_board_is_refused_too(virtual: VirtualBoard):
    """Planted: a file that was deployed once may always be overwritten."""
    deploy_set(virtual.port, OLD)
    with Board(virtual.port, restart=False) as board:
        board.put("/main.py", OLD.files["/main.py"] + b"print('mine')\n")
    with pytest.raises(KitError, match=r"/main\.py on the board would be overwritten, and"):
        deploy_set(virtual.port, NEW)
    assert deploy_set(virtual.port, NEW, replace_files=True)
    assert "/main.py" in deploy_set(virtual.port, OLD)


def test_a_flash_without_room_is_refused_before_anything_changes(virtual: VirtualBoard):
    deploy_set(virtual.port, OLD)
    large = replace(NEW, files={**NEW.files, "/app/large.py": b"#" * 3_000_000})
    with pytest.raises(KitError, match="KB free and needs about"):
        deploy_set(virtual.port, large)
    assert RUNS_OLD in said_after_power_cycle(virtual)


def test_a_board_that_cannot_load_what_is_compiled_here_is_told_before(virtual: VirtualBoard):
    with Board(virtual.port) as board:
        info = board.info()
    check_compatible(info)
    with pytest.raises(KitError, match=r"loads \.mpy version 5, and mpy-cross here makes version 6"):
        check_compatible(replace(info, mpy_version=5))
    with pytest.raises(KitError, match=r"has MicroPython 1\.24\.1, and needs 1\.25 or newer"):
        check_compatible(replace(info, version="1.24.1"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (None, {"cloud", "tls", "websocket"}),
        ({"brokers": ["mqtt://a"]}, set()),
        ({"brokers": ["mqtts://a"]}, {"tls"}),
        ({"brokers": ["mqtt://a"], "topics": "aws"}, {"cloud"}),
        ({"brokers": ["mqtt://a"], "update_url": "https://a/"}, {"tls"}),
    ],
)
def test_the_settings_decide_on_optional_modules(settings, expected):
    assert optional_modules(settings) == expected
    modules = library_modules(["client", "tls", "websocket", "simple", "a_new_one"], expected)
    assert modules == sorted({"client", "a_new_one", *expected} - {"cloud"})


def test_a_board_gets_the_drivers_that_its_settings_name_and_what_they_import():
    """Planted: only what a driver imports itself goes along, and not what that imports."""
    wanted = {"i2c", "i2c_names", "ina219", "ina226", "relay"}
    sensors = [{"module": "ina226"}, {"module": "relay"}, {"module": "own"}]
    optional = optional_modules({"brokers": ["mqtt://a"], "sensors": sensors})
    assert optional == wanted
    files = {Path(path).stem for path in build_files(None, optional).files if path.startswith("/app/sensors/")}
    assert files == wanted | {"chip"}


def test_the_whole_firmware_is_deployed_and_its_first_reading_awaited(cable: Cable, tmp_path: Path):
    with broker(tmp_path) as port:
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 200}
        with cable.board("bench", files={"settings.json": json.dumps(settings).encode()}):
            plan = cable.umqtt("deploy", "--dry-run", "--json").json
            assert plan["send_bytes"] > 30_000 and not plan["changed"]
            first = cable.umqtt("deploy", "--json")
            assert first.code == 0, first.stderr
            assert first.json["send"] == plan["send"], "a dry run changes nothing, and tells the truth"
            assert first.json["reading"]["id"] == "pump-7"
            # The outbox of the old boot is sent first; the reading that counts is of the new boot.
            second = cable.umqtt("deploy", "--json", "--timeout", "60")
            assert (second.code, second.json["changed"]) == (0, False)
            answers = (first, second)
            boots = [int(answer.json["reading"]["boot"].partition("-")[0]) for answer in answers]
            assert boots == sorted(set(boots))
            assert cable.umqtt("doctor").code == 0
            # Planted: the exit code is 0 whatever the reading says.
            cable.umqtt("provision", "--set", 'sensors=[{"module": "sht3x", "scl": 22, "sda": 21}]')
            third = cable.umqtt("deploy", "--timeout", "60")
            assert third.code == 7 and "sensors failed in it — see which, and why: umqtt doctor" in third.stderr, third
            found = cable.umqtt("doctor")
            assert found.code == 5 and "nothing answers at 0x44" in found.stdout.replace("\n", " "), found


def test_deploy_goes_on_as_logs_until_ctrl_c(cable: Cable):
    """Planted: the log is shown before the deployment has released the port."""
    settings = {"device_id": "pump-7", "brokers": ["mqtt://127.0.0.1:1"]}
    with cable.board("bench", files={"settings.json": json.dumps(settings).encode()}):
        with following("--no-wait", "--logs", command="deploy") as deployed:
            deployed.until(r"bench 0 info pump-7 \S+, boot \d")
            assert deployed.interrupt() == 0
        for other in ("--dry-run", "--json"):
            assert cable.umqtt("deploy", "--logs", other).code == 2


def test_a_firmware_that_stops_at_once_is_told_at_once(cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    main = b"import nothing_there\n"
    monkeypatch.setattr("umqtt_kit.deploy.build.build", lambda *_, **__: Build("9", "UNIX", (), {"/main.py": main}))
    with broker(tmp_path) as port:
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"]}
        with cable.board("bench", files={"settings.json": json.dumps(settings).encode()}):
            # Longer than this test may run.
            answer = cable.umqtt("deploy", "--timeout", "1000")
            assert answer.code == 5, answer.stderr
            assert "the firmware stopped: ImportError: no module named 'nothing_there'" in answer.stderr


def test_deploy_waits_also_at_a_broker_that_lets_only_the_board_itself_in(cable: Cable, tmp_path: Path):
    """Planted: deploy waits at the broker, with the board's credentials and another client id."""
    made = umqtt_here(tmp_path, "passwd", "passwords", "pump-7", "--stdin", "--iterations", "10", given="right\n")
    assert made.code == 0, made.stderr
    rights = tmp_path / "acl"
    rights.write_text("pattern write fleet/%c/telemetry\npattern write fleet/%c/status\npattern read fleet/%c/cmd\n")
    lines = ("client_id_pattern %u", f"password_file {tmp_path}/passwords", f"acl_file {rights}")
    with broker(tmp_path, "allow_anonymous false", *lines) as port:
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 200}
        secrets = b'{"mqtt": {"username": "pump-7", "password": "right"}}'
        files = {**deployed(), "settings.json": json.dumps(settings).encode(), "secrets.json": secrets}
        with cable.board("bench", files=files) as board:
            answer = cable.umqtt("deploy")
            assert answer.code == 0, answer.stderr
            assert "pump-7: the broker has its readings: {" in answer.stderr
            # Nor does doctor need other rights than the board has, whether the board runs or not.
            assert cable.umqtt("doctor").code == 0
            with Board(board.port, restart=False):
                pass
            found = cable.umqtt("doctor", "--json").json["checks"]
            assert [one["state"] for one in found if one["name"] == "broker from here"] == ["ok"], found


@pytest.mark.parametrize("name", ["azure", "adafruitio"])
def test_deploy_and_doctor_work_at_clouds_with_topics_of_their_own(cable: Cable, name: str):
    """Planted: doctor logs in without the token that the board would make."""
    with broker_here() as upstream, CloudBroker(name, upstream=upstream) as cloud:
        files = {path[1:]: content for path, content in provisioned(name, cloud, cloud.port).items()}
        with cable.board("bench", files=files) as board:
            answer = cable.umqtt("deploy")
            assert answer.code == 0, answer.stderr
            assert "pump-7: the broker has its readings: {" in answer.stderr
            assert cable.umqtt("doctor").code == 0
            with Board(board.port, restart=False):
                pass
            found = cable.umqtt("doctor", "--json").json["checks"]
            assert [one["state"] for one in found if one["name"] == "broker from here"] == ["ok"], found


_REASONS = {
    "nobody listens": "nobody listens at the address in brokers",
    "wrong password": "wrong user name or password",
    "wrong password at mosquitto": "wrong user name or password",
    "plain to a port for TLS": "mqtt:// or mqtts:// right?",
    "another protocol": "mqtt:// or mqtts:// right?",
}


@pytest.mark.parametrize("failure", _REASONS)
def test_each_failure_of_the_exchange_keeps_its_own_remedy(cable: Cable, tmp_path: Path, failure: str):
    """In what deploy and doctor say, and at once in the log. Planted: "is the broker running, and are the board's
    settings right" for all of them; the log is shown from now on only."""
    with contextlib.ExitStack() as stack:
        secrets = {"mqtt": {"username": "pump-7", "password": "wrong-horse"}}
        if failure == "nobody listens":
            port = stack.enter_context(bound("127.0.0.1")).getsockname()[1]
        elif failure == "wrong password":
            made = umqtt_here(tmp_path, "passwd", "passwords", "pump-7", "--stdin", given="right\n")
            assert made.code == 0, made.stderr
            port = stack.enter_context(broker(tmp_path, "allow_anonymous false", f"password_file {tmp_path}/passwords"))
        elif failure == "wrong password at mosquitto":
            port = stack.enter_context(Mosquitto(tmp_path)).port
        elif failure == "plain to a port for TLS":
            authority = Authority(tmp_path / "certs")
            authority.create("fleet")
            authority.issue_broker(["127.0.0.1"], 30)
            folder = tmp_path / "certs" / "broker"
            tls = (f"certfile {folder}/cert.pem", f"keyfile {folder}/key.pem")
            port = stack.enter_context(broker(tmp_path, *tls, "allow_anonymous true"))
        else:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = server.getsockname()[1]
            stack.enter_context(_closing_all(server))
        settings = {"device_id": "pump-7", "brokers": [f"mqtt://127.0.0.1:{port}"], "interval_ms": 200}
        files = {
            **deployed(),
            "settings.json": json.dumps(settings).encode(),
            "secrets.json": json.dumps(secrets).encode(),
        }
        with cable.board("bench", files=files):
            answer = cable.umqtt("deploy", "--timeout", "5")
            assert answer.code == 4 and "no reading has reached the broker within 5 s: broker: " in answer.stderr
            assert answer.stderr.count(_REASONS[failure]) == 2, "at once, and at the end"
            found = {check["name"]: check for check in cable.umqtt("doctor", "--json").json["checks"]}
            check = found["broker from the board"]
            assert _REASONS[failure] in check["text"] + check["remedy"]
            with following() as logs:
                logs.until(f"bench .*{re.escape(_REASONS[failure])}")
            assert "wrong-horse" not in answer.stdout + answer.stderr


@contextlib.contextmanager
def _closing_all(server: socket.socket) -> Iterator[None]:
    """Close each connection after its first bytes, as a server of another protocol does."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = server.accept()
                with link:
                    link.recv(1024)

    threading.Thread(target=serve, daemon=True).start()
    yield
    server.close()

"""umqtt ota --fleet: in stages, watched, stopped by a failing release, and continued by the same command."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cable import broker
from impatient import builds_impatient
from live_device import PlayedDevice
from terminals import terminal
from umqtt_kit.mqtt import Access
from umqtt_kit.ota import order
from umqtt_kit.ota.order import Wanted, order_update, update
from umqtt_kit.ota.rollout import Rollout, Row, find_devices, parse_stages
from umqtt_kit.ota.updater import Updater
from umqtt_testkit.waiting import WAIT_LIMIT_S

from umqtt_cli.errors import KitError


@pytest.fixture(scope="module", autouse=True)
def _impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield from builds_impatient(tmp_path_factory.mktemp("firmware"), "0.1.0")


@pytest.mark.parametrize(
    ("text", "count", "stages"),
    [
        ("1,10%,100%", 20, [1, 2, 20]),
        ("1,10%,100%", 5, [1, 5]),
        ("100%", 3, [3]),
        ("1,50%", 4, [1, 2]),
        ("30", 4, [4]),
    ],
)
def test_stages_are_counts_and_shares_that_rise(text, count, stages):
    assert parse_stages(text, count) == stages


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "a", "1,,2", "50%,1", "-1", "1.5", "1;2"])
def test_stages_that_are_none_are_told(text):
    with pytest.raises(KitError, match="--stages") as caught:
        parse_stages(text, 20)
    assert caught.value.exit_code == 2


def test_devices_come_from_a_file_or_from_the_statuses_at_the_broker(tmp_path: Path):
    """Planted: "no such file" was said of a folder and of an empty file."""
    file = tmp_path / "fleet.txt"
    file.write_text("# the cellar\npump-1\n\npump-2  # leaks\npump-1\n")
    with broker(tmp_path) as port:
        access = Access((f"mqtt://127.0.0.1:{port}",))
        assert find_devices(access, str(file)) == ["pump-1", "pump-2"]
        for name in ("pump-3", "pump-4", "door"):
            device = PlayedDevice(port, name, lambda command: [])
            device.say("status", {"online": True}, retain=True)
            device.sleep()
        assert find_devices(access, "pump-*") == ["pump-3", "pump-4"]
        with pytest.raises(KitError, match="no device of that name"):
            find_devices(access, "lamp-*")
        for nobody, what in ((tmp_path, "this is a folder"), (file, "the file names no device")):
            file.write_text("# nobody\n")
            with pytest.raises(KitError, match=what):
                find_devices(access, str(nobody))
        file.write_text("pump/1\n")
        with pytest.raises(KitError, match="'pump/1' is no device id"):
            find_devices(access, str(file))


def test_an_update_waits_for_the_first_answer_no_longer_than_it_may_take(tmp_path: Path):
    """Planted: 20 s for the first answer, whatever --timeout says."""
    with broker(tmp_path) as port, pytest.raises(KitError, match="did not answer within 1 s"):
        update(Access((f"mqtt://127.0.0.1:{port}",)), "nobody", Wanted(timeout_s=1), print)


# SIZE of firmware/app/ledger.py, and what the board says when every place is taken.
_RING = 16
_FULL = "not carried out: the replies to earlier commands still wait; send it again later"


class Played:
    """Devices of a fleet that answer as they should, except those in three sets.

    broken: never confirmed. restarting: boot again after the confirmation. under_way: how often each is still asked
    before an earlier command's update is over; until then its replies take places of the ring. places: those taken.
    up_s: since when each is up. go: an update is not answered before.
    """

    def __init__(self, port: int, count: int) -> None:
        self.ids = [f"pump-{number}" for number in range(1, count + 1)]
        self.running = dict.fromkeys(self.ids, "0.0.9")
        self.boots = dict.fromkeys(self.ids, 1)
        self.up_s = dict.fromkeys(self.ids, 86_400)
        self.go = threading.Event()
        self.go.set()
        self.broken: set[str] = set()
        self.restarting: set[str] = set()
        self.under_way = dict.fromkeys(self.ids, 0)
        self.places = dict.fromkeys(self.ids, 1)
        self.asked: list[str] = []
        self.away: set[str] = set()
        self._devices = [PlayedDevice(port, one, self._answers(one)) for one in self.ids]

    def close(self) -> None:
        for device in self._devices:
            device.sleep()

    def sleep(self, device: str) -> None:
        self.away.add(device)
        self._device(device).say("status", {"online": False, "reason": "sleeping"}, retain=True)
        self._device(device).sleep()

    def say_online(self, device: str) -> None:
        self._device(device).say("status", {"online": True}, retain=True)

    def wake(self, device: str) -> None:
        self.away.discard(device)
        self._device(device).wake()

    def _device(self, device: str) -> PlayedDevice:
        return self._devices[self.ids.index(device)]

    def _answers(self, device: str):
        def answer(command: dict) -> list[dict]:
            ok, result = True, {}
            if command["cmd"] == "ping":
                version, boot = self.running[device], f"{self.boots[device]}-ab"
                result = {"fw": version, "slot": version, "boot": boot, "up": self.up_s[device] * 1000}
            elif command["cmd"] == "get":
                result = {"board": "UNIX", "brokers": []}
            elif command["args"].get("rollback"):
                self.running[device] = "0.0.9"
                result = {"version": "0.0.9", "slot": "0.0.9"}
            elif self.under_way[device]:
                self.under_way[device] -= 1
                ok, result = False, _FULL if self.places[device] == _RING else "an update is under way"
            elif device in self.broken:
                self.asked.append(device)
                ok, result = False, "rolled back: a was started and not confirmed"
            else:
                self.asked.append(device)
                assert self.go.wait(WAIT_LIMIT_S)
                self.running[device] = command["args"]["version"]
                result = {"version": self.running[device], "slot": self.running[device]}
            if command["cmd"] == "ping" and device in self.restarting and self.running[device] != "0.0.9":
                self.boots[device] += 1
            self.places[device] = min(self.places[device] + 1, _RING) if self.under_way[device] else 1
            return [{"id": command["id"], "ok": ok, "result": result}]

        return answer


@contextlib.contextmanager
def played(folder: Path, count: int) -> Iterator[tuple[Access, Played]]:
    with broker(folder) as port, contextlib.closing(Played(port, count)) as fleet:
        yield Access((f"mqtt://127.0.0.1:{port}",)), fleet


def roll_out(access: Access, fleet: Played, stages: str = "1,50%,100%", **options) -> Rollout:
    rollout = Rollout(
        access, fleet.ids, parse_stages(stages, len(fleet.ids)), Wanted(version="0.2.0"),
        **{"healthy_s": 0, "stop_on_failure": True, **options},
    )  # fmt: skip
    rollout.run()
    return rollout


def states(rollout: Rollout) -> list[str]:
    return [row.state for row in rollout.rows]


def test_all_devices_are_updated_a_stage_after_the_other_and_the_second_time_none(tmp_path: Path):
    """Planted: all stages begin at once."""
    with played(tmp_path, 4) as (access, fleet):
        rollout = roll_out(access, fleet)
        assert states(rollout) == ["updated"] * 4
        assert [row.stage for row in rollout.rows] == [1, 2, 3, 3]
        assert fleet.asked[:2] == ["pump-1", "pump-2"] and sorted(fleet.asked) == fleet.ids
        assert states(roll_out(access, fleet)) == ["had it already"] * 4


def test_a_device_that_rolls_back_stops_it_and_the_same_command_goes_on(tmp_path: Path):
    """Planted: the next stage begins whatever the result of the one before."""
    with played(tmp_path, 4) as (access, fleet):
        fleet.broken = {"pump-2"}
        rollout = roll_out(access, fleet)
        assert states(rollout) == ["updated", "failed", "left alone", "left alone"]
        assert "rolled back" in rollout.rows[1].text and rollout.rows[1].exit_code == 5
        assert fleet.asked == ["pump-1", "pump-2"]
        fleet.broken = set()
        assert states(roll_out(access, fleet)) == ["had it already", "updated", "updated", "updated"]


def test_told_to_keep_going_it_does_and_still_fails(tmp_path: Path):
    with played(tmp_path, 4) as (access, fleet):
        fleet.broken = {"pump-1"}
        rollout = roll_out(access, fleet, stop_on_failure=False)
        assert states(rollout) == ["failed", "updated", "updated", "updated"] and len(rollout.failed) == 1


def test_a_version_that_restarts_while_it_is_watched_goes_back(tmp_path: Path):
    """Planted: what is confirmed counts as healthy."""
    with played(tmp_path, 2) as (access, fleet):
        fleet.restarting = {"pump-1"}
        rollout = roll_out(access, fleet, "1,100%")
        assert states(rollout) == ["failed", "left alone"]
        assert "it has restarted" in rollout.rows[0].text and "went back to 0.0.9" in rollout.rows[0].text
        assert fleet.running["pump-1"] == "0.0.9"


class Watched:
    """The clock of the rollout. slept: how long it has waited each time, in seconds; meanwhile: called then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        monkeypatch.setattr("umqtt_kit.ota.rollout.time", self)

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.meanwhile()


def test_a_run_that_ended_in_the_watch_is_continued_with_the_rest_of_the_watch(tmp_path: Path, monkeypatch):
    """Planted: what had it already is not watched; the whole time is waited again."""
    clock = Watched(monkeypatch)
    with played(tmp_path, 3) as (access, fleet):
        fleet.running |= {"pump-1": "0.2.0", "pump-2": "0.2.0"}
        fleet.up_s |= {"pump-1": 590, "pump-2": 570}
        rollout = roll_out(access, fleet, "2,100%", healthy_s=600)
        assert states(rollout) == ["had it already", "had it already", "updated"]
        assert clock.slept == [30, 600]
        fleet.up_s = dict.fromkeys(fleet.ids, 600)
        assert states(roll_out(access, fleet, "2,100%", healthy_s=600)) == ["had it already"] * 3
        assert clock.slept == [30, 600]


def test_what_restarts_in_the_rest_of_the_watch_goes_back_and_ends_the_rollout(tmp_path: Path, monkeypatch):
    """Planted: what had it already is waited for, and not checked."""
    clock = Watched(monkeypatch)
    with played(tmp_path, 2) as (access, fleet):
        fleet.running["pump-1"], fleet.up_s["pump-1"] = "0.2.0", 100
        clock.meanwhile = lambda: fleet.boots.update({"pump-1": 2})
        assert states(roll_out(access, fleet, "1,100%", healthy_s=600)) == ["failed", "left alone"]
        assert fleet.running["pump-1"] == "0.0.9"


@pytest.mark.parametrize("times", [1, 40])
def test_an_update_that_a_killed_command_began_is_waited_for(tmp_path: Path, monkeypatch, times: int):
    """Planted: the device's refusal counts as a failure; so does the one of a full ring."""
    monkeypatch.setattr("umqtt_kit.ota.order._pause_s", lambda timeout_s: 0.01)
    with played(tmp_path, 1) as (access, fleet):
        fleet.under_way["pump-1"] = times
        assert states(roll_out(access, fleet, "100%")) == ["updated"]


class BusyBoard:
    """An Updater of a board whose update ends at `ends_s`, as its clock says; statuses: by the time they come.

    asked: when it was told to update.
    """

    def __init__(self, ends_s: float, statuses: dict[float, dict[str, Any]]) -> None:
        self.now = 0.0
        self.asked: list[float] = []
        self.status: dict[str, Any] = {"online": True, "boot": "1-ab", "slot": "base"}
        self.link = self
        self._ends_s, self._statuses = ends_s, statuses

    def monotonic(self) -> float:
        return self.now

    def update(self, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append(self.now)
        if self.now < self._ends_s:
            raise KitError("pump-1: update: an update is under way", 5)
        return {"version": "0.2.0", "slot": "a"}

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        until = self.now + timeout_s
        for at_s in sorted(at_s for at_s in self._statuses if self.now < at_s <= until):
            self.now, self.status = at_s, self._statuses[at_s]
            if condition():
                return True
        self.now = until
        return False


def asked(monkeypatch: pytest.MonkeyPatch, timeout_s: float, ends_s: float, statuses: dict[float, Any]) -> list[float]:
    """Return when such a board is asked, until it runs the release."""
    board: Any = BusyBoard(ends_s, statuses)
    monkeypatch.setattr("umqtt_kit.ota.order.time", SimpleNamespace(monotonic=board.monotonic))
    assert order_update(board, {}, timeout_s)["version"] == "0.2.0"
    return board.asked


@pytest.mark.parametrize("timeout_s", [30, 600, 86_400])
def test_while_an_update_is_under_way_the_ring_of_the_board_never_fills(monkeypatch, timeout_s: float):
    """Planted: it is asked every 2 s; every 40 s."""
    # The update itself, ping and get, before and after, have places too.
    assert len(asked(monkeypatch, timeout_s, timeout_s - 1, {})) <= _RING - 5


def test_a_status_without_trial_after_another_one_ends_the_wait(monkeypatch):
    """Planted: a version on trial is asked; a board is asked only when 60 s are over; while it is offline; at once."""
    new = {"online": True, "boot": "2-ab", "slot": "a"}
    statuses = {10.0: {**new, "online": False}, 11.0: {**new, "trial": True}, 55.0: new}
    # The board has the end of its update a second after its status.
    assert asked(monkeypatch, 600, 56, statuses) == [0, 58]


def given_up_soon(patch: pytest.MonkeyPatch, away: set[str]) -> None:
    """Wait briefly for the answer of a device that is away now, and as long as ever for that of another."""
    answer = order._answer

    def answered(updater: Updater, *rest: Any) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as brief:
            if updater.device_id in away:
                brief.setattr(order, "_ANSWER_S", 0.2)
            return answer(updater, *rest)

    patch.setattr(order, "_answer", answered)


def test_a_device_that_sleeps_is_waited_for_until_its_next_wake(tmp_path: Path, monkeypatch):
    """Planted: a device that sleeps fails like one that is away, before its update, and at the end of the watch; one
    that boots at each wake is not healthy."""
    clock = Watched(monkeypatch)
    seen: list[tuple[str, str]] = []
    with played(tmp_path, 1) as (access, fleet):
        given_up_soon(monkeypatch, fleet.away)

        def wake(row: Row) -> None:
            if "sleeps" in row.text:
                seen.append((row.state, row.text))
                fleet.boots[row.device] += 1
                fleet.wake(row.device)

        fleet.sleep("pump-1")
        clock.meanwhile = lambda: fleet.sleep("pump-1")
        assert states(roll_out(access, fleet, "100%", on_change=wake)) == ["updated"]
    assert [state for state, _ in seen] == ["updating", "being watched"]


def test_devices_in_no_stage_are_left_alone_and_a_silent_one_is_exit_code_4(tmp_path: Path, monkeypatch):
    given_up_soon(monkeypatch, {"gone"})
    with played(tmp_path, 2) as (access, fleet):
        fleet.ids = ["gone", *fleet.ids]
        rollout = roll_out(access, fleet, "1,2", stop_on_failure=False)
        assert states(rollout) == ["failed", "updated", "left alone"]
        assert rollout.rows[0].exit_code == 4


def test_on_a_terminal_the_table_shows_each_device_while_it_is_updated(tmp_path: Path):
    """Planted: a line for each change, as in a pipe; a table that stays as it was at the start."""
    with played(tmp_path, 2) as (access, fleet):
        fleet.go.clear()
        for device in fleet.ids:
            fleet.say_online(device)
        options = ("--broker", *access.addresses, "--stages", "1,100%", "--wait-healthy", "0s")
        with terminal("ota", "--fleet", "pump-*", *options, COLUMNS="80") as shown:
            shown.until("1      pump-1  updating")
            shown.until("2      pump-2  waiting")
            fleet.go.set()
            assert shown.end() == 0
        assert "\x1b[1A" in shown.shown, "the table is drawn over the one before"
        assert "stage 1:" not in shown.shown
        last = shown.text.rpartition("version or reason")[2]
        assert re.findall(r"(pump-\d) +(\w+)", last) == [("pump-1", "updated"), ("pump-2", "updated")]

"""The sequence of a demo or a proof, from the first process started to the last one stopped."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import time
from collections.abc import Callable, Mapping

from umqtt_testkit.board import VirtualBoard

from umqtt_cli.console import say
from umqtt_cli.errors import EXIT_LOST, KitError
from umqtt_kit.demo.boards import board_ids, virtual_boards
from umqtt_kit.demo.control import Control, Replies
from umqtt_kit.demo.count import Count, count
from umqtt_kit.demo.parts import Chain, read_status
from umqtt_kit.demo.plan import Plan, RunFolder
from umqtt_kit.demo.view import State
from umqtt_kit.fleet.device import device_ids
from umqtt_kit.ground_truth import GroundTruthCounter, GroundTruthError
from umqtt_kit.processes import Child, Children
from umqtt_kit.prove.adversary import Adversary
from umqtt_kit.prove.machines import machines_of
from umqtt_kit.prove.updates import Updates

# Seconds that each step may take before the demo gives up on it.
_SUBSCRIBED_WITHIN_S = 30.0
_SPARK_WITHIN_S = 120.0
_ONLINE_WITHIN_S = 60.0
# The longest pause between two attempts of a client, after many that failed, and time for the attempt.
_BACK_WITHIN_S = 128 + 60.0
_DRAINED_WITHIN_S = 75.0
# A broker may wait as long as 30 s before it sends again what a board has not acknowledged.
_ANSWERED_WITHIN_S = 60.0
# Seconds without progress after which missing readings are given up as lost: the first when the tables hold all that
# the collector has received, the second when Spark may still be in a long micro-batch.
_NOTHING_COMES_S = 30.0
_NOTHING_IS_STORED_S = 120.0
_STOPS_WITHIN_S = 30.0
# Longest wait of the control link for something to arrive; sets the rate of the progress display.
_PULSE_MS = 100
# A board carries out an unsigned command every 5 s for as long as it likes.
_COMMAND_EVERY_S = 6.0


class Demo:
    """One run of the demo. Call run(); whatever happens, no process is left when it returns or raises.

    show: called with the state whenever that changes, several times a second.
    """

    def __init__(self, plan: Plan, folder: RunFolder, show: Callable[[State], object]) -> None:
        self._plan = plan
        self._folder = folder
        self._show = show
        self._state = State(devices=plan.boards + plan.devices)
        self._made = GroundTruthCounter(folder.ground_truth)
        self._children = Children(folder.logs)
        self._control: Control | None = None
        self._adversary: Adversary | None = None
        self._boards = board_ids(plan.boards)
        self._asked: list[Replies] = []
        self._bursts: list[Replies] = []
        #: Devices that did not come back after everything worked again.
        self.silent: list[str] = []
        self._started = time.monotonic()
        self._seconds = 0.0
        self._rate = 0.0
        self._refused = 0

    @property
    def unanswered(self) -> list[str]:
        """The commands that were not carried out: "board: why" for each."""
        asked = [(f"ping {number}", replies) for number, replies in enumerate(self._asked, 1)]
        asked += [(f"burst {number}", replies) for number, replies in enumerate(self._bursts, 1)]
        return [f"{why} to {name}" for name, replies in asked for why in replies.why_missing]

    def run(self) -> tuple[dict[str, object], Count]:
        """Run the demo. Return the result as --json prints it, and the count. Raises KitError if a part fails."""
        with self._children:
            self._run_chain()
        try:
            counted = count(self._folder.ground_truth, self._folder.tables)
        except GroundTruthError as error:
            raise KitError(str(error), EXIT_LOST) from error
        self._write_report()
        result = self._result(counted)
        self._folder.result.write_text(json.dumps(result, indent=2) + "\n")
        return result, counted

    def _run_chain(self) -> None:
        plan = self._plan
        machines = machines_of(plan.faults, self._folder.machines)
        chain = Chain(self._children, self._folder, plan.broker, machines)
        chain.start_broker()
        chain.start_cloud()
        # Spark takes longest to start, so it starts while everything else does.
        spark = chain.start_spark()
        collector = chain.start_collector()
        network = chain.start_network()
        self._control = Control(chain.url)
        self._phase("waiting for the collector's subscription")
        self._until(lambda: collector.has_line("subscribed "), _SUBSCRIBED_WITHIN_S, "the collector did not subscribe")
        self._phase("booting the boards")
        with contextlib.ExitStack() as stack:
            updates = None
            if any(fault.kind == "update" for fault in plan.faults):
                updates = stack.enter_context(Updates(self._control.send))
            boards = stack.enter_context(
                virtual_boards(
                    self._boards,
                    network.url,
                    plan.board_interval_ms,
                    self._folder,
                    machines,
                    updates.secrets if updates else None,
                )
            )
            if plan.devices:
                chain.start_fleet(network.url, plan.devices, plan.device_interval_ms)
            self._phase("waiting for Spark and for every device")
            self._until(lambda: spark.has_line("ready"), _SPARK_WITHIN_S, "Spark did not get ready")
            self._until(self._all_online, _ONLINE_WITHIN_S, "not every device came online")
            if not self._plan.proves and importlib.util.find_spec("argon2"):
                say(f"watch it while it runs: {chain.start_console()}")
            with self._folder.history.open("a") as history:
                self._adversary = Adversary(plan.faults, chain, network, boards, history, self._burst, updates)
                self._take_readings(self._adversary)
                self._await_devices(boards)
                self._stop_devices(self._boards, chain.fleet)
                # The boards keep their links to the end, so that the report shows them online.
                self._store_all(chain)

    def _take_readings(self, adversary: Adversary) -> None:
        """Let the devices work while the plan's faults happen, until all that was broken works again."""
        assert self._control is not None
        started = time.monotonic()
        made_before = self._made.update()
        self._state.of_seconds = self._plan.seconds
        self._phase("devices publish, Spark stores")
        while (seconds := time.monotonic() - started) < self._plan.seconds:
            self._state.seconds = seconds
            adversary.turn(seconds)
            if self._plan.proves and seconds >= len(self._asked) * _COMMAND_EVERY_S:
                self._asked.append(self._control.command(self._boards, "ping"))
            self._state.broken = adversary.now
            self._pulse()
        adversary.heal(seconds)
        self._state.broken = []
        self._seconds = time.monotonic() - started
        self._rate = (self._made.update() - made_before) / self._seconds

    def _await_devices(self, boards: Mapping[str, VirtualBoard]) -> None:
        """Wait until every device is online again. In a proof each board must also boot once more, with what it has."""
        assert self._control is not None
        if self._plan.proves:
            self._phase("booting every board once more")
            for device_id, board in boards.items():
                board.kill()
                board.start()
                self._control.online.discard(device_id)
        try:
            self._until(self._all_online, _BACK_WITHIN_S, "not every device came back online")
            # What comes before it has its session back waits at the broker.
            self._until(self._collects, _BACK_WITHIN_S, "the collector did not come back")
        except DeadlineMissed:
            if not self._plan.proves:
                raise
            expected = {*self._boards, *device_ids(self._plan.devices)}
            self.silent = sorted(expected - self._control.online) or ["collector"]
        with contextlib.suppress(DeadlineMissed):
            self._until(lambda: not self.unanswered or bool(self.silent), _ANSWERED_WITHIN_S, "not all were answered")

    def _burst(self, device_id: str, count: int, qos: int) -> None:
        assert self._control is not None
        replies = self._control.command([device_id] * count, "ping", qos)
        if qos:
            self._bursts.append(replies)

    def _stop_devices(self, ids: list[str], fleet: Child | None) -> None:
        """Stop the readings, and wait until the broker has acknowledged all of them.

        Readings that cannot be delivered are reported to the user, and counted.
        """
        assert self._control is not None
        self._phase("stopping the devices once their outboxes are empty")
        if fleet is not None:
            self._children.end(fleet)
        replies = self._control.command(ids, "pause")
        try:
            self._until(
                lambda: replies.complete and (fleet is None or fleet.returncode is not None),
                _DRAINED_WITHIN_S,
                "not every device could deliver what it had",
            )
        except DeadlineMissed as missed:
            waiting = replies.missing + ([fleet.name] if fleet and fleet.returncode is None else [])
            say(f"{missed}: {', '.join(waiting)}")
        if fleet is not None and fleet.returncode not in (0, None):
            say(str(fleet.death()))
        self._refused = replies.total("dropped") + _number(self._status("fleet").get("refused"))

    def _store_all(self, chain: Chain) -> None:
        """Wait until Spark has stored everything, then stop the collector and Spark, in this order."""
        self._phase("waiting until Spark has stored everything")
        made = self._made.update()
        self._until_stored(lambda: self._stored() >= made)
        # Duplicates may come later than the readings; they are read too before the count.
        assert chain.collector is not None
        self._stop(chain.collector)
        chain.collector = None
        self._until_stored(lambda: self._status("spark").get("lag_bytes") == 0)
        self._phase("stopping")
        assert chain.spark is not None
        self._stop(chain.spark)
        chain.spark = None

    def _stop(self, part: Child) -> None:
        """Stop a part that has done its work. If it does not end well, say so; the count shows the consequences."""
        code = self._children.stop(part, _STOPS_WITHIN_S)
        if code is None:
            say(f"{part.name} did not end within {_STOPS_WITHIN_S:g} s and was killed — see {part.log}")
        elif code:
            say(str(part.death()))

    def _until_stored(self, done: Callable[[], bool]) -> None:
        """Wait as long as there is progress. After that, go on without what is missing: the count will show it."""
        moved = time.monotonic()
        before = None
        while not done():
            now = time.monotonic()
            progress = (self._status("collector").get("messages"), self._status("spark").get("messages"))
            lag = self._status("spark").get("lag_bytes")
            patience_s = _NOTHING_COMES_S if lag == 0 else _NOTHING_IS_STORED_S
            if progress != before:
                before, moved = progress, now
            elif now - moved > patience_s:
                say(f"nothing was stored for {patience_s:g} s, and readings are missing — counting now")
                return
            self._pulse()

    def _until(self, done: Callable[[], bool], within_s: float, what: str) -> None:
        """Serve everything until done(). Raises DeadlineMissed, which says `what`, or KitError if a part died."""
        deadline = time.monotonic() + within_s
        while not done():
            if time.monotonic() > deadline:
                raise DeadlineMissed(f"{what} within {within_s:g} s — see {self._folder.logs}", EXIT_LOST)
            self._pulse()

    def _pulse(self) -> None:
        """Do one turn: handle messages, update the display, and check that every part still runs."""
        assert self._control is not None
        self._control.poll(_PULSE_MS)
        self._state.online = len(self._control.online)
        self._state.made = self._made.update()
        self._state.stored = self._stored()
        self._show(self._state)
        if self._plan.proves and self._adversary is not None:
            self._adversary.restart_what_ended(time.monotonic() - self._started)
        self._children.check()

    def _phase(self, name: str) -> None:
        self._state.phase = name
        with (self._folder.logs / "demo.log").open("a") as log:
            log.write(f"{time.monotonic() - self._started:7.1f} s  {name}\n")
        self._show(self._state)

    def _all_online(self) -> bool:
        assert self._control is not None
        return len(self._control.online) == self._plan.boards + self._plan.devices

    def _collects(self) -> bool:
        return bool(self._status("collector").get("subscribed"))

    def _stored(self) -> int:
        return _number(self._status("spark").get("rows_silver"))

    def _status(self, part: str) -> dict[str, object]:
        return read_status(self._folder.status / f"{part}.json")

    def _write_report(self) -> None:
        """Write the report on the tables; if they have nothing to show, say why."""
        from spark_ingest.errors import IngestError
        from spark_ingest.report import write_report

        try:
            write_report(self._folder.tables, self._folder.report)
        except IngestError as error:
            say(f"no report: {error}")

    def _result(self, counted: Count) -> dict[str, object]:
        plan = self._plan
        return {
            "made": counted.made,
            "stored": counted.stored,
            "lost": counted.lost,
            "duplicated": counted.duplicated,
            "not_made": counted.not_made + counted.unnoted,
            "quarantined": counted.quarantined,
            "refused": self._refused,
            "boards": plan.boards,
            "devices": plan.devices,
            "seconds": round(self._seconds, 1),
            "readings_per_second": round(self._rate, 1),
            "faults": self._adversary.happened if self._adversary else 0,
            "tables": str(self._folder.tables),
            "report": str(self._folder.report) if self._folder.report.exists() else None,
            "examples": counted.examples,
        }


def _number(value: object) -> int:
    """Return a count in a status file, 0 if there is none."""
    return value if isinstance(value, int) else 0


class DeadlineMissed(KitError):
    """A step took longer than it may."""

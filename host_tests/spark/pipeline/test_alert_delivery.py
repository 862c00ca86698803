"""Each alert is delivered at least once, whatever is killed or fails; a second delivery has the same id."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import zlib
from collections import defaultdict
from itertools import count, pairwise
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from aiosmtpd.controller import Controller
from alert_webhook import webhook
from gold_fleet import QUERY, Killed, table_of, telemetry
from spark_helpers import RECEIVED_MS
from umqtt_testkit.mosquitto import Mosquitto
from umqtt_testkit.ports import reserved_port
from umqtt_testkit.waiting import eventually

from spark_ingest.alerts import journal as journal_module
from spark_ingest.alerts.config import AlertConfig, load
from spark_ingest.alerts.delivery import LONGEST_RETRY_S, Delivery
from spark_ingest.alerts.destinations import Destination
from spark_ingest.alerts.journal import FILE, Finding, Journal, Verdict
from spark_ingest.alerts.messages import shown
from spark_ingest.alerts.rules import DEFAULT_RULES, rule_set
from spark_ingest.durable import replace_file
from spark_ingest.errors import UsageError
from spark_ingest.pipeline.change.delete_device import delete_device
from spark_ingest.pipeline.run.config import PipelineConfig
from spark_ingest.pipeline.run.upkeep import FIGURES, Upkeep
from spark_ingest.pipeline.write.batch import BatchWriter

RULES = rule_set(Path("alerts.toml"), [{"name": name, "kind": "offline"} for name in ("x", "y")], {})
NAMES = [rule.name for rule in RULES.rules]
FOUND = Finding(1, 2.0, "text")
_SEEDS = range(200 if os.environ.get("UMQTT_FULL_SWEEPS") else 12)


class Clock:
    """A clock in seconds that only moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Inbox:
    """A destination in memory that records what it was sent: (id, state, rule, device)."""

    def __init__(self, name: str, **scope) -> None:
        self.got: list[tuple[str, str, str, str]] = []
        self.messages: list[tuple[str, str]] = []
        self.before = self.after = lambda: None
        self.destination = Destination(name, self.send, as_json=True, **scope)

    def send(self, title: str, body: str) -> str | None:
        """Accept a message or not, as `before` says; then answer or not, as `after` says."""
        if (wrong := self.before()) is not None:
            return wrong
        self.messages.append((title, body))
        alerts = json.loads(body)["alerts"]
        self.got += [tuple(one[key] for key in ("id", "state", "rule", "device")) for one in alerts]
        return self.after()


def take(journal: Journal, config: AlertConfig, firing: dict[str, set[str]], now_us: int = 5) -> None:
    verdicts = [Verdict(name, dict.fromkeys(firing.get(name, ()), FOUND)) for name in NAMES]
    journal.take(verdicts, config.rules, now_us, lambda alert: config.recipients(alert, now_us))


def states(got: list[tuple[str, str, str, str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the alerts told, by rule and device: each once, in order."""
    found = defaultdict(list)
    for alert_id, state, rule, device in got:
        if (alert_id, state) not in found[rule, device]:
            found[rule, device].append((alert_id, state))
    return found


@pytest.mark.parametrize("seed", _SEEDS)
def test_every_beginning_and_end_is_told_in_order_whatever_is_killed(tmp_path, monkeypatch, seed):
    """Every beginning and end is delivered in order.

    Planted: an event written after its alert, one removed before it was accepted, a new id for each event, an end
    that nobody is told of.
    """
    rng = random.Random(seed)
    every, some = Inbox("every"), Inbox("some", rules=("x",), recovery=False)
    config = AlertConfig(RULES, [every.destination, some.destination])

    def dying(path: Path, data: bytes) -> None:
        if rng.random() < 0.1:
            raise Killed("before")
        content = b"umqtt 1 %d %08x\n" % (len(data), zlib.crc32(data)) + data
        replace_file(path, content, durable=False)
        if rng.random() < 0.1:
            raise Killed("after")

    def trouble() -> str | None:
        luck = rng.random()
        if luck < 0.1:
            raise Killed("in the middle")
        if luck < 0.15:
            raise ConnectionResetError("reset")
        return "busy" if luck < 0.3 else None

    monkeypatch.setattr(journal_module, "replace_checked", dying)
    every.before = every.after = some.before = some.after = trouble
    clock = Clock()

    def began() -> tuple[Journal, Delivery]:
        journal = Journal(tmp_path)
        return journal, Delivery(journal, config.destinations, 30, clock=clock, report=lambda _line: None)

    expected: dict[tuple[str, str], list[str]] = defaultdict(list)
    firing: dict[str, set[str]] = {"x": set(), "y": set()}
    journal, delivery = began()
    for _ in range(60):
        rule, device = rng.choice("xy"), rng.choice("abc")
        firing[rule] ^= {device}
        expected[rule, device].append("firing" if device in firing[rule] else "resolved")
        noted = False
        while not noted:
            try:
                take(journal, config, firing)
                noted = True
                clock.now += rng.choice([1, 40])
                delivery.step()
            except Killed:
                journal, delivery = began()
    while journal.waiting:
        try:
            delivery.step(all_now=True)
        except Killed:
            journal, delivery = began()
    told = states(every.got)
    assert {key: [state for _, state in one] for key, one in told.items()} == expected, f"seed {seed}"
    for key, one in told.items():
        assert len({alert_id for alert_id, _ in one}) == expected[key].count("firing"), f"seed {seed}"
    fewer = {key: [state for state in one if state == "firing"] for key, one in expected.items() if key[0] == "x"}
    assert {key: [state for _, state in one] for key, one in states(some.got).items()} == fewer, f"seed {seed}"


def test_a_process_that_is_killed_while_it_sends_goes_on_and_repeats_no_id(tmp_path):
    """Planted: what is sent leaves the journal before the answer."""
    got: list[dict] = []
    children: list[subprocess.Popen] = []
    requests = count(1)

    def receive(body: bytes) -> None:
        number = next(requests)
        # The second request is lost with its sender; of the fifth, only the answer is lost.
        if number in (2, 5):
            children[-1].send_signal(signal.SIGKILL)
        if number != 2:
            got.extend(json.loads(json.loads(body)["message"])["alerts"])

    with webhook(receive) as port:
        text = f'[[send]]\nname = "hook"\nurl = "json://127.0.0.1:{port}/"\nformat = "json"\n'
        (tmp_path / "alerts.toml").write_text(text)
        ends = []
        while not ends or ends[-1]:
            command = [sys.executable, str(Path(__file__).with_name("alerts_child.py")), str(tmp_path)]
            children.append(subprocess.Popen(command))
            ends.append(children[-1].wait())
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    ids = defaultdict(set)
    for one in got:
        ids[one["rule"]].add(one["id"])
    assert {rule: len(one) for rule, one in ids.items()} == dict.fromkeys(
        ["offline", "gap", "reboot_loop", "memory_falling", "quarantined"], 1
    )


HOSTILE = "pump\r\nBcc: a@b.example <!channel> @everyone [x](http://x.example) \x1b[2J\u202e&amp; `rm`"
PARTS = ("\r", "\n", "\x1b", "\u202e", "<", ">", "@", "&", "[", "`", "://")


def test_a_webhook_a_broker_and_a_mailbox_are_told_and_what_a_device_says_does_nothing_there(tmp_path):
    """Planted: a device's text unescaped, or MQTT's body with a title before it."""
    bodies: list[bytes] = []
    mails: list[str] = []
    published: list[bytes] = []

    class Mailbox:
        async def handle_DATA(self, _server, _session, envelope):
            mails.append(envelope.content.decode())
            return "250 OK"

    mail_port = reserved_port()
    mailbox = Controller(Mailbox(), hostname="127.0.0.1", port=mail_port)
    mailbox.start()
    reader = paho.Client(paho.CallbackAPIVersion.VERSION2)
    subscribed = threading.Event()
    reader.on_message = lambda _client, _data, message: published.append(message.payload)
    reader.on_subscribe = lambda *_arguments: subscribed.set()
    try:
        with Mosquitto(tmp_path, "allow_anonymous true") as broker, webhook(bodies.append) as port:
            reader.connect("127.0.0.1", broker.port)
            reader.subscribe("alerts", qos=1)
            reader.loop_start()
            eventually(subscribed.is_set, "subscribed")
            urls = {
                "hook": f"json://127.0.0.1:{port}/",
                "mail": f"mailto://127.0.0.1:{mail_port}?from=umqtt@site.example&to=ops@site.example&mode=insecure",
                "mqtt": f"mqtt://127.0.0.1:{broker.port}/alerts?qos=1",
            }
            text = "".join(f'[[send]]\nname = "{name}"\nurl = "{url}"\n' for name, url in urls.items())
            (tmp_path / "alerts.toml").write_text(text + 'format = "json"\n')
            config, journal = load(tmp_path / "alerts.toml"), Journal(tmp_path)
            finding = Finding(1_700_000_000_000_000, 2.0, HOSTILE)
            verdict = Verdict("offline", {HOSTILE: finding})
            journal.take([verdict], config.rules, 5, lambda alert: config.recipients(alert, 5))
            lines: list[str] = []
            delivery = Delivery(journal, config.destinations, 0, report=lines.append)
            delivery.step(all_now=True)
            assert (journal.waiting, lines) == (0, [])
            eventually(lambda: published, "the broker's subscriber has it")
    finally:
        reader.loop_stop()
        mailbox.stop()
    ((one,),) = [json.loads(body)["alerts"] for body in published]
    assert (one["device"], one["text"], one["state"]) == (HOSTILE, HOSTILE, "firing")
    (post,) = [json.loads(body) for body in bodies]
    assert post["title"] == "1 firing: offline" and one["id"] in post["message"]
    assert not [part for part in PARTS if part in post["message"]]
    (mail,) = mails
    head, _, body = mail.partition("\r\n\r\n")
    assert "\nBcc:" not in head.replace("\r\n ", "") and "Subject: 1 firing: offline" in head
    assert "@everyone" not in body and "http://" not in body and "\x1b" not in body


def test_what_others_say_is_nothing_but_text():
    """Planted: one of the special characters unescaped, and a name without a limit."""
    assert not [part for part in PARTS if part in shown(HOSTILE * 3)]
    assert len(shown("a" * 70_000)) < 200 and shown("pump-7_b (Süd)") == "pump-7_b (Süd)"


def pair(tmp_path, **scope) -> tuple[Inbox, AlertConfig, Journal, Delivery, Clock, list[str]]:
    inbox, clock, lines = Inbox("ops", **scope), Clock(), []
    config, journal = AlertConfig(RULES, [inbox.destination]), Journal(tmp_path)
    delivery = Delivery(journal, config.destinations, 30, clock=clock, report=lines.append)
    return inbox, config, journal, delivery, clock, lines


def test_alerts_of_a_rule_go_together_once_the_oldest_has_waited(tmp_path):
    """Planted: a message for each alert, or for each look."""
    inbox, config, journal, delivery, clock, _ = pair(tmp_path)
    take(journal, config, {"x": {"a", "b"}})
    delivery.step()
    clock.now = 29
    take(journal, config, {"x": {"a", "b", "c"}, "y": {"a"}})
    delivery.step()
    assert inbox.messages == []
    clock.now = 30
    delivery.step()
    assert (sorted(one[3] for one in inbox.got), len(inbox.messages)) == (["a", "b", "c"], 1)
    clock.now = 59
    delivery.step()
    assert len(inbox.messages) == 2 and inbox.got[-1][2] == "y"


def test_a_message_is_no_longer_than_its_destination_takes(tmp_path):
    """Planted: everything that waits in one message, which the service refuses for ever."""
    inbox, config, journal, delivery, _, _ = pair(tmp_path, largest=2000)
    take(journal, config, {"x": {f"device {n}" for n in range(100)}})
    delivery.step(all_now=True)
    assert len(inbox.got) == 100 and len(inbox.messages) > 5
    assert all(len(body) <= 2000 + len('{"alerts": []}') for _, body in inbox.messages)


def test_a_destination_that_fails_is_told_of_once_and_tried_ever_more_seldom(tmp_path):
    """Planted: an attempt a second for ever, or a line for each."""
    inbox, config, journal, delivery, clock, lines = pair(tmp_path)
    attempts = []
    inbox.before = lambda: attempts.append(clock.now) or "no route"
    take(journal, config, {"x": {"a"}})
    for clock.now in range(30, 2000):
        delivery.step()
    waits = [after - before for before, after in pairwise(attempts)]
    assert waits == sorted(waits) and waits[:3] == [5, 10, 20] and waits[-1] == LONGEST_RETRY_S
    assert lines == ["alerts: not delivered to ops, tried again: no route"] and delivery.failing == {"ops"}
    inbox.before = lambda: None
    clock.now = 3000
    delivery.step()
    assert delivery.failing == set() and len(inbox.got) == 1


SILENT = """
    [[silence]]
    from = 1970-01-01T00:00:10Z
    until = 1970-01-01T00:00:20Z
    rules = ["offline"]
    devices = ["a"]
"""


def test_a_silence_is_not_told_and_what_still_lasts_after_it_is(tmp_path):
    """Planted: an alert that began during a silence is never delivered, or its end is delivered without it."""
    (tmp_path / "alerts.toml").write_text(SILENT)
    silent = load(tmp_path / "alerts.toml")
    inbox = Inbox("ops")
    config, journal = AlertConfig(silent.rules, [inbox.destination], silent.silences), Journal(tmp_path)
    for second, devices in ((9, "b"), (11, "abc"), (12, "bc"), (13, "abc"), (19, "abc"), (21, "abc"), (22, "")):
        verdict = Verdict("offline", dict.fromkeys(devices, FOUND))
        now_us = second * 1_000_000
        journal.take([verdict], config.rules, now_us, lambda alert, now_us=now_us: config.recipients(alert, now_us))
        Delivery(journal, config.destinations, 0).step(all_now=True)
    told = [(state, device) for _, state, _, device in inbox.got]
    assert told[:3] == [("firing", "b"), ("firing", "c"), ("firing", "a")]
    assert sorted(told[3:]) == [("resolved", "a"), ("resolved", "b"), ("resolved", "c")]


def test_a_destination_that_is_new_is_told_of_what_began_when_there_was_nobody_to_tell(tmp_path):
    """Planted: an alert is delivered when it begins or never."""
    inbox, config, journal, delivery, _, _ = pair(tmp_path)
    take(journal, AlertConfig(RULES), {"x": {"a"}})
    assert journal.waiting == 0
    take(journal, config, {"x": {"a"}})
    delivery.step(all_now=True)
    assert [one[1:] for one in inbox.got] == [("firing", "x", "a")]


def test_what_waits_for_a_destination_that_is_gone_is_counted_and_a_damaged_journal_tells_again(tmp_path):
    """Planted: dropped alerts are not reported."""
    inbox, config, journal, _, _, _ = pair(tmp_path)
    take(journal, config, {"x": {"a"}})
    lines: list[str] = []
    journal = Journal(tmp_path, report=lines.append)
    Delivery(journal, [], 30)
    assert (journal.waiting, lines) == (0, ["1 alerts were for destinations that alerts.toml no longer has: not sent"])
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-1])
    journal = Journal(tmp_path, report=lines.append)
    assert "is damaged: open alerts are sent again" in lines[1]
    take(journal, config, {"x": {"a"}})
    Delivery(journal, [inbox.destination], 0).step(all_now=True)
    assert [one[1:] for one in inbox.got] == [("firing", "x", "a")]


def test_when_too_many_wait_the_others_are_told_later_and_that_is_said_once(tmp_path, monkeypatch):
    """Planted: alerts beyond the limit are dropped."""
    monkeypatch.setattr(journal_module, "MOST_WAITING", 2)
    inbox, config, _, _, _, _ = pair(tmp_path)
    lines: list[str] = []
    journal = Journal(tmp_path, report=lines.append)
    for _ in range(3):
        take(journal, config, {"x": set("abcde")})
        assert journal.waiting <= 2
        Delivery(journal, config.destinations, 0).step(all_now=True)
    assert sorted(one[3] for one in inbox.got) == list("abcde") and len(set(lines)) == 1


def test_a_device_whose_alerts_end_again_and_again_pushes_out_none_of_fifty(tmp_path, monkeypatch):
    """Planted: the oldest alerts are forgotten, whose they are."""
    monkeypatch.setattr(journal_module, "_MOST_ENDED", 60)
    _, config, journal, _, _, _ = pair(tmp_path)
    quiet = [f"quiet{i}" for i in range(50)]
    for devices in (quiet, [], *(["greedy"], []) * 20):
        take(journal, config, {"x": set(devices)})
    ended = sorted(one.device for one in journal.alerts(["x"]) if one.until is not None)
    assert ended == sorted([*quiet, *["greedy"] * 10])


def test_a_thread_that_could_not_be_stopped_writes_nothing_any_more(tmp_path):
    """Planted: the old thread's journal replaces the one that has continued since."""
    inbox, config, journal, delivery, _, _ = pair(tmp_path)
    take(journal, config, {"x": {"a"}})
    delivery.close(0)
    later = Journal(tmp_path)
    take(later, config, {"x": {"a", "b"}})
    delivery.step(all_now=True)
    assert len(inbox.got) == 1 and Journal(tmp_path).waiting == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[send]]\nname = "a"', "send 'a': there is no url"),
        ('[[send]]\nurl = "json://secret"', "send 1: there is no name"),
        ('[[send]]\nname = "a"\nurl = "nonsense://secret"', "send 'a': url is none that apprise knows"),
        ('[[send]]\nname = "a"\nurl = "$UMQTT_SECRET_URL"', "url: the environment has no UMQTT_SECRET_URL"),
        ('[[send]]\nname = "a"\nurl = "mqtt://secret/t"', "url: MQTT at QoS 0 may lose an alert: add ?qos=1"),
        ('[[send]]\nname = "a"\nurl = "json://h"\nto = "x"', "send 'a': there is no key to; there are format"),
        ('[[send]]\nname = "a"\nurl = "json://h"\nformat = "xml"', "format = 'xml' must be text or json"),
        ('[[send]]\nname = "a"\nurl = "json://h"\nrecovery = 1', "recovery = 1 must be true or false"),
        ('[[send]]\nname = "a"\nurl = "json://h"\nrules = ["of"]', "rules: there is no rule 'of'"),
        ('[[send]]\nname = "a"\nurl = "json://h"\nsites = ["x"]', "sites: no device of groups.csv belongs to 'x'"),
        ('[[send]]\nname = "a"\nurl = "json://h"\n' * 2, "two destinations are called 'a'"),
        (SILENT.replace("20Z", "10Z"), "silence 1: until is not after from"),
        (SILENT.replace("20Z", "20"), "must be a time with its zone"),
        (SILENT.replace("from", "since"), "silence 1: there is no from"),
        ('wait = "soon"', "wait = 'soon' must be a time like"),
    ],
)
def test_a_destination_or_silence_that_cannot_work_is_one_line_without_the_url(tmp_path, text, line):
    (tmp_path / "alerts.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path / "alerts.toml")
    said = str(caught.value)
    assert line in said and str(tmp_path) in said and "secret" not in said and "\n" not in said


def test_a_pipeline_tells_what_gold_finds_before_it_ends(tmp_path):
    """Planted: what was found last waits for the next start."""
    at = RECEIVED_MS
    BatchWriter(tmp_path, tmp_path / "state").write(table_of([(*telemetry("a", "1-x", 0, at, 5), at)]), 0, QUERY)
    inbox = Inbox("ops")
    alerts = AlertConfig(DEFAULT_RULES, [inbox.destination])
    upkeep = Upkeep(PipelineConfig(None, tmp_path, tmp_path, alerts=alerts), on_stage=lambda _stage: None)
    upkeep.finish(0)
    figures = upkeep.figures()
    assert (figures["alerts"], figures["alerts_waiting"], figures["alerts_failing"]) == (1, 1, 0)
    upkeep.close()
    assert [one[1:] for one in inbox.got] == [("firing", "offline", "a")]
    assert upkeep.figures()["alerts_waiting"] == 0 and set(figures) == set(FIGURES)


def test_a_device_that_is_forgotten_is_in_the_journal_no_more(tmp_path):
    """Planted: its name stays beside the tables."""
    at = RECEIVED_MS
    sent = [(*telemetry(device, "1-x", 0, at, 5), at) for device in ("gone", "kept")]
    BatchWriter(tmp_path, tmp_path / "state").write(table_of(sent), 0, QUERY)
    take(Journal(tmp_path), AlertConfig(RULES, [Inbox("ops").destination]), {"x": {"gone", "kept"}, "y": {"gone"}})
    take(Journal(tmp_path), AlertConfig(RULES, [Inbox("ops").destination]), {"x": {"gone", "kept"}})
    delete_device(tmp_path, "gone")
    assert b"gone" not in (tmp_path / FILE).read_bytes() and Journal(tmp_path).waiting == 1

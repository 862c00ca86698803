"""The log keeps its last lines in bounded RAM, publishes what matters, and never floods the outbox."""

import errno
import json
import sys

import _app_fakes as fakes
from app.log import Log
from umqtt_testkit.portable import Rng, equal, raises

from umqtt_robust.errors import Downgraded, LinkLost, Refused, StoreError

_TOPIC = b"fleet/pump-7/log"


def _build(client=None, **options):
    client = client or fakes.Client(1000)
    ticks, clock = fakes.clock()
    shown = []
    return client, ticks, shown, Log(client, fakes.identity(), clock, write=shown.append, **options)


def _records(client):
    return [json.loads(payload) for payload in client.payloads(_TOPIC)]


def test_warnings_and_errors_are_published_the_rest_is_kept_and_shown():
    client, ticks, shown, log = _build()
    for level in ("debug", "info", "warning", "error"):
        equal(log.report(level, "text of " + level), True)
    equal(
        _records(client),
        [{"level": level, "text": "text of " + level, "boot": fakes.identity().boot} for level in ("warning", "error")],
    )
    ticks.advance(61000)
    log.report("info", "later")
    equal(log.lines(), ["0 info text of info", "0 warning text of warning", "0 error text of error", "61 info later"])
    equal(shown, log.lines())


class ClockNotSet(LinkLost):
    pass


class CertificateRefused(LinkLost):
    pass


def test_each_reason_for_having_no_link_is_told_with_the_next_step():
    """Planted: an error without a text of its own is not reported."""
    for error, told in (
        (Refused("connect", 4), "wrong user name or password: correct them with umqtt provision"),
        (Refused("connect", 5), "or no right to connect"),
        (Refused("connect", 2), "give another device_id"),
        (Refused("connect", 1), "does not speak MQTT 3.1.1"),
        (Refused("connect", 3), "cannot serve now"),
        (Refused("connect", 99), "broker: Refused("),
        (Refused("subscribe", b"fleet/pump-7/cmd"), "no command arrives"),
        (ClockNotSet("set the clock before TLS"), "does ntp_host answer?"),
        (CertificateRefused("The certificate Common Name (CN) does not match with the expected CN"), "another name"),
        (CertificateRefused("The certificate validity has expired"), "not valid today"),
        (CertificateRefused("The certificate validity starts in the future"), "not valid today"),
        (CertificateRefused("The certificate is not correctly signed by the trusted CA"), "not signed by tls.ca"),
        (CertificateRefused("-9984"), "not signed by tls.ca"),
        (OSError(-2), "cannot be looked up"),
        (OSError(-202), "cannot be looked up"),
        (OSError("Name or service not known"), "cannot be looked up"),
        (OSError(errno.ECONNREFUSED), "nobody listens"),
        (OSError(101), "no answer"),  # ENETUNREACH on an RP2040, and on an ESP32
        (OSError(114), "no answer"),
        (OSError(errno.ETIMEDOUT), "no answer"),
        (OSError(errno.EHOSTUNREACH), "no answer"),
        (OSError(-30592), "must accept TLS 1.2"),
        (OSError(-29312), "broker: OSError("),
        (LinkLost("connect_timeout"), "no answer"),
        (LinkLost("ping_timeout"), "stopped answering"),
        (LinkLost("id in use elsewhere, or topic forbidden?"), "has another board this device_id, or has this user no"),
        (LinkLost("closed by the broker"), "closed by the broker"),
        (MemoryError(), "MemoryError"),
        (Downgraded("the broker takes QoS 2 for QoS 1"), "takes QoS 2 for QoS 1"),
    ):
        client, _, shown, log = _build()
        log.failed(error)
        (line,) = shown
        assert line.startswith("0 warning broker: ") and told in line, (error, line)
        equal([record["text"] for record in _records(client)], [line[len("0 warning ") :]])


def test_what_a_part_says_itself_is_told_unchanged():
    _, _, shown, log = _build()
    log.failed(RuntimeError("dropped readings are not noted in flash: OSError(28,)"))
    equal(shown, ["0 warning dropped readings are not noted in flash: OSError(28,)"])
    log.failed(RuntimeError())
    equal(shown[1:], ["0 warning RuntimeError()"])


def test_without_memory_for_words_the_error_itself_is_told():
    """Planted: what a part says itself is blamed on the broker."""
    _, _, shown, log = _build()

    class NoMemory:
        @staticmethod
        def of(error):
            raise MemoryError

    sys.modules["app.reasons"] = NoMemory
    try:
        log.failed(RuntimeError("no room"))
    finally:
        sys.modules.pop("app.reasons", None)
    equal(len(shown), 1)
    assert shown[0].startswith("0 warning RuntimeError('no room'"), shown  # MicroPython adds a comma


def test_a_store_that_cannot_write_is_told_as_what_it_is():
    """Planted: an error of the store is blamed on the broker."""
    _, _, shown, log = _build()
    log.failed(StoreError("cannot write /state/mqtt/session: 28"))
    equal(shown, ["0 warning outbox: cannot write /state/mqtt/session: 28"])


def test_a_handshake_that_the_broker_ends_and_a_ban_have_their_words():
    """Planted: only the number is shown. A broker with TLS 1.3 alone, or with Ed25519, ends it with that alert."""
    _, _, shown, log = _build()
    log.failed(OSError(-0x7780, "MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE"))
    log.failed(Refused("connect", 6))
    log.failed(Refused("connect", 7))
    assert "must accept TLS 1.2" in shown[0] and "no Ed25519" in shown[0], shown
    assert "throttles" in shown[1] and "banned" in shown[2], shown


def test_a_reason_is_told_once_an_hour_and_those_of_several_brokers_do_not_push_each_other_out():
    """Planted: only the last reason is remembered."""
    client, ticks, _, log = _build()
    for _ in range(30):
        log.failed(OSError(errno.ECONNREFUSED))
        log.failed(Refused("connect", 4))
        ticks.advance(60_000)
    equal(len(_records(client)), 2)
    for _ in range(60):
        log.failed(OSError(errno.ECONNREFUSED))
        ticks.advance(60_000)
    equal(len(_records(client)), 3)
    for number in range(100):
        log.failed(LinkLost(str(number)))
    assert len(log._reasons) <= 8


def test_what_happened_without_a_link_is_published_with_the_next_one_once_there_is_room():
    """Planted: it goes to the outbox at once, where readings displace it; it is repeated at each link; it is published
    at the cost of a reading; what was displaced by others is not counted."""
    client, _, shown, log = _build(most_pending=5)
    client.connected = False
    log.failed(OSError(errno.ECONNREFUSED))
    log.report("warning", "Wi-Fi: lab: no such network in reach")
    log.report("error", "the crash of the last run", {"crash": "..."})  # this one is kept by its caller, who asks again
    equal((len(shown), client.pending), (3, 1))
    log.step()
    client.connected, client.pending = True, 6
    log.failed(Refused("connect", 4))
    log.step()
    equal(len(_records(client)), 1)
    client.pending = 5
    log.step()
    equal(len(_records(client)), 2)  # again there is no room
    for _ in range(3):
        client.pending = 0
        log.step()
        texts = [record["text"] for record in _records(client)[1:]]
        equal(len(texts), 3)
        assert "nobody listens" in texts[0] and "Wi-Fi" in texts[1] and "password" in texts[2], texts
    client.connected = False
    for number in range(100):
        log.failed(LinkLost(str(number)))
    client.connected = True
    log.step()
    client.pending = 0
    log.step()
    records = _records(client)[4:]
    equal((len(records), records[0]["suppressed"]), (8, 92))


def test_before_a_sleep_what_happened_without_a_link_goes_to_the_outbox():
    client, _, _, log = _build(most_pending=1)
    client.connected = False
    for number in range(3):
        log.report("warning", str(number))
    log.step(last=True)
    equal([record["text"] for record in _records(client)], ["0", "1"])


def test_a_message_whose_function_raised_is_told():
    client, _, shown, log = _build()
    log.dead_letter(b"fleet/pump-7/cmd", b"{}", KeyError("x"))
    assert "fleet/pump-7/cmd" in shown[0] and "KeyError" in shown[0], shown


def test_the_level_can_be_changed_while_it_runs_and_hides_nothing_from_the_topic():
    client, _, _, log = _build()
    log.level = "error"
    log.report("warning", "a")
    log.level = "debug"
    log.report("debug", "b")
    equal((log.lines(), [record["text"] for record in _records(client)]), (["0 debug b"], ["a"]))
    raises(ValueError, log.report, "loud", "c")


def test_the_ring_is_bounded_in_lines_and_characters():
    rng = Rng(3)
    _, _, _, log = _build()
    last = ""
    for number in range(500):
        last = "%d %s" % (number, "x" * rng.below(400))
        log.report("info", last)
        assert len(log.lines()) <= 32 and sum([len(line) for line in log.lines()]) <= 1600
    for number in range(100):
        log.report("info", str(number))
    equal(log.lines(), ["0 info %d" % number for number in range(68, 100)])


def test_a_line_is_cut_and_the_ring_always_holds_several():
    _, _, _, log = _build()
    for number in range(50):
        last = "%d %s" % (number, "x" * 1000)
        log.report("info", last)
    assert log.lines()[-1] == "0 info " + last[:195], log.lines()[-1]
    assert len(log.lines()) > 5


def test_a_flood_is_held_back_counted_and_told():
    client, ticks, _, log = _build()
    for number in range(500):
        equal(log.report("warning", "n%d" % number), True)
    equal(len(_records(client)), 10)
    ticks.advance(60000)
    log.report("warning", "again")
    log.report("warning", "and again")
    equal([record.get("suppressed") for record in _records(client)[9:]], [None, 490])
    ticks.advance(3600000)
    for number in range(500):
        log.report("warning", "m%d" % number)
    equal(len(_records(client)), 21)
    equal(_records(client)[11]["suppressed"], 1)


def test_what_must_not_be_lost_passes_the_limit():
    client, _, _, log = _build()
    for number in range(30):
        log.report("warning", "n%d" % number, {"n": number}, True)
    equal([record["n"] for record in _records(client)], list(range(30)))


def test_records_do_not_push_readings_out_of_a_full_outbox():
    client = fakes.Client(100)
    _, _, _, log = _build(client, most_pending=75)
    client.pending = 76
    equal(log.report("error", "x"), False)
    client.pending = 75
    equal(log.report("error", "x"), True)


def test_a_record_that_is_refused_is_kept_once_however_often_it_is_tried():
    client, _, _, log = _build(fakes.Client(room=0))
    for _ in range(50):
        equal(log.report("warning", "x"), False)
    equal(log.lines(), ["0 warning x"])
    client.room = 1
    equal(log.report("warning", "x"), True)


def test_a_text_is_bounded_and_may_hold_anything():
    client, _, _, log = _build()
    log.report("error", 'é"\n\\' * 1000)
    assert len(client.payloads(_TOPIC)[0]) < 4000
    equal(len(_records(client)[0]["text"]), 400)

"""The setup portal applies a submitted form on trial, and nothing that a stranger sends harms it."""

import json
import os

import startup
from app import replace as replacing
from app.settings_files import load, save
from app.settings_trial import give_back
from portal import read
from portal import server as portal_server
from portal.code import Lock, new_code
from portal.dns import answer
from portal.http import BadRequest, Request, escape, read_form
from portal.server import OPEN_MS, Portal, hear, say
from umqtt_testkit.flash import ROOT, PowerCutFlash
from umqtt_testkit.portable import FULL, Rng, equal, new_path, raises

HEAP = "8M"
TIMEOUT_S = 900
CODE = "K7QF-M2XA-9TRW"
ADDRESS = b"\xc0\xa8\x04\x01"
PEM = "-----BEGIN CERTIFICATE-----\r\nMIIB+/=\r\n-----END CERTIFICATE-----\r\n"


def _quote(text):
    return "".join(["%%%02x" % byte for byte in text.encode()])


def _post(**form):
    body = "&".join(["%s=%s" % (name, _quote(value)) for name, value in form.items()])
    head = "POST / HTTP/1.1\r\nHost: 192.168.4.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    return (head + body).encode()


def _request(data):
    request = Request()
    assert request.feed(data)
    return request


def _is_code(text):
    groups = [len(group) for group in text.split("-")]
    return groups == [4, 4, 4] and not text.strip("-23456789ABCDEFGHJKLMNPQRSTUVWXYZ")


def _folder():
    root = new_path("portal")
    os.mkdir(root)
    return root


def _portal(root):
    return Portal(root, CODE, "umqtt-a1b2c3", "192.168.4.1")


def _submit(portal, now_ms=0, **form):
    return b"".join(portal.respond(_request(_post(**form)), now_ms)).decode()


def test_a_board_without_settings_takes_over_a_form_and_its_code_is_replaced():
    root = _folder()
    portal = _portal(root)
    said = _submit(
        portal, code="k7qf m2xa9trw", ssid="home & away", wifi_password="pass word", broker="mqtts://b.example",
        username="pump", password="secret+%", ca=PEM,
    )  # fmt: skip
    assert "Saved." in said and portal.next_code in said, said
    assert _is_code(portal.next_code) and portal.next_code != CODE
    settings, secrets = load(root)
    equal((settings["wifi"], settings["brokers"]), (["home & away"], ["mqtts://b.example"]))
    equal(secrets["wifi"], {"home & away": "pass word"})
    equal(secrets["mqtt"], {"username": "pump", "password": "secret+%"})
    with open(root + secrets["tls"]["ca"]) as file:
        equal(file.read(), PEM.replace("\r\n", "\n"))
    # Settings that reach no broker are taken back, and the portal opens again.
    assert give_back(root, 1)
    equal(read(root + "/settings.json"), {})


def test_fields_that_are_empty_leave_a_board_as_it_is():
    root = _folder()
    before = {"brokers": ["mqtt://a"], "wifi": ["old"], "interval_ms": 5000}
    secrets = {"wifi": {"old": "password1"}, "commands": {"key": "a" * 64}}
    for name, values in (("settings", before), ("secrets", secrets)):
        with open("%s/%s.json" % (root, name), "w") as file:
            file.write(json.dumps(values))
    assert "Saved." in _submit(_portal(root), code=CODE, ssid="new", wifi_password="password2")
    settings, new = load(root)
    equal((settings["wifi"], settings["brokers"], settings["interval_ms"]), (["new", "old"], ["mqtt://a"], 5000))
    equal((new["wifi"], new["commands"]), ({"new": "password2", "old": "password1"}, secrets["commands"]))
    assert give_back(root, 1)
    equal(read(root + "/settings.json"), before)
    equal(read(root + "/secrets.json"), secrets)


WRONG_FORMS = (
    ({"ssid": "s"}, "settings.json: brokers: "),
    ({"broker": "mqtt://a"}, "settings.json: wifi: must be given"),
    ({"ssid": "s", "broker": "http://a"}, "must begin with mqtt://"),
    ({"ssid": "s" * 33, "broker": "mqtt://a"}, "settings.json: wifi: network 1"),
    ({"ssid": "s", "wifi_password": "short", "broker": "mqtt://a"}, "8 to 63 characters"),
    ({"ssid": "s", "broker": "mqtts://a"}, "secrets.json: tls.ca: is missing"),
    ({"ssid": "s", "broker": "mqtts://a", "ca": "-----BEGIN RSA PRIVATE KEY-----"}, "must begin with -----BEGIN CERT"),
)


def test_a_form_that_a_board_could_not_start_with_changes_nothing_and_says_why():
    for form, problem in WRONG_FORMS:
        root = _folder()
        portal = _portal(root)
        said = _submit(portal, code=CODE, **form)
        assert '<p role="alert">' in said and problem in said, said
        equal((os.listdir(root), portal.next_code), ([], None))


def test_wrong_codes_wait_longer_each_are_counted_and_close_the_portal():
    root = _folder()
    portal = _portal(root)
    form = {"ssid": "s", "broker": "mqtt://a"}
    now, counted = 0, []
    while portal.reason_to_close(now) is None:
        if "The code is wrong" in _submit(portal, now, code="K7QF-M2XA-9TRX", **form):
            counted.append(now)
            # During the wait not even the right code is checked.
            assert "Wait" in _submit(portal, now + 1000, code=CODE, **form)
        now += 500
    waits = [counted[i + 1] - counted[i] for i in range(len(counted) - 1)]
    equal(waits, [2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000, 60000])
    equal(portal.reason_to_close(now), "closed after 10 wrong codes")
    equal(os.listdir(root), [])


def test_the_portal_closes_after_ten_minutes():
    portal = _portal(_folder())
    equal((portal.reason_to_close(OPEN_MS - 1), portal.reason_to_close(OPEN_MS)), (None, "closed after 10 min"))


def test_a_reader_that_is_slow_neither_lets_the_watchdog_bite_nor_holds_the_board():
    """Planted: a whole piece is written at once; each piece has ten seconds; the watchdog is not fed."""
    now, fed = [0], []

    class Time:
        ticks_ms = staticmethod(lambda: now[0])
        ticks_diff = staticmethod(lambda later, earlier: later - earlier)

    class Watchdog:
        feed = staticmethod(lambda: fed.append(now[0]))

    class Reader:
        def __init__(self, takes, ms):
            self.takes, self.ms, self.got, self.limit_ms = takes, ms, b"", None

        def settimeout(self, seconds):
            self.limit_ms = seconds * 1000

        def send(self, data):
            now[0] += min(self.ms, self.limit_ms)
            if self.ms > self.limit_ms:
                raise OSError(110)
            self.got += data[: self.takes]
            return min(len(data), self.takes)

    kept = portal_server.time, startup.watchdog
    portal_server.time, startup.watchdog = Time, Watchdog
    try:
        for takes, ms, arrives in ((100, 20, True), (1, 3000, False), (500, 60000, False)):
            portal = _portal(_folder())
            portal.next_code = "next"
            begun = now[0]
            del fed[:]
            reader = Reader(takes, ms)
            say(portal, reader, [b"x" * 900, b"y" * 900])
            equal((reader.got == b"x" * 900 + b"y" * 900, portal.next_code), (arrives, "next" if arrives else CODE))
            gaps = [later - earlier for earlier, later in zip(fed, fed[1:] + [now[0]])]
            assert gaps and max(gaps) < 8388 and now[0] - begun < 16000, (gaps, now[0] - begun)
    finally:
        portal_server.time, startup.watchdog = kept


def test_codes_have_sixty_random_bits():
    codes = {new_code() for _ in range(50)}
    equal(len(codes), 50)
    for code in codes:
        assert _is_code(code), code
        equal(Lock(code).problem(code.lower(), 0), None)


def test_what_a_form_held_goes_back_escaped():
    said = _submit(_portal(_folder()), code=CODE, ssid='"><script>alert(1)</script>', broker="ftp://'<b>")
    assert "<script" not in said and "<b>" not in said and "&#39;" in said, said
    # The page holds neither a password nor the code.
    said = _submit(_portal(_folder()), code=CODE, ssid="s", wifi_password="hush-hush", password="hush-hush")
    assert "hush" not in said and CODE not in said, said
    equal(escape("&<>\"'"), "&amp;&lt;&gt;&quot;&#39;")


def test_the_networks_that_are_heard_are_listed_and_one_of_them_or_another_is_taken():
    """Planted: the list is not escaped; the name that was typed does not count."""

    class Station:
        on = False

        def active(self, on):
            self.on = on

        def scan(self):
            found = ((b"barn", -80), (b"", -10), (b"<b>", -70), (b"barn", -50), (b"\xff\xfe", -20))
            return [(ssid, b"", 1, dbm, 3, 0) for ssid, dbm in found]

    station = Station()
    heard = hear(station)
    equal((heard, station.on), ([("barn", -50), ("<b>", -70)], False))
    for form, wanted in (({"heard": "barn"}, "barn"), ({"heard": "barn", "ssid": "cellar"}, "cellar")):
        root = _folder()
        portal = Portal(root, CODE, "umqtt-a1b2c3", "192.168.4.1", heard)
        said = _submit(portal, code="wrong", **form)
        assert '<option value="barn" selected>barn (strong, -50 dBm)</option>' in said, said
        assert "&lt;b&gt; (good, -70 dBm)" in said and "<b>" not in said, said
        said = _submit(portal, 60_000, code=CODE, broker="mqtt://a", wifi_password="hush-hush", **form)
        assert "Saved." in said, said
        equal(read(root + "/settings.json")["wifi"], [wanted])


def test_every_address_but_the_page_leads_to_it():
    for path in ("/generate_204", "/hotspot-detect.html", "//", "/?a", "http://evil.example/"):
        said = b"".join(_portal(_folder()).respond(_request(("GET %s HTTP/1.1\r\n\r\n" % path).encode()), 0))
        assert said.startswith(b"HTTP/1.1 302 ") and b"\r\nLocation: http://192.168.4.1/\r\n" in said, said


def _outcome(pieces):
    request = Request()
    try:
        for piece in pieces:
            if request.feed(piece):
                return request.method, request.path, bytes(request.body)
    except BadRequest as bad:
        return bad.args[0][:3]
    return None


def _padded(size):
    # A request head of this size, with its end.
    return b"GET / HTTP/1.1\r\nA: " + b"x" * (size - 19) + b"\r\n\r\n"


REQUESTS = (
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/", b"")),
    (b"POST / HTTP/1.0\r\ncontent-length:  3 \r\n\r\nabcdef", ("POST", "/", b"abc")),
    (b"GET /\r\n\r\n", "400"),
    (b"GET / FTP/1\r\n\r\n", "400"),
    (b"GET /\xff HTTP/1.1\r\n\r\n", "400"),
    (b"BREW / HTTP/1.1\r\n\r\n", "405"),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "411"),
    (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"),
    (b"POST / HTTP/1.1\r\nContent-Length: \r\n\r\n", "400"),
    (b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400"),
    (b"POST / HTTP/1.1\r\nContent-Length: 4097\r\n\r\n", "413"),
    (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\n", "413"),
    (_padded(2048), ("GET", "/", b"")),
    (_padded(2049), "431"),
    (b"x" * 2060, "431"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n", None),
)


def test_a_request_split_at_every_byte_is_the_same_request():
    # Planted: the end of the head is searched in the last piece alone; the limit is applied to each piece.
    for data, wanted in REQUESTS:
        equal(_outcome([data]), wanted, data[:60])
        equal(_outcome([data[i : i + 1] for i in range(len(data))]), wanted, data[:60])
        for cut in range(1, len(data), 1 if FULL or len(data) < 300 else 97):
            equal(_outcome([data[:cut], data[cut:]]), wanted, data[:60])


def test_no_request_makes_a_board_keep_more_than_its_limits():
    request = Request()
    fed = 0
    try:
        while True:
            assert not request.feed(b"y" * 100)
            fed += 100
    except BadRequest:
        pass
    assert fed <= 2200, fed


def test_random_bytes_are_a_bad_request_or_a_whole_one_and_changes_nothing():
    rng = Rng(16)
    root = _folder()
    portal = _portal(root)
    words = [
        b"POST / HTTP/1.1\r\n", b"GET ", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Content-Length: 9\r\n", b"%", b"%4",
        b"&", b"code=", CODE.encode()[:9], b"ssid=", b"=", b"\0\xff", b": ", b"ca=%0d%0a",
    ]  # fmt: skip
    for _ in range(20000 if FULL else 1500):
        data = b"".join([words[rng.below(len(words))] for _ in range(rng.below(14))])
        request = Request()
        try:
            if request.feed(data):
                assert b"".join(portal.respond(request, 0)).startswith(b"HTTP/1.1 ")
        except BadRequest:
            pass
    equal((os.listdir(root), portal.next_code), ([], None))


def _with_body(body):
    request = Request()
    request.body = body
    return request


def test_a_form_is_read_as_browsers_write_it():
    form = read_form(_with_body(b"ssid=caf%C3%A9+%26+bar&wifi_password=+x+&unknown=1&broker=%20mqtt://a%0D%0A"))
    equal((form["ssid"], form["wifi_password"], form["broker"], form["code"]), ("caf\xe9 & bar", " x ", "mqtt://a", ""))
    for wrong in (b"ssid=%", b"ssid=%4", b"ssid=%zz", b"ssid=%ff", b"%ff=1"):
        raises(BadRequest, read_form, _with_body(wrong))


def _query(name, kind=1, flags=b"\1\0"):
    labels = b"".join([bytes([len(label)]) + label for label in name])
    return b"\x12\x34" + flags + b"\0\1\0\0\0\0\0\0" + labels + b"\0" + bytes([0, kind, 0, 1])


def test_every_name_is_the_board():
    query = _query((b"captive", b"apple", b"com"))
    said = answer(query, ADDRESS)
    equal(said[:12], b"\x12\x34\x85\0\0\1\0\1\0\0\0\0")
    equal((said[12 : len(query)], said[-6:]), (query[12:], b"\0\4" + ADDRESS))
    # There is no IPv6 address, and the answer says so at once.
    equal(answer(_query((b"a",), kind=28), ADDRESS)[2:12], b"\x85\0\0\1\0\0\0\0\0\0")


def test_what_is_no_query_gets_no_answer_however_it_is_cut():
    # Planted: the length of the last label is not compared with the end of the packet.
    query = _query((b"captive", b"apple", b"com"))
    for size in range(len(query)):
        equal(answer(query[:size], ADDRESS), None, size)
    for wrong in (
        _query((b"a",), flags=b"\x81\0"), _query((b"a",), flags=b"\x28\0"), query[:5] + b"\2" + query[6:],
        _query([b"x" * 63] * 5), query[:12] + b"\xc0\x0c" + query[14:],
    ):  # fmt: skip
        equal(answer(wrong, ADDRESS), None, wrong)
    rng = Rng(5)
    for _ in range(2000):
        noise = bytes([rng.below(256) if rng.below(3) else rng.below(4) for _ in range(rng.below(40))])
        said = answer(noise, ADDRESS)
        assert said is None or len(said) <= len(noise) + 16, noise


OLD_SETTINGS = {"brokers": ["mqtt://old"], "wifi": ["old"]}
OLD_SECRETS = {"wifi": {"old": "password1"}}


def _sweep():
    def scenario(root, ledger):
        portal = _portal(root)
        _submit(portal, code=CODE, ssid="new", wifi_password="password2", broker="mqtts://new", ca=PEM)
        ledger["told"] = portal.next_code

    def check(root, ledger):
        settings, secrets = load(root)
        is_new = settings["wifi"] == ["new", "old"]
        equal((settings["brokers"], settings["wifi"][-1]), (["mqtts://new" if is_new else "mqtt://old"], "old"))
        assert is_new or not ledger.get("told"), settings
        for ssid in settings["wifi"]:
            assert ssid in secrets["wifi"], ssid
        assert give_back(root, 1) or not is_new
        equal(read(root + "/settings.json"), OLD_SETTINGS)
        equal(read(root + "/secrets.json"), OLD_SECRETS)

    with PowerCutFlash("esp32", 80) as flash:
        save(ROOT, "settings.json", OLD_SETTINGS)
        save(ROOT, "secrets.json", OLD_SECRETS)
        return flash.sweep(scenario, check, most=None if FULL else 60, seed=5)


def test_a_power_cut_at_any_flash_operation_leaves_settings_that_start_and_the_old_ones_within_reach():
    print(_sweep())


def test_the_sweep_finds_planted_mistakes():
    """Planted: no earlier settings are kept; the settings are written before the secrets."""
    kept = replacing.keep_before, replacing.save

    def settings_first(folder, file, values):
        if file == "secrets.json":
            later.append((folder, file, values))
        else:
            kept[1](folder, file, values)
            kept[1](*later.pop())

    for planted in ((lambda folder, file, values: None, kept[1]), (kept[0], settings_first)):
        later = []
        replacing.keep_before, replacing.save = planted
        try:
            print(raises((AssertionError, ValueError), _sweep))
        finally:
            replacing.keep_before, replacing.save = kept

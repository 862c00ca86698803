"""The console in a real browser: each journey, on a desk and a phone, in light and dark, with hostile names."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
import umqtt_page
from gold_tables import END_US, US, empty, fleet, ingest
from live_device import PlayedDevice
from page_checks import FAINT_TEXT, NAMELESS
from served_console import Serve, ServedConsole
from umqtt_console.access import add_user
from umqtt_console.app import VIEWS
from umqtt_kit.processes import module_command
from umqtt_testkit.waiting import WAIT_LIMIT_S

playwright = pytest.importorskip("playwright.sync_api")
OpenPage = Callable[..., "playwright.Page"]
PASSWORD = "correct horse"
HOSTILE = (
    '"><img src=x onerror=alert(1)>',
    "<script>alert(2)<!script>",
    "'-alert(3)-'",
    "javascript:alert(4)",
    "{{constructor.constructor('alert(5)')()}}",
    "\u202egnp.exe\u200b",
    "<svg onload=alert(6)>",
    "__proto__",
)


# What axe-core finds, a line each.
AXE = """axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations.map((one) =>
  `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`))"""


@pytest.fixture
def open_page(browser: "playwright.Browser") -> Iterator[OpenPage]:
    """Provide a function that opens an address; a script error, a dialog or a request to elsewhere fails the test."""
    wrong: list[str] = []
    contexts = []

    def opened(console: ServedConsole, path: str = "/", **options: object) -> "playwright.Page":
        context = browser.new_context(**{"timezone_id": "Europe/Berlin", **options})
        context.set_default_timeout(WAIT_LIMIT_S * 1000)
        playwright.expect.set_options(timeout=WAIT_LIMIT_S * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda said: "Content Security" in said.text and wrong.append(said.text))
        own = (console.url, f"blob:{console.url}")
        page.on("request", lambda asked: asked.url.startswith(own) or wrong.append(f"asked for {asked.url}"))
        page.goto(console.url + path)
        expect(page.locator("body")).to_have_attribute("data-state", re.compile("ready|locked"))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def expect(target: "playwright.Locator | playwright.Page") -> "playwright.LocatorAssertions":
    return playwright.expect(target)


def devices(page: "playwright.Page") -> "playwright.Locator":
    return page.get_by_role("table", name="Devices").locator("tbody tr:not(.spacer)")


def section(page: "playwright.Page", name: str) -> "playwright.Locator":
    return page.get_by_role("region", name=name, exact=True).first


@pytest.mark.smoke
def test_the_fleet_is_searched_filtered_and_sorted_and_the_view_is_an_address(
    open_page: OpenPage, serve: Serve, fleet_of_forty: Path
) -> None:
    console = serve(fleet_of_forty)
    page = open_page(console)
    expect(page.locator(".tile").filter(has_text="Devices").first).to_contain_text("40")
    expect(devices(page).first).to_contain_text("offline")
    page.locator(".facets").get_by_role("button", name="offline").click()
    expect(page).to_have_url(re.compile("health=%5B%22offline%22%5D"))
    offline = console.get("devices", filter={"health": ["offline"]})["matched"]
    expect(devices(page)).to_have_count(offline)
    page.locator(".facets").get_by_role("button", name="offline").click()
    page.get_by_role("searchbox").fill("pump")
    expect(page).to_have_url(re.compile("search=pump"))
    expect(devices(page)).to_have_count(console.get("devices", search="pump")["matched"])
    page.locator("th").get_by_role("button", name="Readings").click()
    expect(page.locator("th[data-key=readings]")).to_have_attribute("aria-sort", "descending")
    shown = devices(page).locator("td[data-key=device]").all_text_contents()
    wanted = console.get("devices", search="pump", sort="readings", order="down")
    assert shown == [row[0] for row in wanted["rows"]]
    # The address alone gives the view again, and Back goes to where one was.
    again = open_page(console, page.url.removeprefix(console.url))
    expect(devices(again)).to_have_count(len(shown))
    assert devices(again).locator("td[data-key=device]").all_text_contents() == shown
    devices(page).first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(shown[0])
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("pump")


def test_own_metrics_become_columns_with_lines(open_page: OpenPage, serve: Serve, fleet_of_forty: Path) -> None:
    page = open_page(serve(fleet_of_forty))
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Temperature, with its day").check()
    expect(devices(page).first.locator("svg.spark path")).to_have_count(1)
    expect(devices(page).first).to_contain_text("°C")
    expect(page).to_have_url(re.compile("columns|fleet$"))
    page.reload()
    expect(devices(page).first.locator("svg.spark path")).to_have_count(1)


def test_a_device_shows_charts_boots_gaps_and_traces_a_reading(
    open_page: OpenPage, serve: Serve, story_of_four: Path
) -> None:
    page = open_page(serve(story_of_four), "/device?id=pump-7")
    expect(page.get_by_role("heading", level=1)).to_have_text("pump-7")
    chart = page.locator("figure").filter(has=page.get_by_role("heading", name="Temperature"))
    # 2026-11-18 11:55 UTC, in the viewer's zone.
    expect(chart.locator(".readout")).to_have_text("18 Nov 12:55: 15.0 °C")
    chart.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".readout")).to_have_text("18 Nov 12:50: 15.0 °C")
    page.get_by_role("button", name="1 h", exact=True).click()
    expect(chart.locator(".readout")).to_contain_text("18 Nov 12:59")
    boots = page.get_by_role("table", name="Boots")
    expect(boots.locator("tbody tr")).to_have_count(2)
    expect(boots).to_contain_text("watchdog")
    page.get_by_label("Seq").fill("5")
    page.get_by_role("button", name="Trace").click()
    expect(page.locator(".steps li.ok")).to_have_count(2)
    expect(page.locator(".steps")).to_contain_text("Stored once.")


def test_a_chart_zooms_by_dragging(open_page: OpenPage, serve: Serve, story_of_four: Path) -> None:
    page = open_page(serve(story_of_four), "/device?id=pump-8")
    over = page.locator("figure").filter(has=page.get_by_role("heading", name="Battery")).locator(".u-over")
    box = over.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 30, steps=5)
    page.mouse.up()
    expect(page).to_have_url(re.compile("from=[0-9]+&to=[0-9]+"))
    page.get_by_role("button", name="Zoomed").click()
    expect(page).not_to_have_url(re.compile("from="))


def test_live_values_settings_and_commands(open_page: OpenPage, serve: Serve, story_of_four: Path, broker: int) -> None:
    device = PlayedDevice(broker, "pump-7", lambda asked: [{"id": asked["id"], "ok": True, "result": {"fw": "0.2.0"}}])
    device.say("reported", {"boot": "5-x", "settings": {"interval_ms": 1000}}, retain=True)
    device.say("desired", {"id": "x", "cmd": "set", "args": {"settings": {"interval_ms": 5000}}}, retain=True)
    flags = [f"--broker=mqtt://127.0.0.1:{broker}"]
    console = serve(story_of_four, broker=broker, program=module_command("umqtt_cli"), broker_flags=flags)
    page = open_page(console, "/device?id=pump-7")
    now = section(page, "Now")
    expect(now).to_contain_text("interval_ms is 1000, not 5000")
    device.say("telemetry", {"v": 1, "id": "pump-7", "boot": "5-x", "seq": 1, "m": {"temp_c": 22.5, "outbox": 3}})
    expect(now).to_contain_text("22.5 °C")
    expect(section(page, "State")).to_contain_text("3 waiting")
    page.get_by_role("button", name="Send").click()
    question = page.get_by_role("dialog")
    expect(question).to_contain_text("umqtt cmd")
    question.get_by_role("button", name="Do it").click()
    act = section(page, "Act")
    expect(act).to_contain_text("done")
    expect(act).to_contain_text("fw = 0.2.0")
    page.goto(f"{console.url}/acts")
    log = page.get_by_role("table", name="Acts")
    expect(log.locator("tbody tr")).to_have_count(1)
    expect(log).to_contain_text("pump-7: asks who runs there")


def test_the_data_path_and_its_quarantine(open_page: OpenPage, serve: Serve, tmp_path: Path, broker: int) -> None:
    bad = {"v": 1, "id": "pump-1", "boot": "1-x", "seq": -1}
    good = [
        {"v": 1, "id": "pump-1", "boot": "1-x", "seq": seq, "ts": END_US // 1000 + seq * 1000, "m": {"t": 1}}
        for seq in range(90)
    ]
    sent = [("fleet/pump-1/telemetry", one, END_US + at * US) for at, one in enumerate([*good, bad])]
    ingest(tmp_path, sent)
    page = open_page(serve(tmp_path, broker=broker), "/path")
    expect(page.locator(".flow li")).to_have_count(5)
    expect(page.locator(".flow li").filter(has_text="silver")).to_contain_text("90")
    expect(page.get_by_role("table", name="Quarantine by reason").locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("table", name="Quarantined messages")).to_contain_text('"seq": -1')
    expect(page.locator("figure").filter(has_text="Readings").locator("canvas")).to_have_count(1)


def test_topics_as_a_tree_with_what_the_rules_make_of_them(
    open_page: OpenPage, serve: Serve, fleet_of_forty: Path, broker: int
) -> None:
    def explain(*message: object) -> dict[str, object]:
        status = {"device_id": "kitchen", "online": True}
        return {"rule": "zigbee", "readings": [], "status": status, "log": False, "reasons": [], "ignored": False}

    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker)
    client.loop_start()
    client.publish("house/kitchen", b'{"t": 21.5}', 1, retain=True).wait_for_publish(WAIT_LIMIT_S)
    page = open_page(serve(fleet_of_forty, broker=broker, explain=explain), "/topics?filter=house/%23")
    page.get_by_role("button", name="Topics below house").click()
    line = page.locator(".topic .topic").filter(has_text="kitchen")
    expect(line).to_contain_text('{"t": 21.5}')
    expect(line).to_contain_text("retained")
    line.get_by_role("button", name="kitchen").click()
    detail = section(page, "Message")
    expect(detail.locator("pre")).to_have_text('{\n  "t": 21.5\n}')
    expect(detail).to_contain_text("Rule: zigbee")
    client.publish("house/kitchen", b"off", 1).wait_for_publish(WAIT_LIMIT_S)
    client.loop_stop()
    expect(detail.locator("pre")).to_have_text("off")


def test_sql_gives_rows_a_chart_and_files(open_page: OpenPage, serve: Serve, fleet_of_forty: Path) -> None:
    page = open_page(serve(fleet_of_forty), "/explore")
    page.get_by_label("SQL").fill("SELECT minute, readings, devices FROM traffic ORDER BY minute")
    page.get_by_role("button", name="Run").click()
    expect(section(page, "Result").locator("tbody tr:not(.spacer)").first).to_be_visible()
    expect(page.locator("figure canvas")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert Path(download.value.path()).read_text().startswith('"minute","readings","devices"')
    page.get_by_label("SQL").fill("SELECT * FROM nothing")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("nothing does not exist")


def test_a_login_leads_back_to_the_view(
    open_page: OpenPage, serve: Serve, fleet_of_forty: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    add_user(users, "ann", "read", PASSWORD)
    console = serve(fleet_of_forty, users=users)
    page = open_page(console, "/fleet?search=gate")
    expect(page.locator("body")).to_have_attribute("data-state", "locked")
    for password in ("wrong password", PASSWORD):
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()
        if password != PASSWORD:
            expect(page.get_by_role("alert")).to_have_text("name or password are wrong")
    expect(page.locator("body")).to_have_attribute("data-state", "ready")
    expect(devices(page)).to_have_count(console.get("devices", cookie=_cookie(page), search="gate")["matched"])
    page.goto(f"{console.url}/acts")
    expect(page.get_by_text("The role read sees what was done")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def _cookie(page: "playwright.Page") -> str:
    return next(one["value"] for one in page.context.cookies() if one["name"] == "umqtt_session")


def test_a_killed_console_loses_no_view(
    open_page: OpenPage, serve: Serve, fleet_of_forty: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(fleet_of_forty, folder)
    audit = tmp_path / "audit.jsonl"
    with ServedConsole(folder, audit=audit) as first:
        page = open_page(first, "/fleet?search=roof")
        expect(devices(page)).to_have_count(5)
        port = first.port
    expect(page.locator("#banners")).to_contain_text("The console does not answer")
    fleet(folder, devices=8, days=0.1)
    with ServedConsole(folder, audit=audit, port=port):
        expect(page.locator("#banners")).to_be_empty()
        expect(devices(page)).to_have_count(1)
        expect(page.get_by_role("searchbox")).to_have_value("roof")


def test_new_tables_come_by_themselves_and_lost_ones_are_said(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    page = open_page(serve(empty(folder)))
    expect(page.get_by_text("No device has sent a reading yet")).to_be_visible()
    fleet(folder, devices=1, days=0.1)
    expect(devices(page)).to_have_count(1)
    fleet(folder, devices=6, days=0.1)
    expect(devices(page)).to_have_count(6)
    folder.rename(tmp_path / "away")
    expect(page.locator("#banners")).to_contain_text("cannot be read")
    expect(devices(page)).to_have_count(6)
    (tmp_path / "away").rename(folder)
    expect(page.locator("#banners")).to_be_empty()


def test_nothing_from_outside_is_markup(open_page: OpenPage, serve: Serve, tmp_path: Path, broker: int) -> None:
    names = [name.replace("/", "!") for name in HOSTILE]
    sent = []
    for at, name in enumerate(names):
        record = {"v": 1, "id": name, "boot": f"1-{at}", "seq": 0, "ts": END_US // 1000, "m": {f"m{at}": at}}
        sent.append((f"fleet/{name}/telemetry", record, END_US + at * US))
        crash = {"n": 1, "boot": 1, "traceback": f'File "{name}", line 1\n{name}'}
        sent.append((f"fleet/{name}/log", {"level": "error", "text": name, "crash": crash}, END_US + at * US))
        sent.append(
            (
                f"fleet/{name}/status",
                {"online": True, "fw": name, "reason": name, "boot": f"1-{at}", "cause": name},
                END_US + at * US,
            )
        )
        sent.append((f"fleet/{name}/telemetry", {name: name}, END_US + at * US))
    ingest(tmp_path, sent)
    console = serve(tmp_path, broker=broker)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker)
    client.loop_start()
    for name in names:
        client.publish(f"x/{name}".replace("+", "").replace("#", ""), name.encode(), 1, retain=True).wait_for_publish(
            60
        )
    client.loop_stop()
    page = open_page(console)
    known = console.get("fleet")["totals"]["devices"]
    assert known >= 5
    expect(devices(page)).to_have_count(known)
    assert "\u202e" not in page.locator("body").inner_text()
    for at in range(known):
        page.goto(console.url)
        devices(page).nth(at).get_by_role("link").click()
        expect(page.get_by_role("table", name="Boots").locator("tbody tr")).not_to_have_count(0)
    for path in (
        "/path",
        "/crashes",
        "/acts",
        "/topics?filter=x/%23",
        "/device?id=%3Cimg%20src=x%20onerror=alert(1)%3E",
    ):
        page.goto(console.url + path)
        expect(page.locator("body")).to_have_attribute("data-state", "ready")
    page.goto(f"{console.url}/topics?filter=x/%23")
    page.get_by_role("button", name="Topics below x").click()
    expect(page.locator(".topic .topic")).not_to_have_count(0)
    page.locator(".topic .topic button.open").first.click()
    assert page.locator("#view img, #view script, #view svg[onload]").count() == 0


def test_many_rows_are_drawn_as_few(open_page: OpenPage, serve: Serve, tmp_path: Path) -> None:
    fleet(tmp_path, devices=3000, days=0.01)
    page = open_page(serve(tmp_path))
    expect(page.get_by_role("table", name="Devices")).to_have_attribute("aria-rowcount", "3001")
    assert devices(page).count() < 80
    page.locator(".box").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    last = devices(page).last
    expect(last).to_have_attribute("aria-rowindex", "3001")
    expect(last.locator("td").first).not_to_have_text("…")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_phone_and_desk_and_can_be_read(
    open_page: OpenPage, serve: Serve, story_of_four: Path, broker: int, scheme: str
) -> None:
    console = serve(story_of_four, broker=broker)
    page = open_page(console, color_scheme=scheme)
    for view in [*VIEWS, "/device?id=pump-7"]:
        page.goto(console.url + view)
        expect(page.locator("body")).to_have_attribute("data-state", "ready")
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
        assert page.evaluate(FAINT_TEXT) == [], view
        assert page.evaluate(NAMELESS) == [], view


def test_the_page_is_small_and_everything_is_served_from_here(serve: Serve, fleet_of_forty: Path) -> None:
    console = serve(fleet_of_forty)
    index = console.call("GET", "/").body.decode()
    modules = ["main", "fleet", "device", "path", "topics", "explore", "acts", "table", "chart", "dom"]
    names = [*re.findall(r'(?:src|href)="/([\w./]+\.(?:js|css|svg))"', index), *(f"{one}.js" for one in modules)]
    size = len(index) + sum(len(console.call("GET", f"/{name}").body) for name in set(names))
    print(f"{size:,} bytes")
    assert size < 300_000
    assert "MIT" in (Path(umqtt_page.__file__).parent / "uplot" / "LICENSE").read_text()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Provide axe-core's script, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    found = subprocess.run(["npm", "pack", "axe-core@4.14.1"], cwd=folder, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("axe-core cannot be fetched from npm here")
    (archive,) = folder.glob("*.tgz")
    shutil.unpack_archive(archive, folder)
    return (folder / "package" / "axe.min.js").read_text()


def test_axe_finds_nothing(open_page: OpenPage, serve: Serve, story_of_four: Path, broker: int, axe: str) -> None:
    console = serve(story_of_four, broker=broker)
    page = open_page(console)
    # The page's policy lets no script in; the browser's own door does.
    session = page.context.new_cdp_session(page)
    for view in [*VIEWS, "/device?id=pump-7"]:
        page.goto(console.url + view)
        expect(page.locator("body")).to_have_attribute("data-state", "ready")
        session.send("Runtime.evaluate", {"expression": axe})
        found = page.evaluate(AXE)
        assert found == [], (view, json.dumps(found, indent=1))

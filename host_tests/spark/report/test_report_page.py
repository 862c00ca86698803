"""The report in a real browser, opened as a file: what it shows, what it does, and what it never does."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gold_tables import END_US, HOUR, decoded, empty, fleet, write_rows
from umqtt_testkit.waiting import WAIT_LIMIT_S

from spark_ingest.report import write_report
from spark_ingest.report.build import collect
from spark_ingest.report.gold import Gold

playwright = pytest.importorskip("playwright.sync_api")
OpenPage = Callable[..., "playwright.Page"]

# Finds every text with less contrast to its background than WCAG AA requires.
FAINT_TEXT = """() => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    pixel.clearRect(0, 0, 1, 1); pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const over = (front, back) => {
    const share = front[3] / 255;
    return [0, 1, 2].map((i) => front[i] * share + back[i] * (1 - share)).concat(255);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(parts(getComputedStyle(at).backgroundColor));
    return layers.reduce((back, front) => over(front, back), [255, 255, 255, 255]);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.getClientRects().length) continue;
    if (node.closest(".hidden, .skip, script, noscript")) continue;
    const style = getComputedStyle(node);
    const back = behind(node);
    const front = over(parts(node.closest("svg") ? style.fill : style.color), back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    if ((high + .05) / (low + .05) < 4.5) faint.push(`${text.data.trim()} (${node.className})`);
  }
  return faint;
}"""
# Finds every control that a screen reader could not name.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, a, [tabindex='0']")].filter((node) =>
  node.getClientRects().length && !(node.textContent.trim() && !node.matches("select, .scroll, .plot"))
  && !node.getAttribute("aria-label") && !node.labels?.length).map((node) => node.outerHTML.slice(0, 80))"""


@pytest.fixture
def open_page(browser: "playwright.Browser") -> Iterator[OpenPage]:
    """Provide a function that opens a file; a script error, console message or outside request fails the test."""
    wrong: list[str] = []
    contexts = []

    def opened(file: Path, fragment: str = "", **options: object) -> "playwright.Page":
        context = browser.new_context(**options)
        context.set_default_timeout(WAIT_LIMIT_S * 1000)
        playwright.expect.set_options(timeout=WAIT_LIMIT_S * 1000)
        contexts.append(context)
        page = context.new_page()
        address = file.as_uri()
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("console", lambda said: wrong.append(f"console: {said.text}"))
        page.on(
            "request",
            lambda asked: asked.url.split("#")[0] == address or _is_data(asked.url) or wrong.append(asked.url),
        )
        page.goto(address + fragment)
        expect(page.locator("body")).to_have_attribute("data-state", "ready")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def _is_data(url: str) -> bool:
    return url.startswith("data:")


def expect(target: "playwright.Locator | playwright.Page") -> "playwright.LocatorAssertions":
    return playwright.expect(target)


def names(page: "playwright.Page") -> list[str]:
    return page.locator("#rows th .open").all_text_contents()


def tile(page: "playwright.Page", title: str) -> "playwright.Locator":
    return page.locator(".tile").filter(has=page.get_by_role("heading", name=title, exact=True)).locator(".figure")


@pytest.mark.smoke
def test_the_tiles_and_the_table_show_what_the_tables_hold(open_page: OpenPage, tables: Path, page_file: Path) -> None:
    data = collect(Gold(tables), 7)
    page = open_page(page_file)
    expected = {"Devices": "devices", "Online": "online", "Readings": "readings", "Missing": "missing"}
    expected |= {"Duplicates": "duplicates", "Open gaps": "gaps", "Open alerts": "alerts"}
    for title, key in expected.items():
        expect(tile(page, title)).to_have_text(f"{data['totals'][key]:,}")
    expect(page.locator("#span")).to_have_text("3 d to 18 Nov 2026, 11:10 UTC")
    expect(page.locator("#rows tr")).to_have_count(15)
    page.click("#more")
    expect(page.locator("#more")).to_be_hidden()
    assert names(page) == data["devices"]["id"]
    health = page.locator("#rows .pill").all_text_contents()
    assert health == data["devices"]["health"] and health[0] == "offline" and health[-1] == "ok"
    i = data["devices"]["health"].index("gaps")
    cells = page.locator("#rows tr").nth(i).locator("td").all_text_contents()
    assert f"{data['devices']['missing'][i]:,}" in cells and f"{data['devices']['supply_v'][i]:.2f} V" in cells


def test_headings_sort_both_ways_and_say_so(open_page: OpenPage, tables: Path, page_file: Path) -> None:
    devices = collect(Gold(tables), 7)["devices"]
    page = open_page(page_file)
    head = page.locator("#heads").get_by_role("button", name="Reboots 24 h")
    order = sorted(range(40), key=lambda i: -devices["reboots"][i])
    head.click()
    page.click("#more")
    expect(page.locator("th[data-key=reboots]")).to_have_attribute("aria-sort", "descending")
    assert names(page) == [devices["id"][i] for i in order], "equal ones keep worst health first"
    # By keyboard, in the other direction.
    head.press("Enter")
    expect(page.locator("th[data-key=reboots]")).to_have_attribute("aria-sort", "ascending")
    order = sorted(range(40), key=lambda i: devices["reboots"][i])
    assert names(page) == [devices["id"][i] for i in order[:15]]
    expect(page.locator("[aria-sort]")).to_have_count(1)
    # Unknown values come last, in either direction.
    for way in (1, -1):
        page.locator("#heads").get_by_role("button", name="rssi").click()
        page.click("#more")
        rssi = [devices["rssi"][devices["id"].index(name)] for name in names(page)]
        known = [value for value in rssi if value is not None]
        assert rssi == sorted(known, key=lambda value: way * value) + [None] * (40 - len(known))
    page.locator("#heads").get_by_role("button", name="Device").click()
    page.click("#more")
    assert names(page) == sorted(devices["id"])


def test_search_and_health_choose_the_rows(open_page: OpenPage, page_file: Path) -> None:
    page = open_page(page_file)
    page.locator("#states").get_by_text("rebooting").click()
    expect(page.locator("#matched")).to_have_text("5 of 40")
    assert set(page.locator("#rows .pill").all_text_contents()) == {"rebooting"}
    page.fill("#search", "GATE")
    expect(page.locator("#rows tr")).to_have_count(1)
    assert names(page) == ["gate-02"]
    page.fill("#search", "no such device")
    expect(page.locator("#none")).to_have_text("No device matches.")
    expect(page.locator("#table")).to_be_hidden()
    page.locator("#states").get_by_text("All").click()
    page.fill("#search", "0.0.9")
    expect(page.locator("#matched")).to_have_text("8 of 40")


def test_a_device_is_selected_by_a_click_by_its_name_and_by_the_address(
    open_page: OpenPage, tables: Path, page_file: Path
) -> None:
    data = collect(Gold(tables), 7)
    page = open_page(page_file)
    battery = page.locator("figure[data-metric=supply_v]")
    expect(battery.locator(".legend")).to_have_text("p10 to p90median")
    expect(battery.locator("path.line")).to_have_count(1)
    page.locator("#rows").get_by_role("button", name="silo-01", exact=True).click()
    expect(page.locator("#metrics-title")).to_have_text("silo-01")
    expect(page.locator("#metrics-title")).to_be_focused()
    expect(page.locator("#metrics-title")).to_be_in_viewport()
    expect(battery.locator(".legend")).to_have_text("p10 to p90mediansilo-01")
    expect(battery.locator("path.line.b")).to_have_count(1)
    expect(page.locator("#device")).to_have_value("silo-01")
    expect(page.locator("#rows [aria-current]")).to_contain_text("silo-01")
    expect(page.locator("#reboots-map [aria-current]")).to_contain_text("silo-01")
    i = data["devices"]["id"].index("silo-01")
    expect(page.locator("#facts")).to_contain_text(f"Duplicates{data['devices']['duplicates'][i]}")
    expect(page).to_have_url(re.compile("#device=silo-01$"))
    # The drawn values are those of the tables.
    metric = data["metrics"][0]
    last = max(step for step, value in enumerate(decoded(metric["lines"][str(i)])) if value is not None)
    battery.locator(".plot").focus()
    page.keyboard.press("End")
    for _ in range(metric["count"] - 1 - last):
        page.keyboard.press("ArrowLeft")
    value = decoded(metric["lines"][str(i)])[last]
    expect(battery.locator(".readout")).to_contain_text(f"silo-01 {value:.2f} V")
    # The address alone does it too, and a wired device without rssi says so.
    other = open_page(page_file, "#device=gate-03")
    expect(other.locator("#metrics-title")).to_have_text("gate-03")
    wired = next(i for i, value in enumerate(data["devices"]["rssi"]) if value is None)
    name = data["devices"]["id"][wired]
    page.fill("#device", name)
    expect(page.locator("#metrics-title")).to_have_text(name)
    expect(page.locator("figure[data-metric=rssi] .readout")).to_have_text(
        f"{name} sent no signal (rssi) in this time."
    )
    page.fill("#device", "GATE")
    suggested = page.locator("#names option").evaluate_all("options => options.map((one) => one.value)")
    assert sorted(suggested) == [f"gate-0{i}" for i in range(1, 6)]
    page.fill("#device", "nobody")
    page.press("#device", "Enter")
    expect(page.locator("#pick-error")).to_have_text("No device has this name")
    page.click("#clear")
    expect(page.locator("#metrics-title")).to_have_text("Metrics of the fleet")
    expect(page.locator("[aria-current]")).to_have_count(0)
    expect(page).to_have_url(re.compile("#$"))


def test_charts_are_read_by_pointer_and_by_keyboard(open_page: OpenPage, tables: Path, page_file: Path) -> None:
    traffic = collect(Gold(tables), 7)["traffic"]
    page = open_page(page_file)
    for figure in ("rate", "delay", "repeats", "losses"):
        expect(page.locator(f"#{figure} .plot svg")).to_have_count(1)
    plot, readout = page.locator("#rate .plot"), page.locator("#rate .readout")
    summary = plot.get_attribute("aria-label")
    assert summary.startswith("Message rate, readings a minute. readings: 0 to ")
    plot.focus()
    page.keyboard.press("End")
    expect(readout).to_contain_text("18 Nov 11:00 to 11:30: readings ")
    assert int(readout.text_content().rsplit(" ", 1)[1]) == round(traffic["readings"][-1])
    page.keyboard.press("ArrowLeft")
    expect(readout).to_contain_text("18 Nov 10:30 to 11:00: readings ")
    page.keyboard.press("Escape")
    expect(readout).to_have_text("Means of 30 min.")
    plot.hover()
    expect(readout).to_contain_text(re.compile(r"1[67] Nov \d\d:\d\d to \d\d:\d\d: readings \d+"))
    page.mouse.move(0, 0)
    expect(readout).to_have_text("Means of 30 min.")


def test_alerts_gaps_and_reboots_are_listed_worst_first(open_page: OpenPage, tables: Path, page_file: Path) -> None:
    data = collect(Gold(tables), 7)
    page = open_page(page_file)
    expect(page.locator("#alerts-note")).to_have_text("9 open, 4 over")
    page.click("#alerts-more")
    assert page.locator("#alerts-rows li").count() == 13
    assert page.locator("#alerts-rows li.over").count() == 4
    expect(page.locator("#alerts-rows li").last).to_contain_text("until ")
    missing = [row[4] for row in data["gaps"]["rows"]]
    assert page.locator("#gaps-rows td:nth-child(2)").all_text_contents() == [str(n) for n in sorted(missing)[::-1][:8]]
    rows = data["reboots"]["rows"]
    assert page.locator(".map-row .n").all_text_contents() == [str(row[1]) for row in rows[:20]]
    strip = page.locator(".map-row .strip").first
    assert strip.locator("rect").count() == len(rows[0][2]) and strip.locator("rect.c3").count() > 0
    assert "reboots, most (" in strip.get_attribute("aria-label")
    expect(strip.locator("title").first).to_have_text(
        re.compile(r"\d+ Nov \d\d:\d\d to \d\d:\d\d: \d+ reboots? \(.+\)")
    )


def test_a_group_chooses_the_rows_together_with_search_and_health(open_page: OpenPage, tmp_path: Path) -> None:
    """Planted: a group is found by its option's text, or devices without a group cannot be selected."""
    hostile, inherited = "<img src=x onerror=alert(1)>", "__proto__"
    groups = [hostile, inherited, "north", None, "(none)", "All"]
    fleet(tmp_path, devices=12, days=0.2)
    write_report(tmp_path, tmp_path / "without.html")
    expect(open_page(tmp_path / "without.html").locator("#group")).to_be_hidden()
    rows = Gold(tmp_path).read("devices").sort_by("device_id").to_pylist()
    rows = [row | {"device_group": groups[i % 6]} for i, row in enumerate(rows)]
    write_rows(tmp_path, "devices", rows)
    write_report(tmp_path, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    options = page.locator("#group option").all_text_contents()
    assert options == ["All", "(none) 2", "(none) 2", f"{hostile} 2", "All 2", f"{inherited} 2", "north 2"]
    for at, group in enumerate([None, "(none)", hostile, "All", inherited, "north"], 1):
        page.select_option("#group", index=at)
        expect(page.locator("#matched")).to_have_text("2 of 12")
        mine = [row["device_id"] for row in rows if row["device_group"] == group]
        assert sorted(names(page)) == sorted(mine)
        assert page.locator("#rows td.group").all_text_contents() == [group or "\u2013"] * 2
    page.fill("#search", mine[0])
    assert names(page) == mine[:1]
    page.select_option("#group", index=0)
    page.fill("#search", "")
    expect(page.locator("#matched")).to_have_text("12 in all")


def test_names_with_markup_are_text_everywhere(open_page: OpenPage, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    turning = "<svg onload=alert(3)>\u202egnp.\x1b[2J"
    fleet(tmp_path, devices=12, days=0.2, names=[f"{hostile}{i}" for i in range(11)] + [turning])
    alert = {"device_id": hostile + "0", "kind": hostile, "since": END_US - HOUR, "text": hostile}
    boot = {"device_id": hostile + "5", "first_seen": END_US - HOUR, "cause": hostile, "reason": hostile}
    gap = {"device_id": hostile + "3", "boot": hostile, "first": 1, "last": 2, "missing": 2, "open": True}
    other = {"device_id": hostile + " without a row", "until": END_US, "rule": hostile}
    write_rows(tmp_path, "alerts", [alert, alert | other])
    write_rows(tmp_path, "boots", [boot | {"boot": hostile * 2}, boot | {"boot": hostile, "first_seen": END_US - 1}])
    write_rows(tmp_path, "gaps", [gap])
    rows = Gold(tmp_path).read("devices").to_pylist()
    write_rows(tmp_path, "devices", [row | {"fw": hostile, "health": hostile} for row in rows])
    write_report(tmp_path, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    page.locator("#rows").get_by_role("button", name=hostile + "0", exact=True).click()
    expect(page.locator("#metrics-title")).to_have_text(hostile + "0")
    expect(page.locator("figure[data-metric=temp_c] .legend")).to_contain_text(hostile + "0")
    expect(page.locator("#alerts-rows li").first).to_contain_text(hostile)
    expect(page.locator("#gaps-rows tr").first).to_contain_text(hostile)
    expect(page.locator(".map-row .strip title").first).to_contain_text(hostile)
    # Characters that are invisible or would reverse the text are shown by their number.
    shown = turning.replace("\u202e", "\\u{202e}").replace("\x1b", "\\u{1b}")
    page.fill("#device", shown)
    expect(page.locator("#metrics-title")).to_have_text(shown)
    assert page.locator("script").count() == 2 and page.locator("main img, main svg[onload]").count() == 0


def test_names_that_every_javascript_object_has_are_names_like_others(open_page: OpenPage, tmp_path: Path) -> None:
    """Planted: what a device says is looked up in a plain object."""
    inherited = ["constructor", "__proto__", "toString", "hasOwnProperty"]
    fleet(tmp_path, devices=4, days=0.2, names=inherited)
    at = END_US - HOUR
    values = {"window_start": at, "n": 1, "sum": 2.0, "min": 2.0, "max": 2.0, "mean": 2.0, "last": 2.0, "last_ts": at}
    windows = [values | {"device_id": name, "metric": name} for name in inherited]
    alert = {"since": at, "rule": "toString"}
    alerts = [alert | {"device_id": name, "kind": name, "text": name} for name in inherited]
    gap = {"boot": "1-x", "first": 1, "last": 2, "missing": 2, "open": True}
    write_rows(tmp_path, "windows", windows)
    write_rows(tmp_path, "alerts", alerts)
    write_rows(tmp_path, "gaps", [gap | {"device_id": name, "state": name} for name in inherited])
    rows = Gold(tmp_path).read("devices").to_pylist()
    write_rows(tmp_path, "devices", [row | {"fw": row["device_id"], "health": row["device_id"]} for row in rows])
    write_report(tmp_path, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    expect(page.locator("body")).to_have_attribute("data-state", "ready")
    titles = page.locator("#metric-charts h3").all_text_contents()
    assert sorted(titles) == sorted(f"{name} metric" for name in inherited)
    assert sorted(page.locator("#alerts-rows .pill").all_text_contents()) == ["toString"] * 4
    assert page.locator("#gaps-rows td[data-label=State]").all_text_contents() == ["closed"] * 4
    for name in inherited:
        page.locator("#rows").get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#metrics-title")).to_have_text(name)
        expect(page.locator("#facts")).to_contain_text(name)


def test_empty_tables_give_a_page_that_says_so(open_page: OpenPage, tmp_path: Path) -> None:
    write_report(empty(tmp_path), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    expect(page.locator("#nothing")).to_contain_text("No device has sent a reading yet.")
    expect(page.locator("#span")).to_have_text("no readings yet")
    expect(tile(page, "Devices")).to_have_text("0")
    expect(page.locator("#devices")).to_be_hidden()
    text = page.locator("body").inner_text()
    assert not re.search(r"NaN|undefined|null|Infinity|1970", text)


def test_what_cannot_be_counted_of_a_device_without_seq_is_not_known(open_page: OpenPage, tmp_path: Path) -> None:
    """Planted: a dash or 0 where nobody can say; "not known" where a count is 0."""
    empty(tmp_path)
    common = {"health": "ok", "last_seen": END_US, "readings": 7}
    counted = {"missing": 0, "duplicates": 3, "dropped_announced": 0}
    rows = [{"device_id": "own", **common, **counted}, {"device_id": "other", **common}]
    write_rows(tmp_path, "devices", rows)
    write_report(tmp_path, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    for device, missing, duplicates in (("own", "0", "3"), ("other", "not known", "not known")):
        row = page.locator("#rows tr").filter(has=page.get_by_role("button", name=device, exact=True))
        expect(row.locator("[data-label=Missing]")).to_have_text(missing)
        expect(row.locator("[data-label=Duplicates]")).to_have_text(duplicates)
        row.get_by_role("button").click()
        expect(page.locator("#facts")).to_contain_text(f"Missing, dropped{missing}, {missing}Duplicates{duplicates}")


# Finds rule names that lie over their neighbours, and cells of groups that are no cells.
OVERLAPS = """() => [
  ...[...document.querySelectorAll("#alerts-rows li")].filter((row) => {
    const [pill, next] = [row.children[0], row.children[1]].map((part) => part.getBoundingClientRect());
    return (pill.right > next.left && pill.bottom > next.top + 1) || pill.right > innerWidth;
  }),
  ...[...document.querySelectorAll("#rows td.group")].filter((cell) =>
    getComputedStyle(cell).display !== getComputedStyle(cell.previousElementSibling).display),
].map((node) => node.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phones_and_a_desk_with_text_that_can_be_read(
    open_page: OpenPage, page_file: Path, tmp_path: Path, scheme: str
) -> None:
    page = open_page(page_file, "#device=silo-01", color_scheme=scheme)
    for width in (320, 375, 400, 760, 1100, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Nor while the charts still have their old width: they are drawn again a moment later.
        wide = "for (const svg of document.querySelectorAll('.plot svg')) svg.setAttribute('width', 1280)"
        assert page.evaluate(wide + "; document.documentElement.scrollWidth") <= width
        if width in (375, 1280):
            assert page.evaluate(FAINT_TEXT) == []
    assert page.evaluate(NAMELESS) == []
    light = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every((one) => one > 127)")
    assert light == (scheme == "light")
    page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
    assert (tmp_path / f"{scheme}.png").stat().st_size > 50_000, "a page that was not painted compresses to nothing"


def test_a_thousand_devices_fit_into_two_megabytes_and_open_within_two_seconds(
    open_page: OpenPage, tmp_path: Path
) -> None:
    # With the boots an hour before: the longest time of the finest steps, so the longest lines.
    fleet(tmp_path, devices=1000, days=6.8 / 24)
    written = write_report(tmp_path, tmp_path / "report.html")
    data = collect(Gold(tmp_path), 7)
    assert all(len(metric["lines"]) == metric["devices"] >= 790 for metric in data["metrics"])
    assert data["metrics"][0]["count"] > 90
    print(f"{written.bytes:,} bytes")
    assert written.bytes < 2_000_000
    page = open_page(tmp_path / "report.html")
    assert any(_processor_seconds_of_opening(page) < 2 for _ in range(3))
    page.fill("#search", "pump-99")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.get_by_role("button", name="pump-99", exact=True).first.click()
    expect(page.locator("figure[data-metric=mem_free] path.line.b")).to_have_count(1)


def _processor_seconds_of_opening(page: "playwright.Page") -> float:
    """Return the processor seconds of the page's process alone, whatever other programs use meanwhile."""
    chromium = page.context.new_cdp_session(page)
    chromium.send("Performance.enable")

    def seconds() -> float:
        metrics = chromium.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in metrics if one["name"] == "ProcessTime")

    before = seconds()
    page.reload()
    took = seconds() - before
    print(f"{took} s")
    return took


def test_devices_beyond_the_room_for_lines_say_so(
    open_page: OpenPage, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_ingest.report.metrics._TEXT_BUDGET", 10 * 2 * 72 * 4 + 4000)
    write_report(tables, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", "#device=roof-05")
    expect(page.locator("figure[data-metric=temp_c] .readout")).to_contain_text(
        "of 40 devices; roof-05 is not among them"
    )

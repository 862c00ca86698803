"""The live page in a real browser: what it shows, what it does, and what it never does."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from broker_peer import Peer
from observed import ObservedBroker
from umqtt_broker.observation import server, survey
from umqtt_testkit.waiting import WAIT_LIMIT_S, eventually

pytestmark = pytest.mark.tier(2)

playwright = pytest.importorskip("playwright.sync_api")

# Events that happen once a second happen this many times as often, because the tests wait for them repeatedly.
FASTER = 5


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObservedBroker]:
    monkeypatch.setattr(server, "_SAMPLE_SECONDS", server._SAMPLE_SECONDS / FASTER)
    monkeypatch.setattr(survey, "_MAX_AGE", survey._MAX_AGE / FASTER)
    with ObservedBroker(tmp_path, max_inflight_messages=2) as started:
        yield started


OpenPage = Callable[..., "playwright.Page"]


@pytest.fixture
def open_page(browser: "playwright.Browser", broker: ObservedBroker) -> Iterator[OpenPage]:
    """Provide a function that opens the page, with the token unless told not to.

    The test fails on a script error, a dialog, or a request to another address.
    """
    wrong: list[str] = []
    contexts = []
    home = f"http://127.0.0.1:{broker.http_port}/"
    playwright.expect.set_options(timeout=WAIT_LIMIT_S * 1000)

    def opened(fragment: str | None = None, **options: object) -> "playwright.Page":
        context = browser.new_context(**options)
        context.set_default_timeout(WAIT_LIMIT_S * 1000)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(f"const late = setTimeout; window.setTimeout = (call, ms) => late(call, ms / {FASTER});")
        page.on("pageerror", lambda error: wrong.append(f"script error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(home) or wrong.append(f"asked for {asked.url}"))
        page.on("request", lambda asked: broker.token in asked.url and wrong.append("the token is in a URL"))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None,
        )
        page.goto(home + (f"#token={broker.token}" if fragment is None else fragment))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def row(page: "playwright.Page", name: str) -> "playwright.Locator":
    return page.locator("#rows tr").filter(has=page.get_by_role("button", name=name, exact=True))


def expect(target: "playwright.Locator") -> "playwright.LocatorAssertions":
    return playwright.expect(target)


def test_a_client_its_rate_and_the_totals_are_shown_and_follow(open_page: OpenPage, broker: ObservedBroker) -> None:
    page = open_page()
    expect(page.locator("body")).to_have_attribute("data-state", "live")
    expect(page.locator("#empty")).to_contain_text("No clients yet")
    expect(page.locator("#f-clients")).to_have_text("0")
    with Peer(broker.port) as peer:
        peer.connect(b"pump-7", keep_alive=60)
        expect(row(page, "pump-7")).to_be_visible()
        expect(page.locator("#f-clients")).to_have_text("1")
        rates = page.locator("#f-in"), row(page, "pump-7").locator(".rate").first

        def are_shown() -> bool:
            # Some of these come between any two answers of the broker.
            for _ in range(5):
                peer.publish(b"fleet/pump-7/telemetry", b"21.4")
            return all(re.search("[1-9]", rate.text_content() or "") for rate in rates)

        eventually(are_shown, lambda: [rate.text_content() for rate in rates])
        for rate in rates:
            expect(rate).to_have_text("0")  # once nothing comes any more
        total = page.locator("#f-in-note").text_content().split("· ")[1].removesuffix(" in all")
        assert int(total.replace(",", "")) >= 5
    expect(row(page, "pump-7")).to_have_count(0)


def test_a_slow_consumer_is_marked_counted_and_found(open_page: OpenPage, broker: ObservedBroker) -> None:
    with Peer(broker.port) as slow, Peer(broker.port) as sender:
        slow.connect(b"sleepy")
        slow.subscribe(b"a", 1)
        sender.connect(b"sender")
        for _ in range(5):
            sender.publish(b"a", b"x", 1)
        page = open_page()
        expect(page.locator("#f-slow")).to_have_text("1")
        expect(page.locator("#tile-slow")).to_have_class("tile warn")
        expect(row(page, "sleepy").locator(".tag.slow")).to_be_visible()
        expect(row(page, "sender").locator(".tag.slow")).to_be_hidden()
        expect(page.locator("#f-queued")).to_have_text("3")
        page.click("#show-slow")
        expect(row(page, "sender")).to_have_count(0)
        expect(row(page, "sleepy")).to_be_visible()


def test_a_kick_asks_first_and_then_cuts_the_connection(open_page: OpenPage, broker: ObservedBroker) -> None:
    with Peer(broker.port) as peer:
        peer.connect(b"victim", clean_session=False)
        page = open_page()
        row(page, "victim").get_by_role("button", name="Kick victim").click()
        expect(page.locator("#confirm")).to_contain_text("Kick victim?")
        page.keyboard.press("Escape")
        expect(page.locator("#confirm")).to_be_hidden()
        assert peer.flush() == []  # it is still connected
        # By keyboard alone: the confirmation opens with Cancel focused.
        row(page, "victim").get_by_role("button", name="Kick victim").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#confirm button[value=no]")).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        peer.wait_closed()
        expect(page.locator("#toast")).to_contain_text("victim was kicked")
        expect(row(page, "victim")).to_contain_text("away")
        # The details, and forgetting the rest of the session.
        row(page, "victim").get_by_role("button", name="victim", exact=True).click()
        expect(page.locator("#detail")).to_contain_text("kept while away")
        expect(page.locator("#detail-kick")).to_be_hidden()
        page.click("#detail-forget")
        page.click("#confirm-yes")
        expect(row(page, "victim")).to_have_count(0)
        expect(page.locator("#detail")).to_be_hidden()


def test_a_question_right_after_another_gets_its_own_answer(open_page: OpenPage, broker: ObservedBroker) -> None:
    """Planted: the closing of the first dialog, which a browser reports late, counts as a no to the second."""
    with Peer(broker.port) as first, Peer(broker.port) as second:
        first.connect(b"first", clean_session=False)
        second.connect(b"second", clean_session=False)
        page = open_page()
        for name in ("first", "second"):
            expect(row(page, name).get_by_role("button", name=f"Kick {name}")).to_be_visible()
        row(page, "first").get_by_role("button", name="Kick first").click()
        page.evaluate("""() => {
            document.getElementById("confirm").close();
            document.querySelector("[aria-label='Kick second']").click();
        }""")
        page.locator("#confirm-yes").click()
        second.wait_closed()
        assert first.flush() == []  # it is still connected


def test_names_with_markup_are_text(open_page: OpenPage, broker: ObservedBroker) -> None:
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    topic_filter = "<svg onload=alert(3)>/\u202egnp.#</span>/+"
    with Peer(broker.port) as peer:
        peer.connect(name.encode())
        peer.subscribe(topic_filter.replace("#", "").encode(), 1)
        page = open_page()
        expect(row(page, name)).to_be_visible()
        row(page, name).get_by_role("button", name=name, exact=True).click()
        expect(page.locator("#detail-title")).to_have_text(name)
        # A character that would reverse the text is shown by its number.
        expect(page.locator("#detail-filters")).to_contain_text("<svg onload=alert(3)>/\\u{202e}gnp.</span>/+")
        page.click("#detail-kick")
        expect(page.locator("#confirm-title")).to_have_text(f"Kick {name}?")
        page.click("#confirm-yes")
        peer.wait_closed()
        expect(page.locator("#toast")).to_contain_text(name)
        assert page.locator("#rows script, #detail script, main img, main svg[onload]").count() == 0


def test_clients_with_awkward_names_can_be_kicked(open_page: OpenPage, broker: ObservedBroker) -> None:
    page = None
    for name in (".", "..", "a/b", "?x=1#y", "%2e%2e", " "):
        with Peer(broker.port) as peer:
            peer.connect(name.encode())
            page = page or open_page()
            page.fill("#search", name)  # this sends a request at once
            page.locator("#rows .button.small").click()
            page.click("#confirm-yes")
            peer.wait_closed()
        # Until the table has been fetched again, this row is there to be mistaken for the next one.
        expect(page.locator("#rows tr")).to_have_count(0)


def test_search_and_states_choose_the_rows(open_page: OpenPage, broker: ObservedBroker) -> None:
    with Peer(broker.port) as one, Peer(broker.port) as other:
        one.connect(b"pump-1")
        other.connect(b"valve-1", clean_session=False)
        other.disconnect()
        page = open_page()
        expect(page.locator("#rows tr")).to_have_count(2)
        page.fill("#search", "VALVE")
        expect(row(page, "pump-1")).to_have_count(0)
        expect(row(page, "valve-1")).to_be_visible()
        page.locator(".tabs").get_by_text("Connected").click()
        expect(page.locator("#empty")).to_have_text("No client matches.")
        page.fill("#search", "")
        expect(row(page, "pump-1")).to_be_visible()
        expect(row(page, "valve-1")).to_have_count(0)


def test_the_token_is_asked_for_told_wrong_and_never_left_in_the_address(
    open_page: OpenPage, broker: ObservedBroker
) -> None:
    page = open_page("")
    expect(page.locator("body")).to_have_attribute("data-state", "locked")
    expect(page.locator("#token")).to_be_focused()
    expect(page.locator("#board")).to_be_hidden()
    for wrong in ("wrong", "not ascii \u20ac"):
        page.fill("#token", wrong)
        page.keyboard.press("Enter")
        expect(page.locator("#token-error")).to_contain_text("This token is wrong")
        assert page.evaluate("sessionStorage.length") == 0
    page.fill("#token", f" {broker.token} ")
    page.keyboard.press("Enter")
    expect(page.locator("body")).to_have_attribute("data-state", "live")
    page.reload()
    expect(page.locator("body")).to_have_attribute("data-state", "live")
    page.click("#lock")
    expect(page.locator("body")).to_have_attribute("data-state", "locked")
    assert page.evaluate("sessionStorage.length + localStorage.length") == 0
    linked = open_page()
    expect(linked.locator("body")).to_have_attribute("data-state", "live")
    assert linked.url == f"http://127.0.0.1:{broker.http_port}/"
    assert linked.evaluate("history.length") <= 2
    assert not linked.context.cookies()


def test_an_answer_that_comes_after_the_lock_leaves_the_page_locked(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.locator("body")).to_have_attribute("data-state", "live")
    late: list[playwright.Route] = []
    with page.expect_request("**/api/sessions*"):
        page.route("**/api/sessions*", lambda route: late.append(route))
    eventually(lambda: page.evaluate("0") or late)
    page.click("#lock")
    with page.expect_response("**/api/sessions*") as answer:
        late[0].continue_()
    answer.value.finished()
    # The scripts that waited for it have run.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    expect(page.locator("body")).to_have_attribute("data-state", "locked")


def test_a_broker_that_is_gone_is_said_so_and_one_that_is_back_is_live(
    open_page: OpenPage, broker: ObservedBroker
) -> None:
    page = open_page()
    expect(page.locator("body")).to_have_attribute("data-state", "live")
    listener, loop = broker.server, broker.broker.loop
    asyncio.run_coroutine_threadsafe(listener.stop(), loop).result(WAIT_LIMIT_S)
    expect(page.locator("#down")).to_contain_text("The broker does not answer")
    expect(page.locator("#link-text")).to_have_text("disconnected")
    asyncio.run_coroutine_threadsafe(listener.start(), loop).result(WAIT_LIMIT_S)
    expect(page.locator("#link-text")).to_have_text("live")
    expect(page.locator("#down")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_phones_and_a_desk_in_light_and_dark(open_page: OpenPage, broker: ObservedBroker, scheme: str) -> None:
    """Planted: on a phone the line below the title and those of the tiles are cut off."""
    lines = "[...document.querySelectorAll('.title p, .tile .quiet')]"
    with Peer(broker.port) as peer:
        peer.connect(b"a-client-with-quite-a-long-name-" * 4)
        page = open_page(color_scheme=scheme)
        expect(page.locator("#rows tr")).to_have_count(1)
        for width in (320, 390, 760, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert not page.evaluate(f"{lines}.some((line) => line.scrollWidth > line.clientWidth)")
        light = page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every((part) => part > 127)"
        )
        assert light == (scheme == "light")

"""The viewer's pages in a real Chromium: every one is reached, checks what it shows, and can't be made to run anything."""

import contextlib
import datetime as dt
import hashlib
import hmac
import http.server
import os
import random
import re
import shutil
import signal
import sqlite3
import threading
import uuid
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright
from ui_fixtures import CODE, EVIL, add_dry_run, add_session, script, serving_viewer, viewing, viewing_here

from mcp_bridge.escaping import escape_invisible
from mcp_bridge.executions.approvals import approval_requests
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.lookalikes import _IGNORABLE
from mcp_bridge.server.ui import api, page_data

pytestmark = pytest.mark.xdist_group("browser")

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

# No sandbox of its own: as root it has none. Nothing that it asks for by itself would be answered here.
OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip

# For what a page shows in the end; a machine may be slow.
expect.set_options(timeout=30_000)

SHOTS = os.environ.get("MCP_BRIDGE_TEST_SCREENSHOTS")
"""A folder where the pages' pictures are put, for people to look at."""


@pytest.fixture(scope="module")
def chromium():
    """A browser. Without one the tests fail: what isn't tried isn't known."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, "no Chromium: install Debian's package chromium, or run make setup-test"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        yield browser
        browser.close()


class Watched:
    """A page, and everything that must not happen on it."""

    def __init__(self, page, viewer):
        self.page = page
        self.viewer = viewer
        self.seen = []
        self.allowed = []
        page.on("console", lambda message: self.seen.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.seen.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", lambda answer: answer.status >= 500 and self.seen.append(f"{answer.status}: {answer.url}"))
        # A report of what the page's policy has stopped.
        page.add_init_script(
            "addEventListener('securitypolicyviolation', event => console.error('policy', event.violatedDirective))"
        )

    def _asked(self, url):
        if not url.startswith((f"{self.viewer.base}/", "data:image/svg+xml,", "about:")):
            self.seen.append(f"request: {url}")

    def go(self, path="/"):
        self.page.goto(self.viewer.base + path)
        return self.page

    def quiet(self):
        """Nothing of others' has become more than text."""
        seen = [line for line in self.seen if not any(re.search(pattern, line) for pattern in self.allowed)]
        assert seen == []
        assert "owned" not in self.page.title().replace(EVIL, "")
        found = self.page.evaluate(
            "() => [...document.querySelectorAll('script, img, iframe, object, embed, style, link, svg, base')]"
            ".map(element => element.outerHTML.slice(0, 80))"
        )
        root = urlsplit(self.viewer.base).path
        ours = ('<link rel="icon"', '<link rel="stylesheet"', f'<script type="module" src="{root}/static/main.js"', f'<img src="{root}/static/icon.svg"', '<img src="data:image/svg+xml,')  # fmt: skip
        assert [element for element in found if not element.startswith(ours)] == []
        attributes = self.page.evaluate(
            "() => [...document.querySelectorAll('*')].flatMap(element => element.getAttributeNames()).filter(name => name.startsWith('on'))"
        )
        assert attributes == []

    def shot(self, name):
        if SHOTS:
            self.page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@contextlib.contextmanager
def watching(chromium, viewer, **options):
    context = chromium.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    context.set_default_timeout(15_000)
    watched = Watched(context.new_page(), viewer)
    try:
        yield watched
        watched.quiet()
    finally:
        # A request that is still being answered by a test's handler would fail the test after it.
        watched.page.unroute_all(behavior="wait")
        context.close()


@pytest.fixture(scope="module")
def store(stores):
    return stores()


@pytest.fixture(scope="module")
def viewer(store):
    with viewing(store) as viewer:
        yield viewer


@pytest.fixture
def watched(chromium, viewer):
    """A page that has been let in."""
    with watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        expect(watched.page.locator("table.list")).to_be_visible()
        yield watched


# --- the pages


def test_without_the_token_a_page_asks_for_it_and_tells_nothing(chromium, viewer, store):
    with watching(chromium, viewer) as watched:
        page = watched.go()
        expect(page.get_by_role("heading", name="Token needed")).to_be_visible()
        watched.shot("token")
        assert store.works not in page.content()
        watched.allowed.append("401")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not that of the viewer")
        page.get_by_label("Token").fill(viewer.url)
        page.keyboard.press("Enter")
        expect(page.locator("table.list")).to_contain_text("refund")


def test_over_http_each_principal_puts_its_token_in_and_sees_and_decides_what_it_may(chromium, stores):
    store = stores()
    principals = {"anna": "", "boss": "approver = true\nsees_all = true"}
    with serving_viewer(store, principals) as (viewer, tokens):
        with watching(chromium, viewer) as watched:
            # Until the bridge is open, and without a token.
            watched.allowed += ["401", "503"]
            page = watched.page
            opened = page.request.get(viewer.base + "/")
            while opened.status == 503:
                page.wait_for_timeout(100)
                opened = page.request.get(viewer.base + "/")
            watched.go()
            expect(page.get_by_role("heading", name="Token needed")).to_be_visible()
            watched.shot("token-of-a-principal")
            page.get_by_label("Token").fill("wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_contain_text("isn't good")
            page.get_by_label("Token").fill(tokens["anna"])
            page.keyboard.press("Enter")
            expect(page.locator("#live")).to_have_text("Live")
            assert store.works not in page.content()
        with watching(chromium, viewer) as watched:
            page = watched.go(f"/#token={tokens['boss']}")
            expect(page.locator("table.list")).to_contain_text("refund")
            assert "#" not in page.url
            page.get_by_role("link", name="refund").click()
            expect(page.locator(".proven")).to_contain_text("proven")
            expect(page.locator(".picture img")).to_be_visible()
            page.get_by_role("link", name="Approvals").click()
            question = page.locator("article", has_text="harmless")
            question.get_by_role("button", name="Approve").click()
            expect(page.locator("table")).to_contain_text("boss")


def test_the_token_leaves_the_address_and_no_other_origin_gets_it(watched):
    assert "#" not in watched.page.url
    assert watched.page.context.cookies() == []
    assert watched.page.evaluate("history.length") <= 2


def test_the_token_is_kept_for_its_tab_alone(watched):
    page, other = watched.page, watched.page.context.new_page()
    page.reload()
    expect(page.locator("table.list")).to_be_visible()
    assert page.evaluate("localStorage.length") == 0
    other.goto(page.url)
    expect(other.get_by_role("heading", name="Token needed")).to_be_visible()


def test_the_list_is_searched_and_filtered_and_leads_to_an_execution(watched, store):
    page, rows = watched.page, watched.page.locator("table.list tbody tr")
    expect(rows).to_have_count(7)
    # Whose it is, where it isn't that of whoever has started the bridge.
    expect(rows.first).to_contain_text("somebody else")
    expect(page.locator("table.list")).to_contain_text(EVIL)
    watched.shot("list")
    page.get_by_label("Search").fill("REFUND look")
    expect(rows).to_have_count(1)
    page.get_by_label("Search").fill("no such thing")
    expect(page.get_by_role("heading", name="No execution is like that")).to_be_visible()
    watched.shot("list-nothing")
    page.get_by_label("Search").fill("")
    page.get_by_label("Status").select_option("failed")
    expect(rows).to_have_count(1)
    page.get_by_label("Status").select_option("")
    page.get_by_label("Kind").select_option("program")
    expect(rows).to_have_count(3)
    page.reload()
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="refund").click()
    expect(page.get_by_role("heading", name="refund")).to_be_visible()
    assert page.url.endswith(store.works)


def test_looking_further_back_asks_for_what_is_further_back_alone_and_says_what_fails(watched):
    page, asked = watched.page, []
    watched.allowed.append("503")

    def answer(route):
        before = parse_qs(urlsplit(route.request.url).query).get("before", ["start"])[0]
        asked.append(before)
        if before == "2:b":
            route.fulfill(status=503, json={"error": {"code": "database_unusable", "message": "It is away."}})
        else:
            then = {"start": "1:a", "1:a": "2:b"}[before]
            route.fulfill(json={"executions": [], "before": then, "searched": 1000})

    page.route("**/api/executions?query=nowhere*", answer)
    # No live changes: they are looked for anew.
    page.route("**/api/events", lambda route: route.abort())
    watched.allowed.append("ERR_FAILED")
    page.reload()
    page.get_by_label("Search").fill("nowhere")
    further = page.get_by_role("button", name="Search further back")
    expect(page.locator("p.hint").first).to_have_text("0 executions of the latest 1,000")
    further.click()
    expect(page.locator("p.hint").first).to_have_text("0 executions of the latest 2,000")
    assert asked == ["start", "1:a"]
    further.click()
    expect(page.get_by_role("alert")).to_contain_text("It is away.")


def test_an_execution_shows_its_timeline_its_way_and_its_proofs(watched, store):
    page = watched.go(f"/executions/{store.works}")
    expect(page.locator(".proven")).to_contain_text("18 entries proven")
    expect(page.locator(".proven")).to_contain_text("Its signature is right")
    expect(page.locator("tr.row")).to_have_count(10)
    expect(page.locator("tr.row.denial")).to_contain_text("local.forbidden")
    picture = page.get_by_role("img", name=re.compile("The way taken: look .success., check .success."))
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.decode().then(() => image.naturalHeight)") > 500
    expect(page.locator("table.steps")).to_contain_text("inner/two")
    page.get_by_role("button", name="Call local.delete").click()
    details = page.locator("tr.more")
    expect(details).to_contain_text("deleted b")
    expect(details.locator(".verdict.good")).to_have_count(2)
    details.get_by_text("Hash by hash").first.click()
    expect(details.locator(".hashes").first).to_contain_text("✓ the same")
    page.get_by_text("Show it").click()
    expect(page.locator("section[aria-labelledby=source] pre")).to_contain_text('"refuse"')
    watched.shot("execution")


def test_sessions_are_listed_and_lead_to_their_cells(chromium, stores):
    store = stores()
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        page.goto(viewer.url)
        expect(page.locator("table.list")).to_be_visible()
        page.get_by_role("link", name="Sessions").click()
        expect(page.get_by_role("heading", name="There is no session")).to_be_visible()
        # It is listed as it comes, without a reload.
        ids = store.do(lambda database: add_session(database, "report", 3))
        expect(page.locator("tbody tr")).to_have_count(1)
        store.do(lambda database: add_session(database, "what-if", 1, after=ids[1], number=3))
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.nth(0)).to_contain_text("what-if")
        expect(rows.nth(0).get_by_role("link", name="report@2")).to_have_attribute("href", f"/executions/{ids[1]}")
        report = rows.nth(1)
        for text in ("report", "Python", "idle", "3", "today"):
            expect(report).to_contain_text(text)
        watched.shot("sessions")
        report.get_by_role("link", name="report").click()
        expect(page.locator("dl.facts")).to_contain_text("report, cell 3")
        page.get_by_text("2 cells before this one").click()
        cells = page.locator("ol.cells li")
        expect(cells).to_have_count(2)
        for number in (1, 2):
            expect(cells.nth(number - 1)).to_contain_text(f"x = {number}")
            expect(cells.nth(number - 1)).to_contain_text(f"value {number}")
        watched.shot("cells")
        cells.nth(0).get_by_role("link").click()
        expect(page.locator("dl.facts")).to_contain_text("report, cell 1")
        expect(page.locator("dl.facts")).not_to_contain_text("Run dry")
        assert page.url.endswith(ids[0])


def test_of_a_sessions_cells_it_is_said_which_are_shown_and_what_is_cut(chromium, stores, monkeypatch):
    store = stores()
    # The viewer runs in this process.
    monkeypatch.setattr(api, "MAX_CELLS", 2)
    monkeypatch.setattr(page_data, "MAX_CELL_CHARS", 4)
    last = store.do(lambda database: add_session(database, "report", 5))[-1]
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        page.goto(viewer.url)
        watched.go(f"/executions/{last}")
        page.get_by_text("The last 2 of the 4 cells before this one").click()
        cells = page.locator("ol.cells li")
        expect(cells).to_have_count(2)
        expect(cells.nth(0).get_by_role("figure", name="Code")).to_contain_text("1 more character")
        expect(cells.nth(0).get_by_role("figure", name="What it gave")).to_contain_text("3 more characters")


@pytest.mark.parametrize("in_session", [True, False])
def test_what_was_run_dry_is_told_from_what_was_run(chromium, stores, in_session):
    store = stores()
    ident = store.do(lambda database: add_dry_run(database, "report" if in_session else None))
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        watched.go(f"/executions/{ident}")
        facts = watched.page.locator("dl.facts")
        expect(facts).to_contain_text("calls that write were listed, and not made")
        (expect(facts).to_contain_text if in_session else expect(facts).not_to_contain_text)("in a copy of the session")


def test_over_http_a_principal_sees_no_session_of_another(chromium, stores):
    store = stores()
    store.do(lambda database: add_session(database, "confidential", 1, principal="boss"))
    store.do(lambda database: add_session(database, "annas", 1, principal="anna"))
    with serving_viewer(store, {"anna": "", "auditor": "sees_all = true"}) as (viewer, tokens):
        for name, names in (("anna", ["annas"]), ("auditor", ["annas", "confidential"])):
            with watching(chromium, viewer) as watched:
                # Until the bridge is open.
                watched.allowed += ["503"]
                page = watched.page
                opened = page.request.get(viewer.base + "/")
                while opened.status == 503:
                    page.wait_for_timeout(100)
                    opened = page.request.get(viewer.base + "/")
                watched.go(f"/sessions#token={tokens[name]}")
                expect(page.locator("tbody tr th a")).to_have_text(names)
                assert ("confidential" in page.content()) == ("confidential" in names)
                if name == "auditor":
                    expect(page.locator("tbody tr").nth(1)).to_contain_text("boss")


def test_what_a_script_says_is_text(watched, store):
    page = watched.go(f"/executions/{store.script}")
    expect(page.locator(".proven")).to_contain_text("6 entries proven")
    for button in page.locator(".toggle").all():
        button.click()
    for summary in page.locator("summary").all():
        summary.click()
    expect(page.locator("section[aria-labelledby=source] pre")).to_have_text(CODE.rstrip())
    expect(page.locator("tr.violation")).to_contain_text(EVIL)
    expect(page.locator("figure", has_text="Printed").first).to_contain_text(EVIL)
    watched.shot("script")
    watched.quiet()


def test_what_is_erased_is_a_tombstone_and_still_proven(watched, store):
    page = watched.go(f"/executions/{store.erased}")
    expect(page.locator(".proven")).to_contain_text("6 entries proven")
    page.locator(".row.call .toggle").click()
    expect(page.locator("tr.more")).to_contain_text("[REDACTED_TOMBSTONE]")
    expect(page.locator("tr.more")).to_contain_text("Its payload is erased")
    watched.shot("erased")


def test_a_failure_is_shown_with_its_error(watched, store):
    page = watched.go(f"/executions/{store.fails}")
    expect(page.locator(".head .notice.bad")).to_contain_text(f"it broke: {EVIL}")
    expect(page.locator(".proven")).to_be_visible()
    watched.shot("failed")


def test_what_is_not_there_is_not_found(watched):
    watched.allowed.append("404")
    page = watched.go(f"/executions/{'0' * 32}")
    expect(page.get_by_role("alert")).to_have_text(re.compile("^Not found. There is no such execution."))
    watched.shot("not-found")


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1200), ("light", 400), ("light", 360)])
def test_every_page_fits_a_narrow_screen_and_the_dark(chromium, stores, scheme, width):
    store = stores()
    store.do(lambda database: add_session(database, "s" * 64, 2))
    event = {"effect": "0#1", "step": "0#1", "kind": "event", "name": "e" * 100}
    waits = script(uuid.uuid4().hex, "1", "suspended", {"waiting": [event]})
    store.do(lambda database: ProgramStore(database).add(waits, {}, Entry("start", waits.id, {"code": "1"})))
    with (
        viewing_here(store) as viewer,
        watching(chromium, viewer, viewport={"width": width, "height": 800}, color_scheme=scheme) as watched,
    ):
        page = watched.page
        page.goto(viewer.url)
        expect(page.locator("table.list")).to_be_visible()
        others = {"approvals": ("/approvals", "article"), "sessions": ("/sessions", "table.list")}
        for name in ("list", "works", "asks", "approvals", "sessions"):
            if name != "list":
                path, shown = others.get(name) or (f"/executions/{getattr(store, name)}", ".proven")
                watched.go(path)
                expect(page.locator(shown)).to_be_visible()
            if name == "works":
                page.locator(".row.call .toggle").first.click()
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            # The number that waits is on the line of its word.
            assert page.evaluate(
                "() => [...document.querySelectorAll('nav a')].every(link => link.getClientRects().length === 1 && link.offsetHeight < 50)"
            )
            watched.shot(f"{scheme}-{width}-{name}")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == (scheme == "dark")


def test_everything_is_reached_with_the_keyboard(watched, store):
    page = watched.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "refund":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".proven")).to_be_visible()
    button = page.get_by_role("button", name="Call local.delete")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(button).to_be_focused()
    page.keyboard.press("Space")
    expect(button).to_have_attribute("aria-expanded", "false")


def test_an_empty_store_says_how_to_begin(chromium, tmp_path, store):
    empty = type(store)(tmp_path / "empty", *[""] * 7)
    with viewing_here(empty) as viewer, watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        expect(watched.page.get_by_role("heading", name="Nothing has been executed yet")).to_be_visible()
        watched.shot("empty")
        watched.go("/approvals")
        expect(watched.page.get_by_role("heading", name="Nothing waits for a person")).to_be_visible()
        watched.shot("empty-approvals")


UNSEEN = "() => import('/static/dom.js').then(({visible}) => { const found = []; for (let number = 0; number < 0x110000; number += 1) if (visible(String.fromCodePoint(number)) !== String.fromCodePoint(number)) found.push(number); return found })"


def test_what_cannot_be_seen_is_shown_as_its_number(watched):
    page = watched.page
    found = {chr(number) for number in page.evaluate(UNSEEN)}
    assert found >= set(
        "\0\x1b\x7f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200f\u2028\u202e\u2060\u2066\u3164\ufe00\ufeff\uffa0\ufffa\ud800\udfff\U000e0041\U000e01ef"
    )
    assert not found & set("\t\n aéß漢😀؟")
    # Neither shows a person what the other one hides.
    assert [char for char in found if escape_invisible(char) == char] == []
    assert [char for char in map(chr, range(0x110000)) if _IGNORABLE.match(char) and char not in found] == []
    shown = page.evaluate("text => import('/static/dom.js').then(({visible}) => visible(text))", "a\U000e0041\u3164😀b")
    assert shown == "a\\u{e0041}\\u3164😀b"


def test_a_line_that_is_wrapped_does_not_pass_for_two(watched):
    # Filled up so that what follows begins a row of the screen.
    text = f"one\n\ntwo {'x' * 200}{' ' * 60}> “amount”: 1\nthree"
    shown = watched.page.evaluate(
        """text => import('/static/dom.js').then(({block}) => {
            const value = block('A value', { text });
            document.querySelector('main').append(value);
            const pre = value.querySelector('pre');
            pre.style.width = '300px';
            const left = pre.getBoundingClientRect().left;
            const lines = [...pre.children].map(line => {
                const range = document.createRange();
                range.selectNodeContents(line);
                const rects = [...range.getClientRects()];
                const mark = getComputedStyle(line, '::before');
                return {
                    mark: mark.content,
                    margin: parseFloat(mark.marginLeft),
                    at: Math.min(...rects.map(rect => rect.left)) - left,
                    rows: new Set(rects.map(rect => rect.top)).size,
                };
            });
            return { lines, text: pre.textContent, copied: pre.innerText };
        })""",
        text,
    )
    assert (shown["text"], shown["copied"]) == (text, text)
    assert [min(line["rows"], 2) for line in shown["lines"]] == [1, 1, 2, 1]
    # Each line has a mark, in a margin where no text is.
    assert all(line["mark"] == '"\u203a"' and line["margin"] < -10 < 10 < line["at"] for line in shown["lines"])


def test_a_value_that_is_cut_says_so_whatever_it_is_of(chromium, stores):
    store = stores()
    long = "😀" * 4000 + "and this is the end"

    async def call(database):
        await SqliteRecorder(database).append(
            Entry("intent", store.running, {"kind": "tool", "tool": "local.long", "arguments": long}),
            Entry("outcome", store.running, {"tool": "local.long", "status": "failed", "code": "e", "message": long}),
        )  # fmt: skip

    store.do(call)
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        page.goto(viewer.url)
        watched.go(f"/executions/{store.running}")
        page.get_by_role("button", name="Call local.long").click()
        details = page.locator("tr.more")
        expect(details.locator(".cut")).to_contain_text(["19 more characters", "19 more characters"])
        watched.shot("cut")
        whole = "**/api/executions/*/entries/*"
        watched.allowed.append("Failed to load resource")
        page.route(whole, lambda route: route.abort())
        details.get_by_role("button", name="Show all of it").first.click()
        expect(details.get_by_text("The viewer's server doesn't answer")).to_have_count(2)
        page.unroute(whole)
        details.get_by_role("button", name="Show all of it").first.click()
        expect(details.get_by_text("The viewer's server doesn't answer")).to_have_count(0)
        expect(details.locator(".notice.bad")).to_contain_text("and this is the end")
        expect(details.get_by_role("figure", name="Arguments")).to_contain_text("and this is the end")
        expect(details.locator(".cut")).to_have_count(0)


def test_a_signature_that_was_not_checked_proves_nothing(chromium, viewer, store):
    with watching(chromium, viewer) as watched:
        page = watched.page
        page.add_init_script("Object.defineProperty(Crypto.prototype, 'subtle', {value: undefined})")
        page.goto(viewer.url)
        watched.go(f"/executions/{store.works}")
        expect(page.locator(".notice.warn")).to_contain_text("signature was not checked: this browser can't")
        expect(page.locator(".notice.warn")).to_contain_text("mcp-bridge audit verify")
        page.get_by_role("button", name="Call local.delete").click()
        details = page.locator("tr.more")
        expect(details.locator(".verdict.warn")).to_have_count(2)
        expect(details.locator(".checks .warn").first).to_contain_text("mcp-bridge audit verify")
        expect(page.locator(".proof.warn")).to_have_count(10)
        expect(page.locator(".proof.good, .verdict.good, .proven")).to_have_count(0)
        watched.shot("signature-not-checked")


def test_a_script_that_was_settled_may_go_on(chromium, stores):
    store = stores()

    async def settle(database):
        await SqliteRecorder(database).append(
            Entry("suspension", store.running, {"status": "suspended"}), Entry("suspension", store.running, {"status": "interrupted"})
        )  # fmt: skip
        await ProgramStore(database).update(store.running, status="interrupted", state=None, record=None, due=None)

    store.do(settle)
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        page = watched.go(f"/executions/{store.running}")
        expect(page.locator("tr.suspension")).to_contain_text(["Suspended", "May continue"])
        expect(page.locator(".facts div", has=page.get_by_text("Waits", exact=True))).to_have_text("Waits1")
        # No process of it has died.
        expect(page.locator(".notice.warn")).to_contain_text("Nothing of it is under way now. Resume it with")
        watched.shot("may-go-on")


def test_what_cannot_be_resumed_is_not_said_to_be(chromium, stores):
    store = stores()
    unkeyed = script(uuid.uuid4().hex, "1", "interrupted")

    async def add(database):
        await ProgramStore(database).add(unkeyed, {}, Entry("start", unkeyed.id, {"code": "1"}))
        first, _ = await add_session(database, "report", 2)
        record = {"waiting": []}
        await ProgramStore(database).update(first, status="suspended", state=None, record=record, due=None)
        return first

    left_behind = store.do(add)
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        for ident, why in ((unkeyed.id, "has no idempotency key"), (left_behind, "has continued without it")):
            notice = watched.go(f"/executions/{ident}").locator(".notice.warn")
            expect(notice).to_contain_text(why)
            expect(notice).to_contain_text(f"mcp-bridge execution cancel {ident[:8]} cancels it")


def test_what_is_erased_leaves_a_page_that_was_open(chromium, stores):
    store = stores()

    async def forget(database):
        await erase(database, "execution", store.works, by="a test", reason=None, under_way=lambda *_: False)

    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        page.goto(viewer.url)
        watched.go(f"/executions/{store.works}")
        page.get_by_role("button", name="Call local.delete").click()
        expect(page.locator("tr.more .verdict.good")).to_have_count(2)
        expect(page.locator("table.steps")).to_be_visible()
        expect(page.locator("#live")).to_have_text("Live")
        assert "deleted b" in page.content()
        store.do(forget)
        expect(page.locator("h1")).to_contain_text("[REDACTED_TOMBSTONE]")
        expect(page.locator(".proven")).to_contain_text("18 entries proven")
        expect(page.locator("tr.more").first).to_contain_text("Its payload is erased")
        assert "deleted b" not in page.content()
        assert "refund" not in page.content().replace("mcp-bridge", "")
        expect(page.locator("table.steps, .picture")).to_have_count(0)
        watched.shot("erased-while-open")


# --- what others have left in the browser

LEFT = {
    "/": "<script>navigator.serviceWorker.register('/left.js').then(() => navigator.serviceWorker.ready)"
    ".then(() => { document.title = 'left' })</script>",
    "/left.js": "addEventListener('fetch', event => event.respondWith(new Response('<title>theirs</title>',"
    " {headers: {'content-type': 'text/html'}})))",
}


class Other(http.server.BaseHTTPRequestHandler):
    """Another user's server, at a port where the viewer will be."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/javascript" if self.path == "/left.js" else "text/html")
        self.end_headers()
        self.wfile.write(LEFT.get(self.path, "").encode())

    def log_message(self, *_):
        pass


def test_a_service_worker_that_was_left_at_a_known_port_is_dropped(chromium, stores):
    with contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            port = server.server_port
            page.goto(f"http://127.0.0.1:{port}/")
            expect(page).to_have_title("left")
            server.shutdown()
        with viewing(stores(), "--listen", f"127.0.0.1:{port}") as viewer:
            page.goto(viewer.base)
            expect(page).to_have_title("theirs")  # this once: the browser asks for a newer one after the page
            page.evaluate(
                "async () => { while ((await navigator.serviceWorker.getRegistrations()).length)"
                " await new Promise(go => setTimeout(go, 100)) }"
            )
            page.goto(viewer.base)
            expect(page.get_by_role("heading", name="Token needed")).to_be_visible()


# --- what changes


def test_changes_are_seen_and_questions_decided_without_a_reload(chromium, stores):
    store = stores()
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page, second = watched.page, watched.page.context.new_page()
        page.goto(viewer.url)
        expect(page.locator("#live")).to_have_text("Live")
        watched.go(f"/executions/{store.running}")
        expect(page.locator("tr.row")).to_have_count(2)
        expect(page.locator("tr.row.call")).to_contain_text("under way")
        expect(page.locator("#live")).to_have_text("Live")
        page.evaluate("window.stayed = true")
        page.locator(".row.call .toggle").click()

        async def end(database):
            done = {"tool": f"local.{EVIL}", "status": "ok"}
            await SqliteRecorder(database).append(
                Entry("outcome", store.running, done), Entry("end", store.running, {"status": "success"})
            )
            await ProgramStore(database).update(store.running, status="success", state=None, record=None, due=None)

        store.do(end)
        expect(page.locator("tr.row")).to_have_count(3)
        expect(page.locator("tr.row.call")).to_contain_text("ok")
        expect(page.locator("h1")).to_contain_text("success")
        expect(page.locator(".proven")).to_contain_text("4 entries proven")
        expect(page.locator("tr.more .verdict.good")).to_have_count(2)
        assert page.evaluate("window.stayed")

        # Two viewers on one question: what the one decides, the other sees.
        second.goto(f"{viewer.base}/approvals#token={viewer.token}")
        expect(second.locator("article")).to_have_count(1)
        second.evaluate("window.stayed = true")
        watched.go("/approvals")
        question = page.locator("article")
        expect(question).to_contain_text(EVIL)
        expect(question).to_contain_text("\\u202egnp.exe\\u2066")
        watched.shot("approvals")
        comment = question.get_by_label("Comment")
        comment.fill(f"as agreed {EVIL}")
        question.get_by_role("button", name="Approve").click()
        expect(page.locator("table")).to_contain_text("approved")
        expect(page.locator("table")).to_contain_text(f"as agreed {EVIL}")
        expect(page.get_by_role("heading", name="Nothing waits for a person")).to_be_visible()
        expect(second.locator("table")).to_contain_text(f"mcp-bridge execution resume {store.asks[:8]}")
        assert second.evaluate("window.stayed")
        expect(page.locator("#open-approvals")).to_be_hidden()
        watched.shot("approvals-decided")

        async def decided(database):
            (row,) = await approval_requests(ProgramStore(database), LOCAL_PRINCIPAL.name, store.asks)
            entries = await SqliteRecorder(database).read(store.asks)
            return row, entries[-1].entry

        row, entry = store.do(decided)
        assert row.status == "approved"
        assert row.approval.decision["comment"] == f"as agreed {EVIL}"
        assert (entry.kind, entry.payload["approved"], entry.payload["by"]) == (
            "decision",
            True,
            row.approval.decision["by"],
        )

        done = {"status": "success", "state": None, "record": None, "due": None}
        store.do(lambda database: ProgramStore(database).update(store.asks, **done))
        expect(second.locator("table")).not_to_contain_text("resume it with")


def test_a_comment_that_is_being_written_survives_changes(chromium, stores):
    store = stores()
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        page.goto(viewer.url)
        watched.go("/approvals")
        comment = page.get_by_label("Comment")
        comment.fill("half a")
        expect(page.locator("#live")).to_have_text("Live")

        async def ask(database):
            execution = await ProgramStore(database).execution(store.asks)
            waiting = execution.record["waiting"]
            record = execution.record | {"waiting": [*waiting, waiting[0] | {"effect": 9}]}
            await ProgramStore(database).ask(store.asks, 9, {"tool": "local.delete", "arguments": {"name": "z"}})
            await ProgramStore(database).update(
                store.asks, status="suspended", state=execution.state, record=record, due=None
            )

        store.do(ask)
        expect(page.locator("article")).to_have_count(2)
        # The page of its execution leads to the one question.
        second = page.context.new_page()
        second.goto(f"{viewer.base}/executions/{store.asks}#token={viewer.token}")
        second.get_by_role("link", name="decide").last.click()
        expect(second.locator("article").nth(1)).to_be_focused()
        second.close()
        page.bring_to_front()
        expect(comment.first).to_have_value("half a")
        expect(comment.first).to_be_focused()
        page.locator("article").nth(1).get_by_role("button", name="Deny").click()
        expect(page.locator("table")).to_contain_text("denied")
        expect(comment).to_have_value("half a")


def test_a_viewer_whose_server_has_fallen_silent_says_so_and_is_live_again_when_it_speaks(chromium, stores):
    with viewing(stores()) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        # The page's time is the test's alone.
        page.clock.install(time=0)
        page.clock.pause_at(1_000)
        asked = []
        page.on("request", lambda request: asked.append(request.url) if "/api/events" in request.url else None)
        page.goto(viewer.url)
        expect(page.locator("#live")).to_have_text("Live")
        page.evaluate(
            "window.said = []; new MutationObserver(() => said.push(document.querySelector('#live').textContent))"
            ".observe(document.querySelector('#live'), { childList: true, characterData: true, subtree: true })"
        )
        # Longer than between two signs of life: it stays live, on the same connection.
        page.clock.fast_forward(15_000)
        expect(page.locator("#live")).to_have_text("Live")
        assert len(asked) == 1
        assert not any("Not connected" in said for said in page.evaluate("said"))
        viewer.process.send_signal(signal.SIGSTOP)
        try:
            page.clock.fast_forward(17_000)
            expect(page.locator("#live")).to_have_text("Not connected")
        finally:
            viewer.process.send_signal(signal.SIGCONT)
        page.clock.fast_forward(3_000)
        expect(page.locator("#live")).to_have_text("Live")


def test_what_was_said_to_be_of_today_is_not_on_the_next_day(chromium, stores):
    store = stores()
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        # The page's time is the test's alone: it is shortly before midnight.
        page.clock.install(time=dt.datetime(2026, 5, 1, 23, 59, 50))  # noqa: DTZ001
        page.goto(viewer.url)
        expect(page.locator("#live")).to_have_text("Live")
        watched.go("/approvals")
        expect(page.locator("#live")).to_have_text("Live")
        comment = page.get_by_label("Comment")
        comment.fill("half a")
        page.clock.fast_forward(20_000)
        with page.expect_response("**/api/approvals"):
            store.do(lambda database: add_session(database, "one", 1))
        expect(comment).to_have_value("half a")
        comment.fill("")
        with page.expect_navigation():
            store.do(lambda database: add_session(database, "another", 1))
        expect(page.locator("#live")).to_have_text("Live")


def test_a_page_whose_token_has_ended_asks_for_another_and_shows_nothing_any_more(chromium, stores):
    store = stores()
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        watched.allowed.append("401")
        page = watched.page
        streams = []

        def answer(route):
            streams.extend(["stream"] * ("/api/events" in route.request.url))
            if len(streams) > 1:
                route.fulfill(status=401, json={"error": {"code": "token_needed", "message": "It has ended."}})
            elif "/api/events" in route.request.url:
                # A stream that ends: the page asks for the next after two seconds.
                route.fulfill(content_type="text/event-stream", body="data: open\n\n")
            else:
                route.continue_()

        page.route("**/api/**", answer)
        page.goto(viewer.url)
        expect(page.locator("table.list")).to_be_visible()
        expect(page.get_by_role("heading", name="Token needed")).to_be_visible()
        expect(page.get_by_role("alert")).to_contain_text("is not that of the viewer that runs now")
        expect(page.locator("#live")).to_have_text("Not connected")
        assert store.works not in page.content()


def test_whoever_is_no_approver_is_told_so_and_gets_no_buttons(chromium, stores):
    with viewing_here(stores()) as viewer, watching(chromium, viewer) as watched:
        page = watched.page
        may = [False]

        def as_one_who(route):
            answer = route.fetch()
            route.fulfill(response=answer, json=answer.json() | {"may_decide": may[0], "by": "ben"})

        page.route("**/api/approvals", as_one_who)
        page.goto(viewer.url)
        watched.go("/approvals")
        question = page.locator("article")
        expect(question).to_contain_text("Only an approver decides this, and ben is none")
        expect(question.get_by_role("button", name="Approve")).to_have_count(0)
        expect(question.get_by_role("textbox")).to_have_count(0)
        may[0] = True
        page.reload()
        expect(question.get_by_role("button", name="Approve")).to_be_visible()


def test_of_a_long_execution_it_is_said_how_many_of_its_entries_are_proven(chromium, stores):
    store = stores()

    async def add(database):
        recorder = SqliteRecorder(database)
        for _ in range(250):
            recorder.post(Entry("event", store.running, {"name": "x"}))
        await database.flush()

    store.do(add)
    with viewing_here(store) as viewer, watching(chromium, viewer) as watched:
        watched.page.goto(viewer.url)
        watched.go(f"/executions/{store.running}")
        expect(watched.page.locator(".proven")).to_contain_text(re.compile(r"✓ 200 of 25\d entries proven"))


def test_a_viewer_whose_server_has_ended_says_so(chromium, stores):
    with viewing(stores()) as viewer, watching(chromium, viewer) as watched:
        watched.allowed += [
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE_CHUNKED_ENCODING",
            "ERR_EMPTY_RESPONSE",
            "ERR_CONNECTION_RESET",
        ]
        watched.page.goto(viewer.url)
        expect(watched.page.locator("#live")).to_have_text("Live")
        viewer.process.terminate()
        viewer.process.wait(30)
        expect(watched.page.locator("#live")).to_have_text("Not connected")
        watched.shot("ended")


# --- what was changed


def _entry(connection, store):
    (sequence, data) = connection.execute(
        "SELECT sequence, entry FROM entries WHERE execution = ? AND kind = 'outcome' ORDER BY sequence LIMIT 1", (store.works,)
    ).fetchone()  # fmt: skip
    return sequence, data


def _change(table, column, make, before=0):
    """Changes a value of the row that belongs to the execution's first outcome, and puts it back."""

    @contextlib.contextmanager
    def changed(connection, store):
        place = _entry(connection, store)[0] - before
        row = connection.execute(f"SELECT * FROM {table} WHERE sequence = ?", (place,)).fetchone()  # noqa: S608
        (value,) = connection.execute(f"SELECT {column} FROM {table} WHERE sequence = ?", (place,)).fetchone()  # noqa: S608
        new = make(value)
        with connection:
            if new is None:
                connection.execute(f"DELETE FROM {table} WHERE sequence = ?", (place,))  # noqa: S608
            else:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE sequence = ?", (new, place))  # noqa: S608
        yield
        with connection:
            connection.execute(f"REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608

    return changed


CHANGES = {
    "another time": _change("entries", "entry", lambda data: re.sub(rb'"time":1', b'"time":2', data)),
    "another execution": _change(
        "entries", "entry", lambda data: re.sub(rb'"execution":"..', b'"execution":"zz', data)
    ),
    "no text": _change("entries", "entry", lambda data: b"\xff<b>"),
    "another hash": _change("entries", "nodes", lambda nodes: bytes([nodes[0] ^ 1]) + nodes[1:], before=1),
    "no hash": _change("entries", "nodes", lambda nodes: b"", before=1),
    "another payload": _change("payloads", "sealed", lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1])),
    "no entry": _change("entries", "entry", lambda data: None),
    "no payload": _change("payloads", "sealed", lambda sealed: None),
}


def _open_what_is_bad(page):
    """Open the row with the first entry that doesn't verify. It may be another one once the page has looked again."""
    for _ in range(1000):
        row = page.locator("tr.row", has=page.locator(".proof.bad")).first
        expect(row.locator(".proof")).to_have_text("✗ does not verify")
        if row.locator(".toggle").get_attribute("aria-expanded") == "false":
            row.locator(".toggle").click()
        # At once, and both together: when the page looks again, it closes what was opened.
        told = page.locator(".verdict.bad").all_text_contents()
        if told and page.locator(".fault").count():
            assert "does not verify" in told[0]
            return
        page.wait_for_timeout(50)
    raise AssertionError("what doesn't verify is not explained")


def _close_what_is_open(page):
    """Close every opened row. At once, not as a person clicks: the page may look again meanwhile, and close it too."""
    closed = "[...document.querySelectorAll('.toggle[aria-expanded=true]')].map((each) => each.dataset.key)"
    while keys := page.evaluate(closed):
        page.evaluate("(key) => document.querySelector(`.toggle[data-key='${key}']`)?.click()", keys[0])


def test_what_was_changed_does_not_verify(chromium, stores):
    store = stores()
    with (
        viewing_here(store) as viewer,
        watching(chromium, viewer) as watched,
        contextlib.closing(sqlite3.connect(store.file)) as connection,
    ):
        page = watched.page
        page.goto(viewer.url)
        watched.go(f"/executions/{store.works}")
        again = page.get_by_role("button", name="Check the proofs again")
        alert = page.get_by_role("alert").first
        with connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
        for name, change in CHANGES.items():
            expect(page.locator(".proven")).to_contain_text("18 entries proven")
            with change(connection, store):
                again.click()
                expect(alert, name).to_contain_text(re.compile("do(es)? not verify"))
                _open_what_is_bad(page)
                watched.shot(f"tampered-{name.replace(' ', '-')}")
                _close_what_is_open(page)
            again.click()
        expect(page.locator(".proven")).to_contain_text("18 entries proven")

        # Another checkpoint than the one that was signed.
        (note,) = connection.execute("SELECT note FROM head").fetchone()
        size = note.split("\n")[1]
        with connection:
            connection.execute("UPDATE head SET note = ?", (note.replace(f"\n{size}\n", f"\n{int(size) - 1}\n", 1),))
        again.click()
        expect(alert).to_contain_text("The log's checkpoint does not verify.")


def test_what_is_left_out_is_missed(watched, store):
    def without_one(route):
        answer = route.fetch()
        page = answer.json()
        del page["rows"][4]
        route.fulfill(response=answer, json=page | {"total": page["total"] - 1})

    watched.page.route("**/entries?*", without_one)
    watched.go(f"/executions/{store.works}")
    expect(watched.page.get_by_role("alert")).to_contain_text("Something is missing")


# --- what the pages compute


def test_the_browser_computes_what_python_does(watched):
    page = watched.page
    rng = random.Random(4)  # noqa: S311
    texts = [rng.randbytes(length) for length in (*range(130), 1000, 65_537)]
    given = page.evaluate(
        "async texts => { const {sha256, hex} = await import('/static/verify.js');"
        " return texts.map(text => hex(sha256(Uint8Array.from(text)))) }",
        [list(text) for text in texts],
    )
    assert given == [hashlib.sha256(text).hexdigest() for text in texts]
    keys = [rng.randbytes(length) for length in (0, 1, 32, 63, 64, 65, 200)]
    given = page.evaluate(
        "async keys => { const {hmac, hex, utf8} = await import('/static/verify.js');"
        " return keys.map(key => hex(hmac(Uint8Array.from(key), utf8('text ü')))) }",
        [list(key) for key in keys],
    )
    assert given == [hmac.digest(key, "text ü".encode(), "sha256").hex() for key in keys]


def test_the_browser_climbs_every_small_tree_and_no_wrong_one(watched):
    leaves = [hashlib.sha256(bytes([number])).digest() for number in range(22)]
    frontier, nodes = merkle.Frontier(), []
    cases = []
    for size, leaf in enumerate(leaves, 1):
        nodes.append(frontier.append(leaf))

        def read(level, index):
            return nodes[((index + 1) << level) - 1][32 * level : 32 * level + 32]

        for index in range(size):
            proof = merkle.inclusion_proof(index, size, read)
            cases.append({"leaf": leaves[index].hex(), "index": index, "size": size, "proof": [node.hex() for node in proof], "root": frontier.root().hex()})  # fmt: skip
    wrong = []
    for case in cases:
        wrong.append(case | {"index": (case["index"] + 1) % case["size"]} if case["size"] > 1 else case | {"size": 2})
        wrong.append(case | {"proof": [*case["proof"], "00" * 32]})
        if case["proof"]:
            wrong.append(case | {"proof": case["proof"][:-1]})
            wrong.append(case | {"proof": case["proof"][1:]})
        wrong.append(case | {"index": case["size"]})
    given = watched.page.evaluate(
        "async cases => { const {climb, hex} = await import('/static/verify.js');"
        " const bytes = text => Uint8Array.from(text.match(/../g) ?? [], pair => parseInt(pair, 16));"
        " return cases.map(one => { const {root} = climb(bytes(one.leaf), one.index, one.size, one.proof.map(bytes));"
        " return root !== null && hex(root) === one.root }) }",
        cases + wrong,
    )
    assert given[: len(cases)] == [True] * len(cases)
    assert not any(given[len(cases) :])

"""The viewer's server: who may ask it, what it tells, and what it never tells."""

import dataclasses
import json
import os
import signal
import subprocess
import uuid
from contextlib import aclosing

import httpx2
import pytest
from typer.testing import CliRunner
from ui_fixtures import CODE, EVIL, FAILS, add_session, script, viewing

from mcp_bridge.cli.app import app
from mcp_bridge.cli.listen_addresses import address, listening, warn_of_plain_http
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, Principal
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.server.ui import change_notifications
from mcp_bridge.server.ui.api import MAX_BODY_BYTES, MAX_ROWS, Viewer
from mcp_bridge.server.ui.app import build, build_for_principals
from mcp_bridge.server.ui.change_notifications import Live
from mcp_bridge.server.ui.page_data import MAX_NAME_CHARS, MAX_SHOWN_CHARS, clipped
from mcp_bridge.views import overview

BASE = "http://127.0.0.1:8808"
TOKEN = "a-token"  # noqa: S105

ONE = "/api/executions/{id}"
READ = [
    "/api/executions",
    ONE,
    f"{ONE}/entries",
    f"{ONE}/entries/1",
    f"{ONE}/proofs?sequence=1",
    f"{ONE}/graph",
    "/api/approvals",
    "/api/pools",
    "/api/sessions",
    "/api/events",
]
FILES = [
    "/",
    "/approvals",
    "/sessions",
    "/executions/x",
    "/static/main.js",
    "/static/style.css",
    "/nothing",
    "/static/../app.py",
    "/static/%2e%2e/app.py",
]


@pytest.fixture
def store(stores):
    return stores()


@pytest.fixture
async def database(store):
    async with store.open() as database:
        yield database


def client(database, token=TOKEN, **headers):
    if token is not None:
        headers = {"Authorization": f"Bearer {token}", **headers}
    viewer = build(Live(database), TOKEN, "anna")
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=viewer), base_url=BASE, headers=headers)


@pytest.fixture
async def viewer(database):
    async with client(database, Origin=BASE) as viewer:
        yield viewer


async def told(viewer, path, code=200, **params):
    answer = await viewer.get(path, params=params or None)
    assert answer.status_code == code, answer.text
    return answer.json()


# --- who may ask


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \xfftoken"},
        {"Cookie": f"token={TOKEN}"},
    ],
)
@pytest.mark.parametrize("path", READ)
async def test_nothing_is_told_without_the_token(database, store, path, headers):
    async with client(database, None) as viewer:
        path = path.format(id=store.works)
        answer = await viewer.get(path, headers={name: value.encode("latin-1") for name, value in headers.items()})
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "token_needed"
        assert (await viewer.get(path, params={"token": TOKEN})).status_code == 401


async def test_nothing_is_decided_without_the_token(database, store):
    async with client(database, None, Origin=BASE) as viewer:
        answer = await viewer.post(f"/api/approvals/{store.asks}.2", json={"approved": True})
        assert answer.status_code == 401
    (question,) = await ProgramStore(database).approvals(store.asks)
    assert question.status == "open"


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/api/executions"])
@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8808", 200), ("localhost:8808", 200), ("[::1]:8808", 200), ("192.168.0.7:1", 200), ("evil.example:8808", 403),
     ("127.0.0.1.evil.example", 403), ("localhost.evil.example:8808", 403), ("", 403), ("[evil]:8808", 403)],
)  # fmt: skip
async def test_another_name_that_leads_here_is_refused(database, host, path, status):
    async with client(database) as viewer:
        assert (await viewer.get(path, headers={"Host": host})).status_code == status


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("GET", {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),  # another port of this machine
        ("POST", {}, 403),
        ("POST", {"Origin": "http://127.0.0.1:9999"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {"Origin": "https://evil.example"}, 403),
        ("POST", {"Origin": BASE, "Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", {"Origin": BASE, "Content-Type": "text/plain"}, 400),
        ("POST", {"Origin": BASE}, 200),
    ],
)
async def test_another_page_is_refused(database, store, method, headers, status):
    path = "/api/approvals" if method == "GET" else f"/api/approvals/{store.asks}.2"
    content = None if method == "GET" else b'{"approved": false}'
    async with client(database) as viewer:
        headers = {"Content-Type": "application/json", **headers}
        assert (await viewer.request(method, path, headers=headers, content=content)).status_code == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "POST"])
async def test_there_is_no_other_way_to_change_anything(viewer, store, method):
    for path in READ:
        assert (await viewer.request(method, path.format(id=store.works))).status_code in {404, 405}


async def test_every_answer_says_what_a_browser_may_do_with_it(database, viewer, store):
    async with client(database, None) as nobody:
        answers = [
            await asks.get(path.format(id=store.works)) for asks in (viewer, nobody) for path in READ[:-1] + FILES
        ]
        answers.append(await nobody.get("/api/approvals", headers={"Host": "evil.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "clear-site-data" not in answer.headers, "it would take the token with it"
        assert "access-control-allow-origin" not in answer.headers
        assert "set-cookie" not in answer.headers


async def test_the_files_are_the_viewers_own_and_name_no_other_address(viewer):
    for path in FILES[:6]:
        text = (await viewer.get(path)).text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
        for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "DOMParser", "srcdoc"):
            assert way not in text
    for path in FILES[6:]:
        assert (await viewer.get(path)).status_code == 404


# --- what is told


async def test_executions_are_listed_the_latest_first(viewer, store):
    rows = (await told(viewer, "/api/executions"))["executions"]
    assert [row["id"] for row in rows] == [
        store.others,
        store.erased,
        store.running,
        store.script,
        store.asks,
        store.works,
        store.fails,
    ]
    works = rows[5]
    assert (works["name"], works["kind"], works["status"], works["requests"], works["denials"]) == (
        "refund",
        "program",
        "success",
        7,
        1,
    )
    assert works["seconds"] >= 0
    assert (rows[4]["seconds"], [row["step"] for row in rows[4]["waiting"]]) == (None, ["ask"])
    assert rows[1]["name"] == "[REDACTED_TOMBSTONE]"
    assert [row["principal"] for row in rows[:2]] == ["somebody else", "local"]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"query": "refund"}, ["works"]),
        ({"query": "REFUND look"}, ["works"]),
        ({"query": "broken"}, ["fails"]),
        ({"query": "forbidden"}, ["works"]),
        ({"query": "mcp.servers"}, ["script"]),
        ({"query": "nobody"}, []),
        ({"query": "somebody"}, ["others"]),
        ({"status": "running"}, ["running"]),
        ({"status": ["suspended", "failed"]}, ["asks", "fails"]),
        ({"status": "interrupted"}, []),
        ({"status": "erased"}, ["erased"]),
        ({"kind": "program"}, ["asks", "works", "fails"]),
        ({"kind": "script", "status": "success"}, ["others", "script"]),
        ({"since": "1e10"}, []),
        ({"since": "0", "query": "refund"}, ["works"]),
    ],
)
async def test_executions_are_found(viewer, store, params, names):
    rows = (await told(viewer, "/api/executions", **params))["executions"]
    assert [row["id"] for row in rows] == [getattr(store, name) for name in names]


async def test_a_cell_is_found_by_its_session(viewer, database):
    (cell,) = await add_session(database, "Harvest", 1)
    rows = (await told(viewer, "/api/executions", query="harvest"))["executions"]
    assert [row["id"] for row in rows] == [cell]


async def test_an_execution_is_found_by_the_beginning_of_its_id(viewer, store):
    rows = (await told(viewer, "/api/executions", query=store.works[:12]))["executions"]
    assert [row["id"] for row in rows] == [store.works]


async def test_pages_follow_each_other_without_a_gap(viewer, monkeypatch):
    whole = (await told(viewer, "/api/executions"))["executions"]
    monkeypatch.setattr("mcp_bridge.server.ui.api.PAGE", 2)
    monkeypatch.setattr("mcp_bridge.views.overview._BATCH", 3)
    found, before = [], None
    while True:
        page = await told(viewer, "/api/executions", **({"before": before} if before else {}))
        found += page["executions"]
        if (before := page["before"]) is None:
            break
        assert len(page["executions"]) <= 2
    assert found == whole


async def test_a_timeline_has_calls_with_their_outcomes(viewer, store):
    page = await told(viewer, f"/api/executions/{store.works}/entries")
    assert [(row["kind"], row["what"], row["step"], row["status"]) for row in page["rows"]] == [
        ("start", "refund", None, ""),
        ("call", "local.look", "look", "ok"),
        ("call", "local.look", "left", "ok"),
        ("denial", "local.forbidden", "forbidden", "denied"),
        ("call", "local.look", "each[0]", "ok"),
        ("call", "local.look", "each[1]", "ok"),
        ("call", "local.look", "inner/one", "ok"),
        ("call", "local.look", "inner/two", "ok"),
        ("call", "local.delete", "delete", "ok"),
        ("end", "", None, "success"),
    ]
    call = page["rows"][1]
    assert (json.loads(call["given"]["text"]), json.loads(call["value"]["text"])) == ({"name": "b"}, {"saw": "b"})
    assert len(call["sequences"]) == 2
    some = await told(viewer, f"/api/executions/{store.works}/entries", offset=3, limit=2)
    assert (some["rows"], some["total"]) == (page["rows"][3:5], 10)


@pytest.mark.parametrize(
    ("status", "wait"), [("running", "open"), ("suspended", "waiting"), ("interrupted", "no outcome")]
)
async def test_a_wait_without_an_outcome_is_none_only_where_nothing_waits(viewer, database, status, wait):
    row = script(uuid.uuid4().hex, "1", status, {"waiting": []})
    await ProgramStore(database).add(row, {}, Entry("start", row.id, {"code": "1"}))
    for call, kind, name in (("0#1", "wait", "wait.event"), ("0#2", "tool", "local.look")):
        asked = {"kind": kind, "tool": name, "arguments": {}, "call": call}
        await SqliteRecorder(database).append(Entry("intent", row.id, asked))
    rows = (await told(viewer, f"/api/executions/{row.id}/entries"))["rows"]
    found = {one["what"]: one["status"] for one in rows[1:]}
    assert found == {"wait.event": wait, "local.look": "open" if status == "running" else "no outcome"}


async def test_an_execution_is_told_with_its_steps_and_its_way(viewer, store):
    facts = await told(viewer, f"/api/executions/{store.works}")
    assert (facts["key"], facts["results"]) == (
        "order 7",
        [["Output", {"text": "deleted b", "cut": False, "left_out": 0}]],
    )
    assert facts["totals"]["calls"] == 7
    assert ("forbidden", "skipped") in [(step["id"], step["status"]) for step in facts["steps"]]
    picture = (await viewer.get(f"/api/executions/{store.works}/graph")).text
    assert picture.startswith("<svg ")
    assert "forbidden (tool)" in picture
    failed = await told(viewer, f"/api/executions/{store.fails}")
    assert failed["error"]["code"] == "tool_error"
    assert json.loads(failed["source"]["text"])["name"] == FAILS["name"]


async def test_a_scripts_code_is_shown_as_it_was_recorded(viewer, store):
    facts = await told(viewer, f"/api/executions/{store.script}")
    assert facts["source"]["text"] == CODE
    assert facts["name"] == CODE.splitlines()[2]
    for path in ("/api/executions", f"/api/executions/{store.script}", f"/api/executions/{store.script}/entries"):
        assert "a secret" not in (await viewer.get(path)).text
    assert (await told(viewer, "/api/executions", query="secret"))["executions"] == []


async def test_a_script_is_shown_in_its_language_and_a_cell_in_its_session_as_they_were_recorded(
    viewer, database, store
):
    executions, recorder = ProgramStore(database), SqliteRecorder(database)
    first, second, other = [uuid.uuid4().hex for _ in range(3)]
    for number, (ident, before) in enumerate([(first, ""), (second, first)], 1):
        row = script(ident, f"x = {number}  # a secret that the record doesn't show", record={"value": f"{number}"})
        cell = Cell("a secret name", number, before, "0" * 64)
        row = dataclasses.replace(row, bundle=row.bundle | {"cell": cell.to_bundle()})
        entry = {"code": f"x = {number}", **cell.ref("shown").encode()}
        await executions.add(row, {}, Entry("start", ident, entry))
    row = script(other, "")
    await executions.add(row, {}, Entry("start", other, {"code": "// Adds.\n1 + 1", "language": "javascript"}))
    await recorder.append()
    page = await viewer.get(f"/api/executions/{second}")
    assert "secret" not in page.text
    facts = page.json()
    assert (facts["language"], facts["session"]["name"], facts["session"]["cell"]) == ("Python", "shown", 2)
    assert [(cell["id"], cell["cell"], cell["source"]["text"]) for cell in facts["session"]["before"]] == [
        (first, 1, "x = 1")
    ]
    facts = await told(viewer, f"/api/executions/{other}")
    assert (facts["language"], facts["name"], facts["session"]) == ("JavaScript", "1 + 1", None)
    assert (await told(viewer, f"/api/executions/{store.works}"))["language"] is None
    assert (await told(viewer, f"/api/executions/{store.erased}"))["language"] is None


async def test_what_is_erased_is_a_tombstone_everywhere_and_still_proven(viewer, store):
    facts = await told(viewer, f"/api/executions/{store.erased}")
    assert (facts["source"], facts["results"], facts["name"]) == (None, [], "[REDACTED_TOMBSTONE]")
    rows = (await told(viewer, f"/api/executions/{store.erased}/entries"))["rows"]
    assert all(row["erased"] and row["given"] is row["value"] is None and not row["what"] for row in rows)
    sequences = [sequence for row in rows for sequence in row["sequences"]]
    evidence = await told(viewer, f"/api/executions/{store.erased}/proofs", sequence=sequences)
    assert [(proof["sequence"], proof["payload"], proof["fault"]) for proof in evidence["proofs"]] == [
        (sequence, None, "") for sequence in sequences
    ]


async def test_long_values_are_cut_until_somebody_asks_for_all(viewer, database, store, monkeypatch):
    monkeypatch.setattr("mcp_bridge.server.ui.page_data.MAX_SHOWN_CHARS", 20)
    row = (await told(viewer, f"/api/executions/{store.fails}/entries"))["rows"][1]
    whole = await told(viewer, f"/api/executions/{store.fails}/entries/{row['sequences'][0]}")
    assert (len(row["given"]["text"]), row["given"]["cut"], whole["given"]["cut"]) == (20, True, False)
    assert len(whole["given"]["text"]) == 20 + row["given"]["left_out"]
    assert json.loads(whole["given"]["text"]) == {"name": EVIL}


@pytest.mark.parametrize("sign", ["x", "\U0001f600"])
async def test_every_text_that_is_cut_says_so(viewer, database, store, monkeypatch, sign):
    monkeypatch.setattr("mcp_bridge.server.ui.page_data.MAX_PRINTED_CHARS", MAX_SHOWN_CHARS)
    text = sign * (MAX_SHOWN_CHARS + 1)
    name = sign * (MAX_NAME_CHARS - 1) + "…"
    cut = {"text": text[:-1], "cut": True, "left_out": 1}
    assert clipped(text) == cut
    assert clipped(text[:-1]) == {"text": text[:-1], "cut": False, "left_out": 0}
    kept = ProgramStore(database)
    row = await kept.execution(store.fails)
    steps = [row.record["steps"][0] | {"output": text}, row.record["steps"][1] | {"error": text}]
    record = row.record | {"program": text, "steps": steps, "error": text}
    await kept.update(store.fails, status="failed", state=None, record=record, due=None)
    await SqliteRecorder(database).append(
        Entry("outcome", store.fails, {"effect": 99, "status": "failed", "code": "e", "message": text}),
        Entry("violation", store.fails, {"message": text}),
    )
    facts = await told(viewer, f"/api/executions/{store.fails}")
    assert facts["name"] == name
    assert facts["error"]["message"] == cut
    assert (facts["steps"][0]["output"], facts["steps"][1]["error"]) == (cut, cut)
    *_, failed, violation = (await told(viewer, f"/api/executions/{store.fails}/entries"))["rows"]
    assert failed["error"]["message"] == cut
    assert violation["what"] == name
    whole = await told(viewer, f"/api/executions/{store.fails}/entries/{failed['sequences'][0]}")
    assert whole["error"]["message"] == {"text": text, "cut": False, "left_out": 0}


async def test_a_script_that_was_settled_has_waited_once(viewer, database, store):
    recorder = SqliteRecorder(database)
    for payload in (
        {"status": "suspended", "code": "in_doubt", "error": "It may have happened."},
        {"status": "interrupted"},
    ):
        await recorder.append(Entry("suspension", store.running, payload))
    facts = await told(viewer, f"/api/executions/{store.running}")
    assert facts["totals"]["waits"] == 1


async def test_a_program_is_named_by_its_hash(viewer, database, store):
    row = await ProgramStore(database).execution(store.works)
    assert (await told(viewer, f"/api/executions/{store.works}"))["program_hash"] == row.program
    for ident in (store.script, store.erased):
        assert (await told(viewer, f"/api/executions/{ident}"))["program_hash"] == ""


# --- sessions


async def test_where_sessions_were_forked_is_looked_for_a_bounded_part_at_a_time(viewer, database, monkeypatch):
    monkeypatch.setattr(overview, "MAX_CELLS_LOOKED", 2)
    heads = [(await add_session(database, f"s{number}", 1))[0] for number in range(2)]
    for number, head in enumerate(heads):
        await add_session(database, f"f{number}", 1, after=head, number=2)
    known = []
    for _ in range(4):
        rows = (await told(viewer, "/api/sessions"))["sessions"]
        known.append({row["name"]: row["origin"]["name"] for row in rows if row["origin"]})
    assert known[0] == {"f1": "s1"}
    assert known[-1] == {"f0": "s0", "f1": "s1"}


async def test_sessions_are_listed_as_recorded_with_where_they_were_forked(viewer, database, store):
    first, fork = await add_session(database, "report", 3), Cell("a secret name", 4, "", "0" * 64)
    (head,) = await add_session(database, "what-if", 1, after=first[1], number=3)
    ident = uuid.uuid4().hex
    row = script(ident, "1")
    row = dataclasses.replace(row, request="1", bundle=row.bundle | {"cell": fork.to_bundle()})
    entry = {"code": "1", "language": "javascript", **fork.ref("shown").encode()}
    await ProgramStore(database).add(row, {}, Entry("start", ident, entry))
    assert await SessionStore(database).begin_move(LOCAL_PRINCIPAL.name, "a secret name", "", ident)()
    # Asked again, what was remembered of it says the same.
    for _ in range(2):
        answer = await viewer.get("/api/sessions")
        assert "secret" not in answer.text
        rows = {row["name"]: row for row in answer.json()["sessions"]}
        assert list(rows) == ["shown", "what-if", "report"]
        assert rows["what-if"]["origin"] == {"execution": first[1], "name": "report", "cell": 2}
        assert rows["report"]["origin"] is None
        assert [(row["cells"], row["language"], row["state"]) for row in rows.values()] == [
            (4, "JavaScript", "idle"),
            (3, "Python", "idle"),
            (3, "Python", "idle"),
        ]
    # A fork from a session's last cell, which is remembered as that of another session.
    await add_session(database, "later", 1, after=head, number=4)
    rows = {row["name"]: row for row in (await told(viewer, "/api/sessions"))["sessions"]}
    assert rows["later"]["origin"] == {"execution": head, "name": "what-if", "cell": 3}
    await erase(database, "execution", head, by="a test", reason=None, under_way=lambda *_: False)
    rows = {row["execution"]: row for row in (await told(viewer, "/api/sessions"))["sessions"]}
    assert (rows[head]["name"], rows[head]["state"], rows[head]["language"]) == ("", "lost", None)


async def test_where_sessions_are_not_rebuilt_they_are_lost_by_the_record(database, store):
    await add_session(database, "report", 1)
    app = build(Live(database), TOKEN, "anna", can_rebuild=False)
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": BASE}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE, headers=headers) as viewer:
        (row,) = (await told(viewer, "/api/sessions"))["sessions"]
    assert row["state"] == "lost"


# --- what is another's


async def test_a_session_is_its_principals_and_of_those_that_may_see_all(database, store):
    await add_session(database, "confidential", 1, principal="somebody else")
    await add_session(database, "mine", 1)
    for principal, names in (
        (Principal("local"), {"mine": "local"}),
        (Principal("approver", may_approve=True), {}),
        (Principal("auditor", may_see_all=True), {"mine": "local", "confidential": "somebody else"}),
    ):
        app = build_for_principals(Live(database), lambda _, principal=principal: Viewer(principal, principal.name))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Origin": BASE}) as viewer:
            answer = await viewer.get("/api/sessions")
        assert {row["name"]: row["principal"] for row in answer.json()["sessions"]} == names
        assert ("confidential" in answer.text) == ("confidential" in names)


async def test_whoever_may_see_all_sees_it_and_an_approver_decides_what_it_may_not_see(database, store):
    async def asked(principal, method, path, **options):
        app = build_for_principals(Live(database), lambda _: Viewer(principal, principal.name))
        # Mounted under a path, as in a server that has other pages, too.
        transport = httpx2.ASGITransport(app=app, root_path="/ui")
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Origin": BASE}) as client:
            answer = await client.request(method, f"/ui{path}", **options)
            return answer.status_code, answer.json()

    theirs, question = f"/api/executions/{store.others}", f"/api/approvals/{store.others}.1"
    stranger, approver = Principal("stranger"), Principal("approver", may_approve=True)
    auditor = Principal("auditor", may_see_all=True)
    for principal, status in ((stranger, 404), (approver, 404), (auditor, 200)):
        assert (await asked(principal, "GET", theirs))[0] == status
        listed = (await asked(principal, "GET", "/api/executions"))[1]["executions"]
        assert (store.others in {row["id"] for row in listed}) == (status == 200)
    for principal, count, visible in ((stranger, 0, set()), (auditor, 1, {True}), (approver, 1, {False})):
        assert (await asked(principal, "GET", "/api/approvals?count"))[1]["open"] == count
        shown = (await asked(principal, "GET", "/api/approvals"))[1]["approvals"]
        # Whose it is, and whether its reader may see the execution.
        assert {row["visible"] for row in shown} == visible
        assert {row["principal"] for row in shown} == ({"local", "somebody else"} if visible else set())
    said = {"json": {"approved": True}}
    assert (await asked(auditor, "POST", f"/api/approvals/{store.asks}.2", **said))[1]["error"]["code"] == (
        "approver_needed"
    )
    assert (await asked(stranger, "POST", question, **said))[1]["error"]["code"] == "unknown_trace"
    # An execution that an approver may not see is unknown to it, too, unless it has asked that question.
    for unseen in (f"{store.others}.77", f"{'0' * 32}.77"):
        assert (await asked(approver, "POST", f"/api/approvals/{unseen}", **said))[1]["error"]["code"] == (
            "unknown_trace"
        )
    assert (await asked(auditor, "POST", f"/api/approvals/{store.others}.77", **said))[1]["error"]["code"] == (
        "unknown_approval"
    )
    assert (await asked(Principal("local"), "POST", f"/api/approvals/{store.asks}.2", **said))[1]["error"][
        "code"
    ] == "approver_needed"
    assert (await asked(approver, "POST", f"/api/approvals/{store.asks}.2", **said))[0] == 200
    (decided,) = [row for row in await ProgramStore(database).approvals(store.asks) if row.effect == 2]
    assert decided.decision["by"] == "approver"

    async def takes_effect():
        rows = (await asked(approver, "GET", "/api/approvals"))[1]["approvals"]
        return [row["takes_effect"] for row in rows if row["execution"] == store.asks]

    # Until its execution has been resumed.
    assert await takes_effect() == [True]
    await ProgramStore(database).update(store.asks, status="success", state=None, record=None, due=None)
    assert await takes_effect() == [False]
    assert (await asked(Principal("nobody"), "GET", "/api/pools"))[1] == {"pools": []}


async def test_a_page_is_told_whether_its_principal_decides(database):
    for principal, may in ((Principal("local"), False), (Principal("boss", may_approve=True), True)):
        app = build_for_principals(Live(database), lambda _, principal=principal: Viewer(principal, principal.name))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Origin": BASE}) as client:
            assert (await client.get("/api/approvals")).json()["may_decide"] is may


async def test_a_stream_without_changes_gives_signs_of_life(database, monkeypatch):
    monkeypatch.setattr(change_notifications, "BEAT_SECONDS", 0.001)
    for tick, told in ((3600.0, ": beat\n\n"), (0.0, "data: tick\n\n")):
        monkeypatch.setattr(change_notifications, "TICK_SECONDS", tick)
        async with aclosing(Live(database).events()) as events:
            assert "data: open" in await anext(events)
            assert await anext(events) == told


async def test_a_change_while_something_is_sent_is_not_lost(database, monkeypatch):
    monkeypatch.setattr(change_notifications, "BEAT_SECONDS", 0.001)
    live = Live(database)
    await live.look()

    async def change(number):
        SqliteRecorder(database).post(Entry("intent", f"x{number}"))
        await database.flush()
        await live.look()

    async with aclosing(live.events()) as events:
        assert "data: open" in await anext(events)
        # The stream is where it has sent something, and nothing waits for a change.
        await change(1)
        assert await anext(events) == "data: changed\n\n"
        assert await anext(events) == ": beat\n\n"
        await change(2)
        assert await anext(events) == "data: changed\n\n"
        assert await anext(events) == ": beat\n\n"


async def test_pages_under_a_path_find_their_files_there(database):
    app = build_for_principals(Live(database), lambda _: Viewer(Principal("a"), "a"))
    transport = httpx2.ASGITransport(app=app, root_path="/ui")
    async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
        page = (await client.get("/ui/executions/x")).text
        assert '"/ui/static/main.js"' in page
        assert '="/static' not in page
        assert (await client.get("/ui/static/main.js")).status_code == 200


@pytest.fixture
async def own(database):
    """Of a principal that sees its own executions alone, and is no approver."""
    app = build_for_principals(Live(database), lambda _: Viewer(Principal("local"), "local"))
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers={"Origin": BASE}) as client:
        yield client


async def test_what_is_anothers_is_as_unknown_as_what_is_not_there(own, database, store):
    viewer = own
    for path in READ[1:6]:
        answers = [await viewer.get(path.format(id=ident)) for ident in (store.others, "0" * 32)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text == answers[1].text
    for path in (READ[0], READ[6]):
        text = (await viewer.get(path)).text
        assert store.others not in text
        assert "Not yours" not in text
    assert (await told(viewer, "/api/executions", query=store.others))["executions"] == []
    answers = [
        await viewer.post(f"/api/approvals/{ident}.1", json={"approved": True}) for ident in (store.others, "0" * 32)
    ]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].text == answers[1].text
    (question,) = await ProgramStore(database).approvals(store.others)
    assert question.status == "open"


async def test_no_proof_is_given_of_anothers_entries(own, database, store):
    viewer = own
    theirs = [row.sequence for row in await SqliteRecorder(database).read(store.others)]
    assert len(theirs) == 6
    log = [0]  # the first entry of the log is about its key
    evidence = await told(viewer, f"/api/executions/{store.works}/proofs", sequence=[*theirs, *log])
    assert evidence["proofs"] == []
    for sequence in theirs:
        await told(viewer, f"/api/executions/{store.works}/entries/{sequence}", 404)


# --- what nobody should ask


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/api/executions", {"query": "x" * 201}),
        ("/api/executions", {"status": "odd"}),
        ("/api/executions", {"kind": EVIL}),
        ("/api/executions", {"since": "yesterday"}),
        ("/api/executions", {"since": "nan"}),
        ("/api/executions", {"before": "1"}),
        ("/api/executions", {"before": "inf:x"}),
        (f"{ONE}/entries", {"offset": "-1"}),
        (f"{ONE}/entries", {"offset": "9" * 16}),
        (f"{ONE}/entries", {"limit": "all"}),
        (f"{ONE}/entries/1.5", {}),
        (f"{ONE}/proofs", {}),
        (f"{ONE}/proofs", {"sequence": "\u0661"}),
        (f"{ONE}/proofs", {"sequence": ["1"] * (MAX_ROWS + 1)}),
    ],
)
async def test_bad_questions_are_said_to_be_bad(viewer, store, path, params):
    answer = await told(viewer, path.format(id=store.works), 400, **params)
    assert answer["error"]["code"] == "bad_argument"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[true]", 400),
        (b"[" * 50_000, 400),
        (b'{"approved": 1}', 400),
        (b'{"approved": "true"}', 400),
        (b'{"approved": true, "comment": 7}', 400),
        (b'{"approved": true, "by": "somebody"}', 400),
        (json.dumps({"approved": True, "comment": "x" * 1001}).encode(), 400),
        (b'{"approved": true, "comment": "\\ud800"}', 400),
        (b'{"approved": true, "comment": "' + b"x" * MAX_BODY_BYTES, 413),
    ],
)
async def test_bad_decisions_decide_nothing(viewer, database, store, content, status):
    answer = await viewer.post(
        f"/api/approvals/{store.asks}.2", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    (question,) = await ProgramStore(database).approvals(store.asks)
    assert question.status == "open"


@pytest.mark.parametrize(
    "ident", ["{asks}", "{asks}.", "{asks}.3", "{asks}.x", ".2", "{works}.2", "{asks}.2.2", "%00.2"]
)
async def test_no_other_question_is_decided(viewer, database, store, ident):
    path = f"/api/approvals/{ident.format(asks=store.asks, works=store.works)}"
    assert (await viewer.post(path, json={"approved": True})).status_code in {400, 404}
    (question,) = await ProgramStore(database).approvals(store.asks)
    assert question.status == "open"


# --- decisions


@pytest.mark.parametrize("approved", [True, False])
async def test_a_decision_is_the_same_as_at_the_command_line(viewer, database, store, approved):
    answer = await viewer.post(f"/api/approvals/{store.asks}.2", json={"approved": approved, "comment": " as agreed "})
    assert (answer.status_code, answer.json()["status"]) == (200, "approved" if approved else "denied")
    (row,) = await approval_requests(ProgramStore(database), LOCAL_PRINCIPAL.name, store.asks)
    assert row.approval.decision == {"approved": approved, "by": "anna", "comment": "as agreed"}
    entry = (await SqliteRecorder(database).read(store.asks))[-1].entry
    assert (entry.kind, entry.step, entry.program) == ("decision", "ask", row.execution.program)
    assert entry.payload == row.approval.question | row.approval.decision
    again = await viewer.post(f"/api/approvals/{store.asks}.2", json={"approved": not approved})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_decided")
    told_now = await told(viewer, "/api/approvals")
    (row,) = [row for row in told_now["approvals"] if row["execution"] == store.asks]
    assert (told_now["open"], row["by"], row["comment"]) == (
        0,
        "anna",
        "as agreed",
    )
    # It no longer waits for a person, but to be resumed.
    listed = (await told(viewer, "/api/executions?status=suspended"))["executions"]
    shown = await told(viewer, f"/api/executions/{store.asks}")
    for one in (*[row for row in listed if row["id"] == store.asks], shown):
        assert [waits["decided"] for waits in one["waiting"]] == ["approved" if approved else "denied"]


# --- the command


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:8808", ("::1", 8808)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),  # noqa: S104
    ],
)
def test_an_address_is_read(text, place):
    assert address(text) == place


@pytest.mark.parametrize(
    "text", ["", "8808", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "::1:8808", "a:-1", "a:\u0661"]
)
def test_what_is_no_address_is_a_clear_error(text):
    with pytest.raises(BridgeError) as error:
        address(text)
    assert error.value.code == "bad_argument"


def test_a_port_that_is_taken_is_a_clear_error():
    with listening("127.0.0.1", 0) as listener, pytest.raises(BridgeError) as error:
        listening("127.0.0.1", listener.getsockname()[1])
    assert error.value.code == "cannot_listen"
    assert "--listen" in str(error.value)


@pytest.mark.parametrize(
    ("host", "warned"),
    [("127.0.0.1", False), ("127.0.0.2", False), ("localhost", False), ("0.0.0.0", True)],  # noqa: S104
)
def test_plain_http_beyond_this_machine_is_warned_of(host, warned, capsys):
    with listening(host, 0) as listener:
        warn_of_plain_http(listener, "take the token", "don't.")
    assert ("plain HTTP beyond this machine" in capsys.readouterr().err) is warned


def test_a_state_directory_that_cannot_be_had_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    config = tmp_path / "bridge.toml"
    config.write_text(f'state_dir = "{tmp_path}/file/state"\nclient_configs = false\n')
    # The latter is of these tests, and no setting.
    alone = {"MCP_BRIDGE_STATE_DIR": None, "MCP_BRIDGE_TEST_SCREENSHOTS": None}
    ended = CliRunner().invoke(app, ["--config", str(config), "ui", "--no-browser"], env=alone)
    assert f"state_unusable: {tmp_path}/file/state can't be made" in ended.stderr
    assert (ended.exit_code, ended.stdout) == (1, "")


def test_help_names_the_options():
    shown = CliRunner().invoke(app, ["ui", "--help"], env={"COLUMNS": "200"}).stdout
    assert all(option in shown for option in ("--listen", "--no-browser", "--config"))


def test_a_browser_is_started_without_the_token_where_others_can_see_it(stores, tmp_path):
    seen, browser = tmp_path / "seen", tmp_path / "browser"
    os.mkfifo(seen)
    browser.write_text(f'#!/bin/sh\n{{ echo "$1"; stat -c %a "${{1#file://}}"; cat "${{1#file://}}"; }} >{seen}\n')
    browser.chmod(0o700)
    store = stores()
    with viewing(store, browser=browser) as viewer:
        address, mode, page = seen.read_text().splitlines()
        assert viewer.token not in address
        assert mode == "600"
        assert viewer.url in page
    assert not list(store.state.glob("ui-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(stores, number):
    with viewing(stores()) as viewer:
        viewer.process.send_signal(number)
        assert viewer.process.wait(30) == 0


def test_each_viewer_is_at_a_port_that_nobody_knew_before(stores):
    with viewing(stores(), stderr=subprocess.STDOUT) as viewer, viewing(stores()) as other:
        assert viewer.base.startswith("http://127.0.0.1:")
        assert other.base != viewer.base
        assert viewer.process.stdout.readline().startswith("Anyone who has this address")


def test_a_port_that_is_always_the_same_is_warned_of(stores):
    with listening("127.0.0.1", 0) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
    with viewing(stores(), "--listen", place, stderr=subprocess.STDOUT) as viewer:
        assert viewer.base == f"http://{place}"
        assert "is the same each time" in viewer.process.stdout.readline()


def test_beyond_this_machine_there_is_a_warning(stores):
    with viewing(stores(), "--listen", "0.0.0.0:0", stderr=subprocess.STDOUT) as viewer:
        assert "0.0.0.0" not in viewer.url  # noqa: S104
        assert "plain HTTP" in viewer.process.stdout.readline()


def test_the_commands_viewer_answers_its_token_alone(stores):
    store = stores()
    with viewing(store) as viewer, httpx2.Client(base_url=viewer.base) as client:
        assert client.get("/").status_code == 200
        assert client.get("/api/executions").status_code == 401
        answer = client.get("/api/executions", headers={"Authorization": f"Bearer {viewer.token}"})
        assert len(answer.json()["executions"]) == 7
        assert len(viewer.token) >= 43
    assert not list(store.state.glob("ui-*"))

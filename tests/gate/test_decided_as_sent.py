"""What a rule, a person and the record see of a call is what its tool gets.

Each case is held against what has reached the server, which writes it down itself.
"""

import json
import sys
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from bridge_fixtures import until
from downstream_calls import call_tool

from mcp_bridge.cli.terminal_output import question
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.gate import policy_check
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.server.questions import _question_text
from mcp_bridge.settings import Settings
from mcp_bridge.views.timeline import as_sent

pytestmark = pytest.mark.timeout(60)

SERVER = Path(__file__).parents[1] / "support/servers" / "recording.py"
IBAN = "DE89370400440532013000"
CARD = "4111 1111 1111 1111"

TEXT = {"type": "string"}


def tool(name, required=(), /, **properties):
    return {
        "name": name,
        "inputSchema": {"type": "object", "properties": properties, "required": list(required)},
    }


RELIST = tool("relist")


class Bank:
    """One bridge with one server, whose tools a test lists."""

    def __init__(self, folder, bridge):
        self.folder = folder
        self.bridge = bridge
        self.shown = []
        self.answer = None

    def lists(self, *tools):
        (self.folder / "listing.json").write_text(json.dumps([*tools, RELIST]))

    @property
    def reached(self):
        file = self.folder / "calls.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [(row["tool"], row["arguments"]) for row in rows if row["tool"] != "relist"]

    async def ask(self, question):
        """As `admission.Asker`."""
        self.shown.append(question)
        return self.answer

    async def calls(self, name, arguments, context=None, **more):
        """The record of a program whose only step calls a tool."""
        program = {"name": "p", "steps": [{"id": "s", "type": "tool", "tool": name, "args": arguments}]}
        return await self.bridge.run_program(program, context or {}, asker=self, **more)

    async def told(self, execution):
        """What the operator is shown of an execution's calls and decisions."""
        store = self.bridge.programs.store
        rows = as_sent(await self.bridge.programs.recorder.read(execution), await store.values(execution))
        return [row.entry for row in rows if row.entry.kind in {"intent", "decision"}]


@pytest.fixture
def opens(tmp_path):
    @asynccontextmanager
    async def opens(*tools, rules=(), preset="open", state="state", source="", **tables):
        folder = tmp_path
        policy = {"preset": preset, "rules": list(rules)}
        if source:
            (folder / "tools").mkdir()
            (folder / "tools" / f"wiping_{uuid.uuid4().hex}.py").write_text(source)
            tables["tools"] = {"path": ["tools"]}
        governance = load_governance({"policy": policy, **tables}, None, folder, folder / state)
        spec = ServerSpec(
            name="bank",
            command=sys.executable,
            args=(str(SERVER), str(folder / "listing.json"), str(folder / "calls.jsonl")),
        )
        bank = Bank(folder, None)
        if tools or not (folder / "listing.json").exists():
            bank.lists(*tools)
        async with open_bridge(Settings(state_dir=folder / state), [spec], governance) as bridge:
            bank.bridge = bridge
            yield bank

    return opens


def rule(effect, when=None, tools="bank.*", **more):
    made = {"tools": [tools], "effect": effect, **more}
    return made if when is None else made | {"when": when}


# --- references ---

PAY = tool("pay", iban={}, note={})


@pytest.mark.parametrize(
    "when",
    [
        f"$iban == '{IBAN}'",
        "$iban contains '3704'",
        f"$iban in ['x', '{IBAN}']",
        "$iban != 'DE00'",
        "not ($iban == 'DE00')",
        "$iban not in ['DE00']",
        f"'{IBAN}' == $iban",
        f"'to {IBAN}' == 'to $iban'",
        f"'{IBAN} and more' contains $iban",
    ],
)
async def test_a_rule_is_decided_on_the_value_behind_a_reference(opens, when):
    async with opens(PAY, rules=[rule("deny", when)]) as bank:
        record = await bank.calls("bank.pay", {"iban": "$to"}, {"to": IBAN})
        assert record["steps"][0]["status"] == "failed"
        assert "denied" in (record["code"], record["steps"][0].get("code"))
        assert bank.reached == []


async def test_a_rule_that_denies_another_value_lets_the_value_behind_a_reference_through(opens):
    async with opens(PAY, rules=[rule("deny", "$iban == 'DE00' or $iban contains 'vault'")]) as bank:
        record = await bank.calls("bank.pay", {"iban": "$to", "note": "for $to!"}, {"to": IBAN})
        assert record["status"] == "success", record
        assert bank.reached == [("pay", {"iban": IBAN, "note": f"for {IBAN}!"})]


@pytest.mark.parametrize(
    "arguments",
    [{"iban": ["$to"]}, {"iban": {"deep": [{"er": "$to"}]}}, {"note": "x $to y", "iban": ["x $to y"]}],
)
async def test_references_are_resolved_for_a_rule_at_any_depth(opens, arguments):
    when = f"$iban == ['{IBAN}'] or $iban.deep.0.er == '{IBAN}' or $note contains '{IBAN}'"
    async with opens(PAY, rules=[rule("deny", when)]) as bank:
        await bank.calls("bank.pay", arguments, {"to": IBAN})
        assert bank.reached == []


async def test_what_a_person_approves_and_the_record_keeps_is_what_the_server_gets(opens):
    query = tool("query", sql=TEXT)
    async with opens(query, rules=[rule("approve")]) as bank:
        bank.answer = True
        sql = f"remove {IBAN}; or worse"
        record = await bank.calls("bank.query", {"sql": "$sql"}, {"sql": sql})
        assert bank.reached == [("query", {"sql": sql})]
        assert bank.shown[0]["arguments"] == {"sql": sql}
        entries = await bank.told(record["trace_id"])
        assert [(entry.kind, entry.payload["arguments"]) for entry in entries] == [
            ("decision", {"sql": sql}),
            ("intent", {"sql": sql}),
        ]
        assert entries[0].payload["by"] == "client"
        # The agent is told of none of it.
        assert IBAN not in json.dumps(record)


async def test_a_question_that_waits_shows_what_the_server_is_going_to_get(opens):
    async with opens(PAY, rules=[rule("approve")]) as bank:
        record = await bank.calls("bank.pay", {"iban": "$to"}, {"to": IBAN})
        assert record["status"] == "suspended"
        (question,) = await approval_requests(bank.bridge.programs.store, LOCAL_PRINCIPAL.name)
        assert question.question["arguments"] == {"iban": IBAN}
        assert IBAN not in json.dumps(question.approval.question)
        await decide(bank.bridge.programs.store, question, approved=True, by="me", comment=None)
        assert (await bank.bridge.resume_execution(record["trace_id"]))["status"] == "success"
        assert bank.reached == [("pay", {"iban": IBAN})]


async def test_text_between_the_edges_of_a_key_that_is_none_is_not_hidden(opens):
    sql = f"-----BEGIN PRIVATE KEY-----\n{'A' * 24}; DROP TABLE users; --\n-----END PRIVATE KEY-----"
    async with opens(tool("query", sql=TEXT)) as bank:
        record = await bank.calls("bank.query", {"sql": "$sql"}, {"sql": sql})
        assert "DROP TABLE users" in json.dumps(record["output"])


async def test_a_reference_that_leads_nowhere_is_an_error_and_helps_no_call(opens):
    nowhere = "vault://ref/aaaaaaaaaaaaaaaa"
    async with opens(PAY, rules=[rule("deny", "$note == 'x'")]) as bank:
        record = await bank.calls("bank.pay", {"iban": nowhere})
        assert record["code"] == "reference_unknown"
        record = await bank.calls("bank.pay", {"note": nowhere})
        assert record["code"] == "denied"
        assert bank.reached == []


# --- secrets ---


@pytest.mark.parametrize(
    ("when", "effect", "goes"),
    [
        ("$note contains 'x'", "deny", False),
        ("$note == 'sesame-opens'", "deny", False),
        ("$note != 'x'", "deny", False),
        ("not ($note == 'x')", "deny", False),
        ("$note in ['x']", "deny", False),
        ("$note not in ['x']", "allow", False),
        ("$note > 'a'", "deny", False),
        ("$note contains 'Bearer'", "allow", True),
        ("$note == 'Bearer vault://secret/key'", "allow", True),
        ("$iban == 'y'", "deny", True),
    ],
)
async def test_a_rule_does_not_see_a_secret_and_one_that_depends_on_it_helps_no_call(
    opens, monkeypatch, when, effect, goes
):
    monkeypatch.setenv("SESAME", "sesame-opens")
    preset = "open" if effect == "deny" else "locked"
    secrets = {"key": {"env": "SESAME", "tools": ["bank.*"]}}
    async with opens(PAY, rules=[rule(effect, when)], preset=preset, secrets=secrets) as bank:
        await bank.calls("bank.pay", {"iban": "x", "note": "Bearer vault://secret/key"})
        assert bank.reached == ([("pay", {"iban": "x", "note": "Bearer sesame-opens"})] if goes else [])


async def test_a_person_is_shown_a_secrets_reference(opens, monkeypatch):
    monkeypatch.setenv("SESAME", "sesame-opens")
    secrets = {"key": {"env": "SESAME", "tools": ["bank.*"]}}
    async with opens(PAY, rules=[rule("approve")], secrets=secrets) as bank:
        bank.answer = True
        await bank.calls("bank.pay", {"iban": "$to", "note": "vault://secret/key"}, {"to": IBAN})
        assert bank.shown[0]["arguments"] == {"iban": IBAN, "note": "vault://secret/key"}
        assert bank.reached == [("pay", {"iban": IBAN, "note": "sesame-opens"})]


# --- defaults ---

WIPE = tool(
    "wipe",
    ["path"],
    path=TEXT,
    recursive={"type": "boolean", "default": True},
    options={"type": "object", "properties": {"force": {"type": "boolean", "default": False}}},
)


async def test_a_rule_sees_the_defaults_of_the_schema(opens):
    async with opens(WIPE, rules=[rule("deny", "$recursive == True")]) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["code"] == "denied"
        assert (await bank.calls("bank.wipe", {"path": "/", "recursive": False}))["status"] == "success"
        assert bank.reached == [("wipe", {"path": "/", "recursive": False})]


async def test_a_rule_sees_defaults_inside_of_what_is_given_and_the_tool_gets_them(opens):
    async with opens(WIPE, preset="locked", rules=[rule("allow", "$options.force == False")]) as bank:
        await bank.calls("bank.wipe", {"path": "/", "options": {}})
        # And no other default: see `BLOCK`.
        assert bank.reached == [("wipe", {"path": "/", "options": {"force": False}})]


async def test_a_person_and_the_record_see_defaults_too(opens):
    async with opens(WIPE, rules=[rule("approve", "$recursive == True")]) as bank:
        bank.answer = True
        record = await bank.calls("bank.wipe", {"path": "/"})
        assert bank.shown[0]["arguments"] == {"path": "/", "recursive": True}
        assert bank.shown[0]["filled"] == ["recursive"]
        assert bank.shown[0]["announced"] == {}
        assert "Defaults of the tool, left out by the caller: recursive" in _question_text(bank.shown[0])
        assert "defaults of the tool, left out by the caller: recursive" in question(bank.shown[0])
        assert [entry.payload["arguments"] for entry in await bank.told(record["trace_id"])] == [
            {"path": "/", "recursive": True}
        ] * 2


# As the servers of Notion and of Sentry, and the reference filesystem, list such tools: the first means by its default
# an example, and does what it says to a block where it is sent.
BLOCK = tool(
    "update-a-block",
    ["block_id"],
    block_id=TEXT,
    type={"anyOf": [{"type": "object", "properties": {}, "additionalProperties": True}, TEXT]},
    archived={"type": "boolean", "description": "Set to true to archive (delete) a block.", "default": True},
)
TREE = tool("tree", ["path"], path=TEXT, excludePatterns={"type": "array", "items": TEXT, "default": []})
ISSUES = tool(
    "issues",
    query={"default": "is:unresolved", "type": "string"},
    limit={"default": 10, "type": "integer", "minimum": 1, "maximum": 100},
    region={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    arguments={"type": "object", "propertyNames": TEXT, "additionalProperties": {}, "default": {}},
)
LISTED = (BLOCK, TREE, ISSUES)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule("allow")],
        [
            rule("deny", "$block_id == 'root'", "bank.update-a-block"),
            rule("deny", "$path == '/'", "bank.tree"),
            rule("approve", "$query contains 'resolved'", "bank.issues"),
        ],
    ],
)
async def test_a_default_that_no_condition_asks_about_is_left_to_the_tool(opens, rules):
    given = {"block_id": "b", "type": {"paragraph": {}}}
    async with opens(*LISTED, rules=rules) as bank:
        await bank.calls("bank.update-a-block", given)
        record = await bank.calls("bank.tree", {"path": "/srv"})
        await bank.calls("bank.issues", {"query": "is:mine"})
        assert bank.reached == [
            ("update-a-block", given),
            ("tree", {"path": "/srv"}),
            ("issues", {"query": "is:mine"}),
        ]
        assert [entry.payload["arguments"] for entry in await bank.told(record["trace_id"])] == [{"path": "/srv"}]


async def test_a_default_that_a_condition_asks_about_is_decided_on_and_sent_where_it_makes_a_difference(opens):
    rules = [rule("deny", "$archived == True", "bank.*block"), rule("deny", "$limit > 50", "bank.issues")]
    async with opens(*LISTED, rules=rules) as bank:
        assert (await bank.calls("bank.update-a-block", {"block_id": "b"}))["code"] == "denied"
        await bank.calls("bank.update-a-block", {"block_id": "b", "archived": False})
        await bank.calls("bank.issues", {})
        assert bank.reached == [("update-a-block", {"block_id": "b", "archived": False}), ("issues", {"limit": 10})]


async def test_what_is_allowed_for_its_default_is_called_with_it(opens):
    async with opens(*LISTED, preset="locked", rules=[rule("allow", "$limit <= 10")]) as bank:
        await bank.calls("bank.issues", {})
        assert (await bank.calls("bank.issues", {"limit": 11}))["code"] == "denied"
        assert bank.reached == [("issues", {"limit": 10})]


@pytest.mark.parametrize(
    "when", ["$archived == False", "$archived == 'x'", "$archived == True and $block_id == 'root'"]
)
async def test_a_default_that_makes_no_difference_to_the_rules_is_left_to_the_tool(opens, when):
    async with opens(BLOCK, rules=[rule("deny", when)]) as bank:
        record = await bank.calls("bank.update-a-block", {"block_id": "b"})
        reached = [("update-a-block", {"block_id": "b"})]
        assert bank.reached == ([] if record.get("code") == "denied" else reached)
        assert (record.get("code") == "denied") == ("'x'" in when)


async def test_a_bound_on_calls_holds_where_a_default_makes_no_difference(opens):
    async with opens(
        BLOCK, preset="locked", rules=[rule("allow", "$block_id != 'x' or $archived", max_calls=1)]
    ) as bank:
        step = {"type": "tool", "tool": "bank.update-a-block", "args": {"block_id": "b"}}
        program = {"name": "p", "steps": [{"id": "one", **step}, {"id": "two", **step}]}
        assert (await bank.bridge.run_program(program, {}))["code"] == "denied"
        assert bank.reached == [("update-a-block", {"block_id": "b"})]


SCREENSHOT = tool(  # as Playwright's server lists it
    "screenshot", ["scale"], scale={"default": "css", "type": "string", "enum": ["css", "device"]}, target=TEXT,
    full={"type": "boolean", "default": False},
)  # fmt: skip


@pytest.mark.parametrize("rules", [[], [rule("deny", "$full == True")], [rule("approve")]])
async def test_a_default_that_the_schema_requires_is_put_in_by_itself(opens, rules):
    async with opens(SCREENSHOT, rules=rules) as bank:
        bank.answer = True
        record = await bank.calls("bank.screenshot", {})
        assert record["status"] == "success", record
        assert bank.reached == [("screenshot", {"scale": "css"})]
        assert [entry.payload["arguments"] for entry in await bank.told(record["trace_id"])][-1] == {"scale": "css"}
        assert [(asked["filled"], asked["announced"]) for asked in bank.shown] == (
            [(["scale"], {"full": False})] if rules == [rule("approve")] else []
        )


async def test_of_a_rule_for_another_tool_no_default_is_sent(opens):
    rules = [rule("deny", "$limit > 50", "bank.tree"), rule("deny", "$archived == True", "bank.issues")]
    async with opens(*LISTED, rules=rules) as bank:
        await bank.calls("bank.issues", {})
        await bank.calls("bank.update-a-block", {"block_id": "b"})
        assert bank.reached == [("issues", {}), ("update-a-block", {"block_id": "b"})]


async def test_a_person_is_told_of_the_defaults_that_are_left_to_the_tool(opens):
    async with opens(*LISTED, rules=[rule("approve")]) as bank:
        bank.answer = True
        record = await bank.calls("bank.update-a-block", {"block_id": "b"})
        assert bank.shown[0]["arguments"] == {"block_id": "b"}
        assert bank.shown[0]["announced"] == {"archived": True}
        assert bank.shown[0]["filled"] == []
        told = '"archived": true'
        for lines in (_question_text(bank.shown[0]).splitlines(), question(bank.shown[0])):
            (at,) = [index for index, line in enumerate(lines) if "with the defaults that it announces:" in line]
            assert told in "".join(lines[at:])
        decided, _ = await bank.told(record["trace_id"])
        assert decided.payload["announced"] == {"archived": True}
        assert bank.reached == [("update-a-block", {"block_id": "b"})]


async def test_defaults_that_the_schema_itself_refuses_are_not_sent_and_help_no_call(opens):
    strange = tool("wipe", path=TEXT, mode={"type": "string", "default": 5}, note=TEXT)
    async with opens(strange, rules=[rule("deny", "$mode == 'all'")]) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["code"] == "denied"
    async with opens(strange, rules=[rule("deny", "$note == 'all'")]) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["status"] == "success"
    assert bank.reached == [("wipe", {"path": "/"})]


async def test_of_a_schema_with_more_defaults_than_are_put_in_what_is_left_out_is_not_known(opens):
    large = tool("wipe", path=TEXT, recursive={"default": "x" * 70_000})
    async with opens(large, rules=[rule("deny", "$recursive == True")]) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["code"] == "denied"
        assert (await bank.calls("bank.wipe", {"path": "/", "recursive": False}))["status"] == "success"


RM = {"type": "string", "default": "rm"}
WITH_K = {"required": ["k"]}
UNSURE = {
    "then": {"if": WITH_K, "then": {"properties": {"mode": RM}}},
    "else": {"if": {"not": WITH_K}, "then": {}, "else": {"properties": {"mode": RM}}},
    "dependent": {"dependentSchemas": {"k": {"properties": {"mode": RM}}}},
    "dependencies": {"dependencies": {"k": {"properties": {"mode": RM}}, "l": ["k"]}},
    "pattern": {"patternProperties": {"^mo": RM}},
    "dynamic": {"$dynamicRef": "#x", "$defs": {"X": {"$dynamicAnchor": "x", "properties": {"mode": RM}}}},
    "anchor": {"$ref": "#x", "$defs": {"X": {"$anchor": "x", "properties": {"mode": RM}}}},
    "one-of": {"oneOf": [{**WITH_K, "properties": {"mode": RM}}, {"not": WITH_K, "properties": {}}]},
    "many": {"allOf": [*({"properties": {"l": {}}} for _ in range(40)), {"properties": {"mode": RM}}]},
    "own": {"properties": {"mode": {"anyOf": [{"type": "null"}, RM]}}},
    "own-if": {"properties": {"mode": {"if": {}, "then": {"allOf": [{"$ref": "#/$defs/M"}]}}}, "$defs": {"M": RM}},
}


def described(name, schema):
    properties = {"k": TEXT, "l": TEXT, "mode": {"type": ["string", "null"]}, **schema.get("properties", {})}
    return {"name": name, "inputSchema": {"type": "object", **schema, "properties": properties}}


async def test_where_a_schema_may_have_a_default_no_rule_takes_the_argument_for_left_out(opens):
    listed = [described(name, schema) for name, schema in UNSURE.items()]
    rules = [rule("deny", "$mode == 'rm'"), rule("allow", "$mode == None or $mode == 'ls'")]
    async with opens(*listed, rules=rules, preset="locked") as bank:
        for name in UNSURE:
            record = await bank.calls(f"bank.{name}", {"k": "a"})
            assert record["code"] == "denied", name
            assert (await bank.calls(f"bank.{name}", {"k": "a", "mode": "ls"}))["status"] == "success", name
    assert bank.reached == [(name, {"k": "a", "mode": "ls"}) for name in UNSURE]


async def test_what_a_schema_may_have_a_default_for_and_what_it_has_none_for_is_decided_by_its_place(opens):
    nested = tool("nested", o={"type": "object", "if": {}, "then": {"properties": {"mode": RM}}}, rows={"items": {}})
    listed = tool(
        "rows", rows={"type": "array", "items": {"anyOf": [{"properties": {"mode": RM}}, {"type": "object"}]}}
    )
    others = tool("others", o={"type": "object", "additionalProperties": {"properties": {"mode": RM}}})
    sure = described("sure", {"if": WITH_K, "then": {"properties": {"l": RM, "mode": {"default": None}}}})
    rules = [
        rule("deny", "$o.mode == 'rm'", "bank.nested"),
        rule("deny", "$rows[0].mode == 'rm'", "bank.rows"),
        rule("deny", "$o.x.mode == 'rm'", "bank.others"),
        rule("deny", "$mode == 'rm' or $k == 'no'", "bank.sure"),
    ]
    async with opens(nested, listed, others, sure, rules=rules) as bank:
        for name, arguments in (
            ("nested", {"o": {}}),
            ("rows", {"rows": [{}]}),
            ("others", {"o": {"x": {}}}),
            ("sure", {"k": "no"}),
        ):
            assert (await bank.calls(f"bank.{name}", arguments))["code"] == "denied", name
        allowed = [
            ("nested", {}),
            ("nested", {"o": {"mode": "ls"}}),
            ("rows", {"rows": []}),
            ("rows", {"rows": [{"mode": "ls"}]}),
            ("others", {"o": {"x": {"mode": "ls"}}}),
            ("sure", {"k": "a"}),
        ]
        for name, arguments in allowed:
            assert (await bank.calls(f"bank.{name}", arguments))["status"] == "success", (name, arguments)
    assert bank.reached == allowed


async def test_a_rule_and_its_tools_default_are_for_a_name_that_is_quoted(opens):
    sends = tool("send", **{"to-addr": TEXT, "x.y": {"type": "integer", "default": 5}, "x": {"type": "object"}})
    rules = [rule("deny", "$['to-addr'] == 'bob'"), rule("deny", "$['x.y'] == 5 and $x.y == None")]
    async with opens(sends, rules=rules) as bank:
        assert (await bank.calls("bank.send", {"to-addr": "bob", "x.y": 1}))["code"] == "denied"
        assert (await bank.calls("bank.send", {"to-addr": "anna"}))["code"] == "denied"
        assert (await bank.calls("bank.send", {"to-addr": "anna", "x.y": 1}))["status"] == "success"
    assert bank.reached == [("send", {"to-addr": "anna", "x.y": 1})]


async def test_a_default_that_its_tool_refuses_isnt_known_whatever_its_name(opens):
    strange = tool("wipe", **{"m.x": {"type": "string", "default": 5}})
    async with opens(strange, rules=[rule("deny", "$['m.x'] == 'all'")]) as bank:
        assert (await bank.calls("bank.wipe", {}))["code"] == "denied"
        assert (await bank.calls("bank.wipe", {"m.x": "none"}))["status"] == "success"


PAYING = """
import mcp_bridge

@mcp_bridge.tool
def pay(iban: str) -> str:
    return "paid"
"""


@pytest.mark.parametrize("effect", ["allow", "approve"])
@pytest.mark.parametrize("name", ["bank.pay", "local.pay"])
async def test_arguments_that_do_not_fit_are_refused_before_anybody_is_asked_and_before_an_intent(opens, name, effect):
    async with opens(tool("pay", ("iban",), iban=TEXT), rules=[rule(effect, tools=name)], source=PAYING) as bank:
        bank.answer = True
        record = await bank.calls(name, {"iban": 5})
        assert record["steps"][0]["code"] == "bad_arguments"
        assert (bank.shown, await bank.told(record["trace_id"]), bank.reached) == ([], [], [])
        assert (await bank.calls(name, {"iban": "x"}))["status"] == "success"


LOCAL = """
import decimal, mcp_bridge

class Odd:
    pass

@mcp_bridge.tool
def wipe(path: str, recursive: bool = True, note: str | None = None) -> str:
    return f"{path} {recursive} {note}"
"""


async def test_a_rule_sees_the_defaults_of_a_registered_tools_signature(opens):
    rules = [rule("deny", "$recursive == True", "local.*")]
    async with opens(rules=rules, source=LOCAL) as bank:
        assert (await bank.calls("local.wipe", {"path": "/"}))["code"] == "denied"
        record = await bank.calls("local.wipe", {"path": "/", "recursive": False})
        assert record["output"] == "/ False None"


@pytest.mark.parametrize(("before", "after"), [(False, True), (1, True), (0, False), (1, 1.0)])
async def test_what_was_approved_is_not_called_once_its_default_is_another(opens, before, after):
    def wipe(default):
        return tool("wipe", ["path"], path=TEXT, recursive={"default": default})

    async with opens(wipe(before), rules=[rule("approve")]) as bank:
        record = await bank.calls("bank.wipe", {"path": "/"})
        (question,) = await approval_requests(bank.bridge.programs.store, LOCAL_PRINCIPAL.name)
        assert question.question["arguments"] == {"path": "/"}
        assert question.question["announced"] == {"recursive": before}
        await decide(bank.bridge.programs.store, question, approved=True, by="me", comment=None)
        bank.lists(wipe(after))
    async with opens(rules=[rule("approve")]) as bank:
        again = await bank.bridge.resume_execution(record["trace_id"])
        assert again["code"] == "approval_outdated"
        assert bank.reached == []


# --- names ---


async def test_a_call_that_was_decided_by_a_cached_name_finds_no_other_tool_by_its_alias(opens):
    rules = [rule("deny", None, "bank.wipe-all")]
    async with opens(tool("wipe_all"), rules=rules) as bank:
        assert (await bank.calls("bank.wipe_all", {}))["status"] == "success"
        bank.lists(tool("wipe-all"))
    async with opens(rules=rules) as bank:
        record = await bank.calls("bank.wipe_all", {})
        assert record["code"] == "unknown_tool"
        # By now the listing is known: the alias names the tool that there is, and that is denied.
        assert (await bank.calls("bank.wipe_all", {}))["code"] == "denied"
    assert bank.reached == [("wipe_all", {})]


async def test_a_tool_that_is_listed_otherwise_since_it_was_cached_is_decided_anew(opens):
    rules = [rule("deny", "$recursive == True")]
    careful = tool("wipe", ["path"], path=TEXT, recursive={"type": "boolean", "default": False})
    async with opens(careful, rules=rules) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["status"] == "success"
        bank.lists(WIPE)
    async with opens(rules=rules) as bank:
        assert (await bank.calls("bank.wipe", {"path": "/"}))["code"] == "denied"
    assert bank.reached == [("wipe", {"path": "/"})]


async def test_a_tool_that_changes_while_a_person_is_asked_is_decided_anew(opens):
    careful = tool("wipe", ["path"], path=TEXT, recursive={"type": "boolean", "default": False})
    rules = [rule("deny", "$recursive == True"), rule("approve")]
    async with opens(careful, rules=rules) as bank:
        answer = bank.ask

        async def slow(question):
            await answer(question)
            if question["tool"] == "bank.wipe":
                bank.lists(WIPE)
                server = bank.bridge.fleet.server("bank")
                await call_tool(bank.bridge.fleet, "bank", "relist")
                await until(lambda: server.stale)
            return True

        bank.ask = slow
        record = await bank.calls("bank.wipe", {"path": "/"})
        assert record["code"] == "denied"
        assert bank.reached == []


async def test_a_tool_that_is_listed_otherwise_each_time_is_not_called(opens, monkeypatch):
    async with opens(WIPE) as bank:
        server = bank.bridge.fleet.server("bank")
        listed, looks = server.listed, 0

        async def otherwise(name):
            nonlocal looks
            looks += 1
            return replace(await listed(name), description=f"look {looks}")

        monkeypatch.setattr(server, "listed", otherwise)
        record = await bank.calls("bank.wipe", {"path": "/"})
        assert (record["code"], looks) == ("tool_changed", policy_check.MAX_DECISIONS)
        assert bank.reached == []
        # It has counted for no rule, and the next call is decided anew.
        monkeypatch.undo()
        assert (await bank.calls("bank.wipe", {"path": "/"}))["status"] == "success"


async def test_a_rule_for_one_spelling_keeps_its_tool_when_a_neighbour_has_that_name(opens):
    rules = [rule("deny", None, "bank.wipe_all")]
    async with opens(tool("wipe-all"), tool("wipe_all"), rules=rules) as bank:
        assert (await bank.calls("bank.wipe-all", {}))["code"] == "denied"
        assert (await bank.calls("bank.wipe_all", {}))["code"] == "denied"
        assert bank.reached == []


# --- types ---


@pytest.mark.parametrize(
    ("when", "value"),
    [
        ("$query contains 'DROP'", ["DROP TABLE a"]),
        ("$query contains 'DROP'", ["DR", "OP TABLE a"]),
        ("$query contains 'DROP'", {"sql": "DROP TABLE a"}),
        ("$query contains 'DROP'", 5),
        ("$query == True", "true"),
        ("$query == True", 1),
        ("$query == 500", "500"),
        ("$query != 'a'", ["a"]),
        ("$query in ['DROP']", ["DROP"]),
        ("$query > 500", "900"),
        ("$query > 0", True),
        ("$query.force == True", '{"force": true}'),
        ("not $query", "false"),
        ("$query", "false"),
    ],
)
async def test_a_type_that_a_condition_does_not_expect_does_not_get_past_a_rule(opens, when, value):
    async with opens(tool("run", query={}), rules=[rule("deny", when)]) as bank:
        assert (await bank.calls("bank.run", {"query": value}))["code"] == "denied"
        assert bank.reached == []


async def test_an_announced_list_is_asked_for_what_it_contains(opens):
    tags = tool("tag", tags={"type": "array", "items": TEXT})
    async with opens(tags, rules=[rule("deny", "$tags contains 'secret'")]) as bank:
        assert (await bank.calls("bank.tag", {"tags": ["public"]}))["status"] == "success"
        assert (await bank.calls("bank.tag", {"tags": ["public", "secret"]}))["code"] == "denied"


async def test_a_call_that_its_rules_let_through_is_counted_once(opens):
    async with opens(WIPE, rules=[rule("approve", max_calls=1)]) as bank:
        bank.answer = True
        assert (await bank.calls("bank.wipe", {"path": "/"}))["status"] == "success"
        assert len(bank.shown) == 1
        steps = [{"id": f"s{n}", "type": "tool", "tool": "bank.wipe", "args": {"path": "/"}} for n in (1, 2)]
        record = await bank.bridge.run_program({"name": "p", "steps": steps}, {}, asker=bank)
        assert [row["status"] for row in record["steps"]] == ["success", "failed"]
        assert record["code"] == "denied"


async def test_a_cached_name_that_only_its_alias_fits_is_refused_by_the_fleet(opens):
    async with opens(tool("wipe-all")) as bank:
        with pytest.raises(BridgeError) as caught:
            await call_tool(bank.bridge.fleet, "bank", "wipe_all", {})
        assert caught.value.code == "unknown_tool"
        assert bank.reached == []

"""What scripts and sessions see of a server that lists other tools than when they began."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from execution_fixtures import lines, printed, until

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.host.request_handlers import Requests

pytestmark = [pytest.mark.xdist_group("sessions"), pytest.mark.usefixtures("no_internal_errors")]

SERVER = Path(__file__).parents[1] / "support/servers" / "recording.py"
TEXT = {"type": "string"}


def tool(name, required=(), /, **properties):
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "inputSchema": schema}


RELIST = {"name": "relist", "inputSchema": {"type": "object", "properties": {"tools": {}, "silent": {}}}}
OLD = tool("pay", ["amount"], amount={})
PAY = tool("pay", ["amount", "to"], amount={}, to=TEXT)
RENAMED = tool("pay", ["sum"], sum={})


class Shop:
    """A bridge whose only server lists what a test says."""

    def __init__(self, folder, opened):
        self.bridge, self.language = opened.bridge, opened.language
        self._opened = opened
        self._folder = folder

    async def cell(self, python, javascript, **options):
        return await self._opened.run({"python": python, "javascript": javascript}, **{"session": "s", **options})

    async def lists(self, *tools):
        """List other tools, and announce it."""
        server = self.bridge.fleet.server("shop")
        (self._folder / "listing.json").write_text(json.dumps([*tools, RELIST]))
        await self._opened.run(
            {
                "python": "from mcp.servers import shop\nawait shop.relist()",
                "javascript": "await mcp.servers.shop.relist()",
            }
        )
        await until(lambda: server.stale)

    @property
    def reached(self):
        rows = [json.loads(line) for line in (self._folder / "calls.jsonl").read_text().splitlines()]
        return [(row["tool"], row["arguments"]) for row in rows if row["tool"] != "relist"]


@pytest.fixture
def shops(bilingual, tmp_path):
    @asynccontextmanager
    async def shops(*tools):
        (tmp_path / "listing.json").write_text(json.dumps([*tools, RELIST]))
        args = (str(SERVER), str(tmp_path / "listing.json"), str(tmp_path / "calls.jsonl"))
        async with bilingual.open(ServerSpec(name="shop", command=sys.executable, args=args)) as opened:
            yield Shop(tmp_path, opened)

    return shops


# --- sessions ---

FIRST = "from mcp.servers import shop\nfrom mcp.servers.shop import pay\nawait pay(amount=1)"
FIRST_JAVASCRIPT = 'import { shop } from "mcp/servers"; const { pay } = shop; await pay({amount: 1});'


async def test_a_tool_that_a_server_has_since_a_cell_before_is_called(shops):
    async with shops(OLD) as shop:
        printed(await shop.cell(FIRST, FIRST_JAVASCRIPT))
        await shop.lists(OLD, tool("ship", x={}))
        printed(await shop.cell("await shop.ship(x=2)", "await shop.ship({x: 2})"))
        assert shop.reached == [("pay", {"amount": 1}), ("ship", {"x": 2})]


@pytest.mark.parametrize("function", ["shop.pay", "pay"])
async def test_an_argument_that_a_tool_takes_since_a_cell_before_is_passed(shops, function):
    async with shops(OLD) as shop:
        printed(await shop.cell(FIRST, FIRST_JAVASCRIPT))
        await shop.lists(PAY)
        refused = await shop.cell(f"await {function}(amount=2)", f"await {function}({{amount: 2}})")
        assert "'to'" in refused.error["message"]
        printed(await shop.cell(f"await {function}(amount=2, to='x')", f"await {function}({{amount: 2, to: 'x'}})"))
        assert shop.reached == [("pay", {"amount": 1}), ("pay", {"amount": 2, "to": "x"})]


async def test_what_a_tool_takes_no_more_is_not_asked_for(shops):
    async with shops(PAY) as shop:
        printed(await shop.cell("import mcp\nawait mcp.servers.shop.pay(1, 'x')", 'await mcp.servers.shop.pay(1, "x")'))
        await shop.lists(RENAMED)
        printed(await shop.cell("await mcp.servers.shop.pay(sum=2)", "await mcp.servers.shop.pay({sum: 2})"))
        assert shop.reached == [("pay", {"amount": 1, "to": "x"}), ("pay", {"sum": 2})]


async def test_tools_that_are_as_they_were_are_listed_once(shops, monkeypatch):
    listed, tools = 0, Requests._tools

    async def counted(self, server):
        nonlocal listed
        listed += 1
        return await tools(self, server)

    monkeypatch.setattr(Requests, "_tools", counted)
    async with shops(OLD) as shop:
        printed(await shop.cell(FIRST, FIRST_JAVASCRIPT))
        for _ in range(3):
            printed(await shop.cell("await shop.pay(amount=2)", "await shop.pay({amount: 2})"))
        assert listed == 1


async def test_a_tool_that_is_gone_is_told_of_by_the_host(shops):
    async with shops(OLD, tool("pay_later")) as shop:
        printed(await shop.cell(FIRST, FIRST_JAVASCRIPT))
        await shop.lists(tool("pay_later"))
        record = await shop.cell("await pay(amount=2)", "await pay({amount: 2})")
        assert record.error["code"] == "unknown_tool" or "has no tool 'pay'" in record.error["message"]
        assert "pay_later" in record.error["message"]
        assert shop.reached == [("pay", {"amount": 1})]


async def test_what_a_server_lists_and_how_its_tools_are_called_is_that_of_the_cell_that_asks(shops):
    swapped = tool("pay", ["to", "amount"], to=TEXT, amount={})
    async with shops(PAY) as shop:
        printed(
            await shop.cell(
                "from mcp.servers import shop\nawait shop.pay(1, 'x')", 'await mcp.servers.shop.pay(1, "x")'
            )
        )
        await shop.lists(swapped, tool("ship"))
        # Values in order are in today's order, and not in that of a cell before.
        printed(await shop.cell("await shop.pay('y', 2)", 'await mcp.servers.shop.pay("y", 2)'))
        if shop.language == "python":
            record = await shop.cell("import inspect\nprint(dir(shop), inspect.signature(shop.pay))", "")
            assert printed(record).startswith("['pay', 'relist', 'ship'] (to: str, amount: Any)")
        assert shop.reached == [("pay", {"amount": 1, "to": "x"}), ("pay", {"to": "y", "amount": 2})]


# --- one script ---

CHANGES = {
    "python": """
import asyncio
from mcp import ToolError
from mcp.servers import shop
await shop.pay(amount=1)
await shop.relist(tools={tools})
while "ship" not in [row["name"] for row in await runtime.list_tools("shop")]:
    await asyncio.sleep(0.1)
try:
    await shop.pay(amount=2)
except ToolError as exc:
    print(exc.code)
await shop.pay(amount=2, to="x")
await shop.ship(x=3)
""",
    "javascript": """
import {{ ToolError }} from "mcp";
import {{ shop }} from "mcp/servers";
await shop.pay({{amount: 1}});
await shop.relist({{tools: {tools}}});
while (!(await runtime.list_tools("shop")).some(({{ name }}) => name === "ship")) {{
  await new Promise((resolve) => setTimeout(resolve, 100));
}}
try {{
  await shop.pay({{amount: 2}});
}} catch (error) {{
  console.log(error.code);
}}
await shop.pay({{amount: 2, to: "x"}});
await shop.ship({{x: 3}});
""",
}


async def test_a_script_goes_on_with_the_tools_as_they_are_listed_by_now(shops):
    tools = json.dumps([PAY, tool("ship", x={}), RELIST]).replace("false", "0 == 1")
    async with shops(OLD) as shop:
        codes = {language: code.format(tools=tools) for language, code in CHANGES.items()}
        record = await shop.cell(codes["python"], codes["javascript"])
        assert lines(record) == ["bad_arguments"]
        reached = [("pay", {"amount": 1}), ("pay", {"amount": 2, "to": "x"}), ("ship", {"x": 3})]
        assert shop.reached == reached
        shop.bridge._shared.live_sessions.end_all()
        assert lines(await shop.cell("print('on')", "console.log('on')")) == ["on"]
        assert shop.reached == reached


# --- run from a record ---

DOES = {
    "python": """
from mcp.servers import shop
print(await shop.create("a", labels='["b"]', due=None))
print(await shop.create({{"title": "c"}}))
print(await shop.drop(name="d", more={{"e": 1}}))
{rest}""",
    "javascript": """
import {{ shop }} from "mcp/servers";
console.log(JSON.stringify(await shop.create("a", {{labels: '["b"]', due: null}})));
console.log(JSON.stringify(await shop.create({{title: "c"}})));
console.log(JSON.stringify(await shop.drop({{name: "d", more: {{e: 1}}}})));
{rest}""",
}
CREATE = tool("create", ["title"], title=TEXT, labels={"type": "array"}, due=TEXT)
DROP = tool("drop", ["name"], name=TEXT, more={"type": "object"})
DONE = [
    ("create", {"title": "a", "labels": ["b"]}),
    ("create", {"title": "c"}),
    ("drop", {"name": "d", "more": {"e": 1}}),
]
CHANGES_SINCE = {
    "another argument is required": [tool("create", ["title", "body"], title=TEXT, body=TEXT, labels={}), DROP],
    "an argument is renamed": [
        tool("create", ["name"], name=TEXT, labels={"type": "array"}, due=TEXT),
        tool("drop", ["title"], title=TEXT, more={"type": "object"}),
    ],
    "the tools are gone": [],
}


@pytest.mark.parametrize("change", CHANGES_SINCE)
async def test_a_script_that_goes_on_repeats_its_calls_of_tools_that_have_changed(shops, change):
    rest = {
        "python": "print(await runtime.wait_event('go'))\nprint(await shop.ship(x=1))",
        "javascript": "console.log(await runtime.wait_event('go'));\nawait shop.ship({x: 1});",
    }
    codes = {language: code.format(rest=rest[language]) for language, code in DOES.items()}
    async with shops(CREATE, DROP) as shop:

        async def run():
            return await shop.cell(codes["python"], codes["javascript"], session=None, key="k")

        waits = await run()
        assert waits.status == "suspended", waits.error
        await shop.lists(*CHANGES_SINCE[change], tool("ship", x={}))
        await shop.bridge.send_event(waits.execution, "go", 1, "OPERATOR", and_resume=False)
        record = await run()
        assert record.status == "success", record.error
        assert shop.reached == [*DONE, ("ship", {"x": 1})]


@pytest.mark.parametrize("change", CHANGES_SINCE)
async def test_a_session_is_rebuilt_though_its_tools_have_changed(shops, change):
    codes = {language: code.format(rest="") for language, code in DOES.items()}
    again = (
        "print(await shop.create(title='x'), await shop.drop(name='y'))",
        "console.log(await mcp.servers.shop.create({title: 'x'}), await mcp.servers.shop.drop({name: 'y'}))",
    )
    async with shops(CREATE, DROP) as shop:
        printed(await shop.cell(codes["python"], codes["javascript"]))
        printed(await shop.cell(*again))
        await shop.lists(*CHANGES_SINCE[change])
        shop.bridge._shared.live_sessions.end_all()
        record = await shop.cell("print('on')", "console.log('on')")
        assert (record.session, lines(record)) == ({"name": "s", "cell": 3, "rebuilt": 2}, ["on"])
        # From here on its tools are those of today.
        assert (await shop.cell(*again)).status == "error"
        assert shop.reached == [*DONE, ("create", {"title": "x"}), ("drop", {"name": "y"})]


CAUGHT = {
    "a tool that was not there": (
        "try: await shop.ship(x=1)\nexcept AttributeError: print('no')",
        "try { await shop.ship({x: 1}) } catch { console.log('no') }",
    ),
    "an argument that was not one": (
        "try: await shop.pay(amount=1, to='x')\nexcept TypeError as exc: print(exc)",
        "try { await shop.pay({amount: 1, to: 'x'}) } catch (error) { console.log(error.message) }",
    ),
}
UNCAUGHT = {
    "a tool that was not there, uncaught": ("await shop.ship(x=1)", "await shop.ship({x: 1})"),
    "an argument that was not one, uncaught": (
        "await shop.pay(amount=1, to='x')",
        "await shop.pay({amount: 1, to: 'x'})",
    ),
}


@pytest.mark.parametrize("case", [*CAUGHT, *UNCAUGHT])
async def test_a_call_that_could_not_be_made_is_not_made_when_its_session_is_rebuilt(shops, case):
    python, javascript = (CAUGHT | UNCAUGHT)[case]
    async with shops(tool("pay", ["amount"], amount={"type": "number"})) as shop:
        imports = "from mcp.servers import shop\n", 'import { shop } from "mcp/servers"\n'
        first = await shop.cell(imports[0] + python, imports[1] + javascript)
        assert first.status == ("success" if case in CAUGHT else "error")
        await shop.lists(PAY, tool("ship", x={}))
        shop.bridge._shared.live_sessions.end_all()
        # From here on its tools are those of today.
        printed(await shop.cell("print(await shop.ship(x=2))", "console.log(await shop.ship({x: 2}))"))
        assert shop.reached == [("ship", {"x": 2})]
        stored = await shop.bridge.lifecycle.stored(first.execution, "local")
        assert (await shop.bridge.replay_execution(stored)).difference is None


async def test_a_name_of_a_recorded_argument_goes_before_the_same_one_of_an_argument_of_now(shops):
    async with shops(tool("pay", ["due-date"], **{"due-date": TEXT})) as shop:
        python = "from mcp.servers import shop\nprint(await shop.pay(due_date='x'))"
        printed(await shop.cell(python, 'console.log(await mcp.servers.shop.pay({due_date: "x"}))'))
        await shop.lists(tool("pay", ["due_date"], due_date=TEXT))
        shop.bridge._shared.live_sessions.end_all()
        assert lines(await shop.cell("print('on')", "console.log('on')")) == ["on"]
        assert shop.reached == [("pay", {"due-date": "x"})]


async def test_a_script_that_can_not_repeat_a_call_says_that_the_tools_have_changed(shops):
    async with shops(tool("pay", ["a"], a=TEXT, b=TEXT)) as shop:
        python = "from mcp.servers import shop\nimport inspect\nawait shop.pay(a=str(inspect.signature(shop.pay)))\n"
        python += "await runtime.wait_event('go')"
        javascript = (
            "let said = ''; try { await mcp.servers.shop.pay({a: 1}) } catch (error) { said = error.message }\n"
        )
        javascript += "await mcp.servers.shop.pay({a: said}); await runtime.wait_event('go');"
        waits = await shop.cell(python, javascript, session=None, key="k")
        assert waits.status == "suspended", waits.error
        await shop.lists(tool("pay", ["c"], c=TEXT))
        await shop.bridge.send_event(waits.execution, "go", 1, "OPERATOR", and_resume=False)
        record = await shop.cell(python, javascript, session=None, key="k")
        assert record.error["code"] == "divergence"
        assert "'shop' lists other tools than it did" in record.error["message"]
        assert record.error["changed_servers"] == ["shop"]

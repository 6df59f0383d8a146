"""Programs made from what scripts did: the same calls with the same arguments, from references where values came from."""

import json
import os
import random
from pathlib import Path

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.from_script import item_lists
from mcp_bridge.executions.programs.from_script.program_from_script import MAX_CALLS, program_from_execution
from mcp_bridge.governance import yaml_text
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.ledger.log.entries import Entry, Recorded
from mcp_bridge.ledger.log.payloads import CallOutcome, CallRef, ScriptStart, Success, ToolIntent
from mcp_bridge.ledger.storage.execution_store import StoredExecution

pytestmark = pytest.mark.usefixtures("whole_ledgers")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
SEEDS = 200 if LONG else 50
STORED = StoredExecution("e", "script", "local", None, "", "success", "", {}, "agent", "", None, {}, None, 0.0)
HEAD = "import asyncio, json\nfrom mcp.servers import local\n"


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The calls that the tools have noted; reading forgets them."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("SHOP_CALLS", str(path))

    def taken():
        lines = path.read_text().splitlines()
        path.write_text("")
        return lines

    return taken


@pytest.fixture
def shop(sandboxes, calls, tmp_path):
    return _shop(sandboxes, tmp_path)


@pytest.fixture
def shop_for_both(both, calls, tmp_path):
    """As `shop`, for scripts in both languages."""
    return _shop(both, tmp_path)


def _shop(sandboxes, folder):
    tables = {"tools": {"modules": ["shop_tools"], "path": [str(Path(__file__).parents[2] / "support")]}}
    governance = load_governance(tables, None, folder, sandboxes.settings.state_dir)
    return lambda: sandboxes.open(governance=governance, bounded=False, pooled=True)


async def derive(bridge, execution, first_cell=None):
    store = bridge.programs.store
    return await program_from_execution(store, bridge.programs.recorder, await store.execution(execution), first_cell)


async def derived(bridge, code, status="success"):
    record = await bridge.run(HEAD + code)
    assert record.status == status, record.stderr
    return await derive(bridge, record.execution)


def steps(made):
    return made.data["steps"]


async def test_values_that_came_from_outcomes_are_references_and_those_of_the_script_are_not(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
order = await local.find_order(number=7)
await local.send(to=order["customer"]["name"], text=f"Order {order['number']} comes to {order['total']} $.", about=order["customer"])
await local.send(to="the office", text="success", about={"item": order["items"][1], "price": "$5", "sure": True})
""",
        )
    assert steps(made) == [
        {"id": "find_order", "type": "tool", "tool": "find_order", "args": {"number": 7}},
        {
            "id": "send",
            "type": "tool",
            "tool": "send",
            "args": {
                "to": "$find_order.customer.name",
                "text": "Order $find_order.number comes to $find_order.total $$.",
                "about": "$find_order.customer",
            },
        },
        {
            "id": "send_2",
            "type": "tool",
            "tool": "send",
            "args": {
                "to": "the office",
                "text": "success",
                "about": {"item": "$find_order.items.1", "price": "$$5", "sure": True},
            },
        },
    ]
    assert made.remarks == []


async def test_calls_at_once_are_parallel(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
said = await asyncio.gather(*(local.meet(name=name, of=3) for name in ("a", "b", "c")))
await local.send(to="all", text=said[1])
""",
        )
    group, last = steps(made)
    assert (group["type"], "max_concurrency" in group) == ("parallel", False)
    assert [step["args"]["name"] for step in group["parallel_steps"]] == ["a", "b", "c"]
    assert last["args"]["text"] == "$meet_2"


async def test_calls_for_each_item_of_a_list_are_a_map(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
order = await local.find_order(number=1)
left = await asyncio.gather(*(local.stock(code=item["code"]) for item in order["items"]))
await local.send(to="x", text="y", about={"left": left[2]["left"]})
for item in order["items"]:
    await local.weigh(code="w" + item["code"] + "0")
for item in order["items"]:
    await local.stock(code=item["code"])
""",
        )
    _, at_once, send, one_by_one = steps(made)[0], steps(made)[1], steps(made)[2], steps(made)[-1]
    inner = {"type": "tool", "tool": "stock", "args": {"code": "$item.code"}}
    assert (at_once["type"], at_once["over"], at_once["step"]) == ("map", "$find_order.items", inner)
    assert send["args"]["about"] == {"left": "$stock.2.left"}
    assert [step["args"]["code"][:2] for step in steps(made) if step.get("tool") == "weigh"] == ["wc"] * 3
    assert (one_by_one["over"], one_by_one["max_concurrency"], one_by_one["step"]) == ("$find_order.items", 1, inner)


async def test_json_in_a_text_is_parsed_where_a_value_of_it_was_used(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
text = await local.history(customer_id=500)
await local.find_order(number=json.loads(text)["orders"][1])
whole = await local.history(customer_id=900)
await local.send(to="archive", text=whole)
""",
        )
    first, second, third, fourth = steps(made)
    assert (first["parse"], second["args"]) == ("json", {"number": "$history.orders.1"})
    assert "parse" not in third
    assert fourth["args"]["text"] == "$history_2"


async def test_what_failed_is_skipped_or_tried_again_and_what_ended_the_script_ends_the_program(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
for _ in range(3):
    try:
        await local.weigh(code="code-1")
    except Exception:
        pass
await local.weigh(code="code-4")
await local.weigh(code="code-2")
""",
            status="error",
        )
    assert [{name: step.get(name) for name in ("retry", "on_error")} for step in steps(made)] == [
        {"retry": {"max_attempts": 3}, "on_error": "skip"},
        {"retry": None, "on_error": None},
        {"retry": None, "on_error": None},
    ]


async def test_a_program_that_the_script_ran_is_a_step_and_what_has_no_step_is_said(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
from mcp import programs, runtime
inner = {"steps": [{"id": "a", "type": "tool", "tool": "find_order", "args": {"number": "$n"}}]}
trace = await programs.run(inner, {"n": 12})
await local.send(to=trace.output["customer"]["name"], text="hello")
await runtime.save_memory("n", 1)
""",
        )
    program, send = steps(made)
    assert program["context"] == {"n": 12}
    assert send["args"]["to"] == "$program.customer.name"
    assert made.remarks == ["These requests of the script are no steps: memory.save (1)."]


async def test_a_program_that_was_run_by_its_name_keeps_it_and_one_that_was_not_begun_is_no_step(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
from mcp import programs
await programs.save("look", {"steps": [{"id": "a", "type": "tool", "tool": "find_order", "args": {"number": 3}}]})
await programs.run("look")
for wrong in ({"steps": []}, "nobody"):
    try:
        await programs.run(wrong)
    except Exception:
        pass
""",
        )
    assert [step["program"] for step in steps(made)] == ["look"]
    assert sum("was not begun" in remark for remark in made.remarks) == 2


async def test_a_wait_is_a_step_and_what_an_event_brought_is_a_reference(shop):
    async with shop() as bridge:
        made = await derived(
            bridge,
            """
import time
await local.find_order(number=7)
await runtime.sleep_until(time.time() + 0.5)
await runtime.sleep_until(0)
try:
    await runtime.wait_event("paid", timeout=0.25)
except TimeoutError:
    pass
await local.send(to="Anna", text="well")
""",
        )
    order, pause, paid, send = steps(made)
    assert [step["type"] for step in (order, pause, paid, send)] == ["tool", "wait", "wait", "tool"]
    assert 0.4 < pause.pop("seconds") <= 0.5
    assert pause == {"id": "wait", "type": "wait"}
    assert 0.2 < paid.pop("timeout_seconds") <= 0.25
    assert paid == {"id": "paid", "type": "wait", "event": "paid", "on_error": "skip"}
    (remark,) = made.remarks
    assert "was for a time" in remark


async def test_what_an_event_brought_is_a_reference_to_its_step(shop):
    async with shop() as bridge:
        code = 'paid = await runtime.wait_event("paid")\nawait local.send(to=paid["by"]["name"], text="thanks")'
        record = await bridge.run(HEAD + code, key="k")
        assert record.status == "suspended"
        await bridge.send_event(record.execution, "paid", {"by": {"name": "Zacharias"}}, "WEBHOOK", and_resume=True)
        made = await derive(bridge, record.execution)
    assert steps(made) == [
        {"id": "paid", "type": "wait", "event": "paid"},
        {"id": "send", "type": "tool", "tool": "send", "args": {"to": "$paid.by.name", "text": "thanks"}},
    ]


async def test_of_an_execution_of_a_program_it_is_that_program_and_of_nothing_it_is_none(shop):
    program = {"name": "p", "steps": [{"id": "a", "type": "tool", "tool": "stock", "args": {"code": "x"}}]}
    async with shop() as bridge:
        record = await bridge.run_program(program, {}, None, starter="operator")
        assert (await derive(bridge, record["trace_id"])).data["steps"] == program["steps"]
        with pytest.raises(BridgeError) as caught:
            await derived(bridge, "print(1)")
    assert caught.value.code == "not_derivable"


async def test_of_a_cell_the_sessions_cells_are_one_script(shop, calls):
    async with shop() as bridge:
        records = [
            await bridge.run(code, session="s")
            for code in (
                f"{HEAD}order = await local.find_order(number=7); order",
                'await local.weigh(code="code-1")',
                'left = await asyncio.gather(*(local.stock(code=item["code"]) for item in order["items"]))',
                'await local.send(to="stock", text="lost")\nimport os; os._exit(1)',
                "text = await local.history(customer_id=order['customer']['id'])",
                "await local.send(to=order['customer']['name'], text=f\"{left[1]['left']} left\", about={'all': left})\n"
                "await local.find_order(number=json.loads(text)['orders'][0])",
            )
        ]
        assert [record.status for record in records] == ["success", "error", "success", "killed", "success", "success"]
        by_cells = [line for line in calls() if "lost" not in line]
        made = await derive(bridge, records[-1].execution)
        order, weigh, stock, history, send, last = steps(made)
        assert (order["id"], weigh["on_error"]) == ("find_order", "skip")
        assert (stock["over"], stock["step"]["args"]) == ("$find_order.items", {"code": "$item.code"})
        assert (history["parse"], history["args"]) == ("json", {"customer_id": "$find_order.customer.id"})
        assert send["args"] == {
            "to": "$find_order.customer.name",
            "text": "$stock.1.left left",
            "about": {"all": [f"$stock.{number}" for number in range(3)]},
        }
        assert last["args"] == {"number": "$history.orders.0"}
        assert made.remarks == ["The cell 4 left nothing (killed), so its calls are no steps."]
        assert "cells 1 to 6 of the session s" in made.data["description"]
        ran = await bridge.run_program(made.data, {}, None, starter="operator")
        assert ran["status"] == "success", ran["error"]
        assert sorted(calls()) == sorted(by_cells)

        alone = await derive(bridge, records[-1].execution, 6)
        assert [step["tool"] for step in steps(alone)] == ["send", "find_order"]
        assert "$" not in json.dumps(steps(alone))
        assert alone.remarks == ["The cells before the cell 6 are left out: what came from them is written out here."]
        for first in (0, 7):
            with pytest.raises(BridgeError, match="it is the cell 6 of its session"):
                await derive(bridge, records[-1].execution, first)
        single = await bridge.run(f"{HEAD}await local.stock(code='x')")
        with pytest.raises(BridgeError, match="it is no cell of a session"):
            await derive(bridge, single.execution, 1)


async def test_what_a_script_has_written_out_although_a_call_gave_it_is_said(shop):
    async with shop() as bridge:
        order = await bridge.run(f"{HEAD}print(json.dumps(await local.find_order(number=4711)))")
        code = json.loads(order.stdout)["items"][0]["code"]
        ran = await bridge.run(f"{HEAD}await local.find_order(number=4711)\nawait local.stock(code={code!r})")
        made = await derive(bridge, ran.execution)
    (remark,) = made.remarks
    assert f'"{code}" (find_order.items.0.code)' in remark


async def test_what_a_cell_has_written_out_after_an_earlier_one_was_given_it_is_said(shop):
    async with shop() as bridge:
        await bridge.run(f"{HEAD}order = await local.find_order(number=4711); order", session="s")
        items = json.loads((await bridge.run("print(json.dumps(order))", session="s")).stdout)["items"]
        code, other = items[0]["code"], items[1]["code"]
        # In a cell that comes later yet, it is written out too: nothing says that the one before had it from there.
        await bridge.run("await local.stock(code=order['items'][1]['code'])", session="s")
        last = await bridge.run(f"await local.stock(code={code!r}); await local.weigh(code={other!r})", session="s")
        made = await derive(bridge, last.execution)
    assert [step["args"] for step in steps(made)][1:] == [
        {"code": "$find_order.items.1.code"},
        {"code": code},
        {"code": other},
    ]
    (remark,) = made.remarks
    assert f'"{code}" (find_order.items.0.code), "{other}" (stock.code)' in remark
    assert "4711" not in remark


async def test_calls_that_a_dry_run_has_only_listed_are_said_to_be_so(shop):
    async with shop() as bridge:
        with pytest.raises(BridgeError, match="its dry run has listed its calls, and made none") as caught:
            record = await bridge.run(f"{HEAD}await local.send(to='a', text='b')", dry_run=True)
            await derive(bridge, record.execution)
    assert caught.value.code == "not_derivable"


class Recorder:
    """Has the record of a script that called one tool, one call after the other."""

    def __init__(self, arguments, outcomes):
        self._payloads = [ScriptStart("", "")]
        for number, (given, value) in enumerate(zip(arguments, outcomes, strict=True), start=1):
            call = CallRef(f"0#{number}")
            self._payloads += [
                ToolIntent("local.find", given, call),
                CallOutcome("local.find", call, Success(value)),
            ]

    async def read(self, execution):
        return [
            Recorded(number, float(number), Entry(payload.KIND, execution, payload.encode()))
            for number, payload in enumerate(self._payloads)
        ]


ITEMS = [{"code": "a-1", "n": 1, "of": {"name": "x", "none": None}}, {"code": "b-2", "n": 2.5, "of": {"name": "y$"}}]


@pytest.mark.parametrize(
    ("texts", "template"),
    [
        (["1 of a-1", "2.5 of b-2"], "$item.n of $item.code"),
        (["$1, x.", "$2.5, y$."], "$$$item.n, $item.of.name."),
        (["<a-1|a-1>", "<b-2|b-2>"], "<$item.code|$item.code>"),
        # What follows would be read as a part of the reference, or isn't the same in both.
        (["a-1_", "b-2_"], None),
        (["a-1.x", "b-2.x"], None),
        (["1 of a-1", "2.5 from b-2"], None),
        (["a-1 and b-2", "b-2 and a-1"], None),
        (["11 of a-1", "12.5 of b-2"], None),
    ],
)
@pytest.mark.parametrize("as_text", [False, True])
async def test_texts_that_have_the_items_of_a_list_in_them_are_those_of_a_map(texts, template, as_text):
    given = [{}, *({"text": text} for text in texts)]
    found = json.dumps(ITEMS) if as_text else ITEMS
    made = await program_from_execution(None, Recorder(given, [found, 1, 2]), STORED)
    if template is None:
        assert [step["type"] for step in steps(made)] == ["tool"] * 3
    else:
        first, second = steps(made)
        assert first.get("parse") == ("json" if as_text else None)
        assert (second["over"], second["step"]["args"]) == ("$find", {"text": template})


async def test_a_text_that_is_a_list_is_parsed_for_the_map_over_it():
    given = [{}, {"number": 17}, {"number": 18}]
    found = json.dumps([{"number": 17}, {"number": 18}])
    made = await program_from_execution(None, Recorder(given, [found, 1, 2]), STORED)
    assert [(step["type"], step.get("parse"), step.get("over")) for step in steps(made)] == [
        ("tool", "json", None),
        ("map", None, "$find"),
    ]


async def test_a_script_of_as_many_calls_as_there_may_be_has_its_program_in_a_time_that_grows_with_them():
    """Each call gives a list: every one of them could be what some of the calls after it were made for."""
    items = [[{"code": f"c{number}.{at}", "at": at} for at in range(number % 3 + 2)] for number in range(MAX_CALLS)]
    given = [{"number": number, "flag": number % 2 == 0, "text": f"of {number}"} for number in range(MAX_CALLS - 3)]
    given += [{"code": item["code"]} for item in items[MAX_CALLS - 4]]
    recorder = Recorder(given, [{"user": "anna", "items": each} for each in items])
    made = await program_from_execution(None, recorder, STORED)
    assert len(steps(made)) == MAX_CALLS - 2
    assert steps(made)[-1]["over"] == f"$find_{MAX_CALLS - 3}.items"
    assert made.remarks == []


async def test_the_search_for_maps_ends_when_it_has_had_its_work(monkeypatch):
    monkeypatch.setattr(item_lists, "MAX_WORK", 100)
    items = [{"code": f"c{at}"} for at in range(3)]
    given = [{"n": 1}, *({"code": item["code"]} for item in items)]
    made = await program_from_execution(None, Recorder(given, [items, 1, 2, 3]), STORED)
    assert [step["type"] for step in steps(made)] == ["tool"] * 4
    assert steps(made)[2]["args"] == {"code": "$find.1.code"}
    assert made.remarks == ["These calls were too many to look for each map that could be made of them."]


def tens(seeds):
    return pytest.mark.parametrize(
        "seeds", [range(at, at + 10) for at in range(0, seeds, 10)], ids=lambda seeds: str(seeds[0])
    )


@tens(SEEDS)
async def test_a_program_made_from_a_script_makes_the_same_calls(shop, calls, seeds):
    async with shop() as bridge:
        for seed in seeds:
            await makes_the_same_calls(bridge, calls, Written(random.Random(seed)), seed)  # noqa: S311


@tens(SEEDS if LONG else 20)
async def test_so_does_one_made_from_a_script_in_javascript(shop_for_both, calls, seeds):
    async with shop_for_both() as bridge:
        for seed in seeds:
            await makes_the_same_calls(bridge, calls, WrittenInJavascript(random.Random(seed)), seed)  # noqa: S311


async def makes_the_same_calls(bridge, calls, written, seed):
    code = written.code
    record = await bridge.run(code, language=written.language)
    assert record.status == "success", (seed, code, record.stderr)
    by_script = calls()
    made = await derive(bridge, record.execution)
    text = yaml_text.dump(made.data, made.remarks)
    assert yaml_text.load(text) == made.data
    ran = await bridge.run_program(made.data, {}, None, starter="operator")
    by_program = calls()
    assert ran["status"] == "success", (seed, code, text, ran["error"])
    assert sorted(by_program) == sorted(by_script), (seed, code, text)
    in_order = [line for line in by_script if json.loads(line)[0] == "send"]
    assert [line for line in by_program if json.loads(line)[0] == "send"] == in_order, (seed, code, text)


class Written:
    """A script made at random, which uses what it was answered.

    Every `send` is made from the main task, so their order is the script's.
    """

    head, language = HEAD, "python"

    def __init__(self, rng):
        self._rng = rng
        self._names = []
        self._lines = []
        kinds = ("order", "orders", "stock", "stocks", "loop", "letters", "history", "past", "send", "weigh", "tasks")
        for _ in range(rng.randint(4, 9)):
            getattr(self, f"_{rng.choice(kinds)}")()
        self._send()
        self.code = self.head + "".join(self._lines)

    def _number(self):
        return self._rng.randint(1, 10_000)

    def _new(self):
        self._names.append(name := f"v{len(self._names)}")
        return name

    def _any(self):
        if not self._names:
            self._order()
        return self._rng.choice(self._names)

    def _order(self):
        self._lines.append(f"{self._new()} = await local.find_order(number={self._number()})\n")

    def _orders(self):
        numbers = [self._number() for _ in range(self._rng.randint(2, 12))]
        asked = f"[local.find_order(number=number) for number in {numbers}]"
        self._lines.append(f"{self._new()}, *others = await asyncio.gather(*{asked})\n")

    def _stock(self):
        self._lines.append(f'await local.stock(code={self._any()}["items"][0]["code"])\n')

    def _stocks(self):
        each = f'(local.stock(code=item["code"]) for item in {self._any()}["items"])'
        self._lines.append(f"left = await asyncio.gather(*{each})\n")
        self._lines.append("await local.send(to=\"stock\", text=f\"{left[0]['left']} of {left[1]['code']}\")\n")

    def _loop(self):
        name = self._any()
        self._lines.append(f'for item in {name}["items"]:\n    await local.stock(code=item["code"])\n')

    def _history(self):
        name = self._any()
        self._lines.append(f'past = json.loads(await local.history(customer_id={name}["customer"]["id"]))\n')
        self._lines.append(
            f'{self._new()} = await local.find_order(number=past["orders"][{self._rng.randint(0, 1)}])\n'
        )

    def _letters(self):
        text = self._rng.choice(
            (
                "f\"{item['count']} $ of {item['code']}, {item['code']}\"",
                'item["code"] + " again"',
                "f\"{item['count']}x {item['code']}_\"",
            )
        )
        self._lines.append(
            f'for item in {self._any()}["items"]:\n    await local.send(to="stock", text={text}, about={{"of": item}})\n'
        )

    def _past(self):
        self._lines.append(f'past = json.loads(await local.history(customer_id={self._any()}["customer"]["id"]))\n')
        self._lines.append('for number in past["orders"]:\n    await local.find_order(number=number)\n')

    def _send(self):
        name = self._any()
        self._lines.append(
            f'await local.send(to={name}["customer"]["name"], text=f"{{{name}[\'total\']}} $ for {{{name}[\'number\']}}", '
            f'about={{"items": {name}["items"], "of": [{name}["customer"]["id"], None, "$x"]}})\n'
        )

    def _weigh(self):
        name = self._any()
        self._lines.append(
            f'for item in {name}["items"]:\n    try:\n        await local.weigh(code=item["code"])\n'
            "    except Exception as exc:\n        pass\n"
        )

    def _tasks(self):
        name = self._any()
        self._lines.append(
            f'async def task(item):\n    left = await local.stock(code=item["code"])\n'
            f"    return await local.stock(code=f\"again-{{left['left']}}\")\n"
            f'await asyncio.gather(*(task(item) for item in {name}["items"]))\n'
        )


class WrittenInJavascript(Written):
    """As `Written`, in JavaScript."""

    head, language = 'import { local } from "mcp/servers";\n', "javascript"

    def _order(self):
        self._lines.append(f"const {self._new()} = await local.find_order({{ number: {self._number()} }});\n")

    def _orders(self):
        numbers = [self._number() for _ in range(self._rng.randint(2, 12))]
        asked = f"{numbers}.map((number) => local.find_order({{ number }}))"
        self._lines.append(f"const [{self._new()}] = await Promise.all({asked});\n")

    def _stock(self):
        self._lines.append(f"await local.stock({{ code: {self._any()}.items[0].code }});\n")

    def _stocks(self):
        each = f"{self._any()}.items.map((item) => local.stock({{ code: item.code }}))"
        text = "`${left[0].left} of ${left[1].code}`"
        self._lines.append(
            f'{{ const left = await Promise.all({each});\n  await local.send({{ to: "stock", text: {text} }}); }}\n'
        )

    def _loop(self):
        self._lines.append(f"for (const item of {self._any()}.items) await local.stock({{ code: item.code }});\n")

    def _history(self):
        name, at = self._any(), self._rng.randint(0, 1)
        past = f"JSON.parse(await local.history({{ customer_id: {name}.customer.id }}))"
        self._lines.append(f"const {self._new()} = await local.find_order({{ number: ({past}).orders[{at}] }});\n")

    def _letters(self):
        text = self._rng.choice(
            (
                "`${item.count} $ of ${item.code}, ${item.code}`",
                "`${item.code} again`",
                "`${item.count}x ${item.code}_`",
            )
        )
        self._lines.append(
            f"for (const item of {self._any()}.items)\n"
            f'  await local.send({{ to: "stock", text: {text}, about: {{ of: item }} }});\n'
        )

    def _past(self):
        past = f"JSON.parse(await local.history({{ customer_id: {self._any()}.customer.id }}))"
        self._lines.append(f"for (const number of ({past}).orders) await local.find_order({{ number }});\n")

    def _send(self):
        name = self._any()
        self._lines.append(
            f"await local.send({{ to: {name}.customer.name, text: `${{{name}.total}} $ for ${{{name}.number}}`,\n"
            f'  about: {{ items: {name}.items, of: [{name}.customer.id, null, "$x"] }} }});\n'
        )

    def _weigh(self):
        self._lines.append(
            f"for (const item of {self._any()}.items) {{\n"
            "  try { await local.weigh({ code: item.code }); } catch {}\n}\n"
        )

    def _tasks(self):
        self._lines.append(
            f"await Promise.all({self._any()}.items.map(async (item) => {{\n"
            "  const left = await local.stock({ code: item.code });\n"
            "  return await local.stock({ code: `again-${left.left}` });\n}));\n"
        )

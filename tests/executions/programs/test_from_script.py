"""Programs made from what scripts did: the same calls with the same arguments, from references where values came from."""

import json
import os
import random
from pathlib import Path

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.program_from_script import program_from_execution
from mcp_bridge.governance import yaml_text
from mcp_bridge.governance.governance import load_governance

pytestmark = pytest.mark.usefixtures("whole_ledgers")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
SEEDS = 200 if LONG else 50
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
    tables = {"tools": {"modules": ["shop_tools"], "path": [str(Path(__file__).parents[2] / "support")]}}
    governance = load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)
    return lambda: sandboxes.open(governance=governance, bounded=False, pooled=True)


async def derive(bridge, execution):
    store = bridge.programs.store
    return await program_from_execution(store, bridge.programs.recorder, await store.execution(execution))


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


@pytest.mark.parametrize("seeds", [range(at, at + 10) for at in range(0, SEEDS, 10)], ids=lambda seeds: str(seeds[0]))
async def test_a_program_made_from_a_script_makes_the_same_calls(shop, calls, seeds):
    async with shop() as bridge:
        for seed in seeds:
            code = Written(random.Random(seed)).code  # noqa: S311
            record = await bridge.run(HEAD + code)
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

    def __init__(self, rng):
        self._rng = rng
        self._names = []
        self._lines = []
        for _ in range(rng.randint(4, 9)):
            getattr(
                self,
                f"_{rng.choice(('order', 'orders', 'stock', 'stocks', 'loop', 'history', 'send', 'weigh', 'tasks'))}",
            )()
        self._send()
        self.code = "".join(self._lines)

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

"""Dry runs of generated scripts, at a server that counts.

`MCP_BRIDGE_TEST_LONG=1` asks for many more of them.
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest
from crash_fixtures import LONG

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.governance.governance import load_governance

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.timeout(900)]

RECORDING = Path(__file__).parents[2] / "support" / "servers" / "recording.py"
SCHEMA = {"type": "object", "properties": {"script": {"type": "integer"}, "x": {}, "y": {}}}
READS = ("look", "count")
LISTING = [
    {"name": name, "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True} if name in READS else {}}
    for name in (*READS, "put", "drop")
]
SCRIPTS = 400 if LONG else 50
"""Under each of two policies, none under both. Every third one is in JavaScript."""


class Writer:
    """Writes one script; every call of it has the script's number.

    Attributes:
        differs: Whether its run makes calls that its dry run has not listed, and others not: what it has read is
            something else by then.
    """

    language = "python"

    def __init__(self, rng, number):
        self._rng = rng
        self._number = number
        self._names = 0
        self.differs = False

    def script(self):
        blocks = "".join(self._block() for _ in range(self._rng.randint(2, 5)))
        return f"import asyncio\nfrom mcp.servers import shop\nfrom mcp.sync.servers import shop as blocking\n{blocks}"

    def _block(self):
        return self._rng.choice(
            (
                *(self._one, self._one, self._loop, self._gather),
                *(self._chain, self._read, self._thread, self._changed),
            )
        )()

    def _call(self, x, tool=None, module="shop"):
        return f"{module}.{tool or self._rng.choice(('put', 'put', 'drop'))}(script={self._number}, x={x})"

    def _value(self):
        return repr(self._rng.choice([1, 1, 2, "a", "é\n", None, True, 1.5, [1, {"k": []}], {"n": {"m": "x"}}]))

    def _one(self):
        return f"await {self._call(self._value())}\n"

    def _loop(self):
        return f"for i in range({self._rng.randint(1, 4)}):\n    await {self._call(self._rng.choice(('i', 'i // 2', '7')))}\n"

    def _gather(self):
        calls = ", ".join(self._call(self._value()) for _ in range(self._rng.randint(2, 5)))
        return f"await asyncio.gather({calls})\n"

    def _read(self):
        self._names += 1
        name = f"seen{self._names}"
        taken = f"if {name}['x'] == {name}['x']:\n    await {self._call(f'{name}')}\n"
        return f"{name} = await {self._call(self._value(), 'look')}\n{taken}"

    def _chain(self):
        self._names += 1
        name = f"made{self._names}"
        return f"{name} = await {self._call(self._value())}\nawait {self._call(f'''{name}['x']''')}\n"

    def _changed(self):
        self.differs = True
        self._names += 1
        name = f"count{self._names}"
        other = f"    await {self._call(f'{name}', 'drop')}\nelse:\n    await {self._call('0', 'put')}\n"
        return (
            f"{name} = (await shop.count(script={self._number}))['count']\n"
            f"await {self._call(f'{name}')}\nif {name} % 2:\n{other}"
        )

    def _thread(self):
        calls = ", ".join(
            f"asyncio.to_thread(lambda: {self._call(self._value(), module='blocking')})" for _ in range(2)
        )
        return f"await asyncio.gather({calls})\n"


class JavascriptWriter(Writer):
    """As `Writer`, in JavaScript."""

    language = "javascript"

    def script(self):
        blocks = "".join(self._block() for _ in range(self._rng.randint(2, 5)))
        return f'import {{ shop }} from "mcp/servers";\n{blocks}'

    def _call(self, x, tool=None, module="shop"):
        return f"{module}.{tool or self._rng.choice(('put', 'put', 'drop'))}({{ script: {self._number}, x: {x} }})"

    def _value(self):
        return json.dumps(self._rng.choice([1, 1, 2, "a", "é\n", None, True, 1.5, [1, {"k": []}], {"n": {"m": "x"}}]))

    def _one(self):
        return f"await {self._call(self._value())};\n"

    def _loop(self):
        x = self._rng.choice(("i", "i >> 1", "7"))
        return f"for (let i = 0; i < {self._rng.randint(1, 4)}; i++) await {self._call(x)};\n"

    def _gather(self):
        calls = ", ".join(self._call(self._value()) for _ in range(self._rng.randint(2, 5)))
        return f"await Promise.all([{calls}]);\n"

    def _read(self):
        self._names += 1
        name = f"seen{self._names}"
        return f"const {name} = await {self._call(self._value(), 'look')};\nif (true) await {self._call(name)};\n"

    def _chain(self):
        self._names += 1
        name = f"made{self._names}"
        return f"const {name} = await {self._call(self._value())};\nawait {self._call(f'{name}.x')};\n"

    def _changed(self):
        self.differs = True
        self._names += 1
        name = f"count{self._names}"
        return (
            f"const {{ count: {name} }} = await shop.count({{ script: {self._number} }});\nawait {self._call(name)};\n"
            f"if ({name} % 2) await {self._call(name, 'drop')}; else await {self._call('0', 'put')};\n"
        )

    def _thread(self):
        """Calls of two tasks, of which each goes on by itself."""
        tasks = ", ".join(
            f"(async () => {{ await {self._call(self._value())}; await {self._call('2')} }})()" for _ in range(2)
        )
        return f"await Promise.all([{tasks}]);\n"


class Counting:
    """A server that writes down each call, and what was to be made of it."""

    def __init__(self, folder):
        (folder / "listing").write_text(json.dumps(LISTING))
        self._log = folder / "calls"
        self._log.touch()
        command = (str(RECORDING), str(folder / "listing"), str(self._log))
        self.spec = ServerSpec(name="shop", command=sys.executable, args=command, call_timeout=60)

    def writes(self, number):
        """How often each call of a script has come that doesn't only read."""
        found = Counter()
        for line in self._log.read_text().splitlines():
            call = json.loads(line)
            if call["tool"] not in READS and call["arguments"].pop("script") == number:
                found[json.dumps(call, sort_keys=True)] += 1
        return found


def listed(calls):
    """How often each call is in what a person was asked."""
    found = Counter()
    for call in calls:
        arguments = {name: value for name, value in call["arguments"].items() if name != "script"}
        row = {"tool": call["tool"].removeprefix("shop."), "arguments": arguments}
        found[json.dumps(row, sort_keys=True)] += 1
    return found


async def approve_all(bridge, execution):
    """Approve all that an execution asks about; the questions."""
    rows = await approval_requests(bridge.programs.store, "local", execution, open_only=True)
    rows = [row for row in rows if row.status == "open"]
    assert rows
    for row in rows:
        await decide(bridge.programs.store, row, approved=True, by="anna", comment=None)
    return [row.question for row in rows]


async def dry_and_then_made(bridge, server, number):
    """Run a script dry, have what it lists approved, and run it. How many calls were made, and whether others than listed."""
    writer = (JavascriptWriter if number % 3 == 0 else Writer)(random.Random(number), number)  # noqa: S311
    code, language = writer.script(), writer.language
    dry = await bridge.run(code, dry_run=True, language=language)
    assert not server.writes(number), code
    if not dry.planned:
        assert dry.status == "success", (code, dry.error)
        return 0, False
    (asked,) = await approve_all(bridge, dry.execution)
    expected = listed(asked["details"]["calls"])
    made = await bridge.run(code, language=language)
    assert made.execution == dry.execution
    while made.status == "suspended":
        # It asks about what needed the result of another call, or that it hasn't listed; until then nothing is made
        # that wasn't approved.
        assert not server.writes(number) - expected, code
        expected += listed(await approve_all(bridge, dry.execution))
        made = await bridge.run(code, language=language)
    assert made.status == "success", (code, made.error)
    writes = server.writes(number)
    if writer.differs:
        assert not writes - expected, code
        assert made.calls >= writes.total() > 0, code
        return writes.total(), writes != expected
    assert writes == expected, code
    assert expected.total() == len(dry.planned), code
    return expected.total(), False


@pytest.mark.parametrize(("preset", "first"), [("approve-writes", 0), ("open", SCRIPTS)])
async def test_of_generated_scripts_no_write_is_made_dry_and_then_those_that_were_approved(
    tmp_path, both, preset, first
):
    server = Counting(tmp_path)
    tables = {"policy": {"preset": preset, "trust_hints": ["shop"]}}
    governance = load_governance(tables, None, tmp_path, both.settings.state_dir)
    numbers, made = iter(range(first, first + SCRIPTS)), []
    async with both.open(server.spec, governance=governance, bounded=False) as bridge:

        async def work():
            for number in numbers:
                made.append(await dry_and_then_made(bridge, server, number))  # noqa: PERF401 - while others do so

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(work)
    assert sum(calls for calls, _ in made) > 3 * SCRIPTS
    assert sum(differed for _, differed in made) > SCRIPTS / 10

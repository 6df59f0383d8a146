"""Programs that an older build began, resumed by scripts: the machine in the sandbox goes on by the same rules."""

import json
from functools import partial

import pytest
from execution_fixtures import printed
from hostile_guest import open_desk, tool

from mcp_bridge.executions.programs import lifecycle
from mcp_bridge.executions.replay import replayed
from mcp_bridge.kernel.awaited_effects import VERSION
from mcp_bridge.kernel.machine import Machine

pytestmark = pytest.mark.usefixtures("whole_ledgers")

LOOP = {
    "steps": [
        # In its second turn it is denied, and skipped.
        tool("look", "a", on_error="skip", next_step="w"),
        {"id": "w", "type": "wait", "event": "go"},
        tool("delete", "b", value="$a"),
        {"id": "c", "type": "condition", "condition": "$w == 'enough'", "then": "end", "otherwise": "a"},
        tool("delete", "end"),
    ]
}
POLICY = {"rules": [{"tools": ["local.look"], "effect": "allow", "max_calls": 1}]}
RESUMED = {
    "python": """
from mcp import programs
print([(await programs.resume({execution!r}, payload)).status for payload in ("more", "enough")])
""",
    "javascript": """
import {{ programs }} from "mcp";
const told = [];
for (const payload of ["more", "enough"]) told.push((await programs.resume({execution!r}, payload)).status);
console.log(`['${{told.join("', '")}}']`);
""",
}


@pytest.mark.parametrize("language", RESUMED)
@pytest.mark.parametrize(("version", "second"), [(1, "look a"), (VERSION, "$a")])
async def test_a_script_goes_on_with_a_state_by_the_rules_of_its_version(
    both, tmp_path, monkeypatch, language, version, second
):
    async with open_desk(both, tmp_path, policy=POLICY, languages=["python", "javascript"]) as desk:
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "Machine", partial(Machine, version=version))
            execution = (await desk.bridge.run_program(LOOP))["trace_id"]
        assert json.loads((await desk.stored(execution)).state)["version"] == version
        record = await desk.bridge.run(RESUMED[language].format(execution=execution), language=language)
        assert printed(record) == "['suspended', 'success']\n"
        assert desk.did() == [["look", "a"], ["delete", "look a"], ["delete", second], ["delete", "end"]]
        # `finish` found the sandbox's state to be the host's.
        assert await desk.violations(execution) == []
        store, recorder = desk.bridge.programs.store, desk.bridge.programs.recorder
        assert (await replayed(store, recorder, await desk.stored(execution))).agrees

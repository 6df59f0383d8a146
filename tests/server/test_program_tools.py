"""Programs as MCP tools and as resources."""

import json
import re
from typing import Any

import mcp_types as types
import pytest
from approval_tools import RULES, TOOLS

from mcp_bridge.governance.governance import load_governance
from mcp_bridge.server.principal_calls import PrincipalCalls

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def governance(tmp_path, sandboxes, request):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"tools_{abs(hash(request.node.name))}.py").write_text(TOOLS)
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "see.json").write_text(
        json.dumps({"steps": [{"id": "a", "type": "tool", "tool": "look", "args": {"name": "$who"}}]})
    )
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "programs": {"path": ["programs"]},
        "policy": RULES,
    }
    return load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)


async def test_a_call_that_is_ended_is_answered_as_its_tool_answers(
    sandboxes, governance, tmp_path, connect, monkeypatch
):
    async def ended(*_):
        return None

    monkeypatch.setattr(PrincipalCalls, "run", ended)
    async with (
        sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge,
        connect(bridge, programs=True) as client,
    ):
        answers = {
            name: (await client.call_tool(name, arguments)).structured_content
            for name, arguments in (("run_python", {"code": "1"}), ("list_programs", {}))
        }
    assert (answers["run_python"]["status"], answers["run_python"]["error"]["code"]) == ("cancelled", "not_a_principal")
    assert "had begun, and was cancelled" in answers["run_python"]["error"]["message"]
    assert answers["list_programs"].keys() == {"error", "code"}
    assert "What it had done stays done" in answers["list_programs"]["error"]
    assert answers["list_programs"]["code"] == "not_a_principal"


async def test_programs_are_run_by_a_client_that_knows_no_python(sandboxes, governance, tmp_path, connect):
    async with (
        sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge,
        connect(bridge, programs=True) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[0] == "run_python"
        assert set(names[1:]) == {
            "run_program", "resume_program", "get_trace", "list_programs", "get_program", "delete_program",
        }  # fmt: skip

        async def call(name, **arguments):
            result = await client.call_tool(name, arguments)
            assert json.loads(result.content[0].text) == result.structured_content
            assert result.is_error == (result.structured_content.get("error") is not None)
            return result.structured_content

        program = {
            "name": "p",
            "steps": [{"id": "a", "type": "tool", "tool": "look", "args": {"name": "$who"}}],
        }
        ran = await call("run_program", program=program, context={"who": "x"}, save_as="mine", idempotency_key="k1")
        assert (ran["status"], ran["steps"], ran["output"], ran["program_id"]) == ("success", 1, "saw x", "mine")
        again = await call("run_program", program="mine", context={"who": "x"}, idempotency_key="k1")
        assert again["trace_id"] == ran["trace_id"]
        conflict = await call("run_program", program="mine", context={"who": "y"}, idempotency_key="k1")
        assert conflict["code"] == "key_conflict"
        assert (await call("get_trace", trace_id=ran["trace_id"]))["steps"][0]["output"] == "saw x"
        assert [row["id"] for row in (await call("list_programs"))["programs"]] == ["mine", "see"]
        assert await call("get_program", program_id="mine") == program
        assert (await call("delete_program", program_id="mine"))["deleted"] is True
        assert (await call("delete_program", program_id="mine"))["code"] == "unknown_program"
        assert (await call("delete_program", program_id="see"))["code"] == "denied"
        assert (await call("run_program", program={"steps": []}))["code"] == "invalid_program"
        assert (await call("run_program"))["code"] == "bad_arguments"
        assert (
            "contxt: there is no such argument; there are: program, context, "
            in (await call("run_program", program="see", contxt={}))["error"]
        )
        each = {"id": "m", "type": "map", "over": [1, 2, 3, 4, 5], "step": {"type": "tool", "tool": "no-such"}}
        failed = await call("run_program", program={"steps": [each]})
        assert failed["error"].startswith("step 'm' failed: sub-steps failed: m[0], m[1], m[2], m[3], m[4] (m[0]: ")
        assert re.search(r"; m\[2\]: [^;]*no-such[^;]*; and 2 more\)$", failed["error"])
        pending = {"steps": [{"id": "w", "type": "wait", "event": "paid"}, {**program["steps"][0], "id": "b"}]}
        waits = await call("run_program", program=pending, context={"who": "z"})
        assert waits["status"] == "suspended"
        went_on = await call("resume_program", trace_id=waits["trace_id"], payload={"paid": 1})
        assert (went_on["status"], went_on["output"]) == ("success", "saw z")
        ended = await call("resume_program", trace_id=waits["trace_id"])
        assert ended["code"] == "not_suspended"
        assert "is not suspended: success. A script sees how it stands with `traces.get`" in ended["error"]

        listed = {row.name: str(row.uri) for row in (await client.list_resources()).resources}
        assert set(listed) == {"program schema", "see"}
        schema = json.loads((await client.read_resource(listed["program schema"])).contents[0].text)
        assert schema["$schema"].endswith("2020-12/schema")
        assert json.loads((await client.read_resource(listed["see"])).contents[0].text)["steps"][0]["id"] == "a"
        trace = json.loads((await client.read_resource(f"trace://{ran['trace_id']}")).contents[0].text)
        assert trace["status"] == "success"


async def test_a_program_may_be_given_as_a_text_of_json_and_mistakes_are_told_in_plain_words(
    sandboxes, governance, tmp_path, connect
):
    program = {"steps": [{"id": "a", "type": "tool", "tool": "look", "args": {"name": "$who"}}]}
    async with (
        sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge,
        connect(bridge, programs=True) as client,
    ):

        async def call(name, /, **arguments):
            return (await client.call_tool(name, arguments)).structured_content

        for text in (json.dumps(program), json.dumps(program, indent=1), f"```json\n{json.dumps(program)}\n```"):
            ran = await call("run_program", program=text, context={"who": "x"}, save_as="kept")
            assert (ran["output"], ran["program_id"]) == ("saw x", "kept")
        assert await call("get_program", program_id="kept") == program

        for text in ('{"who": "x"}', '```json\n{"who": "x"}\n```'):
            assert (await call("run_program", program="kept", context=text))["output"] == "saw x"
        for text in ("", "who: x", "[]", '{"who":'):
            wrong = await call("run_program", program="kept", context=text, save_as="other")
            assert (wrong["code"], "Pass an object" in wrong["error"]) == ("bad_context", True)
        assert (await call("get_program", program_id="other"))["code"] == "unknown_program"

        for text in ("steps:\n  - {id: a, type: tool}", '[[steps]]\nid = "a"', '{"steps": [', "[]"):
            wrong = await call("run_program", program=text)
            assert wrong["code"] == "invalid_program"
            assert "a program is an object, or the name of a saved one" in wrong["error"]
        assert (await call("run_program", program="kpet"))["nearest"] == ["kept"]

        # A name may begin as a program does.
        for name, mistyped in (("[nightly] report", "[nightly] reprot"), ("{x}", "{x}'s"), ("`a`", "`zzzzzz`")):
            ran = await call("run_program", program=program, context={"who": "x"}, save_as=name)
            assert (await call("run_program", program=name, context={"who": "x"}))["program_id"] == name
            wrong = await call("run_program", program=mistyped)
            assert wrong["code"] == "unknown_program", wrong
            assert name in wrong["error"]
        assert (await call("run_program", program=program, save_as=" "))["code"] == "reserved_name"

        told = {
            "program: must be an object or a text, not a list; context: must be an object or a text, not a list.": (
                await call("run_program", program=[], context=[])
            ),
            "name: there is no such argument; there are: program_id; program_id: is required.": await call(
                "get_program", name="kept"
            ),
            "program_id: must be a text, not null.": await call("get_program", program_id=None),
        }
        for words, wrong in told.items():
            assert (wrong["error"], wrong["code"]) == (words, "bad_arguments")

        with pytest.raises(
            Exception, match=r"There is no tool 'run_programs' \(did you mean run_program\?\); the tools"
        ):
            await client.call_tool("run_programs", {"program": program})
        with pytest.raises(Exception, match=r"the tools are run_python, run_program, .* and delete_program\."):
            await client.call_tool("nothing", {})


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_step_asks_the_clients_model(sandboxes, tmp_path, connect, mode):
    asked = []

    async def model(_context, params):
        asked.append(params)
        answer = types.TextContent(text=f"heard: {params.messages[-1].content.text}")
        return types.CreateMessageResult(role="assistant", content=answer, model="theirs", stop_reason="endTurn")

    governed = load_governance({"model": {"provider": "sampling"}}, None, tmp_path, sandboxes.settings.state_dir)
    program = {"steps": [{"id": "a", "type": "llm", "prompt": "Say $who"}]}
    async with (
        sandboxes.open(governance=governed, state_dir=tmp_path / "state") as bridge,
        connect(bridge, programs=True, mode=mode, sampling_callback=model) as client,
    ):
        given = {"program": program, "context": {"who": "x"}}
        ran = (await client.call_tool("run_program", given)).structured_content
        assert (ran["status"], ran["output"]) == ("success", "heard: Say x"), ran
        code = f"from mcp import programs\nt = await programs.run({program!r}, {{'who': 'y'}})\nprint(t.output)"
        assert (await client.call_tool("run_python", {"code": code})).content[0].text == "heard: Say y"
    assert len(asked) == 2


class _Reply(types.CreateMessageResult):
    """Whatever a client sends as the answer of its model."""

    role: Any = None
    content: Any = None
    model: Any = None


def _reply(content, stop_reason=None):
    return _Reply(role="assistant", model="theirs", content=content, stop_reason=stop_reason)


@pytest.mark.usefixtures("careless_clients")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_model_may_answer_in_several_blocks_and_what_is_no_answer_fails_the_step(
    sandboxes, tmp_path, connect, mode, caplog
):
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    replies = [
        (_reply([{"type": "text", "text": "a"}, call, {"type": "text", "text": "b"}]), "ab"),
        (_reply([{"type": "text", "text": "Transfer 100"}], "maxTokens"), "model_bad_answer"),
        (_reply([call]), "model_bad_answer"),
        (_reply([]), "model_bad_answer"),
        (_reply(call), "model_bad_answer"),
        (_reply({"type": "text"}), "model_bad_answer"),
        (_reply("a"), "model_bad_answer"),
        (_Reply(), "model_bad_answer"),
    ]
    sent = iter([reply for reply, _ in replies])

    async def model(_context, _params):
        return next(sent)

    governed = load_governance({"model": {"provider": "sampling"}}, None, tmp_path, sandboxes.settings.state_dir)
    program = {"steps": [{"id": "a", "type": "llm", "prompt": "Say something"}]}
    async with (
        sandboxes.open(governance=governed, state_dir=tmp_path / "state") as bridge,
        connect(bridge, programs=True, mode=mode, sampling_callback=model) as client,
    ):
        for _, expected in replies:
            ran = (await client.call_tool("run_program", {"program": program})).structured_content
            assert (ran["code"] or ran["output"]) == expected, ran
    assert not [record for record in caplog.records if record.exc_info]


async def test_by_default_there_is_one_tool(sandboxes, connect):
    async with sandboxes.open() as bridge, connect(bridge) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run_python"]


async def test_an_answer_over_the_limit_is_shorter_json_and_names_what_has_all_of_it(
    sandboxes, governance, tmp_path, connect
):
    steps = [{"id": f"s{number}", "type": "tool", "tool": "look", "args": {"name": "$who"}} for number in range(80)]
    async with (
        sandboxes.open(governance=governance, state_dir=tmp_path / "state", max_output_chars=5000) as bridge,
        connect(bridge, programs=True) as client,
    ):
        arguments = {"program": {"steps": steps}, "context": {"who": "x" * 20_000}, "save_as": "long"}
        ran = await client.call_tool("run_program", arguments)
        shown = json.loads(ran.content[0].text)
        asked = [("run_program", ran), ("get_program", await client.call_tool("get_program", {"program_id": "long"}))]
        asked.append(("get_trace", await client.call_tool("get_trace", {"trace_id": shown["trace_id"]})))
        for name, result in asked:
            assert len(result.content[0].text) <= 5000, name
            assert result.structured_content is None, name
            assert json.loads(result.content[0].text)["cut"].startswith("All of it: run_python: ")
        assert shown["status"] == "success"
        assert "of 20004 characters cut" in shown["output"]
        trace = json.loads(asked[2][1].content[0].text)
        assert trace["steps"][0]["id"] == "s0"
        code = shown["cut"].removeprefix("All of it: run_python: ")
        whole = await client.call_tool("run_python", {"code": f"{code.replace('await', 't = await')}\nlen(t.output)"})
        assert whole.content[0].text == "20004"

"""A person's approval: asked of the client, or decided at the command line."""

import textwrap
import uuid
from typing import Any

import mcp_types as types
import pytest
from approval_tools import RULES, TOOLS
from execution_fixtures import printed

from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.kernel.events import Resume

pytestmark = pytest.mark.usefixtures("whole_ledgers")


PROGRAM = {
    "name": "clean",
    "steps": [
        {"id": "look", "type": "tool", "tool": "look", "args": {"name": "$name"}},
        {"id": "ask", "type": "approval", "message": "Delete $name?", "details": {"seen": "$look"}},
        {"id": "delete", "type": "tool", "tool": "delete", "args": {"name": "$name"}},
    ],
}

CALL = """
from mcp.servers import local
try:
    print(await local.delete(name="a"))
except Exception as exc:
    print(exc.code, exc)
"""

SCRIPT = f"""{CALL}
from mcp import programs
trace = await programs.run({PROGRAM!r}, {{"name": "b"}})
print(trace.status, [(step.id, step.status) for step in trace.steps], trace.output)
"""


@pytest.fixture
def governance(tmp_path, sandboxes):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"files_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "policy": RULES}
    return load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)


class Person:
    """Answers every question the same way, and remembers what it was asked."""

    def __init__(self, action="accept", *, approve=True):
        self.asked = []
        self._result = types.ElicitResult(action=action, content={"approve": approve} if action == "accept" else None)

    async def __call__(self, context, params):
        self.asked.append(params.message)
        return self._result


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_is_asked_and_its_person_decides(sandboxes, governance, mode, connect):
    async with sandboxes.open(governance=governance) as bridge:
        person = Person()
        async with connect(bridge, mode=mode, elicitation_callback=person) as client:
            result = await client.call_tool("run_python", {"code": SCRIPT})
        text = result.content[0].text
        assert "deleted a" in text
        assert "success [('look', 'success'), ('ask', 'success'), ('delete', 'success')] deleted b" in text
        assert len(person.asked) == 3
        assert "local.delete" in person.asked[0]
        assert "deletions are final" in person.asked[0]
        assert "Delete b?" in person.asked[1]

        person = Person(approve=False)
        async with connect(bridge, mode=mode, elicitation_callback=person) as client:
            result = await client.call_tool("run_python", {"code": SCRIPT})
        assert "denied A person has denied local.delete" in result.content[0].text
        assert "failed [('look', 'success'), ('ask', 'failed')]" in result.content[0].text


async def test_without_anybody_to_ask_a_program_is_suspended_and_decided_elsewhere(sandboxes, governance):
    async with sandboxes.open(governance=governance) as bridge:
        record = await bridge.run(SCRIPT.removeprefix(CALL) + "\nprint(trace.trace_id)")
        second, trace_id = printed(record).splitlines()
        assert second.startswith("suspended")
        store = bridge.programs.store
        (asked,) = await store.approvals(open_only=True)
        assert asked.execution == trace_id
        assert asked.question["message"] == "Delete b?"
        resume = f"from mcp import programs\ntry:\n    print(await programs.resume({trace_id!r}, {{'approved': True}}))\nexcept Exception as exc:\n    print(exc.code)"
        assert printed(await bridge.run(resume)) == "still_waiting\n"
        assert await store.decide(asked, {"approved": True, "by": "anna"})
        assert not await store.decide(asked, {"approved": False, "by": "bob"})
        text = printed(await bridge.run(resume))
        assert "suspended" in text
        (asked,) = await store.approvals(open_only=True)
        assert asked.question["tool"] == "local.delete"
        assert await store.decide(asked, {"approved": True, "by": "anna"})
        ended = await bridge.resume_execution(trace_id)
        assert (ended["status"], ended["output"]) == ("success", "deleted b")
        with pytest.raises(Exception, match="not suspended"):
            await bridge.resume_execution(trace_id, Resume(1))


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("then", ["decided elsewhere", "asked now", "denied now", "asked too late"])
async def test_a_call_of_a_script_waits_for_whoever_decides_first(sandboxes, governance, tmp_path, mode, then, connect):
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        store = bridge.programs.store
        async with connect(bridge, mode=mode) as client:
            first = await client.call_tool("run_python", {"code": CALL})
            again = await client.call_tool("run_python", {"code": CALL})
        assert first.is_error
        (text,) = [block.text for block in first.content]
        assert again.content[0].text == text
        assert text.startswith("[approval_needed] A person has to decide on local.delete (")
        assert "\n" not in text
        (row,) = await store.approvals(open_only=True)
        assert (row.question["tool"], row.question["arguments"]) == ("local.delete", {"name": "a"})

        class Late(Person):
            async def __call__(self, context, params):
                assert await self.decide()
                return await super().__call__(context, params)

            async def decide(self):
                (question,) = await approval_requests(store, "local", open_only=True)
                return await decide(store, question, approved=False, by="anna", comment="too late")

        person = {"asked now": Person(), "denied now": Person(approve=False), "asked too late": Late()}.get(then)
        if person is None:
            (question,) = await approval_requests(store, "local", open_only=True)
            await decide(store, question, approved=True, by="anna", comment=None)
            person = Person(approve=False)
            expected, by, questions = "deleted a", "anna", 0
        else:
            denied = then != "asked now"
            expected = "denied A person has denied local.delete." if denied else "deleted a"
            by, questions = "anna" if then == "asked too late" else "client", 1
        # The same code is enough.
        async with connect(bridge, mode=mode, elicitation_callback=person) as client:
            last = await client.call_tool("run_python", {"code": CALL})
        assert expected in last.content[0].text
        assert len(person.asked) == questions
        (decided,) = await store.approvals()
        assert (decided.status, decided.decision["by"]) == ("denied" if "denied" in expected else "approved", by)
        entries = await bridge.programs.recorder.read(row.execution)
        (said,) = [each.entry for each in entries if each.entry.kind == "decision"]
        told = {name: said.payload[name] for name in ("tool", "arguments", "call", "approved", "by")}
        assert told == {
            "tool": "local.delete",
            "arguments": {"name": "a"},
            "call": "0#1",
            "approved": expected == "deleted a",
            "by": by,
        }


class _Sent(types.ElicitResult):
    """Whatever a client sends as a person's answer."""

    action: Any = None
    content: Any = None


UNDECIDED = [
    _Sent(),
    _Sent(action="maybe"),
    _Sent(action="accept", content="yes"),
    _Sent(action="accept", content={"approve": [True]}),
    _Sent(action="accept", content={"approve": {"x": 1}}),
    _Sent(action="accept", content={"approve": "true"}),
    _Sent(action="accept", content={"approved": True}),
    _Sent(action="accept"),
    _Sent(action="cancel"),
]


@pytest.mark.usefixtures("careless_clients")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_an_answer_that_neither_approves_nor_denies_leaves_the_question_open(
    sandboxes, governance, tmp_path, mode, connect, caplog
):
    answers = iter([UNDECIDED[0], *UNDECIDED])

    async def person(_context, _params):
        return next(answers)

    expected = [f"Go on with {number}?" for number in range(len(UNDECIDED))]
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        async with connect(bridge, mode=mode, programs=True, elicitation_callback=person) as client:
            call = await client.call_tool("run_python", {"code": CALL})
            for message in expected:
                program = {"steps": [{"id": "ask", "type": "approval", "message": message}]}
                ran = (await client.call_tool("run_program", {"program": program})).structured_content
                assert (ran["status"], ran["error"]) == ("suspended", None)
        waiting = await bridge.programs.store.approvals(open_only=True)
    assert call.content[0].text.startswith("[approval_needed] A person has to decide on local.delete (")
    assert sorted(row.question.get("message", "") for row in waiting) == ["", *expected]
    assert not [record for record in caplog.records if record.exc_info]


async def test_what_a_program_says_cannot_pass_for_what_we_say_of_it(sandboxes, governance, tmp_path, connect):
    forged = "Go on?\nProgram: payroll\nWhy: it is \u202eharmless"
    program = {"name": "x\nWhy: none", "steps": [{"id": "ask", "type": "approval", "message": forged}]}
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        person = Person()
        async with connect(bridge, programs=True, elicitation_callback=person) as client:
            await client.call_tool("run_program", {"program": program})
    assert person.asked[0].splitlines() == [
        "A program asks:",
        "> Go on?",
        "> Program: payroll",
        "> Why: it is \\u202eharmless",
        r"Program: x\nWhy: none (the agent's)",
        "Step: ask",
    ]

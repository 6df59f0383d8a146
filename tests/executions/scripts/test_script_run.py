"""What a script is answered from its record, and in which order."""

import contextlib
import json
from dataclasses import replace
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from memory_recorder import MemoryRecorder

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts import answer_order, divergence
from mcp_bridge.executions.scripts.call_history import CallHistory, CallRequest
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.scripts.held_calls import HeldCall, is_same
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.executions.usage import usage_from_history
from mcp_bridge.gate.request_context import NO_REQUEST, RequestContext
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import Failure
from mcp_bridge.wire.messages import NAMES, ProgramResume, ToolCall


class Kept:
    """As the gate and the execution's values: there is nothing sensitive."""

    allowance = None

    def __init__(self):
        self.values = self

    def keep(self, execution, value):
        pass

    async def project(self, value):
        return value

    def values_behind(self, value):
        return {}

    def room(self):
        return contextlib.nullcontext()


def recorder(*entries):
    kept = MemoryRecorder()
    for kind, payload in entries:
        kept.post(Entry(kind, "x", payload))
    return kept


def intent(call, tool="local.pay", **more):
    return "intent", {"call": call, "kind": "tool", "tool": tool, "arguments": {"n": call}, **more}


def outcome(call, value="yes", **more):
    return "outcome", {"call": call, "kind": "tool", "tool": "local.pay", "status": "ok", "value": value, **more}


def run_of(kept, *, key="key", live=True):
    return ScriptRun("x", None, kept, Kept(), "", CallHistory(kept.entries), key=key, live=live)


async def refused(_):
    raise AssertionError("it was made")


async def answered(script, call, kind, name, arguments, do=refused):
    """The answer to a call that is no tool's, but recorded as one; `do` is given its recorder."""
    made = CallRecorder(script, call, kind, name, arguments, NO_REQUEST)
    return await script.answer(made, lambda: do(made))


def asks(script, call, do=refused, *, raw=False, arguments=None):
    made = CallRecorder(script, call, "tool", "local.pay", arguments or {"n": call}, NO_REQUEST, raw=raw)
    return script.answer(made, lambda: do(made))


async def in_order(script, calls, do=refused):
    """The calls in the order in which they are answered, asked for at once, each taken as it comes."""
    answered = []

    async def one(call):
        await asks(script, call, do)
        answered.append(call)
        script.answers.taken(call)

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(one, call)
            await anyio.sleep(0.01)
    return answered


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(answer_order, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(divergence, "QUIET_SECONDS", 0.2)


async def test_answers_come_in_the_recorded_order_whatever_the_order_of_the_calls():
    names = ["0.1#1", "0.2#1", "0.3#1"]
    kept = recorder(*map(intent, names), *map(outcome, ("0.3#1", "0.1#1", "0.2#1")))
    for asked in (names, names[::-1], ["0.2#1", "0.1#1", "0.3#1"]):
        assert await in_order(run_of(kept), asked) == ["0.3#1", "0.1#1", "0.2#1"]


async def test_the_next_answer_waits_until_the_last_has_been_taken():
    kept = recorder(intent("0.1#1"), intent("0.2#1"), outcome("0.1#1"), outcome("0.2#1"))
    script = run_of(kept)
    assert await asks(script, "0.1#1") == {"value": "yes"}
    with anyio.move_on_after(0.05) as waited:
        await asks(script, "0.2#1")
    assert waited.cancelled_caught

    script = run_of(kept)
    await asks(script, "0.1#1")
    script.answers.taken("0.1#1")
    assert await asks(script, "0.2#1") == {"value": "yes"}


async def test_an_answer_waits_for_no_call_that_never_comes():
    kept = recorder(intent("0#1"), outcome("0#1"), intent("0#2"), outcome("0#2"))
    script = run_of(kept)
    assert await asks(script, "0#2") == {"value": "yes"}
    assert script.divergence_detector.final_divergence().recorded.arguments == {"n": "0#1"}
    assert script.divergence_detector.final_divergence().asked is None


async def test_what_is_new_is_answered_after_what_is_recorded():
    kept = recorder(intent("0.1#1"), outcome("0.1#1"))

    async def made(_):
        return {"value": "new"}

    assert await in_order(run_of(kept), ["0.2#1", "0.1#1"], made) == ["0.1#1", "0.2#1"]


async def test_what_the_script_took_back_holds_nobody_up_and_is_not_made_again():
    kept = recorder(intent("0.1#1"), intent("0.2#1"), outcome("0.1#1", None, status="interrupted"), outcome("0.2#1"))
    script = run_of(kept)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(expect, "interrupted", asks(script, "0.1#1"))
        await anyio.lowlevel.checkpoint()
        assert await asks(script, "0.2#1") == {"value": "yes"}
    assert script.divergence_detector.final_divergence() is None


async def test_an_answer_that_came_too_late_is_not_given_again():
    kept = recorder(intent("0.1#1"), outcome("0.1#1"), outcome("0.1#1", None, status="interrupted"))
    await expect("interrupted", asks(run_of(kept), "0.1#1"))


async def expect(code, work):
    with pytest.raises(BridgeError) as caught:
        await work
    assert caught.value.code == code
    return caught.value


async def test_a_call_of_which_a_person_says_that_it_was_not_made_is_made():
    kept = recorder(intent("0#1"), ("outcome", {"call": "0#1", "kind": "tool", "tool": "t", "status": "not_done"}))
    made = []

    async def make(call):
        made.append((call.call, call.name))
        return {"value": "now"}

    assert await asks(run_of(kept), "0#1", make) == {"value": "now"}
    assert made == [("0#1", "local.pay")]


@pytest.mark.parametrize("raw", [False, True])
async def test_an_error_is_the_same_again(raw):
    error = BridgeError("tool_error", "no", hint="ask", content=[1], raw={"isError": True})
    kept = recorder(
        intent("0#1", **({"raw": True} if raw else {})),
        ("outcome", {"call": "0#1", "kind": "tool", "tool": "local.pay"} | Failure.of(error, raw=raw).encode()),
    )
    again = asks(run_of(kept), "0#1", raw=raw)
    if raw:
        assert await again == {"raw": {"isError": True}}
    else:
        caught = await expect("tool_error", again)
        assert (str(caught), caught.details) == ("no ask", {"content": [1]})


async def test_a_divergence_stops_it_with_nothing_under_way():
    kept = recorder(intent("0#1"), outcome("0#1"))
    script = run_of(kept)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, script, "0.1#1")
        tasks.start_soon(partial(asks, script, "0#1", arguments={"n": True}))
        tasks.start_soon(asks, script, "0#7")
        error = await script.divergence_detector.diverged()
        tasks.cancel_scope.cancel()
    assert error.code == "divergence"
    assert (error.details["recorded"]["arguments"], error.details["asked"]["arguments"]) == ({"n": "0#1"}, {"n": True})
    assert len(kept.entries) == 2


async def diverging(script, call):
    """The divergence at which a call ends that must not be made."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, script, call)
        with anyio.fail_after(5):
            error = await script.divergence_detector.diverged()
        tasks.cancel_scope.cancel()
    return error.details


@pytest.mark.parametrize("in_doubt", [False, True])
@pytest.mark.parametrize("ended", [[outcome("0.1#1")], [outcome("0.1#1", None, status="interrupted")], []])
async def test_nothing_is_made_before_everything_recorded_is_asked_for(in_doubt, ended):
    script = run_of(recorder(intent("0.1#1"), *ended, *([intent("0#1")] if in_doubt else [])))
    details = await diverging(script, "0#1")
    assert (details["call"], details["instead_of"]) == ("0#1", "0.1#1")
    assert (details["recorded"]["arguments"], details["asked"]["arguments"]) == ({"n": "0.1#1"}, {"n": "0#1"})


async def test_a_call_that_is_not_recorded_waits_as_long_as_the_script_took_to_ask_for_the_others():
    kept = recorder(("start", {"code": ""}), intent("0.1#1"), outcome("0.1#1"))
    kept.entries[0] = replace(kept.entries[0], time=kept.entries[1].time - 0.6)
    script = run_of(kept)
    made = []

    async def make(_):
        made.append(len(script.history.calls))
        return {"value": "new"}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, script, "0#1", make)
        await anyio.sleep(0.8)
        assert (made, script.divergence_detector.divergence) == ([], None)
        await asks(script, "0.1#1")
        script.answers.taken("0.1#1")
    assert made == [1]


async def test_a_call_whose_arguments_are_still_being_compared_lets_no_other_pass():
    kept = recorder(intent("0#1"), outcome("0#1"))
    script = run_of(kept)

    class Slow(Kept):
        async def project(self, value):
            await anyio.sleep(0.1 if value == {"n": True} else 0)
            return value

    script._gate = Slow()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(asks, script, "0#1", arguments={"n": True}))
        tasks.start_soon(asks, script, "0.1#1")
        await anyio.sleep(0.3)
        assert script.divergence_detector.divergence.call == "0#1"
        tasks.cancel_scope.cancel()


async def test_what_is_taken_back_before_it_is_looked_at_counts_as_asked_for():
    kept = recorder(intent("0.1#1"), outcome("0.1#1"), intent("0.2#1"), outcome("0.2#1", None, status="interrupted"))
    script = run_of(kept)

    async def make(_):
        return {"value": "new"}

    await script.cancelled_before_start("0.2#1")
    await script.cancelled_before_start("0.1#1")
    assert await asks(script, "0#1", make) == {"value": "new"}


async def test_a_replay_waits_for_a_call_to_be_taken_back_that_is_not_recorded_and_then_it_is_new():
    kept = recorder(intent("0#1"), outcome("0#1"))
    script = run_of(kept, live=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, script, "0.1#1")
        await anyio.sleep(0.05)
        assert await asks(script, "0#1") == {"value": "yes"}
        tasks.cancel_scope.cancel()
    assert script.divergence_detector.final_divergence() is None
    details = await diverging(run_of(kept, live=False), "0.1#1")
    assert (details["call"], details["recorded"], details["asked"]["arguments"]) == ("0.1#1", None, {"n": "0.1#1"})


def after(seconds, row):
    return replace(row, time=row.time + seconds)


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_how_long_the_recorded_run_took_does_not_delay_the_divergence_of_a_call_that_is_not_recorded(
    is_repeated, monkeypatch
):
    monkeypatch.setattr(divergence, "MAX_QUIET_SECONDS", 0.5)
    start = "start", {"code": "", "hash": ""}
    kept = recorder(start, intent("0#1"), outcome("0#1"), intent("0#2"), outcome("0#2"))
    kept.entries = [kept.entries[0], *(after(1000, row) for row in kept.entries[1:])]
    script = run_of(kept, live=False)
    assert script.history.calls["0#1"].offset >= 1000
    await asks(script, "0#1")
    script.answers.taken("0#1")
    if is_repeated:
        await asks(script, "0#2")
    assert (await diverging(script, "0.1#1"))["recorded"] is None


async def test_a_call_that_is_not_recorded_is_suspected_while_the_script_waits_for_it():
    kept = recorder(intent("0#1"), outcome("0#1"))
    script = run_of(kept, live=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asks, script, "0.1#1")
        await asks(script, "0#1")
        # As whatever ends the sandbox meanwhile.
        tasks.cancel_scope.cancel()
    assert script.divergence_detector.suspected.call == "0.1#1"
    made = CallRecorder(script, "0.2#1", "tool", "local.pay", {}, Given())
    with anyio.move_on_after(0.05):
        await script.answer(made, lambda: refused(made))
    assert "0.2#1" not in script.divergence_detector._unrecorded


class Given(RequestContext):
    """A request that its script takes back, or leaves at its end."""

    is_cancelled = True


class Starting(Kept):
    """As a gate whose servers take for ever to start."""

    def __init__(self):
        super().__init__()
        self.tools = self.catalog = self

    async def bind(self, server, tool):
        await anyio.sleep_forever()


async def holds(_):
    pass


@pytest.mark.parametrize("text", ["x", "x" * (1 << 20)], ids=["small", "large"])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_call_that_is_taken_back_before_its_intent_is_recorded_as_that_and_compared(has_begun, text):
    kept = recorder()
    script, asked = run_of(kept), ToolCall("local", "pay", {"n": text}, call="0#1")
    script._gate = Starting()
    if has_begun:
        with anyio.move_on_after(0.05):
            await script.call("local", asked, Given(), holds)
    else:
        await script.cancelled_before_start("0#1", script.recorder("local", asked, Given()))
    (row,) = kept.entries
    assert (row.entry.kind, row.entry.payload["status"]) == ("outcome", "interrupted")
    assert len(json.dumps(row.entry.payload)) < 1000
    # It may name somebody.
    assert row.entry.payload.get("arguments") is None
    again = run_of(kept, live=False)
    with anyio.move_on_after(0.5) as waited:
        await asks(again, "0#1", arguments={"n": text})
    # However long that takes.
    assert (waited.cancelled_caught, again.divergence_detector.final_divergence()) == (True, None)
    assert (await diverging(run_of(kept, live=False), "0#1"))["asked"]["arguments"] == {"n": "0#1"}


class Full:
    """As the allowance of a run that has used it."""

    def has_room(self, size):
        return False


async def unknown_whose(_):
    await anyio.sleep_forever()


@pytest.mark.parametrize(("allowance", "noted"), [(Full(), holds), (None, unknown_whose)])
async def test_nothing_is_recorded_of_it_without_room_or_before_it_is_noted_whose_data_it_has(allowance, noted):
    kept = recorder()
    script, asked = run_of(kept), ToolCall("local", "pay", {"n": "0#1"}, call="0#1")
    script._gate = Starting()
    script._gate.allowance = allowance
    with anyio.move_on_after(0.05):
        await script.call("local", asked, Given(), noted)
    assert kept.entries == []


async def test_a_call_that_was_taken_back_before_it_was_begun_is_made_by_a_run_that_goes_on_with_it():
    kept = recorder()
    script, asked = run_of(kept), ToolCall("local", "pay", {"n": "0#1"}, call="0#1")
    await script.cancelled_before_start("0#1", script.recorder("local", asked, Given()))

    async def make(_):
        return {"value": "now"}

    assert await asks(run_of(kept), "0#1", make) == {"value": "now"}


@pytest.mark.parametrize(("key", "call"), [("key", None), (None, "0#1"), ("key", "0#1")])
async def test_a_call_without_a_name_of_its_own_is_a_violation(key, call):
    kept = recorder()
    script = run_of(kept, key=key)

    async def made(_):
        return {"value": 1}

    if call is not None:
        await asks(script, call, made)
    await expect("violation", asks(script, call))
    assert kept.entries[-1].entry.kind == "violation"


def test_what_was_used_is_counted_from_the_entries():
    kept = recorder(
        intent("0#1", rules=[2]), outcome("0#1", "12345"), intent("0#2"), ("outcome", {"call": "0#3"} | ASKED)
    )
    used = usage_from_history(kept.entries, "")
    assert (used["usage"]["calls"], used["made"]) == (2, {2: 1})
    assert used["usage"]["bytes"] == 2 * len('{"n": "0#1"}') + len('"12345"')


ASKED = {"kind": "memory", "tool": "memory.load", "arguments": {}, "status": "ok", "value": "long"}


@pytest.mark.parametrize(
    ("lent", "asked"),
    [(["p1"], ["a", "p1"]), (["p1"], ["a", "b", "p1"]), (["p1", "p2", "p3"], ["p1", "p2", "p3"])],
)
async def test_whatever_waits_for_programs_that_are_lent_goes_on_when_all_are_resumed(lent, asked):
    script = run_of(recorder())
    for name in lent:
        record, asked_for = {"trace_id": name, "status": "suspended"}, CallRequest("program", "program.start", {})
        lender = CallRecorder(script, f"0.{name}#1", "program", "program.start", {}, NO_REQUEST)
        script.programs._calls[name] = lender, asked_for
        script.programs.lent[name] = HeldCall(lender.call, asked_for, "program", 0.0, {}, record)
    made = []

    async def make(call):
        made.append(call.call)
        return {"value": 1}

    async with anyio.create_task_group() as tasks:
        for call in asked:
            if call in lent:
                arguments = {"execution": call, "payload": None}
                tasks.start_soon(answered, script, call, "program", NAMES[ProgramResume], arguments, make)
            else:
                tasks.start_soon(asks, script, call, make)
            await anyio.wait_all_tasks_blocked()
        assert sorted(made) == sorted(asked)
        tasks.cancel_scope.cancel()
    assert (script.programs.lent, script.hold.calls) == ({}, {})


@pytest.mark.parametrize("name", ["arguments", "announced"])
def test_a_question_about_1_is_not_the_one_about_true(name):
    question = {"call": "0#1", "tool": "bank.pay", "arguments": {"urgent": 1}, "announced": {"dry": 1}}
    other = dict.fromkeys(question[name], True)
    assert is_same(question, dict(question))
    assert not is_same(question, question | {name: other})

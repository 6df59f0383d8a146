"""Executions against their record: what agrees, every way in which one may not, and what other versions would have done."""

import json
import signal
from functools import partial
from random import Random

import anyio
import pytest
from cli_fixtures import DEADLINE_SECONDS
from cli_fixtures import tool as desk_tool
from generated_programs import ALL_CONTEXT, Host
from generated_programs import Programs as Generated
from ledger_looks import decide
from program_tools import Tools, driven, step
from recorded_programs import PROGRAM, Recording, kept, programs, ran  # noqa: F401

from mcp_bridge.cli import exit_statuses
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.programs import lifecycle
from mcp_bridge.executions.programs.replay import replayed_program, transitions_hash
from mcp_bridge.executions.programs.settle_or_cancel import cancel_program, settle_program
from mcp_bridge.executions.replay import replayed
from mcp_bridge.kernel.awaited_effects import VERSION
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry, Recorded

pytestmark = pytest.mark.usefixtures("whole_ledgers")


async def broken(_):
    return {"status": "failed", "code": "tool_error", "message": "no"}


async def pending(_):
    return {"status": "pending"}


# --- what agrees ---


@pytest.mark.parametrize("tools", [{}, {"b": broken}, {"d": pending}], ids=["success", "failed", "suspended"])
async def test_what_happened_is_what_follows(programs, tools):
    stored, entries = await ran(programs, **tools)
    result = replayed_program(stored, entries)
    assert (result.difference, result.agrees) == (None, True)
    assert result.status == stored.status
    assert result.events == sum("effects" in row.entry.payload for row in entries) - 1
    assert result.transitions == transitions_hash(entries)
    assert result.to_json()["difference"] is None


class Odd(Recording):
    """Ends effects in any way."""

    def __init__(self, recorder, rng):
        super().__init__(recorder)
        self.rng = rng
        self.host = Host(rng, deadlines=False)

    async def perform(self, run, effect, request, *, approved=False):
        await super().perform(run, effect, request)
        for _ in range(self.rng.randrange(3)):
            await anyio.lowlevel.checkpoint()
        if effect.kind == "wait" and effect.name == "retry":
            return self.host.outcome(effect)
        return self.host.outcome(effect, suspend=not approved and self.rng.random() < 0.2)


async def go_on(programs, record, effects, rng):
    """One more thing that ends something of what a suspended execution waits for."""
    execution, row = record["trace_id"], rng.choice(record["waiting"])
    match row["kind"]:
        case "in_doubt":
            word = rng.choice(
                [Settlement("happened", "anna", [1]), Settlement("failed", "anna"), Settlement("not_done", "a")]
            )
            return await settle_program(programs, execution, str(row["effect"]), word, "me", effects)
        case "approval":
            (question,) = [one for one in await programs.store.approvals(execution) if one.effect == row["effect"]]
            await decide(programs.store, question, approved=rng.random() < 0.7)
            return await programs.resume(execution, None, "me", effects)
        case "wait":
            return await cancel_program(programs, execution, "enough", "me", effects)
    return await programs.resume(execution, Resume({"paid": 1}, effect=row["effect"]), "me", effects)


@pytest.mark.parametrize("seed", range(40))
async def test_generated_programs_follow_from_their_records_wherever_they_stand(programs, seed):
    rng = Random(seed)  # noqa: S311 - for programs, not for secrets
    effects = Odd(programs.recorder, rng)
    program = Generated(rng, deadlines=False).program()
    record = await driven(programs, await programs.start(program, ALL_CONTEXT, None, "me", effects))
    for _ in range(20):
        assert replayed_program(*await kept(programs, record["trace_id"])).difference is None
        if record["status"] != "suspended":
            break
        record = await driven(programs, await go_on(programs, record, effects, rng))


# --- what doesn't ---


def changed(entries, number, **fields):
    """The entries, with other fields in the payload of one of them."""
    row = entries[number]
    entry = Entry(**{name: getattr(row.entry, name) for name in ("kind", "execution", "step", "policy", "program")},
                  payload=row.entry.payload | fields)  # fmt: skip
    return [*entries[:number], Recorded(row.sequence, row.time, entry), *entries[number + 1 :]]


def at(entries, kind, nth=0):
    return [number for number, row in enumerate(entries) if row.entry.kind == kind][nth]


LIES = {
    "another context": ("start", 0, {"context": {"n": 50}}, "intent", "b"),
    "a context that changes no effect": ("start", 0, {"context": {"n": 5, "m": 1}}, "state", None),
    "another first effect": ("start", 0, {"effects": [2]}, "effects", None),
    "another outcome": ("outcome", 0, {"value": "other"}, "state", None),
    "a failure": ("outcome", 1, {"status": "failed", "code": "x", "message": ""}, "effects", "b"),
    "an outcome of another effect": ("outcome", 1, {"effect": 9}, "event", None),
    "more effects": ("outcome", 0, {"effects": [2, 3]}, "effects", "a"),
    "fewer effects": ("outcome", 1, {"effects": [3]}, "effects", "b"),
    "an outcome that was wanted no more": ("outcome", 1, {"effects": None}, "effect 2", "b"),
    "another intent": ("intent", 1, {"effect": 1}, "intent", "b"),
    "an intent of another kind": ("intent", 1, {"kind": "llm"}, "intent", "b"),
    "another end": ("end", 0, {"status": "failed"}, "status", None),
    "another state": ("end", 0, {"state": "0" * 64}, "state", None),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_record_that_says_otherwise_is_found_with_its_place(programs, lie):
    stored, entries = await ran(programs)
    kind, nth, fields, what, path = LIES[lie]
    result = replayed_program(stored, changed(entries, at(entries, kind, nth), **fields))
    assert not result.agrees
    found = result.difference
    assert (found.what, found.step) == (what, path)
    assert found.expected != found.found
    assert found.sequence >= entries[at(entries, kind, nth)].sequence
    if what in {"effects", "event"}:
        assert found.sequence == entries[at(entries, kind, nth)].sequence


@pytest.mark.parametrize("number", range(1, 10))
async def test_an_entry_that_is_missing_or_there_twice_is_found(programs, number):
    stored, entries = await ran(programs)
    if entries[number].entry.kind == "outcome":
        for other in ([*entries[:number], *entries[number + 1 :]], [*entries[: number + 1], *entries[number:]]):
            assert replayed_program(stored, other).difference.sequence >= entries[number].sequence


@pytest.mark.parametrize(
    ("name", "value"), [("output", "other"), ("steps", []), ("steps", None)], ids=["output", "no steps", "another step"]
)
async def test_a_record_that_is_kept_and_says_otherwise_is_found(programs, name, value):
    stored, entries = await ran(programs)
    if value is None:
        value = [dict(row) for row in stored.record["steps"]]
        value[0]["output"] = "other"
    stored.record[name] = value
    found = replayed_program(stored, entries).difference
    assert (found.sequence, found.what) == (
        entries[-1].sequence,
        name if value != stored.record["steps"] or not value else "step",
    )


async def test_another_program_than_the_one_that_was_started_is_found(programs):
    stored, entries = await ran(programs)
    stored.bundle["program"]["steps"][0]["tool"] = "z"
    found = replayed_program(stored, entries).difference
    assert (found.sequence, found.what, found.expected) == (entries[0].sequence, "program", stored.program)


# --- what can't be replayed ---


async def test_what_has_no_context_in_its_record_can_t_be_replayed(programs):
    stored, entries = await ran(programs)
    early = changed(entries, 0)
    del early[0].entry.payload["context"]
    erased = [
        Recorded(r.sequence, r.time, Entry(r.entry.kind, r.entry.execution, {"erased": TOMBSTONE})) for r in entries
    ]
    for record, why in ((early, "earlier version"), (erased, "erased"), ([], "earlier version")):
        with pytest.raises(BridgeError, match=why) as caught:
            replayed_program(stored, record)
        assert caught.value.code == "not_replayable"


async def test_what_is_under_way_is_not_replayed(programs):
    run = await programs.start(PROGRAM, {"n": 5}, None, "me", Tools())
    stored = await programs.lifecycle.stored(run.execution, "me")
    with pytest.raises(BridgeError, match="under way"):
        await replayed(programs.store, programs.recorder, stored)
    await programs.keep(run)
    stored = await programs.lifecycle.stored(run.execution, "me")
    assert (await replayed(programs.store, programs.recorder, stored)).agrees


# --- other versions ---


def version(change=None, **fields):
    data = json.loads(json.dumps(PROGRAM)) | fields
    if change:
        change(data["steps"])
    return parse(data)


def renamed(steps):
    """The same in other words."""
    steps[1]["condition"] = "not $n >= 10"
    steps[2] |= {"id": "beta"}
    steps[1]["then"] = "beta"


SAME = {
    "itself": version(),
    "another name": version(name="q", description="better"),
    "a step by another name": version(renamed),
    "another branch that isn't taken": version(lambda steps: steps[3].update(tool="z")),
    "a limit that isn't reached": version(max_steps=100),
}

OTHER = {
    "another tool": (version(lambda steps: steps[0].update(tool="z")), "effect", "a"),
    "other arguments": (version(lambda steps: steps[2]["args"].update(more=1)), "effect", "b"),
    "another branch": (version(lambda steps: steps[1].update(condition="$n < 3")), "effect", "b"),
    "one step less": (version(lambda steps: steps[2].pop("next_step")), "effect", "d"),
    "one step more": (version(lambda steps: steps.append(step("z"))), "effect", "z"),
    "a time limit": (version(lambda steps: steps[4].update(timeout_seconds=9)), "effect", "d"),
    "in turn": (version(lambda steps: steps[4].update(max_concurrency=1)), "effect", "e"),
    "another output": (version(lambda steps: steps[4]["parallel_steps"].reverse()), "effect", "d"),
    "another end": (version(max_steps=3), "effect", "d"),
}


@pytest.mark.parametrize("other", SAME)
async def test_another_version_that_does_the_same(programs, other):
    assert replayed_program(*await ran(programs), SAME[other]).difference is None


@pytest.mark.parametrize("name", OTHER)
async def test_another_version_that_does_something_else_is_told_from_where_on(programs, name):
    other, what, path = OTHER[name]
    stored, entries = await ran(programs)
    assert replayed_program(stored, entries).agrees
    found = replayed_program(stored, entries, other).difference
    assert (found.what, found.step) == (what, path)
    assert found.expected != found.found
    assert found.sequence < entries[-1].sequence


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (version(lambda steps: steps[4]["parallel_steps"][0].update(on_error="skip")), "status"),
        (version(lambda steps: steps[4].update(on_error="skip")), "status"),
        (version(lambda steps: steps[4]["parallel_steps"][0].update(retry={"schedule": [1]})), "effect"),
        (version(lambda steps: steps[0].pop("compensate")), "effect"),
    ],
    ids=["skips the step", "skips the group", "tries again", "undoes nothing"],
)
async def test_another_version_may_end_otherwise_after_a_failure(programs, program, what):
    stored, entries = await ran(programs, d=broken)
    found = replayed_program(stored, entries, program).difference
    assert found.what in {what, "effect"}
    assert replayed_program(stored, entries, version()).agrees


async def test_effects_of_another_version_may_have_other_numbers(programs):
    program = {"steps": [step("a"), {"id": "w", "type": "wait", "event": "e"}, step("b", args={"x": "$w"})]}
    effects = Recording(programs.recorder)
    record = await driven(programs, await programs.start(program, {}, None, "me", effects))
    record = await driven(programs, await programs.resume(record["trace_id"], Resume(1, effect=2), "me", effects))
    nested = {"steps": [{"id": "in", "type": "program", "program": {"steps": program["steps"]}}]}
    assert replayed_program(*await kept(programs, record["trace_id"]), parse(nested)).difference is None


# --- the command ---

A = ("--context", '{"name": "a"}')


def test_the_command_says_whether_it_agrees(desk):
    program = desk.write("p.json", {"name": "p", "steps": [desk_tool("look"), desk_tool("delete")]})
    ident = desk.run("program", "run", program, *A, "--json").json["trace_id"]
    told = desk.run("replay", ident[:8]).out
    assert told.startswith(f"{ident}: it agrees with its record: 2 events, 2 effects, success\n")
    facts = desk.run("replay", ident, "--json").json
    assert (facts["agrees"], facts["difference"], len(facts["transitions"])) == (True, None, 64)
    other = {"name": "p", "steps": [desk_tool("look"), desk_tool("undelete")]}
    ended = desk.run("replay", ident, "--program", desk.write("q.json", other), code=exit_statuses.FAILED)
    for word in ("would not have done the same", "step delete: effect", "expected:", "found:", "undelete"):
        assert word in ended.out
    facts = desk.run("replay", ident, "--program", "q.json", "--json", code=exit_statuses.FAILED).json
    assert (facts["difference"]["expected"]["name"], facts["difference"]["found"]["name"]) == ("delete", "undelete")
    assert "would have done the same" in desk.run("replay", ident, "--program", program).out


def test_the_command_replays_what_is_suspended_or_interrupted_with_no_effect(desk):
    ident = desk.suspended()
    assert "suspended" in desk.run("replay", ident).out
    desk.write("programs/doomed.json", {"name": "doomed", "steps": [desk_tool("look"), desk_tool("crash")]})
    process = desk.process("program", "run", "doomed", *A)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == -signal.SIGKILL
    (row,) = desk.run("execution", "list", "--status", "interrupted", "--json").json["executions"]
    assert "it agrees with its record: 1 events" in desk.run("replay", row["id"]).out


def test_the_command_refuses_what_it_can_t_replay(desk):
    desk.says("replay", "nothing", code=exit_statuses.USAGE, words=["unknown_trace"])
    ident = desk.suspended()
    desk.says("replay", ident, "--program", "nowhere.yaml", code=exit_statuses.USAGE, words=["bad_program"])


# --- of an older build ---


@pytest.mark.parametrize(("machine", "given"), [(1, 0), (VERSION, "$a")])
async def test_what_an_older_build_began_goes_on_and_is_replayed_by_its_rules(programs, monkeypatch, machine, given):
    answers = [{"value": 0}, {"status": "failed", "code": "tool_error", "message": "no"}]

    async def turns(_):
        return answers.pop(0)

    loop = {"steps": [step("a", on_error="skip"), step("b", args={"x": "$a"}, next_step="a")], "max_steps": 4}
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "Machine", partial(Machine, version=machine))
        run = await programs.start(loop, {}, None, "me", Tools(a=turns))
    for number in (1, 2):
        await run.effect(number)
    # Its process is gone: what is kept is its first state, and what has happened since.
    await programs.lifecycle.interrupt(run.execution)
    taken = await programs.resume(run.execution, None, "me", Tools(a=turns))
    await taken.effect(3)
    (waits,) = [effect for effect, _ in taken.machine.awaited()]
    assert (waits.step, waits.arguments) == ("b", {"x": given})
    record = await driven(programs, taken)
    assert record["code"] == "budget_exceeded"
    stored, entries = await kept(programs, run.execution)
    assert entries[0].entry.payload.get("machine", 1) == machine
    assert replayed_program(stored, entries).agrees
    with pytest.raises(BridgeError, match="of a later version"):
        replayed_program(stored, changed(entries, 0, machine=VERSION + 1))
    for none in (0, -1, None, "1", True, 1.0, [1]):
        with pytest.raises(BridgeError, match="it names an unknown version of the rules") as caught:
            replayed_program(stored, changed(entries, 0, machine=none))
        assert caught.value.code == "not_replayable"
    other = replayed_program(stored, changed(entries, 0, machine=3 - machine))
    assert not other.agrees

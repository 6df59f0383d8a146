"""What a script has looked up: what is recorded of it, and what it is told when it is run again."""

from types import SimpleNamespace

import pytest
from memory_recorder import MemoryRecorder

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.reruns import lookups
from mcp_bridge.executions.scripts.call_history import CallHistory, CallRequest
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import LOOKUP, RequestOutcome, Resumption, Success, to_entry
from mcp_bridge.views.timeline import timeline, totals


class Kept:
    """As the gate and the execution's values: there is nothing sensitive but what is told."""

    def __init__(self, references=None):
        self.values = self
        self.allowance = None
        self._references = references or {}

    def keep(self, execution, value):
        pass

    async def project(self, value):
        return {name: self._references.get(str(text), text) for name, text in value.items()}

    def values_behind(self, value):
        return {uri.rpartition("/")[2]: text for text, uri in self._references.items()} | self._earlier

    _earlier = {}  # noqa: RUF012


def run_of(recorder, *, live=True, gate=None):
    history = CallHistory(recorder.entries)
    return ScriptRun("x", None, recorder, gate or Kept(), "", history, key="key", live=live)


class ScriptEnvironment:
    """What is looked at, which changes each time."""

    def __init__(self, *answers):
        self.answers, self.looked = list(answers), 0

    async def __call__(self):
        self.looked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def ask(run, environment, method="catalog.search", **arguments):
    return await run.lookups.answer(method, arguments, environment)


async def test_each_is_answered_again_by_what_it_asks_for_and_how_often_that_was_asked():
    kept = MemoryRecorder()
    run, environment = run_of(kept), ScriptEnvironment(*range(5))
    for query in ("a", "b", "a", "a"):
        await ask(run, environment, query=query)
    await ask(run, environment, "catalog.describe", name="a")
    again, never = run_of(kept, live=False), ScriptEnvironment("now")
    # In another order, as of threads.
    asked = [await ask(again, never, query=query) for query in ("b", "a", "a", "a")]
    assert asked == [1, 0, 2, 3]
    assert await ask(again, never, "catalog.describe", name="a") == 4
    assert never.looked == 0
    # A fourth was never asked for.
    assert await ask(again, never, query="a") == "now"


async def test_an_error_is_the_same_error_again():
    kept = MemoryRecorder()
    failure = BridgeError("unknown_tool", "no such tool", hint="Look.", nearest=["a"])
    with pytest.raises(BridgeError):
        await ask(run_of(kept), ScriptEnvironment(failure), name="b")
    with pytest.raises(BridgeError) as caught:
        await ask(run_of(kept, live=False), ScriptEnvironment("found"), name="b")
    error = caught.value
    assert (error.code, error.message, error.hint, error.details) == (
        "unknown_tool", "no such tool", "Look.", {"nearest": ["a"]}
    )  # fmt: skip


async def test_a_run_that_goes_on_records_only_what_is_new():
    kept = MemoryRecorder()
    await ask(run_of(kept), ScriptEnvironment("then"), query="a")
    on = run_of(kept)
    assert await ask(on, ScriptEnvironment("now"), query="a") == "then"
    assert len(kept.entries) == 1
    assert await ask(on, ScriptEnvironment("now"), query="a") == "now"
    assert len(kept.entries) == 2
    assert [await ask(run, ScriptEnvironment(), query="a") for run in [run_of(kept)] * 2] == ["then", "now"]


async def test_lookups_missing_from_an_older_record_fall_back_to_current_values():
    kept = MemoryRecorder()
    run, environment = run_of(kept), ScriptEnvironment(*range(3))
    for _ in range(3):
        await ask(run, environment, query="a")
    del kept.entries[1]
    again, now = run_of(kept, live=False), ScriptEnvironment("now")
    assert [await ask(again, now, query="a") for _ in range(3)] == [0, "now", 2]
    old = run_of(MemoryRecorder(), live=False)
    assert await ask(old, ScriptEnvironment("now"), query="a") == "now"


async def test_a_replay_records_nothing():
    kept = MemoryRecorder()
    await ask(run_of(kept, live=False), ScriptEnvironment("now"), query="a")
    assert kept.entries == []


async def test_what_is_recorded_is_bounded_over_all_runs(monkeypatch):
    monkeypatch.setattr(lookups, "MAX_KEPT_BYTES", 10_000)
    kept = MemoryRecorder()
    run = run_of(kept)
    await ask(run, ScriptEnvironment("x" * 6000), query="a")
    await ask(run, ScriptEnvironment("y" * 6000), query="b")
    await ask(run, ScriptEnvironment("z"), query="c")
    assert len(kept.entries) == 2, "the small one still has room"
    on = run_of(kept)
    await ask(on, ScriptEnvironment("y" * 6000), query="b")
    assert len(kept.entries) == 2
    never = ScriptEnvironment("now")
    assert [await ask(run_of(kept), never, query="c"), never.looked] == ["z", 0]


async def test_where_the_record_is_full_it_is_told_and_not_recorded():
    kept, gate = MemoryRecorder(), Kept()
    gate.allowance = SimpleNamespace(has_room=lambda size: False)
    assert await ask(run_of(kept, gate=gate), ScriptEnvironment("found"), query="a") == "found"
    assert kept.entries == []


async def test_only_a_failure_is_recorded_of_what_is_done_again():
    kept = MemoryRecorder()
    run, environment = run_of(kept), ScriptEnvironment({}, BridgeError("files_full", "full"), {})

    async def write(run, environment):
        try:
            return await run.lookups.answer("artifact.write", {"name": "a"}, environment, failures_only=True)
        except BridgeError as exc:
            return exc.code

    assert [await write(run, environment) for _ in range(3)] == [{}, "files_full", {}]
    assert len(kept.entries) == 1
    again, environment = run_of(kept, live=False), ScriptEnvironment({}, {})
    assert [await write(again, environment) for _ in range(3)] == [{}, "files_full", {}]
    assert environment.looked == 2


async def test_a_sensitive_value_in_a_question_is_known_by_its_value():
    one, other = (f"vault://ref/{letter * 16}" for letter in "ab")
    kept = MemoryRecorder()
    await ask(run_of(kept, gate=Kept({"anna": one})), ScriptEnvironment("of anna"), query="anna")
    assert "anna" not in str(kept.entries[0].entry.payload["arguments"])
    again = Kept({"anna": other})
    again._earlier = {"a" * 16: "anna"}
    assert await ask(run_of(kept, live=False, gate=again), ScriptEnvironment("now"), query="anna") == "of anna"
    another = Kept({"bert": other})
    another._earlier = {"a" * 16: "anna"}
    assert await ask(run_of(kept, live=False, gate=another), ScriptEnvironment("now"), query="bert") == "now"


async def test_what_a_dry_run_has_looked_up_is_looked_up_anew():
    kept = MemoryRecorder()
    kept.post(Entry("start", "x", {"code": "1", "code_sha256": "", "servers": None, "timeout": None, "dry_run": True}))
    await ask(run_of(kept), ScriptEnvironment("then"), query="a")
    assert len(CallHistory(kept.entries).lookups) == 1
    kept.post(to_entry(Resumption(recovered=True), "x"))
    assert CallHistory(kept.entries).lookups == []


async def test_a_lookup_is_no_call():
    kept = MemoryRecorder()
    await ask(run_of(kept), ScriptEnvironment("then"), query="a")
    history = CallHistory(kept.entries)
    assert (history.calls, history.answers) == ({}, 0)


async def test_people_see_a_lookup_as_a_request_of_the_bridge_with_its_answer():
    kept = MemoryRecorder()
    await ask(run_of(kept), ScriptEnvironment({"matches": []}), query="a")
    (row,) = timeline(kept.entries)
    assert (row.kind, row.what, row.given, row.value) == ("request", "catalog.search", {"query": "a"}, {"matches": []})
    assert totals([row]).calls == 0


def check(run, environment, arguments):
    return ask(run, environment, "catalog.check", server="shop", tool="pay", arguments=arguments)


async def test_checked_calls_are_recorded_by_argument_digest_and_told_apart():
    kept, environment = MemoryRecorder(), ScriptEnvironment({"faults": ["a"]}, {"faults": ["b"]}, {"faults": ["c"]})
    large = {"text": "x" * (1 << 20)}
    run = run_of(kept)
    assert [await check(run, environment, one) for one in ({"n": 1}, large)] == [{"faults": ["a"]}, {"faults": ["b"]}]
    for row in kept.entries:
        assert sorted(row.entry.payload["arguments"]) == ["digest", "server", "tool"]
        assert len(str(row.entry.payload)) < 1000
    again = run_of(kept)
    assert [await check(again, environment, one) for one in (large, {"n": 2}, {"n": 1})] == [
        {"faults": ["b"]},
        {"faults": ["c"]},
        {"faults": ["a"]},
    ]


async def test_a_check_whose_arguments_an_earlier_build_has_recorded_is_answered_again():
    kept, environment = MemoryRecorder(), ScriptEnvironment()
    asked = CallRequest(LOOKUP, "catalog.check", {"server": "shop", "tool": "pay", "arguments": {"n": 1}})
    kept.post(to_entry(RequestOutcome(asked, "lookup 1", Success({"faults": ["a"]})), "x"))
    assert await check(run_of(kept), environment, {"n": 1}) == {"faults": ["a"]}


async def test_what_is_asked_counts_too(monkeypatch):
    monkeypatch.setattr(lookups, "MAX_KEPT_BYTES", 3000)
    kept, environment = MemoryRecorder(), ScriptEnvironment("found", "found")
    run = run_of(kept)
    for text in ("x" * 2000, "y" * 2000):
        await ask(run, environment, query=text)
    assert len(kept.entries) == 1
    await ask(run_of(kept), ScriptEnvironment("found"), query="z" * 2000)
    assert len(kept.entries) == 1

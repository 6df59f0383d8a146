"""What entries say: each payload has one type, which writes and reads its JSON."""

import ast
import inspect
import json
import re
import zipfile
from dataclasses import is_dataclass, replace
from pathlib import Path

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.events import Cancel, Outcome, Redo, Resume, Usage
from mcp_bridge.ledger.log import payloads
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry, Recorded
from mcp_bridge.ledger.log.entry_encoding import KINDS
from mcp_bridge.ledger.log.log_payloads import AcceptedClock, AcceptedLoss, Erasure, KeyEvent
from mcp_bridge.ledger.log.payload_base import Payload
from mcp_bridge.ledger.log.payloads import (
    CallDecision,
    CallOutcome,
    CallRef,
    CallSettlement,
    Damaged,
    Denial,
    EffectOutcome,
    EffectSettlement,
    Erased,
    EventDelivery,
    Failure,
    ModelIntent,
    NoAnswer,
    ProgramEnd,
    ProgramStart,
    ProgramSuspension,
    Question,
    QueuedDecision,
    Request,
    RequestIntent,
    RequestOutcome,
    Resumption,
    RunError,
    ScriptEnd,
    ScriptStart,
    ScriptSuspension,
    StepDecision,
    Success,
    ToolIntent,
    Transition,
    Unknown,
    Violation,
    decode,
    decoded,
    to_entry,
    understood,
)

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests/golden/ledger-0.1.0.zip"

CALL = '"call":"0#1","asked":"pay","raw":true'
ASKED = '"tool":"shop.pay","arguments":{"n":1},"filled":[],"announced":{},"why":"Rule 1 asks."'
STEP = '"message":"Go?","details":{"n":1},"program":"p","step":"ask"'
SETTLED = '"tool":"shop.pay","arguments":{"n":1},"settled":'
QUESTION = Question({"tool": "shop.pay", "arguments": {"n": 1}, "filled": [], "announced": {}, "why": "Rule 1 asks."})
STEP_QUESTION = Question({"message": "Go?", "details": {"n": 1}, "program": "p", "step": "ask"})
REF = CallRef("0#1", "pay", raw=True)
USAGE = '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"cost_usd":0.5}'

# As they are on disks: the first column is what has been hashed, and never changes.
WRITTEN = [
    # of version 0.1.0
    ('{"code":"1","hash":"h","servers":null,"timeout":30.0}', ScriptStart("1", "h", timeout=30.0)),
    (
        '{"code":"1","hash":"h","servers":null,"timeout":null,'
        '"packages":[{"file":"a-1-py3-none-any.whl","name":"a","sha256":"0","version":"1"}]}',
        ScriptStart(
            "1", "h", packages=[{"file": "a-1-py3-none-any.whl", "name": "a", "sha256": "0", "version": "1"}]
        ),
    ),
    (
        '{"program":"p","origin":"agent","context":{"n":1},"effects":[1,2]}',
        ProgramStart("p", "agent", {"n": 1}, [1, 2]),
    ),
    ('{"tool":"shop.pay","arguments":{"n":1},"why":"?","approved":true}',
     CallDecision(Question({"tool": "shop.pay", "arguments": {"n": 1}, "why": "?"}), approved=True, by=None)),
    (
        '{"what":"reference","by":"me","reason":"asked to","at":1.5,"reference":"r","holders":["a","b"],"executions":[]}',
        Erasure("reference", "me", "asked to", 1.5, [], reference="r", holders=["a", "b"]),
    ),
    # of this one
    (
        '{"code":"1","hash":"h","servers":["shop"],"timeout":null,"starter":"agent","key":"k"}',
        ScriptStart("1", "h", ["shop"], None, "agent", "k"),
    ),
    (
        '{"program":"p","origin":"operator","context":{},"effects":[],"starter":"operator","servers":null,"denied":[{"a":1}]}',
        ProgramStart("p", "operator", {}, [], "operator", None, [{"a": 1}]),
    ),
    (
        '{"program":"p","origin":"operator","context":{},"effects":[],"starter":"operator","servers":null,"machine":2}',
        ProgramStart("p", "operator", {}, [], "operator", machine=2),
    ),
    (
        '{"kind":"tool","tool":"shop.pay","arguments":{"n":1},' + CALL + ',"sent":{"n":1,"m":2},"rules":[1,2]}',
        ToolIntent("shop.pay", {"n": 1}, REF, {"n": 1, "m": 2}, None, [1, 2]),
    ),
    (
        '{"kind":"tool","tool":"shop.pay","arguments":{"n":1},"effect":3,"rules":[1]}',
        ToolIntent("shop.pay", {"n": 1}, effect=3, rules=[1]),
    ),
    ('{"kind":"llm","effect":3,"arguments":{"prompt":"?"}}', ModelIntent(3, {"prompt": "?"})),
    (
        '{"kind":"program","tool":"program.start","arguments":{"program":"p"},"call":"0#1"}',
        RequestIntent(Request("program", "program.start", {"program": "p"}), "0#1"),
    ),
    ('{"effect":3,"status":"ok","value":{"n":1},"effects":[4]}', EffectOutcome(Outcome(3, "ok", {"n": 1}), [4])),
    (
        '{"effect":3,"status":"failed","code":"c","message":"m",' + USAGE + ',"effects":null}',
        EffectOutcome(Outcome(3, "failed", None, "c", "m", Usage(1, 2, 3, 0.5)), None),
    ),
    (
        '{"effect":3,"status":"pending","code":"in_doubt","message":"","effects":[]}',
        EffectOutcome(Outcome(3, "pending", code="in_doubt"), []),
    ),
    ('{"kind":"tool","tool":"shop.pay",' + CALL + ',"status":"ok","value":{"content":[]}}',
     CallOutcome("shop.pay", REF, Success({"content": []}))),
    ('{"kind":"tool","tool":"shop.pay","status":"ok","value":"PENDING","pending":true}',
     CallOutcome("shop.pay", None, Success("PENDING", pending=True))),
    ('{"kind":"tool","tool":"shop.pay","call":"0#1","status":"failed","code":"c","message":"m","hint":"h","details":{"a":1}}',
     CallOutcome("shop.pay", CallRef("0#1"), Failure("c", "m", "h", {"a": 1}))),
    ('{"kind":"tool","tool":"shop.pay","call":"0#1","status":"interrupted"}',
     CallOutcome("shop.pay", CallRef("0#1"), NoAnswer(payloads.CANCELLED_BY_SCRIPT))),
    ('{"kind":"tool","tool":"shop.pay","call":"0#1","status":"ok","value":1,"source":"OPERATOR"}',
     CallOutcome("shop.pay", CallRef("0#1"), Success(1), "OPERATOR")),
    ('{"kind":"tool","tool":"shop.pay","arguments":{"n":1},"raw":true,"call":"0#1","status":"failed","code":"c","message":"m"}',
     RequestOutcome(Request("tool", "shop.pay", {"n": 1}, raw=True), "0#1", Failure("c", "m"))),
    ('{"kind":"tool","tool":"shop.pay","arguments_sha256":"d","call":"0#1","status":"failed","code":"c","message":"m"}',
     RequestOutcome(Request("tool", "shop.pay", None, digest="d"), "0#1", Failure("c", "m"))),
    ('{"kind":"memory","tool":"memory.get","arguments":{"key":"k"},"call":"0#1","status":"ok","value":null}',
     RequestOutcome(Request("memory", "memory.get", {"key": "k"}), "0#1", Success(None))),
    ('{"kind":"program","tool":"program.start","call":"0#1","status":"ok","value":{"record":{}}}',
     RequestOutcome(Request("program", "program.start", None), "0#1", Success({"record": {}}), has_intent=True)),
    ('{"tool":"shop.pay","by":"rule 1",' + CALL + "}", Denial("shop.pay", "rule 1", REF)),
    ('{"tool":"shop.pay","by":"rule 1"}', Denial("shop.pay", "rule 1")),
    ('{"event":"resume","payload":{"n":1},"source":"WEBHOOK","effect":null,"effects":[1]}',
     Transition(Resume({"n": 1}), [1])),
    ('{"event":"cancel","reason":"enough","effects":[]}', Transition(Cancel("enough"), [])),
    ('{"event":"redo","effect":3,"effects":[3]}', Transition(Redo(3), [3])),
    ('{"status":"suspended","state":"d"}', ProgramSuspension("suspended", "d")),
    ('{"status":"interrupted"}', ScriptSuspension("interrupted")),
    ('{"status":"suspended","error":"It waits.","code":"approval_needed","hint":"h",'
     '"held":[{"kind":"tool","tool":"shop.pay","arguments_sha256":"d","raw":true,"call":"0#1"}]}',
     ScriptSuspension("suspended", RunError("It waits.", {"code": "approval_needed", "hint": "h"}),
                      {"0#1": Request("tool", "shop.pay", None, raw=True, digest="d")})),
    ('{"status":"suspended","error":null,"code":null}', ScriptSuspension("suspended", RunError())),
    ('{"recovered":true}', Resumption(recovered=True)),
    ("{" + ASKED + "," + CALL + ',"approved":true,"by":"client"}', CallDecision(QUESTION, approved=True, by="client", call=REF)),
    ("{" + STEP + ',"approved":false,"by":"client"}', StepDecision(STEP_QUESTION, approved=False, by="client")),
    ("{" + STEP + ',"approved":true,"by":"anna","comment":null}', QueuedDecision(STEP_QUESTION, approved=True, by="anna")),
    ("{" + ASKED + ',"call":"0#1","program":"run_python","step":"0#1","approved":true,"by":"anna","comment":"ok"}',
     QueuedDecision(Question({**QUESTION.fields, "call": "0#1", "program": "run_python", "step": "0#1"}),
                    approved=True, by="anna", comment="ok")),
    ('{"effect":3,"step":"pay",' + SETTLED + '"happened","by":"anna","comment":null,"value":{"n":2}}',
     EffectSettlement(3, "pay", "shop.pay", {"n": 1}, "happened", "anna", None, {"n": 2})),
    ('{"effect":3,"step":"pay",' + SETTLED + '"not_done","by":"anna","comment":"c"}',
     EffectSettlement(3, "pay", "shop.pay", {"n": 1}, "not_done", "anna", "c")),
    ('{"effect":"0#1","step":"0#1",' + SETTLED + '"failed","by":"anna","comment":null,"message":"m","call":"0#1"}',
     CallSettlement("0#1", "shop.pay", {"n": 1}, "failed", "anna", None, None, "m")),
    ('{"event":"paid","payload":{"amount":40},"source":"WEBHOOK"}', EventDelivery("paid", {"amount": 40}, "WEBHOOK")),
    ('{"message":"effect 9 was asked for"}', Violation("effect 9 was asked for")),
    ('{"status":"success","error":null,"state":"d"}', ProgramEnd("success", None, "d")),
    ('{"status":"failed","error":"e","state":"d","unresolved":[{"effect":3}]}',
     ProgramEnd("failed", "e", "d", [{"effect": 3}])),
    ('{"status":"error","exit_code":1,"error":"e","type":"ValueError","code":"exception","line":3,"stdout":"a","stderr":"b","value":"c"}',
     ScriptEnd("error", 1, RunError("e", {"type": "ValueError", "code": "exception", "line": 3}),
               {"stdout": "a", "stderr": "b", "value": "c"})),
    ('{"status":"success","exit_code":0,"error":null,"code":null,"stdout":"a","stderr":"b"}',
     ScriptEnd("success", 0, RunError(), {"stdout": "a", "stderr": "b"})),
    ('{"status":"success","exit_code":0,"error":null,"code":null,"stdout":"a","artifacts":[{"name":"r.txt","size":1,"sha256":"d"}]}',
     ScriptEnd("success", 0, RunError(), {"stdout": "a"},
               artifacts=({"name": "r.txt", "size": 1, "sha256": "d"},))),
    ('{"status":"refused"}', ScriptEnd("refused")),
    ('{"status":"cancelled","error":"e","code":"cancelled"}',
     ScriptEnd("cancelled", error=RunError("e", {"code": "cancelled"}))),
    ('{"what":"age","by":"me","reason":null,"at":1.5,"executions":["a"]}', Erasure("age", "me", None, 1.5, ["a"])),
    ('{"what":"reference","by":"mcp-bridge","reason":null,"at":1.5,"references":["t"],"withheld":[3],"executions":[]}',
     Erasure("reference", "mcp-bridge", None, 1.5, [], ["t"], [3])),
    ('{"event":"made","vkey":"v"}', KeyEvent("made", "v")),
    ('{"event":"rotated","from":"u","vkey":"v"}', KeyEvent("rotated", "v", "u")),
    ('{"was":2.5,"behind":1.5,"by":"me"}', AcceptedClock(2.5, 1.5, "me")),
    ('{"has":3,"by":"me"}', AcceptedLoss(3, "me")),
    ('{"has":3,"by":"me","had":5,"root":"r","log":"l"}', AcceptedLoss(3, "me", 5, "r", "l")),
    ('{"has":3,"by":"me","restored":true,"made":1.5}', AcceptedLoss(3, "me", restored=True, made=1.5)),
]  # fmt: skip


def written(value):
    return json.dumps(value, separators=(",", ":"))


def types():
    """Every type of a payload."""
    return {one for _, one in inspect.getmembers(payloads, inspect.isclass) if issubclass(one, Payload)} - {Payload}


@pytest.mark.parametrize(("text", "said"), WRITTEN)
def test_a_payload_is_written_in_the_bytes_in_which_it_always_was_and_is_read_from_them(text, said):
    assert written(said.encode()) == text
    assert decode(said.KIND, json.loads(text)) == said
    assert decoded(to_entry(said, "x")) == said


def test_every_kind_has_its_types_and_every_type_is_tried_here():
    assert {type(said) for _, said in WRITTEN} == types()
    assert {one.KIND for one in types()} == KINDS
    assert all(is_dataclass(one) and one.__dataclass_params__.frozen for one in types())


def test_every_kind_that_is_documented_has_its_types():
    (row,) = re.findall(r"^\| `kind` \| (.*) \|$", (ROOT / "docs/ledger-format.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {one.KIND for one in types()}
    for name in re.findall(
        r"`(\w+)`", re.split(r"^\|---\|---\|$", payloads.__doc__, flags=re.MULTILINE)[1].split("\n\n")[0]
    ):
        assert name in KINDS or issubclass(getattr(payloads, name), Payload)
    told = set(re.findall(r"`([A-Z]\w+)`", payloads.__doc__.split("\n\n")[1]))
    assert told == {one.__name__ for one in types()}


def test_what_version_0_1_0_has_recorded_is_read():
    """Its fixtures wrote parts of payloads, by hand: what they left out, and their order, is no version's."""
    with zipfile.ZipFile(GOLDEN) as archive:
        lines = [json.loads(line) for line in archive.read("export.jsonl").splitlines()]
    known = 0
    for line in lines:
        if not line.get("payload"):
            continue
        kind, payload = json.loads(line["entry"])["kind"], json.loads(line["payload"])
        said = decode(kind, payload)
        if kind == "outcome" and "effect" in payload:
            assert said.encode() == payload | {"effects": None}
        elif kind == "intent":
            assert said.encode() == payload
        else:
            assert written(said.encode()) == line["payload"]
        known += not isinstance(said, Unknown)
    assert known == 24


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    "payload", [None, [], [1], "text", 5, {}, {"a": 1}, {"status": []}, {"event": "later"}, {"executions": 5}]
)
def test_reading_never_fails(kind, payload):
    said = decode(kind, payload)
    assert isinstance(said, Unknown | Payload)
    if isinstance(said, Unknown):
        assert (said.kind, said.encode()) == (kind, payload)


def test_of_a_later_version_what_is_known_is_read():
    assert decode("later", {"a": 1}) == Unknown("later", {"a": 1})
    assert decode("resume", {"recovered": True, "why": "later"}) == Resumption(recovered=True)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_erased_or_damaged_says_so_whatever_its_kind(kind):
    assert decode(kind, {"erased": TOMBSTONE}) == Erased()
    assert decode(kind, Damaged("it was changed").encode()) == Damaged("it was changed")


@pytest.mark.parametrize("payload", [{}, {"erased": TOMBSTONE}, {"damaged": "it was changed"}])
def test_who_decides_by_an_entry_does_not_pass_over_one_that_says_nothing(payload):
    row = Recorded(7, 0.0, Entry("intent", "x", payload))
    with pytest.raises(BridgeError, match="entry 7") as caught:
        understood(row)
    assert caught.value.code == "ledger_damaged"
    assert understood(Recorded(7, 0.0, to_entry(Violation("v"), "x"))) == Violation("v")


def test_values_are_put_in_for_references_where_a_person_looks_and_nowhere_else():
    def fill(value):
        return json.loads(json.dumps(value).replace("REF", "value"))

    intent = ToolIntent("REF", {"n": "REF"}, REF, {"n": "REF", "m": "REF"})
    assert intent.filled(fill) == replace(intent, arguments={"n": "value", "m": "value"}, sent=None)
    decision = QueuedDecision(Question({"message": "REF", "step": "REF", "details": ["REF"]}), approved=True, by="REF")
    assert decision.filled(fill).encode() == decision.encode() | {"message": "value", "details": ["value"]}
    settled = CallSettlement("REF", "REF", "REF", "failed", "REF", "REF", "REF", "REF")
    assert settled.filled(fill) == replace(settled, arguments="value", message="value")


# --- nobody else knows the names


def is_payload(node, names):
    """Whether an expression is `….entry.payload`, or a variable for it."""
    if isinstance(node, ast.Attribute) and node.attr == "payload":
        return isinstance(node.value, ast.Attribute) and node.value.attr == "entry"
    return isinstance(node, ast.Name) and node.id in names


def variables(tree):
    """The names of variables that hold a payload: `kind, payload = row.entry.kind, row.entry.payload`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            value = node.value
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                for name, given in zip(target.elts, value.elts, strict=True) if both else [(target, value)]:
                    if isinstance(name, ast.Name) and is_payload(given, ()):
                        yield name.id


def knows_a_name(node, names):
    """Whether an expression takes a payload apart by a name, or puts one together."""
    match node:
        case ast.Subscript(value, ast.Constant()):
            return is_payload(value, names)
        case ast.Compare(ast.Constant(), comparators=[value]):
            return is_payload(value, names)
        case ast.Call(ast.Attribute(value, "get" | "pop"), [ast.Constant(), *_]):
            return is_payload(value, names)
        case ast.Call(ast.Name("Entry"), [ast.Name() | ast.Constant(), _, _, *_]):
            return True
    return False


def names_known(path):
    """The lines of a module that know a name in a payload."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    scopes = [(tree, set()), *((scope, set(variables(scope))) for scope in functions)]
    return sorted({node.lineno for scope, names in scopes for node in ast.walk(scope) if knows_a_name(node, names)})


PUT_TOGETHER = {
    "ledger/audit/execution_queries.py",
    "ledger/log/log_payloads.py",
    "ledger/log/payloads.py",
    "ledger/log/recorder.py",
}
"""These define the types, or make an entry of what they have read, or of a payload that a type has written."""


def test_no_other_module_knows_the_names_in_a_payload():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "mcp_bridge").rglob("*.py"))
        if str(path.relative_to(ROOT / "mcp_bridge")) not in PUT_TOGETHER
        for line in names_known(path)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        'row.entry.payload["tool"]',
        'row.entry.payload.get("tool")',
        '"tool" in row.entry.payload',
        'def f():\n    kind, payload = row.entry.kind, row.entry.payload\n    return payload["tool"]',
        'Entry("violation", "x", {"message": "m"})',
    ],
)
def test_a_name_that_another_module_knows_is_found(tmp_path, line):
    module = tmp_path / "module.py"
    module.write_text(line)
    assert names_known(module)

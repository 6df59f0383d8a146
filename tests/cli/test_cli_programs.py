"""`mcp-bridge program` and `mcp-bridge execution`: each command, its exit status, and what it says to bad input."""

import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from cli_fixtures import CLEAN, DEADLINE_SECONDS, tool

from mcp_bridge.cli import exit_statuses
from mcp_bridge.cli.commands import executions
from mcp_bridge.governance import yaml_text
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram

pytestmark = pytest.mark.timeout(180)

LOOK = {"name": "look-once", "steps": [tool("look")]}

EVIL = "a\x1b]0;x\x07\x9b31m\u202e"
TAMED = r"a\x1b]0;x\x07\x9b31m\u202e"

A = ("--context", '{"name": "a"}')


# --- program run ---


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("p.yaml", LOOK),
        ("p.yml", LOOK),
        ("p.json", LOOK),
        ("p.toml", 'name = "t"\n[[steps]]\nid = "look"\ntype = "tool"\ntool = "look"\nargs = { name = "$name" }\n'),
    ],
)
def test_a_program_runs_from_a_file_of_each_format(desk, file, content):
    ended = desk.run("program", "run", desk.write(file, content), *A)
    assert ended.out == "saw a\n"
    assert "success, 1 step, execution" in ended.err


def test_a_program_runs_from_standard_input_in_a_process_of_its_own(desk):
    ended = desk.start("program", "run", "-", *A, stdin=json.dumps(LOOK).encode())
    assert ended.out == "saw a\n"


def test_the_context_comes_from_the_option_a_file_or_standard_input(desk):
    program = desk.write("p.json", LOOK)
    context = desk.write("context.json", '\ufeff{"name": "b"}')
    assert desk.run("program", "run", program, "--context", f"@{context}").out == "saw b\n"
    assert desk.run("program", "run", program, "--context", "@-", stdin=b'{"name": "c"}').out == "saw c\n"


def test_the_exit_status_tells_success_failure_and_suspension_apart(desk):
    broken = desk.write("broken.json", {"name": "b", "steps": [tool("broken")]})
    failed = desk.says("program", "run", broken, *A, code=exit_statuses.FAILED, words=["b: failed", "it broke"])
    assert failed.out == ""
    suspended = desk.says("program", "run", "clean", *A, code=exit_statuses.SUSPENDED, words=["ask waits for a person"])
    assert "approvals show" in suspended.err
    stalled = {"name": "s", "max_steps": 3, "steps": [tool("look", next_step="look")]}
    desk.says("program", "run", desk.write("s.json", stalled), *A, code=exit_statuses.FAILED, words=["budget_exceeded"])


def test_failures_inside_of_steps_and_of_what_should_undo_one_are_told_too(desk):
    steps = [
        tool("look", compensate={"tool": "broken", "args": {"name": "$name"}}),
        {
            "id": "all",
            "type": "map",
            "over": [1, 2],
            "step": {"type": "tool", "tool": "broken", "args": {"name": "$name"}},
        },
    ]
    program = desk.write("p.json", {"name": "p", "steps": steps})
    ended = desk.says(
        "program", "run", program, *A, code=exit_statuses.FAILED, words=["sub-steps failed: all[0], all[1]"]
    )
    told = [line.split(":")[0] for line in ended.err.splitlines() if "it broke" in line]
    assert told == ["  all[0]", "  all[1]", "  look.compensate"]


def test_of_many_failures_the_first_are_told(desk):
    each = {"id": "all", "type": "map", "over": list(range(15)), "step": {"type": "tool", "tool": "no-such"}}
    program = desk.write("p.json", {"name": "p", "steps": [each]})
    lines = desk.says("program", "run", program, code=exit_statuses.FAILED, words=["all[9]: "]).err.splitlines()
    assert (lines[-2].split(":")[0], lines[-1]) == ("  all[9]", "  and 5 more")


def test_with_json_the_record_is_the_whole_output(desk):
    record = desk.run("program", "run", desk.write("p.json", LOOK), *A, "--json").json
    assert (record["status"], record["output"], record["waiting"]) == ("success", "saw a", [])
    assert [step["id"] for step in record["steps"]] == ["look"]
    refused = desk.run("program", "run", "nothing", "--json", code=exit_statuses.USAGE).json
    assert (refused["status"], refused["exit_code"]) == ("refused", 2)
    assert refused["error"]["code"] == "unknown_program"


def test_with_a_key_a_program_runs_once_and_the_key_is_for_nothing_else(desk):
    program = desk.write("p.json", LOOK)
    first = desk.run("program", "run", program, *A, "--key", "k", "--json").json
    again = desk.run("program", "run", program, *A, "--key", "k", "--json").json
    assert again == first | {"is_previous_result": True}
    assert desk.run("execution", "show", first["trace_id"], "--json").json["trace_id"] == first["trace_id"]
    assert "nothing was run: this is" in desk.run("program", "run", program, *A, "--key", "k").err
    other = ("--context", '{"name": "b"}')
    desk.says("program", "run", program, *other, "--key", "k", code=exit_statuses.USAGE, words=["key_conflict", "'k'"])


def test_the_operators_program_run_by_its_file_is_said_to_be_anybodys_there(desk):
    by_file = desk.run("program", "run", str(desk.folder / "programs/clean.yaml"), *A, code=exit_statuses.SUSPENDED)
    assert "'clean', and run as a file it is the agent's to the policy" in by_file.err
    assert "program run clean" in by_file.err
    other = desk.write("clean.json", CLEAN | {"description": "Another."})
    assert "to the policy" not in desk.run("program", "run", other, *A, code=exit_statuses.SUSPENDED).err
    assert "to the policy" not in desk.run("program", "run", "clean", *A, code=exit_statuses.SUSPENDED).err
    named = CLEAN | {"name": "two words"}
    (desk.folder / "programs/clean.yaml").write_text(json.dumps(named))
    by_file = desk.run("program", "run", str(desk.folder / "programs/clean.yaml"), *A, code=exit_statuses.SUSPENDED)
    assert "program run 'two words'" in by_file.err
    piped = desk.run("program", "run", "-", *A, stdin=json.dumps(named).encode(), code=exit_statuses.SUSPENDED)
    assert "to the policy" not in piped.err


def test_a_program_runs_others_by_name_the_operators_and_those_that_are_kept(desk):
    outer = {
        "name": "outer",
        "steps": [{"id": "in", "type": "program", "program": "kept", "context": {"name": "$name"}}],
    }
    desk.run("program", "save", "kept", desk.write("p.json", LOOK))
    assert desk.run("program", "run", desk.write("outer.json", outer), *A).out == "saw a\n"
    assert desk.run("program", "validate", "outer.json").code == exit_statuses.OK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], ["unknown_program", "'nothing'", "Programs: clean"]),
        (["claen"], ["unknown_program", "Did you mean clean?"]),
        (["nowhere.yaml"], ["bad_program", "nowhere.yaml", "No such file"]),
        (["./"], ["bad_program", "isn't one of .yaml"]),
        (["broken.yaml"], ["bad_program", "broken.yaml", "not YAML: line 2, column 1"]),
        (["indented.yaml"], ["bad_program", "not YAML: line 5, column 4", "of line 3"]),
        (["tabs.yaml"], ["bad_program", "not YAML: line 2, column 1", "with spaces, not with tabs"]),
        (["control.yaml"], ["bad_program", "not YAML", "at position 6"]),
        (["hasty.json"], ["invalid_program", "did you mean 'timeout_seconds'?"]),
        (["list.json"], ["bad_program", "list.json", "is an object"]),
        (["text.yaml"], ["bad_program", "is an object"]),
        (["binary.json"], ["bad_program", "not UTF-8"]),
        (["faulty.json"], ["invalid_program", "no step 'x'", "no type of step"]),
        (["deep.json"], ["bad_program", "deep.json"]),
        (["clean", "--context", "{"], ["bad_argument", "--context", "not JSON"]),
        (["clean", "--context", "[1]"], ["bad_argument", "--context", "no object"]),
        (["clean", "--context", '{"a": NaN}'], ["bad_argument", "NaN"]),
        (["clean", "--context", '{"a": 1e999}'], ["bad_argument", "--context"]),
        (["clean", "--context", '{"a": "\\ud800"}'], ["bad_argument", "--context"]),
        (["clean", "--context", "[" * 100_000], ["bad_argument", "--context"]),
        (["clean", "--context", "@nowhere.json"], ["bad_argument", "nowhere.json", "No such file"]),
        (["clean", "--context", "@."], ["bad_argument", "directory"]),
        (["clean", "--context", "@"], ["bad_argument", "--context"]),
        (["clean", "--context", "@binary.json"], ["bad_argument", "UTF-8"]),
        (["clean", "--context", "@large.json"], ["context_too_large"]),
        (["clean", "--key", ""], ["bad_argument", "--key"]),
        ([], ["FILE|NAME"]),
        (["clean", "--no-such-option"], ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_what_cannot_be_run_is_a_usage_error_that_says_what_is_wrong(desk, arguments, words):
    desk.write("broken.yaml", "steps: [")
    desk.write("indented.yaml", "name: x\nsteps:\n  - id: a\n    type: tool\n   tool: look\n")
    desk.write("tabs.yaml", "steps:\n\t- id: a\n")
    desk.write("control.yaml", "name: \x01\n")
    desk.write("hasty.json", {"steps": [tool("look", timeout=5)]})
    desk.write("list.json", [])
    desk.write("text.yaml", "clean")
    desk.write("binary.json", b"\xff\xfe\x00")
    desk.write("faulty.json", {"steps": [{"id": "a", "type": "toool"}, tool("look", next_step="x")]})
    desk.write("deep.json", "[" * 100_000)
    desk.write("large.json", {"name": "x" * (5 << 20)})
    desk.says("program", "run", *arguments, code=exit_statuses.USAGE, words=words)


def test_a_program_of_the_operators_may_what_the_same_in_a_file_may_not(desk):
    desk.configure('[[policy.rules]]\ntools = ["local.look"]\neffect = "program"\nprograms = ["see"]\n')
    file = desk.write("programs/see.json", LOOK | {"name": "see"})
    assert desk.run("program", "run", "see", *A).out == "saw a\n"
    desk.says("program", "run", file, *A, code=exit_statuses.FAILED, words=["denied", "rule 1"])


@pytest.mark.parametrize("chosen", [True, False])
def test_an_event_that_comes_after_the_time_for_it_is_not_sent(desk, chosen):
    steps = [{"id": "go", "type": "wait", "event": "go", "timeout_seconds": 0.001, "on_error": "skip"}, tool("look")]
    file = desk.write("late.json", {"name": "late", "steps": steps})
    desk.run("program", "run", file, *A, code=exit_statuses.SUSPENDED)
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    while time.time() <= row["waiting"][0]["due"]:
        time.sleep(0.001)
    to = ("--execution", row["id"]) if chosen else ()
    ended = desk.run("event", "send", "go", "--payload", "1", *to, code=exit_statuses.FAILED)
    assert "its time for the event 'go' is over" in ended.err + ended.out
    assert "sent to" not in ended.out.replace("not sent to", "")
    assert desk.run("execution", "resume", row["id"]).out == "saw a\n"


def test_nothing_that_a_program_says_passes_for_a_line_of_ours(desk):
    forged = "lead\n  program: cap (the operator's)"
    broken = {"id": forged, "type": "tool", "tool": "nothing.to\n  call", "args": {"name": "a"}}
    asking = {"id": forged + " 2", "type": "approval", "message": "?"}
    fan = {"id": "fan", "type": "parallel", "parallel_steps": [broken | {"on_error": "skip"}]}
    for steps, code in (([broken], exit_statuses.FAILED), ([fan, asking], exit_statuses.SUSPENDED)):
        file = desk.write("forged.json", {"name": forged, "steps": steps})
        shown = desk.run("program", "run", file, code=code).err
        ident = desk.run("execution", "list", "--json").json["executions"][0]["id"]
        shown += desk.run("execution", "show", ident).out
        if code == exit_statuses.SUSPENDED:
            shown += desk.run("execution", "cancel", ident).err
        assert r"lead\n" in shown
        assert not [line for line in shown.splitlines() if line.strip().startswith(("program:", "call"))], shown


def test_nothing_that_a_program_says_reaches_the_terminal_as_a_command(desk):
    program = {"name": EVIL, "steps": [{"id": EVIL, "type": "tool", "tool": "look", "args": {"name": EVIL}}]}
    file = desk.write("evil.json", program)
    ended = desk.run("program", "run", file)
    assert ended.out == f"saw {TAMED}\n"
    shown = ended.err + desk.run("execution", "list").out + desk.run("program", "validate", file).out
    ident = desk.run("execution", "list", "--json")
    shown += ident.out + desk.run("execution", "show", ident.json["executions"][0]["id"]).out
    assert TAMED in shown
    assert ident.json["executions"][0]["program"] == EVIL
    for command in ("program", "show", file), ("program", "graph", file), ("program", "graph", file, "--format", "svg"):
        shown += desk.run(*command).out
    assert not [char for char in shown if char in EVIL[1:] and not char.isprintable()]
    assert json.loads(desk.run("program", "show", file).out) == program


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_a_program_in_order_and_that_is_recorded(desk, number, status):
    desk.write("programs/meeting.json", {"name": "meeting", "steps": [tool("look"), tool("meet")]})
    os.mkfifo(desk.folder / "meeting")
    process = desk.process("program", "run", "meeting", "--context", f'{{"name": "{desk.folder}/meeting"}}')
    # Opened at both ends: the tool is under way.
    (desk.folder / "meeting").read_bytes()
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == status, err
    assert b"Traceback" not in err
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    record = desk.run("execution", "show", row["id"], "--json").json
    assert (record["status"], [row["kind"] for row in record["waiting"]]) == ("suspended", ["in_doubt"])
    assert record["steps"][0]["output"].startswith("saw ")


# --- program validate ---


def test_every_fault_of_every_file_is_shown_with_its_path(desk):
    steps = [
        {"id": "a", "type": "tool"},
        {"id": "a", "type": "tool", "tool": "x", "arg": {}},
        {"id": "c", "type": "condition", "condition": "$x ==", "then": "nowhere"},
        {"id": "d", "type": "magic"},
        {"id": "e", "type": "llm", "prompt": "", "on_error": "maybe"},
        {"id": "f", "type": "parallel", "parallel_steps": []},
        {"id": "g", "type": "program", "program": "unknown"},
        {"id": "h", "type": "wait", "seconds": -1},
    ]
    bad = desk.write("bad.yaml", {"name": 7, "steps": steps, "max_steps": "many"})
    good = desk.write("good.json", LOOK)
    ended = desk.run("program", "validate", bad, good, code=exit_statuses.FAILED)
    for path in (
        "name",
        "max_steps",
        *(f"steps[{number}]" for number in range(8)),
        "steps[2].then",
        "steps[2].condition",
    ):
        assert f"\n  {path}" in ended.out, path
    assert f"{good}: valid, 1 step, " in ended.out
    rows = desk.run("program", "validate", bad, good, "--json", code=exit_statuses.FAILED).json
    assert [row["file"] for row in rows] == [bad, good]
    assert len(rows[0]["faults"]) >= 10
    assert rows[1]["faults"] == []
    assert len(rows[1]["hash"]) == 64


def test_a_warning_is_shown_and_is_no_fault(desk):
    lost = {"steps": [tool("look", is_terminal=True), tool("delete")]}
    ended = desk.run("program", "validate", desk.write("lost.json", lost))
    assert "warning: steps[1]: nothing leads to step 'delete'" in ended.out


def test_files_find_each_other_by_name_and_a_circle_is_a_fault(desk):
    def calls(other):
        return {"steps": [{"id": "in", "type": "program", "program": other}]}

    one, two = desk.write("one.json", calls("two")), desk.write("two.json", LOOK | {"name": "two"})
    desk.run("program", "validate", one, two)
    desk.run("program", "validate", one, code=exit_statuses.FAILED)
    desk.write("two.json", calls("one"))
    ended = desk.run("program", "validate", one, two, code=exit_statuses.FAILED)
    assert "without end" in ended.out


def test_what_cannot_be_read_is_a_fault_and_what_is_not_there_a_usage_error(desk):
    bad, good = desk.write("bad.json", "{"), desk.write("good.json", LOOK)
    ended = desk.run("program", "validate", bad, good, code=exit_statuses.FAILED)
    assert "bad.json: 1 fault" in ended.out
    assert "valid" in ended.out
    ended = desk.run("program", "validate", bad, "nowhere.json", good, code=exit_statuses.USAGE).out
    assert "nowhere.json: 1 fault\n  there is no such file" in ended
    assert f"{good}: valid" in ended
    assert f"{bad}: " in ended
    desk.says("program", "validate", code=exit_statuses.USAGE, words=["FILE"])
    assert "fault" in desk.run("program", "validate", "-", stdin=b"[]", code=exit_statuses.FAILED).out
    desk.run("program", "validate", "-", stdin=json.dumps(LOOK).encode())


def test_a_broken_program_of_the_operators_can_be_looked_at(desk):
    broken = desk.write("programs/broken.yaml", {"steps": [{"id": "a", "type": "toool"}]})
    desk.says("program", "run", "clean", code=exit_statuses.USAGE, words=["bad_program", "broken.yaml"])
    inner = desk.write("inner.json", {"steps": [{"id": "a", "type": "program", "program": "clean"}]})
    ended = desk.says(
        "program", "validate", broken, inner, code=exit_statuses.FAILED, words=["are left out", "broken.yaml"]
    )
    assert "'toool' is no type of step" in ended.out


def test_validating_and_helping_import_neither_the_sdk_nor_the_engine(desk):
    code = (
        "import sys\nfrom mcp_bridge.cli import main\n"
        "try:\n    main()\nexcept SystemExit as exc:\n    assert not exc.code, exc.code\n"
        "heavy = {'mcp', 'rich.table', 'mcp_bridge.host.bridge', 'mcp_bridge.sandbox.cli_engine', 'jsonschema'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    for arguments in (["program", "validate", desk.write("p.json", LOOK)], ["version"], ["policy", "show"]):
        subprocess.run([sys.executable, "-c", code, *arguments], env=desk.env, cwd=desk.folder, check=True, timeout=100)


def test_a_server_that_is_asked_for_its_tools_imports_no_kernel():
    code = "import sys, mcp_bridge.server.app\nassert 'mcp_bridge.kernel.machine' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


# --- program list, show, save, delete, plan ---


def test_programs_are_kept_listed_shown_and_deleted(desk):
    assert "saved mine: " in desk.run("program", "save", "mine", desk.write("p.json", LOOK)).out
    rows = {row["name"]: row for row in desk.run("program", "list", "--json").json["programs"]}
    assert {name: row["owner"] for name, row in rows.items()} == {"clean": "operator", "mine": "agent"}
    assert rows["clean"]["description"] == "Look, ask, delete."
    shown = desk.run("program", "list").out
    assert shown.index("clean") < shown.index("mine")
    copy = desk.run("program", "show", "mine")
    assert copy.json == LOOK
    assert "agent's" in copy.err
    assert desk.run("program", "run", "-", *A, stdin=copy.out.encode()).out == "saw a\n"
    desk.run("program", "delete", "mine")
    desk.says("program", "delete", "mine", code=exit_statuses.USAGE, words=["unknown_program"])
    desk.says("program", "show", "mine", code=exit_statuses.USAGE, words=["unknown_program"])


def test_what_is_the_operators_is_neither_replaced_nor_deleted(desk):
    file = desk.write("p.json", LOOK)
    desk.says("program", "save", "clean", file, code=exit_statuses.USAGE, words=["reserved_name"])
    desk.says("program", "save", "", file, code=exit_statuses.USAGE, words=["reserved_name"])
    desk.says("program", "delete", "clean", code=exit_statuses.REFUSED, words=["denied", "operator's"])
    desk.says(
        "program",
        "save",
        "x",
        desk.write("bad.json", {"steps": []}),
        code=exit_statuses.USAGE,
        words=["invalid_program"],
    )
    desk.says("program", "save", "x", desk.write("text.yaml", "clean"), code=exit_statuses.USAGE, words=["bad_program"])
    assert desk.run("program", "show", "clean").json == CLEAN


def test_without_any_program_the_list_says_how_to_have_one(desk):
    (desk.folder / "programs" / "clean.yaml").unlink()
    assert "program save" in desk.run("program", "list").out
    assert desk.run("program", "list", "--json").json == {"programs": []}


def test_a_program_is_made_of_an_execution_and_put_into_a_new_file(desk):
    ran = desk.run("program", "run", desk.write("p.yaml", LOOK), *A, "--json").json
    printed = desk.run("program", "from-execution", ran["trace_id"]).out
    assert yaml_text.load(printed) == LOOK
    assert desk.run("program", "from-execution", ran["trace_id"][:8], "--json").json == {"program": LOOK, "remarks": []}
    written = desk.run("program", "from-execution", ran["trace_id"], "--output", str(desk.folder / "q.yaml"))
    assert "program run" in written.err
    assert (desk.folder / "q.yaml").read_text() == printed
    assert desk.run("program", "run", str(desk.folder / "q.yaml"), *A).out == "saw a\n"
    again = ("program", "from-execution", ran["trace_id"], "--output", str(desk.folder / "q.yaml"))
    desk.says(*again, code=exit_statuses.USAGE, words=["can't be written", "exists"])
    no_cell = ("program", "from-execution", ran["trace_id"], "--first-cell", "2")
    desk.says(*no_cell, code=exit_statuses.USAGE, words=["bad_argument", "no cell of a session"])


def test_a_model_plans_a_program_that_is_checked_and_kept(desk):
    answers = json.dumps([json.dumps({"steps": [{"id": "a", "type": "x"}]}), json.dumps(LOOK)])
    desk.configure(f'[model]\nprovider = "scripted"\nanswers = {answers}\n')
    assert desk.run("program", "plan", "look at something", "--save", "planned").json == LOOK
    assert desk.run("program", "run", "planned", *A).out == "saw a\n"
    desk.says("program", "plan", "x", "--save", "clean", code=exit_statuses.USAGE, words=["reserved_name"])
    desk.says("program", "plan", " ", code=exit_statuses.USAGE, words=["bad_argument"])


def test_a_model_that_plans_rubbish_or_is_missing_is_a_failure_with_its_reason(desk):
    desk.says("program", "plan", "x", code=exit_statuses.FAILED, words=["model"])
    desk.configure('[model]\nprovider = "scripted"\ndefault_answer = "no"\n')
    ended = desk.says("program", "plan", "x", "--save", "p", code=exit_statuses.FAILED)
    assert ended.out == ""
    assert [row["name"] for row in desk.run("program", "list", "--json").json["programs"]] == ["clean"]


# --- program graph ---


def test_a_program_is_drawn_to_standard_output_or_a_file(desk):
    drawn = desk.run("program", "graph", "clean").out
    assert "flowchart TD" in drawn
    assert desk.run("program", "graph", "clean", "--format", "mermaid").out == drawn
    picture = desk.run("program", "graph", "clean", "--format", "svg").out
    assert picture.startswith("<svg ")
    target = desk.folder / "clean.svg"
    assert desk.run("program", "graph", "clean", "--format", "svg", "--output", target).out == ""
    assert target.read_text("utf-8") == picture


def test_what_cannot_be_drawn_or_written_is_a_usage_error(desk):
    desk.says("program", "graph", "nothing", code=exit_statuses.USAGE, words=["unknown_program"])
    desk.says(
        "program", "graph", desk.write("x.json", {"steps": []}), code=exit_statuses.USAGE, words=["invalid_program"]
    )
    desk.says("program", "graph", "clean", "--format", "png", code=exit_statuses.USAGE, words=["--format"])
    desk.says(
        "program", "graph", "clean", "-o", desk.folder, code=exit_statuses.USAGE, words=["bad_argument", "--output"]
    )


def test_a_drawing_never_takes_the_place_of_a_program(desk):
    file = desk.folder / "p.json"
    desk.write(file.name, LOOK)
    said = ["bad_argument", "may be a program", "p.svg"]
    desk.says("program", "graph", file, "-o", file, code=exit_statuses.USAGE, words=said)
    assert json.loads(file.read_text()) == LOOK


# --- execution ---


def test_a_question_whose_time_is_over_is_shown_as_that(desk):
    steps = [{"id": "ask", "type": "approval", "message": "Really?", "timeout_seconds": 1}, tool("look")]
    desk.run("program", "run", desk.write("p.json", {"name": "p", "steps": steps}), *A, code=exit_statuses.SUSPENDED)
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    time.sleep(max(0, row["due"] - time.time()))
    assert "ask (approval, its time is over)" in desk.run("execution", "list").out
    shown = desk.run("execution", "show", row["id"]).out
    resume = f"mcp-bridge --config {desk.config} execution resume {row['id'][:6]}"
    assert f"the time for a decision on ask is over: {resume}" in shown
    assert "waits for a person" not in shown


def test_executions_are_listed_the_latest_first_and_by_status(desk):
    assert "No execution" in desk.run("execution", "list").out
    desk.run("program", "run", desk.write("p.json", LOOK), *A)
    waiting = desk.suspended()
    rows = desk.run("execution", "list", "--json").json["executions"]
    assert [row["status"] for row in rows] == ["suspended", "success"]
    assert rows[0]["id"] == waiting
    shown = desk.run("execution", "list").out
    assert f"{waiting[:6]}  clean" in shown
    assert "ask (approval)" in shown
    only = desk.run("execution", "list", "--status", "success", "--status", "failed", "--json").json["executions"]
    assert [row["status"] for row in only] == ["success"]
    assert len(desk.run("execution", "list", "--limit", "1", "--json").json["executions"]) == 1
    assert "of that status" in desk.run("execution", "list", "--status", "stalled").out
    desk.says("execution", "list", "--status", "sleeping", code=exit_statuses.USAGE, words=["sleeping"])
    desk.says("execution", "list", "--limit", "0", code=exit_statuses.USAGE, words=["--limit"])


def test_an_execution_is_shown_with_its_steps_and_what_it_waits_for(desk):
    ident = desk.suspended()
    shown = desk.run("execution", "show", ident[:8]).out
    assert f"{ident}: clean (operator's), suspended" in shown
    assert "look  success           saw a" in shown
    assert f"ask waits for a person: mcp-bridge --config {desk.config} approvals show {ident[:6]}.2" in shown
    facts = desk.run("execution", "show", ident.upper(), "--json").json
    assert (facts["trace_id"], facts["status"], facts["origin"]) == (ident, "suspended", "operator")


def test_what_a_person_has_decided_is_not_waited_for_any_more(desk):
    ident = desk.suspended()
    desk.run("approvals", "deny", ident)
    resume = f"mcp-bridge --config {desk.config} execution resume {ident[:6]}"
    shown = desk.run("execution", "show", ident).out
    assert f"ask was denied by a person: {resume}" in shown
    assert "waits for a person" not in shown
    assert "ask (denied, to be resumed)" in desk.run("execution", "list").out
    assert desk.run("execution", "list", "--json").json["executions"][0]["waiting"][0]["decided"] == "denied"
    # What is advised works.
    assert "denied" in desk.run("execution", "resume", ident[:6], code=exit_statuses.FAILED).err


def test_what_happened_when_is_shown_entry_by_entry(desk):
    ident = desk.suspended()
    shown = desk.run("execution", "show", ident)
    header, *lines = shown.out[shown.out.index("entry ") :].splitlines()
    assert header.split()[:2] == ["entry", "at"]
    assert [line.split()[0] for line in lines[:-1]] == [
        ",".join(map(str, row["sequences"])) for row in desk.run("execution", "show", ident, "--json").json["timeline"]
    ]
    assert "start" in lines[0]
    assert "suspension" in lines[-2]
    assert lines[-1].endswith(" s")


def test_ids_that_name_nothing_or_too_much_are_usage_errors(desk, monkeypatch):
    made = secrets.token_hex
    monkeypatch.setattr(
        "mcp_bridge.executions.programs.program_run.secrets.token_hex", lambda size: "abcdef" + made(size)[6:]
    )
    desk.suspended()
    ident = desk.suspended()
    for command in ("show", "resume", "cancel"):
        desk.says("execution", command, "abc", code=exit_statuses.USAGE, words=["ambiguous_id", "abcdef"])
        for nothing in ("ffff", "", " ", "%", "x" * 1000, "'; DROP TABLE executions"):
            desk.says("execution", command, nothing, code=exit_statuses.USAGE, words=["unknown_trace"])
    assert desk.run("execution", "show", "abcdef" + ident[6:], "--json").json["status"] == "suspended"
    shown = {line.split()[0] for line in desk.run("execution", "list").out.splitlines()[1:]}
    assert len(shown) == 2
    assert all(len(one) > 6 for one in shown), "an id is shown as long as it has to be"


PAY = {
    "name": "pay",
    "steps": [
        tool("order"),
        {
            "id": "paid",
            "type": "condition",
            "condition": "$__webhook__.paid == true",
            "then": "look",
            "otherwise": "no",
        },
        tool("look", next_step="end"),
        tool("broken", "no"),
        {"id": "end", "type": "tool", "tool": "look", "args": {"name": "$__webhook_source__"}},
    ],
}


def test_a_pending_tool_goes_on_with_a_payload(desk):
    desk.write("programs/pay.json", PAY)
    ident = desk.suspended("pay")
    before = desk.run("audit", "stats", "--json").json["entries"]
    desk.says("execution", "resume", ident, code=exit_statuses.SUSPENDED, words=["still_waiting", "order"])
    assert desk.run("audit", "stats", "--json").json["entries"] == before, "it was not resumed"
    desk.says("execution", "resume", ident, "--payload", "{", code=exit_statuses.USAGE, words=["--payload"])
    desk.says("execution", "resume", ident, "--payload", "NaN", code=exit_statuses.USAGE, words=["--payload"])
    desk.says(
        "execution",
        "resume",
        ident,
        "--payload",
        "1",
        "--source",
        "agent",
        code=exit_statuses.USAGE,
        words=["--source"],
    )
    ended = desk.run("execution", "resume", ident, "--payload", '{"paid": true}', "--source", "webhook")
    assert ended.out == "saw WEBHOOK\n"
    desk.says(
        "execution", "resume", ident, "--payload", "1", code=exit_statuses.FAILED, words=["not_suspended", "success"]
    )
    ident = desk.suspended("pay")
    file = desk.write("payload.json", {"paid": True})
    assert desk.run("execution", "resume", ident, "--payload", f"@{file}", "--json").json["output"] == "saw OPERATOR"


def test_an_event_goes_on_with_null_when_that_is_the_payload(desk):
    desk.write("programs/hear.json", {"name": "hear", "steps": [{"id": "w", "type": "wait", "event": "call"}]})
    ident = desk.suspended("hear")
    assert "waits for the event call" in desk.run("execution", "show", ident).out
    assert desk.run("execution", "resume", ident, "--payload", "null", "--json").json["status"] == "success"


def test_a_long_wait_goes_on_when_its_time_has_come(desk, monkeypatch):
    desk.write(
        "programs/later.json", {"name": "later", "steps": [{"id": "w", "type": "wait", "seconds": 3600}, tool("look")]}
    )
    ident = desk.suspended("later")
    shown = desk.run("execution", "show", ident).out
    assert time.strftime("%Y-") in shown
    desk.says("execution", "resume", ident, code=exit_statuses.SUSPENDED, words=["still_waiting"])
    now = time.time
    for module in ("programs.lifecycle", "readiness"):
        monkeypatch.setattr(f"mcp_bridge.executions.{module}.time", SimpleNamespace(time=lambda: now() + 3601))
    assert desk.run("execution", "resume", ident).out == "saw a\n"


def test_cancelling_undoes_what_was_done(desk):
    undo = {"tool": "undelete", "args": {"name": "$name"}}
    desk.write(
        "programs/risky.json",
        {"name": "risky", "steps": [tool("delete", compensate=undo), {"id": "w", "type": "wait", "event": "go"}]},
    )
    ident = desk.suspended("risky")
    record = desk.run("execution", "cancel", ident, "--reason", "no money", "--json").json
    assert (record["status"], record["error"]) == ("cancelled", "no money")
    assert record["steps"][-1]["id"] == "delete.compensate"
    assert record["steps"][-1]["output"] == "undeleted a"
    desk.says("execution", "cancel", ident, code=exit_statuses.FAILED, words=["not_suspended", "cancelled"])
    assert "no money" in desk.run("execution", "show", ident).out


def test_suspended_here_approved_there_resumed_elsewhere(desk):
    ended = desk.start("program", "run", "clean", *A, "--json", code=exit_statuses.SUSPENDED)
    ident = ended.json["trace_id"]
    assert "approved" in desk.start("approvals", "approve", ident[:10]).out
    still = desk.start("execution", "resume", ident[:10])
    assert still.out == "deleted a\n"
    assert desk.start("execution", "show", ident, "--json").json["status"] == "success"


@pytest.mark.parametrize(
    ("kind", "key", "then"),
    [("script", None, "execution cancel"), ("script", "k", "execution resume"), ("program", None, "execution resume")],
)
def test_what_is_interrupted_names_the_command_that_it_takes(capsys, kind, key, then):
    row = SimpleNamespace(id="a1", kind=kind, key=key, key_space="", origin="me", starter="me", started=0.0)
    record = {"program": "p", "status": "interrupted", "steps": [], "output": None, "error": None, "waiting": []}
    executions._print_execution(row, record, "a1", None)
    assert f"mcp-bridge {then} a1" in capsys.readouterr().out.splitlines()[-1]


def test_an_execution_whose_process_was_killed_is_interrupted_and_can_go_on(desk):
    desk.write("programs/doomed.json", {"name": "doomed", "steps": [tool("look"), tool("crash")]})
    process = desk.process("program", "run", "doomed", *A)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == -signal.SIGKILL
    (row,) = desk.run("execution", "list", "--status", "interrupted", "--json").json["executions"]
    assert desk.run("execution", "list", "--status", "running", "--json").json["executions"] == []
    assert "resume it with" in desk.run("execution", "show", row["id"]).out
    # Whether the crash was an effect is in doubt: it isn't done again.
    record = desk.run("execution", "resume", row["id"], "--json", code=exit_statuses.SUSPENDED).json
    assert (record["status"], record["waiting"][0]["kind"]) == ("suspended", "in_doubt")
    assert record["steps"][0]["output"] == "saw a"


def test_what_was_interrupted_is_listed_however_many_run_since(desk):
    for name, last in (("doomed", "crash"), ("meeting", "meet")):
        desk.write(f"programs/{name}.json", {"name": name, "steps": [tool("look"), tool(last)]})
    desk.process("program", "run", "doomed", *A).communicate(timeout=DEADLINE_SECONDS)
    os.mkfifo(desk.folder / "meeting")
    meeting = desk.process("program", "run", "meeting", "--context", f'{{"name": "{desk.folder}/meeting"}}')
    # Opened at both ends: the tool is under way.
    (desk.folder / "meeting").read_bytes()
    try:
        for status, program in (("interrupted", "doomed"), ("running", "meeting")):
            rows = desk.run("execution", "list", "--status", status, "--limit", "1", "--json").json["executions"]
            assert [row["program"] for row in rows] == [program]
        rows = desk.run("execution", "list", "--limit", str(10**20), "--json").json["executions"]
        assert [row["status"] for row in rows] == ["running", "interrupted"]
    finally:
        meeting.kill()
        meeting.communicate()


def in_doubt(desk, *steps):
    """The id of an execution of some steps whose process died in the tool `crash`."""
    desk.write("programs/doomed.json", {"name": "doomed", "steps": [tool("look"), tool("crash"), *steps]})
    process = desk.process("program", "run", "doomed", *A)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == -signal.SIGKILL
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    ended = desk.run("execution", "resume", row["id"], code=exit_statuses.SUSPENDED)
    assert "crash is in doubt: crash may have been called" in ended.err
    return row["id"]


def test_a_doubt_is_shown_with_what_is_known_and_how_to_settle_it(desk):
    ident = in_doubt(desk)
    shown = desk.run("execution", "show", ident).out
    assert "crash is in doubt: crash may have been called" in shown
    assert '"name": "a"' in shown
    for way in ("--happened [--value JSON]", "--failed MESSAGE", "--not-done"):
        assert re.search(rf"execution settle {ident[:6]} \d+ {re.escape(way)}", shown), way
    assert "crash (in_doubt)" in desk.run("execution", "list", "--status", "suspended").out
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    (waiting,) = row["waiting"]
    assert (waiting["kind"], waiting["tool"], waiting["arguments"]) == ("in_doubt", "crash", {"name": "a"})
    desk.says("execution", "resume", ident, code=exit_statuses.SUSPENDED, words=["still_waiting", "execution settle"])
    desk.says("execution", "resume", ident, "--payload", "1", code=exit_statuses.SUSPENDED, words=["crash (in_doubt)"])


def test_a_settled_execution_goes_on_with_resume(desk):
    ident = in_doubt(desk, tool("look", step="last", args={"name": "$crash.paid"}))
    value = desk.write("value.json", {"paid": "b"})
    told = desk.run(
        "execution", "settle", ident[:8], "crash", "--happened", "--value", f"@{value}", "--reason", "asked"
    )
    assert f"execution resume {ident[:6]}" in told.out
    desk.says("execution", "settle", ident, "--happened", code=exit_statuses.FAILED, words=["not_in_doubt"])
    assert desk.run("execution", "resume", ident).out == "saw b\n"
    assert desk.run("execution", "show", ident, "--json").json["status"] == "success"


def test_settling_can_go_on_at_once_and_ends_as_the_program_does(desk):
    ident = in_doubt(desk, tool("look", step="last"))
    assert desk.run("execution", "settle", ident, "--happened", "--resume").out == "saw a\n"
    ident = desk.run("execution", "list", "--json").json["executions"][0]["id"]
    desk.says(
        "execution", "settle", ident, "--failed", "no", code=exit_statuses.FAILED, words=["not_suspended", "success"]
    )


def test_a_settlement_that_fails_the_program_undoes_with_the_next_resume(desk):
    undo = {"tool": "undelete", "args": {"name": "$name"}}
    desk.write("programs/doomed.json", {"name": "doomed", "steps": [tool("delete", compensate=undo), tool("crash")]})
    desk.process("program", "run", "doomed", *A).communicate(timeout=DEADLINE_SECONDS)
    (row,) = desk.run("execution", "list", "--json").json["executions"]
    desk.run("execution", "settle", row["id"], "--failed", "the bank knows nothing", "--json")
    record = desk.run("execution", "resume", row["id"], "--json", code=exit_statuses.FAILED).json
    assert (record["status"], record["steps"][-1]["output"]) == ("failed", "undeleted a")
    assert "the bank knows nothing" in record["error"]


def test_a_doubt_that_was_cancelled_is_shown_as_never_settled(desk):
    ident = in_doubt(desk)
    ended = desk.run("execution", "cancel", ident)
    told = 'crash was in doubt, and still is: crash {"name": "a"}'
    assert told in ended.err
    assert told in desk.run("execution", "show", ident).out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["bad_argument", "--happened, --failed MESSAGE and --not-done"]),
        (("--happened", "--not-done"), ["bad_argument"]),
        (("--failed", "a", "--happened"), ["bad_argument"]),
        (("--not-done", "--value", "1"), ["bad_argument", "--value belongs to --happened"]),
        (("--happened", "--value", "{"), ["bad_argument", "--value", "not JSON"]),
        (("--failed", "a" * 1001), ["bad_argument", "--failed", "1000"]),
        (("--happened", "--reason", "a" * 1001), ["bad_argument", "--reason"]),
    ],
)
def test_a_settlement_that_says_nothing_or_two_things_is_refused(desk, arguments, words):
    desk.says("execution", "settle", "abc", *arguments, code=exit_statuses.USAGE, words=words)


def test_a_doubt_that_there_isn_t_is_not_settled(desk):
    ident = in_doubt(desk)
    desk.says(
        "execution", "settle", ident, "look", "--happened", code=exit_statuses.USAGE, words=["unknown_doubt", "crash ("]
    )
    desk.says("execution", "settle", "nothing", "--happened", code=exit_statuses.USAGE, words=["unknown_trace"])
    assert desk.run("execution", "show", ident, "--json").json["waiting"][0]["kind"] == "in_doubt"


# --- a record that cannot be used ---

READING = [
    ("execution", "list"),
    ("execution", "show", "abc"),
    ("execution", "resume", "abc"),
    ("execution", "cancel", "abc"),
    ("execution", "settle", "abc", "--happened"),
    ("replay", "abc"),
    ("approvals", "list"),
    ("approvals", "show", "abc.1"),
    ("approvals", "approve", "abc.1"),
    ("approvals", "deny", "abc.1"),
    ("program", "list"),
    ("program", "show", "nothing"),
    ("program", "delete", "nothing"),
    ("program", "run", "clean", *A),
]


@pytest.mark.parametrize("command", READING, ids=lambda words: " ".join(words[:2]))
def test_a_damaged_record_is_said_by_every_command_that_needs_it(desk, command):
    desk.write("state/ledger.sqlite", b"this is no database" * 1000)
    desk.says(*command, code=exit_statuses.FAILED, words=["database_unusable", str(desk.state / "ledger.sqlite")])
    assert desk.run("program", "validate", desk.write("p.json", LOOK)).code == exit_statuses.OK


@pytest.mark.parametrize("command", [("execution", "list"), ("approvals", "list"), ("program", "list")], ids=" ".join)
def test_damage_within_the_record_is_said(desk, command):
    desk.suspended()
    desk.run("program", "save", "x", desk.write("p.json", LOOK))
    path = desk.state / "ledger.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode = DELETE")
    database.close()
    data = bytearray(path.read_bytes())
    data[4096 * 2 :] = b"\xa5" * (len(data) - 4096 * 2)
    path.write_bytes(data)
    desk.says(*command, code=exit_statuses.FAILED, words=["malformed"])


@pytest.mark.parametrize(
    ("change", "command", "words"),
    [
        *(
            (f"UPDATE executions SET {change}", ("execution", *command), ["ledger_damaged", "row of executions"])  # noqa: S608
            for change, command in (
                ("record = x'7b7d'", ["list"]),
                ("record = NULL", ["show", "ID"]),
                ("bundle = substr(bundle, 2)", ["show", "ID"]),
                ("state = x'7b7d'", ["resume", "ID", "--payload", "1"]),
                ("state = NULL", ["resume", "ID"]),
                ("bundle = record", ["cancel", "ID"]),
                ("status = 'success'", ["list"]),
                ("due = 1.0", ["resume", "ID"]),
                ("origin = 'agent'", ["show", "ID"]),
                ("program = request", ["resume", "ID"]),
                ("owner = 'me'", ["cancel", "ID"]),
                ("changed = changed + 1", ["list"]),
                ("mac = NULL", ["list"]),
                ("mac = zeroblob(32)", ["list"]),
            )
        ),
        ("UPDATE approvals SET question = x'78'", ("approvals", "list"), ["ledger_damaged", "row of approvals"]),
        ("UPDATE approvals SET status = 'approved'", ("execution", "resume", "ID"), ["ledger_damaged"]),
        ("UPDATE approvals SET effect = 1", ("approvals", "approve", "ID"), ["ledger_damaged"]),
        ("UPDATE approvals SET decision = question", ("execution", "resume", "ID"), ["ledger_damaged"]),
        ("UPDATE programs SET data = x'7b7d'", ("program", "list"), ["ledger_damaged", "row of programs"]),
        ("UPDATE programs SET name = 'other'", ("program", "run", "other", *A), ["ledger_damaged"]),
        ("UPDATE programs SET hash = upper(hash)", ("program", "show", "kept"), ["ledger_damaged"]),
        ("UPDATE reference_values SET value = x'00'", ("execution", "cancel", "ID"), ["ledger_damaged"]),
        ("UPDATE head SET size = size - 1", ("execution", "cancel", "ID"), ["ledger_damaged"]),
        ("UPDATE head SET root = zeroblob(32)", ("execution", "cancel", "ID"), ["ledger_damaged"]),
        ("UPDATE head SET note = ''", ("execution", "list"), ["ledger_damaged"]),
        ("DELETE FROM head", ("execution", "list"), ["ledger_damaged"]),
        ("UPDATE meta SET value = 'other' WHERE name = 'origin'", ("execution", "cancel", "ID"), ["ledger_behind"]),
        ("UPDATE meta SET value = '0' WHERE name = 'master'", ("execution", "list"), ["key_unusable"]),
        ("PRAGMA user_version = 99", ("execution", "list"), ["database_newer"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_changed_in_the_record_is_said(desk, change, command, words):
    ident = desk.suspended()
    desk.run("program", "save", "kept", desk.write("p.json", LOOK))
    desk.in_record(lambda database: keep_a_value(database, ident))
    with sqlite3.connect(desk.state / "ledger.sqlite") as database:
        database.execute(change)
    database.close()
    desk.says(*(ident if word == "ID" else word for word in command), code=exit_statuses.FAILED, words=words)


async def keep_a_value(database, execution):
    ProgramStore(database).store_values(execution, {"name": "value"})


@pytest.mark.parametrize(
    ("command", "statement"),
    [
        (("execution", "list"), "UPDATE executions SET bundle = (SELECT bundle FROM executions WHERE id <> ?)"),
        (
            ("approvals", "list"),
            "UPDATE approvals SET question = (SELECT question FROM approvals WHERE execution <> ?)",
        ),
    ],
    ids=["executions", "approvals"],
)
def test_what_was_taken_from_another_execution_is_said_though_the_row_is_authentic(desk, command, statement):
    """As by somebody who can have MACs made: what is sealed opens in its own place only."""
    ident = desk.suspended()
    desk.suspended()
    table = statement.split()[1]

    def swap(transaction):
        transaction.connection.execute(statement, (ident,))
        transaction.authenticate((table, "1", ()))

    desk.in_record(lambda database: database.transact(swap))
    desk.says(*command, code=exit_statuses.FAILED, words=["ledger_damaged", "can't be opened"])


STATE = {"status": "suspended", "state": b"{}", "record": None, "due": None}


def test_a_state_or_a_program_that_is_none_is_said_though_it_is_authentic(desk):
    ident = desk.suspended()

    async def spoil(database):
        store = ProgramStore(database)
        await store.update(ident, **STATE)
        await store.save_program("local", SavedProgram("kept", "0", {}, 0.0))

    desk.in_record(spoil)
    for command in (("resume", ident, "--payload", "1"), ("cancel", ident)):
        desk.says("execution", *command, code=exit_statuses.FAILED, words=["bad_state"])
    for words in (("list",), ("run", "kept", *A), ("show", "kept")):
        desk.says("program", *words, code=exit_statuses.FAILED, words=["bad_state", "'kept'"])


def test_an_unusable_state_directory_is_said(desk):
    desk.write("state", "a file")
    for command in READING:
        if command[:2] not in {("program", "list"), ("program", "show")}:
            desk.says(*command, code=exit_statuses.FAILED, words=["state_unusable", "MCP_BRIDGE_STATE_DIR"])


def test_a_program_is_refused_inside_a_server_of_the_bridge(desk, monkeypatch):
    ident = desk.suspended()
    monkeypatch.setenv("MCP_BRIDGE_NESTED", "1")
    desk.says("program", "run", "clean", *A, code=exit_statuses.REFUSED, words=["nested_bridge"])
    desk.says("execution", "resume", ident, code=exit_statuses.REFUSED, words=["nested_bridge"])
    assert desk.run("execution", "list").code == exit_statuses.OK


def test_every_command_has_help_with_its_options(desk):
    of = {
        ("program", "run"): ("FILE|NAME", "--context", "--key", "--json", "--config", "Examples:"),
        ("program", "validate"): ("FILE", "--json", "Example:"),
        ("program", "graph"): ("--format", "--output", "mermaid", "svg", "Examples:"),
        ("program", "list"): ("--json",),
        ("program", "show"): ("FILE|NAME", "Example:"),
        ("program", "save"): ("NAME", "FILE", "Example:"),
        ("program", "delete"): ("NAME",),
        ("program", "plan"): ("INTENT", "--save", "Example:"),
        ("execution", "list"): ("--status", "--limit", "--json", "Example:"),
        ("execution", "show"): ("ID", "--json", "Example:"),
        ("execution", "resume"): ("ID", "--payload", "--source", "--json", "Examples:"),
        ("execution", "cancel"): ("ID", "--reason", "--json", "Example:"),
    }
    for group in ("program", "execution"):
        shown = desk.run(group, "--help", config=False).out
        for command in [words[1] for words in of if words[0] == group]:
            assert f" {command} " in shown
    for command, words in of.items():
        shown = desk.run(*command, "--help", config=False).out
        assert all(word in shown for word in words), (command, shown)
    assert "suspended" in desk.run("--help", config=False).out


def test_a_terminal_that_cannot_show_a_sign_gets_its_escape(desk):
    desk.env["PYTHONIOENCODING"] = "ascii"
    program = desk.write("p.json", {"name": "blåbær", "steps": [tool("look", "漢字")]})
    ended = desk.start("program", "run", program, "--context", '{"name": "å"}')
    assert ended.out == "saw \\xe5\n"
    assert "bl\\xe5b\\xe6r: success" in ended.err
    assert (
        "\\u6f22"
        in desk.start("execution", "show", desk.run("execution", "list", "--json").json["executions"][0]["id"]).out
    )
    assert "漢字" in desk.start("program", "graph", program).out
    assert desk.start("program", "show", program).json["name"] == "blåbær"


def test_nothing_is_left_in_the_working_directory(desk):
    before = {path.name for path in desk.folder.iterdir()}
    desk.suspended()
    assert {path.name for path in desk.folder.iterdir()} - before == {"state"}
    assert {oct(path.stat().st_mode & 0o77) for path in (desk.state, desk.state / "ledger.sqlite")} == {"0o0"}

"""`mcp-bridge approvals`, `secret`, `policy`; what the operator lays down, in every command; who can approve, and who can't."""

import ast
import fcntl
import io
import json
import os
import pwd
import re
import select
import struct
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_fixtures import CLEAN, COMMAND, DEADLINE_SECONDS, tool
from mcp.client import Client
from mcp_clients import build_server

import mcp_bridge
from mcp_bridge import escaping
from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.executions import status
from mcp_bridge.executions.approvals import ApprovalRequest
from mcp_bridge.executions.programs import lifecycle
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.server import program_tools, questions
from mcp_bridge.server.questions import _question_text
from mcp_bridge.wire import messages

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("whole_ledgers")]

ASK_BEFORE_DELETING = """
[[policy.rules]]
tools = ["local.delete"]
effect = "approve"
reason = "deletions are final"
"""

DELETE = {"name": "wipe", "steps": [tool("delete")]}

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def asked(desk):
    """A desk where deleting wants a person, and an execution that waits for one; `desk.ident` is its id."""
    desk.configure(ASK_BEFORE_DELETING)
    desk.write("programs/wipe.json", DELETE)
    desk.ident = desk.suspended("wipe")
    return desk


# --- approvals ---


def test_a_call_that_waits_for_a_person_is_listed_and_shown_with_what_on_what_and_why(asked):
    short = f"{asked.ident[:6]}.1"
    (row,) = asked.run("approvals", "list", "--json").json["approvals"]
    assert (row["id"], row["execution"], row["status"]) == (f"{asked.ident}.1", asked.ident, "open")
    assert asked.run("approvals", "show", row["id"], "--json").json == row
    listed = asked.run("approvals", "list").out
    assert short in listed
    assert 'local.delete {"name": "a"}' in listed
    shown = asked.run("approvals", "show", short).out
    for words in ("call of local.delete with", '>  "name": "a"', "program: wipe (the operator's)", "step: delete"):
        assert words in shown
    assert "has a person decide about local.delete, by rule 1. deletions are final." in shown
    assert f"mcp-bridge --config {asked.config} approvals approve {short}" in shown
    assert asked.run("approvals", "show", asked.ident, "--json").json["question"]["arguments"] == {"name": "a"}


def test_an_approval_is_kept_with_who_and_why_and_says_how_to_go_on(asked):
    ended = asked.run("approvals", "approve", f"{asked.ident[:6]}.1", "--reason", "tidy up")
    assert f"execution resume {asked.ident[:6]}" in ended.out
    assert asked.run("approvals", "list").out == "Nothing waits for a decision.\n"
    (row,) = asked.run("approvals", "list", "--all", "--json").json["approvals"]
    assert (row["status"], row["decision"]) == ("approved", {"approved": True, "by": ME, "comment": "tidy up"})
    assert f"approved by {ME}" in asked.run("approvals", "show", asked.ident).out
    (payload,) = [entry.payload for entry in asked.entries(asked.ident) if entry.kind == "decision"]
    assert payload | {"by": ME, "approved": True, "comment": "tidy up"} == payload
    assert asked.run("execution", "resume", asked.ident).out == "deleted a\n"


def test_a_decision_is_told_as_json_too(asked):
    row = asked.run("approvals", "approve", asked.ident, "--json").json
    assert (row["id"], row["status"], row["decision"]["by"]) == (f"{asked.ident}.1", "approved", ME)
    ident = asked.suspended("clean")
    record = asked.run("approvals", "deny", ident, "--resume", "--json", code=exit_statuses.FAILED).json
    assert (record["trace_id"], record["status"]) == (ident, "failed")
    refused = asked.run("approvals", "deny", "nothing", "--json", code=exit_statuses.USAGE).json
    assert refused["status"] == "refused"


def test_a_denial_ends_the_call_and_nothing_was_called(asked):
    ended = asked.says("approvals", "deny", asked.ident, "--resume", code=exit_statuses.FAILED, words=["denied"])
    assert f"denied {asked.ident[:6]}.1" in ended.out
    kinds = [entry.kind for entry in asked.entries(asked.ident)]
    assert "decision" in kinds
    assert "intent" not in kinds
    record = asked.run("execution", "show", asked.ident, "--json").json
    assert (record["status"], record["steps"][0]["code"]) == ("failed", "denied")


def test_with_resume_the_program_goes_on_at_once(asked):
    assert "deleted a" in asked.run("approvals", "approve", asked.ident, "--resume").out
    ident = asked.suspended("clean")
    ended = asked.run("approvals", "approve", ident, "--resume", code=exit_statuses.SUSPENDED)
    assert "delete waits for a person" in ended.err
    # The next question of the same execution: its own is decided.
    assert "deleted a" in asked.run("approvals", "approve", ident, "--resume").out


def test_nothing_is_decided_when_going_on_would_be_impossible(asked):
    asked.configure(ASK_BEFORE_DELETING + 'programs = ["x"]\n')
    asked.says("approvals", "approve", asked.ident, "--resume", code=exit_statuses.USAGE, words=["bad_config"])
    asked.configure(ASK_BEFORE_DELETING)
    assert len(asked.run("approvals", "list", "--json").json["approvals"]) == 1


def timed(desk, seconds):
    """An execution that waits for so many seconds for an approval."""
    approval = {"id": "ask", "type": "approval", "message": "ok?", "timeout_seconds": seconds}
    desk.write("programs/timed.json", {"name": "timed", "steps": [approval]})
    return desk.suspended("timed")


def wait_until_due(desk, ident):
    due = desk.run("approvals", "show", ident, "--json").json["due"]
    while time.time() <= due:
        time.sleep(0.02)


def test_a_decision_after_the_steps_time_is_refused(desk):
    ident = timed(desk, 0.2)
    wait_until_due(desk, ident)
    assert desk.run("approvals", "list").out == "Nothing waits for a decision.\n"
    shown = desk.run("approvals", "show", ident).out
    assert "void" in shown
    assert "the step has timed out: " in shown
    words = ["not_suspended", "has timed out", f"mcp-bridge execution resume {ident}"]
    desk.says("approvals", "approve", ident, "--resume", code=exit_statuses.FAILED, words=words)
    desk.run("execution", "resume", ident, code=exit_statuses.FAILED)
    assert desk.run("execution", "show", ident, "--json").json["steps"][0]["code"] == "timeout"


def test_a_decision_that_is_recorded_after_the_steps_time_does_not_count(desk, monkeypatch):
    ident = timed(desk, 0.2)
    wait_until_due(desk, ident)
    monkeypatch.setattr(ApprovalRequest, "is_late", False)
    desk.run("approvals", "approve", ident)
    monkeypatch.undo()
    desk.run("execution", "resume", ident, code=exit_statuses.FAILED)
    assert desk.run("execution", "show", ident, "--json").json["steps"][0]["code"] == "timeout"


def test_a_decision_in_time_counts_however_late_the_program_goes_on(desk, monkeypatch):
    ident = timed(desk, 600)
    assert "the step times out: " in desk.run("approvals", "show", ident).out
    desk.run("approvals", "approve", ident)
    monkeypatch.setattr(lifecycle, "time", SimpleNamespace(time=lambda: time.time() + 1000))
    desk.run("execution", "resume", ident)
    step = desk.run("execution", "show", ident, "--json").json["steps"][0]
    assert (step["status"], step["output"]["approved"]) == ("success", True)


def test_a_decision_is_made_once(asked):
    asked.run("approvals", "approve", asked.ident)
    for verb in ("approve", "deny"):
        words = ["already_decided", "approved already", ME]
        asked.says("approvals", verb, asked.ident, code=exit_statuses.REFUSED, words=words)
    assert asked.run("approvals", "show", asked.ident, "--json").json["decision"]["approved"] is True


def test_a_question_whose_execution_has_ended_is_void(asked):
    asked.run("execution", "cancel", asked.ident)
    assert "Nothing waits" in asked.run("approvals", "list").out
    (row,) = asked.run("approvals", "list", "--all", "--json").json["approvals"]
    assert row["status"] == "void"
    asked.says("approvals", "approve", asked.ident, code=exit_statuses.FAILED, words=["not_suspended", "cancelled"])


def test_an_execution_that_is_running_may_ask_where_it_was_begun(asked, monkeypatch):
    asked.run("program", "run", asked.write("p.json", {"steps": [tool("look")]}), "--context", '{"name": "b"}')
    running = asked.run("execution", "list", "--status", "success", "--json").json["executions"][0]["id"]
    monkeypatch.setattr(status, "effective_status", lambda stored: "running")
    there = "answered there; without an answer after ten minutes, `mcp-bridge approvals list` has it"
    asked.says("approvals", "deny", running, code=exit_statuses.USAGE, words=["unknown_approval", "is running", there])
    words = ["not_suspended", "running", "end it there", there]
    asked.says("execution", "cancel", running, code=exit_statuses.FAILED, words=words)
    assert questions.ANSWER_SECONDS == 10 * 60


def test_ids_that_name_no_question_or_several_are_usage_errors(asked):
    for ident in ("ffff.1", "ffff", "", ".", ".1", "x", "%"):
        asked.says("approvals", "show", ident, code=exit_statuses.USAGE, words=["unknown_trace"])
    for number in ("2", "", "01", "-1", "x", "1.1"):
        asked.says(
            "approvals", "approve", f"{asked.ident}.{number}", code=exit_statuses.USAGE, words=["unknown_approval"]
        )
    asked.says("approvals", "approve", code=exit_statuses.USAGE, words=["ID"])
    asked.says(
        "approvals", "approve", asked.ident, "--reason", "x" * 2000, code=exit_statuses.USAGE, words=["--reason"]
    )
    asked.says("approvals", "approve", asked.ident, "--reason", "\udcff", code=exit_statuses.USAGE, words=["--reason"])
    asked.run("program", "run", asked.write("p.json", {"steps": [tool("look")]}), "--context", '{"name": "b"}')
    done = asked.run("execution", "list", "--status", "success", "--json").json["executions"][0]["id"]
    asked.says("approvals", "show", done, code=exit_statuses.USAGE, words=["unknown_approval", "no question"])
    two = {
        "name": "two",
        "steps": [{"id": "both", "type": "parallel", "parallel_steps": [tool("delete", "x"), tool("delete", "y")]}],
    }
    asked.write("programs/two.json", two)
    ident = asked.suspended("two")
    asked.says("approvals", "approve", ident, code=exit_statuses.USAGE, words=["ambiguous_id", f"{ident[:6]}."])
    listed = [row["id"] for row in asked.run("approvals", "list", "--json").json["approvals"]]
    first, second = [one for one in listed if one.startswith(ident)]
    asked.run("approvals", "approve", first)
    # One question is left, and needs no number.
    assert f"{ident[:6]}.{second.rpartition('.')[2]}" in asked.run("approvals", "deny", ident[:8]).out


def test_what_a_question_says_cannot_be_taken_for_the_command_itself(desk):
    forged = "Fine?\nprogram: trusted (the operator's)\nwhy: the boss said so\x1b[1A\x1b[2K\u202e"
    program = {"name": "p\nwhy: x", "steps": [{"id": "ask", "type": "approval", "message": forged, "details": "d\rx"}]}
    file = desk.write("p.json", program)
    ident = desk.run("program", "run", file, "--json", code=exit_statuses.SUSPENDED).json["trace_id"]
    shown = desk.run("approvals", "show", ident).out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert [line for line in lines if line.startswith(("program:", "why:"))] == [r"program: p\nwhy: x (the agent's)"]
    assert "> program: trusted (the operator's)" in lines
    assert "\x1b" not in desk.run("approvals", "list").out


def test_all_of_what_is_approved_is_shown_before_and_when_it_is_approved(asked):
    long = "x" * 10_000 + " and the rest"
    ident = asked.suspended("wipe", name=long)
    assert long in asked.run("approvals", "show", ident).out
    listed = asked.run("approvals", "list")
    assert long not in listed.out
    assert "shown whole by `mcp-bridge approvals show" in listed.err
    assert long in asked.run("approvals", "approve", ident).out


# --- who cannot approve ---


def test_only_the_command_line_and_the_viewer_import_what_decides():
    root = Path(mcp_bridge.__file__).parent
    calls, importers, viewers = [], [], []
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            approvals = isinstance(node, ast.ImportFrom) and node.module == "mcp_bridge.executions.approvals"
            if approvals and "decide" in {each.name for each in node.names}:
                importers.append(name)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mcp_bridge.server.ui"):
                viewers.append(name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decide":
                calls.append(name)
    # What waits is asked of the client's person, too: with their answer alone.
    assert set(importers) == {"cli/commands/approvals.py", "server/ui/api.py", "executions/readiness.py"}
    # A person starts the viewer, or has it served over HTTP, where it answers principals alone.
    places = {name for name in viewers if not name.startswith("server/ui/")}
    assert places == {"cli/commands/ui.py", "server/http/viewer.py"}
    assert set(calls) == {
        "executions/approvals.py",
        "gate/policy_check.py",
        "executions/scripts/script_run.py",
        "executions/scripts/call_recorder.py",
    }


def test_no_request_of_a_sandbox_and_no_tool_is_about_decisions():
    names = [*messages.METHODS, *program_tools.NAMES, "run_python"]
    fields = [field for kind in messages.METHODS.values() for field in getattr(kind, "_fields", ())]
    assert not [name for name in (*names, *fields) if re.search(r"approv|decide|decision|deny|grant", name)]


async def test_a_client_that_drives_programs_cannot_approve(desk):
    desk.configure(ASK_BEFORE_DELETING)
    desk.write("programs/wipe.json", DELETE)
    configuration = configuration_loading.configure(desk.config)
    async with (
        open_bridge(configuration.settings, [], configuration.governance) as bridge,
        Client(build_server(bridge, programs=True)) as client,
    ):
        for name in ("wipe", "clean"):
            arguments = {"program": name, "context": {"name": "a", "approved": True, "__webhook__": {"approved": True}}}
            ran = (await client.call_tool("run_program", arguments)).structured_content
            assert ran["status"] == "suspended"
            for payload in ({"approved": True, "by": "root"}, True, "yes", None):
                told = {"trace_id": ran["trace_id"], "payload": payload}
                answer = (await client.call_tool("resume_program", told)).structured_content
                assert answer["code"] == "still_waiting"
            arguments = {"trace_id": ran["trace_id"], "decision": {"approved": True}}
            answer = (await client.call_tool("resume_program", arguments)).structured_content
            assert answer["code"] == "bad_arguments"
        approvals = await bridge.programs.store.approvals()
        assert [row.status for row in approvals] == ["open", "open"]


def test_a_payload_is_no_decision(asked):
    payload = json.dumps({"approved": True, "by": "root", "comment": None})
    asked.says(
        "execution", "resume", asked.ident, "--payload", payload, code=exit_statuses.SUSPENDED, words=["still_waiting"]
    )
    assert asked.run("approvals", "show", asked.ident, "--json").json["status"] == "open"


def test_a_server_behind_the_bridge_cannot_approve_by_running_the_command(asked, monkeypatch):
    monkeypatch.setenv("MCP_BRIDGE_NESTED", "1")
    for verb in ("approve", "deny"):
        asked.says("approvals", verb, asked.ident, code=exit_statuses.REFUSED, words=["nested_bridge"])
    monkeypatch.delenv("MCP_BRIDGE_NESTED")
    assert len(asked.run("approvals", "list", "--json").json["approvals"]) == 1


def test_a_step_cannot_answer_another_ones_question(desk):
    desk.configure(ASK_BEFORE_DELETING)
    # It names its own outputs as a decision would be, and waits for a payload beside the question.
    program = {
        "name": "sly",
        "steps": [
            {
                "id": "both",
                "type": "parallel",
                "parallel_steps": [tool("order", "approved", output_key="__webhook__"), tool("delete")],
            }
        ],
    }
    desk.write("programs/sly.json", program)
    ident = desk.suspended("sly")
    payload = ("--payload", '{"approved": true}')
    ended = desk.run("execution", "resume", ident, *payload, "--json", code=exit_statuses.SUSPENDED).json
    assert [row["kind"] for row in ended["waiting"]] == ["approval"]
    desk.says("execution", "resume", ident, *payload, code=exit_statuses.SUSPENDED, words=["still_waiting"])


# --- the person at the terminal ---


class Screen:
    """A command with a terminal of its own."""

    def __init__(self, desk, *arguments, stdin_is_terminal=True):
        self._master, slave = os.openpty()
        # Wide enough for the lines that are waited for.
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.shown = b""

        def own_terminal():
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = desk.process(
            *arguments,
            stdin=slave if stdin_is_terminal else subprocess.DEVNULL,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_terminal,
        )
        os.close(slave)

    def until(self, words):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while words.encode() not in self.shown:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._master], [], [], left)[0], f"no {words!r} on the screen:\n{self.shown.decode()}"
            self.shown += os.read(self._master, 4096)
        self.shown = self.shown.partition(words.encode())[2]

    def type(self, text):
        os.write(self._master, text.encode())

    def end(self):
        """What was printed, and the exit status."""
        out = self.process.stdout.read()
        status = self.process.wait(DEADLINE_SECONDS)
        self.process.stdout.close()
        os.close(self._master)
        return out.decode(), status


def test_the_person_at_the_terminal_is_asked(asked):
    context = ("--context", '{"name": "z"}')
    screen = Screen(asked, "program", "run", "clean", *context)
    screen.until("Delete z?")
    screen.until("Approve? [y]es, [n]o, [l]ater: ")
    screen.type("perhaps\n")
    screen.until("Approve? [y]es, [n]o, [l]ater: ")
    screen.type("y\n")
    screen.until("call of local.delete with")
    screen.until("deletions are final")
    screen.until("[l]ater: ")
    screen.type("Yes\n")
    assert screen.end() == ("deleted z\n", 0)


@pytest.mark.parametrize(
    ("typed", "status"),
    [("n\n", exit_statuses.FAILED), ("l\n", exit_statuses.SUSPENDED), ("\x04", exit_statuses.SUSPENDED)],
)
def test_the_person_at_the_terminal_may_deny_or_leave_it_for_later(asked, typed, status):
    screen = Screen(asked, "program", "run", "wipe", "--context", '{"name": "z"}')
    screen.until("[l]ater: ")
    screen.type(typed)
    assert screen.end() == ("", status)


def test_a_script_is_governed_and_asks_at_the_terminal_while_it_waits(asked, image):
    script = "from mcp.servers import local\nprint(await local.delete(name='q'))"
    _, err = asked.process("run", "-c", script).communicate(timeout=DEADLINE_SECONDS)
    assert b"approval_needed: A person has to decide on local.delete (" in err
    screen = Screen(asked, "run", "-c", script)
    screen.until("call of local.delete with")
    screen.until("[l]ater: ")
    screen.type("y\n")
    assert screen.end() == ("deleted q\n", 0)


@pytest.mark.parametrize("name", ["x" * 5000, "\n".join("x" * 200)], ids=["long", "lines"])
def test_what_a_terminal_cannot_show_whole_is_not_asked_there(asked, name):
    step = {"id": "ask", "type": "approval", "message": "Delete $name?"}
    asked.write("programs/say.json", {"name": "say", "steps": [step]})
    screen = Screen(asked, "program", "run", "say", "--context", json.dumps({"name": name}))
    screen.until("too long to be asked here")
    assert screen.end() == ("", exit_statuses.SUSPENDED)


def test_control_c_at_a_question_leaves_the_program_for_later(asked):
    screen = Screen(asked, "program", "run", "wipe", "--context", '{"name": "z"}')
    screen.until("[l]ater: ")
    screen.type("\x03")
    assert screen.end() == ("", 130)


def test_without_a_terminal_on_both_sides_nobody_is_asked(asked):
    screen = Screen(asked, "program", "run", "wipe", "--context", '{"name": "z"}', stdin_is_terminal=False)
    screen.until("waits for a person")
    assert screen.end() == ("", exit_statuses.SUSPENDED)
    assert terminal_prompts.terminal() is None


def test_a_resumed_program_asks_at_the_terminal_too(asked):
    ident = asked.suspended("clean")
    screen = Screen(asked, "approvals", "approve", ident, "--resume")
    screen.until("[l]ater: ")
    screen.type("y\n")
    out, status = screen.end()
    assert (out.splitlines()[-1], status) == ("deleted a", 0)


def test_a_question_at_the_terminal_is_harmless_whatever_it_says():
    question = {"tool": "x", "arguments": {"a": "\x1b[2J"}, "why": "y\x07"}
    told = escaping.escape_controls("\n".join(terminal_output.question(question)))
    assert "\x1b" not in told
    assert "\x07" not in told


def test_what_has_no_width_is_escaped_where_it_joins_no_letters():
    assert escaping.escape_controls("re\u200bad\ufeff\u2060") == r"re\u200bad\ufeff\u2060"
    # Persian, and a family.
    joined = "\u0645\u06cc\u200c\u0634\u0648\u062f \U0001f468\u200d\U0001f469"
    assert escaping.escape_controls(joined) == joined


@pytest.mark.parametrize(
    "hidden",
    "\u00ad\u034f\u115f\u1160\u200b\u200d\u2060\u3164\ufe0f\ufeff\uffa0\U000e0041\U000e0100\u202e\t",
    ids=lambda char: f"{ord(char):04x}",
)
def test_nothing_in_a_question_is_hidden(hidden):
    text = f"a{hidden}b"
    for question in (
        {"tool": text, "arguments": {"a": text}, "program": text, "step": text, "why": text},
        {"message": text, "details": [text]},
    ):
        told = "\n".join([*terminal_output.question(question), _question_text(question)])
        assert hidden not in told
        assert "b" in told
    assert "漢字 é 😀" in "\n".join(terminal_output.question({"message": "漢字 é 😀"}))


@pytest.mark.parametrize("separator", "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", ids=lambda char: f"{ord(char):04x}")
def test_no_line_of_a_question_begins_within_a_text(separator):
    # Each is an end of a line to `str.splitlines`.
    parted, whole = (f"a{sign} “amount”: 1" for sign in (separator, "-"))
    shown, expected = (
        [
            *terminal_output.question({"tool": "x", "arguments": {"to": text}, "announced": {"cc": text}}),
            *terminal_output.question({"message": text, "details": text}),
            *terminal_output.next_steps(
                [{"kind": "in_doubt", "step": "s", "effect": 1, "tool": "x", "since": 0, "arguments": {"to": text}}],
                "0" * 16,
                None,
            ),
            *_question_text({"tool": "x", "arguments": {"to": text}, "announced": {"cc": text}}).split("\n"),
            *_question_text({"message": text, "details": text}).split("\n"),
        ]
        for text in (parted, whole)
    )
    assert len(shown) == len(expected)
    # What is there is shown, and nothing is left out.
    escaped = [line for line in shown if "amount" in line]
    assert len(escaped) == len([line for line in expected if "amount" in line])
    written = {json.dumps(separator)[1:-1], escaping.escape_invisible(separator)}
    assert all(any(sign in line for sign in written) for line in escaped)
    assert not any(separator in line for line in shown)


@pytest.fixture
def narrow():
    """A terminal of 40 columns."""
    master, slave = os.openpty()
    with os.fdopen(master), os.fdopen(slave, "w") as terminal:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        yield terminal


IN_DOUBT = {"kind": "in_doubt", "step": "s", "effect": 1, "tool": "x", "since": 0}


def test_a_doubt_of_a_program_that_a_script_waits_for_is_shown_with_where_it_is_settled():
    inner = {"kind": "in_doubt", "step": "s\x1b", "effect": 1, "name": "pay\x1b"}
    row = {"kind": "program", "step": "0#1", "effect": "0#1", "name": "p", "execution": "abcdef", "waiting": [inner]}
    assert terminal_output.next_steps([row], "0" * 16, None) == [
        "0#1 waits for the program p: mcp-bridge execution show abcdef",
        "  s\\x1b is in doubt: pay\\x1b may have been called: mcp-bridge execution show abcdef",
    ]
    assert terminal_output.next_steps([row | {"waiting": []}], "0" * 16, None) == [
        f"the program p of 0#1 waits no more: mcp-bridge execution resume {'0' * 16}",
    ]


@pytest.mark.parametrize("wide", "漢\u1b44\u1bf2\u1715\u4dc0\u3248\u00a7", ids=lambda char: f"{ord(char):04x}")
def test_a_terminal_does_not_choose_where_a_line_of_a_question_begins(narrow, wide):
    # Terminals show more columns of some of these than Unicode says.
    text = wide * 30 + "x" * 30 + "> “amount”: 1, " + "e\u0301" * 50
    lines = terminal_output.question({"tool": "x", "arguments": {"to": text}, "why": "w" * 100})
    lines += terminal_output.next_steps([{**IN_DOUBT, "arguments": {"to": text}}], "0" * 16, None)
    shown = terminal_output.folded(lines, narrow, indent="  ")
    assert all(sum(1 if char.isascii() else 2 for char in line) <= 40 for line in shown)
    begin = ("  > ", "  + ", "  call of x", "  why: ", "  s is in doubt: ", "  say what ", "    or")
    assert all(line.startswith(begin) for line in shown)
    # Nothing is left out.
    whole = "".join(line[4:] if line.startswith("  + ") else f"\n{line[2:]}" for line in shown)
    assert whole.split("\n")[1:] == lines
    assert terminal_output.folded(lines, io.StringIO()) == lines


def test_a_terminal_shows_words_whole_that_fit_on_a_line(narrow):
    text = "> a few words, and one that is far too long for a line: " + "x" * 60 + " and the end of it"
    assert terminal_output.folded([text], narrow) == [
        "> a few words, and one that is far too ",
        "+ long for a line: ",
        "+ " + "x" * 38,
        "+ " + "x" * 22 + " and the end of ",
        "+ it",
    ]


# --- secret ---

SECRETS = '[secrets.token]\nfile = true\ntools = ["local.look"]\n[secrets.key]\nenv = "DESK_KEY"\n'


def test_a_secret_is_kept_without_ever_being_shown(desk):
    desk.configure(SECRETS)
    ended = desk.start("secret", "set", "token", stdin=b"hunter-two-three\n")
    assert "hunter" not in ended.out + ended.err
    path = desk.state / "secrets.json"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert json.loads(path.read_bytes())["secrets"] == {"token": "hunter-two-three"}
    listed = desk.run("secret", "list")
    assert "hunter" not in listed.out + listed.err
    rows = {row["id"]: row for row in desk.run("secret", "list", "--json").json["secrets"]}
    assert rows["token"]["problem"] is None
    assert (rows["key"]["source"], rows["key"]["variable"]) == ("env", "DESK_KEY")
    assert "DESK_KEY" in rows["key"]["problem"]
    given = desk.run(
        "program",
        "run",
        desk.write("p.json", {"steps": [tool("look")]}),
        "--context",
        '{"name": "vault://secret/token"}',
    )
    assert given.out == "saw vault://secret/token\n"
    desk.run("secret", "remove", "token")
    desk.says("secret", "remove", "token", code=exit_statuses.USAGE, words=["unknown_secret"])


def test_a_value_loses_one_newline_and_nothing_else(desk):
    for number, (given, kept) in enumerate(
        [
            (b"a b c d e f\n\n", "a b c d e f\n"),
            (b"seven77-eleven\r\n", "seven77-eleven"),
            ("ключ-42".encode(), "ключ-42"),
        ]
    ):
        desk.run("secret", "set", f"s{number}", stdin=given)
        assert json.loads((desk.state / "secrets.json").read_bytes())["secrets"][f"s{number}"] == kept


def test_a_secret_that_no_tool_gets_is_kept_with_a_word_about_it(desk):
    ended = desk.says("secret", "set", "lonely", code=0, stdin=b"some-value", words=["[secrets.lonely]"])
    assert ended.out == "lonely is stored in the file\n"
    assert "not configured" in desk.run("secret", "list").out


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("token", b"", ["bad_secret", "empty"]),
        ("token", b"\n", ["bad_secret", "empty"]),
        ("token", b"ab", ["bad_secret", "shorter"]),
        ("token", b"482913", ["bad_secret", "guessed", "masked = false"]),
        ("token", b"x" * 100_000, ["bad_secret", "longer"]),
        ("token", b"\xff\xfe-binary", ["bad_secret", "UTF-8"]),
        ("token", b"vault://secret/x", ["bad_secret"]),
        ("../etc", b"some-value", ["bad_secret", "no name"]),
        ("", b"some-value", ["bad_secret", "no name"]),
        ("key", b"some-value", ["secret_elsewhere", "DESK_KEY"]),
    ],
)
def test_what_can_be_no_secret_is_a_usage_error_that_does_not_repeat_it(desk, name, value, words):
    desk.configure(SECRETS)
    ended = desk.says("secret", "set", name, stdin=value, code=exit_statuses.USAGE, words=words)
    assert "some-value" not in ended.err
    assert not (desk.state / "secrets.json").exists()


def test_a_value_is_no_argument(desk):
    ended = desk.says("secret", "set", "token", "the-value", code=exit_statuses.USAGE)
    assert not (desk.state / "secrets.json").exists()
    assert "unexpected" in ended.err


def test_the_keyring_is_for_those_that_ask_for_it(desk, monkeypatch):
    kept = {}

    class Keyring:
        get_password = staticmethod(lambda service, name: kept.get((service, name)))
        set_password = staticmethod(lambda service, name, value: kept.__setitem__((service, name), value))
        delete_password = staticmethod(lambda service, name: kept.pop((service, name)))

    monkeypatch.setitem(sys.modules, "keyring", Keyring)
    assert "in the keyring" in desk.run("secret", "set", "k", "--keyring", stdin=b"some-value").out
    assert kept == {("mcp-bridge", "k"): "some-value"}
    desk.run("secret", "remove", "k", "--keyring")
    assert kept == {}
    desk.configure(SECRETS)
    desk.says(
        "secret", "set", "token", "--keyring", stdin=b"some-value", code=exit_statuses.USAGE, words=["secret_elsewhere"]
    )


def test_a_file_that_others_can_read_or_that_is_damaged_is_said(desk):
    desk.run("secret", "set", "a", stdin=b"some-value")
    path = desk.state / "secrets.json"
    path.chmod(0o644)
    for command in (["list"], ["set", "a"], ["remove", "a"]):
        ended = desk.says(
            "secret",
            *command,
            stdin=b"other-value",
            code=exit_statuses.FAILED,
            words=["secrets_file_unsafe", "chmod 600"],
        )
        assert "other-value" not in ended.err
    path.write_text("{}")
    path.chmod(0o600)
    desk.says("secret", "list", code=exit_statuses.FAILED, words=["secrets_file_damaged"])
    desk.configure(SECRETS)
    assert "damaged" not in desk.run("secret", "list").err
    assert "is not what this version writes" in desk.run("secret", "list").out


def test_a_typed_secret_is_asked_for_twice_without_an_echo(desk):
    screen = Screen(desk, "secret", "set", "typed")
    screen.until("Value of typed: ")
    screen.type("typed-value\n")
    screen.until("Again: ")
    assert b"typed-value" not in screen.shown
    screen.type("typed-value\n")
    assert screen.end() == ("typed is stored in the file\n", 0)
    screen = Screen(desk, "secret", "set", "typed")
    screen.until("Value of typed: ")
    screen.type("one-value\n")
    screen.until("Again: ")
    screen.type("two-value\n")
    screen.until("not the same")
    assert screen.end() == ("", exit_statuses.USAGE)
    assert json.loads((desk.state / "secrets.json").read_bytes())["secrets"] == {"typed": "typed-value"}


# --- policy ---

POLICY = """
[policy]
preset = "locked"
[policy.limits]
calls = 500
[policy.limits.principal]
model_cost_usd = 2.5
[[policy.rules]]
name = "no deletions"
tools = ["local.delete"]
effect = "deny"
when = "$name == 'precious'"
reason = "ask first"
[[policy.rules]]
tools = ["local.delete"]
effect = "program"
programs = ["clean"]
max_calls = 3
[[policy.rules]]
tools = ["local.*", "git.git_log"]
effect = "allow"
"""


def test_the_policy_in_force_is_shown_whole(desk):
    desk.configure(POLICY)
    shown = desk.run("policy", "show").out
    facts = desk.run("policy", "show", "--json").json
    assert f"preset locked, hash {facts['hash']}" in shown
    assert "1. deny (no deletions): local.delete; when $name == 'precious'\n   ask first" in shown
    assert "2. program: local.delete; as steps of clean; at most 3 in one execution" in shown
    assert "limits of one execution: calls 500" in shown
    assert "limits of one principal: model_cost_usd 2.5" in shown
    assert f"pinned: clean, {facts['programs'][0]['hash']}" in shown
    desk.configure()
    assert "preset open" in desk.run("policy", "show").out


def test_a_policy_that_cannot_be_is_an_error_of_check_with_file_and_line(desk):
    contradiction = (
        '[[policy.rules]]\ntools = ["a.b"]\neffect = "allow"\n[[policy.rules]]\ntools = ["a.b"]\neffect = "approve"\n'
    )
    for more, words in (
        (contradiction, "rule 1 is 'allow' for the same tools"),
        ('[policy]\npreest = "open"\n', "Did you mean preset?"),
        ('[[policy.rules]]\ntools = ["a.b"]\neffect = "program"\nprograms = ["cleen"]\n', "Did you mean clean?"),
        ('[[policy.rules]]\ntools = ["a"]\neffect = "deny"\n', "is no server and tool"),
    ):
        desk.configure(more)
        shown = desk.run("policy", "check", code=exit_statuses.FAILED).out
        assert "error: " in shown
        assert words in shown
        assert f"{desk.config}, line " in shown
        findings = desk.run("policy", "check", "--json", code=exit_statuses.FAILED).json
        assert (findings["ok"], findings["findings"][0]["level"]) == (False, "error")
        assert findings["findings"][0]["line"] > 1


def test_what_is_probably_not_meant_is_a_warning_and_with_strict_a_failure(desk):
    desk.configure(
        '[policy]\ntrust_hints = ["nobody"]\n'
        '[[policy.rules]]\ntools = ["local.*"]\neffect = "deny"\n'
        '[[policy.rules]]\ntools = ["local.look"]\neffect = "approve"\n'
        '[[policy.rules]]\ntools = ["githb.*", "local.lock"]\neffect = "deny"\n'
        '[[policy.rules]]\ntools = ["local.delete", "git.x"]\neffect = "deny"\nwhen = "1 == 1"\n'
        '[[policy.rules]]\ntools = ["local.delete"]\neffect = "deny"\nwhen = "$nmae == \'x\'"\n'
    )
    shown = desk.run("policy", "check").out
    for words in (
        "policy rule 2: it never decides a call: rule 1 (deny) covers all of its tools",
        "there is no server 'nobody'",
        "'githb.*' fits no server that is configured",
        "'local.lock' fits no tool of local",
        "it refers to no argument",
        "no tool that it is for has an argument 'nmae': did you mean $name?",
    ):
        assert words in shown, shown
    assert "local.delete' fits no" not in shown
    assert all(f"{desk.config}, line " in line for line in shown.splitlines())
    desk.run("policy", "check", "--strict", code=exit_statuses.FAILED)
    assert desk.run("policy", "check", "--json").json["ok"] is True
    desk.configure()
    assert desk.run("policy", "check", "--strict").out == "Nothing is wrong with the policy.\n"


def test_the_policies_of_principals_are_checked_as_everybodys(desk):
    table = '[principals.anna.policy]\npreset = "locked"\n[[principals.anna.policy.rules]]\ntools = ["local.delete"]\n'
    desk.configure(table + 'effect = "allow"\nwhen = "$nmae == \'x\'"\n')
    shown = desk.run("policy", "check").out
    assert shown.startswith(f"warning: principals.anna: {desk.config}, line "), shown
    assert shown.endswith("no tool that it is for has an argument 'nmae': did you mean $name?\n")
    desk.run("policy", "check", "--strict", code=exit_statuses.FAILED)
    for faulty, words in (
        ('effect = "program"\nprograms = ["cleen"]\n', "Did you mean clean?"),
        ('effect = "alow"\n', "Did you mean allow?"),
    ):
        desk.configure(table + faulty)
        shown = desk.run("policy", "check", code=exit_statuses.FAILED).out
        assert words in shown
        assert f"{desk.config}, line " in shown


def test_what_is_wrong_elsewhere_is_a_usage_error_of_check(desk):
    desk.configure("[tools]\n")
    desk.says("policy", "check", code=exit_statuses.USAGE, words=["bad_config", "not TOML"])
    desk.configure('[model]\nprovider = "oracle"\n')
    desk.says("policy", "check", code=exit_statuses.USAGE, words=["bad_config", "model.provider"])


def test_tools_of_servers_that_nobody_has_listed_are_not_called_unknown(desk):
    desk.configure(POLICY + '[servers.git]\ncommand = "/nowhere/at-all"\n')
    shown = desk.run("policy", "check").out
    assert shown == (
        "note: rules weren't checked against the tools of git: they haven't been listed yet; --start does.\n"
    )
    desk.run("policy", "check", "--strict")
    assert "could not be listed" in desk.run("policy", "check", "--start").out


@pytest.mark.parametrize(
    ("arguments", "first", "decides"),
    [
        (["local.look"], "allow: local.look, by rule 3", "→ rule 3, allow [local.*]"),
        (["look"], "allow: local.look", "→ rule 3"),
        (["local.delete"], "deny: local.delete, by rule 2", "pass, its condition doesn't hold"),
        (["local.delete", "--args", '{"name": "precious"}'], "deny: local.delete, by rule 1", "its condition holds"),
        (["local.delete", "--args", '{"name": "x"}'], "deny: local.delete, by rule 2", "is no step of a program"),
        (
            ["local.delete", "--args", '{"name": "x"}', "--program", "clean"],
            "allow: local.delete, by rule 2",
            "→ rule 2",
        ),
        (["delete", "--args", '{"name": "x"}', "--program", "clean", "--step", "delete"], "allow", "→ rule 2"),
        (["delete", "--args", '{"name": "x"}', "--program", "outer"], "deny", "isn't one of the rule's"),
        (["delete", "--args", '{"name": "x"}', "--program", "outer", "--step", "in/delete"], "allow", "→ rule 2"),
        (["delete", "--args", '{"name": "x"}', "--program", "each", "--step", "all[7]"], "deny", "isn't one of"),
        (["delete", "--args", '{"name": "x"}', "--program", "kept"], "deny", "isn't the operator's"),
        (["delete", "--args", '{"name": "x"}', "--program", "./copy.json"], "deny", "isn't the operator's"),
        (["git.git_log"], "allow: git.git_log, by rule 3", "→ rule 3"),
        (["git.other"], 'deny: git.other, by the preset "locked"', '→ the preset "locked": deny'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_which_rule_decides_a_call_is_explained(desk, arguments, first, decides):
    desk.configure(POLICY + '[servers.git]\ncommand = "/nowhere/at-all"\n')
    desk.write("programs/outer.json", {"name": "outer", "steps": [{"id": "in", "type": "program", "program": "clean"}]})
    each = {"id": "all", "type": "map", "over": "$names", "step": {"type": "tool", "tool": "local.delete"}}
    desk.write("programs/each.json", {"name": "each", "steps": [each]})
    desk.run("program", "save", "kept", desk.write("copy.json", CLEAN))
    ended = desk.run("policy", "explain", *arguments)
    assert ended.out.startswith(first), ended.out
    assert decides in ended.out
    told = desk.run("policy", "explain", *arguments, "--json").json
    assert told["effect"] == first.partition(":")[0]
    assert len(told["rules"]) == 3


@pytest.mark.parametrize("preset", ["open", "locked"])
@pytest.mark.parametrize("value", ["vault://secret/tok", "it is vault://secret/tok", "vault://ref/abcdefgh23456777"])
def test_a_call_with_a_secret_is_explained_as_it_is_decided(desk, preset, value):
    effect, when = {"open": ("deny", "=="), "locked": ("allow", "!=")}[preset]
    desk.configure(
        f'[policy]\npreset = "{preset}"\n[[policy.rules]]\ntools = ["local.delete"]\neffect = "{effect}"\n'
        f'when = "$name {when} \'abcdefgh\'"\n[secrets.tok]\nenv = "NOT_THERE"\ntools = ["local.delete"]\n'
    )
    ended = desk.run("policy", "explain", "local.delete", "--args", json.dumps({"name": value}))
    assert ended.out.startswith("deny: local.delete"), ended.out
    assert "its condition has no answer for these arguments (a part of the text isn't known)" in ended.out
    assert desk.run("policy", "explain", "local.delete", "--args", '{"name": "other"}').out.startswith("allow")


def test_a_call_is_explained_as_it_is_decided_for_a_principal(desk):
    desk.configure(
        '[policy]\npreset = "open"\n[[policy.rules]]\ntools = ["local.delete"]\neffect = "approve"\n'
        '[principals.anna]\nservers = ["local"]\n[principals.anna.policy]\npreset = "open"\n'
        '[[principals.anna.policy.rules]]\ntools = ["local.delete"]\neffect = "deny"\nwhen = "$name == \'a\'"\n'
        '[principals.build.policy]\npreset = "locked"\n[principals.carl]\n'
        '[servers.git]\ncommand = "/nowhere/at-all"\n'
    )
    anna = ("policy", "explain", "local.delete", "--principal", "anna")
    for name in ("a", "b"):
        told = desk.run(*anna, "--args", json.dumps({"name": name})).out.splitlines()
        decides = [line for line in told if line.endswith(", which decides:")]
        if name == "a":
            assert told[0] == "deny: local.delete, by rule 2"
            assert decides == ["the policy of the principal anna, which decides:"]
        else:
            assert told[0] == "approve: local.delete, by rule 1"
            assert decides == ["everybody's policy, which decides:"]
    assert desk.run("policy", "explain", "local.delete", "--json").json["effect"] == "approve"
    for name, effect in (("build", "deny"), ("carl", "allow"), ("dora", "allow"), ("local", "allow")):
        ended = desk.run("policy", "explain", "git.log", "--principal", name, "--json")
        assert ended.json["effect"] == effect
        assert ("no table [principals.dora]" in ended.err) == (name == "dora")
    words = ["unknown_server", "doesn't reach the server 'git'", "[principals.anna]"]
    desk.says("policy", "explain", "git.log", "--principal", "anna", code=exit_statuses.USAGE, words=words)
    desk.says("policy", "explain", "git.log", "--principal", "A B", code=exit_statuses.USAGE, words=["bad_principal"])
    shown = desk.run("policy", "show", "--principal", "build").out.splitlines()
    assert shown[0] == "everybody's policy, which is a floor:"
    assert "the policy of the principal build over it, with the lower limits of both:" in shown
    assert desk.run("policy", "show", "--principal", "build", "--json").json["floor"]["preset"] == "open"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["SERVER.TOOL"]),
        (["local"], ["unknown_tool"]),
        (["nobody.x"], ["unknown_server", "'nobody'"]),
        (["local.loook"], ["unknown_tool", "Did you mean look?"]),
        (["local."], ["unknown_tool"]),
        ([""], ["unknown_tool"]),
        (["local.look", "--args", "[]"], ["bad_argument", "--args"]),
        (["local.look", "--args", "{"], ["bad_argument", "--args"]),
        (["local.look", "--args", '{"a": [{"n": 1, "n": 2}]}'], ["bad_argument", "--args", "'n' is there twice"]),
        (["local.look", "--step", "look"], ["bad_argument", "--program"]),
        (["local.look", "--program", "nothing"], ["unknown_program"]),
        (["local.look", "--program", "clean", "--step", "nothing"], ["unknown_step", "Steps: look, ask, delete"]),
        (["local.look", "--program", "clean", "--step", "look/x"], ["unknown_step", "runs no program"]),
        (["local.look", "--program", "clean", "--step", ""], ["unknown_step"]),
        (["local.look", "--program", "clean", "--step", "ask"], ["unknown_step", "approval step"]),
        (["local.look", "--program", "clean", "--step", "delete"], ["unknown_step", "it calls delete"]),
    ],
    ids=" ".join,
)
def test_what_cannot_be_explained_is_a_usage_error(desk, arguments, words):
    desk.says("policy", "explain", *arguments, code=exit_statuses.USAGE, words=words)


# --- what the operator lays down is read by every command that runs code or serves ---

BROKEN = [
    ("[policy]\npreset = 'opne'\n", ["bad_config", "preset", "Did you mean open?"]),
    ("[[policy.rules]]\ntools = ['a.b']\neffect = 'program'\nprograms = ['nothing']\n", ["bad_config", "'nothing'"]),
    ("[secrets.token]\nvalue = 'x'\n", ["bad_config", "secret set token"]),
    ("[secrets.token]\nfile = true\nenv = 'X'\n", ["bad_config", "secrets.token"]),
    ("[model]\nprovider = 'oracle'\n", ["bad_config", "model.provider"]),
    ("[projection]\npaterns = []\n", ["bad_config", "projection"]),
    ("[servers.local]\ncommand = 'x'\n", ["bad_config", "'local'"]),
]


@pytest.mark.parametrize(("more", "words"), BROKEN, ids=[words[-1] for _, words in BROKEN])
@pytest.mark.parametrize("command", [("run", "-c", "1"), ("program", "run", "clean")], ids=lambda words: words[0])
def test_what_is_wrong_with_it_is_a_usage_error_with_file_and_line(desk, command, more, words):
    desk.configure(more)
    ended = desk.says(*command, code=exit_statuses.USAGE, words=words)
    assert str(desk.config) in ended.err
    if "local" not in words[-1]:
        assert re.search(r"line \d+", ended.err)


@pytest.mark.parametrize("command", [("run", "-c", "1"), ("program", "run", "clean")], ids=lambda words: words[0])
def test_tools_and_programs_that_cannot_be_loaded_are_usage_errors(desk, command):
    module = desk.write(f"tools/wrong_{uuid.uuid4().hex}.py", "import mcp_bridge\n\nraise ValueError('not today')\n")
    desk.says(*command, code=exit_statuses.USAGE, words=["bad_tools", f"{module}, line 3", "not today"])
    Path(module).unlink()
    broken = desk.write("programs/broken.yaml", {"steps": [{"id": "a", "type": "x"}]})
    desk.says(*command, code=exit_statuses.USAGE, words=["bad_program", broken, "steps[0].type"])
    Path(broken).write_text("name: a\nsteps: [{id: s, type: tool, tool: local.x, arg: {}}]\n")
    desk.says(*command, code=exit_statuses.USAGE, words=["bad_program", "steps[0].arg", "did you mean 'args'?\n"])
    Path(broken).write_text("steps: [")
    desk.says(*command, code=exit_statuses.USAGE, words=["bad_program", broken])


def test_commands_that_need_no_tools_work_beside_broken_ones(desk):
    desk.write(f"tools/wrong_{uuid.uuid4().hex}.py", "raise SystemExit('no')")
    for command in (
        ("execution", "list"),
        ("approvals", "list"),
        ("secret", "list"),
        ("policy", "show"),
        ("program", "list"),
    ):
        desk.run(*command)


# --- serve --tools ---


def test_serving_offers_tools_for_programs_when_asked_to(desk, monkeypatch):
    served = []

    async def serve_stdio(_source, first, *, programs):
        served.append((first.governance is not None, programs))

    monkeypatch.setattr("mcp_bridge.server.app.serve_stdio", serve_stdio)
    desk.run("serve")
    desk.run("serve", "--tools", "run_python")
    desk.run("serve", "--tools", "programs")
    assert served == [(True, False), (True, False), (True, True)]
    desk.says("serve", "--tools", "everything", code=exit_statuses.USAGE, words=["--tools"])


@pytest.mark.parametrize(("arguments", "count"), [((), 1), (("--tools", "programs"), 7)])
def test_a_served_bridge_lists_its_tools_on_the_wire(desk, arguments, count):
    # No engine is found on this path: none is needed to list tools.
    command = [COMMAND, "--config", str(desk.config), "serve", *arguments]
    with subprocess.Popen(
        command,
        env=desk.env | {"PATH": str(desk.folder), "MCP_BRIDGE_RUNTIME": "auto"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:

        def ask(number, method, params):
            process.stdin.write(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
            )
            process.stdin.flush()
            return json.loads(process.stdout.readline())["result"]

        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        ask(1, "initialize", client)
        names = [row["name"] for row in ask(2, "tools/list", {})["tools"]]
        process.stdin.close()
        assert process.wait(DEADLINE_SECONDS) == 0
    assert len(names) == count
    assert names[0] == "run_python"


def test_every_command_has_help_with_its_options(desk):
    of = {
        ("serve",): ("--tools", "run_python", "programs"),
        ("approvals", "list"): ("--all", "--json", "Example:"),
        ("approvals", "show"): ("ID", "--json", "Example:"),
        ("approvals", "approve"): ("ID", "--reason", "--resume", "Example:"),
        ("approvals", "deny"): ("ID", "--reason", "--resume", "Example:"),
        ("secret", "set"): ("NAME", "--keyring", "Examples:", "without an echo"),
        ("secret", "list"): ("--json",),
        ("secret", "remove"): ("NAME", "--keyring"),
        ("policy", "show"): ("--principal", "--json"),
        ("policy", "check"): ("--start", "--strict", "--json", "Example:"),
        ("policy", "explain"): (
            "SERVER.TOOL",
            "--args",
            "--program",
            "--step",
            "--principal",
            "--start",
            "--json",
            "Examples:",
        ),
    }
    for command, words in of.items():
        shown = desk.run(*command, "--help", config=False).out
        assert all(word in shown for word in words), (command, shown)
    root = desk.run("--help", config=False).out
    for group in ("program", "execution", "approvals", "secret", "policy"):
        assert f" {group} " in root
        assert desk.says(group, code=exit_statuses.USAGE, config=False) is not None


def test_what_is_no_text_is_no_yes(desk):
    desk.env["PYTHONIOENCODING"] = "utf-8:strict"  # as with a locale other than C
    code, shown = desk.at_a_terminal("install", "cursor", typed=["\udcff"])
    assert (code, "Traceback" in shown, "[y/N]" in shown) == (exit_statuses.REFUSED, False, True), shown
    assert not (desk.folder / ".cursor").exists()

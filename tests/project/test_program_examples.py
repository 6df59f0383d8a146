"""Every example of programs runs in real containers, as its first lines say, and does what it says it does."""

import ast
import base64
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from bridge_fixtures import Setup
from kept_files import kept_files
from ledger_fixtures import plaintext
from sandbox_fixtures import RUNTIME

from mcp_bridge.governance import yaml_text
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.language.step_fields import TYPES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

CARD = "3566002020360505"

PUBLISHED_PAYMENT = {
    "name": "payment_pipeline",
    "steps": [
        {"id": "validate", "type": "tool", "tool": "validate_amount"},
        {"id": "reserve", "type": "tool", "tool": "reserve_funds"},
        {"id": "capture", "type": "tool", "tool": "capture_payment"},
        {"id": "receipt", "type": "tool", "tool": "send_receipt", "is_terminal": True},
    ],
}

PUBLISHED_GATE = {
    "id": "classify",
    "type": "llm",
    "prompt": "Is this a valid refund request? Reply ONLY with: yes or no",
    "output_key": "decision",
    "allowed_outputs": ["yes", "no"],
    "on_error": "skip",
}


@dataclass
class Shop:
    """An example as a user has it: its folder, an empty folder for what its tools do, and a state directory."""

    setup: Setup
    folder: Path
    state_dir: Path

    def ended(self, example, *arguments, config=None, stdin=b"", **env):
        """The process of a command that has ended."""
        named = ["--config", str(config or EXAMPLES / example / "mcp-bridge.toml")]
        env |= {"SHOP_DIR": str(self.folder), "MCP_BRIDGE_STATE_DIR": str(self.state_dir)}
        env["MCP_BRIDGE_RUNTIME"] = RUNTIME
        return self.setup.run(*named, *arguments, config=False, env=env, stdin=stdin, timeout=120)

    def command(self, example, *arguments, code=0, **env):
        """What a command prints; it must end so, and have nothing to complain of."""
        ended = self.ended(example, *arguments, **env)
        # At the first start it is said how long things are kept.
        said = [line for line in ended.stderr.decode().splitlines() if "a ledger begins in" not in line]
        assert (ended.returncode, said) == (code, []), ended.stdout.decode()
        return ended.stdout.decode()

    def run(self, example, script, **env):
        """The lines that a script of an example prints."""
        return self.command(example, "run", str(EXAMPLES / example / script), **env).splitlines()

    def did(self, name):
        """What the tools have noted in a file."""
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def kept(self):
        """Every byte in the state directory."""
        return b"".join(kept_files(self.state_dir).values())


@pytest.fixture
def shop(setup, tmp_path):
    state_dir, folder = tmp_path / "state", tmp_path / "shop"
    shutil.copytree(
        setup.state_dir,
        state_dir,
        symlinks=True,
        ignore=shutil.ignore_patterns("run", "files", "*.sqlite*", "*.key", "*.pub", "ledger.head"),
    )
    folder.mkdir()
    return Shop(setup, folder, state_dir)


def test_the_refunds_that_the_model_and_the_policy_allow_are_paid(shop):
    assert shop.run("refund", "refund.py") == [
        "A-17 success - refunded 25",
        "A-18 success - rejected",
        "A-19 failed - step 'process_refund' failed: The operator's policy denies local.issue_refund, by rule 1. "
        "Refunds of more than 100 are decided by people.",
        "A-20 failed - step 'analyze' failed: the model's answer 'It depends.' is none of 'yes', 'no'",
    ]
    assert shop.did("refunds.jsonl") == [{"refunded": "A-17", "amount": 25}, {"rejected": "A-18"}]


def test_the_payment_is_the_published_program_to_the_letter():
    written = json.loads((EXAMPLES / "payment/programs/payment_pipeline.json").read_text())
    assert written == PUBLISHED_PAYMENT


def test_the_published_gate_on_a_models_answer_runs_as_it_is(shop):
    code = f"""
from mcp import programs
trace = await programs.run({{"steps": [{PUBLISHED_GATE!r}]}})
print(trace.status, trace.output)
"""
    assert shop.command("refund", "run", "-c", code) == "success no\n"


def test_an_order_is_paid_once_however_often_that_is_asked(shop):
    expected = [
        "success ['validate', 'reserve', 'capture', 'receipt']",
        "paid once",
        "'receipt for 42.00 EUR sent'",
    ]
    assert shop.run("payment", "pay.py") == expected
    assert shop.run("payment", "pay.py") == expected, "in another process, with the same key"
    assert [done["did"] for done in shop.did("payments.jsonl")] == ["reserve", "capture", "receipt"]


REFUSED = {
    "call it": "denied",
    "call it raw": "denied",
    "call it blocking": "denied",
    "call it by name": "denied",
    "call it in capitals": "unknown_tool",
    "write the frame": "denied",
    "a program of one step": "denied",
    "with the server's name": "denied",
    "with the right program's name": "reserved_name",
    "the right program's text": "denied",
    "saved under its name": "reserved_name",
    "saved under another": "denied",
    "in a sub-program": "denied",
    "in a parallel step": "sub_steps_failed",
    "for each of a list": "sub_steps_failed",
    "as what undoes a step": "unknown_tool",
    "skip to it": "violation",
    "skip to it, all at once": "violation",
    "do a step twice": "violation",
    "call it done": "violation",
    "another's execution": "violation",
}


def test_a_script_that_wants_to_capture_without_the_program_captures_nothing(shop):
    ended = shop.ended("hostile", "run", str(EXAMPLES / "hostile/steal.py"))
    assert ended.returncode == 0, ended.stderr.decode()
    *lines, summary, did = ended.stdout.decode().splitlines()
    assert dict(line.split(": ")[:2] for line in lines) == REFUSED
    assert summary == f"{len(REFUSED)} attempts, {len(REFUSED)} refused"
    assert did == "the till did: []"
    assert shop.did("payments.jsonl") == []
    # The operator is told of each script that left the program's order, and of programs that name what is denied.
    others = ("a ledger begins in", "the policy denies these steps")
    warnings = [line for line in ended.stderr.decode().splitlines() if not any(other in line for other in others)]
    assert len(warnings) >= 4
    assert all("violation: " in line for line in warnings)


def masked(lines):
    """What the script of the vault example prints, and that nothing of the number is in it."""
    assert lines == [
        "success",
        "{'message': '120 for Dovetail & Sons, by card vault://secret/company-card', "
        "'token': 'eyJwYW4iOiAivault://secret/company-cardJ9'}",
        "secret_denied - The tool local.write_note may not receive the secret 'company-card'.",
    ]


def forms(value):
    """A value as it is, and as it would be in other data."""
    data = value.encode()
    whole = [base64.b64encode(bytes(offset) + data + bytes(3))[4:-8] for offset in range(3)]
    return [data, data.hex().encode(), *whole]


def test_a_card_number_reaches_its_tool_and_nothing_else(shop):
    masked(shop.run("vault", "pay.py", COMPANY_CARD=CARD))
    assert shop.did("charges.jsonl") == [{"card": hashlib.sha256(CARD.encode()).hexdigest(), "amount": 120}]
    assert (shop.folder / "notes.txt").read_text() == "120 EUR to Dovetail & Sons, with the card\n"
    opened = plaintext(shop.state_dir / "ledger.sqlite")
    assert b"vault://secret/company-card" in opened, "the record has the call"
    kept = shop.kept()
    assert b"vault://secret/company-card" not in kept, "and what it has is encrypted"
    # The script says in its own text how it is run.
    opened = opened.replace(b"COMPANY_CARD=" + CARD.encode(), b"")
    assert [form for form in forms(CARD) if form in kept + opened] == []


def test_the_card_number_may_be_kept_in_the_operators_file(shop, tmp_path):
    folder = tmp_path / "kept"
    shutil.copytree(EXAMPLES / "vault", folder)
    config = folder / "mcp-bridge.toml"
    config.write_text(config.read_text().replace('env = "COMPANY_CARD"', "file = true"))
    shop.ended("vault", "secret", "set", "company-card", config=config, stdin=f"{CARD}\n".encode())
    file = shop.state_dir / "secrets.json"
    assert file.stat().st_mode & 0o777 == 0o600
    ended = shop.ended("vault", "run", str(folder / "pay.py"), config=config)
    masked(ended.stdout.decode().splitlines())
    file.unlink()
    assert [form for form in forms(CARD) if form in shop.kept()] == []


def test_a_thousand_programs_run_at_once(shop):
    missing = "; ".join(
        f"step 'weigh' failed: local.weigh: LookupError: there is no order {order}" for order in (1000, 250, 500, 750)
    )
    assert shop.run("thousand", "ship.py") == ["  795 shipped", "  201 held", "    4 failed", f"  why: {missing}"]
    shipped = [int(line) for line in (shop.folder / "shipped.txt").read_text().splitlines()]
    assert sorted(shipped) == [order for order in range(1, 1001) if order % 250 and order * 7919 % 25_000 <= 20_000]


def test_a_purchase_waits_for_two_people_and_goes_on_in_other_processes(shop):
    status, trace_id = shop.run("approval", "request.py")
    assert status == "suspended at lead"

    listed = shop.command("approval", "approvals", "list")
    assert "Team lead: buy 1 lathe for 4800 EUR?" in listed
    still = shop.ended("approval", "execution", "resume", trace_id)
    assert (still.returncode, still.stdout) == (5, b"")
    assert b"still_waiting" in still.stderr

    shop.command("approval", "approvals", "approve", trace_id[:8])
    resumed = shop.ended("approval", "execution", "resume", trace_id[:8])
    assert resumed.returncode == 5
    assert b"finance waits for a person" in resumed.stderr
    assert shop.did("orders.jsonl") == []

    approved = shop.ended("approval", "approvals", "approve", trace_id[:8], "--resume")
    assert approved.returncode == 0, approved.stderr.decode()
    assert approved.stdout.decode().splitlines()[-1] == "ordered 1 lathe"
    assert shop.did("orders.jsonl") == [{"ordered": "lathe", "count": 1, "total": 4800}]

    trace = shop.command("approval", "run", "-c", f"from mcp import traces\nprint(await traces.get({trace_id!r}))")
    assert trace.splitlines()[0] == "purchase: success"
    again = shop.ended("approval", "execution", "resume", trace_id)
    assert b"not_suspended" in again.stderr


def test_a_purchase_that_one_of_them_denies_is_not_made(shop):
    _, trace_id = shop.run("approval", "request.py")
    shop.command("approval", "approvals", "deny", trace_id, "--reason", "we have one")
    resumed = shop.ended("approval", "execution", "resume", trace_id)
    assert (resumed.returncode, resumed.stdout.decode()) == (0, "no lathe this time\n")
    assert shop.did("orders.jsonl") == [{"declined": "lathe"}]


def test_the_agents_script_cant_approve_what_its_program_asks_a_person(shop):
    _, trace_id = shop.run("approval", "request.py")
    code = f"""
from mcp import MCPError, programs
for payload in (None, True, {{"approved": True}}, {{"approved": True, "by": "anna"}}):
    try:
        print((await programs.resume({trace_id!r}, payload)).status)
    except MCPError as exc:
        print(exc.code)
"""
    assert shop.command("approval", "run", "-c", code).split() == ["still_waiting"] * 4
    assert shop.did("orders.jsonl") == []


def test_each_example_says_how_it_is_run_and_is_in_the_list():
    readme = (EXAMPLES / "README.md").read_text()
    folders = [config.parent for config in EXAMPLES.glob("*/mcp-bridge.toml")]
    scripts = [script for folder in folders for script in folder.glob("*.py")]
    assert len(scripts) >= 7
    for folder in folders:
        assert f"| `{folder.name}/` |" in readme
    for script in scripts:
        if script.name == "service.py":
            # What an example calls, and not a script of the bridge's.
            continue
        example = script.parent.name
        says = " ".join(ast.get_docstring(ast.parse(script.read_text())).split())
        assert f"mcp-bridge --config examples/{example}/mcp-bridge.toml run examples/{example}/{script.name}" in says


def test_yes_and_no_in_a_program_of_yaml_are_what_a_model_may_say():
    text = "steps: [{id: a, type: llm, prompt: x, allowed_outputs: [yes, no, On, n], is_terminal: true}]"
    (step,) = yaml_text.load(text)["steps"]
    assert step["allowed_outputs"] == ["yes", "no", "On", "n"]
    assert step["is_terminal"] is True
    assert yaml_text.load("[True, FALSE, null, 1, 1.5, trueish]") == [True, False, None, 1, 1.5, "trueish"]


# --- the surface, as a script sees it ---

SURFACE = """
import inspect
from mcp import MCPError, programs, traces

print(programs.__doc__)
print("---")
for name in ("run", "resume", "save", "list", "get", "delete", "validate", "plan"):
    print(name, inspect.signature(getattr(programs, name)), bool(getattr(programs, name).__doc__))
print(inspect.signature(traces.get), traces.__doc__)
for wrong in (lambda: programs.run(), lambda: programs.save("x"), lambda: programs.run("x", contxt={})):
    try:
        wrong()
    except TypeError as exc:
        print(exc)
for tool in ("capture_paymnt", "no_such", "local.capture_paymnt"):
    trace = await programs.run({"steps": [{"id": "a", "type": "tool", "tool": tool}]})
    print(trace.code, trace.error)
trace = await programs.run("payment_pipeline")
print(trace)
print((await traces.get(trace.trace_id)).step("reserve"))
"""


def test_a_script_finds_out_how_to_write_and_run_programs(shop):
    guide, _, rest = shop.command("payment", "run", "-c", SURFACE).partition("\n---\n")
    example = guide[guide.index("{") : guide.index("    trace =")]
    assert parse(ast.literal_eval(example)).name == "unnamed"
    for kind in TYPES:
        assert f"\n    {kind}" in guide
    lines = rest.splitlines()
    assert [line.split("(")[0].strip() for line in lines[:8]] == [
        "run",
        "resume",
        "save",
        "list",
        "get",
        "delete",
        "validate",
        "plan",
    ]
    assert all(line.endswith(" True") for line in lines[:8])
    assert lines[8].startswith("(trace_id: str)")
    # Later versions of Python add what was meant.
    assert [line.removesuffix(". Did you mean 'context'?") for line in lines[9:15]] == [
        "run() missing 1 required positional argument: 'program'",
        "save() missing 1 required positional argument: 'program'",
        "run() got an unexpected keyword argument 'contxt'",
        "unknown_tool step 'a' failed: There is no tool 'capture_paymnt'. Did you mean capture_payment?",
        "unknown_tool step 'a' failed: There is no tool 'no_such'. A step names server.tool, or a tool of local.",
        "unknown_tool step 'a' failed: server 'local' has no tool 'capture_paymnt'. Did you mean capture_payment?",
    ]
    assert lines[15:19] == [
        "payment_pipeline: success",
        "  validate success → {'order': 'abc-123', 'amount': 42, 'currency': 'EUR'}",
        "  reserve success → 'reserved'",
        "  capture success → 'captured'",
    ]
    assert lines[-1] == "reserve success → 'reserved'"

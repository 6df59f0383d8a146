"""What a person decides about is shown whole, and no name of an agent's passes for one of the operator's."""

import json
import textwrap
import uuid
from typing import ClassVar

import mcp_types as types
import pytest

from mcp_bridge.cli import terminal_output
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_line, escape_name
from mcp_bridge.governance.governance import load_governance, refuse_local
from mcp_bridge.ledger.storage.execution_store import ProgramStore, SavedProgram
from mcp_bridge.lookalikes import resembled, skeleton
from mcp_bridge.server.questions import MAX_SHOWN_CHARS, MAX_SHOWN_LINES, _question_text, is_displayable

pytestmark = pytest.mark.timeout(120)

ALIKE = {
    "a space behind": "payout ",
    "a space before": " payout",
    "a no-break space": "payout\u00a0",
    "a hair space within": "pay\u200aout",
    "zero width": "pay\u200bout",
    "a soft hyphen": "pay\u00adout",
    "a variation selector": "payout\ufe0f",
    "a tag": "payout\U000e0041",
    "a Hangul filler": "payout\u3164",
    "a Braille blank": "payout\u2800",
    "turned around": "\u202etuoyap",
    "left to right": "payout\u200e",
    "Cyrillic": "p\u0430y\u043eut",
    "all Cyrillic and Greek": "\u0440\u0430\u0443\u03bf\u03c5t",
    "full width": "\uff50\uff41\uff59\uff4f\uff55\uff54",
    "mathematical": "\U0001d429\U0001d41a\U0001d432\U0001d428\U0001d42e\U0001d42d",
    "capitals": "PAYOUT",
    "one capital": "Payout",
    "a zero": "pay0ut",
    "a mark": "payo\u0308ut",
    "a mark on top": "payout\u0336",
    "a control character": "payout\x07",
}


@pytest.mark.parametrize("how", [how for how in ALIKE if how != "turned around"])
def test_a_name_that_looks_like_another_is_told(how):
    assert resembled(ALIKE[how], ["refund", "payout"]) == "payout"


def test_digits_letters_and_pairs_that_look_alike_are_told():
    pairs = [("invoice", "INVOlCE"), ("modern", "modem"), ("order-1", "order-l"), ("order-I", "order-1"), ("vv", "w")]
    pairs += [("\u0432\u044b\u043f\u043b\u0430\u0442\u0430", "\u0432\u044b\u043f\u043b\u0061\u0442\u0061")]
    for one, other in pairs:
        assert resembled(one, [other]) == other, (one, other)
        assert resembled(other, [one]) == one, (one, other)


@pytest.mark.parametrize(
    "name", ["payout", "payouts", "pay-out", "pay_out", "refund", "выплата", "支払い", "🙂", "x" * 5000]
)
def test_other_names_are_not(name):
    assert resembled(name, ["payout", "payin"]) is None
    assert skeleton(name)


@pytest.mark.parametrize("how", [how for how in ALIKE if not ALIKE[how].isascii() or ALIKE[how] != ALIKE[how].strip()])
def test_a_name_is_shown_so_that_it_is_taken_for_no_other(how):
    shown = escape_name(ALIKE[how])
    assert "\\" in shown or how.startswith("a mark")
    assert shown.isascii() or how.startswith("a mark")
    assert shown == shown.strip()


@pytest.mark.parametrize(
    "hidden", ["\u3164", "\u2800", "\ufe0f", "\u034f", "\u200b", "\u202e", "\U000e0041", "\n", "\xa0"]
)
def test_what_cant_be_seen_is_seen_in_what_a_folders_files_would_do(hidden):
    shown = escape_line(f"./run{hidden}.sh")
    assert (hidden in shown, shown.isascii()) == (False, True)
    assert escape_line("./run.sh 🙂 支払い") == "./run.sh 🙂 支払い"


def test_names_that_pass_for_no_other_are_shown_as_they_are():
    for name in ("payout", "two words", "выплата", "支払い", "Müller-Lüdenscheidt", "🙂 smile"):
        assert escape_name(name) == name
    assert escape_name("two  words\n") == "two \\x20words\\n"


# --- programs

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def pay(name: str) -> str:
    return f"paid {name}"
"""

ASK = {"id": "ask", "type": "approval", "message": "Pay?"}
PAYOUT = {"name": "payout", "steps": [ASK, {"id": "pay", "type": "tool", "tool": "pay", "args": {"name": "a"}}]}
RULES = {"rules": [{"tools": ["local.pay"], "effect": "approve", "reason": "money"}]}


@pytest.fixture
def governance(tmp_path, sandboxes):
    (tmp_path / "tools").mkdir()
    (tmp_path / "programs").mkdir()
    (tmp_path / "tools" / f"money_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    (tmp_path / "programs" / "payout.json").write_text(json.dumps(PAYOUT))
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "programs": {"path": ["programs"]},
        "policy": RULES,
    }
    return load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)


@pytest.fixture
def opened(sandboxes, governance, tmp_path):
    """Opens a bridge over the operator's tool and program."""
    return lambda: sandboxes.open(governance=governance, state_dir=tmp_path / "state")


OTHER = {"steps": [ASK]}


@pytest.mark.parametrize("how", [how for how in ALIKE if how != "turned around"])
async def test_no_program_is_saved_or_run_under_a_name_like_an_operators(opened, how):
    async with opened() as bridge:
        tries = [
            bridge.programs.library.save(ALIKE[how], OTHER, "local"),
            bridge.programs.library.save("mine", OTHER | {"name": ALIKE[how]}, "local"),
            bridge.run_program(OTHER | {"name": ALIKE[how]}),
        ]
        for tried in tries:
            with pytest.raises(BridgeError) as caught:
                await tried
            assert caught.value.code == "reserved_name"
            assert caught.value.message.isascii() or how.startswith("a mark")
        assert await bridge.programs.store.programs("local") == []
        assert await bridge.programs.store.executions("local", 10) == []


async def test_a_program_that_was_saved_before_under_such_a_name_is_not_run(opened):
    async with opened() as bridge:
        program = (await bridge.programs.library.find(OTHER | {"name": "p\u0430yout"}, "local")).program
        from mcp_bridge.kernel.language.program_parser import bundle

        row = SavedProgram("mine", program.hash, bundle(program), 0.0)
        await ProgramStore(bridge._database).save_program("local", row)
        with pytest.raises(BridgeError, match="looks like payout"):
            await bridge.run_program("mine")


async def test_another_program_that_calls_itself_as_the_operators_is_refused_and_the_same_isnt(opened):
    async with opened() as bridge:
        with pytest.raises(BridgeError, match="is another") as caught:
            await bridge.run_program(OTHER | {"name": "payout"})
        assert caught.value.code == "reserved_name"
        assert (await bridge.run_program(PAYOUT))["status"] == "suspended"
        # Who is at the command line may try a new version of a program of theirs.
        assert (await bridge.run_program(OTHER | {"name": "payout"}, starter="operator"))["status"] == "suspended"


@pytest.mark.parametrize("name", ["Local", "l\u043ecal", "1ocal", "local\u200b", "\uff4cocal"])
def test_no_server_has_a_name_like_that_of_the_operators_tools(governance, name):
    with pytest.raises(BridgeError, match="looks like it") as caught:
        refuse_local(governance, [ServerSpec(name=name, source="x.json", command="x")])
    assert caught.value.code == "bad_config"


# --- questions


class Person:
    """Approves whatever it is asked, and remembers it."""

    def __init__(self):
        self.asked = []

    async def __call__(self, context, params):
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": True})


LONG = "SELECT 1 " + "-" * MAX_SHOWN_CHARS + " DROP"

TOO_LONG = {
    "an argument": [{"id": "pay", "type": "tool", "tool": "pay", "args": {"name": LONG}}],
    "many lines of arguments": [
        {"id": "pay", "type": "tool", "tool": "pay", "args": {"name": "x", **{f"n{n}": n for n in range(200)}}}
    ],
    "a message": [ASK | {"message": LONG}],
    "lines of a message": [ASK | {"message": "\n" * MAX_SHOWN_LINES + "and pay"}],
    "details": [ASK | {"details": {"all": LONG}}],
    "what is longer once it is escaped": [ASK | {"message": "\u200b" * 1000}],
}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("what", [what for what in TOO_LONG if what != "many lines of arguments"])
async def test_what_a_client_cannot_show_whole_waits_for_somebody_who_can(opened, what, mode, connect):
    async with opened() as bridge:
        person = Person()
        async with connect(bridge, programs=True, mode=mode, elicitation_callback=person) as client:
            given = {"program": {"name": "mine", "steps": TOO_LONG[what]}}
            told = (await client.call_tool("run_program", given)).structured_content
        assert (told.get("status"), person.asked) == ("suspended", []), told
        (row,) = await bridge.programs.store.approvals(told["trace_id"])
        assert row.status == "open"


SCRIPT = f"""
from mcp.servers import local
print(await local.pay(name="short"))
print(await local.pay(name={LONG!r}))
"""


async def test_a_scripts_call_that_cannot_be_shown_whole_waits_for_somebody_who_can(opened, connect):
    person = Person()
    async with (
        opened() as bridge,
        connect(bridge, mode="legacy", elicitation_callback=person) as client,
    ):
        result = await client.call_tool("run_python", {"code": SCRIPT})
        printed, waits = result.content[0].text.splitlines()
        assert (printed, waits.startswith("[approval_needed]"), len(person.asked)) == ("paid short", True, 1)
        (row,) = await bridge.programs.store.approvals(open_only=True)
        assert row.question["arguments"] == {"name": LONG}


def test_a_question_has_every_word_of_what_is_asked():
    names = {"program": "p" * 700, "step": "s" * 700, "why": "w" * 700}
    told = _question_text({"tool": "t" * 700, "arguments": {"a": "v" * 900}, **names, "origin": "agent"})
    for char, count in zip("tvpsw", (700, 900, 700, 700, 700), strict=True):
        assert char * count in told
    assert f"{'p' * 700} (the agent's)" in told
    assert is_displayable(told)
    assert not is_displayable(told + "x" * MAX_SHOWN_CHARS)


@pytest.mark.parametrize("how", ALIKE)
def test_what_would_hide_in_a_name_is_seen_in_a_question(how):
    told = _question_text({"tool": f"bank.{ALIKE[how]}", "arguments": {}, "program": ALIKE[how], "step": ALIKE[how]})
    plain = _question_text({"tool": "bank.payout", "arguments": {}, "program": "payout", "step": "payout"})
    assert len({line.casefold() for line in told.splitlines()} & {line.casefold() for line in plain.splitlines()}) == (
        3 if "capital" in how else 0
    )
    assert how.startswith("a mark") or told.isascii()


async def test_a_program_is_said_to_be_the_agents_or_the_operators(opened, connect):
    async with opened() as bridge:
        person = Person()
        async with connect(bridge, programs=True, mode="legacy", elicitation_callback=person) as client:
            for program in ("payout", {"name": "mine", "steps": [ASK]}):
                await client.call_tool("run_program", {"program": program})
        assert [line for told in person.asked for line in told.splitlines() if line.startswith("Program:")] == [
            "Program: payout (the operator's)",
            "Program: payout (the operator's)",
            "Program: mine (the agent's)",
        ]


PAYS = [{"id": "pay", "type": "tool", "tool": "local.pay", "args": {"name": "a"}}]


async def test_a_programs_call_that_is_asked_about_while_it_is_made_says_whose_program_asks(opened, connect):
    async with opened() as bridge:
        person = Person()
        async with connect(bridge, programs=True, mode="legacy", elicitation_callback=person) as client:
            for program in ("payout", {"name": "mine", "steps": PAYS}):
                await client.call_tool("run_program", {"program": program})
        [_, operators, agents] = [told.splitlines() for told in person.asked]
        assert operators[0] == agents[0] == "Allow the call of local.pay?"
        assert {"Program: payout (the operator's)", "Step: pay"} <= set(operators)
        assert {"Program: mine (the agent's)", "Step: pay"} <= set(agents)


async def test_a_terminal_says_whose_program_asks_for_a_call(opened):
    class Terminal:
        may_vanish = False
        shown: ClassVar[list[str]] = []

        async def ask(self, question):
            self.shown += terminal_output.question(question)
            return True

    async with opened() as bridge:
        mine = {"name": "mine", "steps": [{"id": "all", "type": "program", "program": "payout"}]}
        await bridge.run_program("payout", asker=Terminal())
        record = await bridge.run_program(mine, asker=Terminal())
    assert record["status"] == "success", record
    told = [line for line in Terminal.shown if line.startswith(("program:", "step:"))]
    assert told[2:4] == ["program: payout (the operator's)", "step: pay"]
    # What runs another's program is what asks, as where it waits.
    assert told[6:] == ["program: mine (the agent's)", "step: all/pay"]

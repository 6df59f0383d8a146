"""The reference for people who write programs: its examples are run, and what it says of fields and limits holds."""

import re
import uuid

import pytest
import yaml
from pages import text_of

from mcp_bridge.executions.idempotency import keys
from mcp_bridge.executions.programs import lifecycle, memory_bound, waits
from mcp_bridge.governance import yaml_text
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.guest.programs import Trace
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel import json_parsing, program_limits, retry, step_types, values
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language import conditions, program_parser, references
from mcp_bridge.kernel.language import step_fields as form
from mcp_bridge.settings import Settings

TEXT = text_of("docs/program-language.md")
TOOLS = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]


def examples():
    """By heading and number: the program's text, and the trace that is shown."""
    found = {}
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]:
        heading = part.splitlines()[0].strip("`")
        for block in re.finditer(r"```yaml\n(.*?)```\n```text\n(.*?)```", part, re.DOTALL):
            found[heading if heading not in found else f"{heading} {len(found)}"] = block.groups()
    return found


EXAMPLES = examples()


def directives(text):
    """What the comments at its beginning say: `# context: {…}`."""
    return yaml.safe_load("".join(line[2:] for line in text.splitlines(keepends=True) if line.startswith("# "))) or {}


class Person:
    def __init__(self, answer):
        self._answer = answer

    async def ask(self, question):
        return self._answer


def shown(record):
    """A trace as Python shows it, without its id."""
    return "".join(f"{line}\n" for line in repr(Trace(record)).splitlines()[:-1])


async def outcome(text, folder):
    """What comes of an example: each trace that it has on the way."""
    (folder / "tools").mkdir()
    (folder / "tools" / f"example_{uuid.uuid4().hex}.py").write_text(TOOLS)
    told = directives(text)
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "model": {"provider": "scripted", "answers": told.get("model", [])},
    }
    governance = load_governance(tables, None, folder, folder)
    async with open_bridge(Settings(state_dir=folder / "state"), (), governance) as bridge:
        person = Person(told.get("approve"))
        record = await bridge.run_program(yaml_text.load(text), told.get("context"), asker=person)
        if "resume" in told:
            assert record["status"] == "suspended"
            first = shown(record)
            record = await bridge.resume_execution(record["trace_id"], Resume(told["resume"]))
            return first + shown(record)
        return shown(record)


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_comes_to_what_is_shown(tmp_path, name):
    text, trace = EXAMPLES[name]
    assert await outcome(text, tmp_path) == trace


def test_every_block_of_yaml_is_an_example_and_every_type_of_step_is_in_one():
    assert len(EXAMPLES) == TEXT.count("```yaml")
    found = {"parallel", "map"}

    def look(rows):
        for row in rows:
            found.add(row["type"])
            used.update(row)
            if isinstance(row.get("program"), dict):
                look(row["program"]["steps"])
            look(row.get("parallel_steps", []))
            look([row["step"]] if "step" in row else [])

    used = set()
    for text, _ in EXAMPLES.values():
        look(yaml.safe_load(text)["steps"])
    assert found == set(form.TYPES)
    # What no example shows is in the text.
    assert set(form.FIELDS) - used <= {"max_retries", "output_key"}


@pytest.mark.parametrize("kind", form.TYPES)
def test_the_section_of_a_type_names_its_own_fields(kind):
    section = re.split(r"^##", TEXT.split(f"### `{kind}`\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    common = set(re.findall(r"`(\w+)`", TEXT.split("## Steps")[1].split("###")[0]))
    spec = form.TYPES[kind]
    for name in {*spec.required, *spec.optional} - common:
        assert f"`{name}`" in section, name


def test_the_table_of_common_fields_says_which_types_have_them():
    rows = dict(re.findall(r"^\| (`.*?`) \| (.*?) \|", TEXT.split("## Steps")[1].split("###")[0], re.MULTILINE))
    all_types = set(form.TYPES)
    for names, of in rows.items():
        named = set(re.findall(r"`(\w+)`", of))
        expected = named if of.startswith("`") else all_types - named
        for name in re.findall(r"`(\w+)`", names):
            owners = {kind for kind, spec in form.TYPES.items() if name in spec.required + spec.optional}
            assert owners == expected, name


def test_statuses_defaults_and_limits_are_those_of_the_code():
    ends = TEXT.split("## How programs and steps end")[1].split("## Limits")[0]
    for status in (
        "success",
        "failed",
        "budget_exceeded",
        "stalled",
        "suspended",
        "cancelled",
        "interrupted",
        "running",
    ):
        assert f"`{status}`" in ends
    for status in ("skipped", "pending"):
        assert f"`{status}`" in ends
    mebi = 1 << 20
    assert (8 * mebi, 100_000, 8) == (program_parser.MAX_BYTES, form.MAX_STEPS, program_parser.MAX_NESTED_PROGRAMS)
    assert 4 * mebi == lifecycle.MAX_CONTEXT_BYTES
    assert (values.MAX_DEPTH, values.MAX_INTEGER) == (48, 10**100)
    assert (conditions.MAX_CHARS, conditions.MAX_DEPTH) == (10_000, 50)
    assert mebi == json_parsing.MAX_PARSED_CHARS
    assert (4 * mebi, 8 * mebi) == (references.MAX_TEXT_CHARS, references.MAX_FILLED)
    assert (program_limits.MAX_ITEMS, form.MAX_ATTEMPTS, keys.MAX_KEY_CHARS) == (10_000, 1000, 1000)
    assert (yaml_text.MAX_DEPTH, program_limits.MAX_WORK) == (64, 50_000)
    assert waits.LONGEST_WAIT_SECONDS == retry.BACKOFF_SECONDS == 30
    assert step_types.DEFAULT_MAX_STEPS == 10_000
    assert 64 * mebi == memory_bound.MAX_HELD_BYTES
    assert [form.PROGRAM[name][1] for name in ("name", "version")] == ["unnamed", "1.0"]
    assert (form.FIELDS["max_retries"][1], form.FIELDS["on_error"][1], form.FIELDS["as"][1]) == (3, "fail", "item")

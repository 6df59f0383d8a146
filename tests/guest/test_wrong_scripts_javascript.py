"""Scripts in JavaScript as models write them: each does what was meant, or is answered with what to write next.

The scripts and their answers are in `wrong_scripts_javascript.yaml`.
"""

from pathlib import Path

import anyio
import yaml
from echoing_server import STRING, echoing, tool
from servers.specs import faulty

from mcp_bridge.server.answers.render import Answer

TABLE = yaml.safe_load((Path(__file__).parent / "wrong_scripts_javascript.yaml").read_text())
AT_ONCE = 2

ISSUE = tool(
    "create_issue",
    {"title": STRING, "labels": {"type": "array", "items": STRING}, "count": {"type": "integer"}},
    ["title"],
)

ROWS = [row for rows in TABLE.values() for row in rows]


async def test_a_wrong_script_does_what_was_meant_or_is_told_what_to_write(both, git_server):
    answers: dict[str, tuple[str, str]] = {}
    async with both.open(faulty(), echoing(ISSUE, name="issues"), git_server) as bridge:
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def run(code):
            async with limiter:
                record = await bridge.run(code, language="javascript")
            answers[code] = Answer(record, bridge.settings, bridge.files).text(), record.status

        async with anyio.create_task_group() as tasks:
            for row in ROWS:
                tasks.start_soon(run, row["code"])
    wrong = []
    for row in ROWS:
        text, status = answers[row["code"]]
        if row["answer"] not in text or (status == "success") is not row.get("works", False):
            wrong.append((row["code"], text))
    assert not wrong


def test_the_table_has_the_usual_mistakes():
    assert len({row["code"] for row in ROWS}) == len(ROWS)
    assert sum(not row.get("works") for row in ROWS) >= 15
    assert all(set(row) <= {"meant", "code", "answer", "works"} for row in ROWS)

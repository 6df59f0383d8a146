"""Scripts as models write them: each does what was meant, or is answered with what to write next.

The scripts and their answers are in `wrong_scripts.yaml`.
"""

import re
import sys
from pathlib import Path

import anyio
import pytest
import yaml
from echoing_server import STRING, echoing, tool
from servers.specs import faulty

from mcp_bridge.guest.advice.packages import DATA_PROFILE, missing
from mcp_bridge.guest.advice.script_environment import ScriptEnvironment
from mcp_bridge.sandbox.image.package_profiles import image_directory
from mcp_bridge.server.answers.render import Answer

TABLE = yaml.safe_load((Path(__file__).parent / "wrong_scripts.yaml").read_text())
ROWS = [row for rows in TABLE.values() for row in rows]

AT_ONCE = 2

ISSUE = tool(
    "create_issue",
    {
        "title": STRING,
        "labels": {"type": "array", "items": STRING},
        "fields": {"type": "object"},
        "dueDate": STRING,
        "count": {"type": "integer"},
        "price": {"type": "number"},
        "draft": {"type": "boolean"},
        "parent": STRING,
    },
    ["title"],
)

NEXT = re.compile(
    r"write|Write|[Uu]se |[Ss]end |[Pp]rint |Ask |a tool is |Maybe you meant|[Cc]all |put |[Ll]ine it up|Indent |[Ll]eave|nearest:|Did you|there are:|keys of|setting|"
    r"expected|It is |repo_path|max_count|`"
)
"""Words by which an answer says what to do."""


@pytest.fixture
def servers(git_server, time_server, everything_server, filesystem_server):
    thinking = echoing(tool("sequentialthinking", {"thought": STRING}, ["thought"]), name="sequential-thinking")
    return (
        git_server,
        time_server,
        everything_server,
        filesystem_server,
        thinking,
        faulty(),
        echoing(ISSUE, name="issues"),
    )


@pytest.mark.timeout(600)
async def test_a_wrong_script_does_what_was_meant_or_is_told_what_to_write(
    sandboxes, servers, tmp_path, git_repository
):
    """All of them with the same servers, which take longer to start than most scripts."""
    places = {"{repository}": str(git_repository), "{files}": str(tmp_path / "files")}
    rows = [row for row in ROWS if tuple(map(int, str(row.get("before", "9.9")).split("."))) > sys.version_info[:2]]
    answers = [""] * len(rows)
    status = [""] * len(rows)
    async with sandboxes.open(
        *servers, max_output_size=2_000_000, state_dir=tmp_path / "state", bounded=False
    ) as bridge:
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def run(place, row):
            code = row["code"]
            for name, path in places.items():
                code = code.replace(name, path)
            async with limiter:
                record = await bridge.run(code, timeout=row.get("timeout", 30))
            text = Answer(record, bridge.settings, bridge.files).text()
            for name, path in places.items():
                text = text.replace(path, name)
            answers[place], status[place] = text, record.status

        async with anyio.create_task_group() as tasks:
            for place, row in enumerate(rows):
                tasks.start_soon(run, place, row)
    for row, answer, ended in zip(rows, answers, status, strict=True):
        told = (row["code"], answer)
        assert row["answer"] in answer, told
        assert (ended == "success") is row.get("works", False), told


def test_the_table_is_large_and_every_answer_says_what_to_write():
    wrong = [row for row in ROWS if not row.get("works")]
    assert len(wrong) >= 120
    assert len({row["code"] for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert set(row) <= {"meant", "code", "answer", "works", "timeout", "before"}, row
    for row in wrong:
        assert NEXT.search(row["answer"]), row


def test_what_the_data_profile_brings_is_known_in_the_sandbox():
    names = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
    profile = (image_directory() / "profiles" / "data.in").read_text().split()
    assert {names.get(name, name) for name in profile} <= DATA_PROFILE


def test_the_packages_that_scripts_ask_for_are_named_before_what_they_bring_along(tmp_path):
    for name in (*DATA_PROFILE, "cloudpickle", "contourpy", "cycler"):
        (tmp_path / name).mkdir()
    said = missing("seaborn", ScriptEnvironment("", [], dict, str(tmp_path)))
    assert said.startswith(f"The image has the standard library, {', '.join(sorted(DATA_PROFILE))}, cloudpickle, …. ")

"""What scripts/newcomer-test.sh judges by, which goes the whole way itself, on a bare Debian."""

import importlib.util
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts/newcomer.py"


@pytest.fixture(scope="module")
def newcomer():
    spec = importlib.util.spec_from_file_location("newcomer", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_of_the_page_is_in_a_section_that_the_newcomer_follows(newcomer):
    page = newcomer.Page(REPOSITORY / "docs/install.md")
    followed = re.findall(r'\.follows\(self\.page, "([^"]+)"', SCRIPT.read_text("utf-8"))
    assert set(followed) == {heading for heading in page.blocks if page.commands(heading)}
    assert len(followed) == len(set(followed)), "no section is followed twice"


def test_a_pages_commands_are_those_of_its_blocks_and_its_rows_those_of_its_tables(newcomer, tmp_path):
    (tmp_path / "page.md").write_text(
        "# One\n\nSee `~/a`.\n\n```sh\n# a comment\none \\\n  two\n\nthree ~/y\n```\n## Two\n```toml\n# a\na = 1\n```\n\n"
        "| what | where | how |\n|---|---|---|\n| x and y | `~/.cache/x`, or `z`, `/tmp/y-*` | `rm x`, or you |\n"
    )
    page = newcomer.Page(tmp_path / "page.md")
    assert page.commands("One") == ["one   two", "three ~/y"] == page.unused
    assert page.commands("Two") == []
    assert page.rows("One") == []
    assert page.rows("Two") == [([], "how"), (["~/.cache/x", "/tmp/y-*"], "`rm x`, or you")]
    with pytest.raises(newcomer.WrongError, match="Three"):
        page.commands("Three")


BEFORE = {"/a": (1, 2), "/b": (1,), "/c": (1,), "/home/.cache": (1,)}
AFTER = {"/a": (1, 3), "/b": (1,), "/d": (1,), "/home/.cache": (1,), "/home/.cache/uv/x": (1,), "/tmp/run-7/x": (1,)}


def test_what_is_left_is_what_is_new_changed_or_gone_and_not_named(newcomer):
    left = ["changed: /a", "gone: /c", "new: /d"]
    assert newcomer.left_over(BEFORE, AFTER, ["/home/.cache/uv/", "/tmp/run-*"], []) == left
    assert newcomer.left_over(BEFORE, AFTER, [], []) == [*left, "new: /home/.cache/uv/x", "new: /tmp/run-7/x"]
    assert newcomer.left_over(BEFORE, BEFORE, [], []) == []
    assert newcomer.left_over({}, {"/home/.cache/uvx": (1,)}, ["/home/.cache/uv"], []) == ["new: /home/.cache/uvx"]


def test_the_folders_above_a_path_may_be_new_and_nothing_else_in_them(newcomer):
    after = {"/home/.cache": (1,), "/home/.cache/uv": (1,), "/home/.cache/other": (1,)}
    assert newcomer.left_over({}, after, ["/home/.cache/uv"], []) == ["new: /home/.cache/other"]
    left = ["new: /home/.cache/other", "new: /home/.cache/uv"]
    assert newcomer.left_over({}, after, [], ["/home/.cache/uv"]) == left
    after = {"/home/uv": (1,), "/home/uv/tools": (1,), "/home/uv/tools/ours": (1,), "/home/uv/.lock": (1,)}
    assert newcomer.left_over({}, after, ["/home/uv"], ["/home/uv/tools/ours"]) == ["new: /home/uv/tools/ours"]

"""ARCHITECTURE.md is short and true, and the tests stand where their subject does."""

import ast
import re
import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE, TESTS = REPOSITORY / "mcp_bridge", REPOSITORY / "tests"
TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text()
INTERNALS = (REPOSITORY / "docs/internals.md").read_text()

OF_THE_WHOLE = {"golden", "project", "support", "system"}
"""Folders of tests that are of no one package."""


def packages():
    """The modules of each package, by its path."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name not in {"__init__.py", "_version.py"}:
            found.setdefault(path.parent.relative_to(PACKAGE).as_posix(), set()).add(path.stem)
    return found


def test_the_code_map_has_every_package_and_no_other():
    rows = re.findall(r"^\| `(?:mcp_bridge/|([\w/]+)/)` \| [^|]+ \|$", TEXT, re.MULTILINE)
    assert sorted(where or "." for where in rows) == sorted(packages())


def test_the_page_of_modules_is_made_from_them():
    """`python scripts/code_map.py` writes it."""
    made = runpy.run_path(str(REPOSITORY / "scripts/code_map.py"))
    page = made["page"]()
    assert (REPOSITORY / "docs/code-map.md").read_text() == page
    assert not re.findall(r"(?m)^\| `\w+` \| +\|$", page)
    found = made["packages"](PACKAGE)
    assert {where: set(modules) for where, modules in found.items()} == packages()


def test_it_is_short():
    assert len(TEXT.split()) <= 2500


@pytest.mark.parametrize("text", [TEXT, INTERNALS], ids=["ARCHITECTURE.md", "internals.md"])
def test_the_files_that_it_names_are_there(text):
    names = set(re.findall(r"`((?:mcp_bridge/|tests/)?[a-z_]+(?:/[a-z_]+)+(?:\.py)?)/?`", text))
    assert names
    rooms = {
        name for row in re.findall(r"(?m)^\| [^|]+\| (`[^|]+) \|$", text) for name in re.findall(r"`([\w/]+)/`", row)
    }
    for name in names - rooms:
        assert (REPOSITORY / name).exists() or (PACKAGE / name).exists() or (PACKAGE / f"{name}.py").exists(), name


def test_tests_stand_in_folders_that_mirror_the_packages():
    for path in TESTS.rglob("test_*.py"):
        folder = path.parent.relative_to(TESTS)
        assert folder == Path() or folder.parts[0] in OF_THE_WHOLE or (PACKAGE / folder).is_dir(), path


def test_no_test_is_imported_by_another():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.rpartition(".")[2].startswith("test_")], path


def test_folders_are_small():
    """A reader takes in about fifteen names. The commands are one module each, whatever their number."""
    assert not {
        where: len(modules) for where, modules in packages().items() if len(modules) > 17 and where != "cli/commands"
    }

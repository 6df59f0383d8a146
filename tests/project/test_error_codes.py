"""Error codes: each that the package gives is described, each that is described is given, and the page has them all."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

import mcp_bridge
from mcp_bridge.cli import exit_statuses
from mcp_bridge.error_codes import DESCRIPTIONS, GROUPS, Code, page
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(mcp_bridge.__file__).parent
CODES = frozenset(get_args(Code))
SHAPE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A module's source: what it gives codes to, and the codes that it gives.

    A code is given where a parameter or a field named `code` gets one, and under the key "code" of an object.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.nodes = list(ast.walk(ast.parse(source)))
        self.imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        self.takers = dict(self._takers())

    def _takers(self) -> Iterator[tuple[str, int]]:
        """Functions and classes by their names, with the place among positional arguments at which a code is given."""
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                fields = [
                    row.target.id
                    for row in node.body
                    if isinstance(row, ast.AnnAssign) and isinstance(row.target, ast.Name)
                ]
                inits = [row for row in node.body if isinstance(row, Function) and row.name == "__init__"]
                names = [names for init in inits for names in [_parameters(init)]] or [fields]
                if "code" in names[0]:
                    yield node.name, names[0].index("code")
            elif isinstance(node, Function) and "code" in (names := _parameters(node)):
                yield node.name, names.index("code")

    def given(self, modules: dict[str, Module]) -> Iterator[str]:
        """The codes that are given for sure."""
        for node in self.nodes:
            if isinstance(node, ast.Call):
                place = self._place(node.func, modules)
                yield from _texts([keyword.value for keyword in node.keywords if keyword.arg == "code"])
                yield from _texts(node.args[place : place + 1] if place is not None else [])
                yield from _texts(node.args[1:2] if node.args and _is_code(node.args[0]) else [])  # of .get and .pop
            elif isinstance(node, ast.Dict):
                yield from _texts([value for key, value in zip(node.keys, node.values, strict=True) if _is_code(key)])
            elif isinstance(node, ast.Assign):
                yield from _texts([value for name, value in _assigned(node) if _is_code(name)])
            elif isinstance(node, Function):
                yield from _texts(_defaults(node))

    def typed(self) -> Iterator[str]:
        """Texts where the type is, or has in it, `Code`: mypy looks at them."""
        for node in self.nodes:
            if isinstance(node, ast.AnnAssign) and node.value is not None and _names_code(node.annotation):
                yield from _texts(list(ast.walk(node.value)))
            elif isinstance(node, Function) and _names_code(node.returns):
                for row in ast.walk(node):
                    yield from _texts(list(ast.walk(row)) if isinstance(row, ast.Return) else [])

    def _place(self, called: ast.expr, modules: dict[str, Module]) -> int | None:
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.value.id == "self":
                return self.takers.get(called.attr)
            where, name = self.imported.get(called.value.id, ("", ""))
            other = modules.get(f"{where}.{name}")
            return other.takers.get(called.attr) if other else None
        if isinstance(called, ast.Attribute) and called.attr == "__init__":
            return 0  # of an error, by the class that inherits from it
        if not isinstance(called, ast.Name):
            return None
        where, name = self.imported.get(called.id, (self.name, called.id))
        other = modules.get(where)
        return other.takers.get(name) if other else None


def _parameters(function: Function) -> list[str]:
    names = [row.arg for row in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _defaults(function: Function) -> list[ast.expr]:
    """The default of a parameter `code`."""
    args = function.args
    given = [*zip([*args.posonlyargs, *args.args][-len(args.defaults) :], args.defaults, strict=False)]
    given += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return [default for row, default in given if row.arg == "code" and default is not None]


def _assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to what, one by one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=True)
        else:
            yield target, node.value


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Texts in the form of a code, also of expressions with alternatives."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SHAPE.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.IfExp):
            yield from _texts([node.body, node.orelse])
        elif isinstance(node, ast.BoolOp):
            yield from _texts(node.values)


def _is_code(name: ast.AST | None) -> bool:
    """Whether it is the name `code`, the text "code", or an item of that name."""
    if isinstance(name, ast.Subscript):
        name = name.slice
    return getattr(name, "id", getattr(name, "value", None)) == "code"


def _names_code(annotation: ast.expr | None) -> bool:
    names = {row.id for row in ast.walk(annotation or ast.Pass()) if isinstance(row, ast.Name)}
    return not names.isdisjoint({"Code", "Final"})


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        name = ".".join(["mcp_bridge", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
        if name != "mcp_bridge.error_codes":
            found[name] = Module(name, file.read_text())
    return found


def test_every_code_that_is_given_is_described(modules):
    given = {(code, name) for name, module in modules.items() for code in module.given(modules)}

    assert not {(code, name) for code, name in given if code not in CODES}


def test_every_described_code_is_given_somewhere(modules):
    given = {code for module in modules.values() for code in (*module.given(modules), *module.typed())}

    assert not CODES - given


def test_the_search_finds_codes_in_every_way_that_one_is_given():
    source = """
from mcp_bridge.errors import BridgeError
from mcp_bridge import helpers
KEPT: Final = "by_final"
TABLE: dict[str, tuple[Code, str]] = {"key": ("by_table", "Some text.")}
def here(message, code): ...
def asked() -> Code: return "by_return"
BridgeError("by_call", "text")
BridgeError("by_one" if x else "by_other", "text")
here("text", "by_place")
helpers.there("by_module")
Other(code="by_keyword")
out = {"code": "by_key"}
out["code"] = "by_item"
code = "by_name"
code, message = "by_tuple", "text"
def there(*, code="by_default"): ...
code = out.pop("code", "by_pop")
"""
    modules = {
        "m": Module("m", source),
        "mcp_bridge.errors": Module("mcp_bridge.errors", "class BridgeError:\n    def __init__(self, code, text): ..."),
        "mcp_bridge.helpers": Module("mcp_bridge.helpers", "def there(code): ..."),
    }
    found = {*modules["m"].given(modules), *modules["m"].typed()}

    assert {code for code in found if code.startswith("by_")} == {
        f"by_{way}"
        for way in "final table call one other place module keyword key item name tuple default pop return".split()  # noqa: SIM905
    }


def test_every_code_is_described_once():
    described = Counter(code for group in GROUPS for code in group.codes)

    assert described == Counter(CODES)
    assert all(list(group.codes) == sorted(group.codes) for group in GROUPS)
    assert list(get_args(Code)) == sorted(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_says_what_it_means_and_what_to_do(code):
    row = DESCRIPTIONS[code]

    assert SHAPE.fullmatch(code)
    for text in row[:2]:
        assert text.endswith(".")
        assert "|" not in text
        assert "\n" not in text


def test_the_page_is_what_the_registry_gives():
    assert (PACKAGE.parent / "docs" / "error-codes.md").read_text() == page(), (
        "python -m mcp_bridge.error_codes > docs/error-codes.md"
    )


@pytest.mark.parametrize(("code", "status"), [("bad_config", 2), ("denied", 4), ("still_waiting", 5), ("disk_full", 1)])
def test_a_command_ends_with_the_exit_status_that_is_described(code, status):
    assert exit_statuses.exit_code(BridgeError(code, "It went wrong."), other=1) == status

"""Functions that scripts keep for later ones: what can be kept, and what it would miss there."""

import builtins
import inspect
import symtable
import textwrap
import types
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from mcp_bridge.guest.proxies import ServerModule

WRITE = "write: def name(...): ..., then await runtime.save_tool(name)"


class Kept(NamedTuple):
    """A function as it is kept.

    Attributes:
        name: Its name.
        source: Its text, from which it is made again.
        notice: What its author is told: what it uses of this script; or None.
        refusal: Why no later script could import it; None if one can.
    """

    name: str
    source: str
    notice: str | None = None
    refusal: str | None = None


def kept(function: Any, given: Collection[str]) -> Kept:
    """A function as it is kept.

    Args:
        function: What the script wants kept.
        given: The names that every script has without an import.

    Raises:
        AttributeError, OSError, TypeError: It has no name or no source, in Python's own words: these are in records,
            and a script that is run again is to fail as it did.
    """
    name, source = function.__name__, textwrap.dedent(inspect.getsource(function))
    plain = inspect.unwrap(function)
    if not isinstance(plain, types.FunctionType):
        return _refused(name, source, f"takes a function that the script defines, not {_kind(function)}")
    try:
        table = symtable.symtable(source, name, "exec")
    except SyntaxError:
        return _refused(name, source, f"can't keep {name!r}, for its source isn't that of a `def`")
    if name not in _assigned(table):
        return _refused(name, source, f"takes a function that its `def` names, not {name!r}")
    there = {*given, *dir(builtins), *(one for each in _tables(table) for one in _assigned(each))}
    missing = {one for each in _tables(table) for one in _used(each)} - there
    return Kept(name, source, _notice(name, missing, _used(table), plain.__globals__) if missing else None)


def _refused(name: str, source: str, why: str) -> Kept:
    return Kept(name, source, refusal=f"save_tool() {why}; {WRITE}")


def _kind(function: Any) -> str:
    if isinstance(function, type):
        return "a class"
    return "a bound method" if inspect.ismethod(function) else f"an object of the type {type(function).__name__!r}"


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """The table of a text, and those of the functions and classes in it."""
    yield table
    for inner in table.get_children():
        # Where these are tables of their own, nothing evaluates annotations unless it is asked to.
        if "annotation" not in str(inner.get_type()).lower():
            yield from _tables(inner)


def _assigned(table: symtable.SymbolTable) -> set[str]:
    """The names of the module that a table binds."""
    is_top = table.get_type() == "module"
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() and (is_top or one.is_declared_global())}


def _used(table: symtable.SymbolTable) -> set[str]:
    """The names of the module that a table reads."""
    names = {one.get_name() for one in table.get_symbols() if one.is_referenced() and one.is_global()}
    # Python gives those to a module, whatever a script has.
    return {name for name in names if not (name.startswith("__") and name.endswith("__"))}


def _notice(name: str, missing: set[str], at_once: set[str], names: dict[str, Any]) -> str:
    """What is told of the names that a function will miss. Those that are needed `at_once` are outside of its body."""
    told = f"save_tool: {name!r} is saved, but uses {_listed(missing)} of this script, which later ones don't have."
    if inside := missing - at_once:
        written = [line for one in sorted(inside) if (line := _import(one, names.get(one))) is not None]
        told += " Import or define what it uses inside it, and save it again"
        told += f": {'; '.join(written)}." if written else "."
    if outside := missing & at_once:
        told += f" Its decorators, defaults and annotations use {_listed(outside)}: no script can import it with these."
    return told


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _import(name: str, value: Any) -> str | None:
    """The line that imports what a name stands for, if it is a server or a module."""
    if isinstance(value, ServerModule):
        return f"from {value.__name__.rpartition('.')[0]} import {value.__name__.rpartition('.')[2]}"
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    return None

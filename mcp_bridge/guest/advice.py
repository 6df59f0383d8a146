"""What to write instead, for the mistakes that models make: a sentence after Python's own error.

Loaded when a script has failed. A sentence is given only where the cause is known; a wrong one is worse than none.
"""

import errno
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mcp_bridge.guest import advice_names, advice_packages, advice_syntax, trees
from mcp_bridge.guest.jsontext import JsonText
from mcp_bridge.guest.proxies import ServerModule
from mcp_bridge.guest.trees import Failure
from mcp_bridge.guest.world import World

MAX_LEAVES = 10
"""Exceptions of a group that are looked at."""

MAX_KEYS = 20
MAX_KEY_CHARS = 40
MAX_START_CHARS = 60

NO_NETWORK = (
    "There is no network here; what reaches outside is an MCP server's tool: "
    "`await runtime.search('fetch a web page')` finds one."
)

SDK_ATTRIBUTES = frozenset(
    {"content", "structuredContent", "structured_content", "isError", "is_error", "text", "data", "result", "output"}
)
"""What the SDK's result objects have, and plain data doesn't."""

JAVASCRIPT_METHODS = {
    "length": "len({0})",
    "push": "{0}.append(x)",
    "map": "[f(x) for x in {0}]",
    "filter": "[x for x in {0} if f(x)]",
    "forEach": "for x in {0}: ...",
    "includes": "x in {0}",
    "trim": "{0}.strip()",
    "toUpperCase": "{0}.upper()",
    "toLowerCase": "{0}.lower()",
    "startsWith": "{0}.startswith(x)",
    "endsWith": "{0}.endswith(x)",
    "substring": "{0}[a:b]",
    "slice": "{0}[a:b]",
    "concat": "{0} + other",
    "indexOf": "{0}.index(x)",
    "toString": "str({0})",
    "hasOwnProperty": "key in {0}",
}


class Case(NamedTuple):
    """What is looked at: an exception, where in the script it was raised, and what is around."""

    exc: Any
    failure: Failure
    world: World


def add_to(exc: BaseException, world: World) -> None:
    """Add the sentence for an exception, or for the first of a group that has one, to it as a note."""
    for leaf in _leaves(exc):
        if text := _advice(leaf, world):
            BaseException.add_note(leaf, text)
            return


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    waiting, seen = [exc], 0
    while waiting and seen < MAX_LEAVES:
        one = waiting.pop(0)
        seen += 1
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        else:
            yield one


def _advice(exc: BaseException, world: World) -> str | None:
    if isinstance(exc, SyntaxError):
        return advice_syntax.advice(exc, world)
    if isinstance(exc, ModuleNotFoundError):
        return advice_packages.missing(exc.name, world) if exc.name else None
    failure = trees.failure(exc, world.code)
    if failure is None:
        return None
    if type(exc) is NameError:
        return advice_names.unknown(exc.name, world) if failure.is_innermost else None
    for kind, advise in _BY_TYPE:
        if isinstance(exc, kind):
            return advise(Case(exc, failure, world))
    return None


# --- types ---


def _wrong_type(case: Case) -> str | None:
    failure, said = case.failure, str(case.exc)
    kind = trees.kind(failure.node)
    if "can't be used in 'await' expression" in said:
        return _awaited(failure, failure.inner("value") if kind == "Await" else failure)
    if "the JSON object must be str" in said:
        given = said.rpartition("not ")[2]
        if given in {"dict", "list", "int", "float", "bool"}:
            return f"It is data already (a {given}): use it without `json.loads`."
        return None
    if "context manager protocol" in said and "'ServerModule' object" in said:
        example = case.world.example
        return f"The servers are connected already: write `await {example}.TOOL(...)`, without `with`."
    if kind == "Call":
        return _wrong_call(said, failure)
    if kind == "Subscript":
        return _wrong_subscript(said, failure)
    return None


def _awaited(failure: Failure, operand: Failure) -> str | None:
    value = operand.value()
    if isinstance(value, types.FunctionType):
        return f"`{operand.text}` is not called: write `await {operand.text}(...)`."
    if isinstance(value, ServerModule):
        return _tools_of(value, operand.text)
    return f"It needs no `await`: write `{operand.text}`." if failure.is_innermost else None


def _tools_of(server: ServerModule, name: str) -> str:
    tools = server.__dict__["__bridge__"].known()
    shown = f" `dir({name})` lists its tools." if tools is None else f" Its tools: {_listed(sorted(tools))}."
    return f"call one of its tools: `await {name}.TOOL(...)`.{shown}"


def _wrong_call(said: str, failure: Failure) -> str | None:
    function, arguments = failure.inner("func"), failure.node.args
    if isinstance(server := function.value(), ServerModule) and "not callable" in said:
        return f"`{function.text}` is a server: {_tools_of(server, function.text)}"
    is_gather = function.text.rpartition(".")[2] == "gather"
    if is_gather and len(arguments) == 1 and trees.kind(arguments[0]) != "Starred":
        return f"It takes each call by itself: write `await {function.text}(*{failure.of(arguments[0]).text})`."
    return None


def _wrong_subscript(said: str, failure: Failure) -> str | None:
    base, key = failure.inner("value"), failure.of(failure.node.slice).text
    value = base.value()
    if said.startswith("string indices must be integers"):
        if "this text holds" in said:
            return None
        if isinstance(value, str) and (document := _document(value)) is not None:
            return _parse_first(base.text, document)
        if (name := _json_text(failure)) is not None:
            return f"`{name}` is text that holds JSON: write `import json; {name} = json.loads({name})` before."
        return f"`{base.text}` is text: `print({base.text})` shows it." if isinstance(value, str) else None
    if said.startswith("list indices must be integers") and isinstance(value, list):
        return f"`{base.text}` is a list of {len(value)}: write `{base.text}[0][{key}]`, or `for x in {base.text}:`."
    if said.startswith(("'coroutine' object", "'PendingCall' object")):
        return f"It was never awaited: write `(await {base.text})[{key}]`." if trees.kind(base.node) == "Call" else None
    return None


def _document(text: str) -> Any:
    return (text if isinstance(text, JsonText) else JsonText(text)).document()


def _parse_first(name: str, document: Any) -> str:
    what = f"a JSON array of {len(document)}" if isinstance(document, list) else "a JSON object"
    return f"`{name}` is text that holds {what}: write `import json; {name} = json.loads({name})` before."


def _json_text(failure: Failure) -> str | None:
    """The one name in scope whose text is a JSON array: what a loop over it gives is characters."""
    names = failure.frame.f_locals | failure.frame.f_globals
    found = [
        name for name, value in names.items() if isinstance(value, JsonText) and isinstance(value.document(), list)
    ]
    return found[0] if len(found) == 1 and found[0].isidentifier() and not found[0].startswith("__") else None


# --- attributes ---


def _wrong_attribute(case: Case) -> str | None:
    exc, failure, world = case
    obj: Any = getattr(exc, "obj", None)
    name: Any = getattr(exc, "name", None)
    if not isinstance(name, str) or not failure.is_innermost_but_ours:
        return None
    base = failure.inner("value").text if trees.kind(failure.node) == "Attribute" else "x"
    kind = type(obj)
    if kind is dict and name in obj:
        return f"It is a dict: write `{base}[{name!r}]`."
    if isinstance(obj, JsonText) and isinstance(document := obj.document(), dict) and name in document:
        return f"It is text that holds a JSON object: write `{base}[{name!r}]`."
    if (kind in (dict, list) or isinstance(obj, str)) and name in SDK_ATTRIBUTES:
        what = "text" if isinstance(obj, str) else kind.__name__
        return f"A call gives plain data, not a result object: `{base}` is the {what} itself."
    if (kind in (dict, list) or isinstance(obj, str)) and (python := JAVASCRIPT_METHODS.get(name)):
        return f"In Python: `{python.format(base)}`."
    if kind is types.CoroutineType:
        return f"It was never awaited: write `(await {obj.__qualname__}(...)).{name}`."
    if kind is types.ModuleType and obj.__name__ in world.aliases:
        return f"`{base}` is Python's own module here; the MCP server's: `from mcp.servers import {obj.__name__}`."
    if failure.is_innermost and (kind is types.ModuleType or kind in (str, list, dict)):
        return trees.did_you_mean(name, dir(obj))
    return None


# --- containers ---


def _missing_key(case: Case) -> str | None:
    failure = case.failure
    if failure.last_function == "__getitem__" and failure.last_file in {"<frozen os>", "os"}:
        return (
            "Secrets and settings stay outside of the sandbox: the MCP servers have theirs. Call the tool without it."
        )
    if trees.kind(failure.node) != "Subscript" or not failure.is_innermost_but_ours:
        return None
    base = failure.inner("value")
    value = base.value()
    if isinstance(value, JsonText):
        value = value.document()
    if type(value) is not dict:
        return None
    return f"The keys of `{base.text}`: {_listed([repr(key)[:MAX_KEY_CHARS] for key in value]) or 'none'}."


def _missing_item(case: Case) -> str | None:
    failure = case.failure
    if trees.kind(failure.node) != "Subscript" or not failure.is_innermost_but_ours:
        return None
    base = failure.inner("value")
    value = base.value()
    if not isinstance(value, (list, tuple, str)):
        return None
    count = len(value)
    return f"`{base.text}` has {count} items; the last is `{base.text}[-1]`." if count else f"`{base.text}` is empty."


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_KEYS]) + (", …" if len(names) > MAX_KEYS else "")


# --- what isn't in a sandbox ---


def _system(case: Case) -> str | None:
    exc, failure, world = case
    if _is_network(exc):
        return NO_NETWORK
    if isinstance(exc, FileNotFoundError) and "subprocess" in failure.files | {failure.last_file}:
        return _no_program(str(exc.filename or ""), failure, world)
    if failure.last_function == "no_shell":
        return _no_program("/bin/sh", failure, world)
    name = exc.filename
    if not isinstance(name, (str, bytes)) or not (failure.is_innermost or failure.files & _PATHS):
        return None
    path = name if isinstance(name, str) else name.decode("utf-8", "replace")
    inside = path.startswith(("/workspace/", "/tmp/")) or not path.startswith("/")  # noqa: S108
    if isinstance(exc, FileNotFoundError) and not (_is_writing(failure) and not inside):
        search = "`await runtime.search('read file')` finds a tool that reads the host's files."
        if inside:
            return f"/workspace and /tmp begin empty with every call: nothing of an earlier one is there. {search}"
        return f"No file of the host is here. {search}"
    if isinstance(exc, (FileNotFoundError, PermissionError)) or exc.errno == errno.EROFS:
        return "Only /workspace and /tmp can be written; `artifact(path)` keeps a file from there."
    return None


def _is_writing(failure: Failure) -> bool:
    """Whether the expression opens a file to write it."""
    if trees.kind(failure.node) != "Call":
        return False
    given = [*failure.node.args[1:2], *(word.value for word in failure.node.keywords if word.arg == "mode")]
    modes = [str(one.value) for one in given if trees.kind(one) == "Constant"]
    return any(set(mode) & set("wax") for mode in modes) or failure.last_function in {"write_text", "write_bytes"}


_PATHS = {"pathlib", "shutil", "<frozen os>", "os", "csv", "<frozen genericpath>", "fileinput", "sqlite3", "tarfile"}


def _is_network(exc: Any) -> bool:
    seen: Any = exc
    for _ in range(MAX_LEAVES):
        if seen is None:
            return False
        if type(seen).__name__ in {"gaierror", "URLError"} or "socket" in trees.files_of(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _no_program(program: str, failure: Failure, world: World) -> str:
    name = program.rpartition("/")[2]
    if name == "sh" and trees.kind(failure.node) == "Call" and failure.node.args:
        # A shell's command says more.
        command = failure.node.args[0]
        words = str(command.value).split() if trees.kind(command) == "Constant" else []
        name = words[0] if words else name
    if name in world.aliases:
        return f"There are no programs here but Python; `{name}` is an MCP server: `from mcp.servers import {name}`."
    if name in {"pip", "pip3", "uv", "conda"}:
        return f"There are no programs here but Python. {advice_packages.no_installing()}"
    if name in {"curl", "wget"}:
        return NO_NETWORK
    return (
        "There is no shell here, and no program but Python: use pathlib, shutil and re, or an MCP server's tool "
        "(`await runtime.search('words')`)."
    )


def _no_input(case: Case) -> str | None:
    failure = case.failure
    if trees.kind(failure.node) == "Call" and failure.inner("func").text == "input":
        return "Nobody can answer here: put the value into the script."
    return None


# --- event loops ---


def _no_loop(case: Case) -> str | None:
    exc, failure = case.exc, case.failure
    said = str(exc)
    told = {
        "asyncio.run() cannot be called": "The script runs in an event loop already",
        "This event loop is already running": "The script runs in an event loop already",
        "Cannot run the event loop while another": "The script runs in an event loop already",
        "no running event loop": "There is no event loop before the script awaits",
        "There is no current event loop": "There is no event loop before the script awaits",
    }
    why = next((why for start, why in told.items() if said.startswith(start)), None)
    if why is None:
        return None
    called = "main()"
    if trees.kind(failure.node) == "Call" and failure.node.args:
        called = failure.of(failure.node.args[0]).text
    return f"{why}: write `await {called}`."


def _no_json(case: Case) -> str | None:
    exc = case.exc
    if type(exc).__name__ != "JSONDecodeError" or not isinstance(text := getattr(exc, "doc", None), str):
        return None
    if not text.strip():
        return "The text is empty."
    return f"The text is no JSON document: use it as text. It begins {text[:MAX_START_CHARS]!r}."


_BY_TYPE: tuple[tuple[type[BaseException], Callable[[Case], str | None]], ...] = (
    (TypeError, _wrong_type),
    (AttributeError, _wrong_attribute),
    (KeyError, _missing_key),
    (IndexError, _missing_item),
    (OSError, _system),
    (EOFError, _no_input),
    (RuntimeError, _no_loop),
    (ValueError, _no_json),
)

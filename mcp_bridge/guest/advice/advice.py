"""Advice on mistakes that models often make: a sentence that follows Python's own error message.

Loaded after a script has failed. Advice is given only if the cause is known: wrong advice is worse than none.
"""

import errno
import os
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from mcp_bridge.guest.advice import packages, syntax, trees, undefined_names
from mcp_bridge.guest.advice.script_environment import ScriptEnvironment
from mcp_bridge.guest.advice.trees import Failure
from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.guest.not_awaited import PendingCall
from mcp_bridge.guest.proxies import ServerModule
from mcp_bridge.guest.values.blocks import Block
from mcp_bridge.guest.values.jsontext import JsonText

MAX_LEAVES = 10
"""How many exceptions of a group are examined."""

MAX_KEYS = 20
MAX_KEY_CHARS = 40
MAX_START_CHARS = 60

NO_NETWORK = (
    "There is no network here; what reaches outside is an MCP server's tool: "
    "`await runtime.search('fetch a web page')` finds one."
)

NO_ROOM = (
    "Files in /workspace, /tmp and /dev/shm are in the sandbox's memory: write less, or remove some; "
    "the operator's settings `workspace_size` and `tmp_size` say how much there may be."
)

OF_FILES = "`artifact` takes the path of a file: write the content to one in /workspace/out; files there are stored."

SDK_ATTRIBUTES = frozenset(
    {
        "content", "data", "isError", "is_error", "name", "output", "result", "results", "servers", "structuredContent",
        "structured_content", "text", "tools",
    }
)  # fmt: skip
"""Attributes of the SDK's result objects, which plain data doesn't have."""

SAVED_TOOLS = "mcp.tools."
"""Begins the file names of functions that scripts have kept."""

OF_DICTS = frozenset({"get", "items", "keys", "pop", "update", "values"})
"""Methods of dictionaries that strings don't have."""

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
    """A failure to advise on: the exception, where in the script it was raised, and the script's environment."""

    exc: Any
    failure: Failure
    environment: ScriptEnvironment


def add_to(exc: BaseException, environment: ScriptEnvironment) -> None:
    """Add advice to an exception as a note; for a group, advice on the first member that has any."""
    for leaf in _leaves(exc):
        if text := _advice(leaf, environment):
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


def _advice(exc: BaseException, environment: ScriptEnvironment) -> str | None:
    if isinstance(exc, SyntaxError):
        return syntax.advice(exc, environment)
    if isinstance(exc, ModuleNotFoundError):
        return packages.missing(exc.name, environment) if exc.name else None
    if isinstance(exc, ImportError):
        return packages.not_in_module(exc, environment)
    if type(exc).__name__ == "BdbQuit":
        # A debugger that has no input quits, wherever it stands.
        return "Nobody can debug here: use `print(...)` to see values."
    failure = trees.failure(exc, environment.code)
    if failure is None:
        return None
    if type(exc) is NameError:
        return _unknown_name(exc, failure, environment)
    # Python's own error names the file apart: it has had that fetched which is read.
    if getattr(exc, "filename", None) is None and (text := _unfetched(str(exc), environment)) is not None:
        return text
    if _is_unkept(exc, failure):
        return "`save_tool` takes a function: write `def name(...): ...`, then `await runtime.save_tool(name)`."
    if _is_content(exc, failure):
        return OF_FILES
    for kind, advise in _BY_TYPE:
        if isinstance(exc, kind):
            return advise(Case(exc, failure, environment))
    return None


def _unknown_name(exc: NameError, failure: Failure, environment: ScriptEnvironment) -> str | None:
    if failure.is_innermost:
        return undefined_names.unknown(exc.name, environment)
    tool = failure.last_file.removeprefix(SAVED_TOOLS)
    if tool == failure.last_file or not exc.name:
        return None
    return (
        f"`{tool}` is a function kept by `runtime.save_tool`, which has nothing of the script that kept it: "
        f"save it again, and import or define `{exc.name}` inside it."
    )


def _is_unkept(exc: BaseException, failure: Failure) -> bool:
    """Whether Python has no name or no source of what was to be kept. What we refuse ourselves says what to write."""
    call = failure.inner("value") if trees.kind(failure.node) == "Await" else failure
    return call.inner("func").text.endswith(".save_tool") and not str(exc).startswith("save_tool()")


def _is_content(exc: BaseException, failure: Failure) -> bool:
    """Whether `artifact` was given what a file is to have, in place of the file's path."""
    call = failure.inner("value") if trees.kind(failure.node) == "Await" else failure
    if trees.kind(call.node) != "Call" or call.inner("func").text not in {"artifact", "mcp.artifact"}:
        return False
    if isinstance(exc, FileNotFoundError):
        path = os.fsdecode(exc.filename) if isinstance(exc.filename, (str, bytes)) else "/"
        return not path.startswith("/") and _input(path) is None
    return type(exc) is TypeError and "os.PathLike" in str(exc)


def _unfetched(said: str, environment: ScriptEnvironment) -> str | None:
    """Advice where a library, which opens files past Python, was refused one that isn't fetched, or has found none."""
    _, found, rest = said.partition("/workspace/in/")
    is_refused = "permission denied" in said.lower()
    # Nothing is there until a script looks.
    if not found or not (is_refused or (environment.has_inputs and _NO_FILE.search(said))):
        return None
    name = rest.partition("'")[0].partition('"')[0].partition("\n")[0].partition(": ")[0]
    # Imported late: few failures are of that.
    from mcp_bridge.guest.files.unfetched_inputs import can_read

    if can_read(f"/workspace/in/{name}"):
        # It is there, and can't be written to.
        return None
    write = f"write `await runtime.input({name!r})` before; that gives its path."
    return f"It isn't fetched yet: {write}" if is_refused else f"{_NOT_THERE_YET}: {write}"


# --- types ---


_NO_AWAITABLE = ("can't be used in 'await' expression", "object can't be awaited")
"""What Python says of it, and from 3.14 on."""


def _wrong_type(case: Case) -> str | None:
    failure, said = case.failure, str(case.exc)
    kind = trees.kind(failure.node)
    if said.endswith(_NO_AWAITABLE) and "async_generator" not in said:
        return _awaited(failure, failure.inner("value") if kind == "Await" else failure)
    if "the JSON object must be str" in said:
        given = said.rpartition("not ")[2]
        if given in {"dict", "list", "int", "float", "bool"}:
            return f"It is data already (a {given}): use it without `json.loads`."
        return None
    if "context manager protocol" in said and "ServerModule' object" in said:
        example = case.environment.example
        return f"The servers are connected already: write `await {example}.TOOL(...)`, without `with`."
    if "async_generator" in said:
        return _async_generator(failure)
    if "requires an object with __aiter__" in said and not said.endswith((" PendingCall", " coroutine")):
        return "It is no asynchronous iterator: write `for`, without `async`."
    if "asynchronous context manager protocol" in said:
        return "It is no asynchronous context: write `with`, without `async`."
    if "Passing coroutines is forbidden" in said:
        return "It takes tasks: write `await asyncio.gather(*calls)` instead."
    if said.startswith(tuple(f'can only concatenate str (not "{one}' for one in ("dict", "list", "int", "float"))):
        return 'Write an f-string, `f"… {x}"`, or `str(x)`.'
    if kind == "Call":
        return _wrong_call(said, failure)
    if kind == "Subscript":
        return _wrong_subscript(said, failure)
    return None


def _async_generator(failure: Failure) -> str:
    node = failure
    if trees.kind(node.node) in {"Await", "Subscript"}:
        node = node.inner("value")
    elif trees.kind(node.node) == "Call" and node.node.args and trees.kind(node.node.args[0]) == "Call":
        # A call such as list(rows()).
        node = node.of(node.node.args[0])
    if node.text == "…":
        return "It gives its items one by one: write `async for` in the place of `for`."
    return f"It gives its items one by one: write `[x async for x in {node.text}]`, or `async for x in {node.text}:`."


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
    if arguments and said.startswith(
        ("write() argument must be str, not dict", "write() argument must be str, not list")
    ):
        return f"Text is written: `import json`, then `{function.text}(json.dumps({failure.of(arguments[0]).text}))`."
    if arguments and said == "a bytes-like object is required, not 'str'":
        given = failure.of(arguments[0])
        if trees.kind(given.node) == "Subscript" and getattr(given.node.slice, "value", None) in {"data", "blob"}:
            return f"It is base64: `import base64`, then write `base64.b64decode({given.text})`."
        return f"The file takes bytes: write `{given.text}.encode()`, or open it with `'w'`."
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
        if isinstance(value, str) and len(value) == 1 and trees.kind(base.node) == "Name":
            a_loop = "a loop over text, as over `text.splitlines()`, gives no dicts"
            return f"`{base.text}` is one character of a text: {a_loop}."
        is_told = isinstance(value, str) or base.text != "…"
        return f"`{base.text}` is text: `print({base.text})` shows it." if is_told else None
    if said.startswith(("list indices must be integers", "tuple indices must be integers")):
        return _no_key(base.text, value, failure) if isinstance(value, (list, tuple)) else None
    if trees.kind(failure.node.slice) == "Slice" and isinstance(value, dict):
        return _part_of(base.text, failure)
    if said.startswith(("'coroutine' object", "'PendingCall' object")):
        return f"It was never awaited: write `(await {base.text})[{key}]`." if trees.kind(base.node) == "Call" else None
    return None


def _no_key(name: str, value: Any, failure: Failure) -> str:
    """Advice on a key that is used where an index is required."""
    key = getattr(failure.node.slice, "value", None)
    what = f"`{name}` is a {'list' if isinstance(value, list) else 'tuple'} of {len(value)}"
    having = [
        place for place, item in enumerate(value[:MAX_KEYS]) if isinstance(item, dict) and dict.__contains__(item, key)
    ]
    if having:
        return f"{what}: write `{name}[{having[0]}][{failure.of(failure.node.slice).text}]`, or `for x in {name}:`."
    if value and isinstance(value[0], dict):
        return f"{what}: write `for x in {name}:`. The keys of `{name}[0]`: {_keys(value[0])}."
    return f"{what}: write `{name}[0][{failure.of(failure.node.slice).text}]`, or `for x in {name}:`."


def _part_of(name: str, failure: Failure) -> str:
    return f"`{name}` is a dict: for a part of its text write `str({name}){failure.text.removeprefix(name)}`."


def _keys(value: dict[Any, Any]) -> str:
    return _listed([repr(key)[:MAX_KEY_CHARS] for key in value]) or "none"


def _document(text: str) -> Any:
    return (text if isinstance(text, JsonText) else JsonText(text)).document()


def _parse_first(name: str, document: Any) -> str:
    what = f"a JSON array of {len(document)}" if isinstance(document, list) else "a JSON object"
    return f"`{name}` is text that holds {what}: write `import json; {name} = json.loads({name})` before."


def _json_text(failure: Failure) -> str | None:
    """Advice for the only name in scope whose text is a JSON array: a loop over it iterates over characters."""
    names = failure.frame.f_locals | failure.frame.f_globals
    found = [
        name for name, value in names.items() if isinstance(value, JsonText) and isinstance(value.document(), list)
    ]
    return found[0] if len(found) == 1 and found[0].isidentifier() and not found[0].startswith("__") else None


# --- attributes ---


def _wrong_attribute(case: Case) -> str | None:
    exc, failure, environment = case
    obj: Any = getattr(exc, "obj", None)
    name: Any = getattr(exc, "name", None)
    if not isinstance(name, str) or not failure.is_innermost_user_frame:
        return None
    base = failure.inner("value").text if trees.kind(failure.node) == "Attribute" else "x"
    kind = type(obj)
    if kind is types.CoroutineType:
        return f"It was never awaited: write `(await {obj.__qualname__}(...)).{name}`."
    if kind is types.ModuleType and obj.__name__ in environment.aliases:
        return f"`{base}` is Python's own module here; the MCP server's: `from mcp.servers import {obj.__name__}`."
    if kind is types.ModuleType and (told := packages.moved(obj.__name__, name)) is not None:
        return told
    if (told := _of_bridge_object(obj, name, base, environment)) is not None:
        return told
    if isinstance(obj, str):
        told = _of_text(obj, name, base)
    elif kind in (dict, Block) or issubclass(kind, list):
        told = _of_data(obj, name, base)
    if told is None and failure.is_innermost and kind in (types.ModuleType, str, list, dict):
        return trees.did_you_mean(name, dir(obj))
    return told


def _of_bridge_object(obj: Any, name: str, base: str, environment: ScriptEnvironment) -> str | None:
    """Advice on attributes of the bridge's own objects."""
    if isinstance(obj, PendingCall):
        if name in SDK_ATTRIBUTES:
            return f"A call gives plain data, not a result object: write `await {base}`, without `.{name}`."
        return f"It was never awaited: write `(await {base}).{name}`."
    if isinstance(obj, MCPError):
        return f"It has `.message`, `.code` and `.details`: `print({base}.code, {base}.message)` shows them."
    if isinstance(obj, types.FunctionType):
        server = str(obj.__module__).removeprefix("mcp.servers.")
        if server in environment.aliases:
            described = f"await runtime.describe('{server}.{obj.__qualname__}', 'schema')"
            return f"`{base}` is a function: call it, `await {base}(...)`. `{described}` tells all of it."
    return None


def _of_text(text: str, name: str, base: str) -> str | None:
    document = text.document() if isinstance(text, JsonText) else None
    if isinstance(document, dict) and name in document:
        return f"It is text that holds a JSON object: write `{base}[{name!r}]`."
    if name in SDK_ATTRIBUTES:
        return f"A call gives plain data, not a result object: `{base}` is the text itself."
    if (python := JAVASCRIPT_METHODS.get(name)) is not None:
        return f"In Python: `{python.format(base)}`."
    if name == "decode":
        return f"It is text already: write `{base}`."
    if name in OF_DICTS:
        if (document := _document(text)) is not None:
            return _parse_first(base, document)
        return f"`{base}` is text, and no JSON object: `print({base})` shows it."
    return None


def _of_data(data: Any, name: str, base: str) -> str | None:
    kind = "dict" if isinstance(data, dict) else "list"
    if kind == "dict" and name in data:
        return f"It is a dict: write `{base}[{name!r}]`."
    if name in SDK_ATTRIBUTES:
        return f"A call gives plain data, not a result object: `{base}` is the {kind} itself."
    if (python := JAVASCRIPT_METHODS.get(name)) is not None:
        return f"In Python: `{python.format(base)}`."
    if not hasattr(str, name):
        return None
    if kind == "dict":
        return f"`{base}` is a dict, and no text. Its keys: {_keys(data)}; `str({base})` is its text."
    return f"`{base}` is a list, and no text: write `for x in {base}:`, or `str({base})`."


# --- containers ---


def _missing_key(case: Case) -> str | None:
    failure = case.failure
    if failure.last_function == "__getitem__" and failure.last_file in {"<frozen os>", "os"}:
        return (
            "Secrets and settings stay outside of the sandbox: the MCP servers have theirs. Call the tool without it."
        )
    if trees.kind(failure.node) != "Subscript" or not failure.is_innermost_user_frame:
        return None
    base = failure.inner("value")
    value = base.value()
    if isinstance(value, JsonText):
        value = value.document()
    if not isinstance(value, dict):
        return None
    if trees.kind(failure.node.slice) == "Slice":
        return _part_of(base.text, failure)
    return f"The keys of `{base.text}`: {_keys(value)}."


def _missing_item(case: Case) -> str | None:
    failure = case.failure
    if trees.kind(failure.node) != "Subscript" or not failure.is_innermost_user_frame:
        return None
    base = failure.inner("value")
    value = base.value()
    if not isinstance(value, (list, tuple, str)):
        return None
    if base.text == "sys.argv":
        return "A script has no arguments: put the values into the script."
    count = len(value)
    return f"`{base.text}` has {count} items; the last is `{base.text}[-1]`." if count else f"`{base.text}` is empty."


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MAX_KEYS]) + (", …" if len(names) > MAX_KEYS else "")


# --- missing features of a sandbox ---


def _system(case: Case) -> str | None:
    exc, failure, environment = case
    if _is_network(exc) or exc.errno == errno.ENOSPC:
        return NO_ROOM if exc.errno == errno.ENOSPC else NO_NETWORK
    if isinstance(exc, FileNotFoundError) and "subprocess" in failure.files | {failure.last_file}:
        return _no_program(str(exc.filename or ""), failure, environment)
    if failure.last_function == "no_shell":
        return _no_program("/bin/sh", failure, environment)
    name = _named(exc)
    # A library's own files are its own affair, but not the one that the script names.
    if not isinstance(name, (str, bytes)) or not (
        failure.is_innermost or failure.files & _PATHS or _is_given(name, failure)
    ):
        return None
    path = name if isinstance(name, str) else name.decode("utf-8", "replace")
    inside = path.startswith(("/workspace/", "/tmp/")) or not path.startswith("/")  # noqa: S108
    if isinstance(exc, FileNotFoundError) and not (_is_writing(failure) and not inside):
        handed_in = "`runtime.files()` lists the operator's files, which are in /workspace/in; "
        search = "`await runtime.search('read file')` finds a tool that reads the host's files."
        search = handed_in + search if environment.has_inputs else search
        if _input(path) is not None:
            return "There is no such file of the operator's: `runtime.files()` lists those that there are."
        if inside and environment.kept is not None:
            return f"No cell of this session has left that file in /workspace or /tmp. {search}"
        if inside:
            return f"/workspace and /tmp begin empty with every call: no file of an earlier one is there. {search}"
        return f"No file of the host is here. {search}"
    if isinstance(exc, (FileExistsError, PermissionError)) and (name := _input(path)) is not None:
        copied = f"shutil.copyfile('/workspace/in/{name}', '/tmp/{name.rpartition('/')[2]}')"
        return f"The operator's files can be read only: copy it first, `{copied}`."
    if isinstance(exc, (FileNotFoundError, PermissionError)) or exc.errno == errno.EROFS:
        return "Only /workspace and /tmp can be written; `artifact(path)` keeps a file from there."
    return None


def _named(exc: Any) -> Any:
    """The path that an error names."""
    if exc.filename is None and (said := _NOT_FOUND.fullmatch(str(exc))):
        return said[1]
    return exc.filename


def _is_given(name: str | bytes, failure: Failure) -> bool:
    """Whether the call that has failed is given a path."""
    if trees.kind(failure.node) != "Call":
        return False
    for given in (*failure.node.args, *(word.value for word in failure.node.keywords)):
        value = given.value if trees.kind(given) == "Constant" else failure.of(given).value()
        # Other values may do anything when they are compared.
        if type(value).__module__.partition(".")[0] == "pathlib":
            value = str(value)
        if type(value) in (str, bytes) and value == name:
            return True
    return False


def _input(path: str) -> str | None:
    """The name of an input by its path."""
    name = path.removeprefix("/workspace/")
    return name[3:] if name.startswith("in/") else None


def _is_writing(failure: Failure) -> bool:
    """Whether the expression opens a file for writing."""
    if trees.kind(failure.node) != "Call":
        return False
    function = failure.node.func
    called = getattr(function, "attr", None) or getattr(function, "id", "")
    if called != "open":
        return called in {"mkdir", "touch", "write_bytes", "write_text"}
    # The first argument of a path's `open` is the mode.
    given = [*failure.node.args[:2], *(word.value for word in failure.node.keywords if word.arg == "mode")]
    modes = [str(one.value) for one in given if trees.kind(one) == "Constant"]
    return any(len(mode) <= MODE_CHARS and set(mode) & set("wax") and set(mode) <= set("rwaxbt+") for mode in modes)


MODE_CHARS = 4

_NO_FILE = re.compile(
    r"(?i)no such file|no files? found|not found|does not exist|(?:failed|cannot|could not|unable) to open"
)
_NOT_THERE_YET = "The operator's files, which `runtime.files()` lists, are there once they are fetched"

_NOT_FOUND = re.compile(r"(\S+) not found\.")
"""What NumPy says of a file that isn't there."""

_PATHS = {"pathlib", "shutil", "<frozen os>", "os", "csv", "<frozen genericpath>", "fileinput", "sqlite3", "tarfile"}


def _no_database(case: Case) -> str | None:
    if type(case.exc).__name__ == "OperationalError" and "unable to open database file" in str(case.exc):
        here = "Only /workspace and /tmp can be written, and no file of the host is here"
        return f"{here}: write `sqlite3.connect('/tmp/data.db')`."
    if "attempt to write a readonly database" in str(case.exc) and "/workspace/in/" in case.environment.code:
        copied = "shutil.copyfile('/workspace/in/NAME', '/tmp/NAME')"
        return f"The operator's files can be read only: copy it first, `{copied}`."
    return None


def _is_network(exc: Any) -> bool:
    seen: Any = exc
    for _ in range(MAX_LEAVES):
        if seen is None:
            return False
        if type(seen).__name__ in {"gaierror", "URLError"} or "socket" in trees.files_of(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _no_program(program: str, failure: Failure, environment: ScriptEnvironment) -> str:
    name = program.rpartition("/")[2]
    if name == "sh" and trees.kind(failure.node) == "Call" and failure.node.args:
        # A shell's command is more informative.
        command = failure.node.args[0]
        words = str(command.value).split() if trees.kind(command) == "Constant" else []
        name = words[0] if words else name
    if name in environment.aliases:
        return f"There are no programs here but Python; `{name}` is an MCP server: `from mcp.servers import {name}`."
    if name in {"pip", "pip3", "uv", "conda"}:
        return f"There are no programs here but Python. {packages.no_installing()}"
    if name in {"curl", "wget"}:
        return NO_NETWORK
    return (
        "There is no shell here, and no program but Python: use pathlib, shutil and re, or an MCP server's tool "
        "(`await runtime.search('words')`)."
    )


def _no_input(case: Case) -> str | None:
    failure = case.failure
    if trees.kind(failure.node) == "Call" and failure.inner("func").text in {"input", "getpass", "getpass.getpass"}:
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
        is_gather = failure.inner("func").text.rpartition(".")[2] == "gather"
        called = failure.text if is_gather else failure.of(failure.node.args[0]).text
    return f"{why}: write `await {called}`."


def _wrong_value(case: Case) -> str | None:
    exc, failure = case.exc, case.failure
    if str(exc).startswith("a coroutine was expected, got <_Gathering") and trees.kind(failure.node) == "Call":
        return f"Write `await {failure.of(failure.node.args[0]).text}`." if failure.node.args else None
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
    (ValueError, _wrong_value),
    (Exception, _no_database),
)

"""`mcp.runtime`: what servers and tools there are, and calls by name.

The call that runs a script takes, besides its code: servers, timeout, idempotency_key, session, fork, dry_run, files,
and, for Python, packages.

The asynchronous functions have a blocking form with `_sync` at the end. The second half keeps the names by which an
earlier bridge offered the same.
"""

import sys
import types

from mcp_bridge.guest.channel import Channel, named
from mcp_bridge.guest.host_requests import MCPError, ToolError, answered, call_host
from mcp_bridge.guest.not_awaited import NotAwaitedError
from mcp_bridge.guest.proxies import (
    ASYNCHRONOUS,
    CALLS,
    LISTS,
    OMITTED,
    Calls,
)
from mcp_bridge.wire.annotations import TYPE_CHECKING, Any, Callable, Generator, Mapping
from mcp_bridge.wire.messages import (
    CatalogDescribe,
    CatalogSearch,
    CatalogServers,
    CatalogTools,
    MemoryDelete,
    MemoryList,
    MemoryLoad,
    MemorySave,
    OutputRead,
    SessionEnd,
    SessionList,
    ToolCall,
)

if TYPE_CHECKING:
    from mcp_bridge.guest.files.inputs import Inputs

TOOL_PREFIX = "tool:"
"""Prefix of saved tools among the memories."""

MAX_TIMES_APPLIED = 1000
"""How often `update_memory` applies a function: each time others were quicker, and one of them has got ahead."""


class Rows(list[Any]):
    """A list that prints one item a line. Awaiting it is optional."""

    def __await__(self) -> Generator[Any, Any, "Rows"]:
        yield from ()
        return self

    def __repr__(self) -> str:
        return "\n".join(str(row) for row in self) or "(none)"

    __str__ = __repr__


class Text(str):
    """A text. Awaiting it is optional."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, "Text"]:
        yield from ()
        return self


class AwaitableNone:
    """The result of a function that returns nothing. Awaiting it is optional."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, AwaitableNone)

    def __hash__(self) -> int:
        return hash(None)

    def __repr__(self) -> str:
        return "None"


def optionally_awaitable(function: Callable[..., None]) -> Callable[..., AwaitableNone]:
    """Wrap a function that returns nothing so that awaiting its result is optional."""

    def call(*args: Any, **kwargs: Any) -> AwaitableNone:
        function(*args, **kwargs)
        return AwaitableNone()

    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__, call.__module__ = function.__doc__, "mcp"
    call.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
    return call


class Summary(dict[str, Any]):
    """A server as a dict that prints as lines. Awaiting it is optional."""

    text = ""

    def __await__(self) -> Generator[Any, Any, "Summary"]:
        yield from ()
        return self

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


class Row(dict[str, Any]):
    """A dict whose items are also attributes; `description` is an alias of the tool's description."""

    called = ""
    """The tool's name for `describe`."""

    _described = "doc"

    def __missing__(self, key: Any) -> Any:
        if key == "description":
            return self[self._described]
        raise KeyError(self._unknown(key))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self or name == "description":
            return self[name]
        raise AttributeError(self._unknown(name))

    def get(self, key: Any, default: Any = None) -> Any:
        """As `dict.get`, including the aliases that `[key]` accepts."""
        return self[key] if key in self or key == "description" else default

    def _unknown(self, name: Any) -> str:
        tool = self.called or self["name"]
        if name in SCHEMAS:
            return f"no {name!r} here; write: await runtime.describe({tool!r}, 'schema')"
        if name in CALLS:
            return f"no {name!r} here; write: await runtime.call_tool({tool!r}, {{...}})"
        return f"no {name!r} here; there are: {', '.join(self)}"


SCHEMAS = frozenset({"inputSchema", "input_schema", "outputSchema", "output_schema", "parameters", "schema"})
"""Names by which other clients request a tool's schemas."""


class Match(Row):
    """A found tool as a dict; prints as its line."""

    _described = "line"

    def __repr__(self) -> str:
        return str(self["line"])

    __str__ = __repr__


def build(functions: "_Functions", calls: Calls, servers: list[dict[str, Any]]) -> types.ModuleType:
    """Build the module of these functions."""
    module = types.ModuleType("mcp.runtime", __doc__)
    public: dict[str, Any] = {"MCPError": MCPError, "ToolError": ToolError, "NotAwaitedError": NotAwaitedError}
    for name in _BLOCKING_TOO:
        blocking = getattr(functions, name)
        public[name] = _asynchronous(name, blocking, calls)
        public[f"{name}_sync"] = _with_usage_errors(f"{name}_sync", blocking)
    for name in _PLAIN:
        public[name] = public[f"{name}_sync"] = _with_usage_errors(name, getattr(functions, name))
    for name in ("call_tool", "sleep_until", "wait_event"):
        public[name] = _with_usage_errors(name, getattr(functions, f"{name}_async"))
        public[name].__dict__[ASYNCHRONOUS] = True
        public[f"{name}_sync"] = _with_usage_errors(f"{name}_sync", getattr(functions, name))
    module.__dict__.update(public)
    module.__dict__["__all__"] = sorted(public)
    # As in a package: the importer asks for unknown names, and its error says what to write.
    module.__dict__["__path__"] = []
    aliases = [row["alias"] for row in servers]

    def missing(name: str) -> Any:
        # Names that the interpreter requests of every module are no mistakes.
        raise AttributeError(name if name.startswith("__") else unknown(name, sorted(public), aliases))

    module.__dict__["__getattr__"] = missing
    return module


USAGE = {
    "call_tool": "await runtime.call_tool({0!r}, 'TOOL', {{...}})",
    "describe": "await runtime.describe('{0}.TOOL')",
    "discovered_servers": "runtime.discovered_servers()",
    "list_servers": "await runtime.list_servers()",
    "list_tools": "await runtime.list_tools({0!r})",
    "load_memory": "await runtime.load_memory('key')",
    "save_memory": "await runtime.save_memory('key', value)",
    "end_session": "await runtime.end_session('NAME')",
    "files": "runtime.files()",
    "input": "path = runtime.input('NAME')",
    "open_input": "with runtime.open_input('NAME') as file: ...",
    "install": "await runtime.install('PACKAGE')",
    "save_tool": "await runtime.save_tool(function)",
    "search": "await runtime.search('words')",
    "sleep_until": "await runtime.sleep_until(time.time() + SECONDS)",
    "wait_event": "await runtime.wait_event('NAME', timeout=SECONDS)",
}
"""A usage line for each function; `{0}` is a server."""

_MEANT = {
    "call_tool": CALLS | {"invoke_tool", "tool", "call_mcp_tool"},
    "list_tools": LISTS | {"available_tools"},
    "list_servers": {"servers", "get_servers", "mcp_servers", "available_servers"},
    "search": {"find", "find_tool", "find_tools", "query", "search_tools"},
    "describe": {"describe_tool", "doc", "docs", "get_schema", "get_tool", "help", "info", "schema", "tool_info"},
    "save_memory": {"memory", "remember", "save", "set", "set_memory", "store"},
    "load_memory": {"get", "get_memory", "load", "recall"},
    "files": {"inputs", "list_files", "list_inputs", "get_files"},
    "input": {"fetch", "fetch_file", "get_file", "get_input", "load_file", "read_file", "upload"},
    "open_input": {"open", "open_file", "stream", "read_input"},
    "install": {"add_package", "install_package", "install_packages", "pip", "pip_install", "require"},
    "end_session": {"reset", "reset_session", "restart", "new_session", "destroy_session"},
    "sleep_until": {"delay", "pause", "sleep", "sleep_for", "wait", "wait_until"},
    "wait_event": {"await_event", "event", "on_event", "receive", "wait_for", "wait_for_event"},
}
"""The names of these functions in other bridges and clients."""

_RESOURCES = {
    "list_resources()": {"list_resources", "list_resource_templates", "get_resources", "resources"},
    "read_resource(uri='URI')": {"read_resource", "get_resource", "fetch_resource", "load_resource", "resource"},
}
"""The tools for the resources of a server, and names by which clients have them as functions of their own."""

_UNREACHED = frozenset({
    "get_prompt", "get_prompts", "list_prompts", "prompt", "prompts", "complete", "subscribe_resource",
    "unsubscribe_resource",
})  # fmt: skip
"""What clients ask servers for, and scripts can't."""


def unknown(name: str, known: list[str], aliases: list[str]) -> str:
    """The error message for an unknown name."""
    told = f"mcp.runtime has no {name!r}"
    if name in aliases:
        return f"{told}; write: from mcp.servers import {name}"
    if (line := usage(name, aliases)) is not None:
        return f"{told}; write: {line}"
    for tool, names in _RESOURCES.items():
        if name in names:
            return f"{told}; it is a tool of each server that has resources; write: await SERVER.{tool}"
    if name in _UNREACHED:
        return (
            f"{told}: prompts, completions and subscriptions of servers are out of a script's reach; there are: tools "
            "(await runtime.search('words')) and resources (await SERVER.list_resources())"
        )
    from mcp_bridge.guest.near_names import nearest

    return f"{told}{nearest(name, [one for one in known if not one.endswith('_sync')])}"


def usage(name: str, aliases: list[str]) -> str | None:
    """The usage line for a name of the runtime or another client's equivalent; None if there is none."""
    example = aliases[0] if aliases else "SERVER"
    for meant, names in _MEANT.items():
        if name == meant or name in names:
            return USAGE[meant].format(example)
    return None


_BLOCKING_TOO = (
    "list_servers",
    "list_tools",
    "search",
    "describe",
    "query_tool_docs",
    "search_tool_docs",
    "save_memory",
    "load_memory",
    "update_memory",
    "delete_memory",
    "list_memories",
    "sessions",
    "end_session",
    "save_tool",
    "install",
)

_PLAIN = (
    "discovered_servers",
    "list_loaded_server_metadata",
    "describe_server",
    "capability_summary",
    "output",
    "files",
    "input",
    "open_input",
)
"""Functions whose result may be awaited or not."""


def _asynchronous(name: str, blocking: Callable[..., Any], calls: Calls) -> Any:
    """The asynchronous form: the same function on a thread, so that it doesn't block the loop."""
    blocking = _with_usage_errors(name, blocking)

    async def work(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import asyncio

        return await asyncio.to_thread(blocking, *args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return calls.unawaited.track(work(args, kwargs), f"runtime.{name}", 2)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = blocking.__doc__
    call.__module__ = "mcp.runtime"
    call.__dict__[ASYNCHRONOUS] = True
    call.__wrapped__ = blocking  # type: ignore[attr-defined]  # inspect.signature follows it
    return call


def _with_usage_errors(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that wrong arguments give an error with its usage.

    Raises:
        TypeError: The arguments are wrong; the message has the name that scripts use.
        MCPError: As the function; `bad_params` with that name, too.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except MCPError as exc:
            if exc.code != "bad_params":
                raise
            # The script knows the function that it has called, not the request.
            import re

            told = re.sub(r"^\w+\.\w+(?=: '| needs ')", f"runtime.{name}()", exc.message)
            raise MCPError(told, code=exc.code, details=exc.details) from None
        except TypeError:
            import inspect

            signature = inspect.signature(function)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as exc:
                shown = signature.replace(return_annotation=inspect.Signature.empty)
                raise TypeError(f"runtime.{name}(): {exc}. It is {name}{shown}") from None
            raise

    call.__name__ = call.__qualname__ = name
    call.__doc__, call.__module__ = function.__doc__, "mcp.runtime"
    call.__wrapped__ = function  # type: ignore[attr-defined]  # inspect.signature follows it
    return call


class _Functions:
    given: Mapping[str, Any] = {}  # noqa: RUF012  (replaced, never changed)
    """The names that scripts have without an import, and saved functions too."""

    def __init__(self, channel: Channel, calls: Calls, servers: list[dict[str, Any]]) -> None:
        self._channel = channel
        self._calls = calls
        self._servers = servers
        self.near_tools: tuple[str, list[str]] = ("", [])
        """The last name without a saved tool, and the names of those that may be meant."""
        self._noticed: set[str] = set()

    def _request(self, params: Any) -> Any:
        try:
            return call_host(self._channel, params)
        except MCPError as exc:
            if isinstance(params, CatalogDescribe) and exc.code == "bad_params" and "'detail'" in exc.message:
                told = f"{exc.message}; a tool is one name: describe('{params.name}.{params.detail}')"
                raise MCPError(told, code=exc.code, details=exc.details) from None
            raise

    def discovered_servers(self, detailed: bool = False) -> Rows:  # noqa: FBT001, FBT002
        """Names of every server this script may use, started or not; with `detailed`, a dict each."""
        return Rows(dict(row) if detailed else row["name"] for row in self._servers)

    def list_servers(self) -> Rows:
        """Names of every server this script may use, started or not."""
        return self.discovered_servers()

    def list_loaded_server_metadata(self) -> Rows:
        """A dict a server: `name`, `alias`, `status`, `tools` (a count or None), `error`."""
        return Rows(self._request(CatalogServers())["servers"])

    def list_tools(self, server: str | None = None) -> Rows:
        """A dict a tool: `name`, `alias`, `params`, `returns`, `doc`; without a server, of each, with `server`."""
        if server is not None:
            return self._tools(server)
        # Starts all servers that need it at once, and reports those that fail.
        self._search("", 1, strict=False)
        listed = [row for row in self._request(CatalogServers())["servers"] if row["tools"] is not None]
        return Rows(tool for row in listed for tool in self._tools(row["name"], server=row["alias"]))

    def _tools(self, asked: str, **more: str) -> Rows:
        found = self._request(CatalogTools(asked, told=True))
        rows = Rows(Row(more | tool) for tool in found["tools"])
        for row in rows:
            row.called = f"{found['alias']}.{row['alias']}"
        return rows

    def search(self, query: str = "", limit: int = 5) -> Rows:
        """Tools of every server, best first; each has `server`, `tool`, `name` (`alias.tool`) and `line`."""
        return self._search(query, limit, strict=False)

    def _search(self, query: str, limit: int, *, strict: bool) -> Rows:
        result = self._request(CatalogSearch(query, limit, strict))
        rows = Rows(Match(match) for match in result["matches"])
        for notice in result["notices"]:
            if notice not in self._noticed:
                self._noticed.add(notice)
                print(notice, file=sys.stderr)  # noqa: T201  (what the script prints may be data)
        return rows

    def describe(self, name: Any, detail: str = "signature") -> Any:
        """A tool (`git.git_log`, or its function) or server (`git`): detail is "line", "signature", "full" or "schema".

        What "line" and "signature" cut ends in `…`. "full" has all descriptions, and types with all of their fields and
        values; where a type is too long for it, its last line says so. "schema" is what the server sent, as a dict.
        """
        owner = getattr(name, "__module__", None)
        if callable(name) and isinstance(owner, str) and owner.startswith("mcp.servers."):
            # A tool's function, or its `raw`.
            name = f"{owner.removeprefix('mcp.servers.')}.{name.__qualname__.removesuffix('.raw')}"
        result = self._request(CatalogDescribe(name, detail))  # type: ignore[arg-type]
        return result["schema"] if detail == "schema" else result["text"]

    def call_tool(
        self, server: str = OMITTED, tool: str = OMITTED, arguments: dict[str, Any] | None = None, /, **kwargs: Any
    ) -> Any:
        """Call a tool by its server's and its own name; returns its value.

        Raises:
            ToolError: The tool reported an error, or could not be called.
        """
        return self._calls.call_blocking(self._intended_call(server, tool, arguments, kwargs))

    def call_tool_async(
        self, server: str = OMITTED, tool: str = OMITTED, arguments: dict[str, Any] | None = None, /, **kwargs: Any
    ) -> Any:
        """Call a tool by its server's and its own name; await it for its value.

        Raises:
            ToolError: The tool reported an error, or could not be called.
        """
        return self._calls.call(self._intended_call(server, tool, arguments, kwargs), "runtime.call_tool", 3)

    def _intended_call(self, server: Any, tool: Any, arguments: Any, kwargs: dict[str, Any]) -> ToolCall:
        """The intended call: `('git', 'git_log', {...})`, `('git.git_log', {...})`, or all by keywords.

        Raises:
            TypeError: The arguments specify no call.
        """
        if server is OMITTED and {"server", "tool"} <= kwargs.keys():
            server, tool, arguments = kwargs["server"], kwargs["tool"], kwargs.get("arguments")
            kwargs = {name: value for name, value in kwargs.items() if name not in {"server", "tool", "arguments"}}
        elif isinstance(server, str) and (tool is OMITTED or isinstance(tool, dict)):
            arguments = arguments if tool is OMITTED else tool
            server, tool = self._split(server)
        is_named = isinstance(server, str) and isinstance(tool, str)
        if not is_named or not isinstance(arguments, (dict, types.NoneType)):
            names = [one if isinstance(one, str) else other for one, other in ((server, "SERVER"), (tool, "TOOL"))]
            raise TypeError(
                "call_tool() takes a server, a tool and a dict; "
                f"write: await runtime.call_tool({names[0]!r}, {names[1]!r}, {{...}})"
            )
        # The tool's name may have its server's as a prefix, as search and describe show it.
        return ToolCall(server, tool.removeprefix(f"{server}."), (arguments or {}) | kwargs)

    def _split(self, name: str) -> tuple[str, str]:
        """Split `git.git_log`, or the clients' form `mcp__git__git_log`, into server and tool."""
        known = sorted((row[key] for row in self._servers for key in ("name", "alias")), key=len, reverse=True)
        for server in known:
            for before, after in ((server, "."), (f"mcp__{server}", "__")):
                if name.startswith(before + after):
                    return server, name.removeprefix(before + after)
        if "." in name:
            server, _, tool = name.partition(".")
            return server, tool
        missing, called = ("tool", f"{name!r}, 'TOOL'") if name in known else ("server", f"'SERVER', {name!r}")
        raise TypeError(f"call_tool() needs the {missing}, too; write: await runtime.call_tool({called}, {{...}})")

    # --- names of the earlier bridge ---

    def describe_server(self, name: str) -> "Summary":
        """A server, as a dict: `name`, `alias`, `tools` (a dict each); prints as a line a tool."""
        found = self._request(CatalogTools(name, told=True))
        summary = Summary(name=found["server"], alias=found["alias"], tools=found["tools"])
        summary.text = self.describe(name, "line")
        return summary

    def query_tool_docs(self, server: str, tool: str | None = None, detail: str = "summary") -> Rows:
        """Docs of one tool, or of all tools of a server: a list of dicts; detail is "summary" or "full"."""
        names = [tool] if tool is not None else [row["name"] for row in self.list_tools(server)]
        return Rows(self._document(f"{server}.{name}", detail) for name in names)

    def search_tool_docs(self, query: str, limit: int = 5, detail: str = "summary") -> Rows:
        """Docs of the tools that match every word of the query."""
        return Rows(self._document(match["name"], detail) for match in self._search(query, limit, strict=True))

    def _document(self, name: str, detail: str) -> dict[str, Any]:
        level = "schema" if detail in {"full", "schema"} else "line"
        shown = self.describe(name, level)
        return {"name": name, "description": shown} if level == "line" else {"name": name, **shown}

    def capability_summary(self) -> "Text":
        """What can be done here, in a few lines."""
        names = ", ".join(row["alias"] for row in self._servers) or "none configured"
        return Text(
            f"servers: {names}. from mcp.servers import NAME; await NAME.TOOL(...). "
            "mcp.runtime: await search('words'), await describe('NAME.TOOL')."
        )

    def output(self, execution: str, name: str = "stdout") -> "Text":
        """All of what an earlier run's answer had to cut, as a text: `runtime.output(ID)[30000:60000]`.

        `name` is "stdout", "stderr", "value" or "error", or what the cut names.
        """
        parts: list[str] = []
        start: int | None = 0
        while start is not None:
            part = self._request(OutputRead(execution, name, start))
            parts.append(part["text"])
            start = part["next"]
        return Text("".join(parts))

    def _inputs(self) -> "Inputs":
        # Imported late: most operators hand no files in.
        from mcp_bridge.guest.files import inputs

        return inputs.of(self._channel)

    def files(self, name: str | None = None) -> Rows:
        """The operator's files that may be read: `name`, `kind`, `size`, `type`; with a name, those in a folder."""
        return Rows(self._inputs().files(name))

    def input(self, name: str) -> "Text":
        """Copy a file or folder of the operator's to /workspace/in; returns its path. `NAME/PATH` is a file in one."""
        return Text(self._inputs().fetch(name))

    def open_input(self, name: str, mode: str = "rb", encoding: str | None = None) -> Any:
        """Open a file of the operator's as a stream, however large: "rb" gives bytes, "r" text. Nothing is copied."""
        import io

        if mode not in {"rb", "r", "rt"}:
            raise ValueError(f"mode {mode!r}: the operator's files can be read only; 'rb' or 'r'")
        raw = self._inputs().stream(name)
        binary = io.BufferedReader(raw, buffer_size=1 << 16)
        return binary if mode == "rb" else io.TextIOWrapper(binary, encoding=encoding or "utf-8")

    def save_memory(self, key: str, value: Any) -> None:
        """Keep a JSON value under a key, for later executions."""
        self._request(MemorySave(key, value))

    def update_memory(self, key: str, value: Any) -> Any:
        """Merge a dict into the dict kept under a key, replace another value, or apply a plain function to it.

        Returns what is kept now. A function is applied again if what is kept has changed meanwhile.

        Raises:
            MCPError: `memory_busy`; it has changed each time.
        """
        if callable(value):
            return self._apply(key, value)
        self._request(MemorySave(key, value, update=True))
        return self.load_memory(key)

    def _apply(self, key: str, function: Callable[[Any], Any]) -> Any:
        asked: Any = answered(lambda: named(MemoryLoad(key)))
        found = self._request(asked)
        for _ in range(MAX_TIMES_APPLIED):
            value = function(found["value"] if found["found"] else None)
            if isinstance(value, types.CoroutineType):
                value.close()
                raise TypeError("update_memory() takes a plain function, not an asynchronous one")
            save = MemorySave(key, value, since=asked.call)
            asked = answered(lambda save=save: named(save))  # type: ignore[misc]  # mypy infers no default's type
            found = self._request(asked)
            if "saved" not in found:
                # Recorded by an earlier build, which then asked for what is kept.
                return self.load_memory(key)
            if found["saved"]:
                return found["value"]
        raise MCPError(
            f"The memory {key!r} was changed by others each time before it was updated, {MAX_TIMES_APPLIED} times.",
            code="memory_busy",
        )

    def load_memory(self, key: str, default: Any = None) -> Any:
        """The value kept under a key."""
        result = self._request(MemoryLoad(key))
        return result["value"] if result["found"] else default

    def delete_memory(self, key: str) -> bool:
        """Forget a key; whether there was one."""
        return bool(self._request(MemoryDelete(key))["found"])

    def list_memories(self) -> Rows:
        """The keys there are."""
        return Rows(key for key in self._request(MemoryList())["keys"] if not key.startswith(TOOL_PREFIX))

    def sessions(self) -> Rows:
        """The sessions there are: `name`, `cells`, `state`, `execution` (the last cell), `changed`."""
        return Rows(self._request(SessionList())["sessions"])

    def end_session(self, name: str | None = None) -> bool:
        """End a session, to begin anew under its name; this one without a name. Whether there was one."""
        return bool(self._request(SessionEnd(name))["found"])

    def sleep_until(self, when: Any) -> Any:
        """Wait until a time: a datetime with its zone, seconds since 1970, or an ISO text. A long one suspends the run.

        Raises:
            MCPError: The time is too far away, or there are too many waits.
        """
        from mcp_bridge.guest.waits import waits

        return waits.wait(self._channel, waits.until(when))

    def sleep_until_async(self, when: Any) -> Any:
        """Wait until a time: a datetime with its zone, seconds since 1970, or an ISO text. A long one suspends the run.

        Raises:
            MCPError: The time is too far away, or there are too many waits.
        """
        from mcp_bridge.guest.waits import waits

        work = waits.wait_async(self._channel, waits.until(when))
        return self._calls.unawaited.track(work, "runtime.sleep_until", 3)

    def wait_event(self, name: str, timeout: float | None = None) -> Any:
        """Wait for an event that somebody outside sends by this name; returns its payload. It may suspend the run.

        Raises:
            TimeoutError: It didn't come within `timeout` seconds.
        """
        from mcp_bridge.guest.waits import waits

        return waits.wait(self._channel, waits.event(name, timeout))

    def wait_event_async(self, name: str, timeout: float | None = None) -> Any:
        """Wait for an event that somebody outside sends by this name; returns its payload. It may suspend the run.

        Raises:
            TimeoutError: It didn't come within `timeout` seconds.
        """
        from mcp_bridge.guest.waits import waits

        work = waits.wait_async(self._channel, waits.event(name, timeout))
        return self._calls.unawaited.track(work, "runtime.wait_event", 3)

    def install(self, *requirements: str) -> Rows:
        """Add packages of the operator's list to this script: `install('rich', 'requests>=2')`; what was added.

        What has compiled modules has to be there from the start: `packages=[...]` of the call.
        """
        if not requirements or not all(isinstance(one, str) for one in requirements):
            raise TypeError("install() takes names of packages; write: await runtime.install('PACKAGE')")
        from mcp_bridge.guest.packages.install import install

        return Rows(install(self._request, requirements))

    def save_tool(self, function: Callable[..., Any]) -> str:
        """Keep a function's source for later executions: `from mcp.tools import NAME`.

        Of its script it has nothing there: what it uses, it imports or defines inside. What it would miss is told.

        Raises:
            TypeError: It is no function that the script defines with `def`. AttributeError and OSError for what has no
                name or no source.
        """
        # Imported late: few scripts keep a function.
        from mcp_bridge.guest.advice import saved_tools

        kept = saved_tools.kept(function, self.given)
        try:
            # What an earlier build has kept is answered from the record as it was then, whatever is refused by now.
            self._request(MemorySave(TOOL_PREFIX + kept.name, kept.source, refusal=kept.refusal))
        except MCPError as exc:
            if exc.code != "bad_arguments":
                raise
            raise TypeError(exc.message) from None
        if kept.notice is not None:
            print(kept.notice, file=sys.stderr)  # noqa: T201  (what the script prints may be data)
        return kept.name

    def load_tool_source(self, name: str) -> str | None:
        """The source kept by `save_tool`, or None."""
        result = self._request(MemoryLoad(TOOL_PREFIX + name))
        # Recorded by an earlier build, the answer names none.
        self.near_tools = name, result.get("near", [])
        return result["value"] if result["found"] and isinstance(result["value"], str) else None

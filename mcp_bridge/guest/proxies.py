"""`mcp.servers.<name>`: a tool as a function with the tool's true signature."""

import sys
import types

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.guest.host_requests import MCPError, ToolError, call_host, tool_error
from mcp_bridge.guest.not_awaited import PendingCall, UnawaitedCalls
from mcp_bridge.guest.values import blocks, jsontext
from mcp_bridge.guest.values.arguments import normalise, spread, takes_besides
from mcp_bridge.wire.annotations import Any, Iterator
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import CatalogCheck, CatalogTools, ToolCall

STALE_LISTING_CODES = frozenset({"bad_arguments", "tool_changed", "unknown_tool"})
"""Codes of calls that were refused, perhaps because the server lists its tools otherwise by now."""


class Calls:
    """Makes calls.

    Attributes:
        channel: Sends their requests.
        unawaited: Knows which of them were never awaited.
        listings: The tools of each server, in each form.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.unawaited = UnawaitedCalls()
        self.listings: list[_Tools] = []

    def begin_cell(self, marks: dict[str, Any]) -> None:
        """Begin a session's next cell: its calls are its own, and servers may list other tools than they did.

        Args:
            marks: A mark of the tools of each server, by its name.
        """
        self.unawaited.begin()
        for tools in self.listings:
            tools.forget_unless(marks.get(tools.server))

    def call(self, request: ToolCall, shown: str, depth: int) -> PendingCall:
        """A tool call that starts when it is awaited; `shown` and `depth` as in `UnawaitedCalls.track`."""
        return self.unawaited.track(self._run(request), shown, depth + 1)

    def call_blocking(self, request: ToolCall) -> Any:
        """Make a call and wait for its result.

        Raises:
            ToolError: The tool reported an error, or could not be called.
        """
        try:
            return _value(self.channel.request(request), raw=request.raw)
        except (RequestError, LocalMessageError) as exc:
            raise self._error(request, exc) from None

    async def _run(self, request: ToolCall) -> Any:
        try:
            return _value(await self.channel.request_async(request), raw=request.raw)
        except (RequestError, LocalMessageError) as exc:
            raise self._error(request, exc) from None

    def _error(self, request: ToolCall, exc: RequestError | LocalMessageError) -> ToolError:
        error = tool_error(request, exc)
        if error.code in STALE_LISTING_CODES:
            for tools in self.listings:
                tools.forget_if_of(request.server)
        return error


def _value(result: Any, *, raw: bool) -> Any:
    if "planned" in result:
        from mcp_bridge.guest.values.planned_values import Planned

        return Planned(result["planned"])
    return blocks.short(result.get("raw") if raw else jsontext.of(result.get("value")))


class UnknownToolError(Exception):
    """A server has no such tool. Its text says what to write instead."""


class _Tools:
    """A server's tools as functions. They are listed on first use, and anew where something doesn't fit the listing."""

    def __init__(self, server: str, alias: str, calls: Calls, *, blocking: bool) -> None:
        self.server = server
        self.alias = alias
        self.calls = calls
        self.blocking = blocking
        self._rows: dict[str, dict[str, Any]] | None = None
        self._mark: Any = None
        self._functions: dict[str, Any] = {}
        """By the tools' names."""
        calls.listings.append(self)

    def known(self) -> list[str] | None:
        """The tools' aliases if they are listed already, else None."""
        rows = self._rows
        return None if rows is None else list(rows)

    def forget_if_of(self, server: str) -> None:
        """Have the tools listed anew on their next use, if they are those of the server of this name or alias."""
        if server in {self.server, self.alias}:
            self._rows = None

    def forget_unless(self, mark: Any) -> None:
        """Have the tools listed anew on their next use, unless the listing has this mark, and there is one."""
        if mark is None or mark != self._mark:
            self._rows = None

    def rows(self) -> dict[str, dict[str, Any]]:
        """The tools' rows by alias."""
        rows = self._rows
        if rows is None:
            result = call_host(self.calls.channel, CatalogTools(self.server))
            self._rows = rows = {row["alias"]: row for row in result["tools"]}
            self._mark = result["mark"]
            for row in result["tools"] if self._functions else ():
                if row["name"] in self._functions:
                    _describe(self._functions[row["name"]], row, self)
        return rows

    def current(self, row: dict[str, Any]) -> dict[str, Any]:
        """A tool's row as it is known now; the same if it isn't listed, or nothing is: the host tells what is wrong."""
        try:
            rows = self.rows()
        except MCPError:
            return row
        found, name = rows.get(row["alias"]), row["name"]
        if found is None or found["name"] != name:
            found = next((each for each in rows.values() if each["name"] == name), row)
        return found

    def listed_anew(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """A tool's row as the server lists it by now, if it differs from this one; None if it doesn't."""
        self._rows = None
        current = self.current(row)
        return None if current == row else current

    def find(self, name: str) -> Any:
        """The function with this alias or name.

        Raises:
            UnknownToolError: There is no such tool.
            ToolError: The server's tools can't be listed, so this one can't be called.
        """
        try:
            function = self._function(name)
        except MCPError as exc:
            raise ToolError(str(exc), server=self.server, tool=name, code=exc.code, details=exc.details) from None
        if function is None and (meant := self._meant(name)) is not None:
            raise UnknownToolError(self._unknown(name, meant))
        if function is None:
            # It wasn't there when the tools were listed.
            self._rows = None
            function = self._function(name)
        if function is None:
            raise UnknownToolError(self._unknown(name, []))
        return function

    def unknown(self, name: str) -> str:
        """The error message for a name that can't be a tool's."""
        try:
            return self._unknown(name, self._meant(name) or [])
        except UnknownToolError as exc:
            return str(exc)

    def _meant(self, name: str) -> list[str] | None:
        """The tools that the host finds by the words of a name, and by its spelling; None if it is a tool's."""
        try:
            call_host(self.calls.channel, CatalogCheck(self.server, name, {}))
        except MCPError as exc:
            if not self.rows():
                # The host says why there are none.
                raise UnknownToolError(str(exc)) from None
            return list(exc.details.get("nearest") or [])
        return None

    def _function(self, name: str) -> Any:
        rows = self.rows()
        row = rows.get(name) or next((row for row in rows.values() if row["name"] == name), None)
        if row is None:
            return None
        known = row["name"]
        if known not in self._functions:
            self._functions[known] = make_function(row, self)
        return self._functions[known]

    def _unknown(self, name: str, meant: list[str]) -> str:
        """The error message for an unknown tool; `meant` are the tools that the host finds by the words of its name."""
        from mcp_bridge.guest.near_names import is_misspelt, near, nearest

        told = f"server {self.server!r} has no tool {name!r}"
        alias, rows = self.alias, self.rows()
        known = list(rows)
        if name in CALLS:
            return f"{told}; write: await {alias}.TOOL(...){nearest('', known)}"
        if name.endswith(("Error", "Exception")):
            return f"{told}; a call that fails raises ToolError; write: from mcp import ToolError"
        if name in LISTS:
            return f"{told}; write: dir({alias}), or await runtime.list_tools({self.server!r})"
        if _is_pythons(alias, name):
            return f"{told}; Python's own {alias}.{name}: write import {alias} as python_{alias}"
        if meant and not ((close := near(name, known)) and is_misspelt(name, close[0])):
            aliases = {row["name"]: alias for alias, row in rows.items()}
            return f"{told}; nearest: {', '.join(aliases.get(one, one) for one in meant)}"
        return f"{told}{nearest(name, known)}"


class ServerModule(types.ModuleType):
    """One server. Its tools become attributes on first use, which starts the server.

    Its own attributes have names with two leading underscores, which no tool's alias has.
    """

    def __init__(self, fullname: str, server: str, alias: str, calls: Calls, *, blocking: bool) -> None:
        super().__init__(fullname, f"Tools of the MCP server {server!r}.")
        self.__path__: list[str] = []
        self.__dict__["__bridge__"] = _Tools(server, alias, calls, blocking=blocking)

    def __getattr__(self, name: str) -> Any:
        tools: _Tools = self.__dict__["__bridge__"]
        if name.startswith("__"):
            if name == "__all__":
                return list(tools.rows())
            raise AttributeError(name)
        try:
            function = tools.find(name)
        except UnknownToolError as exc:
            raise AttributeError(str(exc)) from None
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        try:
            return self.__dict__["__bridge__"].find(name)
        except UnknownToolError as exc:
            raise KeyError(str(exc)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["__bridge__"].rows())

    def __len__(self) -> int:
        return len(self.__dict__["__bridge__"].rows())

    def __bool__(self) -> bool:
        # Without this, bool() would call __len__, which starts the server.
        return True

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self.__dict__["__bridge__"].find(name) is not None
        except UnknownToolError:
            return False

    def __dir__(self) -> list[str]:
        return sorted(self.__dict__["__bridge__"].rows())

    def __repr__(self) -> str:
        return f"<MCP server {self.__dict__['__bridge__'].server!r}>"


CALLS = frozenset({"call", "call_tool", "execute", "execute_tool", "invoke", "run", "run_tool", "use_tool"})
LISTS = frozenset({"functions", "get_tools", "items", "keys", "list", "list_tools", "tools", "values"})
"""Methods of clients' session objects, which a server here doesn't have."""


def _is_pythons(module: str, name: str) -> bool:
    """Whether the standard library has a module of this name with this attribute."""
    if module not in sys.stdlib_module_names:
        return False
    import importlib

    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


ASYNCHRONOUS = "_bridge_asynchronous"
"""Set on functions whose result must be awaited, so that `inspect` recognises them."""


def show_asynchronous() -> None:
    """Make `help` show `async` before functions whose result must be awaited. Called once `inspect` is imported."""
    import inspect

    original = inspect.iscoroutinefunction

    def iscoroutinefunction(obj: Any) -> bool:
        function = getattr(obj, "__func__", obj)
        return original(obj) or (isinstance(function, types.FunctionType) and ASYNCHRONOUS in function.__dict__)

    iscoroutinefunction.__doc__ = original.__doc__
    inspect.iscoroutinefunction = iscoroutinefunction  # type: ignore[assignment]


def make_function(row: dict[str, Any], tools: _Tools) -> Any:
    """A tool as a plain function, so that `help()` and `inspect.signature()` work, with an attribute `.raw`."""
    shown, calls = f"{tools.alias}.{row['alias']}", tools.calls

    def request(args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool) -> ToolCall:
        listed = tools.current(row)
        bound, faults = bind(listed, args, kwargs)
        if faults and (anew := tools.listed_anew(listed)) is not None:
            listed = anew
            bound, faults = bind(listed, args, kwargs)
        if faults:
            raise TypeError(refusal(shown, listed, faults + _faults_of_values(tools, listed, bound)))
        return ToolCall(tools.server, row["name"], normalise(listed["params"], bound), raw)

    if tools.blocking:

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.call_blocking(request(args, kwargs, raw=False))

        def call_raw(*args: Any, **kwargs: Any) -> Any:
            return calls.call_blocking(request(args, kwargs, raw=True))

    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.call(request(args, kwargs, raw=False), shown, 2)

        def call_raw(*args: Any, **kwargs: Any) -> Any:
            return calls.call(request(args, kwargs, raw=True), shown + ".raw", 2)

    for function in () if tools.blocking else (call, call_raw):
        function.__dict__[ASYNCHRONOUS] = True
    call.raw = call_raw  # type: ignore[attr-defined]
    _describe(call, row, tools)
    return call


def _describe(function: Any, row: dict[str, Any], tools: _Tools) -> None:
    """Give a tool's function the name, documentation and signature of its row."""
    shown = f"{tools.alias}.{row['alias']}"
    hint = f'All of it: await runtime.describe("{shown}", "full"); its JSON Schema: "schema" in place of "full".'
    for made, name, returns in ((function, row["alias"], row["returns"]), (function.raw, "raw", "dict[str, Any]")):
        made.__name__ = name
        made.__qualname__ = name if name != "raw" else f"{row['alias']}.raw"
        made.__module__ = f"mcp.servers.{tools.alias}"
        made.__doc__ = f"{row['doc']}\n\n{hint}" if row["doc"] else hint
        made.__signature__ = signature(row["params"], returns, extra=row["extra"])


def _faults_of_values(tools: _Tools, row: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """What else is wrong with the arguments of a call that fails in any case."""
    try:
        return list(call_host(tools.calls.channel, CatalogCheck(tools.server, row["name"], arguments))["faults"])
    except MCPError as exc:
        # Values that aren't JSON are reported as faults; other errors of the check are ignored.
        return [exc.message] if exc.code in {"not_json", "frame_too_deep", "frame_too_large"} else []


class _Omitted:
    """The default of an optional parameter without a default in the schema: the argument is not sent."""

    def __repr__(self) -> str:
        return "..."


OMITTED: Any = _Omitted()


class _Annotation(str):
    """A type annotation that prints as its text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(params: list[dict[str, Any]], returns: str, *, extra: bool) -> Any:
    """The `inspect.Signature` of a tool."""
    import inspect

    made = []
    for param in params:
        default = inspect.Parameter.empty if param["required"] else param.get("default", OMITTED)
        made.append(
            inspect.Parameter(
                param["name"],
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=default,
                annotation=_Annotation(param["type"]),
            )
        )
    if extra:
        name = "more"
        while any(param["name"] == name for param in params):
            name += "_"
        made.append(inspect.Parameter(name, inspect.Parameter.VAR_KEYWORD))
    return inspect.Signature(made, return_annotation=_Annotation(returns))


MAX_SHOWN_SIGNATURE = 1500
"""Maximum characters of a signature in an error."""

MAX_SHOWN_NAMES = 20
"""Maximum unexpected arguments that an error names."""


def refusal(shown: str, row: dict[str, Any], faults: list[str]) -> str:
    """The error message for a call that doesn't fit its tool, with the signature, so that the next one can fix it all.

    Args:
        shown: The tool's name.
        row: The tool's row in the result of `catalog.tools`.
        faults: All that is wrong with it.
    """
    signed = f"{row['alias']}{signature(row['params'], row['returns'], extra=row['extra'])}"
    if len(signed) > MAX_SHOWN_SIGNATURE:
        signed = f"{signed[:MAX_SHOWN_SIGNATURE]}… (all of it: help({shown}))"
    return f"{shown}() {'; '.join(faults)}. It is {signed}"


def bind(row: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Bind arguments: those that fit, by their JSON names, and what is wrong with the others, in Python's words.

    `**{...}` accepts JSON names that aren't identifiers, too.

    Args:
        row: The tool's row in the result of `catalog.tools`.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    params = row["params"]
    args, kwargs = spread(row, args, kwargs)
    faults: list[str] = []
    if len(args) > len(params):
        faults.append(f"takes {len(params)} positional arguments but {len(args)} were given")
    bound = {param["json"]: value for param, value in zip(params, args, strict=False)}
    names = {param["json"]: param["json"] for param in params} | {param["name"]: param["json"] for param in params}
    unknown = []
    for name, value in kwargs.items():
        if name not in names and takes_besides(row, name):
            names[name] = name
        if name not in names:
            # Of a call that was recorded it isn't known which arguments were left out, as None for an optional one is.
            if value is not None or "recorded" not in row:
                unknown.append(name)
        elif names[name] in bound:
            faults.append(f"got multiple values for argument {name!r}")
        else:
            bound[names[name]] = value
    bound = {name: value for name, value in bound.items() if value is not OMITTED}
    if unknown:
        from mcp_bridge.guest.near_names import suggestion

        free = [param["name"] for param in params if param["json"] not in bound]
        faults.extend(
            f"got an unexpected keyword argument {name[:100]!r}{suggestion(name, free)}"
            for name in unknown[:MAX_SHOWN_NAMES]
        )
    if len(unknown) > MAX_SHOWN_NAMES:
        faults.append(f"got {len(unknown) - MAX_SHOWN_NAMES} more of them")
    if unknown and row.get("beginnings"):
        faults.append(f"other names begin with {', '.join(map(repr, row['beginnings'][:MAX_SHOWN_NAMES]))}")
    missing = [param["name"] for param in params if param["required"] and param["json"] not in bound]
    if missing:
        faults.append(f"missing required argument{'s' * (len(missing) > 1)}: {', '.join(map(repr, missing))}")
    return bound, faults

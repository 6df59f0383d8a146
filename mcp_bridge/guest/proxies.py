"""`mcp.servers.<name>`: a tool as a function with the tool's true signature."""

import sys
import types

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.guest.host_requests import MCPError, call_host, tool_error
from mcp_bridge.guest.not_awaited import PendingCall, UnawaitedCalls
from mcp_bridge.guest.values import blocks, jsontext
from mcp_bridge.guest.values.arguments import normalise, spread
from mcp_bridge.wire.annotations import Any, Callable, Iterator
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import CatalogCheck, CatalogTools, ToolCall


class Calls:
    """Makes calls.

    Attributes:
        channel: Sends their requests.
        unawaited: Knows which of them were never awaited.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.unawaited = UnawaitedCalls()

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
            raise tool_error(request, exc) from None

    async def _run(self, request: ToolCall) -> Any:
        try:
            return _value(await self.channel.request_async(request), raw=request.raw)
        except (RequestError, LocalMessageError) as exc:
            raise tool_error(request, exc) from None


def _value(result: Any, *, raw: bool) -> Any:
    if "planned" in result:
        from mcp_bridge.guest.values.planned_values import Planned

        return Planned(result["planned"])
    return blocks.short(result.get("raw") if raw else jsontext.of(result.get("value")))


class _Tools:
    """A server's tools as functions, listed on first use."""

    def __init__(self, server: str, alias: str, calls: Calls, *, blocking: bool) -> None:
        self.server = server
        self._alias = alias
        self._calls = calls
        self._blocking = blocking
        self._rows: dict[str, dict[str, Any]] | None = None
        self._functions: dict[str, Any] = {}

    def known(self) -> list[str] | None:
        """The tools' aliases if they are listed already, else None."""
        return None if self._rows is None else list(self._rows)

    def unknown(self, name: str) -> str:
        """The error message for an unknown tool."""
        from mcp_bridge.guest.near_names import is_misspelt, near, nearest

        told = f"server {self.server!r} has no tool {name!r}"
        alias, rows = self._alias, list(self.rows())
        if name in CALLS:
            return f"{told}; write: await {alias}.TOOL(...){nearest('', rows)}"
        if name.endswith(("Error", "Exception")):
            return f"{told}; a call that fails raises ToolError; write: from mcp import ToolError"
        if name in LISTS:
            return f"{told}; write: dir({alias}), or await runtime.list_tools({self.server!r})"
        if _is_pythons(alias, name):
            return f"{told}; Python's own {alias}.{name}: write import {alias} as python_{alias}"
        if (close := near(name, rows)) and is_misspelt(name, close[0]):
            return f"{told}{nearest(name, rows)}"
        return f"{told}{self._meant(name) or nearest(name, rows)}"

    def _meant(self, name: str) -> str:
        """`; nearest: a, b`, the tools that the host finds by the words of a name, and by its spelling; or empty."""
        try:
            call_host(self._calls.channel, CatalogCheck(self.server, name, {}))
        except MCPError as exc:
            aliases = {row["name"]: alias for alias, row in self.rows().items()}
            if close := exc.details.get("nearest"):
                return f"; nearest: {', '.join(aliases.get(one, one) for one in close)}"
        return ""

    def rows(self) -> dict[str, dict[str, Any]]:
        """The tools' rows by alias."""
        if self._rows is None:
            result = call_host(self._calls.channel, CatalogTools(self.server))
            self._rows = {row["alias"]: row for row in result["tools"]}
        return self._rows

    def function(self, name: str) -> Any:
        """The function with this alias or name; None if there is no such tool."""
        rows = self.rows()
        row = rows.get(name) or next((row for row in rows.values() if row["name"] == name), None)
        if row is None:
            return None
        alias = row["alias"]
        if alias not in self._functions:
            self._functions[alias] = make_function(row, self.server, self._alias, self._calls, blocking=self._blocking)
        return self._functions[alias]


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
        function = tools.function(name)
        if function is None:
            raise AttributeError(tools.unknown(name))
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        tools: _Tools = self.__dict__["__bridge__"]
        function = tools.function(name)
        if function is None:
            raise KeyError(tools.unknown(name))
        return function

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["__bridge__"].rows())

    def __len__(self) -> int:
        return len(self.__dict__["__bridge__"].rows())

    def __bool__(self) -> bool:
        # Without this, bool() would call __len__, which starts the server.
        return True

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.__dict__["__bridge__"].function(name) is not None

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


def make_function(row: dict[str, Any], server: str, alias: str, calls: Calls, *, blocking: bool) -> Any:
    """A tool as a plain function, so that `help()` and `inspect.signature()` work, with an attribute `.raw`."""
    shown = f"{alias}.{row['alias']}"
    params = row["params"]

    def check(arguments: dict[str, Any]) -> list[str]:
        try:
            return list(call_host(calls.channel, CatalogCheck(server, row["name"], arguments))["faults"])
        except MCPError as exc:
            # Values that aren't JSON are reported as faults; other errors of the check are ignored.
            return [exc.message] if exc.code in {"not_json", "frame_too_deep", "frame_too_large"} else []

    def request(args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool) -> ToolCall:
        if not row["extra"]:
            args, kwargs = spread(params, args, kwargs)
        return ToolCall(server, row["name"], normalise(params, bind(shown, row, args, kwargs, check)), raw)

    if blocking:

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.call_blocking(request(args, kwargs, raw=False))

        def call_raw(*args: Any, **kwargs: Any) -> Any:
            return calls.call_blocking(request(args, kwargs, raw=True))

    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            return calls.call(request(args, kwargs, raw=False), shown, 2)

        def call_raw(*args: Any, **kwargs: Any) -> Any:
            return calls.call(request(args, kwargs, raw=True), shown + ".raw", 2)

    for function in () if blocking else (call, call_raw):
        function.__dict__[ASYNCHRONOUS] = True
    for function, name, returns in ((call, row["alias"], row["returns"]), (call_raw, "raw", "dict[str, Any]")):
        function.__name__ = name
        function.__qualname__ = name if name != "raw" else f"{row['alias']}.raw"
        function.__module__ = f"mcp.servers.{alias}"
        function.__doc__ = row["doc"]
        function.__signature__ = signature(params, returns, extra=row["extra"])  # type: ignore[attr-defined]
    call.raw = call_raw  # type: ignore[attr-defined]
    return call


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


def bind(
    shown: str,
    row: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    check: Callable[[dict[str, Any]], list[str]] = lambda _: [],
) -> dict[str, Any]:
    """Bind arguments and return them by their JSON names. `**{...}` accepts JSON names that aren't identifiers, too.

    Args:
        shown: The tool's name in errors.
        row: The tool's row in the result of `catalog.tools`.
        args: Positional arguments.
        kwargs: Keyword arguments.
        check: Returns the faults of some argument values; called only if the call fails in any case.

    Raises:
        TypeError: In Python's words, with all faults, the nearest names and the signature, so that the next call can
            fix all of them.
    """
    params = row["params"]
    faults: list[str] = []
    if len(args) > len(params):
        faults.append(f"takes {len(params)} positional arguments but {len(args)} were given")
    bound = {param["json"]: value for param, value in zip(params, args, strict=False)}
    names = {param["json"]: param["json"] for param in params} | {param["name"]: param["json"] for param in params}
    unknown = []
    for name, value in kwargs.items():
        if name not in names and row["extra"]:
            names[name] = name
        if name not in names:
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
    missing = [param["name"] for param in params if param["required"] and param["json"] not in bound]
    if missing:
        faults.append(f"missing required argument{'s' * (len(missing) > 1)}: {', '.join(map(repr, missing))}")
    if faults:
        signed = f"{row['alias']}{signature(params, row['returns'], extra=row['extra'])}"
        if len(signed) > MAX_SHOWN_SIGNATURE:
            signed = f"{signed[:MAX_SHOWN_SIGNATURE]}… (all of it: help({shown}))"
        raise TypeError(f"{shown}() {'; '.join([*faults, *check(bound)])}. It is {signed}")
    return bound

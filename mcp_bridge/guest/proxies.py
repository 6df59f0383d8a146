"""`mcp.servers.<name>`: a tool as a function with the tool's true signature."""

import sys
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from mcp_bridge.guest.channel import Channel, RequestError
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import CatalogCheck, CatalogTools, ToolCall


class MCPError(Exception):
    """Something that a call to the outside met. `code` is stable; `details` is a dict."""

    def __init__(self, message: str, *, code: str = "error", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details or {}


class ToolError(MCPError):
    """A tool reported an error, or could not be called."""

    def __init__(
        self, message: str, *, server: str, tool: str, code: str = "tool_error", details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, code=code, details=details)
        self.server = server
        self.tool = tool


def ask(channel: Channel, params: Any) -> Any:
    """A request's result, for the script.

    Raises:
        MCPError: The host answered with an error, or the request can't be sent.
    """
    try:
        return channel.request(params)
    except LocalMessageError as exc:
        raise MCPError(str(exc), code=exc.code) from None
    except RequestError as exc:
        data = dict(exc.data)
        raise MCPError(exc.message, code=data.pop("code", "error"), details=data) from None


def tell(channel: Channel, params: Any) -> None:
    """Send a notification for the script.

    Raises:
        MCPError: It can't be sent.
    """
    try:
        channel.notify(params)
    except LocalMessageError as exc:
        raise MCPError(str(exc), code=exc.code) from None


class NotAwaitedError(MCPError):
    """A call was made and never awaited, so nothing happened. `line` is the call's, where it is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message, code="not_awaited")
        self.line = line


for _public in (MCPError, ToolError, NotAwaitedError):
    _public.__module__ = "mcp"


class Calls:
    """Makes calls and knows which of them nobody has awaited."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._unawaited: dict[int, tuple[str, int]] = {}
        self._serial = 0

    def call(self, request: ToolCall, shown: str, depth: int) -> "PendingCall":
        """A tool's call, as `pending`."""
        return self.pending(self._run(request), shown, depth + 1)

    def pending(self, work: Coroutine[Any, Any, Any], shown: str, depth: int) -> "PendingCall":
        """A call that starts when it is awaited. `depth` finds the caller's frame, for its line."""
        self._serial += 1
        serial = self._serial
        self._unawaited[serial] = (shown, sys._getframe(depth).f_lineno)  # noqa: SLF001
        return PendingCall(work, lambda: self._unawaited.pop(serial, None))

    def call_blocking(self, request: ToolCall) -> Any:
        """Call and wait.

        Raises:
            ToolError: The tool reported an error, or could not be called.
        """
        try:
            return _value(self.channel.request(request), raw=request.raw)
        except (RequestError, LocalMessageError) as exc:
            raise _tool_error(request, exc) from None

    async def _run(self, request: ToolCall) -> Any:
        try:
            return _value(await self.channel.request_async(request), raw=request.raw)
        except (RequestError, LocalMessageError) as exc:
            raise _tool_error(request, exc) from None

    def check_awaited(self) -> None:
        """Refuse to end well while a call was never awaited.

        Raises:
            NotAwaitedError: Names the call and its line.
        """
        for _, line in self._unawaited.values():
            raise NotAwaitedError(self.unawaited_note() or "", line)

    def unawaited_note(self) -> str | None:
        """One sentence on the first call that was never awaited, or None."""
        for shown, line in self._unawaited.values():
            return f"line {line}: {shown}(...) was never awaited, so it never ran; write: await {shown}(...)"
        return None


class PendingCall(Coroutine[Any, Any, Any]):
    """A call's coroutine (for `await`, `asyncio.gather`, `create_task`), which notices that it was started."""

    def __init__(self, inner: Coroutine[Any, Any, Any], started: Callable[[], Any]) -> None:
        self._inner = inner
        self._started = started

    def send(self, value: Any) -> Any:
        """As a coroutine's."""
        self._started()
        return self._inner.send(value)

    def throw(self, *args: Any) -> Any:
        """As a coroutine's."""
        self._started()
        return self._inner.throw(*args)

    def close(self) -> None:
        """As a coroutine's; who closes it has not forgotten it."""
        self._started()
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        # A generator, so that this object lives (and isn't closed by __del__) as long as it is awaited.
        self._started()
        return (yield from self._inner.__await__())

    def __del__(self) -> None:
        # Closing an unstarted coroutine keeps the interpreter's own warning from saying worse what we report.
        self._inner.close()


def _value(result: Any, *, raw: bool) -> Any:
    return result.get("raw" if raw else "value")


def _tool_error(request: ToolCall, exc: RequestError | LocalMessageError) -> ToolError:
    if isinstance(exc, LocalMessageError):
        return ToolError(
            f"{request.server}.{request.tool}: {exc}", server=request.server, tool=request.tool, code=exc.code
        )
    data = dict(exc.data)
    code = data.pop("code", "tool_error")
    return ToolError(exc.message, server=request.server, tool=request.tool, code=code, details=data)


def nearest(name: str, known: list[str]) -> str:
    """`; nearest: a, b`, or the names there are when none is near, or nothing."""
    if meant := _meant(name, known):
        return meant
    return f"; there are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}" if known else ""


class _Tools:
    """A server's tools as functions, listed when the first of them is asked for."""

    def __init__(self, server: str, alias: str, calls: Calls, *, blocking: bool) -> None:
        self.server = server
        self._alias = alias
        self._calls = calls
        self._blocking = blocking
        self._rows: dict[str, dict[str, Any]] | None = None
        self._functions: dict[str, Any] = {}

    def rows(self) -> dict[str, dict[str, Any]]:
        """By alias."""
        if self._rows is None:
            result = ask(self._calls.channel, CatalogTools(self.server))
            self._rows = {row["alias"]: row for row in result["tools"]}
        return self._rows

    def function(self, name: str) -> Any:
        """By alias or name; None if there is no such tool."""
        rows = self.rows()
        row = rows.get(name) or next((row for row in rows.values() if row["name"] == name), None)
        if row is None:
            return None
        alias = row["alias"]
        if alias not in self._functions:
            self._functions[alias] = make_function(row, self.server, self._alias, self._calls, blocking=self._blocking)
        return self._functions[alias]


class ServerModule(types.ModuleType):
    """One server. Its tools become attributes when the first of them is asked for; the server starts then.

    All that is its own has a name with two underscores before it, as no tool's alias has.
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
            raise AttributeError(f"server {tools.server!r} has no tool {name!r}{nearest(name, list(tools.rows()))}")
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        tools: _Tools = self.__dict__["__bridge__"]
        function = tools.function(name)
        if function is None:
            raise KeyError(f"server {tools.server!r} has no tool {name!r}{nearest(name, list(tools.rows()))}")
        return function

    def __dir__(self) -> list[str]:
        return sorted(self.__dict__["__bridge__"].rows())

    def __repr__(self) -> str:
        return f"<MCP server {self.__dict__['__bridge__'].server!r}>"


def make_function(row: dict[str, Any], server: str, alias: str, calls: Calls, *, blocking: bool) -> Any:
    """A tool as a plain function (so that `help()` and `inspect.signature()` are true) with a `.raw` beside it."""
    shown = f"{alias}.{row['alias']}"
    params = row["params"]

    def check(arguments: dict[str, Any]) -> list[str]:
        try:
            return list(ask(calls.channel, CatalogCheck(server, row["name"], arguments))["faults"])
        except MCPError as exc:
            # What no JSON can carry is a fault as well; what else kept the host from looking isn't.
            return [exc.message] if exc.code in {"not_json", "frame_too_deep", "frame_too_large"} else []

    def request(args: tuple[Any, ...], kwargs: dict[str, Any], *, raw: bool) -> ToolCall:
        return ToolCall(server, row["name"], bind(shown, row, args, kwargs, check), raw)

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

    for function, name, returns in ((call, row["alias"], row["returns"]), (call_raw, "raw", "dict[str, Any]")):
        function.__name__ = name
        function.__qualname__ = name if name != "raw" else f"{row['alias']}.raw"
        function.__module__ = f"mcp.servers.{alias}"
        function.__doc__ = row["doc"]
        function.__signature__ = signature(params, returns, extra=row["extra"])  # type: ignore[attr-defined]
    call.raw = call_raw  # type: ignore[attr-defined]
    return call


class _Omitted:
    """The default of an optional parameter whose schema names none: the argument is not sent."""

    def __repr__(self) -> str:
        return "..."


OMITTED = _Omitted()


class _Annotation(str):
    """A type as the text that it is shown by."""

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
"""Characters of a signature that an error shows."""

MAX_SHOWN_NAMES = 20
"""Unexpected arguments that an error names."""


def near(name: str, known: list[str]) -> list[str]:
    """Up to three names that are written like one, or else share a word with it: `source` and `source_timezone`."""
    import difflib

    words = set(name.lower().split("_")) - {""}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return close or [other for other in known if words & set(other.lower().split("_"))][:3]


def _meant(name: str, free: list[str]) -> str:
    close = near(name, free)
    return f"; nearest: {', '.join(close)}" if close else ""


def bind(
    shown: str,
    row: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    check: Callable[[dict[str, Any]], list[str]] = lambda _: [],
) -> dict[str, Any]:
    """Arguments by their JSON names. A JSON name that is no identifier is accepted too, by `**{...}`.

    Args:
        shown: What errors call the tool.
        row: The tool, as `catalog.tools` gives it.
        args: Positional arguments.
        kwargs: Arguments by name.
        check: What is wrong with the values of some arguments; asked only where the call fails in any case.

    Raises:
        TypeError: Worded as Python words it for a function, with everything that is wrong, the nearest names and the
            signature: whoever reads it needs one more call, and not one for each fault.
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
    free = [param["name"] for param in params if param["json"] not in bound]
    faults.extend(
        f"got an unexpected keyword argument {name[:100]!r}{_meant(name, free)}" for name in unknown[:MAX_SHOWN_NAMES]
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

"""`@mcp_bridge.tool`: declares that a function is a tool, and returns it unchanged.

Nothing is compiled here, because an annotation may name a class that its module defines later. Declarations are stored
in the globals of the declaring module, so that they live as long as it does, and modules that are imported for other
reasons add no tools.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FunctionType

    F = TypeVar("F", bound=Callable[..., Any])
else:
    F = TypeVar("F")

DEFAULT_TIMEOUT = 30.0

DECLARATIONS_NAME = "__mcp_bridge_tools__"
"""The name of the list of declarations in a module's globals."""

# The tool names that the MCP specification allows (2025-11-25, Tools).
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

_CAPABILITY = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A position in a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A function and its declared properties.

    Attributes:
        function: The function to call: a function, a bound method, or a `functools.partial` of one.
        name: The tool's name.
        description: A description for models; may be empty.
        capabilities: The tool's capabilities, as named by the operator for the policy.
        idempotent: Whether a repeated call has no further effect.
        read_only: Whether a call changes nothing.
        timeout: Seconds that a call may take.
        thread: Whether a synchronous function runs in a thread of its own.
        is_async: Whether calling it returns an awaitable.
        place: The position of the function's definition.
    """

    function: Callable[..., Any]
    name: str
    description: str
    capabilities: tuple[str, ...]
    idempotent: bool
    read_only: bool
    timeout: float
    thread: bool
    is_async: bool
    location: SourceLocation


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    capabilities: Sequence[str] = (),
    idempotent: bool = False,
    read_only: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    thread: bool = True,
) -> Callable[[F], F]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    capabilities: Sequence[str] = (),
    idempotent: bool = False,
    read_only: bool = False,
    timeout: float = DEFAULT_TIMEOUT,
    thread: bool = True,
) -> Any:
    """Declare a function a tool: `@mcp_bridge.tool`, or `@mcp_bridge.tool(name="refund", …)`.

    The function is returned as it is. Its parameters and annotations become the tool's schema: arguments come by name,
    are checked strictly as JSON (no `"5"` for an `int`), and arrive as the annotated types. A default stands in the
    schema, which the agent reads: it is no place for a secret. The function returns what JSON can carry, a pydantic
    model, a dataclass and the like, or `mcp_bridge.PENDING` when the outcome comes later.

    A synchronous function runs in a thread. Python can't end a thread: when its time is over the call fails with
    `tool_timeout`, and the function goes on behind it; with four of them left behind, the tool is refused until one
    ends. An `async` function runs on the host's event loop and is cancelled; one that computes or calls `time.sleep`
    there holds up the whole host, and no time-out reaches it.

    Args:
        function: A function, a static method, a bound method, or a `functools.partial`, whose bound arguments are fixed
            and no parameters of the tool.
        name: Its name, 1 to 128 letters, digits, `_`, `-` and `.`; the function's by default.
        description: For models; the docstring by default.
        capabilities: What it can do, for the policy, such as `"payments.capture"`.
        idempotent: Repeating a call does nothing more: it may be repeated after a crash.
        read_only: It changes nothing.
        timeout: Seconds that a call may take.
        thread: False runs a synchronous function on the event loop, which saves the way to a thread and back. For
            quick, pure functions only: nothing can stop it, and everything else waits for it.

    Raises:
        BridgeError: `bad_tools`: this can't be a tool, with its file and line.
    """
    caller = sys._getframe(1)  # noqa: SLF001 - whose module is declaring
    home, declared_at = caller.f_globals, SourceLocation(caller.f_code.co_filename, caller.f_lineno)

    def declare(function: Any) -> Any:
        declaration = _declaration(
            function, name, description, capabilities, idempotent, read_only, timeout, thread, declared_at
        )
        _register(declaration, home)
        return function

    return declare if function is None else declare(function)


def base_function(function: Any) -> FunctionType | None:
    """The Python function behind partials, methods and wrappers; None if there is none."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    try:
        function = inspect.unwrap(function)
    except ValueError:
        return None
    return function if inspect.isfunction(function) else None


def parameters(declaration: Declaration) -> list[inspect.Parameter]:
    """The parameters that a caller passes; those bound by a partial are excluded."""
    function = declaration.function
    bound = function.keywords.keys() if isinstance(function, functools.partial) else frozenset[str]()
    return [param for param in inspect.signature(function).parameters.values() if param.name not in bound]


def bad_tool(location: SourceLocation | None, problem: str, hint: str | None = None, **details: Any) -> BridgeError:
    """A `bad_tools` error whose message begins with the position."""
    if location is not None:
        details = {"file": location.file, "line": location.line} | details
    message = f"{location}: {problem}." if location else f"{problem}."
    return BridgeError("bad_tools", message, hint=hint, **details)


def _declaration(
    function: Any,
    name: Any,
    description: Any,
    capabilities: Any,
    idempotent: Any,
    read_only: Any,
    timeout: Any,
    thread: Any,
    declared_at: SourceLocation,
) -> Declaration:
    if isinstance(function, staticmethod):
        function = function.__func__
    base = base_function(function)
    if base is None or not callable(function) or inspect.isclass(function):
        raise _no_function(function, declared_at)
    location = SourceLocation(base.__code__.co_filename, base.__code__.co_firstlineno)
    name = base.__name__ if name is None else name
    _check_name(name, location)
    what = f"tool {name!r}"
    if description is not None and not isinstance(description, str):
        raise bad_tool(location, f"the description of {what} is no text", tool=name)
    for option, value in (("idempotent", idempotent), ("read_only", read_only), ("thread", thread)):
        if not isinstance(value, bool):
            raise bad_tool(location, f"{option} of {what} must be True or False", tool=name)
    is_async = _is_async(function, base)
    if is_async and not thread:
        raise bad_tool(location, f"{what} is async, and runs in no thread anyway", "Leave out thread=False.", tool=name)
    declaration = Declaration(
        function=function,
        name=name,
        description=inspect.cleandoc(description or base.__doc__ or "").strip(),
        capabilities=_checked_capabilities(capabilities, what, location),
        idempotent=idempotent,
        read_only=read_only,
        timeout=_checked_timeout(timeout, what, location),
        thread=thread,
        is_async=is_async,
        location=location,
    )
    _check_shape(declaration, base)
    return declaration


def _no_function(function: Any, location: SourceLocation) -> BridgeError:
    if isinstance(function, str):
        return bad_tool(location, "the name of a tool is given by name", f"Write @mcp_bridge.tool(name={function!r}).")
    if isinstance(function, classmethod):
        return bad_tool(location, "a class method can't be a tool", "Make it a static method or a function.")
    hint = "Functions, static methods, bound methods and functools.partial objects of them can."
    return bad_tool(location, f"a {type(function).__name__} can't be a tool", hint)


def _check_name(name: Any, location: SourceLocation) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise bad_tool(
            location,
            f"{name!r} can't be the name of a tool",
            'A name has 1 to 128 of the letters A to Z, digits, "_", "-" and "."; give another with '
            "@mcp_bridge.tool(name=…).",
            tool=str(name),
        )


def _checked_capabilities(capabilities: Any, what: str, location: SourceLocation) -> tuple[str, ...]:
    if isinstance(capabilities, str):
        hint = f"Write capabilities=({capabilities!r},)."
        raise bad_tool(location, f"the capabilities of {what} are a tuple of texts, not one text", hint)
    try:
        listed = tuple(capabilities)
    except TypeError:
        raise bad_tool(location, f"the capabilities of {what} are no tuple of texts") from None
    for capability in listed:
        if not isinstance(capability, str) or _CAPABILITY.fullmatch(capability) is None:
            hint = 'A capability is 1 to 128 letters, digits and "_.:/-", such as "payments.capture".'
            raise bad_tool(location, f"{capability!r} of {what} can't be a capability", hint)
    return tuple(dict.fromkeys(listed))


def _checked_timeout(timeout: Any, what: str, location: SourceLocation) -> float:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not number or not math.isfinite(timeout) or timeout <= 0:
        raise bad_tool(location, f"the timeout of {what} must be a number of seconds over 0")
    return float(timeout)


def _is_async(function: Any, base: Any) -> bool:
    """Whether it is async. A plain wrapper around an async function returns its coroutine, so it is async as well."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(base)


def _check_shape(declaration: Declaration, base: FunctionType) -> None:
    location, what = declaration.location, f"tool {declaration.name!r}"
    if inspect.isgeneratorfunction(base) or inspect.isasyncgenfunction(base):
        raise bad_tool(location, f"{what} is a generator", "Return a list instead of yielding its items.")
    params = parameters(declaration)
    parent, _, _ = base.__qualname__.rpartition(".")
    in_class = parent and not parent.endswith("<locals>")
    if in_class and params and params[0].name in {"self", "cls"} and not inspect.ismethod(declaration.function):
        hint = "Put @staticmethod above @mcp_bridge.tool, or declare a bound method: mcp_bridge.tool(instance.method)."
        raise bad_tool(location, f"{what} is a method, and there is no object to call it on", hint)
    for param in params:
        if param.kind is param.VAR_POSITIONAL:
            hint = "Take a list instead: arguments of a tool come by name."
            raise bad_tool(location, f"{what} takes *{param.name}", hint, parameter=param.name)
        if param.kind is param.POSITIONAL_ONLY:
            hint = "Take the / out of its signature: arguments of a tool come by name."
            raise bad_tool(location, f"{what} takes {param.name!r} by position only", hint, parameter=param.name)


def _register(declaration: Declaration, caller: dict[str, Any]) -> None:
    """Add it to the globals of the declaring module and of the function's module, which a factory distinguishes."""
    base = base_function(declaration.function)
    written = base.__globals__ if base else caller
    for home in [caller] if written is caller else [caller, written]:
        home.setdefault(DECLARATIONS_NAME, []).append(declaration)

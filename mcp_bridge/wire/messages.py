"""Every method of the channel, who sends it, and the type of its parameters and result.

A method's parameters are a `NamedTuple`; `decode_params` turns an untrusted object into one, strictly: an unknown or
missing name and a value of another type are refused. `json` stands for any JSON value.

Flow: the host starts the guest and sends `execution.start`; the guest reports output and asks for what lies outside;
it ends with `execution.finish` and leaves only after the answer to that. Process 1 of the container reports on
standard error, with the same framing, what the guest itself can't: `init.beat` and `init.exited`.
"""

from typing import Any, Literal, NamedTuple, TypeVar

from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.jsonrpc import Notification

Stream = Literal["stdout", "stderr"]

MAX_CALL_CHARS = 200

MAX_IMAGE_BYTES = 4 << 20
"""Largest image that is shown, decoded: the host leaves out what is larger, so the guest scales it down before."""


class CallId(str):
    """The name of a call in its script, by which the call is known again when the script is run again.

    `LINE#n`, the n-th call of a line. A line is `0` (the main task), `t<n>` (a thread of unknown origin) or `h` and 32
    hexadecimal digits (in the place of a long one), and then `.<n>` or `.t<n>` for each task or thread on the way down.
    """

    __slots__ = ()


def is_call_id(text: str) -> bool:
    """Whether a text is the name of a call."""
    line, _, number = text.partition("#")
    root, *path = line.split(".")
    known = (
        root == "0"
        or (root[:1] == "t" and _is_number(root[1:]))
        or (root[:1] == "h" and len(root) == 33 and not root[1:].strip("0123456789abcdef"))  # noqa: PLR2004
    )
    return (
        len(text) <= MAX_CALL_CHARS and known and all(map(_is_number, (*(p.removeprefix("t") for p in path), number)))
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


# --- host → guest, notifications ---------------------------------------------------------------------------------


class ExecutionStart(NamedTuple):
    """Run this code. `servers` are rows of `CatalogServers`: `{name, alias}`.

    With `replays`, calls are answered from a record, one after the other: the guest says by `call.taken` of each answer
    that whoever waited for it goes on.
    """

    execution: str
    code: str
    servers: list[Any]
    max_value_bytes: int
    replays: bool = False


class HostBeat(NamedTuple):
    """The host is alive. A guest that hears nothing for a long time ends itself."""


# --- guest → host, notifications ---------------------------------------------------------------------------------


class GuestReady(NamedTuple):
    """The runtime is loaded."""

    python: str


class OutputWrite(NamedTuple):
    """A piece of output, in order. Exactly one of `text` and `base64` (bytes that are no UTF-8) is given.

    `offset`, bytes of the stream before this piece, comes with what process 1 sends after the guest: the guest may
    have sent a part of it before it died.
    """

    stream: Stream
    text: str | None = None
    base64: str | None = None
    offset: int | None = None


class OutputDisplay(NamedTuple):
    """A shown object: MIME type → text, or base64 for binary types. Placed in order among the output."""

    data: dict[str, Any]


class RequestCancel(NamedTuple):
    """The guest no longer wants the answer to its request `id`; the host cancels the work and answers nothing."""

    id: int


class CallTaken(NamedTuple):
    """Whoever waited for the answer to this call has it."""

    call: CallId


class ProgressReport(NamedTuple):
    """How far the script says it is."""

    done: float
    total: float | None = None
    message: str | None = None


# --- guest → host, requests --------------------------------------------------------------------------------------


class ToolCall(NamedTuple):
    """Call a tool. Result: `{"value": json}`, or with `raw` the whole CallToolResult: `{"raw": object}`.

    A tool that reports an error, and any refusal, is an error response; its `data` has `code`. `call`, here and in
    other requests, is the call's name in this script; none is used twice.
    """

    server: str
    tool: str
    arguments: dict[str, Any]
    raw: bool = False
    call: CallId | None = None


class CatalogServers(NamedTuple):
    """Result: `{"servers": [{name, alias, status, tools, error}]}`; `tools` is a count, or None if not known yet."""


class CatalogTools(NamedTuple):
    """Result: `{"server", "alias", "tools": [{name, alias, params, returns, doc}]}`: what a proxy is made from."""

    server: str


class CatalogSearch(NamedTuple):
    """Result: `{"matches": [{server, tool, name, line}], "notices": [str]}`, best first."""

    query: str
    limit: int = 10
    strict: bool = False


class CatalogDescribe(NamedTuple):
    """Result: `{"text": str}` for `line`, `signature` and `full`, `{"schema": object}` for `schema`."""

    name: str
    detail: Literal["line", "signature", "full", "schema"] = "signature"


class CatalogCheck(NamedTuple):
    """What is wrong with some arguments of a call that isn't made. Result: `{"faults": [str]}`, each with its path."""

    server: str
    tool: str
    arguments: dict[str, Any]


class MemorySave(NamedTuple):
    """Keep a JSON value under a key, across executions; `update` merges it into the object kept. Result `{}`."""

    key: str
    value: Any
    update: bool = False
    call: CallId | None = None


class MemoryLoad(NamedTuple):
    """Result: `{"found": bool, "value": json}`."""

    key: str
    call: CallId | None = None


class MemoryDelete(NamedTuple):
    """Result: `{"found": bool}`."""

    key: str
    call: CallId | None = None


class MemoryList(NamedTuple):
    """Result: `{"keys": [str]}`, those that begin with `prefix`, sorted."""

    prefix: str = ""
    call: CallId | None = None


class ArtifactWrite(NamedTuple):
    """A part of a file that outlives the sandbox, in order. Result of the last part: `{"uri", "size"}`."""

    name: str
    base64: str
    first: bool
    last: bool


class OutputRead(NamedTuple):
    """A part of an output that an earlier execution's answer had to cut, from a byte on.

    Result: `{"text", "next"}`; `next` is where the next part begins, or null at the end.
    """

    execution: str
    name: str
    start: int = 0


class ProgramStart(NamedTuple):
    """Register and start a program: an object, or the name of a saved one. The host's machine starts with it.

    Result: `{"execution", "program", "uses", "context"}`, what the guest's machine is to be made from: `uses` has the
    programs that its steps run by name. Where the key's execution was left before its end, `state` stands for
    `context`. Or `{"record"}`, as of `TraceGet`: the key's execution has ended, or is suspended.
    """

    program: Any
    context: dict[str, Any]
    idempotency_key: str | None = None
    call: CallId | None = None


class ProgramEffect(NamedTuple):
    """Let an effect happen that the machines have emitted. Anything else is a violation, and fails the execution.

    Result: its outcome, as it enters both machines: `{"sequence", "status", "value", "code", "message", "usage"}`.
    Outcomes are taken in the order of `sequence`, from 1.
    """

    execution: str
    effect: int


class ProgramFinish(NamedTuple):
    """The guest's machine has ended or is suspended, with this SHA-256 of its state.

    Another one than the host's is a violation. Result, of the record what isn't in the state: `{"trace_id", "program",
    "status", "error", "code", "waiting"}`.
    """

    execution: str
    state: str


class ProgramLeave(NamedTuple):
    """The guest drives an execution no more, before its end: whoever resumes it, or has its key, goes on. Result `{}`.

    What it has asked for it takes back before.
    """

    execution: str


class ProgramResume(NamedTuple):
    """Go on with a suspended execution. Result: `{"execution", "program", "uses", "state"}`."""

    execution: str
    payload: Any = None
    call: CallId | None = None


class ProgramSave(NamedTuple):
    """Keep a valid program under a name. Result: `{"hash"}`."""

    name: str
    program: dict[str, Any]
    call: CallId | None = None


class ProgramList(NamedTuple):
    """Result: `{"programs": [{name, version, description, hash, owner}]}`; `owner` is `operator` or `agent`."""

    call: CallId | None = None


class ProgramGet(NamedTuple):
    """Result: `{"program": object, "hash"}`."""

    name: str
    call: CallId | None = None


class ProgramDelete(NamedTuple):
    """Forget a saved program; its traces stay. Result: `{"found": bool}`."""

    name: str
    call: CallId | None = None


class ProgramValidate(NamedTuple):
    """Result: `{"faults": [{path, code, message}], "warnings": […], "hash"}`."""

    program: Any
    call: CallId | None = None


class ProgramPlan(NamedTuple):
    """Have a model write a program. Result: `{"program": object}`."""

    intent: str
    call: CallId | None = None


class TraceGet(NamedTuple):
    """What there is of an execution.

    Result, its record: `{"trace_id", "program", "status", "output", "error", "code", "steps", "waiting"}`.
    """

    trace_id: str
    call: CallId | None = None


class ExecutionFinish(NamedTuple):
    """The script has ended. Result `{}`: the host has everything, the guest may leave.

    `value` is the shown form of the last expression's value. `error` has `type`, `message`, `line`, `traceback`,
    and `out_of_memory: true` if it is that.
    """

    exit_code: int
    value: str | None = None
    error: dict[str, Any] | None = None


# --- process 1 → host, notifications on standard error ------------------------------------------------------------


class InitBeat(NamedTuple):
    """The sandbox is alive, however busy its interpreter."""


class InitExited(NamedTuple):
    """The guest's process has ended.

    `oom_kills` counts what the kernel killed for memory, `limit_hits` how often the sandbox's own limit was in the way:
    where it never was, the memory that was wanting is the host's. -1 if unknown.
    """

    code: int
    signal: int
    oom_kills: int
    limit_hits: int = -1


METHODS: dict[str, type[Any]] = {
    "execution.start": ExecutionStart,
    "host.beat": HostBeat,
    "guest.ready": GuestReady,
    "output.write": OutputWrite,
    "output.display": OutputDisplay,
    "request.cancel": RequestCancel,
    "call.taken": CallTaken,
    "progress.report": ProgressReport,
    "tool.call": ToolCall,
    "catalog.servers": CatalogServers,
    "catalog.tools": CatalogTools,
    "catalog.search": CatalogSearch,
    "catalog.describe": CatalogDescribe,
    "catalog.check": CatalogCheck,
    "memory.save": MemorySave,
    "memory.load": MemoryLoad,
    "memory.delete": MemoryDelete,
    "memory.list": MemoryList,
    "artifact.write": ArtifactWrite,
    "output.read": OutputRead,
    "program.start": ProgramStart,
    "program.effect": ProgramEffect,
    "program.finish": ProgramFinish,
    "program.leave": ProgramLeave,
    "program.resume": ProgramResume,
    "program.save": ProgramSave,
    "program.list": ProgramList,
    "program.get": ProgramGet,
    "program.delete": ProgramDelete,
    "program.validate": ProgramValidate,
    "program.plan": ProgramPlan,
    "trace.get": TraceGet,
    "execution.finish": ExecutionFinish,
    "init.beat": InitBeat,
    "init.exited": InitExited,
}

NAMES: dict[type[Any], str] = {params: method for method, params in METHODS.items()}

_T = TypeVar("_T")

_Union: Any = type(str | None)

MAX_NUMBER = 2**63
"""Integers of the channel are below this; within a `json` value they may be longer."""


MAX_NAME_CHARS = 4096
"""Of a text that is a name, a key or a query. The host refuses most of them before that; beyond it nobody looks."""

MAX_INTENT_CHARS = 64 << 10
"""Of what a model is to write a program for."""

LONG_TEXTS: dict[tuple[type[Any], str], int | None] = {
    (ExecutionStart, "code"): None,
    (OutputWrite, "text"): None,
    (OutputWrite, "base64"): None,
    (ArtifactWrite, "base64"): None,
    (ExecutionFinish, "value"): None,
    (ProgramStart, "idempotency_key"): None,
    (ProgramPlan, "intent"): MAX_INTENT_CHARS,
    (ProgressReport, "message"): None,
    (GuestReady, "python"): None,
}
"""The texts that may have more than `MAX_NAME_CHARS`; None for one that only the frame bounds. Of these, the host
counts what it keeps, cuts what it shows, and refuses a key by its own bound."""


def _fits(value: Any, annotation: Any) -> bool:
    if annotation is Any:
        return True
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is CallId:
        return isinstance(value, str) and is_call_id(value)
    if isinstance(annotation, _Union):
        return any(_fits(value, member) for member in annotation.__args__)
    if type(value) is int and not -MAX_NUMBER < value < MAX_NUMBER:
        return False
    origin = getattr(annotation, "__origin__", None)
    if origin is Literal:
        return isinstance(value, str) and value in annotation.__args__
    if origin is not None:
        return isinstance(value, origin)
    if annotation is float:
        return type(value) in (int, float)
    # bool is an int to isinstance, and not to us.
    return type(value) is annotation


def _fault(kind: type[Any], params: dict[str, Any]) -> str | None:
    """Why these are no parameters of that method, or None."""
    fields: dict[str, Any] = kind.__annotations__
    defaults: dict[str, Any] = kind._field_defaults
    method = NAMES[kind]
    for name in params:
        if name not in fields:
            return f"{method} has no parameter {name[:40]!r}"
    for name, annotation in fields.items():
        if name not in params:
            if name not in defaults:
                return f"{method} needs {name!r}"
        elif not _fits(params[name], annotation):
            if getattr(annotation, "__origin__", None) is Literal:
                return f"{method}: {name!r} is one of {', '.join(annotation.__args__)}"
            shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
            return f"{method}: {name!r} is no {shown} but {type(params[name]).__name__}"
    return None


def overlong(params: Any) -> str | None:
    """Which text of a message is over its bound, in a sentence; None if none is.

    No fault of the channel: whoever has asked so is told, and goes on.
    """
    kind = type(params)
    for name, annotation in kind.__annotations__.items():
        value = getattr(params, name)
        if annotation is not Any and isinstance(value, str):
            limit = LONG_TEXTS.get((kind, name), MAX_NAME_CHARS)
            if limit is not None and len(value) > limit:
                return f"{NAMES[kind]}: {name!r} has {len(value)} characters; the limit is {limit}."
    return None


def decode_params(kind: type[_T], params: dict[str, Any]) -> _T:
    """An untrusted object as the parameters of a method.

    Raises:
        WireError: `bad_params`, naming the method and the parameter.
    """
    if fault := _fault(kind, params):
        raise WireError("bad_params", fault)
    return kind(**params)


def _plain(value: Any) -> Any:
    """A string or number of a type of its own (an enum's, numpy's) as JSON will write it."""
    for kind, method in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, kind) and not isinstance(value, bool):
            return method(value)  # type: ignore[arg-type]
    return value


def encode_params(params: Any) -> dict[str, Any]:
    """Parameters as the object for a frame. None for an optional one is left out.

    Raises:
        LocalMessageError: `bad_params`: the other side would refuse them.
    """
    defaults = params._field_defaults
    body = {n: _plain(value) for n, value in params._asdict().items() if value is not None or n not in defaults}
    if fault := _fault(type(params), body):
        raise LocalMessageError("bad_params", fault)
    return body


def method_params(method: str) -> type[Any]:
    """The parameters' type of a method that came in a frame.

    Raises:
        WireError: `unknown_method`.
    """
    kind = METHODS.get(method)
    if kind is None:
        raise WireError("unknown_method", f"this channel has no method {method[:60]!r}")
    return kind


def notification(params: Any) -> Notification:
    """The notification that carries these parameters.

    Raises:
        LocalMessageError: As `encode_params`.
    """
    return Notification(NAMES[type(params)], encode_params(params))

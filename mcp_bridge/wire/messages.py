"""All methods of the channel: who sends them, and the types of their parameters and results.

A method's parameters are a `NamedTuple`. `decode_params` decodes an untrusted object into one, strictly: unknown or
missing names and values of another type are refused. `json` stands for any JSON value.

Flow: the host starts the guest and sends `execution.start`. The guest sends output and requests everything outside the
sandbox. It ends with `execution.finish`, and exits only after the answer to that. Process 1 of the container reports on
standard error, with the same framing, what the guest itself can't: `init.beat` and `init.exited`.

The guest of a session doesn't exit: after the answer it waits for the next `execution.start`, which is the next cell.
Each cell begins with an `execution.begun` that names the cell's execution. What the guest sends between the answer and
that belongs to no cell, and is dropped.
"""

from mcp_bridge.wire.annotations import Any, Literal, NamedTuple, TypeVar
from mcp_bridge.wire.errors import LocalMessageError, WireError
from mcp_bridge.wire.jsonrpc import Notification

Stream = Literal["stdout", "stderr"]

MAX_CALL_CHARS = 200

MAX_IMAGE_BYTES = 4 << 20
"""The largest image that is displayed, decoded. The host drops larger ones, so the guest scales them down first."""


class CallId(str):
    """The name of a call in its script, which is the same when the script runs again.

    `LINE#n` is the n-th call of a line. A line is `0` (the main task), `t<n>` (a thread of unknown origin) or `h` and
    32 hexadecimal digits (replacing a long name), followed by `.<n>` or `.t<n>` for each nested task or thread.
    """

    __slots__ = ()


def is_call_id(text: str) -> bool:
    """Whether a text is a valid call name."""
    line, _, number = text.partition("#")
    if line == "0":
        # Of a script that makes one call after the other.
        return len(text) <= MAX_CALL_CHARS and _is_number(number)
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

    With `replays`, calls are answered from a record one after the other: the guest acknowledges each answer by
    `call.taken` once the code that waited for it has continued.

    With `seed`, the code is a cell of a session: the names of the cells before are there, and stay for the next one.
    All randomness of the session comes from the seed of its first cell, 64 hexadecimal digits. `cell` is its number.

    With `has_inputs`, there are files that the operator hands in.

    `listings` has a mark for the tools of each server, as `CatalogTools` gives it: with another one than a cell before
    has seen, the server lists other tools by now. It is given for a cell that isn't run again: what that one has called
    is among the tools that it is told of.

    `language` is given for code that isn't Python: `javascript`. Then `memory` is the sandbox's, in bytes.

    `is_dry` says that calls may be listed, and not made.

    Without `advises`, no advice follows an error: the code runs against its record, with which its error is compared.

    `runs_both` says that code in the other language runs here, too.
    """

    execution: str
    code: str
    servers: list[Any]
    max_value_bytes: int
    replays: bool = False
    seed: str | None = None
    cell: int = 0
    has_inputs: bool = False
    language: str | None = None
    memory: int | None = None
    is_dry: bool = False
    listings: dict[str, Any] | None = None
    advises: bool = True
    runs_both: bool = False


class ExecutionInterrupt(NamedTuple):
    """Interrupt this execution, a cell whose time is up, by a KeyboardInterrupt. Ignored unless it is under way."""

    execution: str


class HostBeat(NamedTuple):
    """The host is alive. A guest that receives nothing for a long time exits."""


class ActivityAsk(NamedTuple):
    """What does the script do while it waits? The answer is an `activity.report` with this number."""

    number: int


# --- guest → host, notifications ---------------------------------------------------------------------------------


class GuestReady(NamedTuple):
    """The runtime is loaded."""

    python: str


class ExecutionBegun(NamedTuple):
    """The guest has its execution; what follows is the script's. A host that hasn't got this may start it elsewhere.

    `execution` is given for a cell of a session.
    """

    execution: str | None = None


class OutputWrite(NamedTuple):
    """A chunk of output, in order. Exactly one of `text` and `base64` (for invalid UTF-8) is given.

    `offset`, the bytes of the stream before this chunk, is set by process 1 after the guest's death: the guest may have
    sent a part of the chunk before.
    """

    stream: Stream
    text: str | None = None
    base64: str | None = None
    offset: int | None = None


class OutputDisplay(NamedTuple):
    """A displayed object: MIME type → text, or base64 for binary types. Ordered with the output."""

    data: dict[str, Any]


class RequestCancel(NamedTuple):
    """The guest no longer wants the answer to its request `id`; the host cancels the work and doesn't answer."""

    id: int


class CallTaken(NamedTuple):
    """The code that waited for the answer to this call has continued."""

    call: CallId


class ActivityReport(NamedTuple):
    """What the script does while it waits, as of now.

    `processor` is the processor time of all that runs in the sandbox, in seconds. `timer` is how soon a timer of the
    script's own event loop ends, in seconds; None without one.
    """

    number: int
    processor: float
    timer: float | None = None


class ProgressReport(NamedTuple):
    """The script's progress."""

    done: float
    total: float | None = None
    message: str | None = None


# --- guest → host, requests --------------------------------------------------------------------------------------


class ToolCall(NamedTuple):
    """Call a tool. Result: `{"value": json}`, or with `raw` the whole CallToolResult: `{"raw": object}`.

    A tool that reports an error, and any refusal, gives an error response whose `data` has `code`. `call`, here and in
    other requests, is the call's name in this script; names are unique.
    """

    server: str
    tool: str
    arguments: dict[str, Any]
    raw: bool = False
    call: CallId | None = None


class CatalogServers(NamedTuple):
    """Result: `{"servers": [{name, alias, status, tools, error}]}`; `tools` is a count, or None if not known yet."""


class CatalogTools(NamedTuple):
    """Result: `{"server", "alias", "tools": [{name, alias, params, returns, doc, extra}], "mark"}`.

    It is what proxies are made from. A server that lists other tools has another mark. A row is `recorded` if it was
    changed to take the recorded calls of a script that is run again; then there is no mark.

    If the script itself is `told`, that is recorded.
    """

    server: str
    told: bool = False


class CatalogSearch(NamedTuple):
    """Result: `{"matches": [{server, tool, name, line}], "notices": [str]}`, best first."""

    query: str
    limit: int = 10
    strict: bool = False


class CatalogDescribe(NamedTuple):
    """Result: `{"text": str}` for `line`, `signature` and `full`, `{"schema": object}` for `schema`.

    With `with_row`, the text of one tool comes with its `row`, as `CatalogTools` has it, and the signatures of a
    server's tools with their `rows`, without `doc`.
    """

    name: str
    detail: Literal["line", "signature", "full", "schema"] = "signature"
    with_row: bool = False


class CatalogCheck(NamedTuple):
    """The faults of some arguments of a call that isn't made.

    Result: `{"faults": [str], "row"?: object}`: each fault with its path, and for the record, once for each tool, its
    row as `CatalogTools` has it.
    """

    server: str
    tool: str
    arguments: dict[str, Any]


class MemorySave(NamedTuple):
    """Save a JSON value under a key, across executions; `update` merges it into the stored object. Result `{}`.

    With `since`, the name of this run's request that had loaded the key, it is saved only if what is kept is still what
    that request was answered with. Result: `{"saved": bool, "found": bool, "value": json}`, with what is kept now; such
    a request may be named by the next one's `since`. A record of an earlier build has `{}`, which means saved.

    With `refusal` it isn't saved, and fails with `bad_arguments` and that text. A record that has it saved answers so.
    """

    key: str
    value: Any
    update: bool = False
    call: CallId | None = None
    since: CallId | None = None
    refusal: str | None = None


SAVED_TOOL_PREFIXES = ("tool:javascript:", "tool:")
"""What the keys of saved functions begin with, by language: a longer prefix comes before one that it begins with."""


class MemoryLoad(NamedTuple):
    """Result: `{"found": bool, "value": json}`; `near` for a saved function that isn't there: names like it."""

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


class SessionList(NamedTuple):
    """Result: `{"sessions": [{name, cells, state, execution, changed}]}`, the one used last first."""

    call: CallId | None = None


class SessionEnd(NamedTuple):
    """End a session: its name is free, and its sandbox is put away. Its cells stay recorded. Result `{"found": bool}`.

    Without a name, the session that the cell itself is of.
    """

    name: str | None = None
    call: CallId | None = None


class WaitUntil(NamedTuple):
    """Wait until a time, in seconds since 1970. Result: `{}`. The time that counts is that of the first request."""

    until: float
    call: CallId | None = None


class WaitEvent(NamedTuple):
    """Wait for an event of a name. Result: `{"value": json}`. Error after `timeout` seconds: `event_timeout`."""

    name: str
    timeout: float | None = None
    call: CallId | None = None


class PackageInstall(NamedTuple):
    """Have packages added to the sandbox. `added` is what was added to it before, as `name==version`.

    Result: `{"packages": [{name, version, file, sha256}]}`, those whose files are to be added now.
    """

    requirements: list[Any]
    added: list[Any]
    call: CallId | None = None


class PackageRead(NamedTuple):
    """Read a part of a package's files, which are one zip file, from a byte offset. Result: `{"base64", "next"}`.

    `next` is the offset of the next part, or null at the end.
    """

    sha256: str
    start: int = 0


class ArtifactWrite(NamedTuple):
    """A chunk of a file that outlives the sandbox, in order. Result of the last chunk: `{"uri", "size"}`."""

    name: str
    base64: str
    first: bool
    last: bool


class OutputRead(NamedTuple):
    """Read a part of an output that an earlier execution's answer had truncated, from a byte offset.

    Result: `{"text", "next"}`; `next` is the offset of the next part, or null at the end.
    """

    execution: str
    name: str
    start: int = 0


class InputList(NamedTuple):
    """The operator's files that this execution may read; with a name, the files of that one, from a row on.

    Result: `{"files": [{name, kind, size, type, modified}], "left_out": [str], "next"}`. `next` is the number of the
    next row, or null. A folder also has `files`, a count; an input that can't be had has `error` alone.
    """

    name: str | None = None
    start: int = 0
    call: CallId | None = None


class InputOpen(NamedTuple):
    """Open a file or folder that the operator hands in. What it is now is recorded, without the content.

    If it has more bytes than `room`, it may be refused as `workspace_full`, with its `size`, before all of it is read.

    Result: `{"kind", "version", "size", "part", "type", "files": [{path, size, sha256, modified}], "left_out"}`.
    """

    name: str
    call: CallId | None = None
    room: int | None = None


class InputRead(NamedTuple):
    """Read a part of what was opened: the content of all its files in a row, `part` bytes each. Result: `{"base64"}`.

    A part that isn't what it was when it was opened isn't given.
    """

    name: str
    version: str
    number: int


class ProgramStart(NamedTuple):
    """Register and start a program: an object, or the name of a saved one. The host's machine starts with it.

    Result: `{"execution", "program", "uses", "context"}`, from which the guest creates its machine. `uses` has the
    programs that its steps run by name. If the key's execution was left unfinished, `state` replaces `context`. If the
    key's execution has ended or is suspended, the result is `{"record"}`, as of `TraceGet`.
    """

    program: Any
    context: dict[str, Any]
    idempotency_key: str | None = None
    call: CallId | None = None


class ProgramEffect(NamedTuple):
    """Request an effect that the machines have emitted. Anything else is a violation and fails the execution.

    Result: its outcome, as it enters both machines: `{"sequence", "status", "value", "code", "message", "usage"}`.
    Outcomes are applied in the order of `sequence`, from 1.
    """

    execution: str
    effect: int


class ProgramFinish(NamedTuple):
    """The guest's machine has ended or is suspended; `state` is the SHA-256 of its state.

    A hash that differs from the host's is a violation. Result, the parts of the record that aren't in the state:
    `{"trace_id", "program", "status", "error", "code", "waiting"}`.
    """

    execution: str
    state: str


class ProgramLeave(NamedTuple):
    """The guest stops driving an unfinished execution, which can then be resumed, or continued by its key. Result `{}`.

    The guest cancels its open requests before.
    """

    execution: str


class ProgramResume(NamedTuple):
    """Resume a suspended execution. Result: `{"execution", "program", "uses", "state"}`."""

    execution: str
    payload: Any = None
    call: CallId | None = None


class ProgramSave(NamedTuple):
    """Save a valid program under a name. Result: `{"hash"}`."""

    name: str
    program: Any
    call: CallId | None = None


class ProgramList(NamedTuple):
    """Result: `{"programs": [{name, version, description, hash, owner}]}`; `owner` is `operator` or `agent`."""

    call: CallId | None = None


class ProgramGet(NamedTuple):
    """Get a program by name. Result: `{"program": object, "hash"}`."""

    name: str
    call: CallId | None = None


class ProgramDelete(NamedTuple):
    """Delete a saved program; its traces stay. Result: `{"found": bool}`."""

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
    """Get an execution's record.

    Result: `{"trace_id", "program", "status", "output", "error", "code", "steps", "waiting"}`.
    """

    trace_id: str
    call: CallId | None = None


class ExecutionFinish(NamedTuple):
    """The script has ended. Result `{}`: the host has received everything, and the guest may exit.

    `value` is the text form of the last expression's value. `error` has `type`, `message`, `line`, `traceback`, and
    `out_of_memory: true` if memory was exhausted, which is the guest's word: what the kernel killed sends nothing.
    `closed` has those of descriptors 1 and 2 that are closed when a session's cell ends.
    """

    exit_code: int
    value: str | None = None
    error: dict[str, Any] | None = None
    closed: list[Any] | None = None


# --- process 1 → host, notifications on standard error ------------------------------------------------------------


class InitBeat(NamedTuple):
    """The sandbox is alive, even if its interpreter is busy.

    `oom_kills` counts processes that the kernel has killed for memory so far. -1 if unknown. `processor` is the
    processor time of all that has run in the sandbox since its first execution began, in seconds.
    """

    oom_kills: int = -1
    processor: float = 0.0


class InitExited(NamedTuple):
    """The guest's process has ended.

    `oom_kills` counts processes that the kernel killed for memory, `limit_hits` how often the sandbox's own limit was
    reached: if it never was, the host was out of memory. -1 if unknown. `left_files` are in /workspace/out, where it
    hasn't ended by itself.
    """

    code: int
    signal: int
    oom_kills: int
    limit_hits: int = -1
    left_files: int = 0


TO_GUEST: dict[str, type[Any]] = {
    "execution.start": ExecutionStart,
    "execution.interrupt": ExecutionInterrupt,
    "host.beat": HostBeat,
    "activity.ask": ActivityAsk,
}

GUEST_NOTIFICATIONS: dict[str, type[Any]] = {
    "guest.ready": GuestReady,
    "execution.begun": ExecutionBegun,
    "output.write": OutputWrite,
    "output.display": OutputDisplay,
    "request.cancel": RequestCancel,
    "call.taken": CallTaken,
    "activity.report": ActivityReport,
    "progress.report": ProgressReport,
}

GUEST_REQUESTS: dict[str, type[Any]] = {
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
    "session.list": SessionList,
    "session.end": SessionEnd,
    "wait.until": WaitUntil,
    "wait.event": WaitEvent,
    "package.install": PackageInstall,
    "package.read": PackageRead,
    "artifact.write": ArtifactWrite,
    "output.read": OutputRead,
    "input.list": InputList,
    "input.open": InputOpen,
    "input.read": InputRead,
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
}

FROM_INIT: dict[str, type[Any]] = {
    "init.beat": InitBeat,
    "init.exited": InitExited,
}

METHODS = {**TO_GUEST, **GUEST_NOTIFICATIONS, **GUEST_REQUESTS, **FROM_INIT}
"""The type of each method's parameters."""

NAMES: dict[type[Any], str] = {params: method for method, params in METHODS.items()}

_T = TypeVar("_T")

_Union: Any = type(str | None)

MAX_NUMBER = 2**63
"""Integers on the channel are below this; inside `json` values they may be larger."""


MAX_NAME_CHARS = 4096
"""Size limit of names, keys and queries. The host's own limits on most of them are lower."""

MAX_INTENT_CHARS = 64 << 10
"""Size limit of the intent from which a model writes a program."""

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
"""The texts that may exceed `MAX_NAME_CHARS`, and their limits; None if only the frame's limit applies. The host
counts those that it stores, truncates those that it displays, and has its own limit on keys."""


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
    # For isinstance, a bool is an int.
    return type(value) is annotation


_EXACT: dict[type[Any], dict[str, tuple[type[Any], ...]]] = {}
"""Of each parameter of a message, the types of which every value fits: of most values, that is told at once."""


def _exact(kind: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    found = _EXACT[kind] = {name: _always_fit(annotation) for name, annotation in kind.__annotations__.items()}
    return found


def _always_fit(annotation: Any) -> tuple[type[Any], ...]:
    if isinstance(annotation, _Union):
        return tuple(kind for member in annotation.__args__ for kind in _always_fit(member))
    origin = getattr(annotation, "__origin__", annotation)
    return (origin,) if origin in (str, bool, dict, list, type(None)) else ()


def _fault(kind: type[Any], params: dict[str, Any]) -> str | None:
    """Why the object isn't valid as the method's parameters, or None."""
    fields: dict[str, Any] = kind.__annotations__
    defaults: dict[str, Any] = kind._field_defaults
    method = NAMES[kind]
    for name in params:
        if name not in fields:
            return f"{method} has no parameter {name[:40]!r}"
    exact = _EXACT.get(kind) or _exact(kind)
    for name, annotation in fields.items():
        if name not in params:
            if name not in defaults:
                return f"{method} needs {name!r}"
        elif type(params[name]) not in exact[name] and not _fits(params[name], annotation):
            if getattr(annotation, "__origin__", None) is Literal:
                return f"{method}: {name!r} is one of {', '.join(annotation.__args__)}"
            shown = annotation.__name__ if isinstance(annotation, type) else str(annotation)
            return f"{method}: {name!r} is {shown}, not {type(params[name]).__name__}"
    return None


def overlong(params: Any) -> str | None:
    """A sentence that names a text of a message that exceeds its limit; None if none does.

    This isn't a protocol error: the request is refused, and the execution continues.
    """
    kind = type(params)
    for name, value in zip(kind.__annotations__, params, strict=True):
        if isinstance(value, str) and len(value) > MAX_NAME_CHARS and kind.__annotations__[name] is not Any:
            limit = LONG_TEXTS.get((kind, name), MAX_NAME_CHARS)
            if limit is not None and len(value) > limit:
                return f"{NAMES[kind]}: {name!r} has {len(value)} characters; the limit is {limit}."
    return None


def decode_params(kind: type[_T], params: dict[str, Any]) -> _T:
    """Decode an untrusted object into a method's parameters.

    Raises:
        WireError: `bad_params`, naming the method and the parameter.
    """
    if fault := _fault(kind, params):
        raise WireError("bad_params", fault)
    return kind(**params)


_PLAIN = (str, dict, bool, int, list, float, type(None))


def _plain(value: Any) -> Any:
    """A string or number of a subclass (an enum, numpy's) as JSON will encode it."""
    if type(value) in _PLAIN:
        return value
    for kind, method in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, kind) and not isinstance(value, bool):
            return method(value)  # type: ignore[arg-type]
    return value


def encode_params(params: Any) -> dict[str, Any]:
    """Encode parameters as an object for a frame. Optional parameters that are None are left out.

    Raises:
        LocalMessageError: `bad_params`: the other side would refuse them.
    """
    defaults = params._field_defaults
    body = {n: _plain(value) for n, value in params._asdict().items() if value is not None or n not in defaults}
    if fault := _fault(type(params), body):
        raise LocalMessageError("bad_params", fault)
    return body


def method_params(method: str) -> type[Any]:
    """The parameter type of a method.

    Raises:
        WireError: `unknown_method`.
    """
    kind = METHODS.get(method)
    if kind is None:
        raise WireError("unknown_method", f"this channel has no method {method[:60]!r}")
    return kind


def notification(params: Any) -> Notification:
    """The notification with these parameters.

    Raises:
        LocalMessageError: As `encode_params`.
    """
    return Notification(NAMES[type(params)], encode_params(params))

"""The payloads of entries: a type for each. Nothing else, but `log_payloads`, knows their keys.

| kind | payloads |
|---|---|
| `start` | `ScriptStart`, `ProgramStart` |
| `intent` | `ToolIntent`, `ModelIntent`, `RequestIntent` |
| `outcome` | `EffectOutcome` (a program's), `CallOutcome`, `RequestOutcome` (a script's) |
| `denial` | `Denial` |
| `transition` | `Transition` |
| `suspension` | `ProgramSuspension`, `ScriptSuspension` |
| `resume` | `Resumption` |
| `decision` | `CallDecision`, `StepDecision`, `QueuedDecision`, `EffectSettlement`, `CallSettlement` |
| `event` | `EventDelivery` |
| `violation` | `Violation` |
| `end` | `ProgramEnd`, `ScriptEnd` |
| `erasure`, `key`, `clock`, `loss` | `Erasure`, `KeyEvent`, `AcceptedClock`, `AcceptedLoss`: entries about the log |

`encode` returns a JSON object whose keys are in a fixed order: an entry commits to the bytes of its payload, so the
order is part of the format. A new field comes after the others, and is left out where it has its default.

`decode` reads what version 0.1.0 and every later one wrote. It ignores names that it doesn't know, so that an entry of
a later version can be read, and it never fails: a payload without the names that its type needs becomes `Unknown`.
People are shown such an entry as it is. Code that decides by entries must not skip one: it reads with `understood`.

Values are neither copied nor validated: arguments and results may be large, and were validated before they were
written.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, cast

from mcp_bridge.kernel.events import Cancel, Outcome, Redo, Resume, Usage
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry
from mcp_bridge.ledger.log.log_payloads import AcceptedClock, AcceptedLoss, Erasure, KeyEvent
from mcp_bridge.ledger.log.payload_base import Object, Payload, _given, _listed
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mcp_bridge.errors import BridgeError
    from mcp_bridge.ledger.log.entries import Recorded

CANCELLED_BY_SCRIPT = "interrupted"
"""The status of a call that the script itself cancelled: it may have happened, and nobody waits for it."""

NOT_DONE = "not_done"
"""The status of a call that has an intent and did not happen: it counts as never made."""

PLANNED = "planned"
"""The status of a call that a dry run has listed, and not made."""

LOOKUP = "lookup"
"""The kind of a request that only looks something up: a script that is run again needn't make it."""

PENDING = "pending"
"""The status of a call whose tool announced that its outcome comes later."""


@dataclass(frozen=True, slots=True)
class Erased:
    """Stands for a payload that was erased."""

    def encode(self) -> dict[str, Any]:
        """The JSON object for readers of entries."""
        return {"erased": TOMBSTONE}


@dataclass(frozen=True, slots=True)
class Damaged:
    """Stands for a payload that can't be read, for people who look for what was changed.

    Attributes:
        why: What is wrong with it.
    """

    why: str

    def encode(self) -> dict[str, Any]:
        """The JSON object for readers of entries."""
        return {"damaged": self.why}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A payload of a kind or a form that this version doesn't know.

    Attributes:
        kind: The entry's.
        payload: The JSON value.
    """

    kind: str
    payload: Any

    def encode(self) -> Any:
        """The JSON value as it was read."""
        return self.payload


Decoded: TypeAlias = Payload | Erased | Damaged | Unknown


# --- a script's requests, and their results


@dataclass(frozen=True, slots=True)
class CallRef:
    """The call of a script that an entry is about.

    Attributes:
        id: The call's id (`wire.messages.CallId`).
        asked: The tool's name as the script wrote it; None where that is the tool's own.
        raw: Whether the script wants the tool's whole result.
    """

    id: str
    asked: str | None = None
    raw: bool = False

    def encode(self) -> dict[str, Any]:
        """The part of a payload that names the call."""
        encoded: dict[str, Any] = {"call": self.id}
        if self.asked is not None:
            encoded["asked"] = self.asked
        if self.raw:
            encoded["raw"] = True
        return encoded

    @classmethod
    def decode(cls, payload: Object) -> CallRef | None:
        """The call that a payload names; None if it names none."""
        if "call" not in payload:
            return None
        return cls(payload["call"], payload.get("asked"), payload.get("raw", False))


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a script's call.

    Attributes:
        kind: `tool`, or the part of the bridge that answers: `memory`, `program`, `trace`; `LOOKUP` for what is only
            looked up.
        name: `server.tool`, or the method of that part.
        arguments: Projected for the trace.
        raw: Whether the whole result is wanted.
        digest: SHA-256 of the arguments as canonical JSON with all references alike, if the arguments themselves
            are not stored; or None.
    """

    kind: str
    name: str
    arguments: Any
    raw: bool = False
    digest: str | None = None

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the request."""
        encoded: dict[str, Any] = {"kind": self.kind, "tool": self.name}
        if self.digest is None:
            encoded["arguments"] = self.arguments
        else:
            encoded["arguments_sha256"] = self.digest
        if self.raw:
            encoded["raw"] = True
        return encoded

    @classmethod
    def decode(cls, payload: Object) -> Self:
        """The request in a payload."""
        digest = payload.get("arguments_sha256")
        arguments = payload.get("arguments") if digest is None else None
        return cls(payload["kind"], payload["tool"], arguments, payload.get("raw", False), digest)


@dataclass(frozen=True, slots=True)
class Success:
    """A call returned a value.

    Attributes:
        value: The value; of a raw call the whole result.
        pending: Whether the tool announced that its outcome comes later, and the script can't be suspended for it.
    """

    value: Any
    pending: bool = False

    @property
    def status(self) -> str:
        """As it is recorded."""
        return "ok"

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the result."""
        if self.pending:
            return {"status": "ok", "value": self.value, "pending": True}
        return {"status": "ok", "value": self.value}


@dataclass(frozen=True, slots=True)
class Failure:
    """A call failed with an error.

    Attributes:
        code, message, hint, details: As `BridgeError`.
    """

    code: str
    message: str
    hint: str | None = None
    details: Object = field(default_factory=dict)

    @classmethod
    def of(cls, error: BridgeError, *, raw: bool = True) -> Failure:
        """The failure for an error. Without `raw`, the tool's whole result is left out."""
        details = {name: value for name, value in error.details.items() if raw or name != "raw"}
        return cls(error.code, error.message, error.hint or None, details)

    @property
    def status(self) -> str:
        """As it is recorded."""
        return "failed"

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the result."""
        encoded: dict[str, Any] = {"status": "failed", "code": self.code, "message": self.message}
        if self.hint:
            encoded["hint"] = self.hint
        if self.details:
            encoded["details"] = self.details
        return encoded


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A call gave the script no answer.

    Attributes:
        status: `CANCELLED_BY_SCRIPT`, `NOT_DONE` or `PENDING`.
    """

    status: str

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the result."""
        return {"status": self.status}


@dataclass(frozen=True, slots=True)
class Planned:
    """A call of a dry run was decided, checked and listed, and not made.

    Attributes:
        number: Its number in the list, from 1.
        tool: The tool's exact name, after its server's.
        given: The arguments that the tool would get, projected.
        filled, announced, why: As `QuestionFields`.
        listed: SHA-256, in hexadecimal, of the tool as its server listed it. Empty for a call that needs the result of
            another one of the list: no approval of the list covers it.
        asks: Whether the policy wants a person asked about it.
    """

    number: int
    tool: str
    given: Any
    filled: Sequence[str] = ()
    announced: Any = field(default_factory=dict)
    why: str = ""
    listed: str = ""
    asks: bool = False

    @property
    def status(self) -> str:
        """As it is recorded."""
        return PLANNED

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the result."""
        planned: dict[str, Any] = {"number": self.number, "tool": self.tool, "given": self.given}
        planned |= {"filled": list(self.filled), "announced": self.announced, "why": self.why}
        return {"status": PLANNED, "planned": planned | {"listed": self.listed, "asks": self.asks}}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        """The result in a payload."""
        planned = payload["planned"]
        return cls(
            planned["number"],
            planned["tool"],
            planned["given"],
            planned["filled"],
            planned["announced"],
            planned["why"],
            planned["listed"],
            planned["asks"],
        )


Result: TypeAlias = Success | Failure | NoAnswer | Planned


def _result(payload: Object) -> Result:
    match payload["status"]:
        case "ok":
            return Success(payload.get("value"), payload.get("pending", False))
        case "failed":
            hint, details = payload.get("hint"), payload.get("details", {})
            return Failure(payload.get("code", ""), payload.get("message", ""), hint, details)
        case "planned":
            return Planned.decode(payload)
        case status:
            return NoAnswer(status)


# --- start


@dataclass(frozen=True, slots=True)
class CellRef:
    """The place of a script in a session.

    Attributes:
        session: The session's name, projected.
        number: The cell's number, from 1.
        previous: The execution that is the cell before; None for a first one.
        seed: What the session's randomness comes from, in hexadecimal.
    """

    session: str
    number: int
    previous: str | None
    seed: str

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has it."""
        return {"session": self.session, "cell": self.number, "previous": self.previous, "seed": self.seed}

    @classmethod
    def decode(cls, payload: Object) -> CellRef | None:
        """The place that a payload has; None if it has none."""
        if "session" not in payload:
            return None
        return cls(payload["session"], payload["cell"], payload.get("previous"), payload.get("seed", ""))


@dataclass(frozen=True, slots=True)
class ScriptStart(Payload):
    """A script was started.

    Attributes:
        code: The script, projected.
        hash: SHA-256 of the code, in hexadecimal.
        servers: The configured names of the servers that it may use; None for all.
        timeout: Seconds that it may take, or None.
        starter: Who started it; None in entries of version 0.1.0.
        key: Its idempotency key, projected, or None.
        cell: Its place in a session, or None.
        dry_run: Whether it begins with a dry run.
        files: The names of the inputs that it may read; None for all.
        packages: The package set that its sandbox has: for each its name, version, file and SHA-256; or None.
        language: What it is written in; None for Python.
    """

    KIND = "start"

    code: str
    hash: str
    servers: Sequence[str] | None = None
    timeout: float | None = None
    starter: str | None = None
    key: str | None = None
    cell: CellRef | None = None
    dry_run: bool = False
    files: Sequence[str] | None = None
    packages: Sequence[Mapping[str, str]] | None = None
    language: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Its fields besides the code."""
        return _without(self.encode(), "code")

    def encode(self) -> dict[str, Any]:
        encoded = {"code": self.code, "hash": self.hash, "servers": _listed(self.servers), "timeout": self.timeout}
        encoded |= _given(
            starter=self.starter,
            key=self.key,
            files=_listed(self.files),
            packages=_listed(self.packages),
            language=self.language,
        )
        encoded |= {} if self.cell is None else self.cell.encode()
        return encoded | {"dry_run": True} if self.dry_run else encoded

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(
            payload["code"],
            payload.get("hash", ""),
            payload.get("servers"),
            payload.get("timeout"),
            payload.get("starter"),
            payload.get("key"),
            CellRef.decode(payload),
            payload.get("dry_run", False),
            payload.get("files"),
            payload.get("packages"),
            payload.get("language"),
        )


@dataclass(frozen=True, slots=True)
class ProgramStart(Payload):
    """A program was started.

    Attributes:
        program: Its name.
        origin: `operator` or `agent`: whose program it is. None in entries that don't say.
        context: The context of its machine, projected; None in entries that can't be replayed.
        effects: The ids of the effects that the machine emitted first.
        starter: Who started it; None in entries of version 0.1.0.
        servers: The configured names of the servers that it may use; None for all.
        denied: Rows of the steps that the policy denies in any case.
        machine: The version of the rules by which its machine goes on.
    """

    KIND = "start"

    program: str
    origin: str | None = None
    context: dict[str, Any] | None = None
    effects: Sequence[int] = ()
    starter: str | None = None
    servers: Sequence[str] | None = None
    denied: Sequence[dict[str, Any]] = ()
    machine: int = 1

    @property
    def facts(self) -> dict[str, Any]:
        """Its fields besides the name and the machine's version."""
        return _without(self.encode(), "program", "machine")

    def encode(self) -> dict[str, Any]:
        encoded = {"program": self.program} | _given(origin=self.origin)
        if self.context is not None:
            encoded |= {"context": self.context, "effects": list(self.effects)}
        if self.starter is not None:
            encoded |= {"starter": self.starter, "servers": _listed(self.servers)}
        if self.denied:
            encoded |= {"denied": list(self.denied)}
        return encoded | ({"machine": self.machine} if self.machine > 1 else {})

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(
            payload["program"],
            payload.get("origin"),
            payload.get("context"),
            payload.get("effects", ()),
            payload.get("starter"),
            payload.get("servers"),
            payload.get("denied", ()),
            payload.get("machine", 1),
        )


# --- intent


@dataclass(frozen=True, slots=True)
class ToolIntent(Payload):
    """A tool is about to be called.

    Attributes:
        tool: `server.tool`.
        arguments: As the caller wrote them, projected.
        call: The script's call; None of a program's.
        sent: The arguments that the tool gets, projected, if they differ from `arguments`; or None.
        effect: The program's effect; None of a script's.
        rules: Numbers of the rules that count the call.
    """

    KIND = "intent"

    tool: str
    arguments: Any
    call: CallRef | None = None
    sent: Any = None
    effect: int | None = None
    rules: Sequence[int] = ()

    @property
    def request(self) -> Request:
        """The script's request."""
        asked, raw = (None, False) if self.call is None else (self.call.asked, self.call.raw)
        return Request("tool", self.tool if asked is None else asked, self.arguments, raw)

    @property
    def given(self) -> Any:
        """The arguments that the tool gets, projected."""
        return self.arguments if self.sent is None else self.sent

    def called_by(self, call: CallRef | None) -> Self:
        """The same intent, for a script's call."""
        return type(self)(self.tool, self.arguments, call, self.sent, self.effect, self.rules)

    def of_effect(self, effect: int) -> Self:
        """The same intent, for a program's effect."""
        return type(self)(self.tool, self.arguments, self.call, self.sent, effect, self.rules)

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """The same intent with the arguments that the tool gets, in which `fill` has replaced references by values."""
        return replace(self, arguments=fill(self.given), sent=None)

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {"kind": "tool", "tool": self.tool, "arguments": self.arguments}
        if self.call is not None:
            encoded |= self.call.encode()
        if self.sent is not None:
            encoded["sent"] = self.sent
        if self.effect is not None:
            encoded["effect"] = self.effect
        if self.rules:
            encoded["rules"] = list(self.rules)
        return encoded

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(
            payload["tool"],
            payload["arguments"],
            CallRef.decode(payload),
            payload.get("sent"),
            payload.get("effect"),
            payload.get("rules", ()),
        )


@dataclass(frozen=True, slots=True)
class ModelIntent(Payload):
    """A program is about to ask a model.

    Attributes:
        effect: The program's effect.
        arguments: The prompt and its settings, projected.
    """

    KIND = "intent"

    effect: int
    arguments: dict[str, Any]

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, arguments=fill(self.arguments))

    def encode(self) -> dict[str, Any]:
        return {"kind": "llm", "effect": self.effect, "arguments": self.arguments}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["effect"], payload["arguments"])


@dataclass(frozen=True, slots=True)
class RequestIntent(Payload):
    """The bridge itself is about to do something for a script, such as starting a program.

    Attributes:
        request: The script's request.
        call: The id of the script's call.
    """

    KIND = "intent"

    request: Request
    call: str

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, request=replace(self.request, arguments=fill(self.request.arguments)))

    def encode(self) -> dict[str, Any]:
        return self.request.encode() | {"call": self.call}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(Request.decode(payload), payload["call"])


# --- outcome


@dataclass(frozen=True, slots=True)
class EffectOutcome(Payload):
    """An effect of a program has ended.

    Attributes:
        event: The outcome that the machine applied, or would have applied.
        effects: The ids of the effects that the machine emitted then; None if it no longer awaited this one.
    """

    KIND = "outcome"

    event: Outcome
    effects: Sequence[int] | None

    def encode(self) -> dict[str, Any]:
        return outcome_object(self.event) | {"effects": _listed(self.effects)}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        usage = payload.get("usage")
        event = Outcome(
            payload["effect"],
            payload["status"],
            payload.get("value"),
            payload.get("code", ""),
            payload.get("message", ""),
            None if usage is None else Usage(**usage),
        )
        return cls(event, payload.get("effects"))


def outcome_object(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a JSON object: in an entry, and on the wire."""
    encoded: dict[str, Any] = {"effect": outcome.effect, "status": outcome.status}
    if outcome.status == "ok":
        encoded["value"] = outcome.value
    else:
        encoded |= {"code": outcome.code, "message": outcome.message}
    if outcome.usage is not None:
        encoded["usage"] = outcome.usage._asdict()
    return encoded


@dataclass(frozen=True, slots=True)
class CallOutcome(Payload):
    """A script's tool call that had an intent has ended.

    Attributes:
        tool: `server.tool`; where a person or an event ended the call, its name as the script wrote it.
        call: The script's call; None of one without a name.
        result: How it ended.
        source: Where a later outcome came from (`WEBHOOK`, `OPERATOR`, `TIMER`); or None.
    """

    KIND = "outcome"

    tool: str
    call: CallRef | None
    result: Result
    source: str | None = None

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {"kind": "tool", "tool": self.tool}
        if self.call is not None:
            encoded |= self.call.encode()
        encoded |= self.result.encode()
        if self.source is not None:
            encoded["source"] = self.source
        return encoded

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["tool"], CallRef.decode(payload), _result(payload), payload.get("source"))


@dataclass(frozen=True, slots=True)
class RequestOutcome(Payload):
    """A script's request of the bridge itself has ended; or a call of a tool that was refused before its intent.

    Attributes:
        request: The request, without the arguments if the intent has them.
        call: The id of the script's call; of a lookup its number among those that ask for the same.
        result: How it ended.
        has_intent: Whether an intent was recorded.
    """

    KIND = "outcome"

    request: Request
    call: str
    result: Result
    has_intent: bool = False

    def encode(self) -> dict[str, Any]:
        encoded = self.request.encode()
        if self.has_intent:
            encoded.pop("arguments", None)
        return encoded | {"call": self.call} | self.result.encode()

    @classmethod
    def decode(cls, payload: Object) -> Self:
        has_intent = "arguments" not in payload and "arguments_sha256" not in payload
        return cls(Request.decode(payload), payload["call"], _result(payload), has_intent)


# --- decisions, denials, settlements


@dataclass(frozen=True, slots=True)
class Denial(Payload):
    """The policy has refused a call.

    Attributes:
        tool: `server.tool`.
        by: What refused it, such as a rule.
        call: The script's call; None of a program's.
    """

    KIND = "denial"

    tool: str
    by: str
    call: CallRef | None = None

    def encode(self) -> dict[str, Any]:
        encoded = {"tool": self.tool, "by": self.by}
        return encoded if self.call is None else encoded | self.call.encode()

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["tool"], payload["by"], CallRef.decode(payload))


@dataclass(frozen=True, slots=True)
class Transition(Payload):
    """A program's machine has applied an event other than an outcome.

    Attributes:
        event: The event.
        effects: The ids of the effects that the machine emitted then.
    """

    KIND = "transition"

    event: Resume | Cancel | Redo
    effects: Sequence[int] | None

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any]
        match self.event:
            case Resume(payload, source, effect):
                encoded = {"event": "resume", "payload": payload, "source": source, "effect": effect}
            case Cancel(reason):
                encoded = {"event": "cancel", "reason": reason}
            case Redo(effect):
                encoded = {"event": "redo", "effect": effect}
        return encoded | {"effects": _listed(self.effects)}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        event: Resume | Cancel | Redo
        match payload["event"]:
            case "resume":
                event = Resume(payload["payload"], payload["source"], payload["effect"])
            case "cancel":
                event = Cancel(payload["reason"])
            case "redo":
                event = Redo(payload["effect"])
            case other:
                raise ValueError(other)
        return cls(event, payload.get("effects"))


class QuestionFields(TypedDict, total=False):
    """A question to a person, about a call or of an approval step.

    Attributes:
        tool, arguments: Of a call: the tool's name, and what it would get.
        filled: Of a call: the paths of the tool's defaults that are part of the arguments.
        announced: Of a call: the tool's defaults that are left to it, by their paths.
        why: Of a call: why the policy wants a person asked.
        message, details: Of an approval step.
        program, step: The program and the step that ask.
        call: Of a script's call that waits: its name in the call history.
        origin: Who wrote the program, `operator` or `agent`; only while a person is asked.
        listed: Of the calls that a dry run has listed, which are in `details`: as `Planned.listed`, of each.
    """

    tool: str
    arguments: Any
    filled: list[str]
    announced: Any
    why: str
    message: str
    details: Any
    program: str
    step: str
    call: str
    origin: str
    listed: list[str]


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a person, as a part of their decision's payload."""

    fields: QuestionFields

    @property
    def subject(self) -> str:
        """Its subject in few words: a tool, or a step's message."""
        return str(self.fields.get("tool") or self.fields.get("message") or "")

    @property
    def shown(self) -> dict[str, Any]:
        """What else the person was shown: arguments or details, and the reason."""
        fields: Object = self.fields
        return {name: fields[name] for name in ("arguments", "details", "why") if fields.get(name)}

    def filled(self, fill: Callable[[Any], Any]) -> Question:
        """The same question, in which `fill` has replaced references by values."""
        fields: dict[str, Any] = dict(self.fields)
        filled = {name: fill(fields[name]) for name in ("arguments", "details", "message") if name in fields}
        return Question(cast("QuestionFields", fields | filled))


@dataclass(frozen=True, slots=True)
class CallDecision(Payload):
    """The client's user has decided on a tool call while it was made.

    Attributes:
        question: What the person was asked.
        approved: Whether the person approved.
        by: Who decided; None in entries of version 0.1.0.
        call: The script's call; None of a program's.
    """

    KIND = "decision"

    question: Question
    approved: bool
    by: str | None
    call: CallRef | None = None

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, question=self.question.filled(fill))

    def encode(self) -> dict[str, Any]:
        encoded = dict(self.question.fields)
        if self.call is not None:
            encoded |= self.call.encode()
        return encoded | {"approved": self.approved} | _given(by=self.by)

    @classmethod
    def decode(cls, payload: Object) -> Self:
        question = _question_of(payload, "call", "asked", "raw", "approved", "by")
        return cls(question, payload["approved"], payload.get("by"), CallRef.decode(payload))


@dataclass(frozen=True, slots=True)
class StepDecision(Payload):
    """The client's user has decided on a program's approval step when it was reached.

    Attributes:
        question: What the person was asked.
        approved: Whether the person approved.
        by: Who decided.
    """

    KIND = "decision"

    question: Question
    approved: bool
    by: str

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, question=self.question.filled(fill))

    def encode(self) -> dict[str, Any]:
        return {**self.question.fields, "approved": self.approved, "by": self.by}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(_question_of(payload, "approved", "by"), payload["approved"], payload["by"])


@dataclass(frozen=True, slots=True)
class QueuedDecision(Payload):
    """A person has decided on a queued question, which has a row in the table of approvals.

    Attributes:
        question: The row's question.
        approved: Whether the person approved.
        by: Who decided.
        comment: The person's comment, or None.
    """

    KIND = "decision"

    question: Question
    approved: bool
    by: str
    comment: str | None = None

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, question=self.question.filled(fill))

    def encode(self) -> dict[str, Any]:
        return {**self.question.fields, "approved": self.approved, "by": self.by, "comment": self.comment}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        question = _question_of(payload, "approved", "by", "comment")
        return cls(question, payload["approved"], payload["by"], payload["comment"])


How: TypeAlias = Literal["happened", "failed", "not_done"]


@dataclass(frozen=True, slots=True)
class EffectSettlement(Payload):
    """A person has settled a program's effect in doubt.

    Attributes:
        effect: The effect's number.
        step: The path of its step.
        tool: `server.tool`.
        arguments: The requested arguments, projected.
        how: What became of the effect; with `not_done` it is carried out now.
        by: Who settled it.
        comment: The person's comment, or None.
        value: Its result, if it happened.
        message: Why it failed, if it did.
    """

    KIND = "decision"

    effect: int
    step: str
    tool: str
    arguments: Any
    how: How
    by: str
    comment: str | None = None
    value: Any = None
    message: str = ""

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, arguments=fill(self.arguments), message=fill(self.message))

    def encode(self) -> dict[str, Any]:
        encoded = {"effect": self.effect, "step": self.step, "tool": self.tool, "arguments": self.arguments}
        return encoded | _settled(self)

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["effect"], payload.get("step", ""), *_settlement(payload))


@dataclass(frozen=True, slots=True)
class CallSettlement(Payload):
    """A person has settled a script's call in doubt, or delivered the outcome of a pending one.

    Attributes:
        call: The id of the script's call.
        tool, arguments, how, by, comment, value, message: As `EffectSettlement`.
    """

    KIND = "decision"

    call: str
    tool: str
    arguments: Any
    how: How
    by: str
    comment: str | None = None
    value: Any = None
    message: str = ""

    def filled(self, fill: Callable[[Any], Any]) -> Self:
        """As `ToolIntent.filled`."""
        return replace(self, arguments=fill(self.arguments), message=fill(self.message))

    def encode(self) -> dict[str, Any]:
        # A script's call is in the place of a program's effect and step, and also under a key of its own.
        encoded = {"effect": self.call, "step": self.call, "tool": self.tool, "arguments": self.arguments}
        return encoded | _settled(self) | {"call": self.call}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["call"], *_settlement(payload))


def _settled(said: EffectSettlement | CallSettlement) -> dict[str, Any]:
    encoded: dict[str, Any] = {"settled": said.how, "by": said.by, "comment": said.comment}
    if said.how == "happened":
        encoded["value"] = said.value
    elif said.how == "failed":
        encoded["message"] = said.message
    return encoded


def _settlement(payload: Object) -> tuple[Any, ...]:
    """The part that both settlements share: `tool` and the keys after it."""
    who = payload["tool"], payload["arguments"], payload["settled"], payload["by"], payload.get("comment")
    return *who, payload.get("value"), payload.get("message", "")


Decision: TypeAlias = CallDecision | StepDecision | QueuedDecision | EffectSettlement | CallSettlement


@dataclass(frozen=True, slots=True)
class EventDelivery(Payload):
    """Somebody has sent an event to a script's execution. The first wait for its name that isn't over takes it.

    Attributes:
        name: The event's name.
        payload: What it brings, projected.
        source: Where it is from: `OPERATOR`, `WEBHOOK` or `TIMER`.
    """

    KIND = "event"

    name: str
    payload: Any
    source: str

    def encode(self) -> dict[str, Any]:
        return {"event": self.name, "payload": self.payload, "source": self.source}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["event"], payload["payload"], payload["source"])


@dataclass(frozen=True, slots=True)
class Violation(Payload):
    """A sandbox requested something that its program, or its script, had not emitted.

    Attributes:
        message: The violation, for people.
    """

    KIND = "violation"

    message: str

    def encode(self) -> dict[str, Any]:
        return {"message": self.message}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["message"])


# --- suspension, resume, end


@dataclass(frozen=True, slots=True)
class RunError:
    """The error that a script's run ended with, as a part of the payload.

    Attributes:
        message: For people; None without an error.
        rest: The other members of the record's error, including `code`.
    """

    message: str | None = None
    rest: Object = field(default_factory=lambda: {"code": None})

    @classmethod
    def of(cls, error: Object | None) -> RunError:
        """The error of a run's record."""
        return cls() if error is None else cls(error["message"], _without(error, "message"))

    @property
    def code(self) -> str | None:
        """The error's code."""
        return self.rest.get("code")

    def encode(self) -> dict[str, Any]:
        """The part of a payload that has the error."""
        return {"error": self.message, **self.rest}


@dataclass(frozen=True, slots=True)
class ProgramSuspension(Payload):
    """A program was suspended or interrupted.

    Attributes:
        status: `suspended` or `interrupted`.
        state: SHA-256 of the stored state, in hexadecimal.
        servers: As in `ScriptSuspension`.
    """

    KIND = "suspension"

    status: str
    state: str
    servers: str | None = None

    def encode(self) -> dict[str, Any]:
        return {"status": self.status, "state": self.state} | _given(servers=self.servers)

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["status"], payload["state"], payload.get("servers"))


@dataclass(frozen=True, slots=True)
class ScriptSuspension(Payload):
    """A script was suspended or interrupted.

    Attributes:
        status: `suspended` or `interrupted`.
        error: The reason; None if a settlement or an event has changed what it waits for.
        held: The calls that a person is asked about, without their arguments, by their ids.
        planned: How many calls its dry run, which is over, has listed; None if it isn't suspended for that.
        servers: SHA-256, in hexadecimal, of the servers that there were: a bridge that resumes it by itself has to
            have the same. None if no bridge may resume it by itself, or a person has only said something of it.
    """

    KIND = "suspension"

    status: str
    error: RunError | None = None
    held: Mapping[str, Request] = field(default_factory=dict)
    planned: int | None = None
    servers: str | None = None

    def encode(self) -> dict[str, Any]:
        encoded: dict[str, Any] = {"status": self.status}
        if self.error is not None:
            encoded |= self.error.encode()
        if self.held:
            encoded["held"] = [request.encode() | {"call": call} for call, request in self.held.items()]
        return encoded | _given(planned=self.planned, servers=self.servers)

    @classmethod
    def decode(cls, payload: Object) -> Self:
        held = {row["call"]: Request.decode(row) for row in payload.get("held", ())}
        error = _run_error(payload, "held", "planned", "servers")
        return cls(payload["status"], error, held, payload.get("planned"), payload.get("servers"))


@dataclass(frozen=True, slots=True)
class Resumption(Payload):
    """A process has resumed an execution.

    Attributes:
        recovered: Whether the previous process died without recording a suspension.
        servers: As in `ScriptSuspension`, of the process that has resumed it.
    """

    KIND = "resume"

    recovered: bool
    servers: str | None = None

    def encode(self) -> dict[str, Any]:
        return {"recovered": self.recovered} | _given(servers=self.servers)

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["recovered"], payload.get("servers"))


@dataclass(frozen=True, slots=True)
class ProgramEnd(Payload):
    """A program has ended.

    Attributes:
        status: How it ended.
        error: For people, or None.
        state: SHA-256 of the final state, in hexadecimal; None in entries that don't say.
        unresolved: Rows of the effects that were in doubt when the machine stopped awaiting them.
    """

    KIND = "end"

    status: str
    error: str | None = None
    state: str | None = None
    unresolved: Sequence[dict[str, Any]] = ()

    def encode(self) -> dict[str, Any]:
        encoded = {"status": self.status, "error": self.error} | _given(state=self.state)
        return encoded | ({"unresolved": list(self.unresolved)} if self.unresolved else {})

    @classmethod
    def decode(cls, payload: Object) -> Self:
        return cls(payload["status"], payload["error"], payload.get("state"), payload.get("unresolved", ()))


_OUTPUTS = ("stdout", "stderr", "value")
_OF_ARTIFACT = ("name", "size", "sha256")


@dataclass(frozen=True, slots=True)
class ScriptEnd(Payload):
    """A script has ended.

    Attributes:
        status: How it ended.
        exit_code: An exit status as of a process; None without a record, or if it was cancelled.
        error: The record's error; None without a record.
        outputs: SHA-256, in hexadecimal, of the record's `stdout`, `stderr` and `value`.
        rebuilt: How many cells of its session were run again from their records before it began; None for none.
        unused: How many of the calls that were approved after its dry run it hasn't made; None without a dry run.
        artifacts: Rows of `name`, `size` and `sha256` (in hexadecimal) of the artifacts that its last run has kept.
    """

    KIND = "end"

    status: str
    exit_code: int | None = None
    error: RunError | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    rebuilt: int | None = None
    unused: int | None = None
    artifacts: Sequence[Object] = ()

    @property
    def artifact_hashes(self) -> dict[str, str]:
        """The SHA-256 of each artifact, by its name."""
        return {row["name"]: row["sha256"] for row in self.artifacts}

    def encode(self) -> dict[str, Any]:
        encoded = {"status": self.status} | _given(exit_code=self.exit_code)
        if self.error is not None:
            encoded |= self.error.encode()
        artifacts = _listed(self.artifacts or None)
        return {**encoded, **self.outputs, **_given(rebuilt=self.rebuilt, unused=self.unused, artifacts=artifacts)}

    @classmethod
    def decode(cls, payload: Object) -> Self:
        outputs = {name: payload[name] for name in _OUTPUTS if name in payload}
        error = _run_error(payload, "exit_code", "rebuilt", "unused", "artifacts", *_OUTPUTS)
        artifacts = tuple({name: row[name] for name in _OF_ARTIFACT} for row in payload.get("artifacts", ()))
        rest = payload.get("rebuilt"), payload.get("unused"), artifacts
        return cls(payload["status"], payload.get("exit_code"), error, outputs, *rest)


def _run_error(payload: Object, *others: str) -> RunError | None:
    if "error" not in payload:
        return None
    return RunError(payload["error"], _without(payload, "status", "error", *others))


# --- the types by kind


def _intent(payload: Object) -> type[Payload]:
    match payload.get("kind"):
        case "tool":
            return ToolIntent
        case "llm":
            return ModelIntent
    return RequestIntent


def _outcome(payload: Object) -> type[Payload]:
    if "effect" in payload:
        return EffectOutcome
    repeats = "arguments" in payload or "arguments_sha256" in payload
    return CallOutcome if payload.get("kind", "tool") == "tool" and not repeats else RequestOutcome


def _decision(payload: Object) -> type[Payload]:
    if "settled" in payload:
        return CallSettlement if "call" in payload else EffectSettlement
    if all(name in payload for name in ("approved", "by", "comment")):
        return QueuedDecision
    return CallDecision if "tool" in payload else StepDecision


def _end(payload: Object) -> type[Payload]:
    is_scripts = "error" not in payload or "code" in payload or "exit_code" in payload
    return ScriptEnd if is_scripts else ProgramEnd


_TYPES: dict[str, Callable[[Object], type[Payload]]] = {
    "start": lambda payload: ScriptStart if "code" in payload else ProgramStart,
    "intent": _intent,
    "outcome": _outcome,
    "denial": lambda _: Denial,
    "transition": lambda _: Transition,
    "suspension": lambda payload: ProgramSuspension if "state" in payload else ScriptSuspension,
    "resume": lambda _: Resumption,
    "decision": _decision,
    "event": lambda _: EventDelivery,
    "violation": lambda _: Violation,
    "erasure": lambda _: Erasure,
    "key": lambda _: KeyEvent,
    "clock": lambda _: AcceptedClock,
    "loss": lambda _: AcceptedLoss,
    "end": _end,
}


def decode(kind: str, payload: Any) -> Decoded:
    """Decode a payload.

    Args:
        kind: The entry's kind.
        payload: Its payload, as JSON.
    """
    try:
        if len(payload) == 1:
            if payload.get("erased") == TOMBSTONE:
                return Erased()
            if "damaged" in payload:
                return Damaged(str(payload["damaged"]))
        return _TYPES[kind](payload).decode(payload)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Unknown(kind, payload)


def decoded(entry: Entry) -> Decoded:
    """The payload of an entry."""
    return decode(entry.kind, entry.payload)


def to_entry(
    payload: Payload, execution: str, step: str | None = None, policy: str = "", program: str | None = None
) -> Entry:
    """The entry for a payload. The other arguments are the entry's fields."""
    return Entry(payload.KIND, execution, payload.encode(), step, policy, program)


def understood(recorded: Recorded) -> Payload:
    """The payload of an entry, for a reader that decides by it.

    Raises:
        BridgeError: `ledger_damaged`: it is erased, or unknown to this version.
    """
    found = decoded(recorded.entry)
    if not isinstance(found, Payload):
        raise damaged(f"the payload of the entry {recorded.sequence} isn't of its kind")
    return found


def start_of(history: Iterable[Recorded]) -> ScriptStart | ProgramStart | None:
    """The start of an execution, from its first entry; None if it is erased."""
    found = next((decoded(row.entry) for row in history if row.entry.kind == "start"), None)
    return found if isinstance(found, ScriptStart | ProgramStart) else None


def _question_of(payload: Object, *names: str) -> Question:
    """The question in a decision's payload: all but the decision's own keys."""
    return Question(cast("QuestionFields", _without(payload, *names)))


def _without(payload: Object, *names: str) -> dict[str, Any]:
    return {name: value for name, value in payload.items() if name not in names}

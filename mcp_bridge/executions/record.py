"""The record of an execution: what is known when a run of it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NotRequired, Self, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.errors import ErrorRecord
    from mcp_bridge.gate.execution_values import ExecutionValues

Status = Literal[
    "success",  # the script ran to its end, or left by sys.exit(0)
    "error",  # an uncaught exception, or code that doesn't compile
    "exit",  # sys.exit with another code
    "timeout",  # the script's own time, or the bound on the whole, is up
    "out_of_memory",  # killed by the kernel for its memory; or, as the guest says, an uncaught MemoryError or ENOMEM
    "killed",  # the interpreter ended without a report: a signal, os._exit
    "channel_closed",  # the guest closed its end, or fell silent
    "sandbox_lost",  # its sandbox was ended from outside, also when it was run again
    "protocol_error",  # the container sent an invalid frame
    "output_limit",  # it printed more than max_output_size
    "call_limit",  # it kept sending requests that were refused for max_calls or max_call_size
    "cancelled",  # the client disconnected or cancelled the call
    "refused",  # it never ran: there was no sandbox
    "suspended",  # it waits for a person, an outcome or a program; or a call of it is in doubt
]

Id = TypeVar("Id", int, str)


class InDoubtRow(TypedDict, Generic[Id]):
    """What a person needs to know of an effect in doubt to settle it.

    Attributes:
        effect: A program's effect by its number, or a script's call by its id.
        step: The path of a program's step; a script's call by its id.
        tool: The tool's name, as `server.tool`.
        arguments: The call's arguments.
        since: When the intent was recorded, in seconds since 1970.
    """

    effect: Id
    step: str
    tool: str
    arguments: Any
    since: float


class InDoubtCall(TypedDict):
    """A script's call in doubt, as the error in the script's record lists it.

    Attributes:
        call: The call's id.
        tool: The tool's name, as `server.tool`.
        arguments: The call's arguments, abridged.
        since: When the intent was recorded, in seconds since 1970.
    """

    call: str
    tool: str
    arguments: Any
    since: float


class WaitingRow(TypedDict):
    """One thing that a suspended execution waits for.

    Attributes:
        effect: A program's effect by its number, a script's question by its number, else the script's call by its id.
        step: The path of a program's step; a script's call by its id.
        kind: `approval`, `event`, `wait`, `tool` (an outcome that comes later), `program` or `in_doubt`.
        name: The tool's, the event's or the program's name.
        call: Of a script: the call's id.
        due: When it is over, in seconds since 1970, if it ends by itself.
        after: Of a script's wait for an event: the number of the last entry of an event that it has looked at.
        since: When it began, in seconds since 1970.
        tool: The tool's name, as `server.tool`.
        arguments: The call's arguments.
        question: What a person is asked.
        decided: What a person has decided, where the execution waits to be resumed with that: `approved` or `denied`.
        settle: Of an effect in doubt: the commands that settle it.
        execution: Of a program that a script waits for: its id.
        waiting: Of such a program: what it waits for.
    """

    effect: int | str
    step: str
    kind: str
    name: str
    call: NotRequired[str]
    due: NotRequired[float]
    after: NotRequired[int]
    since: NotRequired[float]
    tool: NotRequired[str]
    arguments: NotRequired[Any]
    question: NotRequired[Mapping[str, Any]]
    decided: NotRequired[str]
    settle: NotRequired[str]
    execution: NotRequired[str]
    waiting: NotRequired[list[WaitingRow]]


def abridged(row: WaitingRow) -> WaitingRow:
    """What a program waits for, without what its own record says in full."""
    short: WaitingRow = {"effect": row["effect"], "step": row["step"], "kind": row["kind"], "name": row["name"]}
    if "due" in row:
        short["due"] = row["due"]
    return short


class PlannedRow(TypedDict):
    """A listed call, as records have it.

    Attributes:
        number: Its number in the list, from 1.
        tool: The tool's name, as `server.tool`.
        arguments: What it would get, projected.
        asks: Whether the policy wants a person asked about it.
        bound: Whether the arguments are known; else it needs the result of another listed call, and no approval of the
            list covers it.
    """

    number: int
    tool: str
    arguments: Any
    asks: bool
    bound: bool


class CellFields(TypedDict):
    """What the record of a session's cell says of the session.

    Attributes:
        name: The session's name.
        cell: The cell's number.
        rebuilt: How many earlier cells were run again from their records before this one.
        interrupted: Whether the cell was interrupted when its time was up, and the session went on: what it had done by
            then can't be done again.
    """

    name: str
    cell: int
    rebuilt: NotRequired[int]
    interrupted: NotRequired[bool]


PREVIOUS_RESULT_NOTICE = (
    "nothing was run: this is the result of the run {}, which used the same idempotency key; use another key "
    "to run the code again"
)
"""The notice for a record that is `is_previous_result`, as a format with the execution's id."""


@dataclass(slots=True)
class ExecutionRecord:
    """The record of one execution.

    Attributes:
        execution: Its id.
        status: How it ended.
        exit_code: An exit status as of a process: 0, the script's own, 1, 124 for a time-out, 128 + n for signal n.
        stdout, stderr: The complete output, as bytes.
        value: The last expression's value as text, or None.
        error: Why it failed, or what it waits for; None for a success.
        displays: The values that `display` showed: MIME type → text, or base64 for binary types.
        artifacts: The artifacts that were stored: `name`, `uri`, `path`, `size`.
        notices: Other facts for the reader, a sentence each.
        waiting: What a suspended one waits for, in rows as a program's; calls in doubt are in its error.
        calls: How many tool calls were made.
        duration_ms: From the request to its end.
        script_ms: The script's own time, without waiting for the host.
        start_ms: From the request until the guest ran.
        limits_not_enforced: Which of `memory`, `pids`, `cpus` this host can't enforce by control groups.
        dry_run: Whether it was run dry. A session has no such cell: it was run in a copy.
        planned: Of a dry run: the calls that it has listed, and not made, as rows.
        session: Of a session's cell: its place; else None.
        is_previous_result: Whether its idempotency key was used before, and nothing was run for this record. No part of
            `to_json`, which is the same for every request with the key.
    """

    execution: str
    status: Status = "success"
    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    value: str | None = None
    error: ErrorRecord | None = None
    displays: list[dict[str, str]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    waiting: list[WaitingRow] = field(default_factory=list)
    calls: int = 0
    duration_ms: float = 0.0
    script_ms: float = 0.0
    start_ms: float = 0.0
    limits_not_enforced: list[str] = field(default_factory=list)
    dry_run: bool = False
    planned: list[PlannedRow] = field(default_factory=list)
    session: CellFields | None = None
    is_previous_result: bool = False

    def to_json(self) -> dict[str, Any]:
        r"""As a JSON object; output that is no UTF-8 shows its bytes as `\xNN`. Empty fields are left out."""
        return self.to_keep() | {
            "stdout": self.stdout.decode("utf-8", "backslashreplace"),
            "stderr": self.stderr.decode("utf-8", "backslashreplace"),
        }

    def to_keep(self) -> dict[str, Any]:
        """As `to_json`, with the output as bytes: as text it can be four times as long."""
        out: dict[str, Any] = {
            "execution": self.execution,
            "status": self.status,
            "exit_code": self.exit_code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "duration_ms": round(self.duration_ms, 1),
            "script_ms": round(self.script_ms, 1),
            "start_ms": round(self.start_ms, 1),
            "calls": self.calls,
        }
        optional = {
            "value": self.value,
            "error": self.error,
            "displays": self.displays,
            "artifacts": self.artifacts,
            "notices": self.notices,
            "waiting": self.waiting,
            "limits_not_enforced": self.limits_not_enforced,
            "dry_run": self.dry_run or None,
            "planned": self.planned,
            "session": self.session,
        }
        return out | {key: value for key, value in optional.items() if value not in (None, [])}

    async def project(self, values: ExecutionValues) -> None:
        """Replace sensitive values by references."""
        for name in ("stdout", "stderr", "value", "error", "displays"):
            setattr(self, name, await values.project(getattr(self, name)))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """The record of a JSON object that `to_json` made; its `to_json` is the same."""
        known = {name: stored[name] for row in fields(cls) if (name := row.name) in stored}
        # Earlier versions kept what never ran, or was cancelled, without an exit code.
        known.setdefault("exit_code", 1 if known.get("status") in {"refused", "cancelled"} else 0)
        return cls(**known | {name: stored.get(name, "").encode() for name in ("stdout", "stderr")})

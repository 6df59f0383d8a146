"""What is known of one execution when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from mcp_bridge.gate.execution_values import ExecutionValues

Status = Literal[
    "success",  # the script ran to its end, or left by sys.exit(0)
    "error",  # an uncaught exception, or code that doesn't compile
    "exit",  # sys.exit with another code
    "timeout",  # the script's own time, or the bound on the whole, is up
    "out_of_memory",  # killed by the kernel for its memory, or an uncaught MemoryError (ENOMEM too)
    "killed",  # the interpreter ended without a word: a signal, os._exit
    "channel_closed",  # the guest closed its end, or fell silent
    "sandbox_lost",  # something else has ended its sandbox: it was run again, and lost again
    "protocol_error",  # a frame that is none came out of the container
    "output_limit",  # it printed more than max_output_size
    "call_limit",  # it went on and on with requests that were refused for max_calls or max_call_size
    "cancelled",  # the caller went away or took the call back
    "refused",  # it never ran: there was no sandbox
    "suspended",  # it waits for a person, an outcome or a program; or nobody knows whether a call of it has happened
]


GIVEN_BEFORE = (
    "nothing was run now: this is what the run {} gave, which was begun with this idempotency key before; "
    "use another key to run the code anew"
)
"""What to tell the reader of a record that is `given_before`; with its execution."""


@dataclass(slots=True)
class ExecutionRecord:
    """One execution, ended.

    Attributes:
        execution: Its id.
        status: How it ended.
        exit_code: As a process would give it: 0, the script's own, 1, 124 for a time-out, 128 + n for signal n.
        stdout, stderr: All that was printed, as bytes.
        value: Shown form of the last expression's value, or None.
        error: `code`, `message`, and for a Python exception `type`, `line` and `traceback`; None for a success.
        displays: What `display` showed: MIME type → text, or base64 for binary types.
        artifacts: What `artifact` kept: `name`, `uri`, `path`, `size`.
        notices: What the reader should know besides, a sentence each.
        waiting: What a suspended one waits for, as rows of what a program waits for; calls in doubt are in its error.
        calls: Tool calls made.
        duration_ms: From the request to its end.
        script_ms: The script's own time: without waiting for the host.
        start_ms: From the request until the guest ran.
        limits_not_enforced: Of `memory`, `pids`, `cpus`: those this host can't hold by control groups.
        given_before: Whether its idempotency key was used before, and nothing was run for this record. Of this answer
            alone: whoever asks with the key gets the same JSON.
    """

    execution: str
    status: Status = "success"
    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    value: str | None = None
    error: dict[str, Any] | None = None
    displays: list[dict[str, str]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    calls: int = 0
    duration_ms: float = 0.0
    script_ms: float = 0.0
    start_ms: float = 0.0
    limits_not_enforced: list[str] = field(default_factory=list)
    given_before: bool = False

    def to_json(self) -> dict[str, Any]:
        r"""As a JSON object; output that is no UTF-8 shows its bytes as `\xNN`. Empty fields are left out."""
        return self.to_keep() | {
            "stdout": self.stdout.decode("utf-8", "backslashreplace"),
            "stderr": self.stderr.decode("utf-8", "backslashreplace"),
        }

    def to_keep(self) -> dict[str, Any]:
        """As `to_json`, with what was printed as bytes: as text it can be four times as long."""
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
        }
        return out | {key: value for key, value in optional.items() if value not in (None, [])}

    async def project(self, values: ExecutionValues) -> None:
        """Hide what must not be shown."""
        for name in ("stdout", "stderr", "value", "error", "displays"):
            setattr(self, name, await values.project(getattr(self, name)))

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """The record that `to_json` has written: it gives the same JSON again."""
        known = {name: kept[name] for row in fields(cls) if (name := row.name) in kept}
        return cls(**known | {name: kept.get(name, "").encode() for name in ("stdout", "stderr")})

"""What goes into a machine and what comes out: events, effects, and the rows of its trace."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.kernel.values import normal

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

EffectKind = Literal["tool", "llm", "wait", "event", "approval", "cancel"]

OutcomeStatus = Literal["ok", "failed", "timeout", "denied", "pending"]

StepStatus = Literal["success", "failed", "skipped", "pending"]

Status = Literal["running", "suspended", "success", "failed", "budget_exceeded", "stalled", "cancelled"]

PENDING = "PENDING"
"""A tool that gives this text has not finished: its program is suspended until it is resumed."""


class Usage(NamedTuple):
    """What a model step took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float = 0

    def plus(self, other: "Usage") -> "Usage":
        """Both together."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            normal(self.cost_usd + other.cost_usd),
        )


class Effect(NamedTuple):
    """Something that the machine wants done, and of which it wants to hear the outcome (of a `cancel`: nothing).

    Attributes:
        id: Counts up from 1 in each execution.
        kind: `tool`: call `name` with `arguments`. `llm`: ask a model; `arguments` has `prompt`, `system`,
            `allowed_outputs`. `wait`: let `arguments["seconds"]` pass. `event`: wait to be resumed. `approval`: ask a
            person; `arguments` has `message` and `details`. `cancel`: the outcomes of `arguments["effects"]` are no
            longer wanted.
        step: The step's path: `charge`, `fan.left`, `each[3]`, `refund/charge`.
        attempt: From 1.
        name: Of a tool or an event. Of a `wait`: what for (`wait`, `retry`, `timeout`).
        arguments: Normal JSON, filled in.
        timeout: Seconds after which the outcome is `timeout`, or None.
    """

    id: int
    kind: EffectKind
    step: str
    attempt: int
    name: str
    arguments: dict[str, Any]
    timeout: float | None = None


class Outcome(NamedTuple):
    """How an effect ended. After `pending` comes another outcome, or a `Resume`.

    `pending` may come again only where the one before had waited for a person: a call that was approved may then be
    `in_doubt`, and one that was made again may be pending itself.

    Attributes:
        effect: Its id.
        status: How.
        value: For `ok`: any JSON value; of a model its text; of an approval `{"approved": bool, …}`.
        code: For the others: stable and short. For `pending`: `approval`, `in_doubt`, or empty.
        message: For the others: for people.
        usage: Of a model, however it ended.
    """

    effect: int
    status: OutcomeStatus
    value: Any = None
    code: str = ""
    message: str = ""
    usage: Usage | None = None


class Resume(NamedTuple):
    """What a suspended tool or event was waiting for has happened.

    Attributes:
        payload: Readable as `$__webhook__`, and as the step's output.
        source: `WEBHOOK`, `OPERATOR` or `TIMER`; readable as `$__webhook_source__`.
        effect: Which; None for the one that has waited longest.
    """

    payload: Any = None
    source: str = "WEBHOOK"
    effect: int | None = None


class Cancel(NamedTuple):
    """End the execution; what has to be undone is undone first."""

    reason: str = "cancelled"


class Redo(NamedTuple):
    """A person says of an effect in doubt that it has not happened: it is wanted as before.

    Attributes:
        effect: Which.
    """

    effect: int


Event = Outcome | Resume | Cancel | Redo


class IllegalEventError(ValueError):
    """An event that the state has no transition for. The state is as it was.

    Attributes:
        code: `ended`, `unknown_effect`, `not_pending`, `already_pending`, `not_resumable`, `not_in_doubt`,
            `bad_value`.
    """

    def __init__(self, code: "Code", message: str) -> None:
        super().__init__(message)
        self.code = code


class StepResult(NamedTuple):
    """A row of the trace: one step, ended (or pending, if it suspended its program).

    Attributes:
        id: The step's path; `charge.compensate` for what undid it.
        status: How it ended.
        output: Its value; None unless it succeeded.
        error: For people, or None.
        code: The error's, or None.
        retries: Attempts after the first.
        usage: Of a model step, all attempts together.
    """

    id: str
    status: StepStatus
    output: Any = None
    error: str | None = None
    code: str | None = None
    retries: int = 0
    usage: Usage | None = None

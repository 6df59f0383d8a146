"""What goes into a machine and what comes out: events, effects, and the rows of its trace."""

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mcp_bridge.kernel.values import ValueFaultError, normal

MAX_USAGE = 10**15
"""Most tokens, or dollars, that one answer of a model may have taken."""

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code

EffectKind = Literal["tool", "llm", "wait", "event", "approval", "cancel"]

OutcomeStatus = Literal["ok", "failed", "timeout", "denied", "pending"]

StepStatus = Literal["success", "failed", "skipped", "pending"]

Status = Literal["running", "suspended", "success", "failed", "budget_exceeded", "stalled", "cancelled"]

PENDING = "PENDING"
"""A tool that gives this text hasn't finished: its program is suspended until it is resumed."""


new = tuple.__new__
"""Makes a named tuple in half the time that calling its class takes; for those that every transition makes."""


class Usage(NamedTuple):
    """What a model's answers took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float = 0

    def plus(self, other: "Usage") -> "Usage":
        """The sum."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            normal(self.cost_usd + other.cost_usd),
        )


class Effect(NamedTuple):
    """What the machine asks its host to do. It expects an outcome of every effect but `cancel`.

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
        status: How it ended.
        value: With `ok`: any JSON value; of a model its text; of an approval `{"approved": bool, …}`.
        code: With the others: stable and short. With `pending`: `approval`, `in_doubt`, or empty.
        message: With the others: for people.
        usage: What a model took, however it ended.
    """

    effect: int
    status: OutcomeStatus
    value: Any = None
    code: str = ""
    message: str = ""
    usage: Usage | None = None


class Resume(NamedTuple):
    """What a suspended tool or event waits for has happened.

    Attributes:
        payload: Readable as `$__webhook__`, and as the step's output.
        source: `WEBHOOK`, `OPERATOR` or `TIMER`; readable as `$__webhook_source__`.
        effect: The effect's id; None for the one that has been suspended longest.
    """

    payload: Any = None
    source: str = "WEBHOOK"
    effect: int | None = None


class Cancel(NamedTuple):
    """End the execution, after undoing what has to be undone."""

    reason: str = "cancelled"


class Redo(NamedTuple):
    """A person says that an effect in doubt has not happened: it is asked for again.

    Attributes:
        effect: Its id.
    """

    effect: int


Event = Outcome | Resume | Cancel | Redo


class IllegalEventError(ValueError):
    """An event for which the state has no transition. The state is as it was.

    Attributes:
        code: `ended`, `unknown_effect`, `not_pending`, `already_pending`, `not_resumable`, `not_in_doubt`,
            `bad_value`.
    """

    def __init__(self, code: "Code", message: str) -> None:
        super().__init__(message)
        self.code = code


class StepResult(NamedTuple):
    """A row of the trace: a step that has ended, or is pending and suspends its program.

    Attributes:
        id: The step's path; `charge.compensate` for what undid it.
        status: How it ended.
        output: Its value; None unless it succeeded.
        error: For people, or None.
        code: Of the error, or None.
        retries: Attempts after the first.
        usage: Of a model step: what all of its attempts took.
    """

    id: str
    status: StepStatus
    output: Any = None
    error: str | None = None
    code: str | None = None
    retries: int = 0
    usage: Usage | None = None


# --- what may enter a state -------------------------------------------------------------------------------------------


def checked_outcome(outcome: Outcome, kind: EffectKind) -> Outcome:
    """The outcome, with value and usage in normal form.

    Args:
        outcome: As it came.
        kind: Of its effect.

    Raises:
        IllegalEventError: `bad_value`: it can't be the outcome of such an effect.
    """
    number, status, value, code, message, usage = outcome
    if status == "ok":
        given = value
        # Most texts are in ASCII, and so normal: they need no call.
        if type(given) is not str or not given.isascii() or kind == "approval":
            value = checked_value(given, kind)
        if usage is None and value is given:
            return outcome
    else:
        check_texts(code, message)
        value = None
    if usage is not None:
        usage = _checked_usage(usage)
    return new(Outcome, (number, status, value, code, message, usage))


def checked_value(value: Any, kind: EffectKind) -> Any:
    """The value of a successful outcome (or the payload of a resume) in normal form.

    Args:
        value: As it came.
        kind: Of its effect.

    Raises:
        IllegalEventError: `bad_value`: it can't be the value of such an effect.
    """
    try:
        value = normal(value)
    except ValueFaultError as exc:
        raise IllegalEventError("bad_value", f"the outcome is no JSON value: {exc}") from None
    if kind == "tool":
        return value
    if kind == "llm" and not isinstance(value, str):
        raise IllegalEventError("bad_value", "a model's answer is text")
    if kind == "approval" and not (isinstance(value, dict) and isinstance(value.get("approved"), bool)):
        raise IllegalEventError("bad_value", "a decision is an object with 'approved': true or false")
    return value


def _checked_usage(usage: Usage) -> Usage:
    try:
        checked = Usage(*normal(list(usage)))
    except ValueFaultError as exc:
        raise IllegalEventError("bad_value", f"a usage is of numbers: {exc}") from None
    kinds = [type(count) for count in checked]
    if kinds[:3] != [int, int, int] or kinds[3] not in (int, float) or not all(0 <= n <= MAX_USAGE for n in checked):
        raise IllegalEventError("bad_value", f"a usage is of whole tokens and a cost, from 0 to {MAX_USAGE}")
    return checked


def check_texts(*texts: str) -> None:
    """Check texts of an event.

    Raises:
        IllegalEventError: `bad_value`: no UTF-8 can carry one of them.
    """
    for text in texts:
        if not text.isascii():
            try:
                normal(text)
            except ValueFaultError as exc:
                raise IllegalEventError("bad_value", str(exc)) from None

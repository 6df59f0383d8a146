"""The interface of a language model: messages in, a text and its usage out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, TypeVar

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_bridge.error_codes import Code

BYTES_PER_TOKEN = 3
"""For estimates. Tokenizers encode 3 to 5 bytes of UTF-8 per token. Budgets rely on the estimates, so these should
rather be too high."""

TOKENS_PER_MESSAGE = 4
"""For estimates: the overhead of a message."""

_MODEL_CHARS = 200
_MOST_TOKENS = 10**12
_SEPARATOR = ", "

_T = TypeVar("_T")

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one or more answers. `Usage()` is zero; `+` adds.

    Attributes:
        prompt_tokens: Tokens of the input.
        completion_tokens: Tokens of the output, including hidden reasoning if the provider counts it so.
        total_tokens: Both, and further tokens that the provider counts.
        cost_usd: US dollars; None if no price is known. A sum that contains an unknown price is unknown.
        model: The model that answered; several names are separated by commas.
        estimated: Whether the tokens were estimated because they weren't reported.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cost_usd: float | None = 0.0
    model: str = ""
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        models = {*self.model.split(_SEPARATOR), *other.model.split(_SEPARATOR)} - {""}
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.total_tokens + other.total_tokens,
            (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
            _SEPARATOR.join(sorted(models)),
            self.estimated or other.estimated,
        )

    def record(self) -> dict[str, Any]:
        """The usage as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a model, in US dollars for a million tokens."""

    input_per_million: float
    output_per_million: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price in US dollars."""
        return (prompt_tokens * self.input_per_million + completion_tokens * self.output_per_million) / 1e6


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer.

    Attributes:
        text: The answer. Never blank, except in a program's step (`ModelSteps.answer`).
        usage: Its usage.
        truncated: Whether it was cut off at the token limit.
    """

    text: str
    usage: Usage
    truncated: bool = False


class ModelError(BridgeError):
    """A model gave no usable answer.

    Codes: `model_timeout`; `model_failed`: the provider or the client refused, with its message, without keys;
    `model_unavailable`: not configured, its library not installed, or the client doesn't support sampling;
    `model_bad_answer`: an answer without text, or too long, or cut off (`ModelSteps.answer`).

    Attributes:
        usage: The known usage in spite of the failure.
        blank: The answer if it is an empty or blank text, and was not cut off, else None.
    """

    def __init__(
        self, code: Code, message: str, *, hint: str | None = None, usage: Usage | None = None, **details: Any
    ) -> None:
        super().__init__(code, message, hint=hint, **details)
        self.usage = usage or Usage()
        self.blank: str | None = None


class Model(Protocol):
    """A language model."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Request an answer.

        Nothing is sent twice: the caller decides whether to retry. If the caller is cancelled, the request is
        abandoned.

        Args:
            messages: The conversation, at least one message. It is sent to the provider unchanged.
            max_tokens: The maximum length of the answer; the configuration's limit applies too.
            temperature: Overrides the configuration's.
            timeout: Seconds for the answer; the configuration's limit applies too.

        Raises:
            ModelError: There is no usable answer.
        """
        ...


def smaller_limit(one: _T | None, other: _T | None) -> _T | None:
    """The smaller of two limits, either of which may be None for no limit."""
    limits: list[Any] = [limit for limit in (one, other) if limit is not None]
    return min(limits, default=None)


async def answer_within(given: float | None, configured: float, ask: Callable[[], Awaitable[_T]]) -> _T:
    """The result of `ask`, or `timeout_error`.

    Args:
        given: The caller's limit in seconds, such as a step's, or None.
        configured: The configuration's.
        ask: Asks the model.

    Raises:
        ModelError: `model_timeout`.
    """
    with anyio.move_on_after(smaller_limit(given, configured)):
        return await ask()
    raise timeout_error(given, configured)


def timeout_error(given: float | None, configured: float) -> ModelError:
    """The error for an answer that didn't arrive within the smaller of two limits, as `answer_within`."""
    if given is not None and given < configured:
        hint = "That is the step's own limit: raise its timeout_seconds."
        return ModelError("model_timeout", f"The model didn't answer within the step's {given:g} s.", hint=hint)
    return ModelError(
        "model_timeout", f"The model didn't answer within {configured:g} s.", hint="Raise timeout in [model]."
    )


def well_formed(text: str) -> str:
    r"""The text with lone surrogates replaced: JSON can encode them (`\ud800`), but UTF-8, and so our states, can't."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def usage_of(
    messages: Sequence[Message],
    answer: object,
    *,
    model: str,
    prompt_tokens: object = None,
    completion_tokens: object = None,
    total_tokens: object = None,
    cost_usd: object = None,
    prices: Prices | None = None,
) -> Usage:
    """Usage as reported; token counts are estimated if they make no sense (absent, negative, zero for a text).

    A reported total is used even without its parts, unless the estimates are higher.

    Args:
        messages: The request.
        answer: The answer's text; any other type counts as no text.
        model: The model that answered.
        prompt_tokens: As reported.
        completion_tokens: As reported.
        total_tokens: As reported.
        cost_usd: The known price of this answer.
        prices: The operator's prices, which take precedence.
    """
    name = well_formed(model)[:_MODEL_CHARS].replace(_SEPARATOR, " ")
    if _is_count(prompt_tokens) and _is_count(completion_tokens) and (prompt_tokens or completion_tokens):
        prompt, written, estimated = prompt_tokens, completion_tokens, False
    else:
        prompt, written, estimated = estimate(messages), estimate_text(answer if isinstance(answer, str) else ""), True
    both = prompt + written
    total = max(total_tokens, both) if _is_count(total_tokens) else both
    # The part of a reported total that the estimates don't explain is priced as output: rather too high than too low.
    priced = written + total - both if estimated else written
    cost = prices.cost(prompt, priced) if prices else amount(cost_usd)
    return Usage(prompt, written, total, cost, name, estimated)


def estimate(messages: Sequence[Message]) -> int:
    """The estimated tokens of a conversation, rather too many than too few."""
    return sum(estimate_text(message.text) + TOKENS_PER_MESSAGE for message in messages)


def estimate_text(text: str) -> int:
    """The estimated tokens of a text, rather too many than too few."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def amount(value: object) -> float | None:
    """A valid amount of money, or None (for NaN, infinities and negative values)."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < math.inf else None

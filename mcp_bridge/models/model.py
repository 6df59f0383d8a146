"""The interface to a language model: messages in, a text and what it took out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, TypeVar

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_bridge.error_codes import Code

MAX_ANSWER_CHARS = 1 << 20
"""Longest answer that is taken from a model. It goes into a program's state, where it is carried and hashed."""

BYTES_PER_TOKEN = 3
"""For estimates. Tokenizers make 3 to 5 bytes of UTF-8 into a token: an estimate rather errs on the high side, since
budgets are held by it."""

TOKENS_PER_MESSAGE = 4
"""For estimates: what the framing of a message takes."""

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
    """What one or more answers took. `Usage()` is nothing at all; `+` adds.

    Attributes:
        prompt_tokens: What the model read.
        completion_tokens: What it wrote, hidden reasoning included where the provider counts it so.
        total_tokens: Both, and what else the provider counts.
        cost_usd: In US dollars; None where no price is known. A sum with something unknown in it is unknown.
        model: What answered; several names are separated by commas.
        estimated: Whether tokens were estimated here, because nobody reported them.
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
    """What a model costs, in US dollars for a million tokens."""

    input_per_million: float
    output_per_million: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """In US dollars."""
        return (prompt_tokens * self.input_per_million + completion_tokens * self.output_per_million) / 1e6


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer.

    Attributes:
        text: Never empty or blank, but of a program's step (`ModelSteps.answer`).
        usage: What it took.
        truncated: Whether it was cut off at the limit of tokens.
    """

    text: str
    usage: Usage
    truncated: bool = False


class ModelError(BridgeError):
    """A model that gave no usable answer.

    Codes: `model_timeout`; `model_failed`: the provider's or the client's refusal, in its words, without keys;
    `model_unavailable`: not configured, its library not installed, or a client that can't be asked; `model_bad_answer`:
    an answer without text, or too long.

    Attributes:
        usage: What was spent all the same, as far as it is known.
        blank: The answer, if it is a text that is empty or nothing but space; None if there is none.
    """

    def __init__(
        self, code: Code, message: str, *, hint: str | None = None, usage: Usage | None = None, **details: Any
    ) -> None:
        super().__init__(code, message, hint=hint, **details)
        self.usage = usage or Usage()
        self.blank: str | None = None


class Model(Protocol):
    """Something that answers."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Answer.

        Nothing is sent twice: whether to try again is for the caller to say. When the caller is cancelled, the request
        is abandoned.

        Args:
            messages: The conversation, at least one message. It goes to the provider as it is.
            max_tokens: The most to write; the configuration's limit holds too.
            temperature: Instead of the configuration's.
            timeout: Seconds for the answer; the configuration's limit holds too.

        Raises:
            ModelError: There is no answer.
        """
        ...


def smaller(one: _T | None, other: _T | None) -> _T | None:
    """The smaller of two limits, either of which may be None for no limit."""
    limits: list[Any] = [limit for limit in (one, other) if limit is not None]
    return min(limits, default=None)


async def answer_within(seconds: float | None, ask: Callable[[], Awaitable[_T]]) -> _T:
    """What `ask` gives, or `ModelError` (`model_timeout`) after so many seconds; None waits for ever."""
    with anyio.move_on_after(seconds):
        return await ask()
    raise out_of_time(seconds)


def out_of_time(seconds: float | None) -> ModelError:
    """The error of an answer that didn't come in time."""
    within = "" if seconds is None else f" within {seconds:g} s"
    return ModelError("model_timeout", f"The model didn't answer{within}.", hint="Raise timeout in [model].")


def completion(text: object, usage: Usage, *, truncated: bool = False) -> Completion:
    """An answer, checked.

    Args:
        text: What the provider gave for the text.
        usage: What it took.
        truncated: Whether it was cut off at the limit of tokens.

    Raises:
        ModelError: `model_bad_answer`: no text, nothing but space, or more than `MAX_ANSWER_CHARS`.
    """
    if not isinstance(text, str) or not text.strip():
        hint = "It used up max_tokens before it wrote any: raise max_tokens." if truncated else None
        error = ModelError("model_bad_answer", "The model answered without any text.", hint=hint, usage=usage)
        error.blank = text[:MAX_ANSWER_CHARS] if isinstance(text, str) else None
        raise error
    if len(text) > MAX_ANSWER_CHARS:
        raise ModelError(
            "model_bad_answer",
            f"The model's answer has {len(text)} characters; the limit is {MAX_ANSWER_CHARS}.",
            hint="Set max_tokens in [model].",
            usage=usage,
        )
    return Completion(well_formed(text), usage, truncated)


def well_formed(text: str) -> str:
    r"""The text with lone surrogates replaced: JSON can carry them (`\ud800`), UTF-8 and so our states can't."""
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
    """Usage from what was reported, the tokens estimated where that makes no sense (absent, negative, zero for text).

    A total that is reported counts, also without its parts, unless their estimates are more.

    Args:
        messages: What was asked.
        answer: The text that came, or anything else for none.
        model: What answered.
        prompt_tokens: As reported.
        completion_tokens: As reported.
        total_tokens: As reported.
        cost_usd: What is known of the price of this.
        prices: The operator's, which count before what is known.
    """
    name = well_formed(model)[:_MODEL_CHARS].replace(_SEPARATOR, " ")
    if _is_count(prompt_tokens) and _is_count(completion_tokens) and (prompt_tokens or completion_tokens):
        prompt, written, estimated = prompt_tokens, completion_tokens, False
    else:
        prompt, written, estimated = estimate(messages), estimate_text(answer if isinstance(answer, str) else ""), True
    both = prompt + written
    total = max(total_tokens, both) if _is_count(total_tokens) else both
    # What an estimate doesn't explain of a total that was reported is priced as written: rather too high than too low.
    priced = written + total - both if estimated else written
    cost = prices.cost(prompt, priced) if prices else amount(cost_usd)
    return Usage(prompt, written, total, cost, name, estimated)


def estimate(messages: Sequence[Message]) -> int:
    """About how many tokens a conversation has, rather too many than too few."""
    return sum(estimate_text(message.text) + TOKENS_PER_MESSAGE for message in messages)


def estimate_text(text: str) -> int:
    """About how many tokens a text has, rather too many than too few."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS


def amount(value: object) -> float | None:
    """A sum of money, or None for what is none (NaN, an infinity, less than nothing)."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < math.inf else None

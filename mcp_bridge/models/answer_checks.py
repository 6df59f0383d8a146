"""What counts as a model's answer: a text that isn't blank, and isn't too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.models.model import Completion, ModelError, well_formed

if TYPE_CHECKING:
    from mcp_bridge.models.model import Usage

MAX_ANSWER_CHARS = 1 << 20
"""The longest answer that is accepted from a model. It becomes a part of a program's state."""


def completion(text: object, usage: Usage, *, truncated: bool = False) -> Completion:
    """Validate an answer.

    Args:
        text: The provider's text.
        usage: The answer's usage.
        truncated: Whether it was cut off at the token limit.

    Raises:
        ModelError: `model_bad_answer`: not a text, blank, or longer than `MAX_ANSWER_CHARS`.
    """
    if not isinstance(text, str) or not text.strip():
        hint = (
            "It used up its tokens before it wrote any: set max_tokens in [model], or a higher one than now."
            if truncated
            else None
        )
        error = ModelError("model_bad_answer", "The model answered without any text.", hint=hint, usage=usage)
        # Cut off before it had any text, it is no answer.
        error.blank = text[:MAX_ANSWER_CHARS] if isinstance(text, str) and not truncated else None
        raise error
    if len(text) > MAX_ANSWER_CHARS:
        raise ModelError(
            "model_bad_answer",
            f"The model's answer has {len(text)} characters; the limit is {MAX_ANSWER_CHARS}.",
            hint="Set max_tokens in [model].",
            usage=usage,
        )
    return Completion(well_formed(text), usage, truncated)

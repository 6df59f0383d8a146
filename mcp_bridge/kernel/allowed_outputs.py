"""The answers that a model step accepts (`allowed_outputs`): another one fails it, or counts as the first of them."""

from __future__ import annotations

from mcp_bridge.kernel.language.value_texts import quoted

_SHOWN_CHARS = 200


class NotAllowedError(ValueError):
    """An answer that is none of those that are accepted. Its message is shown."""


def accepted(answer: str, allowed: tuple[str, ...], *, first_instead: bool) -> str:
    """The accepted answer that a model has given, white space around it aside.

    Args:
        answer: What the model has said.
        allowed: The answers that are accepted.
        first_instead: Whether any other counts as the first of them.

    Raises:
        NotAllowedError: It is none of them.
    """
    answer = answer.strip()
    if answer in allowed:
        return answer
    if first_instead:
        return allowed[0]
    shown = ", ".join(map(quoted, allowed))
    raise NotAllowedError(f"the model's answer {quoted(answer[:_SHOWN_CHARS])} is none of {shown}")


def without_answer(allowed: tuple[str, ...] | None) -> str:
    """What counts as the answer of a model that has timed out: the first that is accepted, or an empty text."""
    return allowed[0] if allowed else ""

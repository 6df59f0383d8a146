"""A question to a model, as traces and metrics see it: by the semantic conventions for GenAI, without its text."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from mcp_bridge.telemetry import measurements, tracing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Usage(Protocol):
    """The tokens of an answer."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the input."""

    @property
    def completion_tokens(self) -> int:
        """Tokens of the output."""


class Answered:
    """A question under way.

    Attributes:
        usage: What it has used; None until that is known.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None


@contextmanager
def model_span(provider: str, model: str) -> Iterator[Answered]:
    """Trace and measure a question to a model meanwhile.

    Args:
        provider: Who is asked: the configured provider.
        model: The configured model.
    """
    answered, began, result = Answered(), time.monotonic(), measurements.OK
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider, "gen_ai.request.model": model}
    try:
        with tracing.span(f"chat {model}", "client", attributes) as span:
            yield answered
            if span is not None and answered.usage is not None:
                span.set_attribute("gen_ai.usage.input_tokens", answered.usage.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", answered.usage.completion_tokens)
    except BaseException as exc:
        result = measurements.error_type(exc)
        raise
    finally:
        tokens = None
        if answered.usage is not None:
            tokens = answered.usage.prompt_tokens, answered.usage.completion_tokens
        measurements.model_answered(provider, model, result, time.monotonic() - began, tokens)

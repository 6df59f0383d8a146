"""The MCP client's model: `sampling/createMessage` (MCP specification, client features, sampling).

The server layer implements the protocol and passes a `Sampler` for one tool call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mcp_bridge.models.answer_checks import completion
from mcp_bridge.models.model import ModelError, answer_within, smaller_limit, usage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.model import Completion, Message

DEFAULT_MAX_TOKENS = 4096
"""The protocol requires a limit in every request; this is used if none is set."""

TRUNCATED = "maxTokens"
"""The protocol's stop reason for an answer that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """A request to the client.

    Attributes:
        messages: Messages of user and assistant; the protocol has no other roles.
        system_prompt: The system prompt, or None.
        max_tokens: At least 1.
        temperature: From 0 to 2.
        model_hints: Names of preferred models, which the client may ignore.
    """

    messages: tuple[Message, ...]
    system_prompt: str | None
    max_tokens: int
    temperature: float
    model_hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingReply:
    """The client's answer.

    Attributes:
        text: None for content that isn't text, such as an image.
        model: The name of the model, as reported by the client.
        stop_reason: The protocol's stop reason (`endTurn`, `maxTokens`…), or None.
    """

    text: str | None
    model: str
    stop_reason: str | None = None


class Sampler(Protocol):
    """Sends requests to the client, without a time limit: callers cancel."""

    async def __call__(self, request: SamplingRequest) -> SamplingReply:
        """Send a request.

        Raises:
            ModelError: `model_unavailable`: the client doesn't support sampling. `model_failed`: it or its user
                refused.
        """
        ...


class SamplingModel:
    """The client's own model. Clients report no tokens: these are estimated, and `Usage.estimated` is set.

    Args:
        config: The `[model]` table, with provider `sampling`.
        sampler: Sends requests to the client of this call; None if there is no client.
    """

    def __init__(self, config: ModelConfig, sampler: Sampler | None) -> None:
        self._config = config
        self._sampler = sampler

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """See `Model`."""
        sampler, config = self._sampler, self._config
        if sampler is None:
            raise ModelError(
                "model_unavailable",
                "This client can't be asked for a model's answer: it doesn't offer sampling.",
                hint="Set another provider in [model].",
            )
        system = [message.text for message in messages if message.role == "system"]
        request = SamplingRequest(
            messages=tuple(message for message in messages if message.role != "system"),
            system_prompt="\n\n".join(system) if system else None,
            max_tokens=smaller_limit(max_tokens, config.max_tokens) or DEFAULT_MAX_TOKENS,
            temperature=config.temperature if temperature is None else temperature,
            model_hints=(config.name,) if config.name else (),
        )
        reply = await answer_within(timeout, config.timeout, lambda: sampler(request))
        usage = usage_of(messages, reply.text, model=reply.model, prices=config.prices)
        return completion(reply.text, usage, truncated=reply.stop_reason == TRUNCATED)

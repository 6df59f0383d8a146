"""A model behind the MCP client: `sampling/createMessage` (MCP specification, client features, sampling).

The protocol is the server layer's business: it hands in a `Sampler`, made for one call of a tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mcp_bridge.models.model import ModelError, answer_within, completion, smaller, usage_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.model import Completion, Message

DEFAULT_MAX_TOKENS = 4096
"""The protocol wants a limit in every request; this one is asked for where nobody set any."""

TRUNCATED = "maxTokens"
"""The protocol's reason for an answer that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """What to ask of the client.

    Attributes:
        messages: Of user and assistant; the protocol has no other roles.
        system_prompt: Or None.
        max_tokens: At least 1.
        temperature: From 0 to 2.
        model_hints: Names of models that would be welcome; the client need not heed them.
    """

    messages: tuple[Message, ...]
    system_prompt: str | None
    max_tokens: int
    temperature: float
    model_hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingReply:
    """What the client answered.

    Attributes:
        text: None for what is no text, such as an image.
        model: The name of what answered, in the client's words.
        stop_reason: In the protocol's words (`endTurn`, `maxTokens`…), or None.
    """

    text: str | None
    model: str
    stop_reason: str | None = None


class Sampler(Protocol):
    """Asks the client, for as long as it takes: time-outs come as cancellation."""

    async def __call__(self, request: SamplingRequest) -> SamplingReply:
        """Ask.

        Raises:
            ModelError: `model_unavailable`: this client can't be asked. `model_failed`: it refused, or its user did.
        """
        ...


class SamplingModel:
    """The client's own model. Clients report no tokens: they are estimated, and `Usage.estimated` says so.

    Args:
        config: With provider `sampling`.
        sampler: How the client of this call is asked; None where there is nobody to ask.
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
            max_tokens=smaller(max_tokens, config.max_tokens) or DEFAULT_MAX_TOKENS,
            temperature=config.temperature if temperature is None else temperature,
            model_hints=(config.name,) if config.name else (),
        )
        reply = await answer_within(smaller(timeout, config.timeout), lambda: sampler(request))
        usage = usage_of(messages, reply.text, model=reply.model, prices=config.prices)
        return completion(reply.text, usage, truncated=reply.stop_reason == TRUNCATED)

"""From configuration to a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.models.litellm_adapter import LiteLLMModel
from mcp_bridge.models.model import ModelError
from mcp_bridge.models.sampling import SamplingModel
from mcp_bridge.models.scripted import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.litellm_adapter import ResolveSecret
    from mcp_bridge.models.model import Completion, Message, Model
    from mcp_bridge.models.sampling import Sampler


class UnconfiguredModel:
    """Stands where no model is configured: programs without `llm` steps don't need one."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Raises `ModelError` (`model_unavailable`)."""
        del messages, max_tokens, temperature, timeout
        raise ModelError(
            "model_unavailable",
            "No model is configured.",
            hint="Add a [model] table with provider = 'litellm', 'sampling' or 'scripted' to the configuration.",
        )


def make_model(
    config: ModelConfig | None,
    *,
    resolve_secret: ResolveSecret | None = None,
    sampler: Sampler | None = None,
    directory: Path | None = None,
) -> Model:
    """The model of a configuration. Make one for each execution: it is cheap, and a script begins anew.

    Args:
        config: None for no `[model]` table.
        resolve_secret: Gives the plaintext behind `api_key`'s reference; asked before each request, never kept.
        sampler: How the client of this call is asked; None where there is none, or it can't be.
        directory: Where a file of scripted answers is looked for: the configuration file's.

    Raises:
        BridgeError: `bad_config`, for a file of scripted answers that can't be read. Everything else that is missing
            is an error of the first question.
    """
    if config is None:
        return UnconfiguredModel()
    if config.provider == "litellm":
        return LiteLLMModel(config, resolve_secret)
    if config.provider == "sampling":
        return SamplingModel(config, sampler)
    return ScriptedModel(config, directory or Path())

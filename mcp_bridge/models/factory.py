"""Creates the model of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.models.model import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.models.config import ModelConfig
    from mcp_bridge.models.litellm_adapter import ResolveSecret
    from mcp_bridge.models.model import Completion, Message, Model
    from mcp_bridge.models.sampling import Sampler


class UnconfiguredModel:
    """The model of a configuration without `[model]`: programs without `llm` steps don't need one."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Raise `ModelError` (`model_unavailable`)."""
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
    """Create the model of a configuration, for one execution: this is cheap, and a scripted model starts over.

    Args:
        config: The `[model]` table, or None.
        resolve_secret: Returns the plaintext of `api_key`; called for each request, and its result isn't stored.
        sampler: Sends requests to the MCP client of this call; None if that isn't possible.
        directory: The directory of the configuration file, for a file of scripted answers.

    Raises:
        BridgeError: `bad_config`: a file of scripted answers can't be read. All other problems are raised by the first
            request.
    """
    if config is None:
        return UnconfiguredModel()
    if config.provider == "litellm":
        from mcp_bridge.models.litellm_adapter import LiteLLMModel  # noqa: PLC0415  (of three, one is used)

        return LiteLLMModel(config, resolve_secret)
    if config.provider == "sampling":
        from mcp_bridge.models.sampling import SamplingModel  # noqa: PLC0415  (likewise)

        return SamplingModel(config, sampler)
    from mcp_bridge.models.scripted import ScriptedModel  # noqa: PLC0415  (likewise)

    return ScriptedModel(config, directory or Path())
